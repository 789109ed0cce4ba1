/* attention_decode_fold.cuh - decode attention: reduces the sums of warps and splits, always in the
 * same order, whichever block computed them. */
#ifndef RP_ATTENTION_ATTENTION_DECODE_FOLD_CUH
#define RP_ATTENTION_ATTENTION_DECODE_FOLD_CUH

#include "attention/decode/attention_decode_stream.cuh"

namespace {

/* Sums of one warp over the units of a split. A lane holds heads 2 * (lane % 4) and the next of
 * each tile, and of each 16 columns lane / 4 and lane / 4 + 8 (rows of the instruction); with
 * quantized pages, whose columns come in pairs, 2 * (lane / 4) and the next. */
template <int D, int NT> struct sums {
    float max[NT][2], total[NT][2], out[NT][D / 16][4];
    float power; /* quantized pages: power of two that `out` is relative to */

    __device__ __forceinline__ void clear() {
        power = 0.0f;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            max[n][0] = max[n][1] = -INFINITY;
            total[n][0] = total[n][1] = 0.0f;
#pragma unroll
            for (int i = 0; i < D / 16; i++)
                out[n][i][0] = out[n][i][1] = out[n][i][2] = out[n][i][3] = 0.0f;
        }
    }
};

/* Partial result of one head: out / total is the output. */
struct folded {
    float max, total;
    float4 out;
};

/* The maximum subtracted from scores. If a program masks every key, any finite number will do. */
template <typename Mask> __device__ __forceinline__ float offset_of(float max) {
    return Mask::is_program && max == -INFINITY ? 0.0f : max;
}

/* state and then `next`; a state that was never folded has max -inf and zeros. */
template <typename Mask> __device__ __forceinline__ void fold(folded &state, const folded &next) {
    float max = fmaxf(state.max, next.max), offset = offset_of<Mask>(max);
    float a = exp2_fast(state.max - offset), b = exp2_fast(next.max - offset);
    state.max = max;
    state.total = __fmaf_rn(next.total, b, __fmul_rn(state.total, a));
    state.out.x = __fmaf_rn(next.out.x, b, __fmul_rn(state.out.x, a));
    state.out.y = __fmaf_rn(next.out.y, b, __fmul_rn(state.out.y, a));
    state.out.z = __fmaf_rn(next.out.z, b, __fmul_rn(state.out.z, a));
    state.out.w = __fmaf_rn(next.out.w, b, __fmul_rn(state.out.w, a));
}

__device__ __forceinline__ folded nothing() {
    return {-INFINITY, 0.0f, make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
}

/* Exchange buffer of the warps at the end of a split: (warp, head) rows of out, max, total. */
template <int D> struct exchange {
    static constexpr uint32_t STRIDE =
        D + 4; /* out, then max and total; 4 mod 16: no bank conflicts */
    float *data;
    uint32_t group;

    __device__ __forceinline__ float *row(uint32_t buffer, uint32_t warp, uint32_t head) const {
        return data + ((buffer * WARPS + warp) * group + head) * STRIDE;
    }
    template <int NT, rp_dtype Page>
    __device__ __forceinline__ void put(uint32_t buffer, sums<D, NT> &s, uint32_t warp,
                                        uint32_t lane) const {
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint32_t head = n * 8 + lane % 4 * 2 + e;
                float total = heads_sum(s.total[n][e]);
                if (head >= group)
                    continue;
                float *to = row(buffer, warp, head);
#pragma unroll
                for (int i = 0; i < D / 16; i++) {
                    if constexpr (page_of<Page>::is_quantized) {
                        *(float2 *)(to + i * 16 + lane / 4 * 2) =
                            make_float2(s.out[n][i][e] * s.power, s.out[n][i][e + 2] * s.power);
                        continue;
                    }
                    to[i * 16 + lane / 4] = s.out[n][i][e];
                    to[i * 16 + lane / 4 + 8] = s.out[n][i][e + 2];
                }
                if (lane < 4) {
                    to[D] = s.max[n][e];
                    to[D + 1] = total;
                }
            }
    }
    /* Four columns of a head over the four warps, in order. */
    template <typename Mask>
    __device__ __forceinline__ folded take(uint32_t buffer, uint32_t head, uint32_t column) const {
        float max[WARPS], factor[WARPS];
        folded sum;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            max[w] = row(buffer, w, head)[D];
        sum.max = fmaxf(fmaxf(max[0], max[1]), fmaxf(max[2], max[3]));
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            factor[w] = exp2_fast(max[w] - offset_of<Mask>(sum.max));
        sum.total = 0.0f;
        sum.out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float *from = row(buffer, w, head);
            float4 x = *(const float4 *)(from + column);
            sum.total = __fmaf_rn(from[D + 1], factor[w], sum.total);
            sum.out.x = __fmaf_rn(x.x, factor[w], sum.out.x);
            sum.out.y = __fmaf_rn(x.y, factor[w], sum.out.y);
            sum.out.z = __fmaf_rn(x.z, factor[w], sum.out.z);
            sum.out.w = __fmaf_rn(x.w, factor[w], sum.out.w);
        }
        return sum;
    }
};

/* A partial: out (group, D), then max (group), then total (group). */
template <int D>
__device__ __forceinline__ float *partial_at(const decode_args &args, uint32_t block,
                                             uint32_t slot) {
    return args.partials + ((size_t)block * SLOTS + slot) * args.group * (D + 4);
}

template <int D>
__device__ __forceinline__ void put_partial(float *to, uint32_t group, uint32_t head,
                                            uint32_t column, const folded &x) {
    __stcg((float4 *)(to + head * D + column), x.out);
    if (column == 0) {
        __stcg(to + group * D + head, x.max);
        __stcg(to + group * (D + 1) + head, x.total);
    }
}

template <int D>
__device__ __forceinline__ folded get_partial(const float *from, uint32_t group, uint32_t head,
                                              uint32_t column) {
    folded x;
    x.out = __ldcg((const float4 *)(from + head * D + column));
    x.max = __ldcg(from + group * D + head);
    x.total = __ldcg(from + group * (D + 1) + head);
    return x;
}

/* What the sums of weights times values are multiplied by: 1 / the sum of the weights, which a sink
 * (the logit of query head `head`) joins. */
template <typename Mask>
__device__ __forceinline__ float normalizer(const decode_args &args, const folded &x,
                                            uint32_t head) {
    float inverse = __fdividef(1.0f, x.total);
    if (args.sinks) {
        const float sink = args.sinks[head] * 1.44269504088896340736f;
        const float max = fmaxf(x.max, sink), offset = offset_of<Mask>(max);
        const float fade = exp2_fast(x.max - offset);
        const float total = __fmaf_rn(x.total, fade, exp2_fast(sink - offset));
        return Mask::is_program && total == 0.0f ? 0.0f : __fdividef(fade, total);
    }
    return Mask::is_program && x.total == 0.0f ? 0.0f : inverse;
}

/* head: the query head. */
template <typename Mask>
__device__ __forceinline__ void store_out(const decode_args &args, size_t at, const folded &x,
                                          uint32_t head) {
    const float inverse = normalizer<Mask>(args, x, head);
    float y[4] = {x.out.x * inverse, x.out.y * inverse, x.out.z * inverse, x.out.w * inverse};
    if (args.out_dtype == RP_DTYPE_F32) {
        float *to = (float *)args.out + at;
        if (((uintptr_t)to & 15) == 0)
            *(float4 *)to = make_float4(y[0], y[1], y[2], y[3]);
        else
            for (int i = 0; i < 4; i++)
                to[i] = y[i];
    } else {
        __nv_bfloat16 *to = (__nv_bfloat16 *)args.out + at;
        if (((uintptr_t)to & 7) == 0)
            *(uint2 *)to = make_uint2(pack(y[0], y[1]), pack(y[2], y[3]));
        else
            for (int i = 0; i < 4; i++)
                to[i] = __float2bfloat16_rn(y[i]);
    }
}

/* First split of a block in a sequence of `total` (the launcher has checked that nothing
 * overflows). */
__device__ __forceinline__ uint32_t share_begin(uint32_t total, uint32_t block) {
    return total * block / gridDim.x;
}
__device__ __forceinline__ uint32_t owner_of(uint32_t total, uint32_t split) {
    return ((split + 1) * gridDim.x - 1) / total;
}

/* Lists the partial sums of a row and KV head whose splits begin at index `base`: the folded
 * beginning, then split by split. One warp writes the list. */
__device__ __forceinline__ void list_partials(block_state &shared, uint32_t total, uint32_t base,
                                              uint32_t splits, uint32_t lane) {
    uint32_t first_owner = owner_of(total, base);
    uint32_t folded_splits = min(splits, share_begin(total, first_owner + 1) - base);
    uint32_t at = folded_splits + lane;
    static_assert(RP_ATTENTION_SPLITS_MAX <= 32, "a lane for each");
    if (at < splits) {
        uint32_t owner = owner_of(total, base + at);
        shared.partials[1 + lane] = owner * SLOTS + (base + at - share_begin(total, owner));
    }
    if (lane == 0) {
        shared.partials[0] = first_owner * SLOTS + PREFIX_SLOT;
        shared.partial_count = 1 + splits - folded_splits;
    }
}

/* Signals that this block's partial sums of a row and KV head are written. Returns true in the last
 * block to do so, which then has the list of all of them. */
__device__ __forceinline__ bool arrive(const decode_args &args, block_state &shared,
                                       const segment &at, uint32_t total) {
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *arrivals = args.arrivals + at.row * args.kv_heads + at.head;
        uint32_t mine = at.split_end - at.split, before;
        /* Releases this block's writes and acquires those of the others. */
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                     : "=r"(before)
                     : "l"(arrivals), "r"(mine)
                     : "memory");
        shared.is_last = before + mine == at.info.splits;
        if (shared.is_last)
            *arrivals = 0;
    }
    if (threadIdx.x / 32 == 1)
        list_partials(shared, total, at.info.begin * args.kv_heads + at.head * at.info.splits,
                      at.info.splits, threadIdx.x % 32);
    __syncthreads();
    return shared.is_last;
}

template <int D, typename Mask>
__device__ __forceinline__ folded fold_partials(const decode_args &args, const block_state &shared,
                                                uint32_t head, uint32_t column) {
    constexpr uint32_t AHEAD = 4;
    uint32_t count = shared.partial_count;
    folded state = nothing();
#pragma unroll 1
    for (uint32_t i = 0; i < count; i += AHEAD) {
        folded next[AHEAD];
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++) {
            uint32_t at = shared.partials[min(i + a, count - 1)];
            next[a] = get_partial<D>(partial_at<D>(args, 0, at), args.group, head, column);
        }
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++)
            if (i + a < count)
                fold<Mask>(state, next[a]);
    }
    return state;
}

/* Sets the row and KV head where this block's part begins, if it is in row `i`. */
__device__ __forceinline__ void try_start(const decode_args &args, block_state &shared, uint32_t i,
                                          const rp_attention_plan_row &info, uint32_t begin,
                                          uint32_t count) {
    uint32_t at = info.begin * args.kv_heads, splits = info.splits * args.kv_heads;
    if (begin < at || begin - at >= splits)
        return;
    uint32_t head = (begin - at) / info.splits;
    uint32_t split = begin - at - head * info.splits;
    shared.start = {i, head, split, min(info.splits, split + count), info};
}

} // namespace

#endif
