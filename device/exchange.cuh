/* exchange.cuh - the steps of a kernel that exchanges data with the other ranks of its group
 * (exchange_cuda.h).
 *
 * PACKETS: rp_exchange_number, rp_exchange_sum_packets, rp_exchange_end.
 * Else: rp_exchange_number, rp_exchange_put, rp_exchange_meet, rp_exchange_take; in TWO_SHOT, by
 * the owner of a row, rp_exchange_put_sum before a second rp_exchange_meet, then
 * rp_exchange_take_sum; rp_exchange_end. In PUSHED the GEMM before has put. */
#ifndef RP_DEVICE_EXCHANGE_CUH
#define RP_DEVICE_EXCHANGE_CUH

#include "device/cuda_vector.cuh"
#include "device/exchange_cuda.h"

/* Spins between two looks at host memory. */
#define RP_EXCHANGE_SPINS 4096u

/* The number of this exchange, after the kernel has waited for those ahead of it. */
__device__ __forceinline__ uint32_t rp_exchange_number(const rp_cuda_exchange &exchange) {
    return exchange.way == RP_EXCHANGE_LIBRARY ? 0 : *(volatile const uint32_t *)exchange.state;
}

/* What flags say when a rank has come to meeting 0 or 1 of an exchange. Odd in meeting 0, so that
 * memory never written is not taken for them. */
__device__ __forceinline__ uint32_t rp_exchange_flag(uint32_t number, uint32_t meeting) {
    return 2 * number + 1 + meeting;
}

__device__ __forceinline__ bool rp_exchange_gives_up(const rp_cuda_exchange &exchange,
                                                     uint32_t spins) {
    return spins % RP_EXCHANGE_SPINS == 0 && *(volatile const uint32_t *)exchange.broken;
}

/* --- blocks ---------------------------------------------------------------------------------- */

__device__ __forceinline__ unsigned char *rp_exchange_block(const rp_cuda_exchange &exchange,
                                                            uint32_t number, uint32_t rank) {
    return exchange.blocks[rank] + number % 2 * exchange.bytes;
}

/* VEC: rows are multiples of 4 columns. */
template <bool VEC>
__device__ __forceinline__ uint32_t rp_exchange_row_end(uint32_t col, uint32_t end) {
    return VEC ? col + 4 : end;
}

/* Four columns of what this rank gives, element `at` of the payload. */
template <bool VEC>
__device__ __forceinline__ void rp_exchange_put(const rp_cuda_exchange &exchange, uint32_t number,
                                                size_t at, uint32_t col, uint32_t end, float4 x) {
    rp_store4<VEC>(rp_exchange_block(exchange, number, exchange.rank), exchange.payload, at, col,
                   rp_exchange_row_end<VEC>(col, end), x);
}

/* The same columns of a rank, after rp_exchange_meet. */
template <bool VEC>
__device__ __forceinline__ float4 rp_exchange_take(const rp_cuda_exchange &exchange,
                                                   uint32_t number, uint32_t rank, size_t at,
                                                   uint32_t col, uint32_t end) {
    return rp_load4<VEC>(rp_exchange_block(exchange, number, rank), exchange.payload, at, col,
                         rp_exchange_row_end<VEC>(col, end));
}

/* Returns when thread block `slot` of every rank has come to this meeting: what it stored before
 * can be read. By all threads, at least as many as there are ranks.
 *
 * A peer may be ahead, but not beyond the first meeting of the next exchange, for which this rank
 * has given nothing yet. Flags of a slot that was long not used are any others. */
__device__ __forceinline__ void rp_exchange_meet(const rp_cuda_exchange &exchange, uint32_t number,
                                                 uint32_t slot, uint32_t meeting = 0) {
    uint32_t peer = threadIdx.x, want = rp_exchange_flag(number, meeting);
    __syncthreads();
    if (peer < exchange.ranks && peer != exchange.rank) {
        const uint32_t *from = exchange.flags[exchange.rank] + slot * exchange.ranks + peer;
        uint32_t *to = exchange.flags[peer] + slot * exchange.ranks + exchange.rank;
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(want) : "memory");
        for (uint32_t spins = 1;; spins++) {
            uint32_t flag;
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(flag) : "l"(from) : "memory");
            if (flag - want <= 2u || rp_exchange_gives_up(exchange, spins))
                break;
        }
    }
    __syncthreads();
}

/* --- sums of an owner ------------------------------------------------------------------------ */

/* Every rank owns one of the rows n * ranks to (n + 1) * ranks - 1: row n of its sums. */
__device__ __forceinline__ uint32_t rp_exchange_owner(const rp_cuda_exchange &exchange,
                                                      uint32_t row) {
    return (row + row / exchange.ranks) % exchange.ranks;
}

__device__ __forceinline__ float *rp_exchange_sums(const rp_cuda_exchange &exchange,
                                                   uint32_t number, uint32_t rank, uint32_t row,
                                                   uint32_t cols) {
    return (float *)(rp_exchange_block(exchange, number, rank) + exchange.sums_at) +
           (size_t)(row / exchange.ranks) * cols;
}

template <bool VEC>
__device__ __forceinline__ void rp_exchange_put_sum(const rp_cuda_exchange &exchange,
                                                    uint32_t number, uint32_t row, uint32_t col,
                                                    uint32_t cols, float4 sum) {
    rp_store4<VEC>(rp_exchange_sums(exchange, number, exchange.rank, row, cols), RP_DTYPE_F32, col,
                   col, rp_exchange_row_end<VEC>(col, cols), sum);
}

template <bool VEC>
__device__ __forceinline__ float4 rp_exchange_take_sum(const rp_cuda_exchange &exchange,
                                                       uint32_t number, uint32_t row, uint32_t col,
                                                       uint32_t cols) {
    return rp_load4<VEC>(
        rp_exchange_sums(exchange, number, rp_exchange_owner(exchange, row), row, cols),
        RP_DTYPE_F32, col, col, rp_exchange_row_end<VEC>(col, cols));
}

/* --- packets --------------------------------------------------------------------------------- */

/* Four columns as they travel: two words of bf16, or four of f32. */
__device__ __forceinline__ uint4 rp_exchange_words(const rp_cuda_exchange &exchange, float4 x) {
    if (exchange.payload == RP_DTYPE_F32)
        return make_uint4(__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z),
                          __float_as_uint(x.w));
    __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y), high = __floats2bfloat162_rn(x.z, x.w);
    return make_uint4(*(const uint32_t *)&low, *(const uint32_t *)&high, 0, 0);
}

__device__ __forceinline__ float4 rp_exchange_values(const rp_cuda_exchange &exchange,
                                                     uint4 words) {
    if (exchange.payload == RP_DTYPE_F32)
        return make_float4(__uint_as_float(words.x), __uint_as_float(words.y),
                           __uint_as_float(words.z), __uint_as_float(words.w));
    return make_float4(__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xFFFF0000u),
                       __uint_as_float(words.y << 16), __uint_as_float(words.y & 0xFFFF0000u));
}

/* Where `to` receives quad `quad` of rank `from`. */
__device__ __forceinline__ unsigned char *rp_exchange_packets(const rp_cuda_exchange &exchange,
                                                              uint32_t number, uint32_t to,
                                                              uint32_t from, uint32_t quad) {
    return exchange.packets[to] + (number % 2 * exchange.ranks + from) * exchange.packet_room +
           (size_t)quad * (exchange.payload == RP_DTYPE_F32 ? 16 : 8);
}

/* Every 4 bytes arrive whole, in no order. */
__device__ __forceinline__ void rp_exchange_store_packet(unsigned char *to, bool wide,
                                                         uint4 words) {
    if (wide)
        asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x),
                     "r"(words.y), "r"(words.z), "r"(words.w)
                     : "memory");
    else
        asm volatile("st.relaxed.sys.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(words.x),
                     "r"(words.y)
                     : "memory");
}

/* False: not all of it is there. */
__device__ __forceinline__ bool rp_exchange_load_packet(const unsigned char *from, bool wide,
                                                        uint4 &words) {
    constexpr uint32_t EMPTY = RP_EXCHANGE_EMPTY;
    if (wide)
        asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                     : "l"(from)
                     : "memory");
    else
        asm volatile("ld.relaxed.sys.global.v2.b32 {%0, %1}, [%2];"
                     : "=r"(words.x), "=r"(words.y)
                     : "l"(from)
                     : "memory");
    return words.x != EMPTY && words.y != EMPTY &&
           (!wide || (words.z != EMPTY && words.w != EMPTY));
}

__device__ __forceinline__ uint32_t rp_exchange_sendable(uint32_t word) {
    return word == RP_EXCHANGE_EMPTY ? 0 : word;
}

__device__ __forceinline__ void rp_exchange_send(const rp_cuda_exchange &exchange, uint32_t number,
                                                 uint32_t quad, uint4 words) {
    bool wide = exchange.payload == RP_DTYPE_F32;
    words = make_uint4(rp_exchange_sendable(words.x), rp_exchange_sendable(words.y),
                       rp_exchange_sendable(words.z), rp_exchange_sendable(words.w));
    for (uint32_t peer = 0; peer < exchange.ranks; peer++)
        if (peer != exchange.rank)
            rp_exchange_store_packet(
                rp_exchange_packets(exchange, number, peer, exchange.rank, quad), wide, words);
}

/* Waits for quads quad + step * i, i < count, of a peer, and empties their places. The peer writes
 * there again when it has ended the next exchange, for which this rank sends when this kernel has
 * ended and its stores are done. */
template <int N>
__device__ __forceinline__ void
rp_exchange_receive(const rp_cuda_exchange &exchange, uint32_t number, uint32_t from, uint32_t quad,
                    uint32_t step, uint32_t count, uint4 (&words)[N]) {
    constexpr uint32_t EMPTY = RP_EXCHANGE_EMPTY;
    bool complete = false, wide = exchange.payload == RP_DTYPE_F32;
    for (uint32_t spins = 1; !complete && !rp_exchange_gives_up(exchange, spins); spins++) {
        complete = true;
#pragma unroll
        for (int i = 0; i < N; i++)
            if ((uint32_t)i < count)
                complete &= rp_exchange_load_packet(
                    rp_exchange_packets(exchange, number, exchange.rank, from, quad + step * i),
                    wide, words[i]);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if ((uint32_t)i < count)
            rp_exchange_store_packet(
                rp_exchange_packets(exchange, number, exchange.rank, from, quad + step * i), wide,
                make_uint4(EMPTY, EMPTY, EMPTY, EMPTY));
}

/* sum = the sum over the ranks of what they give, in rank order, of quads quad + step * i with
 * i < count. A thread waits for the threads of its place on the other ranks alone. */
template <int N>
__device__ __forceinline__ void
rp_exchange_sum_packets(const rp_cuda_exchange &exchange, uint32_t number, uint32_t quad,
                        uint32_t step, uint32_t count, const float4 (&given)[N], float4 (&sum)[N]) {
    uint4 own[N], words[N] = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
        own[i] = rp_exchange_words(exchange, given[i]);
        if ((uint32_t)i < count)
            rp_exchange_send(exchange, number, quad + step * i, own[i]);
        sum[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    for (uint32_t rank = 0; rank < exchange.ranks; rank++) {
        bool is_own = rank == exchange.rank;
        if (!is_own)
            rp_exchange_receive(exchange, number, rank, quad, step, count, words);
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint4 given_words = words[i]; /* not chosen by address, which would need memory */
            if (is_own)
                given_words = own[i];
            sum[i] = rp_add4(sum[i], rp_exchange_values(exchange, given_words));
        }
    }
}

/* --- the end --------------------------------------------------------------------------------- */

/* By one thread of each of the `blocks` thread blocks that take part, when all threads of its own
 * have read the number; its result belongs to rp_exchange_end. In between, the time that it takes
 * is not waited for. */
__device__ __forceinline__ uint32_t rp_exchange_arrive(const rp_cuda_exchange &exchange,
                                                       uint32_t blocks) {
    return blocks == 1 ? 0 : atomicAdd(&exchange.state[1], 1u);
}

/* By the same thread: the last thread block counts the exchange. */
__device__ __forceinline__ void rp_exchange_end(const rp_cuda_exchange &exchange, uint32_t number,
                                                uint32_t arrived, uint32_t blocks) {
    if (arrived + 1 < blocks)
        return;
    exchange.state[1] = 0;
    *(volatile uint32_t *)exchange.state = number + 1;
}

/* --- the launch ------------------------------------------------------------------------------ */

/* One kernel or, where a library gathers, two around it: they are told their part. The library's
 * launches are none that another kernel may overlap. */
template <typename Args>
static int rp_exchange_start(void (*kernel)(Args), dim3 grid, dim3 block, cudaStream_t stream,
                             bool plain_edges, Args args, uint32_t cluster = 1) {
    const rp_exchange_library &library = args.exchange.library;
    if (args.exchange.way != RP_EXCHANGE_LIBRARY)
        return rp_cuda_start(kernel, grid, block, 0, stream, !plain_edges, args, cluster);
    args.part = RP_EXCHANGE_BEFORE;
    int error = rp_cuda_start(kernel, grid, block, 0, stream, !plain_edges, args, cluster);
    if (error == cudaSuccess)
        error = library.gather(library.comm, args.exchange.rank, args.exchange.blocks[0],
                               library.bytes, stream);
    args.part = RP_EXCHANGE_AFTER;
    return error == cudaSuccess
               ? rp_cuda_start(kernel, grid, block, 0, stream, false, args, cluster)
               : error;
}

#endif
