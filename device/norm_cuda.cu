/* RMSNorm, alone, after a gather, or after the sum into the residual.
 *
 * A team of threads computes one group of one row: thread t has columns 4 * (t + threads * i). They
 * stay in registers between the sum of squares and the scaling. How large a team is, and with it
 * the order of the sum, depends on the group's size alone: so add_norm has the bits of add and
 * norm, and a row has the same bits in every batch.
 *
 *   group of at most 256 columns:  a warp is a team, eight of them in a block
 *   otherwise:                     a block is a team
 *   many rows of one group:        norm_stream_cuda.cu, where nothing is added
 *   about 4,096 columns:           few rows: a cluster of blocks is a team, as one multiprocessor reads
 *                                  partials too slowly; many rows: smaller blocks, whose threads each do
 *                                  the work of several, so that blocks overlap better
 *
 * QUANTIZED: rows of one group as 8-bit quantized values too: what was scaled stays in registers as
 * bf16 until the team knows its largest value. Sizes that no vector loads fit take
 * norm_long_kernel, whose sums have the same order. */
#include "device/ops_cuda.h"

#include "device/expert_sum.cuh"
#include "device/norm_stream_cuda.h"
#include "device/norm_team.cuh"
#include "device/ops_math.cuh"

#define WARP_TEAMS    8
#define SPECULATE_MAX 256 /* with so few rows all are read before the live count is known */
#define FOLD_MANY     4   /* threads of the team that one thread does with many rows */
#define FOLD_ROWS     256 /* more rows than this are many */

enum norm_source {
    SOURCE_VALUES,
    SOURCE_GATHER,
    SOURCE_TERM,
    SOURCE_PARTIALS,
    SOURCE_EXPERTS,
    SOURCE_GATHER_PARTIALS /* not stored into the residual */
};

__host__ __device__ constexpr bool gathers(norm_source source) {
    return source == SOURCE_GATHER || source == SOURCE_GATHER_PARTIALS;
}
__host__ __device__ constexpr bool sums_up(norm_source source) {
    return source == SOURCE_PARTIALS || source == SOURCE_GATHER_PARTIALS;
}
/* What is added comes from a GEMM: the residual may be complete before the wait. */
__host__ __device__ constexpr bool follows_product(norm_source source) {
    return sums_up(source) || source == SOURCE_EXPERTS;
}
__host__ __device__ constexpr bool keeps(norm_source source) {
    return source == SOURCE_TERM || source == SOURCE_PARTIALS || source == SOURCE_EXPERTS;
}

struct norm_args {
    rp_cuda_rows rows;
    rp_values in, term, out; /* in: the residual where something is added */
    rp_cuda_partials partials;
    rp_expert_sum_args experts;
    const float *weight;
    uint32_t group, group_count;
    float eps, weight_offset;
    bool early;                  /* the residual and the live count are complete before the wait */
    rp_cuda_quantized quantized; /* data NULL: none */
};

/* The values to be normalized, x and what is added to it; then they are stored into the
 * residual. */
template <norm_source SOURCE, bool VEC, uint32_t FLIGHT>
static __device__ __forceinline__ float4 complete(const norm_args &args, float4 x, uint32_t row,
                                                  uint32_t col, uint32_t end) {
    if (SOURCE == SOURCE_TERM)
        x = rp_add4(x, rp_load4<VEC>(args.term, row, col, end));
    if (sums_up(SOURCE))
        x = rp_add4(x, rp_partials_sum4<VEC, FLIGHT>(args.partials, row, col, end));
    if (SOURCE == SOURCE_EXPERTS)
        x = rp_add4(x, rp_expert_sum4<VEC>(args.experts, row, col, end));
    return x;
}

template <norm_source SOURCE, bool VEC, uint32_t FLIGHT>
static __device__ __forceinline__ float4 take(const norm_args &args, uint32_t row, uint32_t col,
                                              uint32_t end) {
    return complete<SOURCE, VEC, FLIGHT>(args, rp_load4<VEC>(args.in, row, col, end), row, col,
                                         end);
}

/* The row that is normalized into this one. A padding row's index means nothing. */
template <norm_source SOURCE>
static __device__ __forceinline__ uint32_t source_row(const norm_args &args, uint32_t row,
                                                      uint32_t live) {
    return !gathers(SOURCE) ? row : row < live ? args.rows.step.logit_tokens[row] : 0;
}

template <bool VEC>
static __device__ __forceinline__ float4 keep(const norm_args &args, uint32_t row, uint32_t col,
                                              uint32_t end, float4 x) {
    rp_store4<VEC>(args.in, row, col, end, x);
    return rp_norm_as_stored(args.in.dtype, x);
}

template <bool VEC>
static __device__ __forceinline__ void give(const norm_args &args, uint32_t row, uint32_t col,
                                            uint32_t end, float4 x, float inverse, float4 weight) {
    rp_store4<VEC>(args.out, row, col, end, rp_norm_values(x, inverse, weight, args.weight_offset));
}

template <bool VEC>
static __device__ __forceinline__ float4 load_weight(const norm_args &args, uint32_t at) {
    return rp_load4<VEC>(args.weight, RP_DTYPE_F32, at, at, args.group);
}

/* QUADS: quads of columns that a thread of the team keeps in registers. */
template <int QUADS, int BLOCKS, int FOLD, norm_source SOURCE, bool VEC, bool QUANTIZED = false>
static __global__ void __launch_bounds__(RP_NORM_TEAM_MAX / BLOCKS / FOLD)
    norm_kernel(norm_args args) {
    using shape = rp_norm_team<BLOCKS, FOLD>;
    constexpr int OWN = QUADS * FOLD;
    uint32_t row = blockIdx.x / BLOCKS, group = blockIdx.y * blockDim.y + threadIdx.y;
    uint32_t first = group * args.group, end = first + args.group;
    /* Quad i of the OWN: the team's thread is thread + stride * (i % FOLD), and it is its i /
     * FOLD-th. */
    uint32_t begin = 4 * shape::thread(), step = 4 * shape::stride();
    __shared__ typename shape::board shared;
    __shared__ typename shape::peak_board peak; /* of QUANTIZED alone */
    float4 x[OWN], weight[OWN];
    rp_stamp stamp(args.rows.stamp, threadIdx.x + threadIdx.y == 0);
    rp_pdl_trigger();
#pragma unroll
    for (int i = 0; i < OWN && FOLD == 1; i++)
        if (begin + step * i < args.group)
            weight[i] = load_weight<VEC>(args, begin + step * i);
    const bool early = follows_product(SOURCE) && args.early;
    uint32_t live = 0, in_row = 0;
    if (early) {
        live = rp_live_count(args.rows.step, args.rows.rows);
        in_row = source_row<SOURCE>(args, row, live);
#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (begin + step * i < args.group)
                x[i] = rp_load4<VEC>(args.in, in_row, first + begin + step * i, end);
        stamp.look();
    }
    shape::open(shared, QUANTIZED ? &peak : nullptr);
    stamp.wait();
    if (!early) {
        live = rp_live_count(args.rows.step, args.rows.rows);
        in_row = source_row<SOURCE>(args, row, live);
        stamp.look();
    }
    if ((gathers(SOURCE) || args.rows.max_rows > SPECULATE_MAX) && row >= live)
        return;
    if (group >= args.group_count)
        return; /* a whole warp, which no barrier waits for */
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        if (begin + step * i >= args.group)
            continue;
        uint32_t col = first + begin + step * i;
        if (!early)
            x[i] = rp_load4<VEC>(args.in, in_row, col, end);
        x[i] = complete < SOURCE, VEC, OWN == 1 ? 8 : 4 > (args, x[i], in_row, col, end);
    }
    if (row >= live)
        return;
    float sums[FOLD] = {};
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        if (begin + step * i >= args.group)
            continue;
        if (keeps(SOURCE))
            x[i] = keep<VEC>(args, row, first + begin + step * i, end, x[i]);
        sums[i % FOLD] = rp_add_squares(sums[i % FOLD], x[i]);
    }
    float inverse = rp_inverse_root(shape::sum(shared, sums), args.group, args.eps);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        if (begin + step * i >= args.group)
            continue;
        if (FOLD > 1)
            weight[i] = load_weight<VEC>(args, begin + step * i);
        if (!QUANTIZED || args.out.data)
            give<VEC>(args, row, first + begin + step * i, end, x[i], inverse, weight[i]);
        if (QUANTIZED)
            x[i] = rp_norm_values(x[i], inverse, weight[i], args.weight_offset);
    }
    if (QUANTIZED)
        rp_norm_quantize<shape, OWN>(args.quantized, peak, row, args.group, begin, step, x);
}

/* Scaled values of a group too long for registers, bf16; zeros past its end. */
template <norm_source SOURCE, bool VEC>
static __device__ __forceinline__ float4 scaled_again(const norm_args &args, uint32_t row,
                                                      uint32_t in_row, uint32_t first, uint32_t col,
                                                      float inverse) {
    uint32_t end = first + args.group;
    float4 x = keeps(SOURCE) ? rp_load4<VEC>(args.in, row, col, end)
                             : take<SOURCE, VEC, 4>(args, in_row, col, end);
    x = rp_norm_values(x, inverse, load_weight<VEC>(args, col - first), args.weight_offset);
    x.y = col + 1 < end ? x.y : 0.0f;
    x.z = col + 2 < end ? x.z : 0.0f;
    x.w = col + 3 < end ? x.w : 0.0f;
    return x;
}

/* Quantizes the row, which reads the values twice more; out is stored last, as it may alias
 * `in`. */
template <norm_source SOURCE, bool VEC>
static __device__ __forceinline__ void write_quantized_long(const norm_args &args, uint32_t row,
                                                            uint32_t in_row, float inverse) {
    uint32_t most = 0;
    for (uint32_t col = 4 * threadIdx.x; col < args.group; col += 4 * blockDim.x) {
        uint2 packed = rp_pack_bf16(scaled_again<SOURCE, VEC>(args, row, in_row, 0, col, inverse));
        most = rp_largest(rp_largest(most, packed.x), packed.y);
    }
    __shared__ rp_norm_team<1, 1>::peak_board board;
    rp_quantized_row quantized =
        rp_quantized_row_of(rp_norm_team<1, 1>::peak(board, most), args.quantized.dtype);
    for (uint32_t col = 4 * threadIdx.x; col < args.group; col += 4 * blockDim.x) {
        float4 x = scaled_again<SOURCE, VEC>(args, row, in_row, 0, col, inverse);
        rp_store_quantized(args.quantized, row, col, args.group, rp_pack_bf16(x), quantized);
        if (args.out.data)
            rp_store4<VEC>(args.out, row, col, args.group, x);
    }
    if (threadIdx.x == 0)
        args.quantized.scales[row] = quantized.scale;
}

/* Groups too long for registers: the values are read twice. */
template <norm_source SOURCE, bool VEC, bool QUANTIZED = false>
static __global__ void __launch_bounds__(RP_NORM_TEAM_MAX) norm_long_kernel(norm_args args) {
    uint32_t row = blockIdx.x, first = blockIdx.y * args.group, end = first + args.group;
    rp_stamp stamp(args.rows.stamp);
    stamp.begin();
    stamp.look();
    uint32_t live = rp_live_count(args.rows.step, args.rows.rows);
    if (row >= live)
        return;
    uint32_t in_row = source_row<SOURCE>(args, row, live);
    float sum = 0.0f;
    for (uint32_t col = first + 4 * threadIdx.x; col < end; col += 4 * blockDim.x) {
        float4 x = take<SOURCE, VEC, 4>(args, in_row, col, end);
        if (keeps(SOURCE))
            x = keep<VEC>(args, row, col, end, x);
        sum = rp_add_squares(sum, x);
    }
    __shared__ rp_norm_team<1, 1>::board shared;
    float inverse = rp_inverse_root(rp_norm_team<1, 1>::sum(shared, &sum), args.group, args.eps);
    if (QUANTIZED)
        write_quantized_long<SOURCE, VEC>(args, row, in_row, inverse);
    for (uint32_t col = first + 4 * threadIdx.x; !QUANTIZED && col < end; col += 4 * blockDim.x) {
        float4 x = keeps(SOURCE) ? rp_load4<VEC>(args.in, row, col, end)
                                 : take<SOURCE, VEC, 4>(args, in_row, col, end);
        give<VEC>(args, row, col, end, x, inverse, load_weight<VEC>(args, col - first));
    }
}

/* One team a row, in any of its shapes. */
template <int BLOCKS, int FOLD, norm_source SOURCE, bool VEC>
static int start_shape(const norm_args &args, cudaStream_t stream) {
    dim3 grid(args.rows.max_rows * BLOCKS, args.group_count),
        block(RP_NORM_TEAM_MAX / BLOCKS / FOLD);
    return rp_cuda_start(norm_kernel<1, BLOCKS, FOLD, SOURCE, VEC>, grid, block, 0, stream,
                         !args.rows.plain_edges, args, BLOCKS);
}

template <norm_source SOURCE, bool VEC>
static int start(const norm_args &args, cudaStream_t stream) {
    uint32_t threads = rp_norm_team_threads(args.group), quads = (args.group + 3) / 4;
    uint32_t each = (quads + threads - 1) / threads;
    uint32_t teams = threads == 32 ? RP_MIN((uint32_t)WARP_TEAMS, args.group_count) : 1;
    dim3 block(threads, teams), grid(args.rows.max_rows, (args.group_count + teams - 1) / teams);
    if (threads == RP_NORM_TEAM_MAX && each == 1 && args.rows.max_rows > FOLD_ROWS)
        return start_shape<1, FOLD_MANY, SOURCE, VEC>(args, stream);
    if (threads == RP_NORM_TEAM_MAX && each == 1 && sums_up(SOURCE) &&
        args.rows.max_rows <= RP_NORM_CLUSTER_ROWS)
        return start_shape<RP_NORM_CLUSTER, 1, SOURCE, VEC>(args, stream);
    if (each <= 1)
        return rp_cuda_start(norm_kernel<1, 1, 1, SOURCE, VEC>, grid, block, 0, stream,
                             !args.rows.plain_edges, args);
    if (each <= 2)
        return rp_cuda_start(norm_kernel<2, 1, 1, SOURCE, VEC>, grid, block, 0, stream,
                             !args.rows.plain_edges, args);
    if (each <= 4)
        return rp_cuda_start(norm_kernel<4, 1, 1, SOURCE, VEC>, grid, block, 0, stream,
                             !args.rows.plain_edges, args);
    return rp_cuda_start(norm_long_kernel<SOURCE, VEC>, grid, block, 0, stream,
                         !args.rows.plain_edges, args);
}

/* The same with quantized output. */
template <norm_source SOURCE>
static int start_quantized(const norm_args &args, bool vector, cudaStream_t stream) {
    uint32_t threads = rp_norm_team_threads(args.group), quads = (args.group + 3) / 4;
    uint32_t each = (quads + threads - 1) / threads, rows = args.rows.max_rows;
    bool dependent = !args.rows.plain_edges;
    if (!vector || each > 2)
        return rp_cuda_start(vector ? norm_long_kernel<SOURCE, true, true>
                                    : norm_long_kernel<SOURCE, false, true>,
                             dim3(rows), dim3(threads), 0, stream, dependent, args);
    if (threads == RP_NORM_TEAM_MAX && each == 1 && rows > FOLD_ROWS)
        return rp_cuda_start(norm_kernel<1, 1, FOLD_MANY, SOURCE, true, true>, dim3(rows),
                             dim3(RP_NORM_TEAM_MAX / FOLD_MANY), 0, stream, dependent, args);
    if (threads == RP_NORM_TEAM_MAX && each == 1 && sums_up(SOURCE) && rows <= RP_NORM_CLUSTER_ROWS)
        return rp_cuda_start(norm_kernel<1, RP_NORM_CLUSTER, 1, SOURCE, true, true>,
                             dim3(rows * RP_NORM_CLUSTER), dim3(RP_NORM_TEAM_MAX / RP_NORM_CLUSTER),
                             0, stream, dependent, args, RP_NORM_CLUSTER);
    if (each == 1)
        return rp_cuda_start(norm_kernel<1, 1, 1, SOURCE, true, true>, dim3(rows), dim3(threads), 0,
                             stream, dependent, args);
    return rp_cuda_start(norm_kernel<2, 1, 1, SOURCE, true, true>, dim3(rows), dim3(threads), 0,
                         stream, dependent, args);
}

template <norm_source SOURCE>
static int start(const norm_args &args, bool vector, cudaStream_t stream) {
    vector = vector && args.group % 4 == 0 && rp_vector_ok(args.in) && rp_vector_ok(args.out) &&
             ((uintptr_t)args.weight & 15u) == 0;
    if (args.quantized.data)
        return args.group_count == 1 ? start_quantized<SOURCE>(args, vector, stream)
                                     : cudaErrorInvalidValue;
    return vector ? start<SOURCE, true>(args, stream) : start<SOURCE, false>(args, stream);
}

int rp_norm_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_norm_cuda *from = (const rp_norm_cuda *)args_void;
    norm_args args = {};
    if (rp_norm_stream_takes(from))
        return rp_norm_stream_run(from, stream);
    args.rows = from->rows;
    args.in = from->in;
    args.out = from->out;
    args.weight = from->weight;
    args.group = from->group;
    args.group_count = from->cols / from->group;
    args.eps = from->eps;
    args.weight_offset = from->weight_offset;
    args.quantized = from->quantized;
    return from->gather ? start<SOURCE_GATHER>(args, true, stream)
                        : start<SOURCE_VALUES>(args, true, stream);
}

static norm_args add_norm_args(const rp_add_norm_cuda *from) {
    norm_args args = {};
    args.rows = from->rows;
    args.in = from->residual;
    args.term = from->term;
    args.out = from->out;
    args.partials = from->partials;
    args.experts = from->experts;
    args.weight = from->weight;
    args.group = from->cols;
    args.group_count = 1;
    args.eps = from->eps;
    args.weight_offset = from->weight_offset;
    args.early = from->behind_product;
    args.quantized = from->quantized;
    return args;
}

int rp_add_norm_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_add_norm_cuda *from = (const rp_add_norm_cuda *)args_void;
    norm_args args = add_norm_args(from);
    if (from->gather)
        return start<SOURCE_GATHER_PARTIALS>(args, rp_vector_ok(from->partials), stream);
    if (from->partials.count)
        return start<SOURCE_PARTIALS>(args, rp_vector_ok(from->partials), stream);
    if (from->experts.in.data)
        return start<SOURCE_EXPERTS>(
            args, rp_vector_ok(from->experts.in) && rp_vector_ok(from->experts.shared), stream);
    return start<SOURCE_TERM>(args, rp_vector_ok(from->term), stream);
}
