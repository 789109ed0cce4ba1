/* attention_decode_kernel.cuh - one query per sequence: the kernel of attention_decode_cuda.cu. */
#ifndef RP_ATTENTION_ATTENTION_DECODE_KERNEL_CUH
#define RP_ATTENTION_ATTENTION_DECODE_KERNEL_CUH

#include "attention/decode/attention_decode_fold.cuh"
#include "attention/decode/attention_decode_query.cuh"

namespace {

/* Position of a unit in the sequence, needed to evaluate a mask program on its pairs. */
struct program_unit {
    uint32_t place;  /* position of its first key */
    uint32_t seen;   /* bits of the keys that some head sees */
    bool is_partial; /* else every head sees all of them */
};

/* Scale applied to q.k before score rules, the cap and masking. */
template <typename Mask> __device__ __forceinline__ float scale_of(const decode_args &args) {
    return Mask::has_score ? args.natural_scale : Mask::is_capped ? args.cap_in : args.scale;
}

/* Scaled score times log2 e, masked by the program if there is one. key: in the row's numbering;
 * offset: of the key in the unit. */
template <typename Mask>
__device__ __forceinline__ float score_of(const decode_args &args, const segment &at, float x,
                                          uint32_t offset, uint32_t head, const program_unit &unit,
                                          const mask_params<Mask> &params) {
    if constexpr (Mask::is_program) {
        const uint32_t q = at.info.first, kv = unit.place + offset;
        /* Padding columns past the group repeat its last head: the program defines no others. */
        head = at.head * args.group + min(head, args.group - 1);
        if constexpr (Mask::has_score)
            x = Mask::score(x, q, kv, head, params.value) * 1.44269504088896340736f;
        if (unit.is_partial) {
            bool seen = unit.seen >> offset & 1;
            if constexpr (Mask::reads_head)
                seen = seen && Mask::sees(q, kv, head, params.value);
            x = seen ? x : -INFINITY;
        }
        return x;
    }
    return Mask::is_capped ? rp_tanh(x) * args.cap_out : x;
}

/* Scales of a lane's keys of a unit; bf16 pages have none. Weights multiply quantized values in
 * f16, whose range V's scales may exceed: weights are scaled by a power of two close to the largest
 * V scale so far. */
template <rp_dtype Page, int TILES> struct unit_scales {
    float k[TILES][2], v[TILES][2];

    /* from: K's scales, then V's. Masked keys may hold garbage: 0 is used. */
    template <typename Mask>
    __device__ __forceinline__ void load(const float *from, const rp_attention_plan_row &row,
                                         uint32_t key, const program_unit &unit, uint32_t lane) {
        if constexpr (page_of<Page>::is_quantized) {
#pragma unroll
            for (int i = 0; i < TILES * 2; i++) {
                k[i / 2][i % 2] = from[i * 8 + lane / 4];
                v[i / 2][i % 2] = from[TILES * TILE + i * 8 + lane / 4];
            }
            if (Mask::is_program ? !unit.is_partial : all_are_seen(row, key, TILES * TILE))
                return;
#pragma unroll
            for (int i = 0; i < TILES * 2; i++) {
                const uint32_t offset = i * 8 + lane / 4;
                if (Mask::is_program ? (unit.seen >> offset & 1) == 0
                                     : !all_are_seen(row, key + offset, 1))
                    k[i / 2][i % 2] = v[i / 2][i % 2] = 0.0f;
            }
        }
    }
    /* Over all keys of the unit. */
    __device__ __forceinline__ float largest_v() const {
        float largest = 0.0f;
#pragma unroll
        for (int t = 0; t < TILES; t++)
            largest = fmaxf(largest, fmaxf(v[t][0], v[t][1]));
        return heads_max(largest);
    }
};

/* q.k sums to scores: -inf where the key is masked. */
template <int NT, int TILES, rp_dtype Page, typename Mask>
__device__ __forceinline__ void
score(const decode_args &args, const segment &at, uint32_t key, float (&scores)[TILES][NT][4],
      uint32_t lane, const program_unit &unit, const mask_params<Mask> &params,
      const unit_scales<Page, TILES> &scales, const float (&q_power)[NT][2]) {
    const float scale = scale_of<Mask>(args);
#pragma unroll
    for (int i = 0; i < TILES * NT * 4; i++) {
        const int t = i / 4 / NT, n = i / 4 % NT, e = i % 4;
        float &x = scores[t][n][e];
        x *= page_of<Page>::is_quantized ? scales.k[t][e / 2] * (q_power[n][e % 2] * scale) : scale;
        x = score_of<Mask>(args, at, x, t * TILE + lane / 4 + e / 2 * 8,
                           n * 8 + lane % 4 * 2 + e % 2, unit, params);
    }
    if (Mask::is_program || all_are_seen(at.info, key, TILES * TILE))
        return;
#pragma unroll
    for (int i = 0; i < TILES * NT * 4; i++)
        if (!all_are_seen(at.info, key + i / 4 / NT * TILE + lane / 4 + i % 4 / 2 * 8, 1))
            scores[i / 4 / NT][i / 4 % NT][i % 4] = -INFINITY;
}

/* Online softmax: scores of a unit become weights (bf16, the second operand of the matmul with V),
 * and the partial sums are rescaled to the new maximum. For quantized pages a weight is multiplied
 * by its V scale in f32 before it is rounded to f16; the sum of weights excludes that scale. */
template <int D, int NT, int TILES, rp_dtype Page, typename Mask>
__device__ __forceinline__ void online_softmax(float (&scores)[TILES][NT][4], sums<D, NT> &s,
                                               uint32_t (&weights)[TILES][NT][2],
                                               const unit_scales<Page, TILES> &scales) {
    constexpr bool is_quantized = page_of<Page>::is_quantized;
    float moved = 1.0f, inverse = 1.0f; /* exponent that `out` is relative to */
    if (is_quantized) {
        const float power = fmaxf(s.power, power_below(scales.largest_v()));
        inverse = inverse_of_power(power);
        moved = s.power * inverse;
        s.power = power;
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float largest[2] = {-INFINITY, -INFINITY}, fade[2];
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                largest[i % 2] = fmaxf(largest[i % 2], scores[t][n][i]);
#pragma unroll
        for (int e = 0; e < 2; e++)
            largest[e] = fmaxf(s.max[n][e], heads_max(largest[e]));
        if (__any_sync(0xFFFFFFFFu,
                       largest[0] != s.max[n][0] || largest[1] != s.max[n][1] || moved != 1.0f)) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                fade[e] = exp2_fast(s.max[n][e] - offset_of<Mask>(largest[e]));
                s.max[n][e] = largest[e];
                s.total[n][e] *= fade[e];
                fade[e] *= moved;
            }
#pragma unroll
            for (int i = 0; i < D / 16; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s.out[n][i][e] *= fade[e % 2];
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            float *x = scores[t][n];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = exp2_fast(x[i] - offset_of<Mask>(s.max[n][i % 2]));
            s.total[n][0] += x[0] + x[2];
            s.total[n][1] += x[1] + x[3];
#pragma unroll
            for (int i = 0; i < 4 && is_quantized; i++)
                x[i] *= scales.v[t][i / 2] * inverse;
            weights[t][n][0] =
                transpose_8x8(is_quantized ? pack_f16(x[0], x[1]) : pack(x[0], x[1]));
            weights[t][n][1] =
                transpose_8x8(is_quantized ? pack_f16(x[2], x[3]) : pack(x[2], x[3]));
        }
    }
}

template <int D, int NT, rp_dtype Page = RP_DTYPE_BF16> struct kernel_sizes : sizes_of<D, Page> {
    static constexpr int BUFFERS = D * NT <= 256 ? 2 : 1; /* exchange buffers; more do not fit */
    /* K and V of one unit per warp: in flight while the previous unit is computed. */
    static constexpr uint32_t RING_BYTES = WARPS * sizes_of<D, Page>::WARP_BYTES;
    static size_t shared_bytes(uint32_t group) {
        return RING_BYTES + (BUFFERS * WARPS * group * exchange<D>::STRIDE +
                             2 * group * query_buffer<D>::STRIDE) *
                                sizeof(float);
    }
};

/* Unscaled scores of a unit's keys; for bf16 pages, even and odd steps of 16 columns are summed
 * separately. */
template <int D, int NT, int TILES, rp_dtype Page>
__device__ __forceinline__ void add_scores(float (&even)[TILES][NT][4], float (&odd)[TILES][NT][4],
                                           uint32_t keys, const uint32_t (&q)[NT][D / 16][2]) {
    constexpr uint32_t ROW_BYTES = sizes_of<D, Page>::ROW_BYTES;
    if constexpr (page_of<Page>::is_quantized) {
#pragma unroll
        for (int i = 0; i < D / 32; i++)
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                uint32_t quantized[4], a[4];
                load_matrices(quantized, keys + t * TILE * ROW_BYTES + i * 32);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    quantized_to_f16<Page, false>(quantized[half * 2], a[0], a[2]);
                    quantized_to_f16<Page, false>(quantized[half * 2 + 1], a[1], a[3]);
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        multiply<Page>(even[t][n], a, q[n][i * 2 + half][0], q[n][i * 2 + half][1]);
                }
            }
    } else {
#pragma unroll
        for (int i = 0; i < D / 16; i++)
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                uint32_t a[4];
                load_matrices(a, keys + t * TILE * ROW_BYTES + i * 32);
#pragma unroll
                for (int n = 0; n < NT; n++)
                    multiply<Page>(i % 2 ? odd[t][n] : even[t][n], a, q[n][i][0], q[n][i][1]);
            }
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    even[t][n][e] += odd[t][n][e];
    }
}

/* Adds weights * V of a unit. Quantized values are transposed in pairs of columns, which become two
 * rows of the matmul (struct sums). */
template <int D, int NT, int TILES, rp_dtype Page>
__device__ __forceinline__ void add_values(sums<D, NT> &s, uint32_t values,
                                           const uint32_t (&weights)[TILES][NT][2]) {
    constexpr uint32_t ROW_BYTES = sizes_of<D, Page>::ROW_BYTES;
    if constexpr (page_of<Page>::is_quantized) {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < D / 32; i++) {
                uint32_t quantized[4], a[4];
                load_matrices_transposed(quantized, values + t * TILE * ROW_BYTES + i * 32);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    quantized_to_f16<Page, true>(quantized[half], a[0], a[1]);
                    quantized_to_f16<Page, true>(quantized[half + 2], a[2], a[3]);
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        multiply<Page>(s.out[n][i * 2 + half], a, weights[t][n][0],
                                       weights[t][n][1]);
                }
            }
    } else {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                uint32_t a[4];
                load_matrices_transposed(a, values + t * TILE * ROW_BYTES + i * 32);
#pragma unroll
                for (int n = 0; n < NT; n++)
                    multiply<Page>(s.out[n][i], a, weights[t][n][0], weights[t][n][1]);
            }
    }
}

/* Initializes the barriers and finds the segment with which the block's share begins. */
__device__ __forceinline__ void find_start(const decode_args &args, block_state &shared,
                                           const rp_attention_plan_row &first, uint32_t rows,
                                           uint32_t begin, uint32_t count) {
    if (threadIdx.x == 0) {
#pragma unroll /* racecheck follows as many barriers as it finds such instructions */
        for (int i = 0; i < 2; i++) {
            barrier_init(&shared.full[i], THREADS);
            barrier_init(&shared.empty[i], THREADS);
        }
    }
    if (threadIdx.x < rows)
        try_start(args, shared, threadIdx.x, first, begin, count);
    for (uint32_t i = threadIdx.x + THREADS; i < rows; i += THREADS)
        try_start(args, shared, i, load_row(args, i), begin, count);
    __syncthreads();
}

/* Output columns of a segment, in groups of four, over the threads of a block. */
template <int D, int NT> struct column_parts {
    static constexpr uint32_t COLUMNS = D / 4;
    static constexpr int PARTS = (NT * 8 * (int)COLUMNS + THREADS - 1) / THREADS; /* per thread */
};

/* Folds the sums that the warps put for a split, the turn-th of this block: into `state` when the
 * segment begins with the row, else into a partial of its own. */
template <int D, int NT, typename Mask, rp_dtype Page>
__device__ __forceinline__ void settle_split(const decode_args &args, block_state &shared,
                                             const exchange<D> &swap, const segment &at,
                                             uint32_t split, uint32_t turn,
                                             folded (&state)[column_parts<D, NT>::PARTS]) {
    constexpr uint32_t COLUMNS = column_parts<D, NT>::COLUMNS;
    constexpr int BUFFERS = kernel_sizes<D, NT, Page>::BUFFERS;
    barrier_wait(&shared.full[turn % BUFFERS], turn / BUFFERS & 1);
#pragma unroll
    for (int p = 0; p < column_parts<D, NT>::PARTS; p++) {
        uint32_t part = p * THREADS + threadIdx.x;
        uint32_t head = part / COLUMNS, column = part % COLUMNS * 4;
        if (head >= args.group)
            continue;
        folded x = swap.template take<Mask>(turn % BUFFERS, head, column);
        if (at.split == 0)
            fold<Mask>(state[p], x);
        else
            put_partial<D>(partial_at<D>(args, blockIdx.x, split - at.split), args.group, head,
                           column, x);
    }
    barrier_arrive(&shared.empty[turn % BUFFERS]);
}

/* Writes a segment that is the whole row, or its partial sums; the last block to arrive at a row
 * folds its partial sums. */
template <int D, int NT, typename Mask>
__device__ __forceinline__ void write_segment(const decode_args &args, block_state &shared,
                                              const segment &at, uint32_t total,
                                              const folded (&state)[column_parts<D, NT>::PARTS]) {
    constexpr uint32_t COLUMNS = column_parts<D, NT>::COLUMNS;
    const size_t out = at.info.token * args.out_stride + (size_t)at.head * args.group * D;
    const bool whole = at.split == 0 && at.split_end == at.info.splits;
    if (at.split == 0) {
#pragma unroll
        for (int p = 0; p < column_parts<D, NT>::PARTS; p++) {
            uint32_t part = p * THREADS + threadIdx.x;
            uint32_t head = part / COLUMNS, column = part % COLUMNS * 4;
            if (head >= args.group)
                continue;
            if (whole)
                store_out<Mask>(args, out + head * D + column, state[p],
                                at.head * args.group + head);
            else
                put_partial<D>(partial_at<D>(args, blockIdx.x, PREFIX_SLOT), args.group, head,
                               column, state[p]);
        }
    }
    if (!whole && arrive(args, shared, at, total)) {
#pragma unroll 1
        for (uint32_t part = threadIdx.x; part < args.group * COLUMNS; part += THREADS) {
            uint32_t head = part / COLUMNS, column = part % COLUMNS * 4;
            store_out<Mask>(args, out + head * D + column,
                            fold_partials<D, Mask>(args, shared, head, column),
                            at.head * args.group + head);
        }
    }
}

/* Waits until the copies of all threads of the block have arrived. */
__device__ __forceinline__ void finish_copies() {
    copy_commit();
    copy_wait<0>();
    __syncthreads();
}

/* For a block that started before the previous kernel ended: waits for it, then copies the K and V
 * rows of this step and the query. */
template <int D, typename Mask, rp_dtype Page>
__device__ __forceinline__ void
finish_early(const decode_args &args, const rp_stamp &stamp, loader<D, Mask, Page> &load,
             const query_buffer<D> &query, const segment &at, uint32_t keys_at, uint32_t values_at,
             uint32_t warp, uint32_t lane) {
    stamp.wait();
    load.copy_own(args, keys_at, values_at, warp, lane);
    query.prefetch(args, at.info.token, at.head);
    finish_copies();
}

/* Begins the loads of a block's share at its first segment. */
template <int D, typename Mask, rp_dtype Page>
__device__ __forceinline__ void begin_loads(const decode_args &args, loader<D, Mask, Page> &load,
                                            const segment &at, uint32_t left, uint32_t warp,
                                            uint32_t lane) {
    load.init(lane);
    load.at = at;
    load.left = left;
    load.enter();
    load.pages = load.load_pages(args, at.info, at.row, load.key, warp, lane, load.units);
    load.load_params(args, at.info);
}

/* Starts the copy of the next segment's query. */
template <int D>
__device__ __forceinline__ void prefetch_next(const decode_args &args, const block_state &shared,
                                              const query_buffer<D> &next_query,
                                              const segment &at) {
    bool wraps = at.head + 1 == args.kv_heads;
    next_query.prefetch(args, wraps ? row_at(args, shared, at.row + 1).token : at.info.token,
                        wraps ? 0 : at.head + 1);
}

/* The loader's current unit; key: its first key. */
template <int D, typename Mask, rp_dtype Page>
__device__ __forceinline__ program_unit unit_at(const loader<D, Mask, Page> &load, uint32_t key) {
    if constexpr (Mask::is_program)
        return {unit_key(load.unit) + key % RP_ATTENTION_SPLIT, load.seen,
                (load.unit & UNIT_IS_PARTIAL) != 0};
    return {};
}

/* Moves to the next segment: its query becomes the current one; parameters change with the row. */
template <int D, typename Mask>
__device__ __forceinline__ void enter_next(const decode_args &args, block_state &shared,
                                           segment &at, uint32_t &left, mask_params<Mask> &params,
                                           query_buffer<D> &query, query_buffer<D> &next_query) {
    const uint32_t row = at.row;
    next_segment(args, shared, at, left);
    left -= at.split_end;
    if (Mask::is_program && at.row != row)
        params.load(args.slots + (size_t)at.info.slot * args.slot_words);
    float *done = query.data;
    query.data = next_query.data;
    next_query.data = done;
}

/* Records the end of the kernel in steps that are stamped. */
__device__ __forceinline__ void end_stamp(const decode_args &args, const block_state &shared) {
    if (threadIdx.x == 0 && shared.flags & RP_PACKET_STAMP)
        rp_stamp_end(args.stamp);
}

template <int PARTS> __device__ __forceinline__ void clear(folded (&state)[PARTS]) {
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        state[p] = nothing();
}

template <int D, int NT, rp_dtype Page>
__device__ __forceinline__ void load_query(const query_buffer<D> &query,
                                           uint32_t (&q)[NT][D / 16][2], float (&q_power)[NT][2],
                                           uint32_t group, uint32_t lane) {
    if constexpr (page_of<Page>::is_quantized)
        query.template load_f16<NT>(q, q_power, group, lane);
    else
        query.template load<NT>(q, group, lane);
}

/* Whether all keys of a segment are read in one step. */
template <typename Mask, uint32_t STEP>
__device__ __forceinline__ bool is_one_step(const segment &at) {
    return keys_end(at, at.split_end) - (keys_begin<Mask>(at, at.split) & ~(STEP - 1)) <= STEP;
}

/* Starts the copies of the plan rows from the segment's row on. */
__device__ __forceinline__ void copy_rows(const decode_args &args, block_state &shared,
                                          const segment &at, uint32_t rows) {
    if (threadIdx.x < ROWS_AHEAD * 2 && at.row + threadIdx.x / 2 < rows)
        copy_16(shared_address(&shared.rows[0]) + threadIdx.x * 16,
                (const unsigned char *)(args.rows + at.row) + threadIdx.x * 16);
}

/* Rows of a unit that a lane names to ldmatrix, in bytes: for K keys in order, for V two halves of
 * the dims (32 bytes). */
template <uint32_t ROW_BYTES> __device__ __forceinline__ uint32_t key_row(uint32_t lane) {
    return lane % 16 * ROW_BYTES + lane / 16 * 16;
}
template <uint32_t ROW_BYTES> __device__ __forceinline__ uint32_t value_row(uint32_t lane) {
    return (lane % 8 + lane / 16 * 8) * ROW_BYTES + lane / 8 % 2 * 16;
}

template <int D, int NT, typename Mask, rp_dtype Page = RP_DTYPE_BF16>
__device__ __forceinline__ void attention_decode(const decode_args &args) {
    using sizes = kernel_sizes<D, NT, Page>;
    constexpr uint32_t UNIT_BYTES = sizes::UNIT_BYTES, UNIT = sizes::UNIT, STEP = sizes::STEP;
    constexpr int TILES = sizes::TILES, BUFFERS = sizes::BUFFERS;
    extern __shared__ __align__(128) unsigned char dynamic[];
    __shared__ __align__(16) block_state shared;
    const rp_stamp stamp(args.stamp);
    rp_pdl_trigger();
    if (!args.early)
        stamp.wait();
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    /* Both loads at once; whether the row is in the plan is checked afterwards. */
    rp_attention_plan_row first = {};
    if (threadIdx.x < args.row_capacity)
        first = load_row(args, threadIdx.x);
    const uint2 counts = __ldcg((const uint2 *)args.plan); /* decode_rows, decode_splits */
    if (threadIdx.x == 0) /* a register would be live across the loops below */
        shared.flags = rp_stamp_flags(args.stamp);
    const uint32_t total = counts.y * args.kv_heads;
    const uint32_t begin = share_begin(total, blockIdx.x);
    const uint32_t count = share_begin(total, blockIdx.x + 1) - begin;
    if (count == 0) {
        stamp.wait();
        return end_stamp(args, shared);
    }
    find_start(args, shared, first, counts.x, begin, count);

    const exchange<D> swap = {(float *)(dynamic + sizes::RING_BYTES), args.group};
    query_buffer<D> query = {swap.data + BUFFERS * WARPS * args.group * exchange<D>::STRIDE};
    query_buffer<D> next_query = {query.data + args.group * query_buffer<D>::STRIDE};
    segment at = shared.start;
    uint32_t left = count - (at.split_end - at.split);
    loader<D, Mask, Page> load;
    begin_loads(args, load, at, left, warp, lane);
    mask_params<Mask> params = load.params;
    copy_rows(args, shared, at, counts.x);
    if (!args.early)
        query.prefetch(args, at.info.token, at.head);
    finish_copies();
    load.look_ahead(args, shared, warp, lane);
    const uint32_t keys_at = shared_address(dynamic) + warp * sizes::WARP_BYTES;
    const uint32_t values_at = keys_at + UNIT_BYTES;
    const float *const scales_at =
        (const float *)(dynamic + warp * sizes::WARP_BYTES + 2 * UNIT_BYTES);
    load.issue_key(args, shared, keys_at, args.early, warp, lane);
    load.issue_value(args, values_at, args.early, warp, lane);
    if (args.early)
        finish_early(args, stamp, load, query, at, keys_at, values_at, warp, lane);
    const uint32_t key_lane = key_row<sizes::ROW_BYTES>(lane);
    const uint32_t value_lane = value_row<sizes::ROW_BYTES>(lane);
    uint32_t turn = 0;

    for (;;) {
        uint32_t q[NT][D / 16][2];
        float q_power[NT][2] = {};
        load_query<D, NT, Page>(query, q, q_power, args.group, lane);
        if (left != 0)
            prefetch_next(args, shared, next_query, at);
        /* With so few keys the copy of the next q may still be in flight here. */
        const bool is_short = is_one_step<Mask, STEP>(at);
        folded state[column_parts<D, NT>::PARTS];
        clear(state);
#pragma unroll 1
        for (uint32_t split = at.split;; split++) {
            sums<D, NT> s;
            s.clear();
            const uint32_t end = keys_end(at, split + 1) + warp * UNIT;
#pragma unroll 1
            for (uint32_t key = (keys_begin<Mask>(at, split) & ~(STEP - 1)) + warp * UNIT;
                 key < end; key += STEP) {
                const program_unit unit = unit_at(load, key);
                const bool seen =
                    Mask::is_program ? unit.seen != 0 : any_is_seen<Mask>(at.info, key, UNIT);
                uint32_t weights[TILES][NT][2];
                float scores[TILES][NT][4] = {}, odd[TILES][NT][4] = {};
                copy_wait<1>();
                unit_scales<Page, TILES> scales;
                if (seen) {
                    scales.template load<Mask>(scales_at, at.info, key, unit, lane);
                    add_scores<D, NT, TILES, Page>(scores, odd, keys_at + key_lane, q);
                }
                __syncwarp();
                load.issue_key(args, shared, keys_at, false, warp, lane);
                if (seen) {
                    score<NT, TILES>(args, at, key, scores, lane, unit, params, scales, q_power);
                    online_softmax<D, NT, TILES, Page, Mask>(scores, s, weights, scales);
                }
                copy_wait<1>();
                if (seen)
                    add_values<D, NT, TILES, Page>(s, values_at + value_lane, weights);
                __syncwarp();
                load.issue_value(args, values_at, false, warp, lane);
            }
            /* With two buffers a split is reduced once the next one is computed, so that no warp
             * waits for one that is less than a split behind. */
            const uint32_t buffer = turn % BUFFERS, round = turn / BUFFERS;
            const bool is_last = split + 1 == at.split_end;
            if (is_short && is_last)
                copy_wait<0>();
            if (round != 0)
                barrier_wait(&shared.empty[buffer], (round - 1) & 1);
            swap.template put<NT, Page>(buffer, s, warp, lane);
            barrier_arrive(&shared.full[buffer]);
            if (BUFFERS == 2 && split != at.split)
                settle_split<D, NT, Mask, Page>(args, shared, swap, at, split - 1, turn - 1, state);
            if (BUFFERS == 1 && !is_last)
                settle_split<D, NT, Mask, Page>(args, shared, swap, at, split, turn, state);
            turn++;
            if (is_last)
                break;
        }
        settle_split<D, NT, Mask, Page>(args, shared, swap, at, at.split_end - 1, turn - 1, state);
        write_segment<D, NT, Mask>(args, shared, at, total, state);
        if (left == 0)
            break;
        enter_next<D, Mask>(args, shared, at, left, params, query, next_query);
    }
    copy_wait<0>();
    end_stamp(args, shared);
}

} // namespace

#endif
