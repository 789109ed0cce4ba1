/* attention_prefill_wgmma_kernel.cuh - prompt rows on Hopper: the kernel of attention_prefill_wgmma_cuda.cu. */
#ifndef RP_ATTENTION_ATTENTION_PREFILL_WGMMA_KERNEL_CUH
#define RP_ATTENTION_ATTENTION_PREFILL_WGMMA_KERNEL_CUH

#include "attention/attention_tile_cuda.cuh"
#include "attention/attention_wgmma_cuda.cuh"

#define ROWS    128 /* of a tile */
#define STAGES  2   /* of K, and of V */
#define THREADS 384
#define CLAIM   1 /* which counter of the workspace */
#define LEAD    3 /* so many blocks before a tile's last one is asked for, the next tile is claimed */

/* Barriers of hardware: 0 is __syncthreads. */
enum { SYNC_FEEDERS = 1, SYNC_ROWS = 2 /* and 3 */, SYNC_TURN = 4 /* and 5 */ };

template <int D> struct shape {
    static constexpr int keys = D == 256 ? 64 : 128; /* of a block */
    static constexpr int parts = D / 64;             /* columns come in parts of 64: 128 bytes */
    static constexpr int q_stages = D == 256 ? 1 : 2;
    /* Of a thread: together the register file, 128 * 72 + 256 * 216 of 65536. */
    static constexpr int feed_registers = D == 256 ? 56 : 72;
    static constexpr int compute_registers = D == 256 ? 224 : 216;
    static constexpr int feed_batch = D == 256 ? 2 : 4; /* pieces of Q in flight */
    static constexpr uint32_t q_bytes = ROWS * D * 2, block_bytes = keys * D * 2;
    static constexpr uint32_t part_bytes = keys * 128; /* of K and V */
    static constexpr size_t shared_bytes =
        1024 + 1024 + q_stages * q_bytes + 2 * STAGES * block_bytes;
};

struct claimed_tile {
    prefill_tile tile;
    uint32_t kv_head;
};

/* The first KiB of shared memory; Q, K and V follow. */
struct control {
    uint64_t q_full[2], q_empty[2];
    uint64_t full[2][STAGES], empty[2][STAGES]; /* of K, of V */
    uint64_t tile_full[2], may_claim;
    claimed_tile tiles[2];
    int32_t params[2][RP_MASK_PARAMS_MAX]; /* of a program, for each tile */
    uint32_t blocks[STAGES]; /* of a program: key + BLOCK_IS_... of what is in K's stage */
};

struct wgmma_args {
    CUtensorMap map; /* (page, layer and plane, head, token, column) */
    rp_attention_cuda_args call;
    uint32_t box_tokens;
    capped_powers cap;
};

struct addresses { /* in shared memory */
    control *shared;
    uint32_t q, kv[2];
};

static __device__ __forceinline__ uint32_t at(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* A place in a ring of stages. */
struct turn {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void next() {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

/* --- feeding --- */

/* One block's K and V: a lane with a page asks for its part of the columns. entry: of a program. */
template <int D, typename Mask>
static __device__ __forceinline__ void ask_block(const wgmma_args &args, const addresses &to,
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
        if (mine)
            copy_box(to.kv[plane] + ring.stage * shape<D>::block_bytes +
                         lane % parts * shape<D>::part_bytes + position % keys * 128,
                     &args.map, barrier, lane % parts * 64,
                     position & (args.call.args.kv.page_tokens - 1), kv_head,
                     args.call.args.layer * 2 + plane, page);
    }
    ring.next();
}

/* K and V of a tile's blocks, by one warp: a lane asks for one part of the columns of one page, if a key
 * in it is seen by some row. The next block's pages are looked up while this one's copies are waited for. */
template <int D, typename Mask>
static __device__ __forceinline__ void feed_blocks(const wgmma_args &args, const addresses &to,
                                                   const claimed_tile &work, turn &ring) {
    constexpr uint32_t keys = shape<D>::keys, parts = shape<D>::parts;
    const rp_attention_args &attention = args.call.args;
    const prefill_tile &tile = work.tile;
    uint32_t lane = threadIdx.x % 32, box = args.box_tokens;
    uint32_t shift = 31 - __clz(attention.kv.page_tokens);
    uint32_t offset = lane / parts * box; /* of the lane's page, in the block */
    auto is_needed = [&](uint32_t position) {
        return offset < keys && position + box > tile.first_key && position < tile.key_end;
    };
    uint32_t key = tile.first_key / keys * keys;
    uint32_t page = is_needed(key + offset) ? tile.pages[(key + offset) >> shift] : 0;
    bool may_claim = false;
    for (; key < tile.key_end; key += keys) {
        uint32_t position = key + offset, next = position + keys, next_page = 0;
        if (is_needed(next))
            next_page = tile.pages[next >> shift];
        if (!may_claim && key + LEAD * keys >= tile.key_end) {
            may_claim = true;
            if (lane == 0)
                barrier_arrive(at(&to.shared->may_claim));
        }
        ask_block<D, Mask>(args, to, work.kv_head, ring, position, page, is_needed(position), 0);
        page = next_page;
    }
}

/* The same of a program: the blocks that the planner left, and of them the pages. */
template <int D, typename Mask>
static __device__ __forceinline__ void feed_program(const wgmma_args &args, const addresses &to,
                                                    const claimed_tile &work, turn &ring) {
    constexpr uint32_t keys = shape<D>::keys, parts = shape<D>::parts;
    const rp_attention_args &attention = args.call.args;
    const rp_attention_cuda_workspace &workspace = args.call.workspace;
    const rp_attention_cuda_plan_view &plan = workspace.plans[args.call.mask_class];
    const prefill_tile &tile = work.tile;
    const uint2 *words = (const uint2 *)plan.blocks + (size_t)tile.index * workspace.block_words;
    uint32_t lane = threadIdx.x % 32, box = args.box_tokens, left = plan.bounds[tile.index * 2 + 1];
    uint32_t shift = 31 - __clz(attention.kv.page_tokens), offset = lane / parts * box;
    uint32_t group = attention.heads / attention.kv_heads;
    mask_params<Mask> params;
    params.load(tile.pages - RP_SLOT_PAGES);
    bool may_claim = false;
    for (uint32_t base = 0; left != 0; base += 32) {
        uint2 mine = make_uint2(0, 0);
        if (base + lane < workspace.block_words)
            mine = words[base + lane];
        for (uint32_t some = __ballot_sync(0xFFFFFFFFu, mine.x != 0); some != 0; some &= some - 1) {
            uint32_t word = __ffs((int)some) - 1;
            uint32_t any = __shfl_sync(0xFFFFFFFFu, mine.x, word);
            uint32_t partial = __shfl_sync(0xFFFFFFFFu, mine.y, word);
            for (; any != 0; any &= any - 1) {
                uint32_t bit = __ffs((int)any) - 1, position = ((base + word) * 32 + bit) * keys;
                uint32_t entry = position | (partial >> bit & 1 ? BLOCK_IS_PARTIAL : 0);
                if (!may_claim && left <= LEAD) {
                    may_claim = true;
                    if (lane == 0)
                        barrier_arrive(at(&to.shared->may_claim));
                }
                if (--left == 0)
                    entry |= BLOCK_IS_LAST;
                position += offset;
                bool is_needed =
                    offset < keys && position < tile.key_end &&
                    ((entry & BLOCK_IS_PARTIAL) == 0 ||
                     Mask::classify(tile.position, tile.tokens, position,
                                    min(position + box, tile.key_end), work.kv_head * group, group,
                                    params.value) != RP_MASK_SKIP);
                uint32_t page = is_needed ? tile.pages[position >> shift] : 0;
                ask_block<D, Mask>(args, to, work.kv_head, ring, position, page, is_needed, entry);
            }
        }
    }
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
 * thread are in flight at once: no load stands behind a branch. */
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

template <int D, uint32_t Threads, uint32_t Batch>
static __device__ __forceinline__ void feed_q(const rp_attention_args &args, uint32_t to,
                                              const claimed_tile &work, uint32_t thread,
                                              uint32_t group, uint32_t first, uint32_t count) {
    if (args.q_stride % 4 == 0 && (uintptr_t)args.q % 16 == 0)
        load_q<D, true, Threads, Batch>(args, to, work, thread, group, first, count);
    else
        load_q<D, false, Threads, Batch>(args, to, work, thread, group, first, count);
}

/* One thread's: claims a tile and tells everybody. Each block has its first one without asking. */
template <typename Mask>
static __device__ __forceinline__ void claim_tile(const rp_attention_cuda_args &call,
                                                  control *shared, uint32_t count) {
    uint32_t *counter = &call.workspace.claims[CLAIM];
    uint32_t items = call.workspace.plans[call.mask_class].head->tiles * call.args.kv_heads;
    uint32_t claim = blockIdx.x;
    if (count != 0) {
        barrier_wait(at(&shared->may_claim), (count - 1) & 1);
        uint32_t before = atomicAdd(counter, 1);
        claim = gridDim.x + before;
        if (before == items - 1)
            *counter = 0; /* so many ask in all */
    }
    claimed_tile work = {};
    if (claim < items) {
        work.tile = find_tile<Mask>(call, claim / call.args.kv_heads);
        work.kv_head = claim % call.args.kv_heads;
        for (int i = 0; i < Mask::param_count; i++)
            shared->params[count % 2][i] =
                (int32_t)work.tile.pages[i + RP_SLOT_MASK_PARAMS - RP_SLOT_PAGES];
    }
    shared->tiles[count % 2] = work;
    barrier_arrive(at(&shared->tile_full[count % 2]));
}

/* Warp 0 asks for K and V, the three others for Q, a tile ahead of it. The first tile's Q is left to those who
 * compute: they are many, and have nothing to do yet. */
template <int D, typename Mask>
static __device__ __forceinline__ void feed(const wgmma_args &args, const addresses &to,
                                            uint32_t group) {
    const rp_attention_cuda_args &call = args.call;
    control *shared = to.shared;
    if (threadIdx.x < 32) {
        turn ring;
        for (uint32_t count = 0;; count++) {
            barrier_wait(at(&shared->tile_full[count % 2]), count / 2 & 1);
            claimed_tile work = shared->tiles[count % 2];
            if (work.tile.tokens == 0)
                return;
            if constexpr (Mask::is_program)
                feed_program<D, Mask>(args, to, work, ring);
            else
                feed_blocks<D, Mask>(args, to, work, ring);
        }
    }
    constexpr uint32_t stages = shape<D>::q_stages;
    for (uint32_t count = 0;; count++) {
        uint32_t slot = count % stages;
        /* tiles[count % 2] is free when the tile before the last one is done. */
        if (stages == 2)
            barrier_wait(at(&shared->q_empty[slot]), (count / stages & 1) ^ 1);
        if (threadIdx.x == 32)
            claim_tile<Mask>(call, shared, count);
        asm volatile("bar.sync %0, 96;" ::"r"(SYNC_FEEDERS) : "memory");
        claimed_tile work = shared->tiles[count % 2];
        if (stages == 1)
            barrier_wait(at(&shared->q_empty[slot]), (count / stages & 1) ^ 1);
        if (work.tile.tokens != 0 && count != 0)
            feed_q<D, 96, shape<D>::feed_batch>(call.args, to.q + slot * shape<D>::q_bytes, work,
                                                threadIdx.x - 32, group, 0, ROWS);
        barrier_arrive(at(&shared->q_full[slot]));
        if (work.tile.tokens == 0)
            return;
    }
}

/* --- computing --- */

/* V of keys that no row of the tile sees may be anything: zeros, so that a weight of zero gives zero. Waits for V
 * (full, parity) where there is such a key. By one team where they take turns: the other one's turn comes behind it. */
template <int D, typename Mask>
static __device__ __forceinline__ void clean(const claimed_tile &work, uint32_t key, uint32_t v,
                                             uint32_t full, uint32_t parity, uint32_t team,
                                             const int32_t *params, uint32_t group) {
    constexpr uint32_t keys = shape<D>::keys;
    const prefill_tile &tile = work.tile;
    uint32_t row = threadIdx.x % 128, lane = threadIdx.x % 32;
    bool unseen;
    if constexpr (Mask::is_program) {
        if ((key & BLOCK_IS_PARTIAL) == 0)
            return;
        key = key / keys * keys;
        unseen = key + row >= tile.key_end || !Mask::any_sees(tile.position, tile.tokens, key + row,
                                                              work.kv_head * group, group, params);
    } else {
        if (key >= tile.first_key && key + keys <= tile.key_end)
            return;
        unseen = key + row < tile.first_key || key + row >= tile.key_end;
    }
    uint32_t rows = __ballot_sync(0xFFFFFFFFu, row < keys && unseen);
    barrier_wait(full, parity);
    /* Eight lanes a row, four rows at once: each bank is written once. */
    for (uint32_t i = lane / 8; i < 32; i += 4)
        if (rows >> i & 1)
#pragma unroll
            for (uint32_t part = 0; part < shape<D>::parts; part++)
                asm volatile(
                    "st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(
                        v + part * shape<D>::part_bytes + (row - lane + i) * 128 + lane % 8 * 16),
                    "r"(0)
                    : "memory");
    fence_async_proxy();
    warpgroup_sync(SYNC_ROWS + team);
}

template <int D>
static __device__ __forceinline__ void multiply_qk(float (&s)[shape<D>::keys / 8][4], uint32_t q,
                                                   uint32_t k) {
    wgmma_begin();
#pragma unroll
    for (int d = 0; d < D / 16; d++)
        wgmma_qk(s, rows_descriptor(q + d / 4 * (ROWS * 128) + d % 4 * 32),
                 rows_descriptor(k + d / 4 * shape<D>::part_bytes + d % 4 * 32), d != 0);
    wgmma_commit();
}

template <int D>
static __device__ __forceinline__ void
multiply_pv(float (&o)[D / 8][4], const uint32_t (&p)[shape<D>::keys / 16][4], uint32_t v) {
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < shape<D>::keys / 16; k++)
        wgmma_pv(o, p[k], columns_descriptor(v + k * 2048, shape<D>::part_bytes));
    wgmma_commit();
}

/* One warp's word that it is done with a stage. */
static __device__ __forceinline__ void release(uint64_t *barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(at(barrier));
}

/* Takes turns: one team's softmax beside the other one's products. */
static __device__ __forceinline__ void turn_wait(uint32_t team) {
    asm volatile("bar.sync %0, 256;" ::"r"(SYNC_TURN + team) : "memory");
}
static __device__ __forceinline__ void turn_pass(uint32_t team) {
    asm volatile("bar.arrive %0, 256;" ::"r"(SYNC_TURN + (team ^ 1)) : "memory");
}

template <int N>
static __device__ __forceinline__ void pack_weights(uint32_t (&p)[N / 2][4],
                                                    const float (&s)[N][4]) {
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        p[k][0] = pack_bf16(s[2 * k][0], s[2 * k][1]);
        p[k][1] = pack_bf16(s[2 * k][2], s[2 * k][3]);
        p[k][2] = pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]);
        p[k][3] = pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3]);
    }
}

/* key: of the block; of a program its entry. */
template <int D, typename Mask>
static __device__ __forceinline__ void soften(float (&s)[shape<D>::keys / 8][4],
                                              softmax_state &state, float (&scale)[2],
                                              const prefill_tile &tile, const wgmma_args &call,
                                              uint32_t key, float factor, const int32_t *params) {
    const rp_attention_args &args = call.call.args;
    const uint32_t window = args.window;
    if constexpr (Mask::is_program) {
        apply_program<Mask>(s, state, tile, key / shape<D>::keys * shape<D>::keys,
                            key & BLOCK_IS_PARTIAL, args.scale, params);
        softmax_step<false>(s, state, scale, key, factor);
        return;
    }
    /* Keys that every row sees need no mask. */
    const bool full =
        key >= first_visible(window, tile.key_end - 1) && key + shape<D>::keys <= tile.position + 1;
    if constexpr (Mask::is_capped) {
        if (call.cap.is_bounded) {
            scale[0] = scale[1] = 1.0f;
            bounded_step(s, state, key, full, call.cap);
            return;
        }
        cap_scores(s, args.scale / args.soft_cap);
    }
    if (full && !Mask::is_capped)
        softmax_step<false>(s, state, scale, key, factor);
    else
        softmax_step<true>(s, state, scale, key, factor);
}

/* Where no row of the warp has a new maximum all scales are exactly 1: the same bits without it. */
template <int N>
static __device__ __forceinline__ void rescale(float (&o)[N][4], const float (&scale)[2]) {
    if (!__any_sync(0xFFFFFFFFu, scale[0] != 1.0f || scale[1] != 1.0f))
        return;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            o[n][i] *= scale[i / 2];
}

/* The team's rows of O in bf16, by way of its rows of Q in shared memory: whole 16 bytes a lane. False,
 * and nothing done, where the output does not allow it. */
template <int D, typename Mask>
static __device__ __forceinline__ bool
store_wide(const float (&o)[D / 8][4], const softmax_state &state, const rp_attention_args &args,
           const prefill_tile &tile, uint32_t kv_head, uint32_t q, uint32_t group) {
    constexpr uint32_t chunks = D / 8, rows = 32 / (chunks < 32 ? chunks : 32);
    uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 - 64;
    if (args.out_dtype != RP_DTYPE_BF16 || args.out_stride % 8 != 0 ||
        (uintptr_t)args.out % 16 != 0)
        return false;
    q += first % 64 * 128;                  /* the warp's first row */
    warpgroup_sync(SYNC_ROWS + first / 64); /* nobody multiplies by Q any more */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t row = lane / 4 + half * 8;
        float inverse = inverse_of<Mask>(row_sum(state, half));
#pragma unroll
        for (uint32_t n = 0; n < chunks; n++)
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(q + n / 8 * (ROWS * 128) + row * 128 +
                                                         (n % 8 ^ row % 8) * 16 + lane % 4 * 4),
                         "r"(pack_bf16(o[n][half * 2] * inverse, o[n][half * 2 + 1] * inverse))
                         : "memory");
    }
    __syncwarp();
    uint32_t divisor = (65535 + group) / group, chunk = lane % chunks;
#pragma unroll
    for (uint32_t i = 0; i < 16 / rows; i++) {
        uint32_t row = i * rows + lane / chunks, token = (first + row) * divisor >> 16;
        uint4 x;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(q + chunk / 8 * (ROWS * 128) + row * 128 + (chunk % 8 ^ row % 8) * 16)
                     : "memory");
        if (token < tile.tokens)
            asm volatile(
                "st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(
                    (__nv_bfloat16 *)args.out + (size_t)(tile.token + token) * args.out_stride +
                    (size_t)(kv_head * group + first + row - token * group) * D + chunk * 8),
                "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                : "memory");
    }
    __syncwarp();
    return true;
}

/* A tile in work: which, its rows of Q in shared memory, and how far its softmax is. */
struct tile_state {
    claimed_tile work;
    const int32_t *params;
    softmax_state softmax;
    uint32_t count, q;
    uint32_t key; /* of the block whose scores were computed last; of a program its entry */
};

/* Waits for the count-th tile of this block and its Q. False: there is none. */
template <int D>
static __device__ __forceinline__ bool begin_tile(tile_state &now, const wgmma_args &args,
                                                  const addresses &from, uint32_t count,
                                                  uint32_t team, uint32_t row, uint32_t group) {
    const rp_attention_args &attention = args.call.args;
    uint32_t slot = count % shape<D>::q_stages;
    barrier_wait(at(&from.shared->q_full[slot]), count / shape<D>::q_stages & 1);
    now.work = from.shared->tiles[count % 2];
    if (now.work.tile.tokens == 0)
        return false;
    now.params = from.shared->params[count % 2];
    now.count = count;
    now.q = from.q + slot * shape<D>::q_bytes;
    now.key = now.work.tile.first_key / shape<D>::keys * shape<D>::keys;
    now.softmax = begin_rows(attention, now.work.tile, row, group, now.work.kv_head);
    return true;
}

/* Scores of the block that comes next in the ring, begun. */
template <int D, typename Mask>
static __device__ __forceinline__ void begin_scores(float (&s)[shape<D>::keys / 8][4],
                                                    tile_state &now, const addresses &from,
                                                    const turn &k, uint32_t team) {
    if (Mask::is_program)
        now.key = from.shared->blocks[k.stage];
    multiply_qk<D>(s, now.q + team * 64 * 128, from.kv[0] + k.stage * shape<D>::block_bytes);
}

template <int D, typename Mask>
static __device__ __forceinline__ bool has_more(const tile_state &now) {
    return Mask::is_program ? (now.key & BLOCK_IS_LAST) == 0
                            : now.key + shape<D>::keys < now.work.tile.key_end;
}

template <int D, typename Mask>
static __device__ __forceinline__ void
store_tile(const float (&o)[D / 8][4], const tile_state &done, const rp_attention_args &attention,
           control *shared, uint32_t team, uint32_t row, uint32_t group) {
    if (!store_wide<D, Mask>(o, done.softmax, attention, done.work.tile, done.work.kv_head,
                             done.q + team * 64 * 128, group))
        store_rows<D, Mask>(o, done.softmax, attention, done.work.tile, done.work.kv_head, row,
                            group);
    /* Every thread for itself: racecheck does not follow one lane's word for its warp (release). */
    barrier_arrive(at(&shared->q_empty[done.count % shape<D>::q_stages]));
}

/* One turn of the loop: the product of a block's scores runs beside that of the weights of the block before it, also
 * where that one was the last of another tile, which is then stored. With one place for Q (head dim 256) the next
 * tile begins when this one is stored. */
template <int D, bool Turns, typename Mask>
static __device__ __forceinline__ void compute(const wgmma_args &args, const addresses &from,
                                               uint32_t group) {
    constexpr int keys = shape<D>::keys;
    const rp_attention_args &attention = args.call.args;
    uint32_t team = threadIdx.x / 128 - 1;
    uint32_t row = threadIdx.x / 32 * 16 - 64 + threadIdx.x % 32 / 4;
    const float factor = factor_of<Mask>(attention);
    control *shared = from.shared;
    turn k, v;
    tile_state now;
    float s[keys / 8][4], o[D / 8][4] = {}, scale[2];
    uint32_t p[keys / 16][4];
    if (Turns && team == 1)
        turn_pass(team);
    if (!begin_tile<D>(now, args, from, 0, team, row, group))
        return;
    feed_q<D, 128, 8>(attention, now.q, now.work, threadIdx.x % 128, group, team * 64, 64);
    warpgroup_sync(SYNC_ROWS + team);
    bool begins = true; /* a tile, with no weights yet */
    for (;;) {
        if (begins) {
            barrier_wait(at(&shared->full[0][k.stage]), k.parity);
            begin_scores<D, Mask>(s, now, from, k, team);
            wgmma_wait<0>(s);
            release(&shared->empty[0][k.stage]);
            k.next();
            soften<D, Mask>(s, now.softmax, scale, now.work.tile, args, now.key, factor,
                            now.params);
            pack_weights(p, s);
            begins = false;
        }
        while (has_more<D, Mask>(now)) {
            const uint32_t values = from.kv[1] + v.stage * shape<D>::block_bytes;
            barrier_wait(at(&shared->full[0][k.stage]), k.parity);
            if (!Turns || team == 0)
                clean<D, Mask>(now.work, now.key, values, at(&shared->full[1][v.stage]), v.parity,
                               team, now.params, group);
            now.key += keys;
            if (Turns)
                turn_wait(team);
            begin_scores<D, Mask>(s, now, from, k, team);
            barrier_wait(at(&shared->full[1][v.stage]), v.parity);
            multiply_pv<D>(o, p, values);
            if (Turns)
                turn_pass(team);
            wgmma_wait<1>(s);
            release(&shared->empty[0][k.stage]);
            k.next();
            soften<D, Mask>(s, now.softmax, scale, now.work.tile, args, now.key, factor,
                            now.params);
            wgmma_wait<0>(o);
            release(&shared->empty[1][v.stage]);
            v.next();
            pack_weights(p, s);
            rescale(o, scale);
        }
        const tile_state done = now;
        const uint32_t values = from.kv[1] + v.stage * shape<D>::block_bytes;
        bool more = shape<D>::q_stages == 2 &&
                    begin_tile<D>(now, args, from, done.count + 1, team, row, group);
        if (more) {
            barrier_wait(at(&shared->full[0][k.stage]), k.parity);
            if (!Turns || team == 0)
                clean<D, Mask>(done.work, done.key, values, at(&shared->full[1][v.stage]), v.parity,
                               team, done.params, group);
            if (Turns)
                turn_wait(team);
            begin_scores<D, Mask>(s, now, from, k, team);
            barrier_wait(at(&shared->full[1][v.stage]), v.parity);
            multiply_pv<D>(o, p, values);
            if (Turns)
                turn_pass(team);
            wgmma_wait<1>(s);
            release(&shared->empty[0][k.stage]);
            k.next();
            soften<D, Mask>(s, now.softmax, scale, now.work.tile, args, now.key, factor,
                            now.params);
            wgmma_wait<0>(o);
            pack_weights(p, s);
        } else {
            barrier_wait(at(&shared->full[1][v.stage]), v.parity);
            clean<D, Mask>(done.work, done.key, values, at(&shared->full[1][v.stage]), v.parity,
                           team, done.params, group);
            multiply_pv<D>(o, p, values);
            wgmma_wait<0>(o);
        }
        release(&shared->empty[1][v.stage]);
        v.next();
        store_tile<D, Mask>(o, done, attention, shared, team, row, group);
        if (shape<D>::q_stages == 1)
            more = begins = begin_tile<D>(now, args, from, done.count + 1, team, row, group);
        if (!more)
            return;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[n][i] = 0.0f;
    }
}

template <int D, bool Turns, typename Mask>
static __device__ __forceinline__ void prefill_wgmma(const wgmma_args &args) {
#if RP_CUDA_HOPPER
    extern __shared__ unsigned char raw[];
    rp_stamp stamp(args.call.stamp, threadIdx.x == 128);
    unsigned char *aligned = raw + (1024 - at(raw) % 1024) % 1024;
    addresses places;
    places.shared = (control *)aligned;
    places.q = at(aligned) + 1024;
    places.kv[0] = places.q + shape<D>::q_stages * shape<D>::q_bytes;
    places.kv[1] = places.kv[0] + STAGES * shape<D>::block_bytes;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(at(&places.shared->tile_full[i]), 1);
            barrier_init(at(&places.shared->q_full[i]), 96);
            barrier_init(at(&places.shared->q_empty[i]), THREADS - 128);
            for (int stage = 0; stage < STAGES; stage++) {
                barrier_init(at(&places.shared->full[i][stage]), 1);
                barrier_init(at(&places.shared->empty[i][stage]), 8);
            }
        }
        barrier_init(at(&places.shared->may_claim), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    uint32_t group = args.call.args.heads / args.call.args.kv_heads;
    rp_pdl_begin(); /* not timed: one thread's clock would hold up the block */
    stamp.look();
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(shape<D>::feed_registers));
        feed<D, Mask>(args, places, group);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(shape<D>::compute_registers));
        compute<D, Turns, Mask>(args, places, group);
    }
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

#endif
