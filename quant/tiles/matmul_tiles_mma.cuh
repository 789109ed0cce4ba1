/* matmul_tiles_mma.cuh - how a warp multiplies decoded weights: copies of tiles to shared memory,
 * rows from there as operands, and the instruction. */
#ifndef RP_QUANT_MATMUL_TILES_MMA_CUH
#define RP_QUANT_MATMUL_TILES_MMA_CUH

#include <stdint.h>

namespace {

/* One piece of memory; `policy`: of L2. */
__device__ __forceinline__ void copy_bulk(uint32_t to, const void *from, uint32_t bytes,
                                          uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

/* Two steps' columns of eight tokens, as mma.sync wants its right operand. */
__device__ __forceinline__ void load_tokens(uint32_t from, uint32_t (&b)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(from));
}

__device__ __forceinline__ void multiply_step(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

} // namespace

#endif
