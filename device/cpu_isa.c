#include "device/cpu_isa.h"

#include "base/base.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

static const char *const isa_names[] = {"scalar", "avx2", "avx512", "avx512_bf16"};

static enum rp_cpu_isa isa_of_processor(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return RP_ISA_SCALAR;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return RP_ISA_AVX2;
    return __builtin_cpu_supports("avx512bf16") ? RP_ISA_AVX512_BF16 : RP_ISA_AVX512;
#else
    return RP_ISA_SCALAR;
#endif
}

enum rp_cpu_isa rp_cpu_isa_detect(void) {
    enum rp_cpu_isa isa = isa_of_processor();
    const char *wish = getenv("REPRISE_CPU_ISA");
    if (!wish || !*wish)
        return isa;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(isa_names); i++)
        if (strcmp(wish, isa_names[i]) == 0)
            return (enum rp_cpu_isa)RP_MIN(i, (uint32_t)isa);
    rp_log(RP_LOG_WARN,
           "device: REPRISE_CPU_ISA is none of scalar, avx2, avx512, avx512_bf16 using=%s",
           rp_cpu_isa_name(isa));
    return isa;
}

const char *rp_cpu_isa_name(enum rp_cpu_isa isa) {
    return (uint32_t)isa < RP_ARRAY_COUNT(isa_names) ? isa_names[isa] : "?";
}
