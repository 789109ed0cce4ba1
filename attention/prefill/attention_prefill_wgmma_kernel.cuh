/* attention_prefill_wgmma_kernel.cuh - prompt rows on Hopper: the kernel of
 * attention_prefill_wgmma_cuda.cu. */
#ifndef RP_ATTENTION_ATTENTION_PREFILL_WGMMA_KERNEL_CUH
#define RP_ATTENTION_ATTENTION_PREFILL_WGMMA_KERNEL_CUH

#include "attention/prefill/attention_prefill_wgmma_quantized.cuh"

/* Zeroes V of the keys that no row of the tile sees, which may be garbage, so that a weight of zero
 * gives zero. Waits for V (full, parity) if there is such a key. With ping-pong scheduling only the
 * first team does it, since the other's turn follows. */
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
    /* Eight lanes per row, four rows at once: no bank conflicts. */
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
    const uint64_t a = rows_descriptor(q), b = rows_descriptor(k);
    wgmma_begin();
#pragma unroll
    for (int d = 0; d < D / 16; d++)
        wgmma_qk(s, moved(a, d / 4 * (ROWS * 128) + d % 4 * 32),
                 moved(b, d / 4 * shape<D>::part_bytes + d % 4 * 32), d != 0);
    wgmma_commit();
}

template <int D>
static __device__ __forceinline__ void
multiply_pv(float (&o)[D / 8][4], const uint32_t (&p)[shape<D>::keys / 16][4], uint32_t v) {
    const uint64_t b = columns_descriptor(v, shape<D>::part_bytes);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < shape<D>::keys / 16; k++)
        wgmma_pv(o, p[k], moved(b, k * 2048));
    wgmma_commit();
}

/* Signals that a warp has finished with a stage, to all blocks of the cluster. Each: every thread
 * arrives for its own reads (racecheck does not accept one lane's arrival for its warp). */
template <bool Each, uint32_t Cluster>
static __device__ __forceinline__ void release(uint64_t *barrier) {
    const uint32_t lane = threadIdx.x % 32;
    __syncwarp();
    if (Cluster > 1 && lane < Cluster)
        barrier_arrive_at(at(barrier), lane ^ cluster_rank());
    else if (Cluster == 1 && (Each || lane == 0))
        barrier_arrive(at(barrier));
}

/* Scores or weights times the scales of their keys, in shared memory (scale_place). */
template <int N>
static __device__ __forceinline__ void scale_keys(float (&s)[N][4], uint32_t scales) {
    scales += threadIdx.x % 4 * 16;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        float x[4];
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                     : "r"(scales + n * 32)
                     : "memory");
#pragma unroll
        for (int i = 0; i < 8; i++)
            s[n + i / 4][i % 4] *= x[i / 4 * 2 + i % 2];
    }
}

/* Ping-pong scheduling: one consumer's softmax overlaps the other's wgmma. */
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

/* key: of the block; with a program its list entry. */
template <int D, typename Mask>
static __device__ __forceinline__ void
online_softmax(float (&s)[shape<D>::keys / 8][4], softmax_state &state, float (&scale)[2],
               const prefill_tile &tile, const wgmma_args &call, uint32_t key, float factor,
               const int32_t *params) {
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

/* If no row of the warp has a new maximum all scales are exactly 1, so skipping the rescaling gives
 * the same bits. */
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

/* Stores the team's rows of O in bf16, staged in its rows of Q in shared memory: 16 bytes per lane.
 * Returns false without storing when the output's alignment or type does not allow it. */
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
    warpgroup_sync(SYNC_ROWS + first / 64); /* no matmul reads Q any more */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t row = lane / 4 + half * 8;
        float inverse = inverse_of<Mask>(args, state.max[half], row_sum(state, half), kv_head,
                                         first + row, group);
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

/* The current tile: index, its rows of Q in shared memory, and its softmax state. */
struct tile_state {
    claimed_tile work;
    const int32_t *params;
    softmax_state softmax;
    uint32_t count, q;
    uint32_t key; /* block whose scores were computed last; with a program its list entry */
};

/* Waits for the count-th tile of this thread block and its Q. False: there is none. */
template <int D, rp_dtype Page>
static __device__ __forceinline__ bool begin_tile(tile_state &now, const wgmma_args &args,
                                                  const addresses &from, uint32_t count,
                                                  uint32_t team, uint32_t row, uint32_t group) {
    const rp_attention_args &attention = args.call.args;
    constexpr uint32_t stages = teams<D, Page>::q_stages;
    uint32_t slot = count % stages;
    barrier_wait(at(&from.shared->q_full[slot]), count / stages & 1);
    now.work = from.shared->tiles[count % TILE_STAGES];
    if (now.work.tile.tokens == 0)
        return false;
    now.params = from.shared->params[count % TILE_STAGES];
    now.count = count;
    now.q = from.q + slot * shape<D>::q_bytes;
    now.key = now.work.plan.first_key / shape<D>::keys * shape<D>::keys;
    now.softmax = begin_rows(attention, now.work.tile, row, group, now.work.kv_head);
    return true;
}

/* Issues the score matmul of the next block in the ring. */
template <int D, typename Mask>
static __device__ __forceinline__ void begin_scores(float (&s)[shape<D>::keys / 8][4],
                                                    tile_state &now, const addresses &from,
                                                    const turn &k, uint32_t team) {
    if constexpr (Mask::is_program) {
        /* Executed by the lane that releases the stage. */
        uint32_t entry = threadIdx.x % 32 == 0 ? from.shared->blocks[k.stage] : 0;
        now.key = __shfl_sync(0xFFFFFFFFu, entry, 0);
    }
    multiply_qk<D>(s, now.q + team * 64 * 128, from.kv[0] + k.stage * shape<D>::block_bytes);
}

template <int D, typename Mask>
static __device__ __forceinline__ bool has_more(const tile_state &now) {
    return Mask::is_program ? (now.key & BLOCK_IS_LAST) == 0
                            : now.key + shape<D>::keys < now.work.plan.key_end;
}

template <int D, typename Mask, rp_dtype Page>
static __device__ __forceinline__ void
store_tile(const float (&o)[D / 8][4], const tile_state &done, const rp_attention_args &attention,
           control *shared, uint32_t team, uint32_t row, uint32_t group) {
    if (!store_wide<D, Mask>(o, done.softmax, attention, done.work.tile, done.work.kv_head,
                             done.q + team * 64 * 128, group))
        store_rows<D, Mask>(o, done.softmax, attention, done.work.tile, done.work.kv_head, row,
                            group);
    /* Executed by every thread (release). */
    barrier_arrive(at(&shared->q_empty[done.count % teams<D, Page>::q_stages]));
}

/* One iteration: the score matmul of a block overlaps the weight matmul of the previous block, even
 * if that was the last of another tile, which is then stored. With a single Q buffer (head dim 256)
 * the next tile begins after this one is stored. */
template <int D, bool Turns, typename Mask, rp_dtype Page>
static __device__ __forceinline__ void compute(const wgmma_args &args, const addresses &from,
                                               uint32_t group) {
    constexpr int keys = shape<D>::keys;
    constexpr int q_stages = teams<D, Page>::q_stages;
    constexpr bool is_quantized = teams<D, Page>::is_quantized;
    constexpr uint32_t cluster = teams<D, Page>::cluster;
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
    if (!begin_tile<D, Page>(now, args, from, 0, team, row, group))
        return;
    feed_q<D, Page, 128, 8>(args, now.q, now.work, threadIdx.x % 128, group, team * 64, 64);
    warpgroup_sync(SYNC_ROWS + team);
    bool begins = true; /* a tile, with no weights yet */
    /* The scores of the block at k are complete: applies K's scales and frees its stage; then
     * applies V's scales to the weights. */
    uint32_t scales = 0;
    auto take_scores = [&]() {
        scales = scales_at<D, Page>(from, k);
        if (is_quantized)
            scale_keys(s, scales);
        release<is_quantized, cluster>(&shared->empty[0][k.stage]);
        k.next();
    };
    auto take_weights = [&]() {
        if (is_quantized)
            scale_keys(s, scales + keys * 4);
        pack_weights(p, s);
    };
    for (;;) {
        if (begins) {
            barrier_wait(at(&shared->full[0][k.stage]), k.parity);
            begin_scores<D, Mask>(s, now, from, k, team);
            wgmma_wait<0>(s);
            take_scores();
            online_softmax<D, Mask>(s, now.softmax, scale, now.work.tile, args, now.key, factor,
                                    now.params);
            take_weights();
            begins = false;
        }
        while (has_more<D, Mask>(now)) {
            const uint32_t values = from.kv[1] + v.stage * shape<D>::block_bytes;
            barrier_wait(at(&shared->full[0][k.stage]), k.parity);
            if (!is_quantized && (!Turns || team == 0))
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
            take_scores();
            online_softmax<D, Mask>(s, now.softmax, scale, now.work.tile, args, now.key, factor,
                                    now.params);
            wgmma_wait<0>(o);
            release<false, cluster>(&shared->empty[1][v.stage]);
            v.next();
            take_weights();
            rescale(o, scale);
        }
        const tile_state done = now;
        const uint32_t values = from.kv[1] + v.stage * shape<D>::block_bytes;
        bool more =
            q_stages != 1 && begin_tile<D, Page>(now, args, from, done.count + 1, team, row, group);
        if (more) {
            barrier_wait(at(&shared->full[0][k.stage]), k.parity);
            if (!is_quantized && (!Turns || team == 0))
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
            take_scores();
            online_softmax<D, Mask>(s, now.softmax, scale, now.work.tile, args, now.key, factor,
                                    now.params);
            wgmma_wait<0>(o);
            take_weights();
        } else {
            barrier_wait(at(&shared->full[1][v.stage]), v.parity);
            if (!is_quantized)
                clean<D, Mask>(done.work, done.key, values, at(&shared->full[1][v.stage]), v.parity,
                               team, done.params, group);
            multiply_pv<D>(o, p, values);
            wgmma_wait<0>(o);
        }
        release<false, cluster>(&shared->empty[1][v.stage]);
        v.next();
        store_tile<D, Mask, Page>(o, done, attention, shared, team, row, group);
        if (q_stages == 1)
            more = begins = begin_tile<D, Page>(now, args, from, done.count + 1, team, row, group);
        if (!more)
            return;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[n][i] = 0.0f;
    }
}

template <int D, bool Turns, typename Mask, rp_dtype Page = RP_DTYPE_BF16>
static __device__ __forceinline__ void prefill_wgmma(const wgmma_args &args) {
#if RP_CUDA_HOPPER
    using team = teams<D, Page>;
    extern __shared__ unsigned char raw[];
    rp_stamp stamp(args.call.stamp, threadIdx.x == 128);
    unsigned char *aligned = raw + (1024 - at(raw) % 1024) % 1024;
    addresses places;
    places.shared = (control *)aligned;
    places.q = at(aligned) + 1024;
    places.kv[0] = places.q + team::q_stages * shape<D>::q_bytes;
    places.kv[1] = places.kv[0] + STAGES * shape<D>::block_bytes;
    places.scales = places.kv[1] + STAGES * shape<D>::block_bytes;
    places.staged = places.scales + 2 * STAGES * team::scale_bytes;
    places.staged_scales = places.staged + HALVES * team::half_bytes;
    if (threadIdx.x == 0) {
        for (int i = 0; i < TILE_STAGES; i++) {
            barrier_init(at(&places.shared->tile_full[i]), 1);
            barrier_init(at(&places.shared->claim_full[i]), 1);
        }
        for (int i = 0; i < Q_STAGES; i++) {
            barrier_init(at(&places.shared->q_full[i]), 96);
            barrier_init(at(&places.shared->q_empty[i]), COMPUTING);
        }
        for (int i = 0; i < 2; i++) {
            for (int stage = 0; stage < STAGES; stage++) {
                barrier_init(at(&places.shared->full[i][stage]),
                             team::is_quantized ? CONVERTING : 1);
                barrier_init(at(&places.shared->empty[i][stage]),
                             team::is_quantized && i == 0 ? COMPUTING
                                                          : team::cluster * (COMPUTING / 32));
            }
        }
        for (int i = 0; i < HALVES; i++) {
            barrier_init(at(&places.shared->staged_full[i]), 1);
            barrier_init(at(&places.shared->staged_empty[i]), CONVERTING);
        }
        barrier_init(at(&places.shared->may_claim), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    uint32_t group = args.call.args.heads / args.call.args.kv_heads;
    rp_pdl_begin(); /* not timed: one thread's clock would hold up the block */
    stamp.look();
    __syncthreads();
    if (team::cluster > 1)
        cluster_meet();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(team::feed_registers));
        feed<D, Mask, Page>(args, places, group);
    } else if (threadIdx.x < 128 + COMPUTING) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(team::compute_registers));
        compute<D, Turns, Mask, Page>(args, places, group);
    } else if constexpr (team::is_quantized) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(team::convert_registers));
        feed_quantized<D, Mask, Page>(args, places, group);
    }
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

#endif
