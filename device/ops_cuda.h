/* ops_cuda.h - the small operators on CUDA, one launcher each, and their fused forms.
 *
 * The arithmetic is that of ops_cpu.c and sample_cpu.c, with the same rounding points. A row's
 * result never depends on max_rows, on its place or on other rows. Pointers are the device's. Any
 * column count and any stride works (vector loads where alignment allows them).
 * Thread: the one that owns the stream. Errors: a cudaError_t as int. */
#ifndef RP_DEVICE_OPS_CUDA_H
#define RP_DEVICE_OPS_CUDA_H

#include "device/cuda_launch.h"
#include "device/experts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads the packet (pinned host memory), applies its edits and expands its rows: step_cpu.h. */
struct rp_step_begin_cuda {
    struct rp_step_view step;
    bool plain_edges; /* as rp_cuda_rows has it */
    struct rp_cuda_stamp stamp;
};
int rp_step_begin_cuda_run(const void *args, struct CUstream_st *stream);

struct rp_embed_cuda {
    struct rp_cuda_rows rows;
    const void *table;   /* (vocab, hidden) row-major, f32, bf16, or 8-bit quantized values */
    const float *scales; /* (vocab), 8-bit tables only */
    enum rp_dtype dtype;
    uint32_t vocab, hidden;
    float scale;
    struct rp_values out; /* f32 */
    /* The table has the ids [first_id, first_id + vocab) of a larger one: rows of others are
     * zeros. */
    uint32_t first_id;
    bool is_shard;
};
int rp_embed_cuda_run(const void *args, struct CUstream_st *stream);

/* Rows as 8-bit quantized values with a scale each, made of their bf16 values as rp_quantize_row
 * does it (device/quantize_row.h): the same bits. data NULL: not wanted. Columns after the row's
 * are not written. */
struct rp_cuda_quantized {
    void *data;          /* (max_rows, stride), 16-byte aligned */
    float *scales;       /* (max_rows) */
    uint32_t stride;     /* a multiple of 16 */
    enum rp_dtype dtype; /* INT8 or FP8_E4M3 */
};

/* Quantized values of rows of bf16, or of f32 rounded to it. */
struct rp_quantize_cuda {
    struct rp_cuda_rows rows;
    struct rp_values in;
    uint32_t cols;
    struct rp_cuda_quantized quantized;
    uint32_t each;       /* rows for each one of `rows`: its choices of experts; 0: one */
    bool behind_product; /* the step's counts may be read before the wait (quant/matmul_cuda.h) */
};
int rp_quantize_cuda_run(const void *args, struct CUstream_st *stream);

/* RMSNorm over groups of columns. gather: input row = step.logit_tokens[row] (the fusion of
 * gather_rows and norm). in and out may be the same columns. */
struct rp_norm_cuda {
    struct rp_cuda_rows rows;
    struct rp_values in, out;
    const float *weight;
    uint32_t cols, group;
    float eps, weight_offset;
    bool gather;
    /* of out, of whole rows (group: all cols); out.data may be NULL then */
    struct rp_cuda_quantized quantized;
};
int rp_norm_cuda_run(const void *args, struct CUstream_st *stream);

struct rp_add_cuda {
    struct rp_cuda_rows rows;
    struct rp_values a, b, out;
    uint32_t cols;
};
int rp_add_cuda_run(const void *args, struct CUstream_st *stream);

/* residual += term; out = norm(residual). The term is `term` (f32) or, when partials.count is not
 * 0, the sum of the partials, or, when experts.in.data is not NULL, EXPERT_SUM's output
 * (experts.out is not used). gather: row i of out is of the token step.logit_tokens[i], and the
 * residual is left as it was: nobody reads it any more. With partials alone. */
struct rp_add_norm_cuda {
    struct rp_cuda_rows rows;
    struct rp_values residual, term, out;
    struct rp_cuda_partials partials;
    struct rp_expert_sum_args experts; /* rows of all max_rows rows: dead ones are read, too */
    const float *weight;
    uint32_t cols; /* one group: the whole row */
    float eps, weight_offset;
    /* With partials or experts: whatever was complete when their GEMM began may be read before the
     * wait, so the residual and the step's counts (quant/matmul_cuda.h). */
    bool behind_product;
    bool gather;
    struct rp_cuda_quantized quantized; /* of out, whose data may be NULL then */
};
int rp_add_norm_cuda_run(const void *args, struct CUstream_st *stream);

struct rp_rope_cuda {
    struct rp_cuda_rows rows;
    struct rp_values x;
    const float *table;
    uint32_t heads, head_dim, rotary_dim, position_count;
};
int rp_rope_cuda_run(const void *args, struct CUstream_st *stream);

/* out[c] = act(in[c]) * in[cols + c]; in may be partials. */
struct rp_activation_cuda {
    struct rp_cuda_rows rows;
    struct rp_values in, out;
    struct rp_cuda_partials partials;
    uint32_t cols;
    enum rp_activation fn;
    struct rp_cuda_quantized quantized; /* of out, whose data may be NULL then */
};
int rp_activation_cuda_run(const void *args, struct CUstream_st *stream);

/* out[c] = act(gate[c]) * up[c] */
struct rp_glu_cuda {
    struct rp_cuda_rows rows;
    struct rp_values gate, up, out;
    uint32_t cols;
    enum rp_activation fn;
    struct rp_cuda_quantized quantized; /* of out, whose data may be NULL then */
    /* What is multiplied is up normed over groups of columns, as by rp_norm_cuda; it is not stored.
     * group 0: up as it is. */
    struct {
        const float *weight;
        uint32_t group;
        float eps, weight_offset;
    } norm;
};
int rp_glu_cuda_run(const void *args, struct CUstream_st *stream);
/* Whether there is a kernel for the norm of these columns; f32 and strides of whole vectors. */
static inline bool rp_glu_cuda_norms(uint32_t cols, uint32_t group) {
    return group % 4 == 0 && group >= 4 && group <= 128 && cols % group == 0 && cols / group <= 128;
}

/* out[c] = cap * tanh(in[c] / cap), f32; in and out may be the same columns. */
struct rp_soft_cap_cuda {
    struct rp_cuda_rows rows;
    struct rp_values in, out;
    uint32_t cols;
    float cap;
};
int rp_soft_cap_cuda_run(const void *args, struct CUstream_st *stream);

/* out[c] = in[c] * (factor * table[position of the row]); table NULL: in[c] * factor. in and out
 * may be the same columns. */
struct rp_scale_cuda {
    struct rp_cuda_rows rows;
    struct rp_values in, out;
    const float *table; /* (position_count), or NULL */
    uint32_t cols, position_count;
    float factor;
};
int rp_scale_cuda_run(const void *args, struct CUstream_st *stream);

/* LayerNorm over groups of columns; weight and bias (or NULL) have a value for each column. in and
 * out may be the same columns. */
struct rp_layer_norm_cuda {
    struct rp_cuda_rows rows;
    struct rp_values in, out;
    const float *weight, *bias;
    uint32_t cols, group;
    float eps;
};
int rp_layer_norm_cuda_run(const void *args, struct CUstream_st *stream);

struct rp_gather_cuda {
    struct rp_cuda_rows rows;
    struct rp_values in, out;
    uint32_t cols;
};
int rp_gather_cuda_run(const void *args, struct CUstream_st *stream);

/* Chooses tokens, advances slots, then publishes the result entry and the step counter
 * (step_cpu.h). Log-probabilities are summed in another order than the CPU's: within 1e-5 of
 * its. */
struct rp_sample_cuda {
    struct rp_step_view step;
    float *logits; /* (max_rows, stride): overwritten by what slots request */
    size_t stride;
    uint32_t vocab;
    uint32_t max_rows;     /* logit rows of the bucket */
    uint32_t max_seq_rows; /* rows (sequences) of the bucket */
    bool scores_prompts;   /* rows with RP_ROW_SCORE may come */
    void *scratch;         /* rp_sample_cuda_scratch_bytes, zeroed once */
    bool plain_edges;      /* as rp_cuda_rows has it */
    /* the last of the step: all stamps up to it are handed to the host */
    struct rp_cuda_stamp stamp;
};
/* row_capacity: the larger of the step's rows and logit rows: each row of the step has a result.
 * asks: the step's configuration has a vocabulary, and rows may be scored; a copy of the logits is
 * then a part of it. */
size_t rp_sample_cuda_scratch_bytes(uint32_t row_capacity, uint32_t vocab, bool asks);
int rp_sample_cuda_run(const void *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
