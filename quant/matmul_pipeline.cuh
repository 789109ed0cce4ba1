/* matmul_pipeline.cuh - Hopper's bulk tensor copies and mbarriers. Shared memory addresses are
 * 32-bit, as the instructions require. */
#ifndef RP_QUANT_MATMUL_PIPELINE_CUH
#define RP_QUANT_MATMUL_PIPELINE_CUH

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* When a block started (0), waited (1) and ended (2), and its SM, into args.trace
 * (matmul_internal_cuda.h). */
#ifdef RP_TRACE
#define TRACE(event)                                                                               \
    if (args.trace && threadIdx.x == 0) {                                                          \
        uint32_t sm;                                                                               \
        asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));                                            \
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(args.trace[blockIdx.x * 4 + event]));     \
        args.trace[blockIdx.x * 4 + 3] = sm;                                                       \
    }
#else
#define TRACE(event)
#endif

__device__ __forceinline__ uint32_t rp_shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}

__device__ __forceinline__ void rp_barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/* Makes the initialized barriers visible to bulk copies. */
__device__ __forceinline__ void rp_barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Waits for the end of the phase of this parity. */
__device__ __forceinline__ void rp_barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{ .reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again; }" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* True when the phase of this parity has ended. */
__device__ __forceinline__ bool rp_barrier_test(uint32_t barrier, uint32_t parity) {
    uint32_t ended;
    asm volatile("{ .reg .pred p;\n"
                 "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(ended)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return ended != 0;
}

/* Arrives, and adds the bytes expected from bulk copies. */
__device__ __forceinline__ void rp_barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void rp_barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

#define RP_L2_EVICT_FIRST  0x12F0000000000000ull /* result of createpolicy for a full range */
#define RP_L2_EVICT_NORMAL 0x1000000000000000ull
#define RP_L2_EVICT_LAST   0x14F0000000000000ull

/* The box at (x, y) of the map; its bytes arrive at the barrier. */
__device__ __forceinline__ void rp_copy_box(uint32_t to, const CUtensorMap *map, uint32_t x,
                                            uint32_t y, uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "l"(policy)
                 : "memory");
}

/* The box at (x, y, z) of a map of three dimensions. */
__device__ __forceinline__ void rp_copy_box_3d(uint32_t to, const CUtensorMap *map, uint32_t x,
                                               uint32_t y, uint32_t z, uint32_t barrier,
                                               uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(policy)
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

/* The box at (x, y, z, w, v) of a map of five dimensions. */
__device__ __forceinline__ void rp_copy_box_5d(uint32_t to, const CUtensorMap *map, uint32_t x,
                                               uint32_t y, uint32_t z, uint32_t w, uint32_t v,
                                               uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "r"(barrier), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void rp_map_prefetch(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Makes this thread's stores to shared memory visible to tensor cores and bulk copies. */
__device__ __forceinline__ void rp_shared_fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void rp_store_shared(uint32_t at, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

/* The threads of warpgroup 0 or 1. Barrier numbers are constants, since barriers are a per-SM
 * resource like registers. */
__device__ __forceinline__ void rp_warpgroup_sync(uint32_t warpgroup) {
    if (warpgroup == 0)
        asm volatile("bar.sync 1, 128;" ::: "memory");
    else
        asm volatile("bar.sync 2, 128;" ::: "memory");
}

__device__ __forceinline__ void rp_wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void rp_wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING> __device__ __forceinline__ void rp_wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* A K-major operand in rows of 128 bytes, swizzled as bulk copies do; 16 columns further: + 2. */
__device__ __forceinline__ uint64_t rp_wgmma_operand(uint32_t shared) {
    return (uint64_t)((shared & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 |
           (uint64_t)1 << 62;
}

/* The same in two steps: the upper half is constant, which saves instructions between wgmmas. */
__device__ __forceinline__ uint32_t rp_wgmma_operand_low(uint32_t shared) {
    return (shared & 0x3FFFF) >> 4 | 1u << 16;
}
__device__ __forceinline__ uint64_t rp_wgmma_operand_of(uint32_t low) {
    return (uint64_t)low | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

/* The warpgroup of this thread, made warp-uniform for the compiler. */
__device__ __forceinline__ uint32_t rp_own_warpgroup() {
    return __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
}

__device__ __forceinline__ void rp_store_release(uint32_t *at, uint32_t value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t rp_load_acquire(const uint32_t *at) {
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

#endif
