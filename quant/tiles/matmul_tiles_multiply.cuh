/* matmul_tiles_multiply.cuh - how warps of matmul_tiles_kernel.cuh multiply a stage.
 *
 * A dependent chain of products leaves a warp idle between two of them, unless there is something
 * to decode. So a lane has the codes of the next stage in registers before it multiplies the
 * current one: nothing is waited for within a stage. */
#ifndef RP_QUANT_MATMUL_TILES_MULTIPLY_CUH
#define RP_QUANT_MATMUL_TILES_MULTIPLY_CUH

#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_wgmma.cuh"
#include "quant/tiles/matmul_tiles_decode.cuh"
#include "quant/tiles/matmul_tiles_mma.cuh"

namespace {

constexpr uint32_t TOKEN_ROW = 128; /* bytes of a row in a box of tokens: 64 columns */

/* A lane's codes of 64 columns of a panel. */
template <typename Format> struct half_codes {
    static constexpr int WORDS = Format::BITS == 16 ? 16 : Format::BITS == 8 ? 8 : 4;
    uint32_t words[WORDS];
    uint32_t high[2]; /* of 5 bits one word, of 6 two */
};

template <typename Format>
__device__ __forceinline__ void load_half(const unsigned char *tile, int half, uint32_t lane,
                                          half_codes<Format> &to) {
    constexpr int BITS = Format::BITS;
    const unsigned char *codes = tile + Format::SCALE_BYTES;
    if constexpr (Format::KIND == RP_TILE_FP4) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            *(uint2 *)(to.words + 2 * i) =
                *(const uint2 *)(codes + half * 512 + i * 256 + lane * 8);
    } else {
#pragma unroll
        for (int i = 0; i < half_codes<Format>::WORDS / 4; i++)
            *(uint4 *)(to.words + 4 * i) =
                *(const uint4 *)(codes + (half * half_codes<Format>::WORDS / 4 + i) * 512 +
                                 lane * 16);
    }
    if constexpr (BITS == 5)
        to.high[0] = *(const uint32_t *)(codes + 1024 + lane * 8 + half * 4);
    if constexpr (BITS == 6)
        *(uint2 *)to.high = *(const uint2 *)(codes + 1024 + lane * 16 + half * 8);
}

/* Those of two steps, 32 columns. */
template <typename Format>
__device__ __forceinline__ tile_codes<Format> codes_of_pair(const half_codes<Format> &half,
                                                            int pair) {
    constexpr bool IS_FP4 = Format::KIND == RP_TILE_FP4; /* four steps in two words */
    constexpr int WORDS = sizeof(tile_codes<Format>::words) / 4;
    tile_codes<Format> codes;
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        codes.words[i] = half.words[IS_FP4 ? i : pair % 2 * WORDS + i];
    codes.high = half.high[Format::BITS == 6 ? pair % 2 : 0];
    return codes;
}

/* What a lane has of a panel before its stage begins: the codes, where registers suffice, and the
 * scales of the first group. */
template <typename Format> struct held_tile {
    static constexpr bool HAS_CODES = Format::BITS <= 6;
    half_codes<Format> half[2];
    tile_scales scales;
};

template <typename Format>
__device__ __forceinline__ void hold_tile(const unsigned char *tile, uint32_t lane, uint32_t offset,
                                          held_tile<Format> &to) {
    if constexpr (held_tile<Format>::HAS_CODES) {
        load_half<Format>(tile, 0, lane, to.half[0]);
        load_half<Format>(tile, 1, lane, to.half[1]);
    }
    load_scales<Format>(tile, 0, lane / 4, offset, to.scales);
}

/* Operands of two steps of a panel. After the last steps of a half, its codes of the next stage
 * take their place; after the last of all, the scales. */
template <typename Format>
__device__ __forceinline__ void decode_pair(const unsigned char *tile, const unsigned char *next,
                                            int pair, uint32_t lane, uint32_t offset,
                                            held_tile<Format> &held, uint32_t (&a)[2][4]) {
    constexpr bool HAS_CODES = held_tile<Format>::HAS_CODES;
    half_codes<Format> &half = held.half[HAS_CODES ? pair / 2 : 0];
    if (!HAS_CODES && pair % 2 == 0)
        load_half<Format>(tile, pair / 2, lane, half);
    const tile_codes<Format> codes = codes_of_pair<Format>(half, pair);
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
        int col = (2 * pair + odd) * 16;
        if (col > 0 && col % Format::GROUP == 0)
            load_scales<Format>(tile, col / Format::GROUP, lane / 4, offset, held.scales);
        decode_step<Format>(codes, pair, odd, held.scales, a[odd]);
    }
    if (HAS_CODES && pair % 2 == 1)
        load_half<Format>(next, pair / 2, lane, half);
    if (pair == 3)
        load_scales<Format>(next, 0, lane / 4, offset, held.scales);
}

/* Columns [0, 128) of a panel by eight tokens, with mma.sync. tokens: the address of this lane's
 * row in them. */
template <typename Format>
__device__ __forceinline__ void multiply_stage(const unsigned char *tile, const unsigned char *next,
                                               uint32_t tokens, uint32_t lane, uint32_t offset,
                                               held_tile<Format> &held, float (&sums)[4]) {
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        uint32_t a[2][4], b[4];
        /* the swizzle moves 16 bytes: two steps are four of them */
        load_tokens((tokens + pair / 2 * 8 * TOKEN_ROW) ^ pair % 2 * 64, b);
        decode_pair<Format>(tile, next, pair, lane, offset, held, a);
        multiply_step(sums, a[0], b[0], b[1]);
        multiply_step(sums, a[1], b[2], b[3]);
    }
}

/* A place in the ring. */
struct ring_at {
    uint32_t stage, phase;
    __device__ __forceinline__ void next(uint32_t stages) {
        if (++stage == stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

/* The ring as a multiplying warp sees it: addresses of stage 0. */
struct ring_view {
    const unsigned char *tiles;   /* this warp's */
    uint32_t tokens;              /* of mma.sync: this lane's row */
    uint32_t landed, full, empty; /* barriers */
    uint32_t weight_bytes, token_bytes, stages, count;
};

/* All stages, a warp for itself. held: of stage 0. */
template <typename Format>
__device__ __forceinline__ void multiply_alone(const ring_view &view, uint32_t lane,
                                               uint32_t offset, held_tile<Format> &held,
                                               float (&sums)[4]) {
    ring_at ring = {0, 0};
#pragma unroll 1
    for (uint32_t i = 0; i < view.count; i++) {
        const ring_at now = ring;
        ring.next(view.stages);
        if (i + 1 < view.count) /* else what is there is loaded, and not used */
            rp_barrier_wait(view.landed + 8 * ring.stage, ring.phase);
        rp_barrier_wait(view.full + 8 * now.stage, now.phase);
        multiply_stage<Format>(
            view.tiles + now.stage * view.weight_bytes, view.tiles + ring.stage * view.weight_bytes,
            view.tokens + now.stage * view.token_bytes, lane, offset, held, sums);
        __syncwarp();
        if (lane == 0)
            rp_barrier_arrive(view.empty + 8 * now.stage);
    }
}

/* All stages, four warps together: wgmma reads tokens once for 64 weight rows. Two instructions
 * multiply while the operands of the next two are decoded. held: of stage 0. A stage is given back
 * within the next one, after the one behind that has come: so there are three. (A loop that waits
 * between the products of a stage makes ptxas wait for each of them.) */
template <typename Format, int NT>
__device__ __forceinline__ void multiply_together(const ring_view &view, uint32_t lane,
                                                  uint32_t offset, held_tile<Format> &held,
                                                  float (&sums)[NT * 4]) {
    uint32_t before = 0, a[2][2][4];
    ring_at ring = {0, 0};
#pragma unroll 1
    for (uint32_t i = 0; i < view.count; i++) {
        const ring_at now = ring;
        const unsigned char *tile = view.tiles + now.stage * view.weight_bytes;
        const uint32_t rows = rp_wgmma_operand_low(view.tokens + now.stage * view.token_bytes);
        ring.next(view.stages);
        if (i + 1 < view.count) /* else what is there is loaded, and not used */
            rp_barrier_wait(view.landed + 8 * ring.stage, ring.phase);
        rp_barrier_wait(view.full + 8 * now.stage, now.phase);
        const unsigned char *next = view.tiles + ring.stage * view.weight_bytes;
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            uint32_t b = rows + pair / 2 * (NT * 8 * TOKEN_ROW / 16) + pair % 2 * 4;
            decode_pair<Format>(tile, next, pair, lane, offset, held, a[pair % 2]);
            rp_wgmma_fence();
            rp_wgmma_held<8 * NT>::run(sums, a[pair % 2][0], rp_wgmma_operand_of(b),
                                       (i | pair) != 0);
            rp_wgmma_held<8 * NT>::run(sums, a[pair % 2][1], rp_wgmma_operand_of(b + 2), 1);
            rp_wgmma_commit();
            rp_wgmma_wait<1>();
            if (pair == 0) {
                __syncwarp();
                if (i > 0 && lane == 0)
                    rp_barrier_arrive(before);
            }
        }
        before = view.empty + 8 * now.stage;
    }
    rp_wgmma_wait<0>();
}

} // namespace

#endif
