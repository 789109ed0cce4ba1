#include "device/ops_cuda.h"

#include "device/cuda_kernel.cuh"

static __global__ void add_kernel(rp_add_cuda args) {
    rp_pdl_begin();
    uint32_t row = blockIdx.y;
    if (row >= rp_live_count(args.rows.step, args.rows.rows))
        return;
    for (uint32_t c = blockIdx.x * blockDim.x + threadIdx.x; c < args.cols;
         c += gridDim.x * blockDim.x)
        rp_store(args.out.data, args.out.dtype, row * args.out.stride + c,
                 rp_load(args.a.data, args.a.dtype, row * args.a.stride + c) +
                     rp_load(args.b.data, args.b.dtype, row * args.b.stride + c));
}

int rp_add_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_add_cuda *args = (const rp_add_cuda *)args_void;
    return rp_cuda_start(add_kernel, dim3(4, args->rows.max_rows), dim3(256), 0, stream, true,
                         *args);
}
