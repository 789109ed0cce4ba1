/* attention.h - softmax(q k^T * scale) v over a paged cache, causal, with an optional window.
 *
 * One (token, query head) reads the keys [first, position] of its sequence through the slot's page
 * table; first = window ? max(0, position + 1 - window) : 0. Query head h uses KV head h / (heads
 * / kv_heads). With sinks the softmax of head h has one more entry, exp(sinks[h]), and the output
 * is that much smaller. Scores, softmax and sums are f32; K and V are read in the page's type. The
 * order over keys depends only on the position and the window: the result is bit-equal for decode,
 * prefill, any chunk and any batch. Dead rows (padding, finished slots) write nothing. Thread: the
 * workers of one job. The scalar reference is attention_cpu.c; attention_cpu_simd.c has the fast
 * variants. */
#ifndef RP_ATTENTION_ATTENTION_H
#define RP_ATTENTION_ATTENTION_H

#include "attention/mask/mask.h"
#include "device/cpu_isa.h"
#include "device/cpu_team.h"
#include "device/program.h"
#include "device/step.h"
#include "kvcache/kv_layout.h"

/* Columns of K. Larger than the heads and the latents (576) of any known model. */
#define RP_ATTENTION_HEAD_DIM_MAX 640u

struct rp_attention_args {
    struct rp_step_view step;
    struct rp_kv_layout kv;
    const float *q; /* (tokens, q_stride) f32, head h at h * head_dim */
    void *out;      /* (tokens, out_stride) of out_dtype, head h at h * head_dim */
    size_t q_stride, out_stride;
    enum rp_dtype out_dtype; /* f32 or bf16 */
    uint32_t heads, kv_heads, head_dim, window;
    /* Pages of latents: V is the first value_dim columns of K, and head h of out is at h *
     * value_dim. 0: V is stored, of head_dim columns. */
    uint32_t value_dim;
    uint32_t layer; /* among those of its pages; a program of one layer does not read it */
    uint32_t table; /* entry of the slots' page tables at which this layer's begins */
    float scale;
    float soft_cap; /* scores become soft_cap * tanh(score / soft_cap); 0: no cap */
    /* This layer's mask program (rp_mask_at_layer), borrowed; window and soft_cap are ignored then.
     * NULL: causal, window and cap only. Its parameters are read from the row's slot. */
    const struct rp_mask *mask;
    /* (heads) f32: a logit of each head that joins the maximum and the sum of its softmax, after
     * scale, cap and rules, and has no value. NULL: none. */
    const float *sinks;
    uint32_t first_head; /* h of head 0 in the program: a rank of a group has some of the heads */
};

/* Columns of V, and of a head of out. */
static inline uint32_t rp_attention_value_dim(const struct rp_attention_args *args) {
    return args->value_dim ? args->value_dim : args->head_dim;
}

typedef void (*rp_attention_fn)(const struct rp_attention_args *args,
                                const struct rp_cpu_worker *worker);

void rp_attention_scalar(const struct rp_attention_args *args, const struct rp_cpu_worker *worker);

/* The kernel for these pages and head dim; never NULL (scalar is the fallback). */
rp_attention_fn rp_attention_select(enum rp_cpu_isa isa, const struct rp_kv_layout *kv);

struct rp_kv_write_args {
    struct rp_step_view step;
    struct rp_kv_layout kv;
    const float *k, *v; /* (tokens, stride) f32; pages of latents: v is not read */
    size_t k_stride, v_stride;
    uint32_t layer, table; /* as in attention */
};

/* Stores K and V of the live tokens [begin, end) at their positions, rounded to the page's type. */
void rp_kv_write_range(const struct rp_kv_write_args *args, uint32_t begin, uint32_t end);

#endif
