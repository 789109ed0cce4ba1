/* cuda_stamp.cuh - how a kernel stores when it began, waited and ended (device/step.h:
 * rp_node_stamp).
 *
 * One rp_stamp in every kernel, made by all threads before anything else. The first block says when
 * it began and when it had waited for the kernels ahead (wait() in place of rp_pdl_wait), stamped
 * step or not: two stores of one thread, that need no register. Only a step that is stamped has
 * ends, for each block adds its own: look() asks whether it is, which belongs where the step's live
 * counts may be read: there its load hides after others, and it is looked at when the block ends.
 * All is done by one thread of a block, which must work to the block's end. */
#ifndef RP_DEVICE_CUDA_STAMP_CUH
#define RP_DEVICE_CUDA_STAMP_CUH

#include "device/cuda_dependent.cuh"
#include "device/cuda_launch.h"

#include <cuda_runtime.h>

/* Nanoseconds; ticks every 32 ns on Hopper. */
__device__ __forceinline__ uint64_t rp_device_clock_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

/* A wait that returns sooner found the kernels ahead complete. */
#define RP_STAMP_WAITED_NS 96

__device__ __forceinline__ uint32_t rp_stamp_flags(const rp_cuda_stamp &to) {
    uint32_t flags = 0;
    if (to.slot)
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(flags) : "l"(to.flags));
    return flags;
}
__device__ __forceinline__ void rp_stamp_end(const rp_cuda_stamp &to) {
    atomicMax((unsigned long long *)&to.slot->end_ns, (unsigned long long)rp_device_clock_ns());
}

class rp_stamp {
    const rp_cuda_stamp &to;
    const bool is_chosen;
    uint32_t flags;

    __device__ __forceinline__ bool is_first() const {
        return is_chosen && (blockIdx.x | blockIdx.y | blockIdx.z) == 0 && to.slot;
    }

  public:
    /* is_chosen: of one thread of each block. */
    __device__ __forceinline__ explicit rp_stamp(const rp_cuda_stamp &to,
                                                 bool is_chosen = threadIdx.x == 0)
        : to(to), is_chosen(is_chosen), flags(0) {
        if (is_first())
            to.slot->begin_ns = rp_device_clock_ns();
    }
    __device__ __forceinline__ ~rp_stamp() {
        if (flags & RP_PACKET_STAMP)
            rp_stamp_end(to);
    }

    /* rp_pdl_wait, timed. */
    __device__ __forceinline__ void wait() const {
        uint32_t before = is_first() ? (uint32_t)rp_device_clock_ns() : 0;
        rp_pdl_wait();
        if (is_first()) {
            uint64_t now = rp_device_clock_ns();
            *to.wait = (uint32_t)now - before < RP_STAMP_WAITED_NS ? 0 : now;
        }
    }
    __device__ __forceinline__ void begin() const {
        rp_pdl_trigger();
        wait();
    }

    __device__ __forceinline__ void look() { take(is_chosen ? rp_stamp_flags(to) : 0); }
    /* The same where the flags are known; 0: the end is not stored. */
    __device__ __forceinline__ void take(uint32_t now) { flags = now; }
};

#endif
