/* RMSNorm, alone, behind a gather, or behind the sum into the residual.
 *
 * A team of threads computes one group of one row: thread t has columns 4 * (t + threads * i). They stay in
 * registers between the sum of squares and the scaling. How large a team is, and with it the order of the
 * sum, depends on the group's size alone: so add_norm has the bits of add and norm, and a row has the same
 * bits in every batch.
 *
 *   group of at most 256 columns:  a warp is a team, eight of them in a block
 *   otherwise:                     a block is a team */
#include "device/ops_cuda.h"

#include "device/cuda_vector.cuh"
#include "device/ops_math.cuh"

#define TEAM_MAX      1024
#define WARP_TEAMS    8
#define SPECULATE_MAX 256 /* with so few rows all are read before the live count is known */

enum norm_source { SOURCE_VALUES, SOURCE_GATHER, SOURCE_TERM, SOURCE_PARTIALS };

struct norm_args {
    rp_cuda_rows rows;
    rp_values in, term, out; /* in: the residual where something is added */
    rp_cuda_partials partials;
    const float *weight;
    uint32_t group, group_count;
    float eps, weight_offset;
};

static uint32_t team_threads(uint32_t group) {
    uint32_t quads = (group + 3) / 4;
    return quads <= 64 ? 32 : quads >= TEAM_MAX ? TEAM_MAX : (quads + 127) / 128 * 128;
}

/* All threads of the team get the sum; the warps' sums are added in rising order. */
static __device__ __forceinline__ float team_sum(float value) {
    __shared__ __align__(16) float sums[TEAM_MAX / 32];
    value = rp_warp_sum(value);
    if (blockDim.x == 32)
        return value;
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = value;
    __syncthreads();
    float total = 0.0f;
    for (uint32_t w = 0; w < blockDim.x / 32; w += 4) {
        float4 four = *(const float4 *)&sums[w];
        total = (((total + four.x) + four.y) + four.z) + four.w;
    }
    return total;
}

/* The values to be normalised; where something is added, they are stored into the residual first. */
template <norm_source SOURCE, bool VEC, uint32_t FLIGHT>
static __device__ __forceinline__ float4 take(const norm_args &args, uint32_t row, uint32_t in_row,
                                              uint32_t col, uint32_t end) {
    float4 x = rp_load4<VEC>(args.in, in_row, col, end);
    if (SOURCE == SOURCE_TERM)
        x = rp_add4(x, rp_load4<VEC>(args.term, row, col, end));
    if (SOURCE == SOURCE_PARTIALS)
        x = rp_add4(x, rp_partials_sum4<VEC, FLIGHT>(args.partials, row, col, end));
    return x;
}

static __device__ __forceinline__ float as_stored(rp_dtype dtype, float value) {
    return dtype == RP_DTYPE_F32 ? value : __bfloat162float(__float2bfloat16_rn(value));
}

template <bool VEC>
static __device__ __forceinline__ float4 keep(const norm_args &args, uint32_t row, uint32_t col,
                                              uint32_t end, float4 x) {
    rp_store4<VEC>(args.in, row, col, end, x);
    return make_float4(as_stored(args.in.dtype, x.x), as_stored(args.in.dtype, x.y),
                       as_stored(args.in.dtype, x.z), as_stored(args.in.dtype, x.w));
}

template <bool VEC>
static __device__ __forceinline__ void give(const norm_args &args, uint32_t row, uint32_t col,
                                            uint32_t end, float4 x, float inverse, float4 weight) {
    rp_store4<VEC>(args.out, row, col, end, rp_norm_values(x, inverse, weight, args.weight_offset));
}

/* QUADS: quads of columns a thread keeps in registers. */
template <int QUADS, norm_source SOURCE, bool VEC>
static __global__ void __launch_bounds__(TEAM_MAX) norm_kernel(norm_args args) {
    uint32_t row = blockIdx.x, group = blockIdx.y * blockDim.y + threadIdx.y;
    uint32_t first = group * args.group, end = first + args.group;
    float4 x[QUADS], weight[QUADS];
    rp_pdl_trigger();
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        uint32_t at = 4 * (threadIdx.x + blockDim.x * i);
        if (at < args.group)
            weight[i] = rp_load4<VEC>(args.weight, RP_DTYPE_F32, at, at, args.group);
    }
    rp_pdl_wait();
    uint32_t live = rp_live_count(args.rows.step, args.rows.rows);
    uint32_t in_row = SOURCE == SOURCE_GATHER ? args.rows.step.logit_tokens[row] : row;
    /* A padding row's index means nothing. */
    if ((SOURCE == SOURCE_GATHER || args.rows.max_rows > SPECULATE_MAX) && row >= live)
        return;
    if (group >= args.group_count)
        return; /* a whole warp, which no barrier waits for */
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        uint32_t at = 4 * (threadIdx.x + blockDim.x * i);
        if (at < args.group)
            x[i] = take < SOURCE, VEC, QUADS == 1 ? 8 : 4 > (args, row, in_row, first + at, end);
    }
    if (row >= live)
        return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        uint32_t at = 4 * (threadIdx.x + blockDim.x * i);
        if (at >= args.group)
            continue;
        if (SOURCE == SOURCE_TERM || SOURCE == SOURCE_PARTIALS)
            x[i] = keep<VEC>(args, row, first + at, end, x[i]);
        sum = rp_add_squares(sum, x[i]);
    }
    float inverse = rp_inverse_root(team_sum(sum), args.group, args.eps);
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        uint32_t at = 4 * (threadIdx.x + blockDim.x * i);
        if (at < args.group)
            give<VEC>(args, row, first + at, end, x[i], inverse, weight[i]);
    }
}

/* Groups too long for registers: the values are read twice. */
template <norm_source SOURCE, bool VEC>
static __global__ void __launch_bounds__(TEAM_MAX) norm_long_kernel(norm_args args) {
    uint32_t row = blockIdx.x, first = blockIdx.y * args.group, end = first + args.group;
    rp_pdl_begin();
    if (row >= rp_live_count(args.rows.step, args.rows.rows))
        return;
    uint32_t in_row = SOURCE == SOURCE_GATHER ? args.rows.step.logit_tokens[row] : row;
    float sum = 0.0f;
    for (uint32_t col = first + 4 * threadIdx.x; col < end; col += 4 * blockDim.x) {
        float4 x = take<SOURCE, VEC, 4>(args, row, in_row, col, end);
        if (SOURCE == SOURCE_TERM || SOURCE == SOURCE_PARTIALS)
            x = keep<VEC>(args, row, col, end, x);
        sum = rp_add_squares(sum, x);
    }
    float inverse = rp_inverse_root(team_sum(sum), args.group, args.eps);
    for (uint32_t col = first + 4 * threadIdx.x; col < end; col += 4 * blockDim.x) {
        float4 weight =
            rp_load4<VEC>(args.weight, RP_DTYPE_F32, col - first, col - first, args.group);
        give<VEC>(args, row, col, end, rp_load4<VEC>(args.in, in_row, col, end), inverse, weight);
    }
}

template <norm_source SOURCE, bool VEC>
static int start(const norm_args &args, cudaStream_t stream) {
    uint32_t threads = team_threads(args.group), quads = (args.group + 3) / 4;
    uint32_t each = (quads + threads - 1) / threads;
    uint32_t teams = threads == 32 ? RP_MIN((uint32_t)WARP_TEAMS, args.group_count) : 1;
    dim3 block(threads, teams), grid(args.rows.max_rows, (args.group_count + teams - 1) / teams);
    if (each <= 1)
        return rp_cuda_start(norm_kernel<1, SOURCE, VEC>, grid, block, 0, stream, true, args);
    if (each <= 2)
        return rp_cuda_start(norm_kernel<2, SOURCE, VEC>, grid, block, 0, stream, true, args);
    if (each <= 4)
        return rp_cuda_start(norm_kernel<4, SOURCE, VEC>, grid, block, 0, stream, true, args);
    return rp_cuda_start(norm_long_kernel<SOURCE, VEC>, grid, block, 0, stream, true, args);
}

template <norm_source SOURCE>
static int start(const norm_args &args, bool vector, cudaStream_t stream) {
    vector = vector && args.group % 4 == 0 && rp_vector_ok(args.in) && rp_vector_ok(args.out) &&
             ((uintptr_t)args.weight & 15u) == 0;
    return vector ? start<SOURCE, true>(args, stream) : start<SOURCE, false>(args, stream);
}

int rp_norm_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_norm_cuda *from = (const rp_norm_cuda *)args_void;
    norm_args args = {};
    args.rows = from->rows;
    args.in = from->in;
    args.out = from->out;
    args.weight = from->weight;
    args.group = from->group;
    args.group_count = from->cols / from->group;
    args.eps = from->eps;
    args.weight_offset = from->weight_offset;
    return from->gather ? start<SOURCE_GATHER>(args, true, stream)
                        : start<SOURCE_VALUES>(args, true, stream);
}

int rp_add_norm_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_add_norm_cuda *from = (const rp_add_norm_cuda *)args_void;
    norm_args args = {};
    args.rows = from->rows;
    args.in = from->residual;
    args.term = from->term;
    args.out = from->out;
    args.partials = from->partials;
    args.weight = from->weight;
    args.group = from->cols;
    args.group_count = 1;
    args.eps = from->eps;
    args.weight_offset = from->weight_offset;
    if (from->partials.count)
        return start<SOURCE_PARTIALS>(args, rp_vector_ok(from->partials), stream);
    return start<SOURCE_TERM>(args, rp_vector_ok(from->term), stream);
}
