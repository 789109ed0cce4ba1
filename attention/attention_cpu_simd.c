#include "attention/attention_internal.h"

#if RP_ATTENTION_HAS_SIMD

rp_attention_fn rp_attention_select_simd(enum rp_cpu_isa isa, const struct rp_kv_layout *kv) {
    (void)isa;
    (void)kv;
    return NULL;
}

#endif
