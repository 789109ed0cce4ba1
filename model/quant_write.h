/* quant_write.h - converts a checkpoint with 16 or 32-bit weights to 8 or 4 bits:
 * compressed-tensors, as it is read here and elsewhere (quant_config.h), one scale per output
 * channel, or (4 bits) per group of columns.
 *
 *   config.json              with quantization_config; rows are quantized as they arrive
 *   *.safetensors            the same shards: projections of layers as I8 or F8_E4M3 and weight_scale (n, 1) F32, all
 *                            other tensors byte for byte; embedding, head and norms among them
 *                            int4: weight_packed (n, k / 8) I32, weight_scale (n, k / group) BF16
 *                            and weight_shape
 *                            nvfp4: weight_packed (n, k / 2) U8, weight_scale (n, k / 16) F8_E4M3,
 *                            divided by weight_global_scale (1) F32, which q, k and v share, and
 *                            gate and up, as other engines expect that fuse them
 *                            mxfp4: weight_packed (n, k / 2) U8, weight_scale (n, k / 32) U8
 *                            4 bits: matrices whose columns are no multiple of the group stay as
 *                            they are
 *   *.safetensors.index.json with the scales' names
 *   everything else          copied, but for folders and weights in other formats
 *
 * Weights are rounded to nearest, or, when statistics of their inputs are available, by GPTQ
 * (quant/rounding/gptq.h); scales and format are the same.
 *
 * Memory: one tensor in f32 and its quantized values; with inputs also the factors of one layer
 * (rp_quant_write_bytes). Thread: one. */
#ifndef RP_MODEL_QUANT_WRITE_H
#define RP_MODEL_QUANT_WRITE_H

#include "model/balance.h"
#include "quant/rounding/quantize.h"

struct rp_cpu_team;

/* Sampled inputs of the weights of one site. */
struct rp_quant_inputs {
    uint32_t cols;
    size_t count, room; /* rows stored, and capacity */
    uint16_t *values;   /* (room, cols) bf16, finite */
};

/* Report of one projection. */
struct rp_quant_module {
    const char *name; /* model.layers.3.mlp.up_proj.weight */
    uint32_t rows, cols;
    struct rp_quant_loss loss;
    uint32_t worst_row; /* the output channel with the largest error */
    double worst_db, sqnr_db;
    /* Output error by the damped H of gptq.h, as written and with round-to-nearest. NaN unless
     * requested. */
    double output_db, nearest_output_db;
};

struct rp_quant_write_options {
    enum rp_quant_scheme scheme; /* INT8, FP8, INT4, NVFP4 or MXFP4 */
    uint32_t group;              /* INT4: 32, 64 or 128; others have their own */
    /* factors to fold into weights, norms and biases on the way, or NULL */
    const struct rp_balance *balance;
    /* (layers, RP_BALANCE_SITES) without the factors; NULL: round to nearest */
    const struct rp_quant_inputs *inputs;
    struct rp_cpu_team *team; /* with inputs */
    bool measure_outputs;     /* with inputs: three times the time of rounding */
    void (*told)(void *ctx, const struct rp_quant_module *module); /* after each projection */
    void *ctx;
};

/* out_dir is created and must not exist. FORMAT names the tensor with a NaN or infinity; files
 * already written remain then, without a config.json. NO_MEMORY names the tensor whose factor does
 * not fit. */
int rp_quant_write(const char *dir, const char *out_dir,
                   const struct rp_quant_write_options *options, struct rp_error *err) RP_MUST_USE;

/* UNSUPPORTED: what it says of a model with experts or recurrent state. */
int rp_quant_write_check(const struct rp_model_config *config, const char *dir,
                         struct rp_error *err);

/* Bytes of inputs of `rows` rows plus the factors of a layer; SIZE_MAX on overflow. */
size_t rp_quant_write_bytes(const struct rp_model_config *config, size_t rows) RP_MUST_USE;

#endif
