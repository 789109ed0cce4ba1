/* recurrent.h - operators with state that a sequence carries from token to token, on the CPU: CONV
 * and GATED_DELTA (struct rp_conv and rp_gated_delta, program.h).
 *
 * A row of the step reads its state where rp_live_row says and leaves it in its slot's place; with
 * save_at it also stores the state in between (step.h). Rows of finished slots leave all places as
 * they are, and zeros as output. Every output depends on its sequence alone: the sums of a token
 * are the same wherever a prompt was cut.
 * Thread: the workers of one job, which share (row, columns) or (row, head). Errors: none. */
#ifndef RP_DEVICE_RECURRENT_H
#define RP_DEVICE_RECURRENT_H

#include "device/ops.h"

struct rp_conv_args {
    struct rp_step_view step;
    struct rp_values in, gate_in, gate_out; /* (tokens, cols) f32; the gates with conv.gated */
    struct rp_values out;
    const float *weight; /* (cols, width) */
    uint32_t cols;
    struct rp_conv conv;
};
void rp_conv_cpu(const void *args, const struct rp_cpu_worker *worker);

struct rp_gated_delta_args {
    struct rp_step_view step;
    struct rp_values qkv, ba;     /* f32 */
    struct rp_values out;         /* (tokens, value_heads * value_dim) f32 */
    const float *a_log, *dt_bias; /* (value_heads) */
    struct rp_gated_delta delta;
};
void rp_gated_delta_cpu(const void *args, const struct rp_cpu_worker *worker);

#endif
