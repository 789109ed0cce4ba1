/* matmul_cluster.cuh - blocks of a cluster: copies to all of them, arrivals at each other's barriers. */
#ifndef RP_QUANT_MATMUL_CLUSTER_CUH
#define RP_QUANT_MATMUL_CLUSTER_CUH

#include "quant/matmul_pipeline.cuh"

__device__ __forceinline__ uint32_t rp_cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Every thread of every block of the cluster. */
__device__ __forceinline__ void rp_cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* The box at (x, y) of the map, to the same address in the blocks of `blocks` (a bit each); its bytes
 * arrive at the same barrier of each. */
__device__ __forceinline__ void rp_copy_box_to_all(uint32_t to, const CUtensorMap *map, uint32_t x,
                                                   uint32_t y, uint32_t barrier, uint16_t blocks,
                                                   uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(blocks), "l"(policy)
                 : "memory");
}

/* The box at (x, y, z, w) of a map of four dimensions. */
__device__ __forceinline__ void rp_copy_box_4d(uint32_t to, const CUtensorMap *map, uint32_t x,
                                               uint32_t y, uint32_t z, uint32_t w, uint32_t barrier,
                                               uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier), "l"(policy)
                 : "memory");
}

/* Arrives at the barrier of this address in block `rank`. What the threads have read through wgmma is
 * read: no fence of the cluster is wanted. */
__device__ __forceinline__ void rp_barrier_arrive_at(uint32_t barrier, uint32_t rank) {
    asm volatile("{ .reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

#endif
