/* All-reduce, the sum into the residual, and its RMSNorm, in one kernel. The sum of squares has the
 * order of norm_cuda.cu.
 *
 *   row_kernel    a thread block, or a cluster of them, for each row, which stays in registers; all
 *                 that does not depend on the row is read before the kernels ahead have ended
 *   rows_kernel   any number of rows for a thread block: it puts them all, waits, and takes one after
 *                 the other; blocks are small where a row is long, so that several share a
 *                 multiprocessor and one norms while another reads through the link */
#include "device/exchange.cuh"

#include "device/norm_team.cuh"
#include "device/ops_math.cuh"

/* All columns are multiples of 4, so four of them end at col + 4. */
static __device__ __forceinline__ float4 load_residual(const rp_add_norm_cuda &norm, uint32_t row,
                                                       uint32_t col) {
    return rp_load4<true>(norm.residual, row, col, col + 4);
}

/* The term of this rank, not yet exchanged; OWN: quads of the thread. */
template <int OWN>
static __device__ __forceinline__ float4 load_term(const rp_add_norm_cuda &norm, uint32_t row,
                                                   uint32_t col) {
    constexpr uint32_t FLIGHT = OWN == 1 ? 8 : 4;
    return norm.partials.count ? rp_partials_sum4<true, FLIGHT>(norm.partials, row, col, col + 4)
                               : rp_load4<true>(norm.term, row, col, col + 4);
}

static __device__ __forceinline__ float4 load_weight(const rp_add_norm_cuda &norm, uint32_t col) {
    return rp_load4<true>(norm.weight, RP_DTYPE_F32, col, col, col + 4);
}

/* The sum over the ranks of a row's quads, whose columns are begin + step * i. */
template <int OWN>
static __device__ __forceinline__ void take_sum(const rp_exchange_norm_cuda &args, uint32_t number,
                                                uint32_t row, uint32_t begin, uint32_t step,
                                                float4 (&sum)[OWN]) {
    uint32_t cols = args.norm.cols;
    size_t first = (size_t)row * cols;
#pragma unroll
    for (int i = 0; i < OWN; i++)
        sum[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 2 /* more do not fit the registers */
    for (uint32_t rank = 0; rank < args.exchange.ranks; rank++)
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            uint32_t col = begin + step * i;
            if (col < cols)
                sum[i] = rp_add4(sum[i], rp_exchange_take<true>(args.exchange, number, rank,
                                                                first + col, col, cols));
        }
}

/* Adds the sum to the residual, stores it, and norms the row. arrive: called by one thread once all
 * threads of the block have the sum. */
template <typename SHAPE, int OWN, int FOLD, bool QUANTIZED, typename Arrive>
static __device__ __forceinline__ void
finish_row(const rp_exchange_norm_cuda &args, typename SHAPE::board &board,
           typename SHAPE::peak_board &peak, uint32_t row, uint32_t begin, uint32_t step,
           float4 (&x)[OWN], const float4 (&sum)[OWN], const float4 *weight, Arrive arrive) {
    const rp_add_norm_cuda &norm = args.norm;
    float sums[FOLD] = {};
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        uint32_t col = begin + step * i;
        if (col >= norm.cols)
            continue;
        x[i] = rp_add4(x[i], sum[i]);
        rp_store4<true>(norm.residual, row, col, col + 4, x[i]);
        x[i] = rp_norm_as_stored(norm.residual.dtype, x[i]);
        sums[i % FOLD] = rp_add_squares(sums[i % FOLD], x[i]);
    }
    float inverse = rp_inverse_root(SHAPE::sum(board, sums), norm.cols, norm.eps);
    if (threadIdx.x == 0)
        arrive();
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        uint32_t col = begin + step * i;
        if (col >= norm.cols)
            continue;
        x[i] = rp_norm_values(x[i], inverse, weight ? weight[i] : load_weight(norm, col),
                              norm.weight_offset);
        if (!QUANTIZED || norm.out.data)
            rp_store4<true>(norm.out, row, col, col + 4, x[i]);
    }
    if (QUANTIZED)
        rp_norm_quantize<SHAPE, OWN>(norm.quantized, peak, row, norm.cols, begin, step, x);
}

/* PACKETS and ONE_SHOT. QUADS: of a thread of the team; BLOCKS: of a row. */
template <int QUADS, int BLOCKS, bool QUANTIZED>
static __global__ void __launch_bounds__(RP_NORM_TEAM_MAX / BLOCKS, BLOCKS)
    row_kernel(rp_exchange_norm_cuda args) {
    using shape = rp_norm_team<BLOCKS, 1>;
    const rp_add_norm_cuda &norm = args.norm;
    const rp_cuda_exchange &exchange = args.exchange;
    uint32_t row = blockIdx.x / BLOCKS, cols = norm.cols, live = 0, number = 0;
    uint32_t begin = 4 * shape::thread(), step = 4 * shape::stride();
    __shared__ typename shape::board board;
    __shared__ typename shape::peak_board peak; /* of QUANTIZED alone */
    float4 x[QUADS] = {}, term[QUADS] = {}, sum[QUADS], weight[QUADS] = {};
    rp_stamp stamp(norm.rows.stamp);
    rp_pdl_trigger();
    auto load_row = [&] {
        live = rp_live_count(norm.rows.step, norm.rows.rows);
        number = rp_exchange_number(exchange);
#pragma unroll
        for (int i = 0; i < QUADS; i++)
            if (begin + step * i < cols)
                x[i] = load_residual(norm, row, begin + step * i);
        stamp.look();
    };
    /* Two quads of weights are kept in local memory, which is still nearer than L2. */
#pragma unroll
    for (int i = 0; i < QUADS; i++)
        if (begin + step * i < cols)
            weight[i] = load_weight(norm, begin + step * i);
    if (norm.behind_product)
        load_row();
    shape::open(board, QUANTIZED ? &peak : nullptr);
    stamp.wait();
    if (!norm.behind_product)
        load_row();
#pragma unroll
    for (int i = 0; i < QUADS; i++)
        if (begin + step * i < cols)
            term[i] = load_term<QUADS>(norm, row, begin + step * i);
    if (row >= live)
        return; /* all blocks of its cluster */
    if (exchange.way == RP_EXCHANGE_PACKETS) {
        uint32_t count = begin < cols ? RP_CEIL_DIV(cols - begin, step) : 0;
        rp_exchange_sum_packets<QUADS>(exchange, number, (row * cols + begin) / 4, step / 4, count,
                                       term, sum);
    } else {
#pragma unroll
        for (int i = 0; i < QUADS; i++)
            if (begin + step * i < cols)
                rp_exchange_put<true>(exchange, number, (size_t)row * cols + begin + step * i,
                                      begin + step * i, cols, term[i]);
        rp_exchange_meet(exchange, number, blockIdx.x);
        take_sum<QUADS>(args, number, row, begin, step, sum);
    }
    uint32_t arrived = 0, blocks = live * BLOCKS;
    finish_row<shape, QUADS, 1, QUANTIZED>(args, board, peak, row, begin, step, x, sum, weight,
                                           [&] { arrived = rp_exchange_arrive(exchange, blocks); });
    if (threadIdx.x == 0)
        rp_exchange_end(exchange, number, arrived, blocks);
}

/* The same where the peer has stored what it gives into this rank's block. A sum of two needs no
 * order. */
template <int OWN>
static __device__ __forceinline__ void take_pushed(const rp_exchange_norm_cuda &args,
                                                   uint32_t number, uint32_t row, uint32_t begin,
                                                   uint32_t step, float4 (&sum)[OWN]) {
    uint32_t cols = args.norm.cols;
    size_t first = (size_t)row * cols;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        uint32_t col = begin + step * i;
        sum[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (col >= cols)
            continue;
        sum[i] = rp_add4(sum[i], rp_load4<true>(args.norm.term, row, col, col + 4));
        sum[i] = rp_add4(sum[i], rp_exchange_take<true>(args.exchange, number, args.exchange.rank,
                                                        first + col, col, cols));
    }
}

/* What a thread block does of a row's exchange, before the ranks meet and in between. */
template <int OWN>
static __device__ __forceinline__ void put_row(const rp_exchange_norm_cuda &args, uint32_t number,
                                               uint32_t row, uint32_t begin, uint32_t step) {
    uint32_t cols = args.norm.cols;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        uint32_t col = begin + step * i;
        if (col < cols)
            rp_exchange_put<true>(args.exchange, number, (size_t)row * cols + col, col, cols,
                                  load_term<OWN>(args.norm, row, col));
    }
}

template <int OWN>
static __device__ __forceinline__ void add_up_row(const rp_exchange_norm_cuda &args,
                                                  uint32_t number, uint32_t row, uint32_t begin,
                                                  uint32_t step) {
    float4 sum[OWN];
    take_sum<OWN>(args, number, row, begin, step, sum);
#pragma unroll
    for (int i = 0; i < OWN; i++)
        if (begin + step * i < args.norm.cols)
            rp_exchange_put_sum<true>(args.exchange, number, row, begin + step * i, args.norm.cols,
                                      sum[i]);
}

/* The residual, the sum of the ranks, and the rest. */
template <int OWN, int FOLD, bool QUANTIZED>
static __device__ __forceinline__ void
complete_row(const rp_exchange_norm_cuda &args, typename rp_norm_team<1, FOLD>::board &board,
             typename rp_norm_team<1, FOLD>::peak_board &peak, uint32_t number, uint32_t row,
             uint32_t begin, uint32_t step) {
    const rp_add_norm_cuda &norm = args.norm;
    float4 x[OWN] = {}, sum[OWN] = {};
#pragma unroll
    for (int i = 0; i < OWN; i++)
        if (begin + step * i < norm.cols)
            x[i] = load_residual(norm, row, begin + step * i);
    if (args.exchange.way == RP_EXCHANGE_TWO_SHOT) {
#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (begin + step * i < norm.cols)
                sum[i] = rp_exchange_take_sum<true>(args.exchange, number, row, begin + step * i,
                                                    norm.cols);
    } else if (args.exchange.way == RP_EXCHANGE_PUSHED) {
        take_pushed<OWN>(args, number, row, begin, step, sum);
    } else {
        take_sum<OWN>(args, number, row, begin, step, sum);
    }
    finish_row<rp_norm_team<1, FOLD>, OWN, FOLD, QUANTIZED>(args, board, peak, row, begin, step, x,
                                                            sum, nullptr, [] {});
}

/* All ways but PACKETS. FOLD: threads of the team that a thread is; SHARE: blocks of the largest
 * team that share a multiprocessor, as many as the registers let. */
template <int QUADS, int FOLD, int SHARE, bool QUANTIZED>
static __global__ void __launch_bounds__(RP_NORM_TEAM_MAX / FOLD, SHARE)
    rows_kernel(rp_exchange_norm_cuda args) {
    using shape = rp_norm_team<1, FOLD>;
    constexpr int OWN = QUADS * FOLD;
    const rp_cuda_exchange &exchange = args.exchange;
    uint32_t begin = 4 * shape::thread(), step = 4 * shape::stride();
    __shared__ typename shape::board board;
    __shared__ typename shape::peak_board peak;
    rp_stamp stamp(args.norm.rows.stamp);
    stamp.begin();
    stamp.look();
    uint32_t live = rp_live_count(args.norm.rows.step, args.norm.rows.rows);
    uint32_t number = rp_exchange_number(exchange), blocks = min(live, gridDim.x);
    bool two = exchange.way == RP_EXCHANGE_TWO_SHOT;
    bool puts = args.part != RP_EXCHANGE_AFTER && exchange.way != RP_EXCHANGE_PUSHED;
    if (blockIdx.x >= live)
        return;
    for (uint32_t row = blockIdx.x; row < live && puts; row += gridDim.x)
        put_row<OWN>(args, number, row, begin, step);
    if (args.part == RP_EXCHANGE_BEFORE)
        return;
    if (args.part == RP_EXCHANGE_WHOLE)
        rp_exchange_meet(exchange, number, blockIdx.x);
    for (uint32_t row = blockIdx.x; row < live && two; row += gridDim.x)
        if (rp_exchange_owner(exchange, row) == exchange.rank)
            add_up_row<OWN>(args, number, row, begin, step);
    if (two)
        rp_exchange_meet(exchange, number, blockIdx.x, 1);
    for (uint32_t row = blockIdx.x; row < live; row += gridDim.x) {
        complete_row<OWN, FOLD, QUANTIZED>(args, board, peak, number, row, begin, step);
        __syncthreads(); /* the boards are free again */
    }
    if (threadIdx.x == 0 && args.part == RP_EXCHANGE_WHOLE)
        rp_exchange_end(exchange, number, rp_exchange_arrive(exchange, blocks), blocks);
}

template <int QUADS, int BLOCKS>
static int start_row(const rp_exchange_norm_cuda &args, uint32_t threads, cudaStream_t stream) {
    return rp_exchange_start(args.norm.quantized.data ? row_kernel<QUADS, BLOCKS, true>
                                                      : row_kernel<QUADS, BLOCKS, false>,
                             dim3(args.norm.rows.max_rows * BLOCKS), dim3(threads / BLOCKS), stream,
                             args.norm.rows.plain_edges, args, BLOCKS);
}

template <int QUADS, int FOLD, int SHARE>
static int start_rows(const rp_exchange_norm_cuda &args, uint32_t threads, cudaStream_t stream) {
    uint32_t most = args.exchange.resident * SHARE * (RP_NORM_TEAM_MAX / threads);
    dim3 grid(RP_MIN(RP_MIN(most, (uint32_t)RP_EXCHANGE_SLOTS), (uint32_t)args.norm.rows.max_rows));
    return rp_exchange_start(args.norm.quantized.data ? rows_kernel<QUADS, FOLD, SHARE, true>
                                                      : rows_kernel<QUADS, FOLD, SHARE, false>,
                             grid, dim3(threads / FOLD), stream, args.norm.rows.plain_edges, args);
}

/* A team of threads that is spread has blocks whose registers and threads together are those of one
 * block: as many are resident. */
int rp_exchange_norm_cuda_run(const void *args_void, cudaStream_t stream) {
    rp_exchange_norm_cuda args = *(const rp_exchange_norm_cuda *)args_void;
    const rp_add_norm_cuda &norm = args.norm;
    uint32_t threads = rp_norm_team_threads(norm.cols), rows = norm.rows.max_rows;
    bool one = norm.cols <= 4 * threads, whole = threads == RP_NORM_TEAM_MAX;
    if (norm.cols % 4 != 0 || norm.cols > RP_EXCHANGE_NORM_COLS_MAX ||
        !rp_vector_ok(norm.residual) || !rp_vector_ok(norm.out) ||
        ((uintptr_t)norm.weight & 15u) != 0 ||
        !(norm.partials.count ? rp_vector_ok(norm.partials) : rp_vector_ok(norm.term)))
        return cudaErrorInvalidValue;
    if (args.exchange.way == RP_EXCHANGE_PACKETS ||
        (args.exchange.way == RP_EXCHANGE_ONE_SHOT && rows <= args.exchange.resident)) {
        if (whole && norm.partials.count && rows <= RP_NORM_CLUSTER_ROWS)
            return one ? start_row<1, RP_NORM_CLUSTER>(args, threads, stream)
                       : start_row<2, RP_NORM_CLUSTER>(args, threads, stream);
        return one ? start_row<1, 1>(args, threads, stream)
                   : start_row<2, 1>(args, threads, stream);
    }
    if (!whole)
        return one ? start_rows<1, 1, 1>(args, threads, stream)
                   : start_rows<2, 1, 1>(args, threads, stream);
    return one ? start_rows<1, 4, 3>(args, threads, stream)
               : start_rows<2, 4, 2>(args, threads, stream);
}
