/* attention_decode_cuda.cu - one query per sequence: a stream over K and V.
 *
 * The splits of all (row, KV head) pairs form one line (attention_internal_cuda.h); a block takes an equal
 * part of it, whatever the mixture of lengths. Inside a split the keys go to the block's four warps in
 * units of 32 (16 at head dim 256): unit u of the sequence is warp u % 4's. A warp streams K and V of its units through a ring
 * in shared memory of its own (cp.async), running ahead over splits, heads and rows.
 *
 * Tensor cores, transposed, so that up to 8 query heads of a group are the n side of one instruction and
 * none of its 16 rows is wasted:  S^T (keys, heads) = K Q^T,  O^T (dims, heads) += V^T P^T.
 *
 * What fixes the bits: a warp's units of a split in rising order by online softmax from zero; then the
 * four warps of the split in order; then the splits in rising order (fold). Who computes a split decides
 * nothing: a block that has splits from a row's first one on folds them at once, any other leaves each by
 * itself as a partial, and the block that arrives last folds what is missing. */
#include "attention/attention_internal_cuda.h"

#include "device/cuda_kernel.cuh"

/* Units in a warp's ring, and blocks per SM: bytes in flight against shared memory. */
#ifndef RP_DECODE_RING
#define RP_DECODE_RING 2
#endif
#ifndef RP_DECODE_BLOCKS_PER_SM
#define RP_DECODE_BLOCKS_PER_SM 2
#endif

namespace {

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * 32;
constexpr uint32_t TILE = 16; /* keys: the rows of one instruction */
constexpr uint32_t PREFIX_SLOT =
    RP_ATTENTION_SPLITS_MAX; /* of a block's partials: a folded beginning */
constexpr uint32_t SLOTS = RP_ATTENTION_SPLITS_MAX + 1;
constexpr uint32_t ROWS_AHEAD = 8; /* of a block's rows that lie in shared memory */

struct decode_args {
    const unsigned char *kv; /* of the layer, page 0, KV head 0 */
    size_t page_stride, plane_stride, head_stride;
    const uint32_t *slots;
    const rp_attention_plan_head *plan;
    const rp_attention_plan_row *rows;
    const float *q;
    unsigned char *out;
    size_t q_stride, out_stride;
    uint32_t *arrivals;
    float *partials;
    uint32_t slot_words, page_log2, group, kv_heads, row_capacity;
    float scale; /* times log2 e */
    rp_dtype out_dtype;
    bool q_aligned; /* to 16 bytes, in every row */
};

__device__ __forceinline__ uint32_t shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}

template <uint32_t TO, uint32_t FROM>
__device__ __forceinline__ void copy_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0 + %2], [%1 + %3], 16;" ::"r"(to),
                 "l"(from), "n"(TO), "n"(FROM));
}

__device__ __forceinline__ void copy_4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from));
}

/* Zeros, and no access to memory, unless `valid`. */
__device__ __forceinline__ void copy_16_or_zero(uint32_t to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0));
}

__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    __syncwarp();
}

__device__ __forceinline__ void load_matrices(uint32_t (&a)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&a)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ uint32_t transpose_8x8(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&both;
}

/* Over the lanes that hold the same heads (equal lane % 4). */
__device__ __forceinline__ float heads_max(float x) {
    for (int lane = 4; lane < 32; lane *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, lane));
    return x;
}

__device__ __forceinline__ float heads_sum(float x) {
    for (int lane = 4; lane < 32; lane *= 2)
        x += __shfl_xor_sync(0xFFFFFFFFu, x, lane);
    return x;
}

/* Where a block is on the line: splits [split, split_end) of one row and KV head. */
struct segment {
    uint32_t row, head, split, split_end;
    rp_attention_plan_row info;
};

__device__ __forceinline__ rp_attention_plan_row load_row(const decode_args &args, uint32_t index) {
    const uint4 *from = (const uint4 *)(args.rows + index);
    union {
        uint4 words[2];
        rp_attention_plan_row row;
    } both;
    both.words[0] = __ldcg(from);
    both.words[1] = __ldcg(from + 1);
    return both.row;
}

/* What all threads of a block know. */
struct block_state {
    segment start;
    rp_attention_plan_row rows[ROWS_AHEAD]; /* from the first row on */
    uint32_t is_last;
    uint32_t partial_count;
    uint32_t partials[RP_ATTENTION_SPLITS_MAX]; /* block * SLOTS + slot, in rising order of keys */
};

__device__ __forceinline__ rp_attention_plan_row row_at(const decode_args &args,
                                                        const block_state &shared, uint32_t row) {
    uint32_t ahead = row - shared.start.row;
    return ahead < ROWS_AHEAD ? shared.rows[ahead] : load_row(args, row);
}

/* The next segment of a block with `left` splits to go (not 0). */
__device__ __forceinline__ void next_segment(const decode_args &args, const block_state &shared,
                                             segment &at, uint32_t left) {
    if (++at.head == args.kv_heads) {
        at.head = 0;
        at.info = row_at(args, shared, ++at.row);
    }
    at.split = 0;
    at.split_end = min(at.info.splits, left);
}

/* Keys [begin, end) of splits [split, split_end). */
__device__ __forceinline__ uint32_t keys_begin(const segment &at, uint32_t split) {
    return max(at.info.first, (at.info.first_split + split) << at.info.split_log2);
}
__device__ __forceinline__ uint32_t keys_end(const segment &at, uint32_t split_end) {
    return min(at.info.position + 1, (at.info.first_split + split_end) << at.info.split_log2);
}

/* Whether `count` keys hold a visible one, and whether they hold nothing else. */
__device__ __forceinline__ bool any_is_seen(const rp_attention_plan_row &row, uint32_t key,
                                            uint32_t count) {
    return key <= row.position && key + count > row.first;
}
__device__ __forceinline__ bool all_are_seen(const rp_attention_plan_row &row, uint32_t key,
                                             uint32_t count) {
    return key + count <= row.position + 1 && key >= row.first;
}

/* How the keys of a split go to the warps. */
template <int D> struct sizes_of {
#ifdef RP_DECODE_TILES
    static constexpr uint32_t TILES = RP_DECODE_TILES;
#else
    static constexpr uint32_t TILES = D <= 128 ? 2 : 1;
#endif
    static constexpr uint32_t UNIT = TILES * TILE;       /* keys */
    static constexpr uint32_t STEP = UNIT * WARPS;       /* keys of one unit per warp */
    static constexpr uint32_t BATCH = 32 / TILES * STEP; /* keys whose pages a warp's lanes hold */
    static constexpr uint32_t ROW_BYTES = D * 2 + 16;    /* odd in 16 bytes: no bank conflicts */
    static constexpr uint32_t UNIT_BYTES = UNIT * ROW_BYTES;
};
static_assert(RP_ATTENTION_SPLIT % sizes_of<64>::STEP == 0, "a split is whole steps");

/* One warp's stream of units into its ring, ahead of the sums. */
template <int D> struct loader {
    static constexpr uint32_t TILES = sizes_of<D>::TILES, UNIT = sizes_of<D>::UNIT,
                              STEP = sizes_of<D>::STEP, BATCH = sizes_of<D>::BATCH,
                              ROW_BYTES = sizes_of<D>::ROW_BYTES;
    static constexpr uint32_t CHUNKS = D / 8; /* of 16 bytes */
    /* A warp's instruction copies 32 chunks; after so many of them whole rows are done. */
    static constexpr uint32_t PERIOD = CHUNKS % 3 == 0 ? 3 : 1;
    segment at;
    uint32_t left; /* splits after this segment */
    uint32_t key, end;
    uint32_t batch, pages, next_pages; /* a lane's page from key `batch` on, and after it */
    uint32_t lane_to[PERIOD];          /* where a lane's chunk of each instruction goes */
    const unsigned char *from[TILES];  /* a lane's first chunk of each tile */

    __device__ __forceinline__ void init(uint32_t lane) {
#pragma unroll
        for (uint32_t i = 0; i < PERIOD; i++)
            lane_to[i] = (i * 32 + lane + (i * 32 + lane) / CHUNKS) * 16;
    }

    /* The pages of 32 tiles of this warp, from `base` on. */
    __device__ __forceinline__ uint32_t load_pages(const decode_args &args,
                                                   const rp_attention_plan_row &row, uint32_t base,
                                                   uint32_t warp, uint32_t lane) {
        const uint32_t *table = args.slots + (size_t)row.slot * args.slot_words + RP_SLOT_PAGES;
        uint32_t mine = base + lane / TILES * STEP + warp * UNIT + lane % TILES * TILE;
        return any_is_seen(row, mine, TILE) ? __ldcg(table + (mine >> args.page_log2)) : 0;
    }
    /* Asks for the pages after this batch: they are there when they are wanted. */
    __device__ __forceinline__ void look_ahead(const decode_args &args, const block_state &shared,
                                               uint32_t warp, uint32_t lane) {
        if (batch + BATCH < end) {
            next_pages = load_pages(args, at.info, batch + BATCH, warp, lane);
        } else if (left != 0) {
            const rp_attention_plan_row row =
                at.head + 1 == args.kv_heads ? row_at(args, shared, at.row + 1) : at.info;
            next_pages = load_pages(args, row, row.first & ~(STEP - 1), warp, lane);
        }
    }
    __device__ __forceinline__ void enter() {
        key = keys_begin(at, at.split) & ~(STEP - 1);
        end = keys_end(at, at.split_end);
        batch = key;
    }
    /* All chunks of a tile, from the PART-th on. */
    template <uint32_t PART>
    __device__ __forceinline__ void copy_parts(uint32_t to, const unsigned char *tile) {
        if constexpr (PART < TILE * CHUNKS / 32) {
            copy_16<PART / PERIOD * PERIOD * 512 + PART / PERIOD * PERIOD * 32 / CHUNKS * 16,
                    PART * 512>(to + lane_to[PART % PERIOD], tile);
            copy_parts<PART + 1>(to, tile);
        }
    }
    /* Keys that are not seen become zeros: whatever lies there must not reach a sum. */
    __device__ __forceinline__ void copy_seen(uint32_t to, const unsigned char *tile,
                                              uint32_t first, uint32_t lane) {
#pragma unroll 1
        for (uint32_t i = 0; i < TILE * CHUNKS; i += 32) {
            uint32_t row = (i + lane) / CHUNKS, position = first + row;
            copy_16_or_zero(to + (i + lane + row) * 16, tile + i * 16,
                            position >= at.info.first && position <= at.info.position);
        }
    }
    __device__ __forceinline__ void copy(uint32_t to, uint32_t warp, uint32_t lane) {
        uint32_t first = key + warp * UNIT;
        if (key < end && any_is_seen(at.info, first, UNIT)) {
            if (all_are_seen(at.info, first, UNIT)) {
#pragma unroll
                for (uint32_t t = 0; t < TILES; t++)
                    copy_parts<0>(to + t * TILE * ROW_BYTES, from[t]);
            } else {
#pragma unroll
                for (uint32_t t = 0; t < TILES; t++)
                    copy_seen(to + t * TILE * ROW_BYTES, from[t], first + t * TILE, lane);
            }
        }
        copy_commit();
    }
    /* K of the next unit, then V of it. */
    __device__ __forceinline__ void issue_key(const decode_args &args, const block_state &shared,
                                              uint32_t to, uint32_t warp, uint32_t lane) {
        bool enters = key >= end && left != 0;
        if (enters) {
            next_segment(args, shared, at, left);
            left -= at.split_end;
            enter();
        }
        if (enters || key - batch == BATCH) {
            batch = key;
            pages = next_pages;
            look_ahead(args, shared, warp, lane);
        }
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            uint32_t page = __shfl_sync(0xFFFFFFFFu, pages, (key - batch) / STEP * TILES + t);
            uint32_t in_page = (key + warp * UNIT + t * TILE) & ((1u << args.page_log2) - 1);
            from[t] = args.kv + page * args.page_stride + at.head * args.head_stride +
                      in_page * (D * 2) + lane * 16;
        }
        copy(to, warp, lane);
    }
    __device__ __forceinline__ void issue_value(const decode_args &args, uint32_t to, uint32_t warp,
                                                uint32_t lane) {
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++)
            from[t] += args.plane_stride;
        copy(to, warp, lane);
        key += STEP;
    }
};

/* Sums of one warp over the units of a split: of a lane, heads 2 * (lane % 4) and the next of each tile. */
template <int D, int NT> struct sums {
    float max[NT][2], total[NT][2], out[NT][D / 16][4];

    __device__ __forceinline__ void clear() {
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

/* q of a row's group in shared memory, f32: (group, D + 8), so that rows begin in different banks. */
template <int D> struct query_buffer {
    static constexpr uint32_t STRIDE = D + 8;
    float *data;

    /* Joins the thread's next group of copies. */
    __device__ __forceinline__ void ask(const decode_args &args, uint32_t token,
                                        uint32_t head) const {
        const float *from = args.q + token * args.q_stride + (size_t)head * args.group * D;
        if (args.q_aligned) {
#pragma unroll 1
            for (uint32_t i = threadIdx.x * 4; i < args.group * D; i += THREADS * 4)
                copy_16<0, 0>(shared_address(data + i / D * STRIDE + i % D), from + i);
        } else {
#pragma unroll 1
            for (uint32_t i = threadIdx.x; i < args.group * D; i += THREADS)
                copy_4(shared_address(data + i / D * STRIDE + i % D), from + i);
        }
    }
    template <int NT>
    __device__ __forceinline__ void load(uint32_t (&q)[NT][D / 16][2], uint32_t group,
                                         uint32_t lane) const {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint32_t head = n * 8 + lane / 4;
            const float *from = data + min(head, group - 1) * STRIDE + lane % 4 * 2;
#pragma unroll
            for (int i = 0; i < D / 8; i++) {
                float2 x = *(const float2 *)(from + i * 8);
                q[n][i / 2][i % 2] = head < group ? pack(x.x, x.y) : 0;
            }
        }
    }
};

/* Scores of a unit to weights (bf16, as the second operand of the product with V); the sums so far move
 * to the new maximum. */
template <int D, int NT, int TILES>
__device__ __forceinline__ void soften(const decode_args &args, const segment &at, uint32_t key,
                                       float (&scores)[TILES][NT][4], sums<D, NT> &s,
                                       uint32_t (&weights)[TILES][NT][2], uint32_t lane) {
    bool full = all_are_seen(at.info, key, TILES * TILE);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float largest[2] = {-INFINITY, -INFINITY}, fade[2];
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &x = scores[t][n][i];
                uint32_t position = key + t * TILE + lane / 4 + i / 2 * 8;
                x *= args.scale;
                if (!full && (position < at.info.first || position > at.info.position))
                    x = -INFINITY;
                largest[i % 2] = fmaxf(largest[i % 2], x);
            }
#pragma unroll
        for (int e = 0; e < 2; e++)
            largest[e] = fmaxf(s.max[n][e], heads_max(largest[e]));
        if (__any_sync(0xFFFFFFFFu, largest[0] != s.max[n][0] || largest[1] != s.max[n][1])) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                fade[e] = exp2_fast(s.max[n][e] - largest[e]);
                s.max[n][e] = largest[e];
                s.total[n][e] *= fade[e];
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
                x[i] = exp2_fast(x[i] - s.max[n][i % 2]);
            s.total[n][0] += x[0] + x[2];
            s.total[n][1] += x[1] + x[3];
            weights[t][n][0] = transpose_8x8(pack(x[0], x[1]));
            weights[t][n][1] = transpose_8x8(pack(x[2], x[3]));
        }
    }
}

/* Numbers of one head: out / total is the result. */
struct folded {
    float max, total;
    float4 out;
};

/* state and then `next`; a state that was never folded has max -inf and zeros. */
__device__ __forceinline__ void fold(folded &state, const folded &next) {
    float max = fmaxf(state.max, next.max);
    float a = exp2_fast(state.max - max), b = exp2_fast(next.max - max);
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

/* What the warps hand to one another at the end of a split: (warp, head) rows of out, max, total. */
template <int D> struct exchange {
    static constexpr uint32_t STRIDE =
        D + 4; /* out, then max and total; 4 mod 16: no bank conflicts */
    float *data;
    uint32_t group;

    __device__ __forceinline__ float *row(uint32_t warp, uint32_t head) const {
        return data + (warp * group + head) * STRIDE;
    }
    template <int NT>
    __device__ __forceinline__ void put(sums<D, NT> &s, uint32_t warp, uint32_t lane) const {
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint32_t head = n * 8 + lane % 4 * 2 + e;
                float total = heads_sum(s.total[n][e]);
                if (head >= group)
                    continue;
                float *to = row(warp, head);
#pragma unroll
                for (int i = 0; i < D / 16; i++) {
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
    __device__ __forceinline__ folded take(uint32_t head, uint32_t column) const {
        float max[WARPS], factor[WARPS];
        folded sum;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            max[w] = row(w, head)[D];
        sum.max = fmaxf(fmaxf(max[0], max[1]), fmaxf(max[2], max[3]));
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            factor[w] = exp2_fast(max[w] - sum.max);
        sum.total = 0.0f;
        sum.out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float *from = row(w, head);
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

__device__ __forceinline__ void store_out(const decode_args &args, size_t at, const folded &x) {
    float inverse = __fdividef(1.0f, x.total);
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

/* First split of a block on a line of `total` (the launcher has checked that nothing overflows). */
__device__ __forceinline__ uint32_t share_begin(uint32_t total, uint32_t block) {
    return total * block / gridDim.x;
}
__device__ __forceinline__ uint32_t owner_of(uint32_t total, uint32_t split) {
    return ((split + 1) * gridDim.x - 1) / total;
}

/* The partials of a row and KV head whose splits begin at `base` on the line: the folded beginning, then
 * split by split. */
__device__ __forceinline__ void list_partials(block_state &shared, uint32_t total, uint32_t base,
                                              uint32_t splits) {
    uint32_t first_owner = owner_of(total, base);
    uint32_t folded_splits = min(splits, share_begin(total, first_owner + 1) - base);
    uint32_t at = folded_splits + threadIdx.x;
    if (at < splits) {
        uint32_t owner = owner_of(total, base + at);
        shared.partials[1 + threadIdx.x] = owner * SLOTS + (base + at - share_begin(total, owner));
    }
    if (threadIdx.x == 0) {
        shared.partials[0] = first_owner * SLOTS + PREFIX_SLOT;
        shared.partial_count = 1 + splits - folded_splits;
    }
}

/* This block's partials of a row and KV head are written; true in the block that is the last to say so,
 * which then has the list of all of them. */
__device__ __forceinline__ bool arrive(const decode_args &args, block_state &shared,
                                       const segment &at, uint32_t total) {
    uint32_t *arrivals = args.arrivals + at.row * args.kv_heads + at.head;
    uint32_t mine = at.split_end - at.split;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        shared.is_last = atomicAdd(arrivals, mine) + mine == at.info.splits;
        __threadfence();
    }
    __syncthreads();
    if (!shared.is_last)
        return false;
    if (threadIdx.x == 0)
        *arrivals = 0;
    list_partials(shared, total, at.info.begin * args.kv_heads + at.head * at.info.splits,
                  at.info.splits);
    __syncthreads();
    return true;
}

template <int D>
__device__ __forceinline__ folded fold_partials(const decode_args &args, const block_state &shared,
                                                uint32_t head, uint32_t column) {
    constexpr uint32_t AHEAD = 8;
    uint32_t count = shared.partial_count;
    folded state = nothing();
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
                fold(state, next[a]);
    }
    return state;
}

/* Takes the row and KV head where this block's part begins, if row `i` holds it. */
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

template <int D, int NT, int RING> struct kernel_sizes : sizes_of<D> {
    static constexpr int BUFFERS = D * NT <= 256 ? 2 : 1; /* for exchanges; more do not fit */
    static constexpr uint32_t RING_BYTES = WARPS * RING * sizes_of<D>::UNIT_BYTES;
    static size_t shared_bytes(uint32_t group) {
        return RING_BYTES + (BUFFERS * WARPS * group * exchange<D>::STRIDE +
                             2 * group * query_buffer<D>::STRIDE) *
                                sizeof(float);
    }
};

template <int D, int NT, int RING>
__global__ void __launch_bounds__(THREADS)
    attention_decode_kernel(const __grid_constant__ decode_args args) {
    using sizes = kernel_sizes<D, NT, RING>;
    constexpr uint32_t UNIT_BYTES = sizes::UNIT_BYTES, UNIT = sizes::UNIT, STEP = sizes::STEP;
    constexpr int TILES = sizes::TILES, BUFFERS = sizes::BUFFERS;
    constexpr uint32_t COLUMNS = D / 4;                                    /* of four */
    constexpr int PARTS = (NT * 8 * (int)COLUMNS + THREADS - 1) / THREADS; /* of a thread */
    extern __shared__ __align__(128) unsigned char dynamic[];
    __shared__ __align__(16) block_state shared;
    rp_pdl_begin();
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    /* Both at once: whether the row is one of the plan's is known a moment later. */
    rp_attention_plan_row first = {};
    if (threadIdx.x < args.row_capacity)
        first = load_row(args, threadIdx.x);
    const uint2 counts = __ldcg((const uint2 *)args.plan); /* decode_rows, decode_splits */
    const uint32_t total = counts.y * args.kv_heads;
    const uint32_t begin = share_begin(total, blockIdx.x);
    const uint32_t count = share_begin(total, blockIdx.x + 1) - begin;
    if (count == 0)
        return;
    if (threadIdx.x < counts.x)
        try_start(args, shared, threadIdx.x, first, begin, count);
    for (uint32_t i = threadIdx.x + THREADS; i < counts.x; i += THREADS)
        try_start(args, shared, i, load_row(args, i), begin, count);
    __syncthreads();

    exchange<D> swap = {(float *)(dynamic + sizes::RING_BYTES), args.group};
    exchange<D> last_swap = {swap.data + (BUFFERS - 1) * WARPS * args.group * exchange<D>::STRIDE,
                             args.group};
    query_buffer<D> query = {last_swap.data + WARPS * args.group * exchange<D>::STRIDE};
    query_buffer<D> next_query = {query.data + args.group * query_buffer<D>::STRIDE};
    segment at = shared.start;
    uint32_t left = count - (at.split_end - at.split);
    loader<D> load;
    load.init(lane);
    load.at = at;
    load.left = left;
    load.enter();
    load.pages = load.load_pages(args, at.info, load.key, warp, lane);
    if (threadIdx.x < ROWS_AHEAD * 2 && at.row + threadIdx.x / 2 < counts.x)
        copy_16<0, 0>(shared_address(&shared.rows[0]) + threadIdx.x * 16,
                      (const unsigned char *)(args.rows + at.row) + threadIdx.x * 16);
    query.ask(args, at.info.token, at.head);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    load.look_ahead(args, shared, warp, lane);
    const uint32_t ring = shared_address(dynamic) + warp * RING * UNIT_BYTES;
#pragma unroll 1
    for (int i = 0; i < RING; i++) {
        if (i % 2 == 0)
            load.issue_key(args, shared, ring + i * UNIT_BYTES, warp, lane);
        else
            load.issue_value(args, ring + i * UNIT_BYTES, warp, lane);
    }
    /* Rows of a unit that a lane names to ldmatrix: for K keys in order, for V two halves of the dims. */
    const uint32_t key_lane = lane % 16 * sizes::ROW_BYTES + lane / 16 * 16;
    const uint32_t value_lane = (lane % 8 + lane / 16 * 8) * sizes::ROW_BYTES + lane / 8 % 2 * 16;
    uint32_t slot = ring;

    for (;;) {
        uint32_t q[NT][D / 16][2];
        query.template load<NT>(q, args.group, lane);
        if (left != 0) {
            bool wraps = at.head + 1 == args.kv_heads;
            next_query.ask(args, wraps ? row_at(args, shared, at.row + 1).token : at.info.token,
                           wraps ? 0 : at.head + 1);
        }
        /* The copy of the next q may still be under way at the end of so few keys. */
        const bool is_short =
            keys_end(at, at.split_end) - (keys_begin(at, at.split) & ~(STEP - 1)) <=
            RING / 2 * STEP;
        folded state[PARTS];
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            state[p] = nothing();
        /* Sums of a split over the warps, and what becomes of them. */
        auto settle = [&](uint32_t split, const exchange<D> &from) {
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                uint32_t part = p * THREADS + threadIdx.x;
                uint32_t head = part / COLUMNS, column = part % COLUMNS * 4;
                if (head >= args.group)
                    continue;
                folded x = from.take(head, column);
                if (at.split == 0)
                    fold(state[p], x);
                else
                    put_partial<D>(partial_at<D>(args, blockIdx.x, split - at.split), args.group,
                                   head, column, x);
            }
        };
#pragma unroll 1
        for (uint32_t split = at.split;; split++) {
            sums<D, NT> s;
            s.clear();
            const uint32_t end = keys_end(at, split + 1) + warp * UNIT;
#pragma unroll 1
            for (uint32_t key = (keys_begin(at, split) & ~(STEP - 1)) + warp * UNIT; key < end;
                 key += STEP) {
                const bool seen = any_is_seen(at.info, key, UNIT);
                uint32_t weights[TILES][NT][2];
                float scores[TILES][NT][4] = {}, odd[TILES][NT][4] = {};
                copy_wait<RING - 1>();
                if (seen) {
#pragma unroll
                    for (int i = 0; i < D / 16; i++)
#pragma unroll
                        for (int t = 0; t < TILES; t++) {
                            uint32_t a[4];
                            load_matrices(a,
                                          slot + key_lane + t * TILE * sizes::ROW_BYTES + i * 32);
#pragma unroll
                            for (int n = 0; n < NT; n++)
                                multiply(i % 2 ? odd[t][n] : scores[t][n], a, q[n][i][0],
                                         q[n][i][1]);
                        }
                }
                __syncwarp();
                if (RING % 2 == 0)
                    load.issue_key(args, shared, slot, warp, lane);
                else
                    load.issue_value(args, slot, warp, lane);
                slot = slot == ring + (RING - 1) * UNIT_BYTES ? ring : slot + UNIT_BYTES;
                if (seen) {
#pragma unroll
                    for (int t = 0; t < TILES; t++)
#pragma unroll
                        for (int n = 0; n < NT; n++)
#pragma unroll
                            for (int e = 0; e < 4; e++)
                                scores[t][n][e] += odd[t][n][e];
                    soften<D, NT, TILES>(args, at, key, scores, s, weights, lane);
                }
                copy_wait<RING - 1>();
                if (seen) {
#pragma unroll
                    for (int t = 0; t < TILES; t++)
#pragma unroll
                        for (int i = 0; i < D / 16; i++) {
                            uint32_t a[4];
                            load_matrices_transposed(a, slot + value_lane +
                                                            t * TILE * sizes::ROW_BYTES + i * 32);
#pragma unroll
                            for (int n = 0; n < NT; n++)
                                multiply(s.out[n][i], a, weights[t][n][0], weights[t][n][1]);
                        }
                }
                __syncwarp();
                if (RING % 2 == 0)
                    load.issue_value(args, slot, warp, lane);
                else
                    load.issue_key(args, shared, slot, warp, lane);
                slot = slot == ring + (RING - 1) * UNIT_BYTES ? ring : slot + UNIT_BYTES;
            }
            /* The split before is settled only now: its sums have long arrived. The barrier also says that
             * the buffer of the split before that one was read by all. */
            float *done = last_swap.data;
            last_swap.data = swap.data;
            swap.data = done;
            __syncthreads();
            if (BUFFERS == 2 && split != at.split)
                settle(split - 1, last_swap);
            swap.template put<NT>(s, warp, lane);
            if (split + 1 == at.split_end)
                break;
            if (BUFFERS == 1) {
                __syncthreads();
                settle(split, swap);
            }
        }
        if (is_short)
            copy_wait<0>();
        __syncthreads();
        settle(at.split_end - 1, swap);
        const size_t out = at.info.token * args.out_stride + (size_t)at.head * args.group * D;
        const bool whole = at.split == 0 && at.split_end == at.info.splits;
        if (at.split == 0) {
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                uint32_t part = p * THREADS + threadIdx.x;
                uint32_t head = part / COLUMNS, column = part % COLUMNS * 4;
                if (head >= args.group)
                    continue;
                if (whole)
                    store_out(args, out + head * D + column, state[p]);
                else
                    put_partial<D>(partial_at<D>(args, blockIdx.x, PREFIX_SLOT), args.group, head,
                                   column, state[p]);
            }
        }
        if (!whole && arrive(args, shared, at, total)) {
#pragma unroll 1
            for (uint32_t part = threadIdx.x; part < args.group * COLUMNS; part += THREADS) {
                uint32_t head = part / COLUMNS, column = part % COLUMNS * 4;
                store_out(args, out + head * D + column,
                          fold_partials<D>(args, shared, head, column));
            }
        }
        if (left == 0)
            break;
        next_segment(args, shared, at, left);
        left -= at.split_end;
        float *done = query.data;
        query.data = next_query.data;
        next_query.data = done;
    }
    copy_wait<0>();
}

template <int D, int NT, int RING>
int start(const rp_attention_cuda_args *args, cudaStream_t stream) {
    const rp_attention_args *op = &args->args;
    const rp_kv_layout *kv = &op->kv;
    decode_args to = {};
    to.kv = kv->base + (size_t)op->layer * 2 * kv->plane_stride;
    to.page_stride = kv->page_stride;
    to.plane_stride = kv->plane_stride;
    to.head_stride = kv->head_stride;
    to.slots = op->step.slots;
    to.plan = args->workspace.plans[args->mask_class].head;
    to.rows = args->workspace.plans[args->mask_class].rows;
    to.q = op->q;
    to.out = (unsigned char *)op->out;
    to.q_stride = op->q_stride;
    to.out_stride = op->out_stride;
    to.arrivals = args->workspace.arrivals;
    to.partials = args->workspace.partials;
    to.slot_words = op->step.slot_words;
    while (1u << to.page_log2 < kv->page_tokens)
        to.page_log2++;
    to.group = op->heads / op->kv_heads;
    to.kv_heads = op->kv_heads;
    to.row_capacity = args->workspace.row_capacity;
    to.scale = op->scale * 1.4426950408889634f;
    to.out_dtype = op->out_dtype;
    to.q_aligned = (((uintptr_t)op->q | op->q_stride * 4) & 15) == 0;
    size_t shared_bytes = kernel_sizes<D, NT, RING>::shared_bytes(to.group);
    int error =
        (int)cudaFuncSetAttribute(attention_decode_kernel<D, NT, RING>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    if (error != 0)
        return error;
    return rp_cuda_start(attention_decode_kernel<D, NT, RING>,
                         dim3(rp_attention_decode_cuda_blocks(&args->config)), dim3(THREADS),
                         shared_bytes, stream, args->config.limits.dependent_launch, to);
}

template <int D> int start_dim(const rp_attention_cuda_args *args, cudaStream_t stream) {
    return args->args.heads / args->args.kv_heads <= 8 ? start<D, 1, RP_DECODE_RING>(args, stream)
                                                       : start<D, 2, RP_DECODE_RING>(args, stream);
}

template <int D> size_t shared_bytes_of_dim(uint32_t group) {
    return group <= 8 ? kernel_sizes<D, 1, RP_DECODE_RING>::shared_bytes(group)
                      : kernel_sizes<D, 2, RP_DECODE_RING>::shared_bytes(group);
}

size_t shared_bytes_of(uint32_t dim, uint32_t group) {
    return dim == 64    ? shared_bytes_of_dim<64>(group)
           : dim == 96  ? shared_bytes_of_dim<96>(group)
           : dim == 128 ? shared_bytes_of_dim<128>(group)
                        : shared_bytes_of_dim<256>(group);
}

} // namespace

bool rp_attention_decode_cuda_supports(const rp_attention_cuda_config *config) {
    const rp_kv_layout *kv = &config->kv;
    uint32_t dim = config->head_dim, group = config->heads / config->kv_heads;
    uint64_t line =
        (uint64_t)config->step.config.row_capacity * RP_ATTENTION_SPLITS_MAX * config->kv_heads;
    return kv->dtype == RP_DTYPE_BF16 && kv->page_tokens >= TILE &&
           (kv->page_tokens & (kv->page_tokens - 1)) == 0 &&
           config->heads % config->kv_heads == 0 && group <= RP_ATTENTION_GROUP_MAX &&
           (dim == 64 || dim == 96 || dim == 128 || dim == 256) &&
           shared_bytes_of(dim, group) + sizeof(block_state) <= config->limits.shared_bytes_block &&
           (line + 1) * rp_attention_decode_cuda_blocks(config) <= UINT32_MAX;
}

uint32_t rp_attention_decode_cuda_blocks(const rp_attention_cuda_config *config) {
    return config->limits.sm_count * RP_DECODE_BLOCKS_PER_SM;
}

size_t rp_attention_decode_cuda_partial_floats(const rp_attention_cuda_config *config) {
    return (size_t)SLOTS * (config->heads / config->kv_heads) * (config->head_dim + 4);
}

int rp_attention_decode_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_attention_cuda_args *args = (const rp_attention_cuda_args *)args_void;
    switch (args->args.head_dim) {
    case 64:
        return start_dim<64>(args, stream);
    case 96:
        return start_dim<96>(args, stream);
    case 128:
        return start_dim<128>(args, stream);
    case 256:
        return start_dim<256>(args, stream);
    default:
        return (int)cudaErrorInvalidValue;
    }
}
