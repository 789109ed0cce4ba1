/* attention_prefill_wgmma_cuda.cu - prompt rows over bf16 pages on Hopper: head dim 64, 128 and 256.
 *
 * The shape of the work is FlashAttention-3's (Shah et al. 2024). One block per SM claims tiles of 128 rows
 * (tokens times the query heads of one KV head), longest first. Its first warpgroup feeds the two others:
 * one thread copies K and V page by page (bulk tensor copies), three warps round Q of the next tile to
 * bf16. Each of the other two computes 64 rows: the product Q K^T of a block runs on the tensor cores
 * together with P V of the block before, and beside the softmax.
 *
 *   claim -> q_full -> | S = Q K0 | softmax | S = Q K1, O += P V0 | softmax | ... | O += P Vn | store
 *
 * Blocks of keys lie at absolute multiples of their size, in rising order. A row's bits do not depend on
 * its tile, for the reasons given in attention_prefill_cuda.cu; V of keys that no row of the tile sees is
 * set to zero in shared memory before it is multiplied by a weight of zero. */
#include "attention/attention_tile_cuda.cuh"
#include "attention/attention_wgmma_cuda.cuh"

#define ROWS    128 /* of a tile */
#define STAGES  2   /* of K, and of V */
#define THREADS 384
#define CLAIM   1 /* which counter of the workspace */

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
    claimed_tile tiles[2];
    uint32_t claim[2];
};

struct wgmma_args {
    CUtensorMap map; /* (page, layer and plane, head, token, column) */
    rp_attention_cuda_args call;
    uint32_t box_tokens;
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

/* K and V of a tile's blocks, by one warp: a lane asks for one part of the columns of one page, if a key
 * in it is seen by some row. The next block's pages are looked up while this one's copies are waited for. */
template <int D>
static __device__ __forceinline__ void feed_blocks(const wgmma_args &args, const addresses &to,
                                                   const claimed_tile &work, turn &ring) {
    constexpr uint32_t keys = shape<D>::keys, parts = shape<D>::parts;
    const rp_attention_args &attention = args.call.args;
    const prefill_tile &tile = work.tile;
    uint32_t lane = threadIdx.x % 32, box = args.box_tokens, part = lane % parts;
    uint32_t page_tokens = attention.kv.page_tokens, shift = 31 - __clz(page_tokens);
    uint32_t offset = lane / parts * box; /* of the lane's page, in the block */
    auto is_needed = [&](uint32_t position) {
        return offset < keys && position + box > tile.first_key && position < tile.key_end;
    };
    uint32_t key = tile.first_key / keys * keys;
    uint32_t page = is_needed(key + offset) ? tile.pages[(key + offset) >> shift] : 0;
    for (; key < tile.key_end; key += keys) {
        uint32_t position = key + offset, next = position + keys, next_page = 0;
        bool mine = is_needed(position);
        uint32_t bytes = __popc(__ballot_sync(0xFFFFFFFFu, mine)) * box * 128;
        if (is_needed(next))
            next_page = tile.pages[next >> shift];
#pragma unroll
        for (uint32_t plane = 0; plane < 2; plane++) {
            uint32_t barrier = at(&to.shared->full[plane][ring.stage]);
            if (lane == 0) {
                barrier_wait(at(&to.shared->empty[plane][ring.stage]), ring.parity ^ 1);
                barrier_expect(barrier, bytes);
            }
            __syncwarp();
            if (mine)
                copy_box(to.kv[plane] + ring.stage * shape<D>::block_bytes +
                             part * shape<D>::part_bytes + offset * 128,
                         &args.map, barrier, part * 64, position & (page_tokens - 1), work.kv_head,
                         attention.layer * 2 + plane, page);
        }
        page = next_page;
        ring.next();
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

/* The first tile's Q is left to those who compute: they are many, and have nothing to do yet. */
template <int D>
static __device__ __forceinline__ void feed(const wgmma_args &args, const addresses &to,
                                            uint32_t group) {
    const rp_attention_cuda_args &call = args.call;
    uint32_t *counter = &call.workspace.claims[CLAIM];
    uint32_t items = call.workspace.plans[call.mask_class].head->tiles * call.args.kv_heads;
    turn ring;
    for (uint32_t count = 0;; count++) {
        uint32_t slot = count % shape<D>::q_stages;
        if (threadIdx.x == 0) {
            uint32_t claim = atomicAdd(counter, 1);
            if (claim == items + gridDim.x - 1)
                *counter = 0; /* every block claims once in vain; this was the last */
            to.shared->claim[count % 2] = claim;
        }
        warpgroup_sync(SYNC_FEEDERS);
        uint32_t claim = to.shared->claim[count % 2];
        claimed_tile work = {};
        if (claim < items) {
            work.tile = find_tile(call, claim / call.args.kv_heads);
            work.kv_head = claim % call.args.kv_heads;
        }
        if (threadIdx.x >= 32) {
            barrier_wait(at(&to.shared->q_empty[slot]), (count / shape<D>::q_stages & 1) ^ 1);
            if (threadIdx.x == 32)
                to.shared->tiles[slot] = work;
            if (work.tile.tokens != 0 && count != 0)
                feed_q<D, 96, shape<D>::feed_batch>(call.args, to.q + slot * shape<D>::q_bytes,
                                                    work, threadIdx.x - 32, group, 0, ROWS);
            barrier_arrive(at(&to.shared->q_full[slot]));
        } else {
            feed_blocks<D>(args, to, work, ring);
        }
        if (work.tile.tokens == 0)
            return;
    }
}

/* --- computing --- */

/* V of keys that no row of the tile sees may be anything: zeros, so that a weight of zero gives zero. */
template <int D>
static __device__ __forceinline__ void clean(const prefill_tile &tile, uint32_t key, uint32_t v,
                                             uint32_t team) {
    constexpr uint32_t keys = shape<D>::keys;
    if (key >= tile.first_key && key + keys <= tile.key_end)
        return;
    uint32_t row = threadIdx.x % 128;
    if (row < keys && (key + row < tile.first_key || key + row >= tile.key_end))
        for (uint32_t part = 0; part < shape<D>::parts; part++)
            for (uint32_t chunk = 0; chunk < 8; chunk++)
                asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(
                                 v + part * shape<D>::part_bytes + row * 128 + chunk * 16),
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

template <int D>
static __device__ __forceinline__ void
soften(float (&s)[shape<D>::keys / 8][4], softmax_state &state, float (&scale)[2],
       const prefill_tile &tile, uint32_t window, uint32_t key, float factor) {
    /* Keys that every row sees need no mask. */
    if (key >= first_visible(window, tile.key_end - 1) && key + shape<D>::keys <= tile.position + 1)
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
template <int D>
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
        float inverse = 1.0f / row_sum(state, half);
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

template <int D, bool Turns>
static __device__ __forceinline__ void compute(const wgmma_args &args, const addresses &from,
                                               uint32_t group) {
    constexpr int keys = shape<D>::keys;
    const rp_attention_args &attention = args.call.args;
    uint32_t team = threadIdx.x / 128 - 1;
    uint32_t row = threadIdx.x / 32 * 16 - 64 + threadIdx.x % 32 / 4;
    const float factor = attention.scale * LOG2_E;
    turn k, v;
    if (Turns && team == 1)
        turn_pass(team);
    for (uint32_t count = 0;; count++) {
        uint32_t slot = count % shape<D>::q_stages;
        control *shared = from.shared;
        barrier_wait(at(&shared->q_full[slot]), count / shape<D>::q_stages & 1);
        prefill_tile tile = shared->tiles[slot].tile;
        uint32_t kv_head = shared->tiles[slot].kv_head;
        if (tile.tokens == 0)
            return;
        uint32_t q = from.q + slot * shape<D>::q_bytes + team * 64 * 128;
        if (count == 0) {
            feed_q<D, 128, 8>(attention, from.q + slot * shape<D>::q_bytes, shared->tiles[slot],
                              threadIdx.x % 128, group, team * 64, 64);
            warpgroup_sync(SYNC_ROWS + team);
        }
        softmax_state state = begin_rows(attention, tile, row, group);
        float s[keys / 8][4], o[D / 8][4] = {}, scale[2];
        uint32_t p[keys / 16][4];
        uint32_t key = tile.first_key / keys * keys;
        barrier_wait(at(&shared->full[0][k.stage]), k.parity);
        multiply_qk<D>(s, q, from.kv[0] + k.stage * shape<D>::block_bytes);
        wgmma_wait<0>(s);
        release(&shared->empty[0][k.stage]);
        k.next();
        soften<D>(s, state, scale, tile, attention.window, key, factor);
        pack_weights(p, s);
        for (key += keys; key < tile.key_end; key += keys) {
            barrier_wait(at(&shared->full[0][k.stage]), k.parity);
            if (Turns)
                turn_wait(team);
            multiply_qk<D>(s, q, from.kv[0] + k.stage * shape<D>::block_bytes);
            barrier_wait(at(&shared->full[1][v.stage]), v.parity);
            clean<D>(tile, key - keys, from.kv[1] + v.stage * shape<D>::block_bytes, team);
            multiply_pv<D>(o, p, from.kv[1] + v.stage * shape<D>::block_bytes);
            if (Turns)
                turn_pass(team);
            wgmma_wait<1>(s);
            release(&shared->empty[0][k.stage]);
            k.next();
            soften<D>(s, state, scale, tile, attention.window, key, factor);
            wgmma_wait<0>(o);
            release(&shared->empty[1][v.stage]);
            v.next();
            pack_weights(p, s);
            rescale(o, scale);
        }
        barrier_wait(at(&shared->full[1][v.stage]), v.parity);
        clean<D>(tile, key - keys, from.kv[1] + v.stage * shape<D>::block_bytes, team);
        multiply_pv<D>(o, p, from.kv[1] + v.stage * shape<D>::block_bytes);
        wgmma_wait<0>(o);
        release(&shared->empty[1][v.stage]);
        v.next();
        if (!store_wide<D>(o, state, attention, tile, kv_head, q, group))
            store_rows<D>(o, state, attention, tile, kv_head, row, group);
        /* Every thread for itself: racecheck does not follow one lane's word for its warp (release). */
        barrier_arrive(at(&shared->q_empty[slot]));
    }
}

template <int D, bool Turns>
static __global__ void __launch_bounds__(THREADS, 1)
    prefill_wgmma_kernel(const __grid_constant__ wgmma_args args) {
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
            barrier_init(at(&places.shared->q_full[i]), 96);
            barrier_init(at(&places.shared->q_empty[i]), THREADS - 128);
            for (int stage = 0; stage < STAGES; stage++) {
                barrier_init(at(&places.shared->full[i][stage]), 1);
                barrier_init(at(&places.shared->empty[i][stage]), 8);
            }
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    uint32_t group = args.call.args.heads / args.call.args.kv_heads;
    rp_pdl_begin(); /* not timed: one thread's clock would hold up the block */
    stamp.look();
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(shape<D>::feed_registers));
        feed<D>(args, places, group);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(shape<D>::compute_registers));
        compute<D, Turns>(args, places, group);
    }
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

/* --- launching --- */

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The pool as a tensor of five dimensions. How many pages there are is not known when a graph is
 * captured, and no page past the last is ever asked for: a number that is large enough stands for it. */
static int describe_pages(CUtensorMap *map, const rp_kv_layout *kv, uint32_t box_tokens) {
    static encode_fn encode = NULL;
    if (!encode) {
        void *found = NULL;
        cudaDriverEntryPointQueryResult result;
        cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             12000, cudaEnableDefault, &result);
        if (error != cudaSuccess || result != cudaDriverEntryPointSuccess)
            return error != cudaSuccess ? (int)error : (int)cudaErrorNotSupported;
        encode = (encode_fn)found;
    }
    const cuuint64_t sizes[5] = {kv->head_dim, kv->page_tokens, kv->kv_heads, 2 * kv->layers,
                                 1u << 24};
    const cuuint64_t strides[4] = {kv->head_dim * 2, kv->head_stride, kv->plane_stride,
                                   kv->page_stride};
    const cuuint32_t box[5] = {64, box_tokens, 1, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
    CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, kv->base, sizes, strides,
                             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? 0 : (int)cudaErrorInvalidValue;
}

template <int D, bool Turns>
static int start(const rp_attention_cuda_args *call, cudaStream_t stream) {
    static bool is_ready = false; /* an attribute of the kernel, not of a launch */
    if (!is_ready) {
        cudaError_t error = cudaFuncSetAttribute(prefill_wgmma_kernel<D, Turns>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 shape<D>::shared_bytes);
        if (error != cudaSuccess)
            return (int)error;
        is_ready = true;
    }
    wgmma_args args;
    args.call = *call;
    args.box_tokens = RP_MIN(call->args.kv.page_tokens, (uint32_t)shape<D>::keys);
    int error = describe_pages(&args.map, &call->args.kv, args.box_tokens);
    if (error != 0)
        return error;
    const rp_bucket &bucket = call->config.bucket;
    uint32_t tile = rp_attention_prefill_wgmma_cuda_tile(&call->config);
    uint32_t most = (RP_CEIL_DIV(bucket.tokens, tile) + bucket.rows) * call->args.kv_heads;
    dim3 grid(RP_MIN(most, call->config.limits.sm_count));
    return rp_cuda_start(prefill_wgmma_kernel<D, Turns>, grid, dim3(THREADS),
                         shape<D>::shared_bytes, stream, call->config.limits.dependent_launch,
                         args);
}

bool rp_attention_prefill_wgmma_cuda_supports(const rp_attention_cuda_config *config) {
    uint32_t dim = config->head_dim;
    return rp_cuda_has_hopper(&config->limits) && config->kv.dtype == RP_DTYPE_BF16 &&
           config->heads / config->kv_heads <= ROWS && config->kv.page_tokens >= 8 &&
           (dim == 64 || dim == 128 || dim == 256);
}

uint32_t rp_attention_prefill_wgmma_cuda_tile(const rp_attention_cuda_config *config) {
    return ROWS / (config->heads / config->kv_heads);
}

int rp_attention_prefill_wgmma_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_attention_cuda_args *call = (const rp_attention_cuda_args *)args_void;
    switch (call->args.head_dim) {
    case 64:
        return start<64, true>(call, stream);
    case 128:
        return start<128, true>(call, stream);
    case 256:
        return start<256, false>(call, stream);
    default:
        return (int)cudaErrorInvalidValue;
    }
}
