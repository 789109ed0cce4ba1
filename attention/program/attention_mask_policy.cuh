/* attention_mask_policy.cuh - the mask interface of the kernels, as a template parameter.
 *
 *   plain_mask<Capped>   causal, within a window; scores optionally capped. The window is data.
 *   program_mask         a program (mask_source.h), compiled when a model is loaded
 *   (attention_program.cuh);
 *                        the planner has made lists of the blocks of keys that are not skipped.
 *
 * Parameters of a program are in the row's slot; a kernel first copies them to registers or shared
 * memory. */
#ifndef RP_ATTENTION_ATTENTION_MASK_POLICY_CUH
#define RP_ATTENTION_ATTENTION_MASK_POLICY_CUH

#include "attention/attention_internal_cuda.h"
#include "device/cuda_kernel.cuh"

/* tanh x = x (1 + term x^2 + term x^4 + ...), within 3e-7 of small x: most scores are small beside
 * their cap. */
#define RP_TANH_SMALL 0.6f
#define RP_TANH_TERMS -3.333324517e-1f, 1.332546094e-1f, -5.284792290e-2f, 1.657798965e-2f

static __device__ __forceinline__ float rp_tanh_small(float x) {
    constexpr float terms[4] = {RP_TANH_TERMS};
    float z = x * x;
    float sum = __fmaf_rn(z, terms[3], terms[2]);
    sum = __fmaf_rn(z, sum, terms[1]);
    sum = __fmaf_rn(z, sum, terms[0]);
    return __fmaf_rn(z * x, sum, x);
}

/* 1 - 2 / (e^2x + 1), for x that are not. */
static __device__ __forceinline__ float rp_tanh_large(float x) {
    float power, inverse, y = fabsf(x) * (2 * 1.44269504088896340736f);
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(y));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1.0f));
    return copysignf(__fmaf_rn(-2.0f, inverse, 1.0f), x);
}

/* Its bits depend only on x. NaN is preserved. */
static __device__ __forceinline__ float rp_tanh(float x) {
    float small = rp_tanh_small(x), large = rp_tanh_large(x); /* both computed, no branch */
    return fabsf(x) < RP_TANH_SMALL ? small : large;
}

template <bool Capped> struct plain_mask {
    static constexpr bool is_program = false, is_capped = Capped, has_score = false,
                          reads_head = false, is_causal = true;
    static constexpr int param_count = 0;
};

/* A program's parameters, copied for fast access. */
template <typename Mask> struct mask_params {
    int32_t value[Mask::param_count ? Mask::param_count : 1];

    /* Bypasses L1: the caller may run before the grid dependency wait (cuda_launch.h). */
    __device__ __forceinline__ void load(const uint32_t *slot) {
#pragma unroll
        for (int i = 0; i < Mask::param_count; i++)
            value[i] = (int32_t)__ldcg(slot + RP_SLOT_MASK_PARAMS + i);
    }
};

#ifdef RP_MASK_PROGRAM /* how its text is included */
/* a / b rounded to nearest through a reciprocal, which is folded when b is a constant (Markstein
 * 1990): the bits of __fdiv_rn within 2^100 and its inverse. */
static __device__ __forceinline__ float rp_divide(float a, float b) {
    float inverse = __frcp_rn(b), quotient = a * inverse;
    float rest = __fmaf_rn(-quotient, b, a), better = __fmaf_rn(rest, inverse, quotient);
    return fabsf(a) < 0x1p100f ? better : quotient;
}

/* The program's text is included here with our tanhf and division. */
#define tanhf              rp_tanh
#define __fdiv_rn          rp_divide
#define RP_MASK_SEARCH_MAX 0 /* intervals only: searching pairs is too slow for one lane */
namespace program_text {
#include RP_MASK_PROGRAM
}
#undef tanhf
#undef __fdiv_rn
/* What the program calls head 0 of this GPU: a rank of a group has some of the heads. */
#ifndef RP_MASK_FIRST_HEAD
#define RP_MASK_FIRST_HEAD 0
#endif

struct program_mask {
    static constexpr bool is_program = true, is_capped = false, has_score = RP_MASK_HAS_SCORE != 0,
                          reads_head = RP_MASK_READS_HEAD != 0, is_causal = RP_MASK_CAUSAL != 0;
    static constexpr bool is_short =
        RP_PROGRAM_IS_SHORT != 0; /* evaluating a pair takes a few instructions */
    static constexpr int param_count = RP_MASK_PARAMS;

    static __device__ __forceinline__ bool sees(uint32_t q, uint32_t kv, uint32_t h,
                                                const int32_t *params) {
        return program_text::rp_mask_sees((int)q, (int)kv, RP_MASK_FIRST_HEAD + (int)h, params) !=
               0;
    }
    static __device__ __forceinline__ float score(float score, uint32_t q, uint32_t kv, uint32_t h,
                                                  const int32_t *params) {
        return program_text::rp_mask_score(score, (int)q, (int)kv, RP_MASK_FIRST_HEAD + (int)h,
                                           params);
    }
    /* Class of queries [q, q + queries), keys [kv, kv_end) and heads [h, h + heads). */
    static __device__ __forceinline__ int classify(uint32_t q, uint32_t queries, uint32_t kv,
                                                   uint32_t kv_end, uint32_t h, uint32_t heads,
                                                   const int32_t *params) {
        return program_text::rp_mask_classify((int)q, (int)(q + queries), (int)kv, (int)kv_end,
                                              RP_MASK_FIRST_HEAD + (int)h,
                                              RP_MASK_FIRST_HEAD + (int)(h + heads), params);
    }
    /* Whether some query of [q, q + queries) sees the key with some head of [h, h + heads). For a
     * causal mask or a window it suffices to test the ends. */
    static __device__ __forceinline__ bool any_sees(uint32_t q, uint32_t queries, uint32_t kv,
                                                    uint32_t h, uint32_t heads,
                                                    const int32_t *params) {
        bool seen = sees(q + queries - 1, kv, h, params) || sees(q, kv, h, params);
        if (seen || (queries == 1 && !reads_head))
            return seen;
        int all = classify(q, queries, kv, kv + 1, h, heads, params);
        if (all != RP_MASK_PARTIAL)
            return all == RP_MASK_FULL;
        for (uint32_t i = 0; i < (reads_head ? heads : 1u) && !seen; i++)
            for (uint32_t j = 0; j < queries && !seen; j++)
                seen = sees(q + j, kv, h + i, params);
        return seen;
    }
};
#endif

#endif
