/* weights_internal.h - every weight of a model in one list, so that describing, allocating, loading
 * and random filling all walk the same one.
 *
 * A part is one tensor of a checkpoint and the rows of the matrix (or the piece of the vector) in
 * memory that it becomes: q_proj, k_proj and v_proj are three parts of one qkv matrix. */
#ifndef RP_MODEL_WEIGHTS_INTERNAL_H
#define RP_MODEL_WEIGHTS_INTERNAL_H

#include "model/model.h"

struct rp_weight_part {
    char name[96];            /* model.layers.3.self_attn.q_proj.weight */
    struct rp_matrix *matrix; /* NULL for a vector */
    float **vector;           /* NULL for a matrix */
    uint32_t vector_len;      /* of the whole vector in memory */
    uint32_t row_begin;       /* first row of the matrix, or element of the vector */
    uint32_t rows, cols;      /* of the tensor; a vector has cols 0 */
    bool quantized;           /* 8 bits in the checkpoint, with a tensor of scales beside it */
    bool
        is_norm; /* a vector that multiplies, by 1 with the configuration's offset and random values */
};

/* Calls `visit` for every part, in the order of the network, until one returns another status than
 * RP_OK, which is returned. A tied lm_head is no part. */
int rp_weight_parts(struct rp_model *model,
                    int (*visit)(void *ctx, const struct rp_weight_part *part), void *ctx);

/* Shapes, and nothing allocated but the list of layers. dtype is F32 or BF16; with BF16 what has 8 bits in the
 * checkpoint has them in memory. */
int rp_weights_describe(const struct rp_model_config *config, enum rp_dtype dtype,
                        struct rp_model *out_model, struct rp_error *err) RP_MUST_USE;

/* Whether weights can be of this type in memory: F32, BF16 or RP_MODEL_DTYPE_AUTO; not F32 beside quantized ones. */
int rp_weights_check_dtype(const struct rp_model_config *config, enum rp_dtype dtype,
                           struct rp_error *err) RP_MUST_USE;

/* Memory for every matrix and vector of a described model, and the RoPE table, filled.
 * position_count 0: the configuration's. vectors_only: none for the matrices. */
int rp_weights_allocate(struct rp_model *model, uint32_t position_count, bool vectors_only,
                        struct rp_error *err) RP_MUST_USE;

/* --- weights_quant.c: parts of 8 bits --------------------------------------------------------------- */

struct rp_safetensors;
struct rp_safetensor;

/* The part's own tensor, and the scales', are there and of the type and shape that the configuration implies.
 * *out_scales: those. */
int rp_weight_quant_check(const struct rp_safetensors *files, const struct rp_model_config *config,
                          const struct rp_weight_part *part, const struct rp_safetensor *tensor,
                          const struct rp_safetensor **out_scales,
                          struct rp_error *err) RP_MUST_USE;
/* Reads the part into its rows of the matrix: codes and scales, or (an F32 matrix) their products. */
int rp_weight_quant_load(const struct rp_safetensors *files, const struct rp_model_config *config,
                         const struct rp_weight_part *part, unsigned char *staging,
                         size_t staging_bytes, struct rp_error *err) RP_MUST_USE;

#endif
