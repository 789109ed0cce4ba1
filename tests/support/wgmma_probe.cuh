/* wgmma_probe.cuh - one wgmma of every width that the probe compares, and the matching mma.sync.
 *
 * wgmma_chain<KIND, N, FROM_REGISTERS>(...) is one instruction of 64 rows, N columns and 32 bytes
 * of K; the sums of a thread are d[N / 2], laid out as in the PTX manual: d[4 * j + i] of thread t
 * is
 *   row 16 * (t / 32) + t % 32 / 4 + 8 * (i / 2), column 8 * j + 2 * (t % 4) + i % 2. */
#ifndef RP_TESTS_SUPPORT_WGMMA_PROBE_CUH
#define RP_TESTS_SUPPORT_WGMMA_PROBE_CUH

#include <stdint.h>

enum probe_kind { PROBE_BF16, PROBE_FP8, PROBE_INT8 };

template <probe_kind KIND> struct probe_sum { using type = float; };
template <> struct probe_sum<PROBE_INT8> { using type = int; };

/* Operand numbers of the sums in the instruction's text, and the sums, as lists of all lengths. */
#define PROBE_TEXT_4  "%0,%1,%2,%3"
#define PROBE_TEXT_8  PROBE_TEXT_4 ",%4,%5,%6,%7"
#define PROBE_TEXT_12 PROBE_TEXT_8 ",%8,%9,%10,%11"
#define PROBE_TEXT_16 PROBE_TEXT_12 ",%12,%13,%14,%15"
#define PROBE_TEXT_24 PROBE_TEXT_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define PROBE_TEXT_32 PROBE_TEXT_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define PROBE_TEXT_48                                                                              \
    PROBE_TEXT_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define PROBE_TEXT_56 PROBE_TEXT_48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define PROBE_TEXT_64                                                                              \
    PROBE_TEXT_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PROBE_TEXT_80                                                                              \
    PROBE_TEXT_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define PROBE_TEXT_96                                                                              \
    PROBE_TEXT_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define PROBE_TEXT_112                                                                             \
    PROBE_TEXT_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define PROBE_TEXT_128                                                                             \
    PROBE_TEXT_112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126"   \
                   ",%127"

#define PROBE_SUMS_AT(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define PROBE_SUMS_4(c)     PROBE_SUMS_AT(c, 0)
#define PROBE_SUMS_8(c)     PROBE_SUMS_4(c), PROBE_SUMS_AT(c, 4)
#define PROBE_SUMS_12(c)    PROBE_SUMS_8(c), PROBE_SUMS_AT(c, 8)
#define PROBE_SUMS_16(c)    PROBE_SUMS_12(c), PROBE_SUMS_AT(c, 12)
#define PROBE_SUMS_24(c)    PROBE_SUMS_16(c), PROBE_SUMS_AT(c, 16), PROBE_SUMS_AT(c, 20)
#define PROBE_SUMS_32(c)    PROBE_SUMS_24(c), PROBE_SUMS_AT(c, 24), PROBE_SUMS_AT(c, 28)
#define PROBE_SUMS_16_AT(c, i)                                                                     \
    PROBE_SUMS_AT(c, i), PROBE_SUMS_AT(c, i + 4), PROBE_SUMS_AT(c, i + 8), PROBE_SUMS_AT(c, i + 12)
#define PROBE_SUMS_48(c)  PROBE_SUMS_32(c), PROBE_SUMS_16_AT(c, 32)
#define PROBE_SUMS_56(c)  PROBE_SUMS_48(c), PROBE_SUMS_AT(c, 48), PROBE_SUMS_AT(c, 52)
#define PROBE_SUMS_64(c)  PROBE_SUMS_48(c), PROBE_SUMS_16_AT(c, 48)
#define PROBE_SUMS_80(c)  PROBE_SUMS_64(c), PROBE_SUMS_16_AT(c, 64)
#define PROBE_SUMS_96(c)  PROBE_SUMS_80(c), PROBE_SUMS_16_AT(c, 80)
#define PROBE_SUMS_112(c) PROBE_SUMS_96(c), PROBE_SUMS_16_AT(c, 96)
#define PROBE_SUMS_128(c) PROBE_SUMS_112(c), PROBE_SUMS_16_AT(c, 112)

#define PROBE_FLOAT(x) "+f"(x)
#define PROBE_INT(x)   "+r"(x)

/* `sums` is N / 2; o0 to o5 are the numbers of the operands after the sums. */
#define PROBE_ONE(n, sums, o0, o1, o2, o3, o4, o5, shape, types, scales_s, scales_r, c)            \
    if constexpr (N == n) {                                                                        \
        if constexpr (FROM_REGISTERS)                                                              \
            asm volatile("{.reg .pred p; setp.ne.b32 p, " o5 ", 0;\n"                              \
                         "wgmma.mma_async.sync.aligned.m64n" #n shape types " {" PROBE_TEXT_##sums \
                         "}, {" o0 "," o1 "," o2 "," o3 "}, " o4 ", p" scales_r ";}\n"             \
                         : PROBE_SUMS_##sums(c)                                                    \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_desc), "r"(add));     \
        else                                                                                       \
            asm volatile("{.reg .pred p; setp.ne.b32 p, " o2 ", 0;\n"                              \
                         "wgmma.mma_async.sync.aligned.m64n" #n shape types " {" PROBE_TEXT_##sums \
                         "}, " o0 ", " o1 ", p" scales_s ";}\n"                                    \
                         : PROBE_SUMS_##sums(c)                                                    \
                         : "l"(a_desc), "l"(b_desc), "r"(add));                                    \
    }

#define PROBE_ALL(shape, types, scales_s, scales_r, c)                                             \
    PROBE_ONE(8, 4, "%4", "%5", "%6", "%7", "%8", "%9", shape, types, scales_s, scales_r, c)       \
    PROBE_ONE(16, 8, "%8", "%9", "%10", "%11", "%12", "%13", shape, types, scales_s, scales_r, c)  \
    PROBE_ONE(24, 12, "%12", "%13", "%14", "%15", "%16", "%17", shape, types, scales_s, scales_r,  \
              c)                                                                                   \
    PROBE_ONE(32, 16, "%16", "%17", "%18", "%19", "%20", "%21", shape, types, scales_s, scales_r,  \
              c)                                                                                   \
    PROBE_ONE(48, 24, "%24", "%25", "%26", "%27", "%28", "%29", shape, types, scales_s, scales_r,  \
              c)                                                                                   \
    PROBE_ONE(64, 32, "%32", "%33", "%34", "%35", "%36", "%37", shape, types, scales_s, scales_r,  \
              c)                                                                                   \
    PROBE_ONE(96, 48, "%48", "%49", "%50", "%51", "%52", "%53", shape, types, scales_s, scales_r,  \
              c)                                                                                   \
    PROBE_ONE(112, 56, "%56", "%57", "%58", "%59", "%60", "%61", shape, types, scales_s, scales_r, \
              c)                                                                                   \
    PROBE_ONE(128, 64, "%64", "%65", "%66", "%67", "%68", "%69", shape, types, scales_s, scales_r, \
              c)                                                                                   \
    PROBE_ONE(160, 80, "%80", "%81", "%82", "%83", "%84", "%85", shape, types, scales_s, scales_r, \
              c)                                                                                   \
    PROBE_ONE(192, 96, "%96", "%97", "%98", "%99", "%100", "%101", shape, types, scales_s,         \
              scales_r, c)                                                                         \
    PROBE_ONE(224, 112, "%112", "%113", "%114", "%115", "%116", "%117", shape, types, scales_s,    \
              scales_r, c)                                                                         \
    PROBE_ONE(256, 128, "%128", "%129", "%130", "%131", "%132", "%133", shape, types, scales_s,    \
              scales_r, c)

/* d += A * B^T, or d = A * B^T where add is 0. A from shared memory (a_desc) or from registers
 * (a). */
template <probe_kind KIND, int N, bool FROM_REGISTERS>
__device__ __forceinline__ void wgmma_chain(typename probe_sum<KIND>::type (&d)[N / 2],
                                            const uint32_t (&a)[4], uint64_t a_desc,
                                            uint64_t b_desc, int add) {
    if constexpr (KIND == PROBE_BF16) {
        PROBE_ALL("k16", ".f32.bf16.bf16", ", 1, 1, 0, 0", ", 1, 1, 0", PROBE_FLOAT)
    } else if constexpr (KIND == PROBE_FP8) {
        PROBE_ALL("k32", ".f32.e4m3.e4m3", ", 1, 1", ", 1, 1", PROBE_FLOAT)
    } else {
        PROBE_ALL("k32", ".s32.s8.s8", "", "", PROBE_INT)
    }
}

/* d += A * B^T of 16 rows, 8 columns and 32 bytes of K. */
template <probe_kind KIND>
__device__ __forceinline__ void mma_chain(typename probe_sum<KIND>::type (&d)[4],
                                          const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (KIND == PROBE_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : PROBE_SUMS_4(PROBE_FLOAT)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else if constexpr (KIND == PROBE_FP8)
        asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : PROBE_SUMS_4(PROBE_FLOAT)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : PROBE_SUMS_4(PROBE_INT)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
