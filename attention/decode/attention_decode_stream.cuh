/* attention_decode_stream.cuh - decode attention: the work of a block, and the prefetch of K and V
 * into its shared memory. */
#ifndef RP_ATTENTION_ATTENTION_DECODE_STREAM_CUH
#define RP_ATTENTION_ATTENTION_DECODE_STREAM_CUH

#include "attention/attention_internal_cuda.h"
#include "attention/attention_quantized_cuda.cuh"
#include "attention/program/attention_mask_policy.cuh"
#include "device/cuda_kernel.cuh"

#include <math.h>

namespace {

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * 32;
constexpr uint32_t TILE = 16; /* keys: the rows of one instruction */
constexpr uint32_t PREFIX_SLOT =
    RP_ATTENTION_SPLITS_MAX; /* slot of a block's partial sums: a folded beginning */
constexpr uint32_t SLOTS = RP_ATTENTION_SPLITS_MAX + 1;
constexpr uint32_t ROWS_AHEAD = 8; /* of a block's rows held in shared memory */

struct decode_args {
    const unsigned char *kv; /* of the layer, page 0, KV head 0 */
    size_t page_stride, plane_stride, head_stride;
    const uint32_t *slots;
    const uint32_t *tables; /* the layer's page table of slot 0 */
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
    bool early;     /* everything except q and the step's own keys may be read before the wait */
    rp_cuda_stamp stamp;
    float cap_in, cap_out; /* a capped score is cap_out * tanh(cap_in * (q . k)), times log2 e */
    /* With a mask program: (row_capacity, unit_capacity), the units of RP_ATTENTION_SPLIT keys that
     * a row reads (attention_internal_cuda.h), and its scale. */
    const uint32_t *units;
    uint32_t unit_capacity;
    float natural_scale;
    uint32_t scales_at; /* 8-bit pages: as in rp_kv_layout */
    const float *sinks; /* (KV heads * group), or NULL */
};

__device__ __forceinline__ uint32_t shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* K and V are read once: evict them from L2 first, so that weights and activations stay
 * resident. */
__device__ __forceinline__ uint64_t read_once_policy() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

template <uint32_t TO, uint32_t FROM>
__device__ __forceinline__ void copy_16_once(uint32_t to, const void *from, uint64_t policy) {
    asm volatile(
        "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0 + %2], [%1 + %3], 16, %4;" ::"r"(to),
        "l"(from), "n"(TO), "n"(FROM), "l"(policy));
}

__device__ __forceinline__ void copy_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
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

__device__ __forceinline__ void barrier_init(uint64_t *barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
                 : "memory");
}

/* Every thread arrives, which costs no more than one lane per warp; and racecheck tracks barriers
 * per thread, not through __syncwarp. */
__device__ __forceinline__ void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* Waiting in the instruction came with sm_90. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define BARRIER_WAIT "mbarrier.try_wait"
#else
#define BARRIER_WAIT "mbarrier.test_wait"
#endif

__device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again_%=:\n" BARRIER_WAIT ".parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again_%=;\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
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

/* mma.sync accumulate: bf16 operands, f16 for quantized pages. */
template <rp_dtype Page>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
    if constexpr (page_of<Page>::is_quantized)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
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

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
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

/* Current segment of a block: splits [split, split_end) of one row and KV head. */
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

/* Block-uniform state. */
struct block_state {
    uint64_t full[2], empty[2]; /* barriers of the exchange buffers: written, read by every warp */
    segment start;
    rp_attention_plan_row rows[ROWS_AHEAD]; /* from the first row on */
    uint32_t is_last;
    uint32_t partial_count;
    /* of the step, if it is stamped; used by thread 0 */
    uint32_t flags;
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

/* A program's row numbers its keys in the order of its unit list: from 0, without gaps. `first`
 * then holds its own position. */
template <typename Mask>
__device__ __forceinline__ uint32_t first_key(const rp_attention_plan_row &row) {
    return Mask::is_program ? 0 : row.first;
}

/* Keys [begin, end) of splits [split, split_end). */
template <typename Mask>
__device__ __forceinline__ uint32_t keys_begin(const segment &at, uint32_t split) {
    return max(first_key<Mask>(at.info), (at.info.first_split + split) << at.info.split_log2);
}
__device__ __forceinline__ uint32_t keys_end(const segment &at, uint32_t split_end) {
    return min(at.info.position + 1, (at.info.first_split + split_end) << at.info.split_log2);
}

/* Whether any, and whether all, of `count` keys are visible. */
template <typename Mask>
__device__ __forceinline__ bool any_is_seen(const rp_attention_plan_row &row, uint32_t key,
                                            uint32_t count) {
    return key <= row.position && key + count > first_key<Mask>(row);
}
__device__ __forceinline__ bool all_are_seen(const rp_attention_plan_row &row, uint32_t key,
                                             uint32_t count) {
    return key + count <= row.position + 1 && key >= row.first;
}

/* Distribution of a split's keys to the warps. */
template <int D, rp_dtype Page = RP_DTYPE_BF16> struct sizes_of {
    static constexpr uint32_t TILES = D <= 128 ? 2 : 1;
    static constexpr uint32_t UNIT = TILES * TILE; /* keys */
    static constexpr uint32_t STEP = UNIT * WARPS; /* keys of one unit per warp */
    /* keys whose page indices a warp's lanes hold */
    static constexpr uint32_t BATCH = 32 / TILES * STEP;
    static constexpr uint32_t DATA = D * page_of<Page>::bytes; /* bytes of a key */
    /* an odd multiple of 16 bytes: no bank conflicts */
    static constexpr uint32_t ROW_BYTES = DATA + 16;
    static constexpr uint32_t UNIT_BYTES = UNIT * ROW_BYTES;
    /* A warp's ring: K and V of a unit, and the scales of both. */
    static constexpr uint32_t SCALE_BYTES = page_of<Page>::is_quantized ? UNIT * 8 : 0;
    static constexpr uint32_t WARP_BYTES = 2 * UNIT_BYTES + SCALE_BYTES;
};
static_assert(RP_ATTENTION_SPLIT % sizes_of<64>::STEP == 0, "a split is whole steps");

/* Decodes a unit of a program's list. */
#define UNIT_IS_PARTIAL 1u
__device__ __forceinline__ uint32_t unit_key(uint32_t unit) {
    return unit / 2 * RP_ATTENTION_SPLIT;
}

/* One warp's stream of units into its ring, ahead of the sums. */
template <int D, typename Mask, rp_dtype Page = RP_DTYPE_BF16> struct loader {
    using sizes = sizes_of<D, Page>;
    static constexpr uint32_t TILES = sizes::TILES, UNIT = sizes::UNIT, STEP = sizes::STEP,
                              BATCH = sizes::BATCH, ROW_BYTES = sizes::ROW_BYTES;
    static constexpr uint32_t CHUNKS = sizes::DATA / 16; /* of 16 bytes */
    /* One instruction of a warp copies 32 chunks; after this many instructions whole rows are
     * copied. */
    static constexpr uint32_t PERIOD = CHUNKS % 3 == 0 ? 3 : 1;
    segment at;
    uint32_t left; /* splits after this segment */
    uint32_t key, end;
    /* a lane's page from key `batch` on, and in the next batch */
    uint32_t batch, pages, next_pages;
    uint32_t lane_to[PERIOD];         /* destination of a lane's chunk for each instruction */
    const unsigned char *from[TILES]; /* a lane's first chunk of each tile */
    /* With a program: this unit's list entry and the bits of its keys that some head sees; the list
     * entry of a lane's page. */
    uint32_t unit, seen;
    uint32_t units, next_units;
    mask_params<Mask> params; /* of the row */

    __device__ __forceinline__ void init(uint32_t lane) {
#pragma unroll
        for (uint32_t i = 0; i < PERIOD; i++)
            lane_to[i] = (i * 32 + lane + (i * 32 + lane) / CHUNKS) * 16;
    }

    /* The pages of 32 tiles of this warp, from `base` on. index: of the row; units: the tiles'
     * entries. */
    __device__ __forceinline__ uint32_t load_pages(const decode_args &args,
                                                   const rp_attention_plan_row &row, uint32_t index,
                                                   uint32_t base, uint32_t warp, uint32_t lane,
                                                   uint32_t &units) {
        const uint32_t *table = args.tables + (size_t)row.slot * args.slot_words;
        uint32_t mine = base + lane / TILES * STEP + warp * UNIT + lane % TILES * TILE;
        if constexpr (Mask::is_program) {
            units = 0;
            if (mine > row.position)
                return 0;
            units =
                __ldcg(args.units + (size_t)index * args.unit_capacity + mine / RP_ATTENTION_SPLIT);
            mine = unit_key(units) + mine % RP_ATTENTION_SPLIT;
            return mine <= row.first ? __ldcg(table + (mine >> args.page_log2)) : 0;
        }
        return any_is_seen<Mask>(row, mine, TILE) ? __ldcg(table + (mine >> args.page_log2)) : 0;
    }
    __device__ __forceinline__ void load_params(const decode_args &args,
                                                const rp_attention_plan_row &row) {
        params.load(args.slots + (size_t)row.slot * args.slot_words);
    }
    /* Prefetches the page indices of the next batch. */
    __device__ __forceinline__ void look_ahead(const decode_args &args, const block_state &shared,
                                               uint32_t warp, uint32_t lane) {
        if (batch + BATCH < end) {
            next_pages = load_pages(args, at.info, at.row, batch + BATCH, warp, lane, next_units);
        } else if (left != 0) {
            const bool wraps = at.head + 1 == args.kv_heads;
            const rp_attention_plan_row row = wraps ? row_at(args, shared, at.row + 1) : at.info;
            next_pages = load_pages(args, row, at.row + wraps, first_key<Mask>(row) & ~(STEP - 1),
                                    warp, lane, next_units);
        }
    }
    __device__ __forceinline__ void enter() {
        key = keys_begin<Mask>(at, at.split) & ~(STEP - 1);
        end = keys_end(at, at.split_end);
        batch = key;
    }
    /* Copies all chunks of a tile, from the PART-th on. */
    template <uint32_t PART>
    __device__ __forceinline__ void copy_parts(uint32_t to, const unsigned char *tile) {
        if constexpr (PART < TILE * CHUNKS / 32) {
            copy_16_once<PART / PERIOD * PERIOD * 512 + PART / PERIOD * PERIOD * 32 / CHUNKS * 16,
                         PART * 512>(to + lane_to[PART % PERIOD], tile, read_once_policy());
            copy_parts<PART + 1>(to, tile);
        }
    }
    /* Masked keys are zero-filled: garbage must not enter a sum. The row's own key, its last, may
     * be left out. */
    __device__ __forceinline__ void copy_seen(uint32_t to, const unsigned char *tile,
                                              uint32_t first, bool but_own, uint32_t lane) {
#pragma unroll 1
        for (uint32_t i = 0; i < TILE * CHUNKS; i += 32) {
            uint32_t row = (i + lane) / CHUNKS, position = first + row;
            if (!but_own || position != at.info.position)
                copy_16_or_zero(to + (i + lane + row) * 16, tile + i * 16,
                                position >= at.info.first && position <= at.info.position);
        }
    }
    /* The same for a program's partial unit, by the bits of `seen`. */
    __device__ __forceinline__ void copy_bits(uint32_t to, const unsigned char *tile,
                                              uint32_t first, uint32_t bits, bool but_own,
                                              uint32_t lane) {
#pragma unroll 1
        for (uint32_t i = 0; i < TILE * CHUNKS; i += 32) {
            uint32_t row = (i + lane) / CHUNKS;
            if (!but_own || first + row != at.info.first || (bits >> row & 1) == 0)
                copy_16_or_zero(to + (i + lane + row) * 16, tile + i * 16, bits >> row & 1);
        }
    }
    /* Position of the unit's keys in the sequence. */
    __device__ __forceinline__ uint32_t place(uint32_t warp) const {
        if constexpr (Mask::is_program)
            return unit_key(unit) + key % RP_ATTENTION_SPLIT + warp * UNIT;
        return key + warp * UNIT;
    }
    __device__ __forceinline__ void copy_program(uint32_t to, bool but_own, uint32_t warp,
                                                 uint32_t lane) {
        if (key >= end || seen == 0)
            return;
        if (!but_own && (unit & UNIT_IS_PARTIAL) == 0) {
#pragma unroll
            for (uint32_t t = 0; t < TILES; t++)
                copy_parts<0>(to + t * TILE * ROW_BYTES, from[t]);
        } else {
            uint32_t first = place(warp);
#pragma unroll
            for (uint32_t t = 0; t < TILES; t++)
                copy_bits(to + t * TILE * ROW_BYTES, from[t], first + t * TILE, seen >> t * TILE,
                          but_own, lane);
        }
    }
    __device__ __forceinline__ void copy(uint32_t to, bool but_own, uint32_t warp, uint32_t lane) {
        if constexpr (Mask::is_program) {
            copy_program(to, but_own, warp, lane);
            copy_commit();
            return;
        }
        uint32_t first = key + warp * UNIT;
        if (key < end && any_is_seen<Mask>(at.info, first, UNIT)) {
            if (!but_own && all_are_seen(at.info, first, UNIT)) {
#pragma unroll
                for (uint32_t t = 0; t < TILES; t++)
                    copy_parts<0>(to + t * TILE * ROW_BYTES, from[t]);
            } else {
#pragma unroll
                for (uint32_t t = 0; t < TILES; t++)
                    copy_seen(to + t * TILE * ROW_BYTES, from[t], first + t * TILE, but_own, lane);
            }
        }
        copy_commit();
    }
    /* Visible keys of a program's unit; each lane evaluates one. */
    __device__ __forceinline__ void find_seen(const decode_args &args, uint32_t warp,
                                              uint32_t lane) {
        if constexpr (Mask::is_program) {
            const uint32_t all = UNIT == 32 ? 0xFFFFFFFFu : (1u << UNIT % 32) - 1;
            seen = all;
            if (unit & UNIT_IS_PARTIAL && key < end) {
                uint32_t mine = place(warp) + lane;
                seen =
                    all & __ballot_sync(0xFFFFFFFFu, mine <= at.info.first &&
                                                         Mask::any_sees(at.info.first, 1, mine,
                                                                        at.head * args.group,
                                                                        args.group, params.value));
            }
        }
    }
    /* Advances to the next unit. */
    __device__ __forceinline__ void advance(const decode_args &args, const block_state &shared,
                                            uint32_t warp, uint32_t lane) {
        bool enters = key >= end && left != 0;
        if (enters) {
            uint32_t row = at.row;
            next_segment(args, shared, at, left);
            left -= at.split_end;
            enter();
            if (Mask::is_program && at.row != row)
                load_params(args, at.info);
        }
        if (enters || key - batch == BATCH) {
            batch = key;
            pages = next_pages;
            if constexpr (Mask::is_program)
                units = next_units;
            look_ahead(args, shared, warp, lane);
        }
        if constexpr (Mask::is_program) {
            unit = __shfl_sync(0xFFFFFFFFu, units, (key - batch) / STEP * TILES);
            find_seen(args, warp, lane);
        }
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            uint32_t page = __shfl_sync(0xFFFFFFFFu, pages, (key - batch) / STEP * TILES + t);
            uint32_t in_page = (place(warp) + t * TILE) & ((1u << args.page_log2) - 1);
            from[t] = args.kv + page * args.page_stride + at.head * args.head_stride +
                      in_page * sizes::DATA + lane * 16;
        }
    }
    /* Copies the unit's scales, of K and then of V, four keys per lane; zeros where none of the
     * four is seen. Either all except the four with the row's own key, or only those. */
    enum chosen { ALL, BUT_OWN, OWN };
    __device__ __forceinline__ void copy_scales(const decode_args &args, uint32_t to, chosen keys,
                                                uint32_t warp, uint32_t lane) {
        const uint32_t quad = lane % (TILES * 4); /* of the unit's keys */
        const uint32_t first = place(warp) + quad * 4, own = own_position();
        const uint32_t page =
            __shfl_sync(0xFFFFFFFFu, pages, (key - batch) / STEP * TILES + quad / 4);
        const uint32_t in_page = first & ((1u << args.page_log2) - 1);
        const bool is_seen =
            Mask::is_program ? (seen >> quad * 4 & 15) != 0 : any_is_seen<Mask>(at.info, first, 4);
        const bool is_own = own - first < 4;
        if (key < end && lane < TILES * 8 && (keys == ALL || is_own == (keys == OWN)))
            copy_16_or_zero(to + lane * 16,
                            args.kv + page * args.page_stride + at.head * args.head_stride +
                                lane / (TILES * 4) * args.plane_stride + args.scales_at +
                                in_page * 4,
                            is_seen);
    }
    /* Issues K of the next unit, then its V; all scales go with K. */
    __device__ __forceinline__ void issue_key(const decode_args &args, const block_state &shared,
                                              uint32_t to, bool but_own, uint32_t warp,
                                              uint32_t lane) {
        advance(args, shared, warp, lane);
        if constexpr (page_of<Page>::is_quantized)
            copy_scales(args, to + 2 * sizes::UNIT_BYTES, but_own && has_own(warp) ? BUT_OWN : ALL,
                        warp, lane);
        copy(to, but_own && has_own(warp), warp, lane);
    }
    __device__ __forceinline__ void issue_value(const decode_args &args, uint32_t to, bool but_own,
                                                uint32_t warp, uint32_t lane) {
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++)
            from[t] += args.plane_stride;
        copy(to, but_own && has_own(warp), warp, lane);
        key += STEP;
    }
    __device__ __forceinline__ uint32_t own_position() const {
        return Mask::is_program ? at.info.first : at.info.position;
    }
    /* This unit contains the row's own key, written in this step. */
    __device__ __forceinline__ bool has_own(uint32_t warp) const {
        uint32_t first = place(warp), own = own_position();
        return key < end && first <= own && first + UNIT > own;
    }
    /* Copies what `but_own` left out of the last issued unit, in the next cp.async group. */
    __device__ __forceinline__ void copy_own(const decode_args &args, uint32_t keys_at,
                                             uint32_t values_at, uint32_t warp, uint32_t lane) {
        key -= STEP;
        if (has_own(warp)) {
            uint32_t row = own_position() - place(warp);
            uint32_t page =
                __shfl_sync(0xFFFFFFFFu, pages, (key - batch) / STEP * TILES + row / TILE);
            uint32_t in_page = own_position() & ((1u << args.page_log2) - 1);
            const unsigned char *own = args.kv + page * args.page_stride +
                                       at.head * args.head_stride + in_page * sizes::DATA +
                                       lane * 16;
            if (lane < CHUNKS && (!Mask::is_program || seen >> row & 1)) {
                copy_16(keys_at + row * ROW_BYTES + lane * 16, own);
                copy_16(values_at + row * ROW_BYTES + lane * 16, own + args.plane_stride);
            }
            if constexpr (page_of<Page>::is_quantized)
                copy_scales(args, keys_at + 2 * sizes::UNIT_BYTES, OWN, warp, lane);
        }
        key += STEP;
    }
};

} // namespace

#endif
