/* attention_prefill_wgmma_feed.cuh - prompt rows on Hopper: shared memory layout and the
 * producer. */
#ifndef RP_ATTENTION_ATTENTION_PREFILL_WGMMA_FEED_CUH
#define RP_ATTENTION_ATTENTION_PREFILL_WGMMA_FEED_CUH

#include "attention/attention_quantized_cuda.cuh"
#include "attention/attention_tile_cuda.cuh"
#include "attention/prefill/attention_wgmma_cuda.cuh"

#define ROWS        128 /* rows of a block */
#define STAGES      2   /* stages of the K ring and of the V ring */
#define COMPUTING   256 /* threads */
#define CONVERTING  128 /* threads that convert quantized values */
#define HALVES      3   /* of a plane of quantized values, in shared memory, before conversion */
#define CLAIM       1   /* index of the claim counter in the workspace */
#define TILE_STAGES 4   /* claimed tiles in shared memory */
#define Q_STAGES    3   /* most stages of Q */
#define LEAD_BLOCKS 4   /* of keys, from the claim of a tile to the last copy of the tile before */

/* Named barriers: 0 is __syncthreads. */
enum { SYNC_FEEDERS = 1, SYNC_ROWS = 2 /* and 3 */, SYNC_TURN = 4 /* and 5 */ };

template <int D> struct shape {
    static constexpr int keys = D == 256 ? 64 : 128; /* of a block */
    static constexpr int parts = D / 64;             /* columns come in parts of 64: 128 bytes */
    static constexpr uint32_t q_bytes = ROWS * D * 2, block_bytes = keys * D * 2;
    static constexpr uint32_t part_bytes = keys * 128; /* of K and V */
};

/* What depends on the page type. Threads: a producer warpgroup and two consumer warpgroups; for
 * quantized pages a fourth warpgroup converts to bf16 (attention_prefill_wgmma_quantized.cuh).
 * Registers per thread must fit the register file: 128 * 72 + 256 * 216 of 65536; with quantized
 * pages 128 * (48 + 48) + 256 * 208. */
template <int D, rp_dtype Page> struct teams {
    static constexpr bool is_quantized = page_of<Page>::is_quantized;
    /* Blocks of a cluster, each with its part of a plan's tile, and all with the same K and V. */
    static constexpr uint32_t cluster = is_quantized ? 1 : 2;
    /* Of Q: of the tile that is stored, the current tile and the next. */
    static constexpr int q_stages = D == 256 ? 1 : D == 128 && is_quantized ? 2 : Q_STAGES;
    static constexpr uint32_t threads = is_quantized ? 512 : 384;
    static constexpr int feed_registers = is_quantized ? (D == 64 ? 56 : 48) : D == 256 ? 56 : 72;
    static constexpr int convert_registers = D == 64 ? 56 : 48;
    static constexpr int compute_registers = is_quantized ? (D == 64 ? 192 : 208)
                                             : D == 256   ? 224
                                                          : 216;
    /* Pieces of Q in flight, per thread. */
    static constexpr int feed_batch = is_quantized || D == 256 ? 2 : 4;
    /* Scales of K and V of a block, for four blocks: V's are read after K's stage was released. */
    static constexpr uint32_t scale_bytes = is_quantized ? 2 * shape<D>::keys * 4 : 0;
    /* Quantized values before conversion, and the scales of two blocks as they are in the pages. */
    static constexpr uint32_t half_bytes = is_quantized ? shape<D>::keys * D / 2 : 0;
    static constexpr uint32_t staged_bytes = HALVES * half_bytes + 2 * scale_bytes;
    static constexpr size_t shared_bytes = 1024 + 1024 + q_stages * shape<D>::q_bytes +
                                           2 * STAGES * (shape<D>::block_bytes + scale_bytes) +
                                           staged_bytes;
    static_assert(shared_bytes <= 232448, "of a thread block");
    static_assert(!is_quantized || D <= 128, "no registers for more");
};

struct claimed_tile {
    prefill_tile plan; /* the cluster's: blocks of keys that it sees are read */
    prefill_tile tile; /* this block's tokens of it */
    uint32_t kv_head;
    bool is_alone; /* K and V are this block's alone */
};

/* The first KiB of shared memory; Q, K and V follow. */
struct control {
    uint64_t q_full[Q_STAGES], q_empty[Q_STAGES];
    uint64_t full[2][STAGES], empty[2][STAGES]; /* of K, of V */
    uint64_t tile_full[TILE_STAGES], may_claim;
    uint64_t claim_full[TILE_STAGES];                   /* in a cluster's second block */
    uint32_t claims[TILE_STAGES];                       /* there: what the first one claimed */
    uint64_t staged_full[HALVES], staged_empty[HALVES]; /* of quantized values */
    claimed_tile tiles[TILE_STAGES];
    int32_t params[TILE_STAGES][RP_MASK_PARAMS_MAX]; /* of a program, for each tile */
    uint32_t blocks[STAGES]; /* with a program: key + BLOCK_IS_... of the block in K's stage */
};
static_assert(sizeof(control) <= 1024, "");

struct wgmma_args {
    CUtensorMap map; /* (page, layer and plane, head, token, column) */
    rp_attention_cuda_args call;
    uint32_t box_tokens;
    capped_powers cap;
};

struct addresses { /* in shared memory */
    control *shared;
    uint32_t q, kv[2], scales, staged, staged_scales;
};

static __device__ __forceinline__ uint32_t at(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* Position in a ring of stages. */
template <uint32_t Count> struct ring {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void next() {
        stage = stage + 1 == Count ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};
using turn = ring<STAGES>;

/* --- producer --------------------------------------------------------------------------- */

/* K and V of one block: each lane with a page issues the bulk copy of its part of the columns.
 * Shared: both blocks of the cluster have the same K and V; the first one copies K and the second
 * one V, to both, when both have freed the stage. entry: mask program's block entry. */
template <int D, typename Mask, bool Shared>
static __device__ __forceinline__ void copy_block(const wgmma_args &args, const addresses &to,
                                                  uint32_t kv_head, turn &ring, uint32_t position,
                                                  uint32_t page, bool mine, uint32_t entry) {
    constexpr uint32_t keys = shape<D>::keys, parts = shape<D>::parts;
    uint32_t lane = threadIdx.x % 32, box = args.box_tokens;
    uint32_t bytes = __popc(__ballot_sync(0xFFFFFFFFu, mine)) * box * 128;
#pragma unroll
    for (uint32_t plane = 0; plane < 2; plane++) {
        uint32_t barrier = at(&to.shared->full[plane][ring.stage]);
        if (lane == 0) {
            barrier_wait(at(&to.shared->empty[plane][ring.stage]), ring.parity ^ 1);
            if (Mask::is_program && plane == 0)
                to.shared->blocks[ring.stage] = entry;
            barrier_expect(barrier, bytes);
        }
        __syncwarp();
        auto copy = Shared ? copy_box_to_both : copy_box;
        if (mine && (!Shared || plane == cluster_rank()))
            copy(to.kv[plane] + ring.stage * shape<D>::block_bytes +
                     lane % parts * shape<D>::part_bytes + position % keys * 128,
                 &args.map, barrier, lane % parts * 64,
                 position & (args.call.args.kv.page_tokens - 1), kv_head,
                 args.call.args.layer * 2 + plane, page);
    }
    ring.next();
}

/* Quantized values and scales of one block, to be converted: each lane with a page issues the bulk
 * copies of its keys. count: of the blocks before. */
template <int D, rp_dtype Page>
static __device__ __forceinline__ void
stage_block(const wgmma_args &args, const addresses &to, uint32_t kv_head, ring<HALVES> &half,
            uint32_t count, uint32_t position, uint32_t page, bool mine) {
    constexpr uint32_t keys = shape<D>::keys;
    const rp_kv_layout &kv = args.call.args.kv;
    const uint32_t box = args.box_tokens, row = position % keys;
    const uint32_t in_page = position & (kv.page_tokens - 1);
    const unsigned char *from = kv.base + page * kv.page_stride +
                                (size_t)args.call.args.layer * 2 * kv.plane_stride +
                                kv_head * kv.head_stride;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) { /* halves of K, of V */
        const bool is_now = mine && row / (keys / 2) == i % 2;
        const uint32_t barrier = at(&to.shared->staged_full[half.stage]);
        uint32_t bytes = __popc(__ballot_sync(0xFFFFFFFFu, is_now)) * box * D;
        if (i == 0)
            bytes += __popc(__ballot_sync(0xFFFFFFFFu, mine)) * box * 8;
        /* each lane: so racecheck follows it */
        barrier_wait(at(&to.shared->staged_empty[half.stage]), half.parity ^ 1);
        if (threadIdx.x % 32 == 0)
            barrier_expect(barrier, bytes);
        __syncwarp();
        if (is_now)
            copy_bulk(to.staged + half.stage * teams<D, Page>::half_bytes + row % (keys / 2) * D,
                      from + i / 2 * kv.plane_stride + in_page * D, box * D, barrier);
        if (i == 0 && mine)
#pragma unroll
            for (uint32_t plane = 0; plane < 2; plane++)
                copy_bulk(to.staged_scales + count % 2 * teams<D, Page>::scale_bytes +
                              (plane * keys + row) * 4,
                          from + plane * kv.plane_stride + kv.scales_at + in_page * 4, box * 4,
                          barrier);
        half.next();
    }
}

/* Iterates over a tile's blocks of keys in rising order, by whole warps. With a mask program: those
 * that the planner listed. */
template <int D, typename Mask> struct block_walk {
    static constexpr uint32_t keys = shape<D>::keys;
    uint32_t entry; /* first key of the block; with a program, plus BLOCK_IS_... bits */
    uint32_t left;  /* after it */
    mask_params<Mask> params;
    /* With a mask program (a lane holds two words of block bits): which words are nonzero, and the
     * remaining bits of one. */
    const uint2 *words;
    uint2 mine;
    uint32_t base, some, word, any, partial;

    __device__ __forceinline__ uint32_t key() const { return entry / keys * keys; }
    __device__ __forceinline__ bool is_partial() const {
        return Mask::is_program && (entry & BLOCK_IS_PARTIAL) != 0;
    }
    __device__ __forceinline__ void begin(const rp_attention_cuda_args &call,
                                          const prefill_tile &tile) {
        if constexpr (Mask::is_program) {
            const rp_attention_cuda_plan_view &plan = call.workspace.plans[call.mask_class];
            words = (const uint2 *)plan.blocks + (size_t)tile.index * call.workspace.block_words;
            left = plan.bounds[tile.index * 2 + 1];
            params.load(tile.params - RP_SLOT_MASK_PARAMS);
            any = base = 0;
            look(call);
        } else {
            entry = tile.first_key / keys * keys;
            left = (tile.key_end - entry + keys - 1) / keys;
            entry -= keys;
        }
    }
    /* Advances to the next block (after begin: to the first). False: there is none. */
    __device__ __forceinline__ bool next(const rp_attention_cuda_args &call) {
        if (left == 0)
            return false;
        left--;
        if constexpr (Mask::is_program)
            find(call);
        else
            entry += keys;
        return true;
    }
    __device__ __forceinline__ void find(const rp_attention_cuda_args &call) {
        while (any == 0) {
            while (some == 0) {
                base += 32;
                look(call);
            }
            word = __ffs((int)some) - 1;
            some &= some - 1;
            any = __shfl_sync(0xFFFFFFFFu, mine.x, word);
            partial = __shfl_sync(0xFFFFFFFFu, mine.y, word);
        }
        uint32_t bit = __ffs((int)any) - 1;
        any &= any - 1;
        entry = ((base + word) * 32 + bit) * keys | (partial >> bit & 1 ? BLOCK_IS_PARTIAL : 0) |
                (left == 0 ? BLOCK_IS_LAST : 0);
    }
    __device__ __forceinline__ void look(const rp_attention_cuda_args &call) {
        mine = make_uint2(0, 0);
        if (base + threadIdx.x % 32 < call.workspace.block_words)
            mine = words[base + threadIdx.x % 32];
        some = __ballot_sync(0xFFFFFFFFu, mine.x != 0);
    }
    /* Whether some row of the tile may see one of the keys [position, position + count) of one
     * page. */
    __device__ __forceinline__ bool is_needed(const claimed_tile &work, uint32_t position,
                                              uint32_t count, uint32_t group) const {
        const prefill_tile &tile = work.plan;
        if (position >= tile.key_end)
            return false;
        if constexpr (Mask::is_program)
            return !is_partial() ||
                   Mask::classify(tile.position, tile.tokens, position,
                                  min(position + count, tile.key_end), work.kv_head * group, group,
                                  params.value) != RP_MASK_SKIP;
        return position + count > tile.first_key;
    }
};

/* The blocks of one tile, by one warp: a lane copies one of `Parts` parts of the columns of a page,
 * if some row sees a key in it. The next block's pages are looked up while this block's copies are
 * in flight. */
template <int D, typename Mask, uint32_t Parts, typename Copy>
static __device__ __forceinline__ void feed_blocks(const wgmma_args &args, control *shared,
                                                   const claimed_tile &work, uint32_t group,
                                                   const Copy &copy) {
    constexpr uint32_t keys = shape<D>::keys;
    uint32_t lane = threadIdx.x % 32, box = args.box_tokens;
    uint32_t shift = 31 - __clz(args.call.args.kv.page_tokens);
    uint32_t offset = lane / Parts * box; /* of the lane's page, in the block */
    block_walk<D, Mask> walk;
    uint32_t page = 0;
    bool is_mine = false, may_claim = false;
    auto look_up = [&]() {
        uint32_t position = walk.key() + offset;
        is_mine = offset < keys && walk.is_needed(work, position, box, group);
        page = is_mine ? work.plan.pages[position >> shift] : 0;
    };
    walk.begin(args.call, work.plan);
    bool more = walk.next(args.call);
    if (more)
        look_up();
    while (more) {
        const uint32_t entry = walk.entry, now = page, position = walk.key() + offset;
        const bool is_needed = is_mine;
        if (!may_claim && walk.left < LEAD_BLOCKS) {
            may_claim = true;
            if (lane == 0)
                barrier_arrive(at(&shared->may_claim));
        }
        more = walk.next(args.call);
        if (more)
            look_up();
        copy(position, now, is_needed, entry);
    }
}

/* Producer of K and V: one warp, for all tiles. */
template <int D, typename Mask, rp_dtype Page>
static __device__ __forceinline__ void feed_keys(const wgmma_args &args, const addresses &to,
                                                 uint32_t group) {
    constexpr bool is_quantized = teams<D, Page>::is_quantized;
    control *shared = to.shared;
    turn stage;
    ring<HALVES> half;
    uint32_t blocks = 0;
    for (uint32_t count = 0;; count++) {
        barrier_wait(at(&shared->tile_full[count % TILE_STAGES]), count / TILE_STAGES & 1);
        const claimed_tile work = shared->tiles[count % TILE_STAGES];
        if (work.tile.tokens == 0)
            break;
        auto own = [&](uint32_t position, uint32_t page, bool mine, uint32_t entry) {
            if constexpr (is_quantized)
                stage_block<D, Page>(args, to, work.kv_head, half, blocks++, position, page, mine);
            else
                copy_block<D, Mask, false>(args, to, work.kv_head, stage, position, page, mine,
                                           entry);
        };
        auto common = [&](uint32_t position, uint32_t page, bool mine, uint32_t entry) {
            copy_block<D, Mask, true>(args, to, work.kv_head, stage, position, page, mine, entry);
        };
        constexpr uint32_t parts = is_quantized ? 1 : shape<D>::parts;
        if (is_quantized || work.is_alone)
            feed_blocks<D, Mask, parts>(args, shared, work, group, own);
        else
            feed_blocks<D, Mask, parts>(args, shared, work, group, common);
    }
    /* A block must not end before the other one's last arrival at its barriers. */
    for (uint32_t i = 0; i < STAGES && teams<D, Page>::cluster > 1; i++, stage.next())
        for (uint32_t plane = 0; plane < 2; plane++)
            barrier_wait(at(&shared->empty[plane][stage.stage]), stage.parity ^ 1);
}

template <bool Wide>
static __device__ __forceinline__ void load_eight(float4 (&x)[2], const float *from) {
    if (Wide) {
        x[0] = *(const float4 *)from;
        x[1] = *(const float4 *)(from + 4);
    } else {
        x[0] = make_float4(from[0], from[1], from[2], from[3]);
        x[1] = make_float4(from[4], from[5], from[6], from[7]);
    }
}

/* Rows [first, first + count) of Q, rounded to bf16; zeros where there is no token. Batch rows of a
 * thread are in flight at once: no load depends on a branch. */
template <int D, bool Wide, uint32_t Threads, uint32_t Batch>
static __device__ __forceinline__ void load_q(const rp_attention_args &args, uint32_t to,
                                              const claimed_tile &work, uint32_t thread,
                                              uint32_t group, uint32_t first, uint32_t count) {
    constexpr uint32_t chunks = D / 8, step = Threads / chunks;
    uint32_t chunk = thread % chunks, rows = work.tile.tokens * group;
    uint32_t divisor = (65535 + group) / group; /* row / group for rows below 256 */
    const float *base = args.q + (size_t)work.tile.token * args.q_stride +
                        (size_t)work.kv_head * group * D + chunk * 8;
    for (uint32_t row = first + thread / chunks; row < first + count; row += step * Batch) {
        float4 x[Batch][2];
#pragma unroll
        for (uint32_t i = 0; i < Batch; i++) {
            uint32_t at = min(row + i * step, rows - 1), token = at * divisor >> 16;
            load_eight<Wide>(x[i], base + (size_t)token * args.q_stride + (at - token * group) * D);
        }
#pragma unroll
        for (uint32_t i = 0; i < Batch; i++) {
            uint32_t at = row + i * step;
            bool has_token = at < rows;
            uint32_t place = to + chunk / 8 * (ROWS * 128) + at * 128 + (chunk % 8 ^ at % 8) * 16;
            if (at < first + count)
                asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(place),
                             "r"(has_token ? pack_bf16(x[i][0].x, x[i][0].y) : 0),
                             "r"(has_token ? pack_bf16(x[i][0].z, x[i][0].w) : 0),
                             "r"(has_token ? pack_bf16(x[i][1].x, x[i][1].y) : 0),
                             "r"(has_token ? pack_bf16(x[i][1].z, x[i][1].w) : 0)
                             : "memory");
        }
    }
    fence_async_proxy();
}

template <int D, rp_dtype Page, uint32_t Threads, uint32_t Batch>
static __device__ __forceinline__ void feed_q(const wgmma_args &args, uint32_t to,
                                              const claimed_tile &work, uint32_t thread,
                                              uint32_t group, uint32_t first, uint32_t count) {
    const rp_attention_args &call = args.call.args;
    if (call.q_stride % 4 == 0 && (uintptr_t)call.q % 16 == 0)
        load_q<D, true, Threads, Batch>(call, to, work, thread, group, first, count);
    else
        load_q<D, false, Threads, Batch>(call, to, work, thread, group, first, count);
}

/* Requests the rows of Q of a tile that is loaded later: a token's query heads of one KV head are
 * neighbors. */
template <int D, uint32_t Threads>
static __device__ __forceinline__ void prefetch_q(const rp_attention_args &args,
                                                  const claimed_tile &work, uint32_t thread,
                                                  uint32_t group) {
    if (args.q_stride % 4 != 0 || (uintptr_t)args.q % 16 != 0)
        return;
#pragma unroll 1
    for (uint32_t token = thread; token < work.tile.tokens; token += Threads) {
        const float *from = args.q + (size_t)(work.tile.token + token) * args.q_stride +
                            (size_t)work.kv_head * group * D;
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(group * D * 4)
                     : "memory");
    }
}

/* KV heads that a tile of the plan is for. */
template <uint32_t Cluster>
static __host__ __device__ __forceinline__ uint32_t heads_of_tile(uint32_t kv_heads) {
    return Cluster == 2 && kv_heads % 2 == 0 ? kv_heads / 2 : kv_heads;
}

/* The count-th claim of a cluster, by one thread of each of its blocks: the first one claims and
 * tells the other. The first claim is static. */
template <uint32_t Cluster>
static __device__ __forceinline__ uint32_t claim(const rp_attention_cuda_args &call,
                                                 control *shared, uint32_t items, uint32_t count) {
    const uint32_t slot = count % TILE_STAGES;
    if (count == 0)
        return blockIdx.x / Cluster;
    if (Cluster > 1 && cluster_rank() != 0) {
        barrier_expect(at(&shared->claim_full[slot]), sizeof(uint32_t));
        barrier_wait_cluster(at(&shared->claim_full[slot]), (count - 1) / TILE_STAGES & 1);
        return shared->claims[slot];
    }
    uint32_t *counter = &call.workspace.claims[CLAIM];
    barrier_wait(at(&shared->may_claim), (count - 1) & 1);
    const uint32_t before = atomicAdd(counter, 1), claimed = gridDim.x / Cluster + before;
    if (before == items - 1)
        *counter = 0; /* every block has made its last claim */
    if (Cluster > 1)
        send_word(at(&shared->claims[slot]), claimed, at(&shared->claim_full[slot]), 1);
    return claimed;
}

/* This block's half of the tokens of a plan's tile; a single token is in both halves. */
template <typename Mask>
static __device__ __forceinline__ prefill_tile half_tile(const rp_attention_cuda_args &call,
                                                         prefill_tile tile) {
    const uint32_t half = (tile.tokens + 1) / 2,
                   first = min(cluster_rank() * half, tile.tokens - 1);
    tile.token += first;
    tile.position += first;
    tile.tokens = min(half, tile.tokens - first);
    if (!Mask::is_program) {
        tile.first_key = first_visible(call.args.window, tile.position);
        tile.key_end = tile.position + tile.tokens;
    }
    return tile;
}

/* One thread: claims a tile and publishes it to the block. */
template <typename Mask, uint32_t Cluster>
static __device__ __forceinline__ void claim_tile(const rp_attention_cuda_args &call,
                                                  control *shared, uint32_t count) {
    const uint32_t kv_heads = call.args.kv_heads, heads = heads_of_tile<Cluster>(kv_heads);
    const uint32_t items = call.workspace.plans[call.mask_class].head->tiles * heads;
    const uint32_t item = claim<Cluster>(call, shared, items, count);
    claimed_tile work = {};
    if (item < items) {
        work.plan = find_tile<Mask>(call, item / heads);
        const bool fits = work.plan.tokens <= ROWS / (call.args.heads / kv_heads);
        work.is_alone = Cluster == 1 || (heads != kv_heads && fits);
        work.tile = work.is_alone ? work.plan : half_tile<Mask>(call, work.plan);
        work.kv_head = work.plan.half * heads + item % heads;
        if (Cluster > 1 && work.is_alone)
            work.kv_head = item % heads * Cluster + cluster_rank();
        for (int i = 0; i < Mask::param_count; i++)
            shared->params[count % TILE_STAGES][i] = (int32_t)work.tile.params[i];
    }
    shared->tiles[count % TILE_STAGES] = work;
    barrier_arrive(at(&shared->tile_full[count % TILE_STAGES]));
}

/* Warp 0 copies K and V, the other three warps Q, one tile ahead. The first tile's Q is loaded by
 * the consumers: they have more threads and nothing to compute yet. */
template <int D, typename Mask, rp_dtype Page>
static __device__ __forceinline__ void feed(const wgmma_args &args, const addresses &to,
                                            uint32_t group) {
    const rp_attention_cuda_args &call = args.call;
    control *shared = to.shared;
    if (threadIdx.x < 32) {
        feed_keys<D, Mask, Page>(args, to, group);
        return;
    }
    constexpr uint32_t stages = teams<D, Page>::q_stages;
    const uint32_t thread = threadIdx.x - 32;
    for (uint32_t count = 0;; count++) {
        const uint32_t slot = count % stages;
        /* tiles[count % TILE_STAGES] is free: the wait below was for an earlier tile. */
        if (thread == 0)
            claim_tile<Mask, teams<D, Page>::cluster>(call, shared, count);
        asm volatile("bar.sync %0, 96;" ::"r"(SYNC_FEEDERS) : "memory");
        const claimed_tile work = shared->tiles[count % TILE_STAGES];
        if (count != 0)
            prefetch_q<D, 96>(call.args, work, thread, group);
        barrier_wait(at(&shared->q_empty[slot]), (count / stages & 1) ^ 1);
        if (work.tile.tokens != 0 && count != 0)
            feed_q<D, Page, 96, teams<D, Page>::feed_batch>(args, to.q + slot * shape<D>::q_bytes,
                                                            work, thread, group, 0, ROWS);
        barrier_arrive(at(&shared->q_full[slot]));
        if (work.tile.tokens == 0)
            return;
    }
}

#endif
