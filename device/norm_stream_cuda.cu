/* RMSNorm of many rows, limited by memory bandwidth.
 *
 * The grid is as large as the GPU has room for. A block computes rows blockIdx.x + i * gridDim.x,
 * and issues the loads of its next row before it reduces the one at hand, so that the loads of
 * about 64 KB are in flight on a multiprocessor all the time. Weights stay in registers.
 *
 * The team of threads that norm_cuda.cu has for a row is carried by fewer threads, each of which
 * does the work of FOLD: the sums of a thread, of a warp and of the team have the same order, and
 * so the same bits. Fewer threads execute less of what every thread repeats, which is the sum over
 * the warps and the divisions. */
#include "device/norm_stream_cuda.h"

#include "device/cuda_sm_count.h"
#include "device/norm_team.cuh"
#include "device/ops_math.cuh"

#define ROWS_FROM 257 /* fewer rows than this have a block each (norm_cuda.cu) */

/* What is stored: bf16, or quantized values and perhaps bf16. */
enum norm_output { OUTPUT_BF16, OUTPUT_INT8, OUTPUT_FP8 };

/* QUADS: of one thread of the team. THREADS: of a block, each carrying FOLD threads of the team;
 * 0: known at the launch. With a fixed size every thread has all its quads. */
template <int QUADS, int FOLD, int THREADS> struct stream_shape {
    static constexpr int OWN = QUADS * FOLD;
    /* The block's registers are shared out so that 512 threads of 128 or 768 of 80 are resident. */
    static constexpr int RESIDENT = OWN > 4 ? 512 : 768;
    static constexpr int THREADS_MOST = THREADS > 0 ? THREADS
                                        : QUADS > 1 ? RP_NORM_TEAM_MAX / FOLD
                                        : OWN > 4   ? 128
                                                    : 256;
    static __device__ __forceinline__ uint32_t threads() { return THREADS ? THREADS : blockDim.x; }
    /* Column of quad i, which is the i / FOLD-th of the team's thread thread + threads * (i %
     * FOLD). */
    static __device__ __forceinline__ uint32_t column(int i) {
        return 4 * (threadIdx.x + threads() * i);
    }
    static __device__ __forceinline__ bool has(int i, uint32_t cols) {
        return THREADS > 0 || column(i) < cols;
    }
};

/* Not kept in L1: a row is read once. volatile: after the wait, and before what follows. */
static __device__ __forceinline__ float4 load_once(const float *from) {
    float4 x;
    asm volatile("ld.global.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(from));
    return x;
}

/* Quads past the row's end keep what they have. */
template <typename SHAPE>
static __device__ __forceinline__ void load_row(const rp_norm_cuda &args, uint32_t row,
                                                float4 (&x)[SHAPE::OWN]) {
    const float *from =
        (const float *)args.in.data + (size_t)row * args.in.stride + SHAPE::column(0);
#pragma unroll
    for (int i = 0; i < SHAPE::OWN; i++)
        if (SHAPE::has(i, args.group))
            x[i] = load_once(from + (size_t)SHAPE::threads() * 4 * i);
}

/* The sums over the warp of FOLD values, that of values[f] in the lanes f * 32 / FOLD and on. Lanes
 * hand over half of what they have at a time. The sums have the bits of rp_warp_sum, whose pairs
 * they are. */
template <int FOLD> static __device__ __forceinline__ float warp_sums(float (&values)[FOLD]) {
    uint32_t lane = threadIdx.x % 32;
    int mask = 16;
#pragma unroll
    for (int half = FOLD / 2; half > 0; half /= 2, mask /= 2)
#pragma unroll
        for (int j = 0; j < half; j++) {
            bool upper = lane & mask;
            float given = upper ? values[j] : values[j + half];
            float kept = upper ? values[j + half] : values[j];
            values[j] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, mask);
        }
    float sum = values[0];
#pragma unroll
    for (; mask > 0; mask /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, mask);
    return sum;
}

/* The sum over the team; those of its warps are added in rising order. */
template <typename SHAPE, int FOLD>
static __device__ __forceinline__ float team_sum(float (&board)[RP_NORM_TEAM_MAX / 32],
                                                 float (&values)[FOLD]) {
    uint32_t lane = threadIdx.x % 32, warps = SHAPE::threads() / 32;
    float sum = warp_sums<FOLD>(values), total = 0.0f;
    if (lane % (32 / FOLD) == 0)
        board[threadIdx.x / 32 + warps * (lane / (32 / FOLD))] = sum;
    __syncthreads();
#pragma unroll
    for (uint32_t w = 0; w < RP_NORM_TEAM_MAX / 32; w += 4) {
        if (w >= warps * FOLD)
            break;
        float4 four = *(const float4 *)&board[w];
        total = (((total + four.x) + four.y) + four.z) + four.w;
    }
    return total;
}

/* What the warps of a block tell one another about one row. */
struct row_board {
    __align__(16) float sums[RP_NORM_TEAM_MAX / 32];
    uint32_t most[32];
};

template <typename SHAPE, rp_dtype DTYPE>
static __device__ __forceinline__ void quantize_row(const rp_norm_cuda &args, row_board &board,
                                                    uint32_t row,
                                                    const uint2 (&packed)[SHAPE::OWN]) {
    uint32_t pairs = 0;
#pragma unroll
    for (int i = 0; i < SHAPE::OWN; i++)
        if (SHAPE::has(i, args.group))
            pairs = rp_largest_pair(rp_largest_pair(pairs, packed[i].x), packed[i].y);
    uint32_t most = max(pairs & 0xFFFFu, pairs >> 16);
    rp_quantized_row quantized = rp_quantized_row_of(rp_block_largest(board.most, most), DTYPE);
    unsigned char *to = (unsigned char *)args.quantized.data + (size_t)row * args.quantized.stride;
#pragma unroll
    for (int i = 0; i < SHAPE::OWN; i++)
        if (SHAPE::has(i, args.group))
            *(uint32_t *)(to + SHAPE::column(i)) = rp_codes4(quantized, packed[i].x, packed[i].y);
    if (threadIdx.x == 0)
        args.quantized.scales[row] = quantized.scale;
}

/* weight: with the offset added. */
template <typename SHAPE, int FOLD, norm_output OUTPUT>
static __device__ __forceinline__ void norm_row(const rp_norm_cuda &args, row_board &board,
                                                uint32_t row, const float4 (&x)[SHAPE::OWN],
                                                const float4 (&weight)[SHAPE::OWN]) {
    float sums[FOLD] = {};
#pragma unroll
    for (int i = 0; i < SHAPE::OWN; i++)
        sums[i % FOLD] = rp_add_squares(sums[i % FOLD], x[i]);
    float inverse = rp_inverse_root(team_sum<SHAPE, FOLD>(board.sums, sums), args.group, args.eps);
    uint2 packed[SHAPE::OWN];
#pragma unroll
    for (int i = 0; i < SHAPE::OWN; i++)
        packed[i] = rp_pack_bf16(make_float4(__fmul_rn(__fmul_rn(x[i].x, inverse), weight[i].x),
                                             __fmul_rn(__fmul_rn(x[i].y, inverse), weight[i].y),
                                             __fmul_rn(__fmul_rn(x[i].z, inverse), weight[i].z),
                                             __fmul_rn(__fmul_rn(x[i].w, inverse), weight[i].w)));
    if (OUTPUT == OUTPUT_BF16 || args.out.data) {
        __nv_bfloat16 *to = (__nv_bfloat16 *)args.out.data + (size_t)row * args.out.stride;
#pragma unroll
        for (int i = 0; i < SHAPE::OWN; i++)
            if (SHAPE::has(i, args.group))
                *(uint2 *)(to + SHAPE::column(i)) = packed[i];
    }
    if (OUTPUT != OUTPUT_BF16)
        quantize_row<SHAPE, OUTPUT == OUTPUT_INT8 ? RP_DTYPE_INT8 : RP_DTYPE_FP8_E4M3>(args, board,
                                                                                       row, packed);
}

template <int QUADS, int FOLD, int THREADS, norm_output OUTPUT>
static __global__ void __launch_bounds__(stream_shape<QUADS, FOLD, THREADS>::THREADS_MOST,
                                         stream_shape<QUADS, FOLD, THREADS>::RESIDENT /
                                             stream_shape<QUADS, FOLD, THREADS>::THREADS_MOST)
    norm_stream_kernel(const __grid_constant__ rp_norm_cuda args) {
    using shape = stream_shape<QUADS, FOLD, THREADS>;
    __shared__ row_board boards[2]; /* in turns: one barrier a reduction */
    uint32_t row = blockIdx.x, live;
    float4 even[shape::OWN] = {}, odd[shape::OWN] = {}, weight[shape::OWN] = {};
    rp_stamp stamp(args.rows.stamp);
    rp_pdl_trigger();
#pragma unroll
    for (int i = 0; i < shape::OWN; i++)
        if (shape::has(i, args.group)) {
            weight[i] = *(const float4 *)(args.weight + shape::column(i));
            weight[i] = make_float4(__fadd_rn(weight[i].x, args.weight_offset),
                                    __fadd_rn(weight[i].y, args.weight_offset),
                                    __fadd_rn(weight[i].z, args.weight_offset),
                                    __fadd_rn(weight[i].w, args.weight_offset));
        }
    stamp.wait();
    load_row<shape>(args, row, even); /* a dead row's memory is there, too */
    live = rp_live_count(args.rows.step, args.rows.rows);
    stamp.look();
    /* Whether there is a row after this one. */
    auto take = [&](const float4(&x)[shape::OWN], float4(&next)[shape::OWN], row_board &board) {
        uint32_t after = row + gridDim.x;
        if (after < live)
            load_row<shape>(args, after, next);
        norm_row<shape, FOLD, OUTPUT>(args, board, row, x, weight);
        row = after;
        return row < live;
    };
    if (row >= live)
        return;
    while (take(even, odd, boards[0]) && take(odd, even, boards[1]))
        continue;
}

/* QUADS and FOLD are chosen so that a thread has eight quads, or four where the team has no warps
 * for more. */
template <norm_output OUTPUT> static int start(const rp_norm_cuda &args, cudaStream_t stream) {
    typedef void (*stream_kernel)(rp_norm_cuda);
    uint32_t team = rp_norm_team_threads(args.group), fold = 8;
    stream_kernel kernel = norm_stream_kernel<1, 8, 0, OUTPUT>;
    if (args.group == 4096) {
        kernel = norm_stream_kernel<1, 8, 128, OUTPUT>;
    } else if (args.group > 4096) {
        fold = 4;
        kernel = args.group == 8192 ? norm_stream_kernel<2, 4, 256, OUTPUT>
                                    : norm_stream_kernel<2, 4, 0, OUTPUT>;
    } else if (team % 256 != 0) {
        fold = 4;
        kernel = norm_stream_kernel<1, 4, 0, OUTPUT>;
    }
    uint32_t threads = team / fold, resident = args.group <= 4096 && fold == 4 ? 768 : 512;
    uint32_t most = rp_cuda_sm_count() * RP_MIN(resident / threads, 16u);
    return rp_cuda_start(kernel, dim3(RP_MIN(most, (uint32_t)args.rows.max_rows)), dim3(threads), 0,
                         stream, !args.rows.plain_edges, args);
}

bool rp_norm_stream_takes(const struct rp_norm_cuda *args) {
    bool bf16 = args->out.dtype == RP_DTYPE_BF16 && rp_vector_ok(args->out);
    return args->rows.max_rows >= ROWS_FROM && !args->gather && args->cols == args->group &&
           args->group % 4 == 0 && args->group > 256 && args->group <= 8 * RP_NORM_TEAM_MAX &&
           args->in.dtype == RP_DTYPE_F32 && rp_vector_ok(args->in) &&
           rp_vector_ok(args->weight, RP_DTYPE_F32, 0) &&
           (bf16 || (args->quantized.data && !args->out.data));
}

int rp_norm_stream_run(const struct rp_norm_cuda *args, struct CUstream_st *stream) {
    return !args->quantized.data                    ? start<OUTPUT_BF16>(*args, stream)
           : args->quantized.dtype == RP_DTYPE_INT8 ? start<OUTPUT_INT8>(*args, stream)
                                                    : start<OUTPUT_FP8>(*args, stream);
}
