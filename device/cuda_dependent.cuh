/* cuda_dependent.cuh - dependent launch: a kernel begins while the one ahead of it still runs. */
#ifndef RP_DEVICE_CUDA_DEPENDENT_CUH
#define RP_DEVICE_CUDA_DEPENDENT_CUH

/* Lets the next kernel of the stream start, then waits until all earlier ones are complete. Every
 * block must wait once: a kernel that ends without having waited would let its successor run too
 * early. */
__device__ __forceinline__ void rp_pdl_trigger() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* before, nothing is launched so */
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void rp_pdl_wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void rp_pdl_begin() {
    rp_pdl_trigger();
    rp_pdl_wait();
}

#endif
