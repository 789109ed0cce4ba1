/* matmul_cpu.c - the reference: each output is one f32 sum over k, k ascending, multiplication and
 * addition rounded separately. */
#include "base/bf16.h"
#include "device/ops.h"
#include "quant/cpu/matmul_internal.h"

#define PANEL 16u

/* weight(n, k) in any layout. */
static inline float weight_at(const struct rp_matrix *w, size_t n, size_t k) {
    size_t at;
    if (w->layout == RP_LAYOUT_ROW_MAJOR)
        at = n * w->cols + k;
    else if (w->dtype == RP_DTYPE_F32)
        at = (n / PANEL * w->cols + k) * PANEL + n % PANEL;
    else
        at = (n / PANEL * RP_CEIL_DIV((size_t)w->cols, 2) + k / 2) * PANEL * 2 + n % PANEL * 2 +
             k % 2;
    return w->dtype == RP_DTYPE_F32 ? ((const float *)w->data)[at]
                                    : rp_bf16_to_f32(((const uint16_t *)w->data)[at]);
}

static inline float input_at(const struct rp_matmul_args *args, size_t row, size_t k) {
    size_t at = row * args->in_stride + k;
    return args->weight->dtype == RP_DTYPE_F32 ? ((const float *)args->in)[at]
                                               : rp_bf16_to_f32(((const uint16_t *)args->in)[at]);
}

static inline void store(const struct rp_matmul_args *args, size_t row, size_t n, float value) {
    size_t at = row * args->out_stride + n;
    if (args->out_dtype == RP_DTYPE_BF16)
        ((uint16_t *)args->out)[at] = rp_f32_to_bf16(value);
    else if (args->accumulate)
        ((float *)args->out)[at] += value;
    else
        ((float *)args->out)[at] = value;
}

static inline float output(const struct rp_matmul_args *args, size_t row, size_t n) {
    const struct rp_matrix *w = args->weight;
    float sum = 0.0f;
    for (size_t k = 0; k < w->cols; k++)
        sum += input_at(args, row, k) * weight_at(w, n, k);
    return args->bias ? sum + args->bias[n] : sum;
}

/* Outputs [begin, end) of input row `row`, or of their gates, to row `to`. */
static void scalar_row(const struct rp_matmul_args *args, size_t row, size_t to, size_t begin,
                       size_t end) {
    for (size_t n = begin; n < end; n++) {
        float value = output(args, row, n);
        if (args->gated) {
            float up = output(args, row, args->weight->rows / 2 + n);
            rp_gate_values(args->fn, &value, &up, 1, &value, RP_DTYPE_F32);
        }
        store(args, to, n, value);
    }
}

void rp_matmul_scalar(const struct rp_matmul_args *args, uint32_t m,
                      const struct rp_cpu_worker *worker) {
    size_t outputs = args->gated ? args->weight->rows / 2 : args->weight->rows, begin, end;
    RP_ASSERT(args->out_dtype == RP_DTYPE_F32 ||
              (args->out_dtype == RP_DTYPE_BF16 && !args->accumulate));
    RP_ASSERT(!args->gated || (!args->accumulate && rp_matmul_gates(args->weight)));
    rp_cpu_share(worker, outputs, PANEL, &begin, &end);
    for (size_t row = 0; row < m; row++)
        scalar_row(args, row, row, begin, end);
}

void rp_expert_run_scalar(const struct rp_expert_block *block, size_t panel, size_t panels) {
    for (size_t row = 0; row < block->rows; row++)
        scalar_row(&block->args, row, rp_expert_out_row(block->out_rows, row), panel * PANEL,
                   (panel + panels) * PANEL);
}

bool rp_matmul_gates(const struct rp_matrix *weight) {
    return weight->rows != 0 && weight->rows % (2 * PANEL) == 0;
}

rp_matmul_fn rp_matmul_select(enum rp_cpu_isa isa, const struct rp_matrix *weight) {
    if (weight->dtype == RP_DTYPE_BLOCKS)
        return rp_matmul_select_blocks(isa, weight);
    if (weight->dtype == RP_DTYPE_INT8 || weight->dtype == RP_DTYPE_FP8_E4M3)
        return rp_matmul_select_8(isa, weight);
    RP_ASSERT(weight->dtype == RP_DTYPE_F32 || weight->dtype == RP_DTYPE_BF16);
    rp_matmul_fn fn = NULL;
#if RP_MATMUL_HAS_SIMD
    fn = rp_matmul_select_simd(isa, weight);
#else
    (void)isa;
#endif
    return fn ? fn : rp_matmul_scalar;
}
