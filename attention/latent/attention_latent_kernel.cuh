/* attention_latent_kernel.cuh - attention over pages of latents: the kernels of
 * attention_latent_cuda.cu, and how the partial sums of decode rows are folded. */
#ifndef RP_ATTENTION_ATTENTION_LATENT_KERNEL_CUH
#define RP_ATTENTION_ATTENTION_LATENT_KERNEL_CUH

#include "attention/latent/attention_latent_tile.cuh"

namespace {

/* -- results ------------------------------------------------------------ */

/* What the sums of weights times values are multiplied by: 1 / the sum of the weights, which a sink
 * joins. */
__device__ __forceinline__ float latent_inverse(const latent_args &args, float max, float total,
                                                uint32_t head) {
    float fade = 1.0f;
    if (args.sinks) {
        const float sink = args.sinks[head] * LOG2_E, top = fmaxf(max, sink);
        const float offset = top == -INFINITY ? 0.0f : top;
        fade = exp2_fast(max - offset);
        total = __fmaf_rn(total, fade, exp2_fast(sink - offset));
    }
    return total == 0.0f ? 0.0f : fade / total;
}

/* A lane's columns of a row, pairs that are eight apart. */
__device__ __forceinline__ void store_columns(const latent_args &args, size_t at,
                                              const float (&out)[COLUMNS / 8][4], int half,
                                              float inverse) {
    if (args.out_aligned && args.out_dtype == RP_DTYPE_BF16) { /* one branch for all */
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++)
            *(uint32_t *)((__nv_bfloat16 *)args.out + at + n * 8) =
                pack_bf16(out[n][half * 2] * inverse, out[n][half * 2 + 1] * inverse);
        return;
    }
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
        store_pair(args.out, args.out_dtype, at + n * 8, args.out_aligned,
                   out[n][half * 2] * inverse, out[n][half * 2 + 1] * inverse);
}

/* column: the first one of the warp's. */
template <int MT>
__device__ __forceinline__ void store_out(const latent_args &args, const latent_work &work,
                                          const latent_sums<MT> &sums, uint32_t column) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t row = m * 16 + half * 8 + lane / 4;
            const uint32_t token = row / args.group, head = work.head + row % args.group;
            if (token >= work.tokens || head >= args.heads)
                continue;
            const float inverse =
                latent_inverse(args, sums.max[m][half], sums.total[m][half], head);
            const size_t at = (work.token + token) * args.out_stride + (size_t)head * VALUE +
                              column + lane % 4 * 2;
            store_columns(args, at, sums.out[m], half, inverse);
        }
}

/* -- decode rows: parts of the sequence of splits ------------------------ */

/* Partial sums that a block may have to store: those of splits in the row in which its part begins,
 * and the folded beginning of the row in which it ends. */
constexpr uint32_t PREFIX_SLOT = RP_ATTENTION_SPLITS_MAX - 1, SLOTS = PREFIX_SLOT + 1;

/* Floats of a partial sum: out, as lanes have it, then max and total of its rows. */
__host__ __device__ constexpr uint32_t partial_floats(uint32_t tiles) {
    return tiles * 16 * (VALUE + 2);
}

template <int MT>
__device__ __forceinline__ float *partial_at(const latent_args &args, uint32_t part,
                                             uint32_t slot) {
    const size_t block = (size_t)part * args.groups + blockIdx.x % args.groups;
    return args.partials + (block * SLOTS + slot) * partial_floats(MT);
}

template <int MT> __device__ __forceinline__ void put_partial(float *to, const latent_sums<MT> &x) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++)
            __stcg((float4 *)to + (m * (COLUMNS / 8) + n) * THREADS + threadIdx.x,
                   make_float4(x.out[m][n][0], x.out[m][n][1], x.out[m][n][2], x.out[m][n][3]));
    to += MT * 16 * VALUE;
    if (threadIdx.x >= 32 || lane % 4 != 0)
        return;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            __stcg(to + m * 16 + half * 8 + lane / 4, x.max[m][half]);
            __stcg(to + MT * 16 + m * 16 + half * 8 + lane / 4, x.total[m][half]);
        }
}

template <int MT>
__device__ __forceinline__ void get_partial(const float *from, latent_sums<MT> &x) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) {
            const float4 four =
                __ldcg((const float4 *)from + (m * (COLUMNS / 8) + n) * THREADS + threadIdx.x);
            x.out[m][n][0] = four.x, x.out[m][n][1] = four.y;
            x.out[m][n][2] = four.z, x.out[m][n][3] = four.w;
        }
    from += MT * 16 * VALUE;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            x.max[m][half] = __ldcg(from + m * 16 + half * 8 + lane / 4);
            x.total[m][half] = __ldcg(from + MT * 16 + m * 16 + half * 8 + lane / 4);
        }
}

/* The splits of all rows are cut into as many equal parts as each group of heads has blocks.
 * rp_attention_latent_cuda_supports has checked that no product overflows. */
struct latent_line {
    uint32_t total, parts;

    __device__ __forceinline__ uint32_t begin_of(uint32_t part) const {
        return total * part / parts;
    }
    __device__ __forceinline__ uint32_t owner_of(uint32_t split) const {
        return ((split + 1) * parts - 1) / total;
    }
};

/* The last row that begins at or before the split. */
__device__ __forceinline__ uint32_t find_row(const latent_args &args, uint32_t split) {
    const uint32_t rows = __ldcg(&args.plan->decode_rows), lane = threadIdx.x % 32;
    uint32_t count = 0;
#pragma unroll 4
    for (uint32_t base = 0; base < rows; base += 32) {
        const uint32_t begin =
            base + lane < rows ? __ldcg(&args.rows[base + lane].begin) : UINT32_MAX;
        count += __popc(__ballot_sync(0xFFFFFFFFu, begin <= split));
    }
    return count - 1;
}

__device__ __forceinline__ rp_attention_plan_row load_row(const rp_attention_plan_row *from) {
    static_assert(sizeof *from == 32, "two loads");
    const uint4 a = __ldcg((const uint4 *)from), b = __ldcg((const uint4 *)from + 1);
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

/* Signals that `count` of the row's splits are stored. True in the block that is the last one. */
template <int MT>
__device__ __forceinline__ bool arrive(const latent_args &args, latent_shared<MT> &shared,
                                       uint32_t row, uint32_t count, uint32_t splits) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *arrivals = args.arrivals + row * args.groups + blockIdx.x % args.groups;
        const uint32_t before = atomicAdd(arrivals, count);
        shared.is_last = before + count == splits;
        if (shared.is_last)
            *arrivals = 0;
        __threadfence();
    }
    __syncthreads();
    return shared.is_last;
}

/* All of a row's partial sums in rising order: its folded beginning, then split by split. */
template <int MT>
__device__ __forceinline__ void gather(const latent_args &args, const latent_line &line,
                                       const rp_attention_plan_row &info, latent_sums<MT> &state) {
    const uint32_t first = line.owner_of(info.begin);
    const uint32_t end = info.begin + info.splits;
    get_partial<MT>(partial_at<MT>(args, first, PREFIX_SLOT), state);
#pragma unroll 1
    for (uint32_t split = line.begin_of(first + 1); split < end; split++) {
        const uint32_t owner = line.owner_of(split);
        latent_sums<MT> next;
        get_partial<MT>(partial_at<MT>(args, owner, split - line.begin_of(owner)), next);
        state.fold(next);
    }
}

/* Splits [split, split_end) of a row. */
template <int MT, rp_dtype Page>
__device__ __forceinline__ void decode_row(const latent_args &args, const latent_line &line,
                                           latent_shared<MT> &shared, latent_wait &wait,
                                           uint32_t row, const rp_attention_plan_row &info,
                                           uint32_t split, uint32_t split_end) {
    const uint32_t begin = (info.first_split + split) << info.split_log2;
    const uint32_t end = (info.first_split + split_end) << info.split_log2;
    const uint32_t part = blockIdx.x / args.groups, count = split_end - split;
    const bool is_beginning = split == 0;
    const latent_work work = {.pages = args.tables + (size_t)info.slot * args.slot_words,
                              .token = info.token,
                              .tokens = 1,
                              .position = info.position,
                              .head = blockIdx.x % args.groups * args.group,
                              .key_begin = max(info.first, begin),
                              .key_end = min(info.position + 1, end),
                              .split_mask = (1u << info.split_log2) - 1};
    latent_sums<MT> state;
    uint32_t slot = info.begin + split - line.begin_of(part); /* 0, unless a beginning */
    state.clear();
    attend<MT, Page>(args, work, shared, wait, [&](const latent_sums<MT> &sums) {
        if (is_beginning)
            state.fold(sums);
        else
            put_partial<MT>(partial_at<MT>(args, part, slot++), sums);
    });
    if (count != info.splits) {
        if (is_beginning)
            put_partial<MT>(partial_at<MT>(args, part, PREFIX_SLOT), state);
        if (!arrive(args, shared, row, count, info.splits))
            return;
        gather<MT>(args, line, info, state);
    }
    store_out(args, work, state, threadIdx.x / 32 * COLUMNS);
}

template <int MT, rp_dtype Page>
__device__ __forceinline__ void latent_decode(const latent_args &args, latent_shared<MT> &shared) {
    rp_stamp stamp(args.stamp);
    latent_wait wait = {stamp, true};
    rp_pdl_trigger();
    if (!args.early)
        wait.now();
    stamp.look();
    const latent_line line = {__ldcg(&args.plan->decode_splits), gridDim.x / args.groups};
    const uint32_t part = blockIdx.x / args.groups, end = line.begin_of(part + 1);
    uint32_t at = line.begin_of(part);
    if (at < end)
        for (uint32_t row = find_row(args, at); at < end; row++) {
            const rp_attention_plan_row info = load_row(args.rows + row);
            const uint32_t split = at - info.begin, split_end = min(info.splits, split + end - at);
            decode_row<MT, Page>(args, line, shared, wait, row, info, split, split_end);
            at += split_end - split;
        }
    wait.now(); /* blocks without work, too */
}

/* -- prompt rows: tiles of tokens ---------------------------------------- */

template <int MT, rp_dtype Page>
__device__ __forceinline__ void latent_prefill(const latent_args &args, latent_shared<MT> &shared) {
    rp_stamp stamp(args.stamp);
    stamp.begin();
    stamp.look();
    latent_wait wait = {stamp, false};
    const uint32_t count = args.plan->tiles * args.groups;
    for (uint32_t item = blockIdx.x; item < count; item += gridDim.x) {
        const rp_attention_plan_tile tile = args.tiles[item / args.groups];
        const latent_work work = {.pages = args.tables + (size_t)tile.slot * args.slot_words,
                                  .token = tile.token,
                                  .tokens = tile.count,
                                  .position = tile.position,
                                  .head = item % args.groups * args.group,
                                  .key_begin = first_visible(args.window, tile.position),
                                  .key_end = tile.position + tile.count,
                                  .split_mask = UINT32_MAX};
        attend<MT, Page>(args, work, shared, wait, [&](const latent_sums<MT> &sums) {
            store_out(args, work, sums, threadIdx.x / 32 * COLUMNS);
        });
    }
}

} // namespace

#endif
