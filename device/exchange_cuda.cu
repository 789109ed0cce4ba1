/* exchange_cuda.cu - all-reduce, all-gather and a norm over the columns of all ranks. */
#include "device/exchange.cuh"

#include "device/ops_math.cuh"

#define THREADS 1024
#define CHUNK   (4 * THREADS) /* columns of a row that a thread block takes at a time */

/* A piece of a row: thread t has columns col .. + 3. */
struct piece {
    uint32_t row, col;
};

static __device__ __forceinline__ piece piece_of(uint32_t item, uint32_t chunks) {
    return {item / chunks, item % chunks * CHUNK + 4 * threadIdx.x};
}

template <bool VEC>
static __device__ __forceinline__ float4 load_input(const rp_exchange_cuda &args, const piece &p) {
    return args.partials.count ? rp_partials_sum4<VEC, 4>(args.partials, p.row, p.col, args.cols)
                               : rp_load4<VEC>(args.in, p.row, p.col, args.cols);
}

template <bool VEC>
static __device__ __forceinline__ void put_input(const rp_exchange_cuda &args, uint32_t number,
                                                 const piece &p) {
    rp_exchange_put<VEC>(args.exchange, number, (size_t)p.row * args.cols + p.col, p.col, args.cols,
                         load_input<VEC>(args, p));
}

template <bool VEC>
static __device__ __forceinline__ float4 sum_of(const rp_exchange_cuda &args, uint32_t number,
                                                const piece &p) {
    size_t at = (size_t)p.row * args.cols + p.col;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (uint32_t rank = 0; rank < args.exchange.ranks; rank++)
        sum =
            rp_add4(sum, rp_exchange_take<VEC>(args.exchange, number, rank, at, p.col, args.cols));
    return sum;
}

template <bool VEC>
static __device__ __forceinline__ void store_sum(const rp_exchange_cuda &args, const piece &p,
                                                 float4 sum) {
    if (args.kind == RP_EXCHANGE_ADD)
        sum = rp_add4(rp_load4<VEC>(args.out, p.row, p.col, args.cols), sum);
    rp_store4<VEC>(args.out, p.row, p.col, args.cols, sum);
}

template <bool VEC>
static __device__ __forceinline__ void store_gathered(const rp_exchange_cuda &args, uint32_t number,
                                                      const piece &p) {
    size_t at = (size_t)p.row * args.cols + p.col;
    for (uint32_t rank = 0; rank < args.exchange.ranks; rank++) {
        uint32_t first = rank * args.cols;
        rp_store4<VEC>(args.out, p.row, first + p.col, first + args.cols,
                       rp_exchange_take<VEC>(args.exchange, number, rank, at, p.col, args.cols));
    }
}

/* One piece after the other: all ranks take them in the same order. */
template <bool VEC>
static __device__ __forceinline__ void
exchange_packets(const rp_exchange_cuda &args, uint32_t number, uint32_t items, uint32_t chunks) {
    uint32_t quads = RP_CEIL_DIV(args.cols, 4u);
    for (uint32_t item = blockIdx.x; item < items; item += gridDim.x) {
        piece p = piece_of(item, chunks);
        if (p.col >= args.cols)
            continue;
        float4 given[1] = {load_input<VEC>(args, p)}, sum[1];
        rp_exchange_sum_packets<1>(args.exchange, number, p.row * quads + p.col / 4, 0, 1, given,
                                   sum);
        store_sum<VEC>(args, p, sum[0]);
    }
    __syncthreads(); /* all have read the number */
}

/* Each thread block puts all its pieces before it waits. */
template <bool VEC>
static __device__ __forceinline__ void
exchange_blocks(const rp_exchange_cuda &args, uint32_t number, uint32_t items, uint32_t chunks) {
    const rp_cuda_exchange &exchange = args.exchange;
    bool two = exchange.way == RP_EXCHANGE_TWO_SHOT;
    for (uint32_t item = blockIdx.x; item < items && args.part != RP_EXCHANGE_AFTER;
         item += gridDim.x) {
        piece p = piece_of(item, chunks);
        if (p.col < args.cols)
            put_input<VEC>(args, number, p);
    }
    if (args.part == RP_EXCHANGE_BEFORE)
        return;
    if (args.part == RP_EXCHANGE_WHOLE)
        rp_exchange_meet(exchange, number, blockIdx.x);
    for (uint32_t item = blockIdx.x; item < items && two; item += gridDim.x) {
        piece p = piece_of(item, chunks);
        if (p.col < args.cols && rp_exchange_owner(exchange, p.row) == exchange.rank)
            rp_exchange_put_sum<VEC>(exchange, number, p.row, p.col, args.cols,
                                     sum_of<VEC>(args, number, p));
    }
    if (two)
        rp_exchange_meet(exchange, number, blockIdx.x, 1);
    for (uint32_t item = blockIdx.x; item < items; item += gridDim.x) {
        piece p = piece_of(item, chunks);
        if (p.col >= args.cols)
            continue;
        if (args.kind == RP_EXCHANGE_GATHER)
            store_gathered<VEC>(args, number, p);
        else
            store_sum<VEC>(
                args, p,
                two ? rp_exchange_take_sum<VEC>(exchange, number, p.row, p.col, args.cols)
                    : sum_of<VEC>(args, number, p));
    }
}

/* REDUCE, ADD, GATHER. */
template <bool VEC>
static __global__ void __launch_bounds__(THREADS) exchange_kernel(rp_exchange_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    stamp.begin();
    stamp.look();
    uint32_t chunks = RP_CEIL_DIV(args.cols, CHUNK);
    uint32_t items = rp_live_count(args.rows.step, args.rows.rows) * chunks;
    if (blockIdx.x >= items)
        return;
    uint32_t number = rp_exchange_number(args.exchange), blocks = min(items, gridDim.x);
    if (args.exchange.way == RP_EXCHANGE_PACKETS)
        exchange_packets<VEC>(args, number, items, chunks);
    else
        exchange_blocks<VEC>(args, number, items, chunks);
    if (threadIdx.x == 0 && args.part == RP_EXCHANGE_WHOLE)
        rp_exchange_end(args.exchange, number, rp_exchange_arrive(args.exchange, blocks), blocks);
}

/* The sum over a thread block, for all its threads, in an order that depends on nothing. */
static __device__ __forceinline__ float sum_of_block(float value) {
    __shared__ float sums[THREADS / 32];
    value = rp_warp_sum(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = value;
    __syncthreads();
    return rp_warp_sum(sums[threadIdx.x % 32]);
}

template <bool VEC>
static __device__ __forceinline__ float squares_of_row(const rp_exchange_cuda &args, uint32_t row) {
    float sum = 0.0f;
    for (uint32_t col = 4 * threadIdx.x; col < args.cols; col += CHUNK)
        sum = rp_add_squares(sum, rp_load4<VEC>(args.in, row, col, args.cols));
    return sum_of_block(sum);
}

/* NORM: a row's sum of squares is exchanged. */
template <bool VEC>
static __device__ __forceinline__ void norm_row(const rp_exchange_cuda &args, uint32_t number,
                                                uint32_t row) {
    float total = 0.0f;
    for (uint32_t rank = 0; rank < args.exchange.ranks; rank++)
        total += ((const float *)rp_exchange_block(args.exchange, number, rank))[row];
    float inverse = rp_inverse_root(total, args.norm_cols, args.eps);
    for (uint32_t col = 4 * threadIdx.x; col < args.cols; col += CHUNK)
        rp_store4<VEC>(args.out, row, col, args.cols,
                       rp_norm_values(rp_load4<VEC>(args.in, row, col, args.cols), inverse,
                                      rp_load4<VEC>(args.weight, RP_DTYPE_F32, col, col, args.cols),
                                      0.0f));
}

template <bool VEC>
static __global__ void __launch_bounds__(THREADS) exchange_norm_kernel(rp_exchange_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    stamp.begin();
    stamp.look();
    uint32_t rows = rp_live_count(args.rows.step, args.rows.rows), blocks = min(rows, gridDim.x);
    if (blockIdx.x >= rows)
        return;
    uint32_t number = rp_exchange_number(args.exchange);
    for (uint32_t row = blockIdx.x; row < rows && args.part != RP_EXCHANGE_AFTER;
         row += gridDim.x) {
        float sum = squares_of_row<VEC>(args, row);
        if (threadIdx.x == 0)
            ((float *)rp_exchange_block(args.exchange, number, args.exchange.rank))[row] = sum;
    }
    if (args.part == RP_EXCHANGE_BEFORE)
        return;
    if (args.part == RP_EXCHANGE_WHOLE)
        rp_exchange_meet(args.exchange, number, blockIdx.x);
    for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x)
        norm_row<VEC>(args, number, row);
    if (threadIdx.x == 0 && args.part == RP_EXCHANGE_WHOLE)
        rp_exchange_end(args.exchange, number, rp_exchange_arrive(args.exchange, blocks), blocks);
}

static __global__ void __launch_bounds__(THREADS) empty_kernel(uint32_t *words, size_t count) {
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < count;
         i += gridDim.x * (size_t)THREADS)
        words[i] = RP_EXCHANGE_EMPTY;
}

int rp_exchange_empty_packets(void *packets, size_t bytes, cudaStream_t stream) {
    empty_kernel<<<64, THREADS, 0, stream>>>((uint32_t *)packets, bytes / sizeof(uint32_t));
    return (int)cudaGetLastError();
}

int rp_exchange_cuda_run(const void *args_void, cudaStream_t stream) {
    rp_exchange_cuda args = *(const rp_exchange_cuda *)args_void;
    bool norm = args.kind == RP_EXCHANGE_NORM;
    uint32_t items = args.rows.max_rows * (norm ? 1 : RP_CEIL_DIV(args.cols, CHUNK));
    dim3 grid(RP_MIN(items, args.exchange.resident));
    bool vector = args.cols % 4 == 0 && rp_vector_ok(args.out) &&
                  (args.partials.count ? rp_vector_ok(args.partials) : rp_vector_ok(args.in)) &&
                  ((uintptr_t)args.weight & 15u) == 0;
    void (*kernel)(rp_exchange_cuda) =
        norm ? (vector ? exchange_norm_kernel<true> : exchange_norm_kernel<false>)
             : (vector ? exchange_kernel<true> : exchange_kernel<false>);
    return rp_exchange_start(kernel, grid, dim3(THREADS), stream, args.rows.plain_edges, args);
}
