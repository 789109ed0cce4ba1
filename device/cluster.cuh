/* cluster.cuh - how blocks of a cluster hand one another values in shared memory, without a barrier
 * of the whole GPU's memory. On Hopper alone: elsewhere nothing is planned that needs it.
 *
 * A kernel that calls these functions is launched as clusters of two blocks or more: rp_cuda_start
 * makes a cluster of one block an ordinary launch, in which st.async is an illegal instruction. */
#ifndef RP_DEVICE_CLUSTER_CUH
#define RP_DEVICE_CLUSTER_CUH

#include "device/cuda_kernel.cuh"

/* Each store counts its bytes at the receiver's barrier. */
static __device__ __forceinline__ void rp_cluster_store(float *at, uint64_t *barrier,
                                                        uint32_t block, float value) {
#if RP_CUDA_HOPPER
    asm volatile("{ .reg .b32 remote, counter;\n\t"
                 "mapa.shared::cluster.u32 remote, %0, %2;\n\t"
                 "mapa.shared::cluster.u32 counter, %1, %2;\n\t"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [remote], %3, "
                 "[counter]; }" ::"r"((uint32_t)__cvta_generic_to_shared(at)),
                 "r"((uint32_t)__cvta_generic_to_shared(barrier)), "r"(block), "f"(value)
                 : "memory");
#else
    (void)at, (void)barrier, (void)block, (void)value;
    __trap(); /* never planned */
#endif
}

static __device__ __forceinline__ void rp_cluster_barrier_init(uint64_t *barrier) {
#if RP_CUDA_HOPPER
    if (threadIdx.x == 0)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\t"
                     "fence.mbarrier_init.release.cluster;" ::"r"(
                         (uint32_t)__cvta_generic_to_shared(barrier))
                     : "memory");
#else
    (void)barrier;
#endif
}

/* Barriers are initialized in every block of the cluster before one returns. Relaxed: the fence of
 * the initialization orders it, and a release would be a memory barrier of the whole GPU. */
static __device__ __forceinline__ void rp_cluster_meet() {
#if RP_CUDA_HOPPER
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\t"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
#endif
}

/* The bytes that complete the barrier; some may have come before. After rp_cluster_meet, so
 * that racecheck follows it. */
static __device__ __forceinline__ void rp_cluster_barrier_expect(uint64_t *barrier,
                                                                 uint32_t bytes) {
#if RP_CUDA_HOPPER
    if (threadIdx.x == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                         (uint32_t)__cvta_generic_to_shared(barrier)),
                     "r"(bytes)
                     : "memory");
#else
    (void)barrier, (void)bytes;
#endif
}

static __device__ __forceinline__ void rp_cluster_await(uint64_t *barrier) {
#if RP_CUDA_HOPPER
    asm volatile(
        "{ .reg .pred done;\n"
        "again_%=: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
        "@!done bra again_%=; }" ::"r"((uint32_t)__cvta_generic_to_shared(barrier))
        : "memory");
#else
    (void)barrier;
#endif
}

#endif
