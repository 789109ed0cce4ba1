/* gguf_arch.h - the architectures of GGUF files (key general.architecture): which family each is,
 * its names of tensors, and which keys it has besides the common ones. */
#ifndef RP_MODEL_GGUF_ARCH_H
#define RP_MODEL_GGUF_ARCH_H

#include "base/status.h"

/* A number of the metadata that config.json has by another name. */
struct rp_gguf_number {
    const char *gguf, *config; /* gguf: after "ARCHITECTURE." */
};
#define RP_GGUF_NUMBERS_MAX 4u

struct rp_gguf_arch {
    const char *name, *architecture;
    bool interleaved; /* rows of q and k are stored in pairs (2i, 2i + 1) of a head, which the
                         original's are not */
    bool gemma;      /* the file's norm weights hold the family's offset already; scale of scores */
    bool post_norms; /* post_attention_layernorm is the norm after attention, not the MLP's */
    bool partial;    /* a part of each head may be rotated */
    bool layer_types; /* layers with a window: attention.sliding_window_pattern */
    /* Layers of the model whose scores are scaled by hidden size / heads, which files do not say;
     * all others by the size of a head. */
    uint32_t large_layers;
    struct rp_gguf_number numbers[RP_GGUF_NUMBERS_MAX];
};

/* NULL: unknown. */
const struct rp_gguf_arch *rp_gguf_arch_find(const char *name, size_t len);
/* All names, with commas between. */
const char *rp_gguf_arch_names(char *out, size_t out_bytes);

/* "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight", as the architecture calls it.
 * Returns out, or `name` where there is no other. */
const char *rp_gguf_tensor_name(const struct rp_gguf_arch *arch, const char *name, char *out,
                                size_t out_bytes);

#endif
