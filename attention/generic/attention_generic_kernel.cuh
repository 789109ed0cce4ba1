/* attention_generic_kernel.cuh - attention of any shape: the kernel of
 * attention_generic_cuda.cu. */
#ifndef RP_ATTENTION_ATTENTION_GENERIC_KERNEL_CUH
#define RP_ATTENTION_ATTENTION_GENERIC_KERNEL_CUH

#include "attention/attention_internal_cuda.h"
#include "attention/program/attention_mask_policy.cuh"
#include "device/cuda_kernel.cuh"

#include <math.h>

#define WARPS 4

constexpr uint32_t RP_GENERIC_THREADS = WARPS * 32;
/* Kernels are compiled for head dims up to the first and up to the second. */
constexpr uint32_t RP_GENERIC_HEAD_DIM = 256, RP_GENERIC_HEAD_DIM_MAX = RP_ATTENTION_CUDA_DIM_MAX;

struct generic_row {
    const uint32_t *slot, *pages;
    uint32_t first, last; /* keys that it may see */
    uint32_t position, head;
};

/* Returns false when this launch does not compute the token. */
template <typename Mask>
static __device__ __forceinline__ bool find_row(const rp_attention_cuda_args &call, uint32_t token,
                                                generic_row *out) {
    const rp_step_view &step = call.args.step;
    if (token >= step.counts->token_count || step.token_rows[token] == RP_ROW_NONE)
        return false;
    const rp_live_row &row = step.rows[step.token_rows[token]];
    const uint32_t *slot = step.slots + (size_t)row.slot * step.slot_words;
    uint32_t kind = row.flags & RP_ROW_DECODE ? RP_ATTENTION_DECODE_ROWS : RP_ATTENTION_PROMPT_ROWS;
    if ((call.rows & kind) == 0 || (row.flags == 0 && slot[RP_SLOT_FINISHED] != 0))
        return false;
    uint32_t position = step.positions[token], window = call.args.window;
    out->slot = slot;
    out->pages = slot + RP_SLOT_PAGES + call.args.table;
    out->position = out->last = position;
    out->first = window != 0 && position >= window ? position + 1 - window : 0;
    if (Mask::is_program) {
        out->first = 0;
        if (!Mask::is_causal)
            out->last = row.kv_begin + row.token_count - 1;
    }
    return true;
}

template <typename Element> struct wide; /* Loads 16 bytes of a run as f32. */
template <> struct wide<float> {
    static constexpr uint32_t count = 4;
    static __device__ __forceinline__ void load(float *x, const float *from) {
        *(float4 *)x = *(const float4 *)from;
    }
};
template <> struct wide<__nv_bfloat16> {
    static constexpr uint32_t count = 8;
    static __device__ __forceinline__ void load(float *x, const __nv_bfloat16 *from) {
        uint4 raw = *(const uint4 *)from;
        uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[2 * i] = __uint_as_float(words[i] << 16);
            x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
        }
    }
};

/* Quantized values of 8-bit pages, as f32 without their scale. */
struct int8_code {
    int8_t bits;
    __device__ __forceinline__ operator float() const { return (float)bits; }
};
struct fp8_code {
    uint8_t bits;
    __device__ __forceinline__ operator float() const {
        uint32_t rest = bits & 0x7Fu, sign = (bits & 0x80u) << 24;
        /* Exponent and mantissa moved to their f32 positions give the value times 2^-120; denormals
         * too. */
        float value = __uint_as_float(sign | rest << 20) * 0x1p120f;
        return rest == 0x7Fu ? __uint_as_float(0x7FC00000u) : value;
    }
};
template <typename Code> struct wide_quantized {
    static constexpr uint32_t count = 16;
    static __device__ __forceinline__ void load(float *x, const Code *from) {
        union {
            uint4 raw;
            Code quantized[16];
        } both;
        both.raw = *(const uint4 *)from;
#pragma unroll
        for (int i = 0; i < 16; i++)
            x[i] = both.quantized[i];
    }
};
template <> struct wide<int8_code> : wide_quantized<int8_code> {};
template <> struct wide<fp8_code> : wide_quantized<fp8_code> {};
template <typename Element> struct is_quantized {
    static constexpr bool value = sizeof(Element) == 1;
};

/* q.k summed in rising column order however the columns are loaded; for quantized pages without the
 * scale. */
template <typename Element>
static __device__ __forceinline__ float dot(const float *q, const Element *k, uint32_t dim) {
    float sum = 0.0f;
    constexpr uint32_t count = wide<Element>::count;
    uint32_t d = 0;
    if (dim % count == 0)
        for (; d < dim; d += count) {
            float x[count];
            wide<Element>::load(x, k + d);
#pragma unroll
            for (uint32_t i = 0; i < count; i++)
                sum = __fmaf_rn(q[d + i], x[i], sum);
        }
    for (; d < dim; d++)
        sum = __fmaf_rn(q[d], (float)k[d], sum);
    return sum;
}

/* MOST: the largest head dim. */
template <uint32_t MOST> struct generic_state {
    static constexpr uint32_t words = MOST / 32;
    float out[words]; /* columns lane, lane + 32, ... */
    float max, sum;
};

/* The score of a visible key: scaled, then capped or passed through the program's rules. */
template <typename Mask>
static __device__ __forceinline__ float
generic_score(const rp_attention_args &args, const generic_row &row, float product, uint32_t key,
              const mask_params<Mask> &params) {
    float score = __fmul_rn(args.scale, product);
    if constexpr (Mask::has_score)
        score = Mask::score(score, row.position, key, row.head, params.value);
    if constexpr (Mask::is_capped)
        score = __fmul_rn(args.soft_cap, tanhf(score / args.soft_cap));
    return score;
}

/* The warp's blocks of keys. Scales of quantized pages multiply scores and weights in f32. */
template <typename Element, typename Mask, uint32_t MOST>
static __device__ void attend(generic_state<MOST> &state, const rp_attention_args &args,
                              const generic_row &row, const float *q, uint32_t kv_head) {
    const rp_kv_layout &kv = args.kv;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t dim = args.head_dim, shift = 31 - __clz(kv.page_tokens);
    uint32_t value_dim = args.value_dim ? args.value_dim : dim;
    const size_t to_value = kv.latent ? 0 : kv.plane_stride; /* bytes from a K to its V */
    const unsigned char *base =
        kv.base + (size_t)args.layer * 2 * kv.plane_stride + (size_t)kv_head * kv.head_stride;
    uint32_t block = row.first / 32;
    block += (warp - block) % WARPS;
    mask_params<Mask> params;
    params.load(row.slot);
    for (; block <= row.last / 32; block += WARPS) {
        uint32_t key = block * 32 + lane;
        bool is_seen = key >= row.first && key <= row.last;
        if constexpr (Mask::is_program) {
            if (Mask::classify(row.position, 1, block * 32, block * 32 + 32, row.head, 1,
                               params.value) == RP_MASK_SKIP)
                continue;
            is_seen = is_seen && Mask::sees(row.position, key, row.head, params.value);
            if (__ballot_sync(0xFFFFFFFFu, is_seen) == 0)
                continue;
        }
        const Element *k = NULL;
        float score = -INFINITY, value_scale = 1.0f;
        if (is_seen) {
            const unsigned char *run = base + (size_t)row.pages[key >> shift] * kv.page_stride;
            const uint32_t in_page = key & (kv.page_tokens - 1);
            k = (const Element *)run + (size_t)in_page * dim;
            float product = dot<Element>(q, k, dim);
            if constexpr (is_quantized<Element>::value) {
                const float *scale = (const float *)(run + kv.scales_at) + in_page;
                product *= *scale;
                value_scale = *(const float *)((const unsigned char *)scale + to_value);
            }
            score = generic_score<Mask>(args, row, product, key, params);
        }
        float max = fmaxf(state.max, rp_warp_max(score));
        /* All scores NaN: the weights below are NaN and stay visible. */
        float offset = max == -INFINITY ? 0.0f : max;
        float weight = is_seen ? expf(score - offset) : 0.0f;
        float scale = state.max == max ? 1.0f : expf(state.max - offset);
        state.max = max;
        state.sum = __fmaf_rn(state.sum, scale, rp_warp_sum(weight));
#pragma unroll
        for (uint32_t j = 0; j < generic_state<MOST>::words; j++)
            state.out[j] *= scale;
        if constexpr (is_quantized<Element>::value)
            weight *= value_scale;
        uint32_t seen = __ballot_sync(0xFFFFFFFFu, is_seen);
        for (; seen != 0; seen &= seen - 1) { /* V only of keys that are seen */
            int from = __ffs((int)seen) - 1;
            float w = __shfl_sync(0xFFFFFFFFu, weight, from);
            const Element *v =
                (const Element *)((const unsigned char *)__shfl_sync(
                                      0xFFFFFFFFu, (unsigned long long)(uintptr_t)k, from) +
                                  to_value);
#pragma unroll
            for (uint32_t j = 0; j < generic_state<MOST>::words; j++)
                if (lane + 32 * j < value_dim)
                    state.out[j] = __fmaf_rn(w, (float)v[lane + 32 * j], state.out[j]);
        }
    }
}

/* Quantized values: 8-bit pages, else of f32 or bf16. */
template <typename Mask, bool Quantized, uint32_t MOST>
static __device__ __forceinline__ void generic(const rp_attention_cuda_args &call) {
    rp_stamp stamp(call.stamp);
    __shared__ __align__(16) float q[MOST];
    __shared__ float outs[WARPS][MOST], maxima[WARPS], sums[WARPS];
    const rp_attention_args &args = call.args;
    uint32_t head = blockIdx.x, token = blockIdx.y, dim = args.head_dim;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    generic_row row;
    stamp.begin();
    stamp.look();
    if (!find_row<Mask>(call, token, &row))
        return;
    for (uint32_t d = threadIdx.x; d < dim; d += WARPS * 32)
        q[d] = args.q[token * args.q_stride + (size_t)head * dim + d];
    __syncthreads();
    row.head = head;
    generic_state<MOST> state = {};
    state.max = -INFINITY;
    uint32_t kv_head = head / (args.heads / args.kv_heads);
    if (Quantized && args.kv.dtype == RP_DTYPE_INT8)
        attend<int8_code, Mask>(state, args, row, q, kv_head);
    else if (Quantized)
        attend<fp8_code, Mask>(state, args, row, q, kv_head);
    else if (args.kv.dtype == RP_DTYPE_F32)
        attend<float, Mask>(state, args, row, q, kv_head);
    else
        attend<__nv_bfloat16, Mask>(state, args, row, q, kv_head);
#pragma unroll
    for (uint32_t j = 0; j < generic_state<MOST>::words; j++)
        outs[warp][lane + 32 * j] = state.out[j];
    if (lane == 0) {
        maxima[warp] = state.max;
        sums[warp] = state.sum;
    }
    __syncthreads();
    const float sink = args.sinks ? args.sinks[head] : -INFINITY;
    float max = sink, total = 0.0f, scale[WARPS];
    for (int w = 0; w < WARPS; w++)
        max = fmaxf(max, maxima[w]);
    if (sink != -INFINITY)
        total = expf(sink - max);
    for (int w = 0; w < WARPS; w++) {
        scale[w] = maxima[w] == max ? 1.0f : expf(maxima[w] - max);
        total = __fmaf_rn(sums[w], scale[w], total);
    }
    const bool is_blind = Mask::is_program && total == 0.0f; /* a program's row may see nothing */
    const uint32_t value_dim = args.value_dim ? args.value_dim : dim;
    for (uint32_t d = threadIdx.x; d < value_dim; d += WARPS * 32) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++)
            sum = __fmaf_rn(outs[w][d], scale[w], sum);
        rp_store(args.out, args.out_dtype, token * args.out_stride + (size_t)head * value_dim + d,
                 is_blind ? 0.0f : sum / total);
    }
}

#undef WARPS
#endif
