/* matmul_heads.c - which head and which of its outputs: the work items of heads' GEMMs. */
#include "quant/matmul_heads.h"

#include <string.h>

/* Outputs of an item: whole panels of 16. */
#define ITEM_OUTPUTS 64u

static void copy_columns(const struct rp_head_matmul_args *args, uint32_t m, uint32_t head,
                         uint32_t outputs) {
    float *to = (float *)args->gemm.out + (size_t)head * args->out_step + outputs;
    const float *from = args->copy + (size_t)head * args->copied_step;
    for (uint32_t row = 0; row < m; row++)
        memcpy(to + row * args->gemm.out_stride, from + row * args->copy_stride,
               args->copied * sizeof *to);
}

void rp_head_matmul(const struct rp_head_matmul_args *args, uint32_t m,
                    const struct rp_cpu_worker *worker) {
    const struct rp_matrix *w = args->gemm.weight;
    const struct rp_cpu_worker alone = {.index = 0, .count = 1};
    uint32_t outputs = w->rows / args->heads, parts = RP_CEIL_DIV(outputs, ITEM_OUTPUTS);
    size_t in_bytes = rp_dtype_bytes(w->dtype), out_bytes = rp_dtype_bytes(args->gemm.out_dtype);
    size_t begin, end;
    RP_ASSERT(outputs * args->heads == w->rows && outputs % 16 == 0);
    RP_ASSERT(!args->gemm.bias && !args->gemm.accumulate && !args->gemm.gated);
    RP_ASSERT(args->copied == 0 || args->gemm.out_dtype == RP_DTYPE_F32);
    struct rp_cpu_parts shares;
    rp_cpu_parts_begin(&shares, worker, (size_t)args->heads * parts, 1, parts);
    while (m > 0 && rp_cpu_parts_next(&shares, &begin, &end))
        for (size_t item = begin; item < end; item++) {
            uint32_t head = (uint32_t)(item / parts), first = item % parts * ITEM_OUTPUTS;
            struct rp_matrix own =
                rp_matrix_slice(w, head * outputs + first, RP_MIN(outputs - first, ITEM_OUTPUTS));
            struct rp_matmul_args gemm = args->gemm;
            gemm.weight = &own;
            gemm.in = (const unsigned char *)gemm.in + head * args->in_step * in_bytes;
            gemm.out =
                (unsigned char *)gemm.out + ((size_t)head * args->out_step + first) * out_bytes;
            args->run(&gemm, m, &alone);
            if (first == 0 && args->copied)
                copy_columns(args, m, head, outputs);
        }
}
