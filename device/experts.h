/* experts.h - which experts compute a row, in what order, and the sum of what they compute, on the
 * CPU. The layouts are those of struct rp_experts (program.h); the GEMMs between are quant's
 * (matmul_experts.h).
 *
 * Everything about a row depends on the row alone. Equal scores: the expert, or the group, of the
 * lower number first. NaN among the logits gives NaN weights and ids inside the table.
 * Thread: the workers of one job. Errors: none. */
#ifndef RP_DEVICE_EXPERTS_H
#define RP_DEVICE_EXPERTS_H

#include "device/ops.h"

/* s = softmax(logits), or sigmoid(logits), or the logits (RP_ROUTE_SOFTMAX_CHOSEN); the choice is
 * by s + bias, within the best groups; weights are s of the chosen ones, or their softmax. */
struct rp_route_args {
    struct rp_values logits; /* (rows, count) f32 */
    struct rp_values out;    /* (rows, 2 used) f32 */
    const float *bias;       /* (count) or NULL */
    struct rp_experts experts;
    enum rp_route_score score;
    bool renormalize;
    uint32_t groups, groups_used, group_best;
    float factor;
    const float *scales; /* (count), of the weight of each expert, or NULL */
};
void rp_route_rows(const void *args, uint32_t begin, uint32_t end);

/* What EXPERT_ORDER counts, in memory that host and device see. Only the device writes; the host
 * reads with relaxed atomic loads, at any time: a step that runs may be counted in a part of the
 * fields. A sample is one layer in one step. */
#define RP_EXPERT_BINS 15u
struct rp_expert_stats {
    uint64_t samples;                   /* layers with experts, summed over the steps */
    uint64_t rows;                      /* of all experts, summed over the samples */
    uint64_t touched;                   /* experts with rows, summed over the samples */
    uint64_t rows_bins[RP_EXPERT_BINS]; /* of touched experts: at most 2^bin rows; last: more */
    /* of samples: at most rp_expert_ratio_bounds[bin]; last: more */
    uint64_t ratio_bins[RP_EXPERT_BINS];
    uint64_t ratio_thousandths; /* sum: rows of the fullest expert / mean of all experts, * 1000 */
};
extern const double rp_expert_ratio_bounds[RP_EXPERT_BINS - 1];

struct rp_expert_order_args {
    struct rp_step_view step;
    struct rp_values ids; /* (rows, used) f32 */
    int32_t *order;       /* offsets (count + 1), then choices */
    struct rp_experts experts;
    struct rp_expert_stats *stats; /* NULL: not counted */
};
/* Counting sort by worker 0: a few thousand choices at most. */
void rp_expert_order_cpu(const void *args, const struct rp_cpu_worker *worker);

/* out[c] = sum over rank of weight[rank] * in[row * used + rank][c], ranks ascending, then
 * shared[c] (times sigmoid(gate[0])). */
struct rp_expert_sum_args {
    struct rp_values in;           /* (rows * used, cols) */
    struct rp_values weights;      /* (rows, used) f32 */
    struct rp_values shared, gate; /* data NULL: none */
    struct rp_values out;          /* (rows, cols) f32 */
    uint32_t used;
};
/* Columns [col_begin, col_end) of one row. */
void rp_expert_sum_cols(const struct rp_expert_sum_args *args, uint32_t row, uint32_t col_begin,
                        uint32_t col_end);

#endif
