/* RMSNorm, alone, after a gather, or after the sum into the residual.
 *
 * A team of threads computes one group of one row: thread t has columns 4 * (t + threads * i). They
 * stay in registers between the sum of squares and the scaling. How large a team is, and with it
 * the order of the sum, depends on the group's size alone: so add_norm has the bits of add and
 * norm, and a row has the same bits in every batch.
 *
 *   group of at most 256 columns:  a warp is a team, eight of them in a block
 *   otherwise:                     a block is a team
 *   about 4,096 columns:           few rows: a cluster of blocks is a team, as one multiprocessor reads
 *                                  partials too slowly; many rows: smaller blocks, whose threads each do
 *                                  the work of several, so that blocks overlap better
 *
 * QUANTIZED: rows of one group as 8-bit quantized values too: what was scaled stays in registers as
 * bf16 until the team knows its largest value. Sizes that no vector loads fit take
 * norm_long_kernel, whose sums have the same order. */
#include "device/ops_cuda.h"

#include "device/cuda_vector.cuh"
#include "device/ops_math.cuh"
#include "device/quantize_packed.cuh"

#define TEAM_MAX      1024
#define WARP_TEAMS    8
#define SPECULATE_MAX 256 /* with so few rows all are read before the live count is known */
#define CLUSTER       8   /* blocks of a team that is spread */
#define CLUSTER_ROWS  32  /* most rows that are spread */
#define FOLD_MANY     4   /* threads of the team that one thread does with many rows */
#define FOLD_ROWS     256 /* more rows than this are many */

enum norm_source {
    SOURCE_VALUES,
    SOURCE_GATHER,
    SOURCE_TERM,
    SOURCE_PARTIALS,
    SOURCE_GATHER_PARTIALS /* not stored into the residual */
};

__host__ __device__ constexpr bool gathers(norm_source source) {
    return source == SOURCE_GATHER || source == SOURCE_GATHER_PARTIALS;
}
__host__ __device__ constexpr bool sums_up(norm_source source) {
    return source == SOURCE_PARTIALS || source == SOURCE_GATHER_PARTIALS;
}
__host__ __device__ constexpr bool keeps(norm_source source) {
    return source == SOURCE_TERM || source == SOURCE_PARTIALS;
}

struct norm_args {
    rp_cuda_rows rows;
    rp_values in, term, out; /* in: the residual where something is added */
    rp_cuda_partials partials;
    const float *weight;
    uint32_t group, group_count;
    float eps, weight_offset;
    bool early;                  /* the residual and the live count are complete before the wait */
    rp_cuda_quantized quantized; /* data NULL: none */
};

static uint32_t team_threads(uint32_t group) {
    uint32_t quads = (group + 3) / 4;
    return quads <= 64 ? 32 : quads >= TEAM_MAX ? TEAM_MAX : (quads + 127) / 128 * 128;
}

/* Blocks of a cluster hand one another sums: each store counts its bytes at the receiver's barrier.
 * Only the partials of Hopper's GEMMs are normalized by clusters. */
static __device__ __forceinline__ void store_remote(float *at, uint64_t *barrier, uint32_t block,
                                                    float value) {
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

static __device__ __forceinline__ void barrier_init(uint64_t *barrier) {
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

/* Barriers are initialized in every block of the cluster before one returns. */
static __device__ __forceinline__ void cluster_meet() {
#if RP_CUDA_HOPPER
    asm volatile("barrier.cluster.arrive.release.aligned;\n\t"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#endif
}

/* The bytes that complete the barrier; some may have come before. After cluster_meet, so that
 * racecheck follows it. */
static __device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes) {
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

static __device__ __forceinline__ void cluster_await(uint64_t *barrier) {
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

/* How a team's threads are carried: by BLOCKS blocks of a cluster, each thread doing the work of
 * FOLD of them. The warps of the team are the same ones in every shape, and so is the sum. */
template <int BLOCKS, int FOLD> struct team {
    /* This thread as the first of the team's threads that it carries; the others lie `stride`
     * apart. */
    static __device__ __forceinline__ uint32_t thread() {
        return BLOCKS == 1 ? threadIdx.x : blockIdx.x % BLOCKS * blockDim.x + threadIdx.x;
    }
    static __device__ __forceinline__ uint32_t stride() { return blockDim.x * BLOCKS; }
    static __device__ __forceinline__ uint32_t threads() { return stride() * FOLD; }

    /* What the warps of the team tell one another. */
    struct board {
        __align__(16) float sums[TEAM_MAX / 32];
        uint64_t barrier;
    };
    /* The sum over the team, for all its threads; warps' sums are added in rising order. */
    static __device__ __forceinline__ float sum(board &shared, const float *values) {
        float *sums = shared.sums;
        uint32_t lane = threadIdx.x % 32;
        float total = 0.0f;
#pragma unroll
        for (int f = 0; f < FOLD; f++) {
            uint32_t warp = (thread() + stride() * f) / 32;
            total = rp_warp_sum(values[f]);
            if (BLOCKS > 1 && lane < BLOCKS)
                store_remote(&sums[warp], &shared.barrier, lane, total);
            else if (BLOCKS == 1 && lane == 0)
                sums[warp] = total;
        }
        if (threads() == 32)
            return total;
        if (BLOCKS > 1)
            cluster_await(&shared.barrier);
        else
            __syncthreads();
        total = 0.0f;
        for (uint32_t w = 0; w < threads() / 32; w += 4) {
            float4 four = *(const float4 *)&sums[w];
            total = (((total + four.x) + four.y) + four.z) + four.w;
        }
        return total;
    }

    /* The same for the largest value, which needs no order: one of each thread, as bits of bf16. */
    struct peak_board {
        uint32_t most[TEAM_MAX / 32];
        uint64_t barrier;
    };
    static __device__ __forceinline__ uint32_t peak(peak_board &shared, uint32_t most) {
        if (BLOCKS == 1)
            return rp_block_largest(shared.most, most);
        uint32_t lane = threadIdx.x % 32;
        most = rp_warp_max_bits(most);
        if (lane < BLOCKS)
            store_remote((float *)&shared.most[thread() / 32], &shared.barrier, lane,
                         __uint_as_float(most));
        cluster_await(&shared.barrier);
        return rp_warp_max_bits(lane < stride() / 32 ? shared.most[lane] : 0);
    }

    /* By all threads, before anything is put on them. peaks: NULL, if there are none. */
    static __device__ __forceinline__ void open(board &sums, peak_board *peaks) {
        if (BLOCKS == 1)
            return;
        barrier_init(&sums.barrier);
        if (peaks)
            barrier_init(&peaks->barrier);
        cluster_meet();
        barrier_expect(&sums.barrier, threads() / 32 * sizeof(float));
        if (peaks)
            barrier_expect(&peaks->barrier, stride() / 32 * sizeof(uint32_t));
    }
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

template <bool VEC>
static __device__ __forceinline__ float4 load_weight(const norm_args &args, uint32_t at) {
    return rp_load4<VEC>(args.weight, RP_DTYPE_F32, at, at, args.group);
}

/* Quantizes this thread's part of the scaled row. */
template <typename SHAPE, int OWN>
static __device__ __forceinline__ void
write_quantized(const norm_args &args, typename SHAPE::peak_board &board, uint32_t row,
                uint32_t begin, uint32_t step, const float4 (&x)[OWN]) {
    uint2 packed[OWN];
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        packed[i] = rp_pack_bf16(x[i]);
        if (begin + step * i < args.group)
            most = rp_largest(rp_largest(most, packed[i].x), packed[i].y);
    }
    rp_quantized_row quantized =
        rp_quantized_row_of(SHAPE::peak(board, most), args.quantized.dtype);
#pragma unroll
    for (int i = 0; i < OWN; i++)
        if (begin + step * i < args.group)
            rp_store_quantized(args.quantized, row, begin + step * i, args.group, packed[i],
                               quantized);
    if (SHAPE::thread() == 0)
        args.quantized.scales[row] = quantized.scale;
}

/* QUADS: quads of columns that a thread of the team keeps in registers. */
template <int QUADS, int BLOCKS, int FOLD, norm_source SOURCE, bool VEC, bool QUANTIZED = false>
static __global__ void __launch_bounds__(TEAM_MAX / BLOCKS / FOLD) norm_kernel(norm_args args) {
    using shape = team<BLOCKS, FOLD>;
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
    const bool early = sums_up(SOURCE) && args.early;
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
        write_quantized<shape, OWN>(args, peak, row, begin, step, x);
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
    __shared__ team<1, 1>::peak_board board;
    rp_quantized_row quantized =
        rp_quantized_row_of(team<1, 1>::peak(board, most), args.quantized.dtype);
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
static __global__ void __launch_bounds__(TEAM_MAX) norm_long_kernel(norm_args args) {
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
    __shared__ team<1, 1>::board shared;
    float inverse = rp_inverse_root(team<1, 1>::sum(shared, &sum), args.group, args.eps);
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
    dim3 grid(args.rows.max_rows * BLOCKS, args.group_count), block(TEAM_MAX / BLOCKS / FOLD);
    return rp_cuda_start(norm_kernel<1, BLOCKS, FOLD, SOURCE, VEC>, grid, block, 0, stream,
                         !args.rows.plain_edges, args, BLOCKS);
}

template <norm_source SOURCE, bool VEC>
static int start(const norm_args &args, cudaStream_t stream) {
    uint32_t threads = team_threads(args.group), quads = (args.group + 3) / 4;
    uint32_t each = (quads + threads - 1) / threads;
    uint32_t teams = threads == 32 ? RP_MIN((uint32_t)WARP_TEAMS, args.group_count) : 1;
    dim3 block(threads, teams), grid(args.rows.max_rows, (args.group_count + teams - 1) / teams);
    if (threads == TEAM_MAX && each == 1 && args.rows.max_rows > FOLD_ROWS)
        return start_shape<1, FOLD_MANY, SOURCE, VEC>(args, stream);
    if (threads == TEAM_MAX && each == 1 && sums_up(SOURCE) && args.rows.max_rows <= CLUSTER_ROWS)
        return start_shape<CLUSTER, 1, SOURCE, VEC>(args, stream);
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
    uint32_t threads = team_threads(args.group), quads = (args.group + 3) / 4;
    uint32_t each = (quads + threads - 1) / threads, rows = args.rows.max_rows;
    bool dependent = !args.rows.plain_edges;
    if (!vector || each > 2)
        return rp_cuda_start(vector ? norm_long_kernel<SOURCE, true, true>
                                    : norm_long_kernel<SOURCE, false, true>,
                             dim3(rows), dim3(threads), 0, stream, dependent, args);
    if (threads == TEAM_MAX && each == 1 && rows > FOLD_ROWS)
        return rp_cuda_start(norm_kernel<1, 1, FOLD_MANY, SOURCE, true, true>, dim3(rows),
                             dim3(TEAM_MAX / FOLD_MANY), 0, stream, dependent, args);
    if (threads == TEAM_MAX && each == 1 && sums_up(SOURCE) && rows <= CLUSTER_ROWS)
        return rp_cuda_start(norm_kernel<1, CLUSTER, 1, SOURCE, true, true>, dim3(rows * CLUSTER),
                             dim3(TEAM_MAX / CLUSTER), 0, stream, dependent, args, CLUSTER);
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
    args.early = from->behind_product;
    args.quantized = from->quantized;
    if (from->gather)
        return start<SOURCE_GATHER_PARTIALS>(args, rp_vector_ok(from->partials), stream);
    if (from->partials.count)
        return start<SOURCE_PARTIALS>(args, rp_vector_ok(from->partials), stream);
    return start<SOURCE_TERM>(args, rp_vector_ok(from->term), stream);
}
