/* matmul_tiles_cuda.cu - launches of the GEMMs on tiles; tiles as bf16 rows, as embeddings, and
 * random ones for benchmarks. */
#include "device/cuda_kernel.cuh"
#include "quant/tiles/matmul_tiles_decode.cuh"
#include "quant/tiles/matmul_tiles_find.cuh"

#include <string.h>

namespace {

#define ROW_HALVES (RP_TILE_COLS + 8u) /* of a row in shared memory: no conflicts of banks */

rp_matmul_tiles_kernel find_kernel(const rp_matmul_tiles_args &args) {
    rp_matmul_tiles_kernel found = rp_matmul_tiles_int4_find(args);
    if (!found.kernel)
        found = rp_matmul_tiles_k_find(args);
    return found.kernel ? found : rp_matmul_tiles_other_find(args);
}

/* --- segments ----------------------------------------------------------------------------- */

__global__ void __launch_bounds__(256) sum_segments(const rp_tiles_sum_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    const uint32_t row = blockIdx.y, col = blockIdx.x * 256 + threadIdx.x;
    stamp.begin();
    stamp.look();
    if (row >= rp_live_count(args.rows.step, args.rows.rows) || col >= args.cols)
        return;
    float value = rp_partials_sum(args.partials, row, col);
    size_t at = row * args.out.stride + col;
    if (args.accumulate)
        value = ((const float *)args.out.data)[at] + value;
    rp_store(args.out.data, args.out.dtype, at, value);
}

/* --- tiles to bf16 ---------------------------------------------------------------------------- */

/* A warp's tile as 16 rows of 128 bf16 in shared memory. */
template <typename Format>
__device__ __forceinline__ void decode_tile(const unsigned char *tile, uint32_t offset,
                                            uint32_t lane, uint16_t *to) {
    const unsigned char *codes = tile + Format::SCALE_BYTES;
    const uint32_t unit = 0x4B804B80u; /* 2^24, twice */
    tile_scales scales;
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        tile_codes<Format> words;
        load_codes<Format>(codes, pair, lane, words);
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            int col = (2 * pair + odd) * 16;
            uint32_t a[4];
            if (col % Format::GROUP == 0)
                load_scales<Format>(tile, col / Format::GROUP, lane / 4, offset, scales);
            decode_step<Format>(words, pair, odd, scales, a);
#pragma unroll
            for (int q = 0; q < 4; q++) {
                uint32_t row = lane / 4 + q % 2 * 8, at = col + lane % 4 * 2 + q / 2 * 8;
                *(uint32_t *)(to + row * ROW_HALVES + at) = bf16_mul(a[q], unit);
            }
        }
    }
}

/* A warp a tile, eight of them a block. */
template <typename Format>
__global__ void __launch_bounds__(256) tiles_to_bf16(const rp_tiles_to_bf16 args) {
    __shared__ __align__(16) uint16_t shared[8][16 * ROW_HALVES];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t tiles = (args.cols + RP_TILE_COLS - 1) / RP_TILE_COLS;
    const uint32_t panels = (args.rows + RP_TILE_ROWS - 1) / RP_TILE_ROWS;
    const size_t at = (size_t)blockIdx.x * 8 + warp;
    const bool valid = at < (size_t)panels * tiles;
    uint16_t *own = shared[warp];
    if (valid)
        decode_tile<Format>(args.data + at * Format::BYTES,
                            bf16_pair((float)args.format.offset * -0x1p-24f), lane, own);
    __syncwarp();
    rp_pdl_begin();
    if (!valid)
        return;
    const uint32_t panel = (uint32_t)(at / tiles), begin = (uint32_t)(at % tiles) * RP_TILE_COLS;
    const bool vectors = args.stride % 8 == 0 && (uintptr_t)args.out % 16 == 0;
    for (uint32_t i = lane; i < RP_TILE_ROWS * RP_TILE_COLS / 8; i += 32) {
        uint32_t in = i / 16, col = i % 16 * 8, row = panel * RP_TILE_ROWS + in;
        if (row >= args.rows)
            continue;
        uint16_t *to = args.out + row * args.stride + begin + col;
        const uint16_t *from = own + in * ROW_HALVES + col;
        if (vectors && begin + col + 8 <= args.cols)
            *(uint4 *)to = *(const uint4 *)from;
        else
            for (uint32_t k = 0; k < 8 && begin + col + k < args.cols; k++)
                to[k] = from[k];
    }
}

/* --- embeddings ------------------------------------------------------------------------------- */

/* A warp decodes a tile and keeps one of its rows: eight tiles of a token a block. */
template <typename Format>
__global__ void __launch_bounds__(256) tiles_embed(const rp_tiles_embed_cuda args) {
    __shared__ __align__(16) uint16_t shared[8][16 * ROW_HALVES];
    rp_stamp stamp(args.rows.stamp);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = blockIdx.y;
    const uint32_t tiles = (args.hidden + RP_TILE_COLS - 1) / RP_TILE_COLS;
    const uint32_t tile = blockIdx.x * 8 + warp;
    stamp.begin();
    stamp.look();
    uint32_t id = (uint32_t)args.rows.step.token_ids[token];
    if (token >= rp_live_count(args.rows.step, args.rows.rows) || tile >= tiles)
        return;
    id = id < args.vocab ? id : 0;
    uint16_t *own = shared[warp];
    decode_tile<Format>(args.table + ((size_t)(id / RP_TILE_ROWS) * tiles + tile) * Format::BYTES,
                        bf16_pair((float)args.format.offset * -0x1p-24f), lane, own);
    __syncwarp();
    for (uint32_t k = lane; k < RP_TILE_COLS && tile * RP_TILE_COLS + k < args.hidden; k += 32) {
        float value =
            __bfloat162float(__ushort_as_bfloat16(own[id % RP_TILE_ROWS * ROW_HALVES + k]));
        rp_store(args.out.data, args.out.dtype, token * args.out.stride + tile * RP_TILE_COLS + k,
                 value * args.scale);
    }
}

/* --- act-order ------------------------------------------------------------------------------ */

__global__ void __launch_bounds__(256) order_columns(const rp_tiles_order_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    const uint32_t row = blockIdx.y, k = blockIdx.x * 256 + threadIdx.x;
    const uint32_t column = k < args.cols ? args.columns[k] : 0;
    stamp.begin();
    stamp.look();
    if (k < args.cols && row < rp_live_count(args.rows.step, args.rows.rows))
        args.out[row * args.out_stride + k] = args.in[row * args.in_stride + column];
}

/* --- random tiles ----------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t random_bits(uint64_t seed, uint64_t index) {
    uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (uint32_t)(z >> 32);
}

/* S the same for all groups; a zero point of 8. */
__global__ void fill_tiles(uint32_t *data, uint32_t words, uint32_t scale_words,
                           uint32_t zero_words, size_t count, uint64_t seed, uint32_t scale) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count * words; i += stride) {
        uint32_t in = (uint32_t)(i % words);
        data[i] = in < scale_words                ? scale
                  : in < scale_words + zero_words ? 0x08080808u
                                                  : random_bits(seed, i);
    }
}

} // namespace

int rp_matmul_tiles_cuda_prepare(const struct rp_matmul_tiles_args *args) {
    rp_matmul_tiles_kernel found = find_kernel(*args);
    if (!found.kernel)
        return RP_STATUS_NOT_FOUND;
    cudaError_t error = cudaFuncSetAttribute(
        found.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)args->shared_most);
    return error == cudaSuccess ? RP_OK : RP_STATUS_DEVICE;
}

int rp_matmul_tiles_cuda_start(const struct rp_matmul_tiles_args *args, cudaStream_t stream) {
    return rp_cuda_start(find_kernel(*args).kernel, dim3(args->grid, args->token_tiles),
                         dim3(32 * (args->warps + 2)), args->shared_bytes, stream, args->dependent,
                         *args);
}

int rp_tiles_sum_start(const struct rp_tiles_sum_cuda *args, cudaStream_t stream) {
    dim3 grid(RP_CEIL_DIV(args->cols, 256u), args->rows.max_rows);
    return rp_cuda_start(sum_segments, grid, dim3(256), 0, stream, args->dependent, *args);
}

#define IS_FORMAT(bits_, group_, kind_)                                                            \
    (args->format.bits == (bits_) && args->format.group == (group_) && args->format.kind == (kind_))

int rp_tiles_to_bf16_start(const struct rp_tiles_to_bf16 *args, cudaStream_t stream) {
    size_t tiles =
        (size_t)RP_CEIL_DIV(args->rows, RP_TILE_ROWS) * RP_CEIL_DIV(args->cols, RP_TILE_COLS);
    dim3 grid((uint32_t)RP_CEIL_DIV(tiles, (size_t)8));
#define X(bits, group, kind)                                                                       \
    if (IS_FORMAT(bits, group, kind))                                                              \
        return rp_cuda_start(tiles_to_bf16<tile_format<bits, group, kind>>, grid, dim3(256), 0,    \
                             stream, args->dependent, *args);
    RP_TILE_FORMATS(X)
#undef X
    return (int)cudaErrorInvalidValue;
}

int rp_tiles_embed_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_tiles_embed_cuda *args = (const rp_tiles_embed_cuda *)args_void;
    dim3 grid(RP_CEIL_DIV(args->hidden, 8 * RP_TILE_COLS), args->rows.max_rows);
#define X(bits, group, kind)                                                                       \
    if (IS_FORMAT(bits, group, kind))                                                              \
        return rp_cuda_start(tiles_embed<tile_format<bits, group, kind>>, grid, dim3(256), 0,      \
                             stream, !args->rows.plain_edges, *args);
    RP_TILE_FORMATS(X)
#undef X
    return (int)cudaErrorInvalidValue;
}

int rp_tiles_order_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_tiles_order_cuda *args = (const rp_tiles_order_cuda *)args_void;
    dim3 grid(RP_CEIL_DIV(args->cols, 256u), args->rows.max_rows);
    return rp_cuda_start(order_columns, grid, dim3(256), 0, stream, !args->rows.plain_edges, *args);
}

int rp_tiles_fill_random(void *data, struct rp_tile_format format, size_t tiles, uint64_t seed,
                         float scale, cudaStream_t stream) {
    bool zeros = format.kind == RP_TILE_ZERO;
    if (!zeros && format.kind != RP_TILE_SYM && format.kind != RP_TILE_FP4)
        return (int)cudaErrorInvalidValue;
    uint32_t groups = RP_TILE_COLS / format.group, bits = 0;
    float s = scale / (float)(format.kind == RP_TILE_FP4 ? 6 : 1 << (format.bits - 1));
    __nv_bfloat16 half = __float2bfloat16(s);
    memcpy(&bits, &half, 2);
    bits = (bits & 0xFFFFu) | bits << 16;
    fill_tiles<<<1024, 256, 0, stream>>>((uint32_t *)data, rp_tile_bytes(format) / 4, 8 * groups,
                                         zeros ? 4 * groups : 0, tiles, seed, bits);
    return (int)cudaGetLastError();
}
