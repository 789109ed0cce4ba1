/* matmul_tc_w8a16.cuh - 8-bit weights by rows of bf16 on tensor cores, for matmul_tc_kernel.cuh.
 *
 * A warpgroup reads its quantized values from the stage in pairs, in the layout of the
 * instruction's left operand (matmul_wgmma.cuh), converts them to bf16, which is exact for both
 * types, and multiplies them from registers. It works in groups of four instructions: while the
 * tensor cores work on one group, the next one's quantized values are loaded and converted into the
 * other set of registers, which is free since the group before is done.
 *
 * Up to 16 tokens the latency of a box in a warpgroup would dominate: loads, conversion, and a
 * chain of instructions that block the warp. There each warp works independently with mma.sync,
 * whose chains have the same bits (tests/gpu/test_numerics_probe), overlapped with the conversion
 * of the next values.
 *
 * The sums are those of bf16 weights of the same numbers: a chain from zero over the columns of a
 * segment, in rising order, or of each 128 of them where they have a scale of their own. */
#ifndef RP_QUANT_MATMUL_TC_W8A16_CUH
#define RP_QUANT_MATMUL_TC_W8A16_CUH

#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_wgmma.cuh"
#include "quant/tc/matmul_tc_work.cuh"

namespace {

constexpr int GROUP_STEPS = 4; /* instructions of 16 columns */
constexpr int BOX_GROUPS =
    128 / (16 * GROUP_STEPS); /* even: each box begins with the same registers */

/* Operands of one thread and instruction: pairs of quantized values, or of bf16. */
using group_operands = uint32_t[GROUP_STEPS][4];

/* Factor from a held bf16 weight to its quantized value. */
template <rp_wgmma_type TYPE> constexpr float held_unit = TYPE == RP_WGMMA_INT8_BF16 ? 64 : 1;

/* Quantized values in bits 0 to 15 as two bf16, exactly, with few instructions of the half-rate
 * kind.
 *
 * INT8: quantized value + 128, an unsigned byte u, has the bits of the bf16 number u * 2^-133,
 * below the normal ones as in their first binade; times 2^127, less 2, that is quantized value /
 * 64. FP8: with exponent and mantissa at their places and the sign, which is four bits too low,
 * moved up, it is a bf16 number 2^120 times too small, below the normal ones, too. */
template <rp_wgmma_type TYPE>
__device__ __forceinline__ uint32_t bf16_of_quantized(uint32_t quantized) {
    uint32_t result;
    if constexpr (TYPE == RP_WGMMA_INT8_BF16) {
        uint32_t spread = __byte_perm(quantized ^ 0x8080u, 0, 0x4140);
        asm("fma.rn.bf16x2 %0, %1, %2, %3;"
            : "=r"(result)
            : "r"(spread), "r"(0x7F007F00u), "r"(0xC000C000u));
    } else {
        uint32_t placed = __byte_perm(quantized, 0, 0x4140) * 16;
        uint32_t signs = placed & 0x08000800u;
        asm("mul.rn.bf16x2 %0, %1, %2;"
            : "=r"(result)
            : "r"(signs * 15 + placed), "r"(0x7B807B80u));
    }
    return result;
}

__device__ __forceinline__ uint32_t load_quantized(uint32_t from) {
    uint32_t quantized;
    asm volatile("ld.shared.u16 %0, [%1];" : "=r"(quantized) : "r"(from) : "memory");
    return quantized;
}

/* own: this thread's first pair in the swizzled box. Sixteen quantized values are what the swizzle
 * moves: step i's are at i of them by exclusive or. */
__device__ __forceinline__ void load_group(uint32_t own, int group, group_operands &quantized) {
#pragma unroll
    for (int step = 0; step < GROUP_STEPS; step++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            quantized[step][i] = load_quantized((own ^ 16 * (group * GROUP_STEPS + step)) +
                                                i % 2 * 8 * 128 + i / 2 * 8);
}

template <typename Shape>
__device__ __forceinline__ void convert_group(const group_operands &quantized,
                                              group_operands &held) {
#pragma unroll
    for (int step = 0; step < GROUP_STEPS; step++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            held[step][i] = bf16_of_quantized<Shape::TYPE>(quantized[step][i]);
}

/* Where this thread's first pair lies in a box of the tile's weights. */
__device__ __forceinline__ uint32_t own_quantized(uint32_t warpgroup) {
    uint32_t lane = threadIdx.x % 32, row = warpgroup * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
    return row * 128 + row % 8 * 16 + lane % 4 * 2;
}

/* tokens: of the box. */
template <typename Shape>
__device__ __forceinline__ void multiply_group(const group_operands &held, uint32_t tokens,
                                               int group, bool begun, float (&sums)[Shape::SUMS]) {
    rp_wgmma_fence();
#pragma unroll
    for (int step = 0; step < GROUP_STEPS; step++) {
        int at = group * GROUP_STEPS + step;
        uint32_t b = rp_wgmma_operand_low(tokens + at / 4 * Shape::TOKEN_BOX_BYTES) + at % 4 * 2;
        rp_wgmma_held<Shape::TOKENS>::run(sums, held[step], rp_wgmma_operand_of(b),
                                          begun || at > 0);
    }
    rp_wgmma_commit();
}

/* One segment of so many boxes. BLOCK_SCALES: scales are those of this warpgroup's rows, from the
 * segment's first box on; up_scales further on those of every other eight of them. */
template <typename Shape>
__device__ __forceinline__ void multiply_held(ring<Shape> &at, uint32_t warpgroup, uint32_t blocks,
                                              const float *scales, uint32_t up_scales,
                                              parts_of<Shape> &sums) {
    static_assert(Shape::BLOCKS == 1 && BOX_GROUPS % 2 == 0, "64 rows of a warpgroup");
    constexpr bool SCALED = Shape::BLOCK_SCALES;
    const uint32_t own = own_quantized(warpgroup);
    group_operands quantized, held[2];
    float chain[Shape::SUMS], scale[2]; /* of the box at work; SCALED */
    auto add_chain = [&] {
        rp_wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < Shape::SUMS; i++)
            sums[0][i] = __fmaf_rn(chain[i], scale[i / 2 % 2], sums[0][i]);
    };
#pragma unroll
    for (int i = 0; i < (SCALED ? Shape::SUMS : 0); i++)
        sums[0][i] = 0.0f;
    ring<Shape> before = at;
    rp_barrier_wait(at.landed_barrier(), at.phase);
    load_group(at.weights(0) + own, 0, quantized);
    for (uint32_t k = 0; k < blocks; k += Shape::BOXES) {
        ring<Shape> after = at;
        after.next();
        rp_barrier_wait(at.full_barrier(), at.phase);
#pragma unroll
        for (int box = 0; box < Shape::BOXES; box++) {
            if (box > 0 && k + box >= blocks)
                break;
#pragma unroll
            for (int group = 0; group < BOX_GROUPS; group++) {
                convert_group<Shape>(quantized, held[group % 2]);
                if (SCALED && group == 0) {
                    if ((k | box) != 0)
                        add_chain();
                    scale[0] = __ldg(scales + k + box);
                    scale[1] = __ldg(scales + up_scales + k + box);
                }
                multiply_group<Shape>(held[group % 2], at.tokens(box), group,
                                      !SCALED && (k | box) != 0, SCALED ? chain : sums[0]);
                if (group + 1 < BOX_GROUPS) {
                    load_group(at.weights(box) + own, group + 1, quantized);
                } else if (box + 1 < Shape::BOXES && k + box + 1 < blocks) {
                    load_group(at.weights(box + 1) + own, 0, quantized);
                } else if (k + Shape::BOXES < blocks) {
                    rp_barrier_wait(after.landed_barrier(), after.phase);
                    load_group(after.weights(0) + own, 0, quantized);
                }
                rp_wgmma_wait<1>();
                if (group == 0 && box == 0 && k > 0) { /* its last group is done */
                    free_stage(before);
                    before.next();
                }
            }
        }
        at = after;
    }
    if (SCALED)
        add_chain();
    else
        rp_wgmma_wait<0>();
    free_stage(before);
}

/* Two steps' columns of eight tokens, as mma.sync wants its right operand. */
__device__ __forceinline__ void load_tokens(uint32_t from, uint32_t (&b)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(from)
                 : "memory");
}

/* d += 16 rows of weights * 8 tokens, of 16 columns. */
__device__ __forceinline__ void multiply_step(float *d, const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* A group by eight tokens after the other. tokens: of its 64 columns. */
template <typename Shape>
__device__ __forceinline__ void multiply_group_by_warp(const group_operands &held, uint32_t tokens,
                                                       float (&sums)[Shape::SUMS]) {
    /* Lane l names row l % 8 of matrix l / 8, which is 8 columns: sixteen bytes, swizzled. */
    uint32_t lane = threadIdx.x % 32, own = lane % 8 * 128 + (lane / 8 ^ lane % 8) * 16;
#pragma unroll
    for (int first = 0; first < Shape::TOKENS; first += 8)
#pragma unroll
        for (int step = 0; step < GROUP_STEPS; step += 2) {
            uint32_t b[4];
            load_tokens(tokens + first * 128 + (own ^ step * 32), b);
            multiply_step(&sums[first / 2], held[step], b[0], b[1]);
            multiply_step(&sums[first / 2], held[step + 1], b[2], b[3]);
        }
}

/* The same as multiply_held, warp by warp. */
template <typename Shape>
__device__ __forceinline__ void multiply_by_warps(ring<Shape> &at, uint32_t warpgroup,
                                                  uint32_t blocks, const float *scales,
                                                  uint32_t up_scales, parts_of<Shape> &sums) {
    static_assert(Shape::BLOCKS == 1 && GROUP_STEPS == 4, "a group is a box of tokens");
    constexpr bool SCALED = Shape::BLOCK_SCALES;
    const uint32_t own = own_quantized(warpgroup);
#pragma unroll
    for (int i = 0; i < Shape::SUMS; i++)
        sums[0][i] = 0.0f;
    for (uint32_t k = 0; k < blocks; k += Shape::BOXES) {
        group_operands quantized[2], held;
        rp_barrier_wait(at.landed_barrier(), at.phase);
        load_group(at.weights(0) + own, 0, quantized[0]);
        rp_barrier_wait(at.full_barrier(), at.phase);
#pragma unroll
        for (int box = 0; box < Shape::BOXES; box++) {
            if (box > 0 && k + box >= blocks)
                break;
            float chain[Shape::SUMS] = {};
#pragma unroll
            for (int group = 0; group < BOX_GROUPS; group++) {
                if (group + 1 < BOX_GROUPS)
                    load_group(at.weights(box) + own, group + 1, quantized[(group + 1) % 2]);
                else if (box + 1 < Shape::BOXES && k + box + 1 < blocks)
                    load_group(at.weights(box + 1) + own, 0, quantized[0]);
                convert_group<Shape>(quantized[group % 2], held);
                multiply_group_by_warp<Shape>(held, at.tokens(box) + group * Shape::TOKEN_BOX_BYTES,
                                              SCALED ? chain : sums[0]);
            }
            if constexpr (SCALED) {
                float scale[2] = {__ldg(scales + k + box), __ldg(scales + up_scales + k + box)};
#pragma unroll
                for (int i = 0; i < Shape::SUMS; i++)
                    sums[0][i] = __fmaf_rn(chain[i], scale[i / 2 % 2], sums[0][i]);
            }
        }
        __syncwarp();
        free_stage(at);
        at.next();
    }
}

/* Stages of this many tokens have so many boxes; tiles of 128 outputs. */
constexpr int held_boxes(int tokens) { return tokens <= 32 ? 2 : 1; }

} // namespace

#endif
