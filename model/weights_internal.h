/* weights_internal.h - the table of weights, shared by the files of model/.
 *
 * A part is one tensor of a checkpoint and the rows of the matrix (or the elements of the vector)
 * in memory that it becomes: q_proj, k_proj and v_proj are three parts of one qkv matrix. */
#ifndef RP_MODEL_WEIGHTS_INTERNAL_H
#define RP_MODEL_WEIGHTS_INTERNAL_H

#include "model/model.h"

#define RP_ROW_SECTIONS_MAX 4

/* How the rows of a tensor lie in memory, where this is not their order in the file:
 *   pairs    RoPE rotates pairs (2i, 2i + 1) of the file's rows, (i, i + pairs / 2) of ours: of each
 *            head's rows [skip, skip + pairs) the even ones come before the odd ones
 *   group    q, k and v of each KV head lie together: `group` heads of q, one of k, one of v
 *   gate_up  of so many rows, those of each expert, the even ones are gates, the odd ones ups
 *   sections the file has units of sections[0], sections[1], .. rows; in memory the first sections
 *            of all units come first, then the second ones; reversed: the last ones first
 * All 0: the order of the file. */
struct rp_row_order {
    uint32_t head_dim, pairs, group, kv_heads, gate_up, skip;
    uint32_t units, section_count, sections[RP_ROW_SECTIONS_MAX];
    bool reversed;
};

static inline bool rp_row_order_is_plain(const struct rp_row_order *order) {
    return order->pairs == 0 && order->group == 0 && order->gate_up == 0 &&
           order->section_count == 0;
}

uint32_t rp_row_order_place(const struct rp_row_order *order, uint32_t row);

struct rp_tensor_rule;
/* weights_sections.c: the sections of a rule's tensor, where it has any; and the place of a row. */
void rp_row_order_set_sections(const struct rp_model_config *config,
                               const struct rp_tensor_rule *rule, struct rp_row_order *order);
uint32_t rp_row_section_place(const struct rp_row_order *order, uint32_t row);

struct rp_weight_part {
    char name[96]; /* model.layers.3.self_attn.q_proj.weight */
    struct rp_weight *weight;
    uint32_t row_begin;  /* first row of the matrix, or element of the vector */
    uint32_t rows, cols; /* of the tensor; a vector has cols 0 */
    bool stacked;        /* the tensor is (experts, rows / experts, cols) */
    bool transposed;     /* (experts, cols, rows / experts) */
    bool quantized;      /* 8 or 4 bits in the checkpoint, with a tensor of scales beside it */
    bool split;          /* the tensor has rows of two weights in turn (weights_latent.c) */
    struct rp_row_order order;
};

/* Calls `visit` for every part, in the order of the network, until one returns another status than
 * RP_OK, which is returned. A tied head is no part. */
int rp_weight_parts(const struct rp_model *model,
                    int (*visit)(void *ctx, const struct rp_weight_part *part), void *ctx);

struct rp_safetensors;

/* The name that a tensor has in the files, whose prefix the configuration knows. */
void rp_tensor_name(const struct rp_model_config *config, const char *name, char *out,
                    size_t out_bytes);
/* Finds that prefix. */
void rp_tensor_choose_prefix(const struct rp_safetensors *files, struct rp_model_config *config);
/* How the files name experts, one tensor for each or one for all: of families that have one way
 * alone; and as the files say. */
void rp_tensor_default_stacked(struct rp_model_config *config);
void rp_tensor_choose_stacked(const struct rp_safetensors *files, struct rp_model_config *config);

/* Whether the checkpoint has 8 or 4 bits for this matrix. */
bool rp_weight_is_quantized(const struct rp_model_config *config, enum rp_weight_role role,
                            uint32_t layer);
/* Whether one tensor of the checkpoint holds all rows of the role: q, k and v, or gate and up. */
bool rp_weight_is_fused(const struct rp_model_config *config, enum rp_weight_role role);

/* Creates the table with shapes; nothing else is allocated. dtype is F32 or BF16; with BF16, 8-bit
 * weights of the checkpoint stay 8 bits in memory. */
int rp_weights_describe(const struct rp_model_config *config, enum rp_dtype dtype,
                        struct rp_model *out_model, struct rp_error *err) RP_MUST_USE;

/* Whether weights can be of this type in memory: F32, BF16 or RP_MODEL_DTYPE_AUTO; not F32 beside
 * quantized ones. */
int rp_weights_check_dtype(const struct rp_model_config *config, enum rp_dtype dtype,
                           struct rp_error *err) RP_MUST_USE;

/* The type around GGUF's blocks that RP_MODEL_DTYPE_AUTO means: BF16 where any has scales. */
enum rp_dtype rp_weights_blocks_dtype(const struct rp_model_config *config);

/* Memory for every vector of a described model, and the RoPE table, filled. position_count 0: the
 * configuration's. */
int rp_weights_allocate_vectors(struct rp_model *model, uint32_t position_count,
                                struct rp_error *err) RP_MUST_USE;
/* Memory for a matrix and its scales; RP_OK or RP_STATUS_NO_MEMORY. */
int rp_weights_allocate_matrix(struct rp_matrix *matrix) RP_MUST_USE;
int rp_weights_no_memory(const struct rp_model *model, struct rp_error *err);

/* --- weights_read.c: tensors into host memory ------------------------------------------------ */

struct rp_safetensor;

/* Staging buffer of a reader, for values that are converted or quantized. */
#define RP_WEIGHT_STAGING_BYTES ((size_t)1 << 20)

/* Reads tensor rows [row, row + rows) of a matrix part to their place in the matrix, converted or
 * quantized; a part that is quantized in the file is read whole. */
int rp_weight_read_rows(const struct rp_safetensors *files, const struct rp_model_config *config,
                        const struct rp_weight_part *part, uint32_t row, uint32_t rows,
                        unsigned char *staging, struct rp_error *err) RP_MUST_USE;
/* The type of values in which rp_weight_consumer.quantize gets the part: the file's.
 * RP_DTYPE_BLOCKS: it does not; the host makes what the model has of it: 16 and 32 bits, 4 bits,
 * what is quantized in the file, narrow FP8 rows (whose scale is searched for, in double), tensors
 * with columns first. */
enum rp_dtype rp_weight_late_dtype(const struct rp_safetensors *files,
                                   const struct rp_weight_part *part);
/* FORMAT, with the first of the rows [row, row + rows) of the part's tensor that
 * rp_weight_read_rows would have refused to quantize; they were read to the part's matrix as
 * values. made: what they become. */
int rp_weight_check_rows(const struct rp_safetensors *files, const struct rp_weight_part *part,
                         uint32_t row, uint32_t rows, const struct rp_matrix *made,
                         struct rp_error *err) RP_MUST_USE;
/* Reads a vector part. NaN and infinities are FORMAT: one would spoil every token. */
int rp_weight_read_vector(const struct rp_safetensors *files, const struct rp_weight_part *part,
                          unsigned char *staging, struct rp_error *err) RP_MUST_USE;

/* --- weights_latent.c: kv_b, whose rows are K_B's and V_B's, head by head --------------------- */

/* Whether the weight is a half of such a tensor. */
static inline bool rp_weight_is_split(enum rp_weight_role role) {
    return role == RP_WEIGHT_K_B || role == RP_WEIGHT_V_B;
}
/* Reads the part's half into the matrix, products with scales where the file has 8 bits. */
int rp_weight_latent_load(const struct rp_safetensors *files, const struct rp_model_config *config,
                          const struct rp_weight_part *part, unsigned char *staging,
                          struct rp_error *err) RP_MUST_USE;

/* --- weights_stream.c ------------------------------------------------------------------------ */

/* Takes ownership of *files. NULL: no memory; the caller still owns the files. */
struct rp_weight_source *rp_weight_source_create(struct rp_safetensors *files);
void rp_weight_source_destroy(struct rp_weight_source *source); /* legal with NULL */

/* --- weights_4bit.c: parts of 4 bits --------------------------------------------------------- */

/* Type and parts of a matrix whose modules have 4 bits (config->quant.types). */
void rp_weight_describe_4bit(const struct rp_model_config *config, struct rp_weight *weight);

/* The tensor that holds the part's values, or its codes; NULL: there is none. */
const struct rp_safetensor *rp_weight_main_tensor(const struct rp_safetensors *files,
                                                  const struct rp_model_config *config,
                                                  const struct rp_weight_part *part);
/* What tensors of a layout are called behind the module's name; NULL: it has none. Scales lie by
 * output, then group, or the reverse. */
struct rp_weight_4bit_names {
    const char *codes, *scales, *zeros, *order, *factor;
    bool words, by_output;
};
extern const struct rp_weight_4bit_names rp_weight_4bit_layouts[];
/* The part's tensor of that name, which is written to `name`, or NULL. */
const struct rp_safetensor *rp_weight_4bit_find(const struct rp_safetensors *files,
                                                const struct rp_weight_part *part,
                                                const char *suffix, char name[128]);
/* Reports what is wrong with a tensor. */
int rp_weight_4bit_refuse(const struct rp_safetensors *files, const struct rp_safetensor *tensor,
                          enum rp_status status, const char *what, struct rp_error *err);
uint32_t rp_weight_4bit_groups(const struct rp_model_quant *quant, uint32_t cols);
/* The part's tensors are there, and of the types and shapes that the configuration implies; notes
 * the type of its blocks in config->quant.types, and in `used` which tensors they are. */
int rp_weight_4bit_check(const struct rp_safetensors *files, struct rp_model_config *config,
                         const struct rp_weight_part *part, unsigned char *used,
                         struct rp_error *err) RP_MUST_USE;
/* weights_4bit_read.c: reads the part into its rows of the matrix: blocks, or (an F32 matrix) their
 * values. staging has RP_WEIGHT_STAGING_BYTES. */
int rp_weight_4bit_load(const struct rp_safetensors *files, const struct rp_model_config *config,
                        const struct rp_weight_part *part, unsigned char *staging,
                        struct rp_error *err) RP_MUST_USE;

/* --- weights_quant.c: parts of 8 bits -------------------------------------------------------- */

/* The part's own tensor, and the scales', are there and of the type and shape that the
 * configuration implies. *out_scales: those. */
int rp_weight_quant_check(const struct rp_safetensors *files, const struct rp_model_config *config,
                          const struct rp_weight_part *part, const struct rp_safetensor *tensor,
                          const struct rp_safetensor **out_scales,
                          struct rp_error *err) RP_MUST_USE;
/* Reads the part into its rows of the matrix: quantized values and scales, or (an F32 matrix) their
 * products. */
int rp_weight_quant_load(const struct rp_safetensors *files, const struct rp_model_config *config,
                         const struct rp_weight_part *part, unsigned char *staging,
                         size_t staging_bytes, struct rp_error *err) RP_MUST_USE;

#endif
