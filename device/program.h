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
 * Groups: with ranks above 1 the program is that of every rank of a group (tensor parallel). All
 * ranks run the same operators on tensors of the same shapes; their weights and vectors differ.
 * `weight` is an array with a matrix for each rank, and a vector has one for each rank at a
 * distance of vector_step elements. backend/group.h makes of it what is lowered for a rank.
 *
 * ALLREDUCE, the rounding point of a group: element x of rank r is rounded once to the payload's
 * type, and every rank gets the f32 sum of the rounded values in rank order, whatever the size of
 * the tensor:   x = ((round(x_0) + round(x_1)) + round(x_2)) + ..
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
    X(KV_WRITE, "kv_write")   /* in0 = k, in1 = v, into the pages of each row's sequence; pages  \
                                   of latents have no v, and the operator no in1 */ \
    X(ATTENTION, "attention") /* in0 = q, out = heads * head_dim columns */                        \
    X(ACTIVATION, "activation")   /* out[n] = act(in[0, n)) * in[n, 2n) */                         \
    X(ADD, "add")                 /* out = in0 + in1 (out may be in0) */                           \
    X(GATHER_ROWS, "gather_rows") /* out[logit row] = in[token of that logit row] */               \
    X(SAMPLE, "sample")         /* in0 = logits: choose tokens, advance slots, publish results */  \
    X(ALLREDUCE, "allreduce")   /* in place: the sum over the group's ranks (u.exchange) */        \
    X(SOFT_CAP, "soft_cap")     /* out = cap * tanh(in0 / cap), f32; out may be in0 */             \
    X(SCALE, "scale")           /* out = in0 * factor (* table[position]); out may be in0 */       \
    X(LAYER_NORM, "layer_norm") /* LayerNorm over groups of `group` columns */                     \
    X(ALLGATHER, "allgather")   /* out = the in0 of every rank side by side, f32 */                \
    X(GROUP_NORM,                                                                                  \
      "group_norm") /* in place: RMSNorm over the columns of all ranks, times vector */            \
    X(ROUTE,                                                                                       \
      "route") /* in0 = router logits: out = weights of the row's experts, then their ids */       \
    X(EXPERT_ORDER, "expert_order")     /* in0 = ids: out = the rows' choices sorted by expert */  \
    X(EXPERT_GATE_UP, "expert_gate_up") /* in0 = rows, in1 = order: out = act(gate) * up */        \
    X(EXPERT_DOWN, "expert_down") /* in0 = gate_up's rows, in1 = order: out = a row per choice */  \
    X(EXPERT_SUM, "expert_sum")   /* in0 = down's rows, in1 = route's: their weighted sum */       \
    X(HEAD_LINEAR, "head_linear") /* LINEAR of each head with a matrix of its own */               \
    X(GLU, "glu")                 /* out = act(in0) * in1, of separate tensors */                  \
    X(CONV, "conv")               /* causal convolution of each column over its sequence */        \
    X(GATED_DELTA, "gated_delta") /* in0 = q, k, v, in1 = b, a: out = o of each value head */

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
 * program has the three domains of enum rp_rows, at the indexes of their kinds; networks with
 * experts add some whose rows are a multiple of those: one for each (token, chosen expert). */
struct rp_domain {
    const char *name; /* static text */
    enum rp_rows kind;
    uint32_t factor, extra; /* rows of the kind * factor + extra */
};
#define RP_DOMAINS_MAX 8

/* How router logits become scores. */
enum rp_route_score {
    RP_ROUTE_SOFTMAX,        /* over all experts, before the choice */
    RP_ROUTE_SOFTMAX_CHOSEN, /* over the chosen ones: the choice is by logits */
    RP_ROUTE_SIGMOID
};

/* A row chooses `used` of `count` experts.
 *
 * Layouts, which let all kernels of a captured graph have shapes that do not depend on the choices
 * (k = used, T = tokens of the bucket; a choice c = row * k + rank of the expert in its row):
 *   route         (T, 2k) f32      k weights, then k ids as numbers, by falling score
 *   order         (T k + count + 1, 1) i32   offsets of the experts (count + 1), then the choices
 *                                  sorted by expert and, within one, by row. Positions
 *                                  [offsets[e], offsets[e + 1]) belong to expert e. Counts stay on
 *                                  the device
 *   gate_up       (T k, n)         row i is position i of the order
 *   down          (T k, hidden)    row c is choice c, wherever it was computed
 * The sum adds a row's k choices by rank, so its order depends on the row alone. */
struct rp_experts {
    uint32_t count, used; /* 1 <= used <= count <= RP_EXPERTS_MAX */
};
#define RP_EXPERTS_MAX 1024u

enum rp_activation {
    RP_ACTIVATION_SILU,
    RP_ACTIVATION_GELU_TANH,
    /* gpt-oss: g = min(gate, 7), u = clamp(up, -7, 7): g * sigmoid(1.702 g) * (u + 1) */
    RP_ACTIVATION_SWIGLU_CLAMPED,
    RP_ACTIVATION_SIGMOID /* of GLU: a sigmoid of the gate alone */
};

#define RP_CONV_WIDTH_MAX     8u
#define RP_DELTA_HEAD_DIM_MAX 256u

/* CONV: x[t][c] = in0[t][c] (* in1[t][c]);  y[t][c] = sum over j < width of
 *     vector[c * width + j] * x[t - (width - 1) + j][c]
 * j ascending, tokens before the sequence's first count as zeros; out = silu(y), y * in2, or y.
 * State: (width - 1, cols) f32, the last values of x. */
struct rp_conv {
    uint32_t width; /* 2 .. RP_CONV_WIDTH_MAX */
    bool gated;     /* in1 and in2 are there */
    bool silu;
    uint32_t state_offset; /* bytes into a place of state */
};

/* GATED_DELTA (Yang, Kautz and Hatamizadeh 2024): for each value head h, with the q and k of key
 * head h / (value_heads / key_heads), state S (key_dim, value_dim) f32:
 *     q, k = x / sqrt(sum x^2 + 1e-6);  q /= sqrt(key_dim)
 *     S *= exp(-exp(vector[h]) * softplus(a[h] + bias[h]));  d = sigmoid(b[h]) * (v - S^T k)
 *     S += k d^T;  o = S^T q
 * token by token, sums in ascending order of the key's columns: nothing depends on how a prompt is
 * cut. in0 = q of all key heads, k, v of all value heads; in1 = b of all value heads, then a. */
struct rp_gated_delta {
    uint32_t key_heads, value_heads, key_dim, value_dim;
    uint32_t state_offset; /* bytes into a place: S of value head 0, 1, ... */
};

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

/* Operators of a run with branches: a backend may compute the run's two branches at the same time,
 * once what stands before the run is done, and joins them before what follows. What one branch
 * writes the other one neither reads nor writes. The main branch stands first, and between two runs
 * stands an operator without a branch. */
enum rp_branch { RP_BRANCH_NONE, RP_BRANCH_MAIN, RP_BRANCH_SIDE };
#define RP_BRANCH_TOKENS 64u

struct rp_op {
    enum rp_op_kind kind;
    enum rp_branch branch;
    /* The same for all operators of the run: in buckets of more tokens the branches run one after
     * the other. At most RP_BRANCH_TOKENS: either fills the device then. */
    uint32_t branch_tokens;
    uint32_t rows;             /* index into program->domains */
    char name[RP_OP_NAME_MAX]; /* layer.17.attn.qkv */
    uint16_t layer;            /* RP_LAYER_NONE outside the layers */
    uint32_t in_count;
    struct rp_view in[RP_OP_INPUTS_MAX]; /* those from in_count on are undefined */
    struct rp_view out;                  /* tensor == RP_NO_TENSOR: none */
    /* EMBED, LINEAR: (ranks); EXPERT_GATE_UP, EXPERT_DOWN, HEAD_LINEAR: the matrices of all experts
     * or heads in order */
    const struct rp_matrix *weight;
    /* NORM: weight (group) f32; LAYER_NORM, GROUP_NORM: weight (cols); LINEAR: bias (n) f32 or
     * NULL; ROUTE: added to the scores for the choice (count) f32, or NULL; ATTENTION: sinks
     * (heads) f32 or NULL; EXPERT_GATE_UP, EXPERT_DOWN: bias (rows of weight) f32 or NULL; CONV:
     * (cols, width); GATED_DELTA: (value_heads) */
    const float *vector;
    /* Elements from a rank's vector to the next one's; 0: all have the same. */
    uint32_t vector_step;
    /* LAYER_NORM: (cols) f32 or NULL; ROUTE: factors of the experts' weights (count) f32 or NULL;
     * GATED_DELTA: (value_heads) f32 */
    const float *bias;
    /* ROPE: (positions, rotary_dim / 2, {cos, sin}) f32; SCALE: (positions) f32 or NULL */
    const float *table;
    union {
        struct {
            float scale;
            /* The ids [first_id, first_id + weight->rows) are this rank's; others are rows of zeros
             * where the program has ranks. */
            uint32_t first_id;
        } embed;
        struct {
            float eps;
            uint32_t group; /* columns per group; cols for a plain norm, head_dim for q/k norm */
            float weight_offset; /* added to the weight: 0 for Llama, 1 for Gemma */
        } norm;
        struct {
            bool bias; /* adds vector; true in a described model too, whose vector is NULL */
            bool first_rank_bias; /* rank 0 alone adds it: the outputs of all ranks are summed */
        } linear;
        struct {
            uint32_t heads, head_dim, rotary_dim, position_count;
        } rope;
        struct {
            uint32_t kv_heads, head_dim;
        } kv_write;
        struct {
            uint32_t heads, kv_heads, head_dim;
            /* Pages of latents: V is the first value_dim columns of K, and out has heads *
             * value_dim columns. 0: V is stored */
            uint32_t value_dim;
            uint32_t first_head; /* of this rank's, among all heads: what a mask calls h */
            /* It reads K and V of the layer so many before its own; 0: its own. */
            uint32_t kv_back;
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
        } activation; /* and GLU */
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
        struct {
            struct rp_experts experts;
            enum rp_route_score score;
            bool bias;        /* adds vector; true in a described model too, whose vector is NULL */
            bool renormalize; /* weights are divided by their sum */
            /* The choice is limited to the best groups_used of `groups` equal groups of experts; a
             * group's score is the sum of its best group_best. groups 1: no limit. */
            uint32_t groups, groups_used, group_best;
            float factor; /* weights are multiplied by it, last */
            bool scaled;  /* and by bias, each expert's; true in a described model too */
        } route;
        struct {
            struct rp_experts experts;
            enum rp_activation fn; /* EXPERT_GATE_UP */
            /* as in linear: of EXPERT_GATE_UP and EXPERT_DOWN */
            bool bias, first_rank_bias;
        } experts; /* EXPERT_ORDER, EXPERT_GATE_UP, EXPERT_DOWN */
        struct {
            struct rp_experts experts;
            /* in2 is added last: the shared expert; gated: times sigmoid(in3), in3 one column */
            bool shared, gated;
        } expert_sum;
        struct rp_conv conv;
        struct rp_gated_delta delta;
        struct {
            /* Head h of out, from column h * out_step on: in0's columns from h * in_step on, times
             * rows [h * n, (h + 1) * n) of weight (heads * n, k), then `copied` columns of in1 from
             * h * copied_step on, as they are. copied 0: there is no in1. */
            uint32_t heads, in_step, out_step, copied, copied_step;
        } head_linear;
        struct {
            enum rp_dtype payload; /* of ALLREDUCE: F32 or BF16 */
        } exchange;
        struct {
            float eps;
            uint32_t cols; /* of all ranks together */
        } group_norm;
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
    uint32_t ranks;     /* of the group that it is for; 0 and 1: no group */
    size_t state_bytes; /* of recurrent state of one sequence, all operators together */
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

/* The index of such a domain, added where the program has none. `name` is static text. */
uint32_t rp_program_add_domain(struct rp_program *program, const char *name, enum rp_rows kind,
                               uint32_t factor, uint32_t extra);
/* Both return the new index, or a negative status when memory is out. Names are printf formats. */
int32_t rp_program_add_tensor(struct rp_program *program, uint32_t rows, enum rp_dtype dtype,
                              uint32_t cols, const char *format, ...) RP_PRINTF(5, 6);
/* Copies *op; checks that every view lies inside its tensor (an assertion: the model writes it). */
int32_t rp_program_add_op(struct rp_program *program, const struct rp_op *op);

/* Room for `bytes` in the recurrent state of a sequence: its offset, or OVERFLOW past 2 GiB. */
int32_t rp_program_add_state(struct rp_program *program, uint64_t bytes);

/* Appends an operand. */
void rp_op_add_input(struct rp_op *op, struct rp_view view);

/* Rows of a kind of domain in a bucket. */
static inline uint32_t rp_bucket_rows(const struct rp_bucket *bucket, enum rp_rows rows) {
    return rows == RP_ROWS_TOKEN ? bucket->tokens : rows == RP_ROWS_LOGIT ? bucket->logit_rows : 0;
}

/* Rows of a domain of the program in a bucket. */
static inline uint32_t rp_program_rows(const struct rp_program *program,
                                       const struct rp_bucket *bucket, uint32_t rows) {
    const struct rp_domain *domain = &program->domains[rows];
    return rp_bucket_rows(bucket, domain->kind) * domain->factor + domain->extra;
}

/* View over a whole tensor. */
static inline struct rp_view rp_view_all(const struct rp_program *program, int32_t tensor) {
    struct rp_view view = {tensor, 0, program->tensors[tensor].cols};
    return view;
}

/* Operators that exchange data between the ranks of a group. */
static inline bool rp_op_exchanges(enum rp_op_kind kind) {
    return kind == RP_OP_ALLREDUCE || kind == RP_OP_ALLGATHER || kind == RP_OP_GROUP_NORM;
}
/* Bytes that a rank gives to the others in the largest exchange of a bucket, a multiple of
 * RP_CACHE_LINE. A backend may fuse up to two exchanges, so it is the sum of the two largest. */
size_t rp_program_exchange_bytes(const struct rp_program *program, const struct rp_bucket *bucket);
/* The same of one operator. */
size_t rp_op_exchange_bytes(const struct rp_program *program, const struct rp_op *op,
                            const struct rp_bucket *bucket);

/* A hash over kinds, names, shapes, dtypes and parameters (no addresses): changes when and only
 * when the program does. */
uint64_t rp_program_fingerprint(const struct rp_program *program);

#ifdef __cplusplus
}
#endif
#endif
