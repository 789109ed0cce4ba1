/* attention_tile_cuda.cuh - shared by the prefill kernels: the queries of a tile, the keys visible
 * to them, and the online softmax step. */
#ifndef RP_ATTENTION_ATTENTION_TILE_CUDA_CUH
#define RP_ATTENTION_ATTENTION_TILE_CUDA_CUH

#include "attention/attention_internal_cuda.h"
#include "attention/program/attention_mask_policy.cuh"

#include "device/cuda_kernel.cuh"

#include <math.h>

/* Hopper's kernel, called through rp_attention_prefill_cuda_*: same contract. */
bool rp_attention_prefill_wgmma_cuda_supports(const rp_attention_cuda_config *config);
uint32_t rp_attention_prefill_wgmma_cuda_tile(const rp_attention_cuda_config *config);
bool rp_attention_prefill_wgmma_cuda_pairs(const rp_attention_cuda_config *config);
uint32_t rp_attention_prefill_wgmma_cuda_keys(const rp_attention_cuda_config *config);
int rp_attention_prefill_wgmma_cuda_run(const void *args, cudaStream_t stream);
/* For one page type. */
int rp_attention_prefill_wgmma_int8_cuda_run(const rp_attention_cuda_args *args,
                                             cudaStream_t stream);
int rp_attention_prefill_wgmma_fp8_cuda_run(const rp_attention_cuda_args *args,
                                            cudaStream_t stream);

#define LOG2_E 1.44269504088896340736f

/* A tile of one KV head: `tokens` consecutive tokens of a row times the query heads of the KV head.
 * Tile row m is token m / group and head m % group. */
struct prefill_tile {
    const uint32_t *pages;  /* the layer's page table of its slot */
    const uint32_t *params; /* of the slot's mask program */
    uint32_t token;         /* first, of the step */
    uint32_t tokens;        /* 0: no work */
    uint32_t position;      /* of the first token */
    uint32_t first_key;     /* first key that any row sees; with a program: 0 */
    uint32_t key_end; /* end of the keys that any row sees; with a program: of those that exist */
    uint32_t index;   /* of a program's block bits */
    uint32_t half;    /* of the KV heads */
};

static __device__ __forceinline__ uint32_t first_visible(uint32_t window, uint32_t position) {
    return window != 0 && position >= window ? position + 1 - window : 0;
}

/* The `index`-th tile of the plan; no tokens past the last one. */
template <typename Mask>
static __device__ __forceinline__ prefill_tile find_tile(const rp_attention_cuda_args &call,
                                                         uint32_t index) {
    const rp_attention_cuda_plan_view &plan = call.workspace.plans[call.mask_class];
    prefill_tile tile = {};
    if (index >= plan.head->tiles)
        return tile;
    if constexpr (Mask::is_program)
        index = plan.order[index];
    const rp_attention_plan_tile from = plan.tiles[index];
    const rp_step_view &step = call.args.step;
    const uint32_t *slot = step.slots + (size_t)from.slot * step.slot_words;
    tile.pages = slot + RP_SLOT_PAGES + call.args.table;
    tile.params = slot + RP_SLOT_MASK_PARAMS;
    tile.token = from.token;
    tile.tokens = from.count;
    tile.position = from.position;
    tile.half = from.half;
    if constexpr (Mask::is_program) {
        tile.index = index;
        tile.key_end = plan.bounds[index * 2];
    } else {
        tile.first_key = first_visible(call.args.window, from.position);
        tile.key_end = from.position + from.count;
    }
    return tile;
}

/* 2^x; 0 at -infinity, exactly 1 at 0. */
static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&pair;
}

/* Stores two neighboring columns of the output; one wide store where alignment allows it. */
static __device__ __forceinline__ void store_pair(void *out, rp_dtype dtype, size_t at, bool wide,
                                                  float low, float high) {
    if (!wide) {
        rp_store(out, dtype, at, low);
        rp_store(out, dtype, at + 1, high);
    } else if (dtype == RP_DTYPE_F32) {
        *(float2 *)((float *)out + at) = make_float2(low, high);
    } else {
        *(uint32_t *)((__nv_bfloat16 *)out + at) = pack_bf16(low, high);
    }
}

static __device__ __forceinline__ bool pairs_are_aligned(const rp_attention_args &args) {
    return args.out_stride % 2 == 0 && (uintptr_t)args.out % 8 == 0;
}

/* The state of a thread's two rows (lane / 4, and 8 below). */
struct softmax_state {
    float max[2], sum[2]; /* sum: over this lane's columns only */
    uint32_t position[2], first[2];
    uint32_t head[2]; /* read only by programs that use h */
};

/* Factor applied to scores before exp2, including log2 e. */
template <typename Mask>
static __device__ __forceinline__ float factor_of(const rp_attention_args &args) {
    return (Mask::has_score ? 1.0f : Mask::is_capped ? args.soft_cap : args.scale) * LOG2_E;
}

/* Nothing seen yet. row: the first of the thread's two, in the tile. */
static __device__ __forceinline__ softmax_state begin_rows(const rp_attention_args &args,
                                                           const prefill_tile &tile, uint32_t row,
                                                           uint32_t group, uint32_t kv_head) {
    softmax_state state;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        /* Rows without a token repeat the last one; their result is not stored. */
        uint32_t token = min((row + half * 8) / group, tile.tokens - 1);
        state.max[half] = -INFINITY;
        state.sum[half] = 0.0f;
        state.position[half] = tile.position + token;
        state.first[half] = first_visible(args.window, tile.position + token);
        state.head[half] = kv_head * group + (row + half * 8) % group;
    }
    return state;
}

/* Scores become tanh(in * score). */
template <int N> static __device__ __forceinline__ void cap_scores(float (&s)[N][4], float in) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = rp_tanh(s[n][i] * in);
}

/* log2 e * cap * tanh(score * scale / cap), as a polynomial for small scores. No offset is needed
 * where 2^ of the largest and of the smallest score are well within the range of f32. */
struct capped_powers {
    float a[5];      /* score * (a[0] + a[1] score^2 + ... + a[4] score^8) */
    float small;     /* below it */
    float in, out;   /* else out * tanh(in * score) */
    bool is_bounded; /* else softmax subtracts the maximum */
};

/* Weights of a block without an offset: no maximum, no rescaling. Small: all scores are small. */
template <bool Masked, bool Small, int N>
static __device__ __forceinline__ void bounded_weights(float (&s)[N][4], softmax_state &state,
                                                       uint32_t key, const capped_powers &cap) {
    uint32_t column = key + threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = s[n][half * 2 + i];
                uint32_t at = column + n * 8 + i;
                float z = x * x, y = __fmaf_rn(z, cap.a[4], cap.a[3]);
                y = __fmaf_rn(z, y, cap.a[2]);
                y = __fmaf_rn(z, y, cap.a[1]);
                y = __fmaf_rn(z, y, cap.a[0]);
                y *= x;
                if (!Small) {
                    float large = cap.out * rp_tanh_large(cap.in * x);
                    y = fabsf(x) < cap.small ? y : large;
                }
                x = exp2_fast(y);
                if (Masked && (at > state.position[half] || at < state.first[half]))
                    x = 0.0f;
                sum += x;
            }
        state.sum[half] += sum;
    }
}

/* full: every pair is visible. The branch affects only speed. */
template <int N>
static __device__ __forceinline__ void bounded_step(float (&s)[N][4], softmax_state &state,
                                                    uint32_t key, bool full,
                                                    const capped_powers &cap) {
    float largest = 0.0f;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            largest = fmaxf(largest, fabsf(s[n][i]));
    if (__any_sync(0xFFFFFFFFu, !(largest < cap.small)))
        bounded_weights<true, false>(s, state, key, cap);
    else if (full)
        bounded_weights<false, true>(s, state, key, cap);
    else
        bounded_weights<true, true>(s, state, key, cap);
}

#define BLOCK_IS_PARTIAL 1u
#define BLOCK_IS_LAST    2u

/* A block under a mask program: score rules, then the mask where some pairs are masked. */
template <typename Mask, int N>
static __device__ __forceinline__ void
apply_program(float (&s)[N][4], const softmax_state &state, const prefill_tile &tile, uint32_t key,
              bool is_partial, float scale, const int32_t *from) {
    uint32_t column = key + threadIdx.x % 4 * 2;
    int32_t params[Mask::param_count ? Mask::param_count : 1] = {};
    if (!Mask::has_score && !is_partial)
        return;
#pragma unroll
    for (int i = 0; i < Mask::param_count; i++)
        params[i] = from[i];
    if constexpr (Mask::has_score) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] = Mask::score(s[n][i] * scale, state.position[i / 2],
                                      column + n * 8 + i % 2, state.head[i / 2], params);
    }
    if (!is_partial)
        return;
    /* A causal program masks keys after q itself. */
    auto is_seen = [&](int i, uint32_t kv) {
        return (Mask::is_causal || kv < tile.key_end) &&
               Mask::sees(state.position[i / 2], kv, state.head[i / 2], params);
    };
    if constexpr (Mask::is_short) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (!is_seen(i, column + n * 8 + i % 2))
                    s[n][i] = -INFINITY;
        return;
    }
#pragma unroll
    for (int word = 0; word < N / 8; word++) {
        uint32_t bits = 0;
#pragma unroll 1 /* unrolling would inline the program's text 64 times */
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                bits |= (uint32_t)is_seen(i, column + (word * 8 + n) * 8 + i % 2) << (n * 4 + i);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if ((bits >> (n * 4 + i) & 1) == 0)
                    s[word * 8 + n][i] = -INFINITY;
    }
}

/* Applies the mask, converts scores to weights and returns the factor that rescales the earlier
 * sums. */
template <bool Masked, int N>
static __device__ __forceinline__ void softmax_step(float (&s)[N][4], softmax_state &state,
                                                    float (&scale)[2], uint32_t key, float factor) {
    uint32_t column = key + threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float max = state.max[half];
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = s[n][half * 2 + i];
                uint32_t at = column + n * 8 + i;
                if (Masked && (at > state.position[half] || at < state.first[half]))
                    x = -INFINITY;
                max = fmaxf(max, x);
            }
        max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, 1));
        max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, 2));
        /* No key seen yet: any finite maximum will do, since every weight is 0. */
        float offset = max == -INFINITY ? 0.0f : max * factor;
        scale[half] = exp2_fast(__fmaf_rn(state.max[half], factor, -offset));
        if (max == state.max[half])
            scale[half] = 1.0f;
        state.max[half] = max;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = s[n][half * 2 + i];
                x = exp2_fast(__fmaf_rn(x, factor, -offset));
                sum += x;
            }
        state.sum[half] = __fmaf_rn(state.sum[half], scale[half], sum);
    }
}

/* Reduces over all columns of a row, held by a quad of lanes. */
static __device__ __forceinline__ float row_sum(const softmax_state &state, int half) {
    float sum = state.sum[half];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    return sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
}

/* What a row's sums of weights times values are multiplied by: 1 / the sum of the weights, which a
 * sink joins. With a program a row may see nothing: its output is zeros. max: its maximum, or
 * -infinity where nothing was subtracted from the scores. row: in the tile. */
template <typename Mask>
static __device__ __forceinline__ float inverse_of(const rp_attention_args &args, float max,
                                                   float sum, uint32_t kv_head, uint32_t row,
                                                   uint32_t group) {
    if (args.sinks) {
        const float sink = args.sinks[kv_head * group + row % group] * LOG2_E;
        const float offset = max == -INFINITY ? 0.0f : max * factor_of<Mask>(args);
        const float larger = fmaxf(offset, sink), fade = exp2_fast(offset - larger);
        const float total = __fmaf_rn(sum, fade, exp2_fast(sink - larger));
        return Mask::is_program && total == 0.0f ? 0.0f : fade / total;
    }
    return Mask::is_program && sum == 0.0f ? 0.0f : 1.0f / sum;
}

/* Divides by the sums and stores the rows that have a token. */
template <int D, typename Mask>
static __device__ __forceinline__ void
store_rows(const float (&o)[D / 8][4], const softmax_state &state, const rp_attention_args &args,
           const prefill_tile &tile, uint32_t kv_head, uint32_t first_row, uint32_t group) {
    uint32_t lane = threadIdx.x % 32;
    bool wide = pairs_are_aligned(args);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = row_sum(state, half);
        uint32_t row = first_row + half * 8, token = row / group;
        if (token >= tile.tokens)
            continue;
        float inverse = inverse_of<Mask>(args, state.max[half], sum, kv_head, row, group);
        size_t at = (size_t)(tile.token + token) * args.out_stride +
                    (size_t)(kv_head * group + row % group) * D + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            store_pair(args.out, args.out_dtype, at + n * 8, wide, o[n][half * 2] * inverse,
                       o[n][half * 2 + 1] * inverse);
    }
}

#endif
