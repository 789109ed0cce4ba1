/* matmul_wgmma.cuh - wgmma m64nN: d (64, N) += or = a (64, 32 bytes) * b (N, 32 bytes)^T, both in
 * shared memory, K-major; or a of bf16 in registers. One specialization per width and type: the
 * instruction names every register.
 *
 *   RP_WGMMA_BF16  16 columns of K, sums f32
 *   RP_WGMMA_FP8   32 columns of e4m3; sums f32, which the tensor cores keep to few bits within a chain
 *                  (tests/gpu/test_numerics_probe)
 *   RP_WGMMA_INT8  32 columns; sums int32, exact
 *
 * The byte layout is the same for all three, so code that counts K in boxes of 128 bytes is
 * independent of the type.
 *
 *   RP_WGMMA_FP8_BF16, RP_WGMMA_INT8_BF16  quantized values that a kernel makes bf16 of in registers, by columns in bf16: the bits
 *                                          of RP_WGMMA_BF16 (rp_wgmma_held; tests/gpu/test_numerics_probe)
 *
 * Thread t of the warpgroup holds d[row][col] for row = 16 * (t / 32) + (t % 32) / 4 (+ 8) and col
 * = 8 * j + 2 * (t % 4) (+ 1) in d[4 * j + {0: row, col; 1: col + 1; 2: row + 8; 3: both}]. Of a in
 * registers it has four pairs of columns k, k + 1, the first in the lower half: row, k = 2 * (t %
 * 4) in a[0]; row + 8 in a[1]; k + 8 in a[2]; both in a[3]. */
#ifndef RP_QUANT_MATMUL_WGMMA_CUH
#define RP_QUANT_MATMUL_WGMMA_CUH

#include <stdint.h>

enum rp_wgmma_type {
    RP_WGMMA_BF16,
    RP_WGMMA_FP8,
    RP_WGMMA_INT8,
    RP_WGMMA_FP8_BF16,
    RP_WGMMA_INT8_BF16
};

template <rp_wgmma_type TYPE> struct rp_wgmma_sum { using type = float; };
template <> struct rp_wgmma_sum<RP_WGMMA_INT8> { using type = int32_t; };

template <int N, rp_wgmma_type TYPE = RP_WGMMA_BF16> struct rp_wgmma;
template <int N> struct rp_wgmma_held; /* of bf16, a in registers */

/* clang-format off */
/* Registers of the first 8, 16, 24 ... columns: their operands, and their names in the text. */
#define RP_WGMMA_REGS_8(C) C(d[0]), C(d[1]), C(d[2]), C(d[3])
#define RP_WGMMA_TEXT_8 "%0, %1, %2, %3"
#define RP_WGMMA_REGS_16(C) RP_WGMMA_REGS_8(C), \
    C(d[4]), C(d[5]), C(d[6]), C(d[7])
#define RP_WGMMA_TEXT_16 RP_WGMMA_TEXT_8 \
    ", %4, %5, %6, %7"
#define RP_WGMMA_REGS_32(C) RP_WGMMA_REGS_16(C), \
    C(d[8]), C(d[9]), C(d[10]), C(d[11]), C(d[12]), C(d[13]), C(d[14]), C(d[15])
#define RP_WGMMA_TEXT_32 RP_WGMMA_TEXT_16 \
    ", %8, %9, %10, %11, %12, %13, %14, %15"
#define RP_WGMMA_REGS_64(C) RP_WGMMA_REGS_32(C), \
    C(d[16]), C(d[17]), C(d[18]), C(d[19]), C(d[20]), C(d[21]), C(d[22]), C(d[23]), \
    C(d[24]), C(d[25]), C(d[26]), C(d[27]), C(d[28]), C(d[29]), C(d[30]), C(d[31])
#define RP_WGMMA_TEXT_64 RP_WGMMA_TEXT_32 \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define RP_WGMMA_REGS_96(C) RP_WGMMA_REGS_64(C), \
    C(d[32]), C(d[33]), C(d[34]), C(d[35]), C(d[36]), C(d[37]), C(d[38]), C(d[39]), \
    C(d[40]), C(d[41]), C(d[42]), C(d[43]), C(d[44]), C(d[45]), C(d[46]), C(d[47])
#define RP_WGMMA_TEXT_96 RP_WGMMA_TEXT_64 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define RP_WGMMA_REGS_112(C) RP_WGMMA_REGS_96(C), \
    C(d[48]), C(d[49]), C(d[50]), C(d[51]), C(d[52]), C(d[53]), C(d[54]), C(d[55])
#define RP_WGMMA_TEXT_112 RP_WGMMA_TEXT_96 \
    ", %48, %49, %50, %51, %52, %53, %54, %55"
#define RP_WGMMA_REGS_128(C) RP_WGMMA_REGS_112(C), \
    C(d[56]), C(d[57]), C(d[58]), C(d[59]), C(d[60]), C(d[61]), C(d[62]), C(d[63])
#define RP_WGMMA_TEXT_128 RP_WGMMA_TEXT_112 \
    ", %56, %57, %58, %59, %60, %61, %62, %63"
#define RP_WGMMA_REGS_144(C) RP_WGMMA_REGS_128(C), \
    C(d[64]), C(d[65]), C(d[66]), C(d[67]), C(d[68]), C(d[69]), C(d[70]), C(d[71])
#define RP_WGMMA_TEXT_144 RP_WGMMA_TEXT_128 \
    ", %64, %65, %66, %67, %68, %69, %70, %71"
#define RP_WGMMA_REGS_160(C) RP_WGMMA_REGS_144(C), \
    C(d[72]), C(d[73]), C(d[74]), C(d[75]), C(d[76]), C(d[77]), C(d[78]), C(d[79])
#define RP_WGMMA_TEXT_160 RP_WGMMA_TEXT_144 \
    ", %72, %73, %74, %75, %76, %77, %78, %79"
#define RP_WGMMA_REGS_176(C) RP_WGMMA_REGS_160(C), \
    C(d[80]), C(d[81]), C(d[82]), C(d[83]), C(d[84]), C(d[85]), C(d[86]), C(d[87])
#define RP_WGMMA_TEXT_176 RP_WGMMA_TEXT_160 \
    ", %80, %81, %82, %83, %84, %85, %86, %87"
#define RP_WGMMA_REGS_192(C) RP_WGMMA_REGS_128(C), \
    C(d[64]), C(d[65]), C(d[66]), C(d[67]), C(d[68]), C(d[69]), C(d[70]), C(d[71]), \
    C(d[72]), C(d[73]), C(d[74]), C(d[75]), C(d[76]), C(d[77]), C(d[78]), C(d[79]), \
    C(d[80]), C(d[81]), C(d[82]), C(d[83]), C(d[84]), C(d[85]), C(d[86]), C(d[87]), \
    C(d[88]), C(d[89]), C(d[90]), C(d[91]), C(d[92]), C(d[93]), C(d[94]), C(d[95])
#define RP_WGMMA_TEXT_192 RP_WGMMA_TEXT_128 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define RP_WGMMA_REGS_224(C) RP_WGMMA_REGS_192(C), \
    C(d[96]), C(d[97]), C(d[98]), C(d[99]), C(d[100]), C(d[101]), C(d[102]), C(d[103]), \
    C(d[104]), C(d[105]), C(d[106]), C(d[107]), C(d[108]), C(d[109]), C(d[110]), C(d[111])
#define RP_WGMMA_TEXT_224 RP_WGMMA_TEXT_192 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define RP_WGMMA_REGS_256(C) RP_WGMMA_REGS_224(C), \
    C(d[112]), C(d[113]), C(d[114]), C(d[115]), C(d[116]), C(d[117]), C(d[118]), C(d[119]), \
    C(d[120]), C(d[121]), C(d[122]), C(d[123]), C(d[124]), C(d[125]), C(d[126]), C(d[127])
#define RP_WGMMA_TEXT_256 RP_WGMMA_TEXT_224 \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define RP_WGMMA_F32(r) "+f"(r)
#define RP_WGMMA_S32(r) "+r"(r)

/* a, b, p: numbers of the operands that follow the accumulator registers. end: suffix of the
 * instruction that follows the predicate. */
#define RP_WGMMA_DEFINE(n, wgmma_type, shape, end, constraint, a_at, b_at, add_at)                  \
    template <> struct rp_wgmma<n, wgmma_type> {                                                    \
        static __device__ __forceinline__ void                                                      \
        run(rp_wgmma_sum<wgmma_type>::type (&d)[n / 2], uint64_t a, uint64_t b, uint32_t add) {     \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_at ", 0;"                          \
                         "wgmma.mma_async.sync.aligned.m64n" #n shape " {"                          \
                         RP_WGMMA_TEXT_##n "}, %" #a_at ", %" #b_at ", p" end "; }"                 \
                         : RP_WGMMA_REGS_##n(constraint)                                            \
                         : "l"(a), "l"(b), "r"(add));                                               \
        }                                                                                           \
    };
#define RP_WGMMA_ALL(n, a, b, add)                                                                  \
    RP_WGMMA_DEFINE(n, RP_WGMMA_BF16, "k16.f32.bf16.bf16", ", 1, 1, 0, 0", RP_WGMMA_F32, a, b, add) \
    RP_WGMMA_DEFINE(n, RP_WGMMA_FP8, "k32.f32.e4m3.e4m3", ", 1, 1", RP_WGMMA_F32, a, b, add)        \
    RP_WGMMA_DEFINE(n, RP_WGMMA_INT8, "k32.s32.s8.s8", "", RP_WGMMA_S32, a, b, add)

RP_WGMMA_ALL(8, 4, 5, 6)
RP_WGMMA_ALL(16, 8, 9, 10)
RP_WGMMA_ALL(32, 16, 17, 18)
RP_WGMMA_ALL(64, 32, 33, 34)
RP_WGMMA_ALL(96, 48, 49, 50)
RP_WGMMA_ALL(112, 56, 57, 58)
RP_WGMMA_ALL(128, 64, 65, 66)
RP_WGMMA_ALL(144, 72, 73, 74)
RP_WGMMA_ALL(160, 80, 81, 82)
RP_WGMMA_ALL(176, 88, 89, 90)
RP_WGMMA_ALL(192, 96, 97, 98)
RP_WGMMA_ALL(224, 112, 113, 114)
RP_WGMMA_ALL(256, 128, 129, 130)

/* a0 ... a3, b, p: as above. */
#define RP_WGMMA_HELD(n, a0_at, a1_at, a2_at, a3_at, b_at, add_at)                                  \
    template <> struct rp_wgmma_held<n> {                                                           \
        static __device__ __forceinline__ void                                                      \
        run(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b, uint32_t add) {                  \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_at ", 0;"                          \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {"               \
                         RP_WGMMA_TEXT_##n "}, {%" #a0_at ", %" #a1_at ", %" #a2_at ", %" #a3_at    \
                         "}, %" #b_at ", p, 1, 1, 0; }"                                             \
                         : RP_WGMMA_REGS_##n(RP_WGMMA_F32)                                          \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));           \
        }                                                                                           \
    };
RP_WGMMA_HELD(8, 4, 5, 6, 7, 8, 9)
RP_WGMMA_HELD(16, 8, 9, 10, 11, 12, 13)
RP_WGMMA_HELD(32, 16, 17, 18, 19, 20, 21)
RP_WGMMA_HELD(64, 32, 33, 34, 35, 36, 37)
RP_WGMMA_HELD(128, 64, 65, 66, 67, 68, 69)
RP_WGMMA_HELD(192, 96, 97, 98, 99, 100, 101)
/* clang-format on */

#endif
