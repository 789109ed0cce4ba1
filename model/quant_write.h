/* quant_write.h - makes a checkpoint with 8-bit weights out of one with 16 or 32 bits: compressed-tensors, as it is read
 * here and elsewhere (quant_config.h), one scale per output channel.
 *
 *   config.json              with quantization_config; rows are quantised as they arrive
 *   *.safetensors            the same shards: projections of layers as I8 or F8_E4M3 and weight_scale (n, 1) F32, all
 *                            other tensors byte for byte; embedding, head and norms among them
 *   *.safetensors.index.json with the scales' names
 *   everything else          copied, but for folders and weights in other formats
 *
 * Memory: one tensor in f32 and its codes. Thread: one. */
#ifndef RP_MODEL_QUANT_WRITE_H
#define RP_MODEL_QUANT_WRITE_H

#include "model/balance.h"
#include "quant/quantise.h"

/* Of one projection. */
struct rp_quant_module {
    const char *name; /* model.layers.3.mlp.up_proj.weight */
    uint32_t rows, cols;
    struct rp_quant_loss loss;
    uint32_t worst_row; /* the output channel that lost most */
    double worst_db, sqnr_db;
};

/* scheme: RP_QUANT_INT8 or RP_QUANT_FP8. balance: factors to fold into weights, norms and biases on the way, or NULL. out_dir is made and must not be there. told: after each projection. FORMAT
 * names the tensor that holds what is no number; what was written stays then, without a config.json. */
int rp_quant_write(const char *dir, const char *out_dir, enum rp_quant_scheme scheme,
                   const struct rp_balance *balance,
                   void (*told)(void *ctx, const struct rp_quant_module *module), void *ctx,
                   struct rp_error *err) RP_MUST_USE;

#endif
