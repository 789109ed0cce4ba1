/* program.h - the network as an array of operators: plain types, no code that runs it.
 *
 * model/ writes a program once for any batch; how many rows an operator has is a symbol (its
 * domain) until a backend lowers the program for one bucket. The same array gives node names,
 * costs, arena lifetimes, `reprise inspect --program` and the fingerprint that CI gates.
 *
 *   ops[0, sample_begin)        the forward graph
 *   ops[sample_begin, op_count) the sample graph
 *
 * Rounding: a tensor's dtype says where values are rounded. An operator that writes a bf16 tensor
 * rounds to nearest even; sums, norms, softmax and logits are f32. The input of a GEMM has the
 * dtype of its weights, so it is rounded when the operator before it stores it.
 *
 * Memory: a program owns its arrays (rp_program_deinit); matrices and vectors are borrowed from the
 * weights, which outlive every graph. Lowering copies what it needs: a program may be freed
 * after. */
#ifndef RP_DEVICE_PROGRAM_H
#define RP_DEVICE_PROGRAM_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rp_matrix; /* quant/matrix.h */
struct rp_mask;   /* attention/mask/mask.h */

enum rp_dtype {
    RP_DTYPE_F32,
    RP_DTYPE_BF16,
    RP_DTYPE_F16,
    RP_DTYPE_FP8_E4M3,
    RP_DTYPE_INT8,
    RP_DTYPE_I32,
    RP_DTYPE_BLOCKS /* of matrices alone: GGUF's blocks (quant/matrix.h) */
};

const char *rp_dtype_name(enum rp_dtype dtype); /* "f32", "bf16", ... */
uint32_t rp_dtype_bytes(enum rp_dtype dtype);

/* The unfused operators: every kind is emitted by a program and lowered by every backend. Operand
 * columns are written view[columns]. */
#define RP_OP_KIND_MAP(X)                                                                          \
    X(STEP_BEGIN, "step_begin") /* read the packet: edits to slots, token ids, positions, rows */  \
    X(EMBED, "embed")           /* out[cols] = weight[token id] * scale */                         \
    X(NORM, "norm")             /* RMSNorm over groups of `group` columns, times vector */         \
    X(LINEAR, "linear")         /* out[n] = in[k] * weight(n, k)^T + vector (bias) */              \
    X(ROPE, "rope")             /* in place on `heads` heads of head_dim columns each */           \
    X(KV_WRITE, "kv_write")     /* in0 = k, in1 = v, into the pages of each row's sequence */      \
    X(ATTENTION, "attention")   /* in0 = q, out = heads * head_dim columns */                      \
    X(ACTIVATION, "activation") /* out[n] = act(in[0, n)) * in[n, 2n) */                           \
    X(ADD, "add")               /* out = in0 + in1 (out may be in0) */                             \
    X(GATHER_ROWS, "gather_rows") /* out[logit row] = in[token of that logit row] */               \
    X(SAMPLE, "sample") /* in0 = logits: choose tokens, advance slots, publish results */          \
    X(ALLREDUCE,                                                                                   \
      "allreduce")          /* in place: the sum over the group's devices; groups of one today */  \
    X(SOFT_CAP, "soft_cap") /* out = cap * tanh(in0 / cap), f32; out may be in0 */                 \
    X(SCALE, "scale")       /* out = in0 * factor (* table[position]); out may be in0 */           \
    X(LAYER_NORM, "layer_norm") /* LayerNorm over groups of `group` columns */

enum rp_op_kind {
#define X(name, text) RP_OP_##name,
    RP_OP_KIND_MAP(X)
#undef X
        RP_OP_KIND_COUNT
};

const char *rp_op_kind_name(enum rp_op_kind kind);

/* What the rows of a domain stand for; the bucket says how many there are. */
enum rp_rows {
    RP_ROWS_TOKEN, /* one per token of the step */
    RP_ROWS_LOGIT, /* one per row that gets logits */
    RP_ROWS_NONE   /* works on the step's state, not on rows */
};

/* The rows that tensors and operators share. Row i means the same in all tensors of a domain. Every
 * program has the three domains of enum rp_rows, at the indexes of their kinds. */
struct rp_domain {
    const char *name; /* static text */
    enum rp_rows kind;
};
#define RP_DOMAINS_MAX 8

enum rp_activation { RP_ACTIVATION_SILU, RP_ACTIVATION_GELU_TANH };

/* An activation buffer: (rows, cols) of dtype, row-major, its place in the arena given by
 * lifetime. */
struct rp_tensor {
    char name[32];
    uint32_t rows; /* index into program->domains */
    enum rp_dtype dtype;
    uint32_t cols;
};

#define RP_NO_TENSOR (-1)

/* Columns [col, col + cols) of a tensor. The row stride is the tensor's cols. */
struct rp_view {
    int32_t tensor; /* index into program->tensors, or RP_NO_TENSOR */
    uint32_t col;
    uint32_t cols;
};

#define RP_OP_NAME_MAX   40
#define RP_OP_INPUTS_MAX 4
#define RP_LAYER_NONE    0xFFFFu

struct rp_op {
    enum rp_op_kind kind;
    uint32_t rows;             /* index into program->domains */
    char name[RP_OP_NAME_MAX]; /* layer.17.attn.qkv */
    uint16_t layer;            /* RP_LAYER_NONE outside the layers */
    uint32_t in_count;
    struct rp_view in[RP_OP_INPUTS_MAX]; /* those from in_count on are undefined */
    struct rp_view out;                  /* tensor == RP_NO_TENSOR: none */
    const struct rp_matrix *weight;      /* EMBED, LINEAR */
    /* NORM: weight (group) f32; LAYER_NORM: weight (cols); LINEAR: bias (n) f32 or NULL;
     * ATTENTION: sinks (heads) f32 or NULL */
    const float *vector;
    const float *bias; /* LAYER_NORM: (cols) f32 or NULL */
    /* ROPE: (positions, rotary_dim / 2, {cos, sin}) f32; SCALE: (positions) f32 or NULL */
    const float *table;
    union {
        struct {
            float scale;
        } embed;
        struct {
            float eps;
            uint32_t group; /* columns per group; cols for a plain norm, head_dim for q/k norm */
            float weight_offset; /* added to the weight: 0 for Llama, 1 for Gemma */
        } norm;
        struct {
            bool bias; /* adds vector; true in a described model too, whose vector is NULL */
        } linear;
        struct {
            uint32_t heads, head_dim, rotary_dim, position_count;
        } rope;
        struct {
            uint32_t kv_heads, head_dim;
        } kv_write;
        struct {
            uint32_t heads, kv_heads, head_dim;
            float scale;     /* of q.k, usually head_dim^-1/2 */
            uint32_t window; /* visible iff q - kv < window; 0 = no window. Causal always. */
            float soft_cap;  /* scores become soft_cap * tanh(score / soft_cap); 0 = as they are */
            /* This layer's mask program, in place of causal, window and soft_cap; NULL: those.
             * Borrowed: it outlives every graph. */
            const struct rp_mask *mask;
            const char *mask_text; /* its canonical text, borrowed alike; NULL: no program */
            /* vector has a logit of each head, which joins its softmax's maximum and sum, after
             * scale and caps; true in a described model too, whose vector is NULL */
            bool sinks;
        } attention;
        struct {
            enum rp_activation fn;
        } activation;
        struct {
            uint32_t vocab; /* ids at or past it are never chosen */
        } sample;
        struct {
            float cap; /* above 0 */
        } soft_cap;
        struct {
            float factor;
            uint32_t position_count; /* of the table; 0: none */
        } scale;
        struct {
            float eps;
            uint32_t group; /* columns per mean and variance; each column has its own weight */
            bool bias;      /* adds bias; true in a described model too, whose bias is NULL */
        } layer_norm;
    } u;
};

struct rp_program {
    struct rp_domain domains[RP_DOMAINS_MAX];
    uint32_t domain_count;
    struct rp_op *ops;
    uint32_t op_count;
    uint32_t op_capacity;
    uint32_t sample_begin;
    struct rp_tensor *tensors;
    uint32_t tensor_count;
    uint32_t tensor_capacity;
};

/* The shape that a program is lowered for. */
struct rp_bucket {
    uint32_t tokens;     /* token rows, padding included */
    uint32_t rows;       /* sequences */
    uint32_t logit_rows; /* rows that get logits */
    bool decode;         /* every row is a decode row (RP_ROW_DECODE): one token of its slot */
};

/* Empty, with the three domains of enum rp_rows. */
void rp_program_init(struct rp_program *program);
void rp_program_deinit(struct rp_program *program); /* legal on a zeroed struct */

/* Both return the new index, or a negative status when memory is out. Names are printf formats. */
int32_t rp_program_add_tensor(struct rp_program *program, uint32_t rows, enum rp_dtype dtype,
                              uint32_t cols, const char *format, ...) RP_PRINTF(5, 6);
/* Copies *op; checks that every view lies inside its tensor (an assertion: the model writes it). */
int32_t rp_program_add_op(struct rp_program *program, const struct rp_op *op);

/* Appends an operand. */
void rp_op_add_input(struct rp_op *op, struct rp_view view);

/* Rows of a kind of domain in a bucket. */
static inline uint32_t rp_bucket_rows(const struct rp_bucket *bucket, enum rp_rows rows) {
    return rows == RP_ROWS_TOKEN ? bucket->tokens : rows == RP_ROWS_LOGIT ? bucket->logit_rows : 0;
}

/* Rows of a domain of the program in a bucket. */
static inline uint32_t rp_program_rows(const struct rp_program *program,
                                       const struct rp_bucket *bucket, uint32_t rows) {
    return rp_bucket_rows(bucket, program->domains[rows].kind);
}

/* View over a whole tensor. */
static inline struct rp_view rp_view_all(const struct rp_program *program, int32_t tensor) {
    struct rp_view view = {tensor, 0, program->tensors[tensor].cols};
    return view;
}

/* A hash over kinds, names, shapes, dtypes and parameters (no addresses): changes when and only
 * when the program does. */
uint64_t rp_program_fingerprint(const struct rp_program *program);

#ifdef __cplusplus
}
#endif
#endif
