/* GATED_DELTA of many rows that have one token each, on Hopper, for heads of 128 x 128: an item, a
 * row's head, is 64 KB to read and 64 KB to write, and memory decides how long a step takes.
 *
 * A block works through a range of items, and three of them are in shared memory: one arrives by
 * bulk copies while one is computed in place and one is stored. So every multiprocessor always has
 * 64 to 128 KB of reads in flight, where blocks that come and go have few. Each role has its warps:
 *
 *   compute   16 warps with 8 columns each (gated_delta.cuh): the sums of the other kernel
 *   copy      states from memory to shared memory, and back
 *   prepare   tokens, four items ahead of the warps that compute
 *
 * In shared memory a part of ROWS rows, the rows of a lane, begins 32 bytes of banks after the part
 * before it, so that a warp's vectors meet no bank twice. */
#include "device/gated_delta.cuh"

#define DIM           128u
#define ROWS          (DIM / RP_DELTA_KEY_LANES)
#define COMPUTE_WARPS (DIM / RP_DELTA_WARP_COLS)
#define COPY_WARP     COMPUTE_WARPS
#define THREADS       (COMPUTE_WARPS * 32 + 64)
#define STAGES        3u
#define PASS          (32 / RP_DELTA_TOKEN_LANES) /* items whose tokens are prepared at once */
#define PARTS         RP_DELTA_KEY_LANES
#define PART_BYTES    (ROWS * DIM * 4)
#define PART_STRIDE   (PART_BYTES + 32)
#define STATE_BYTES   (PARTS * PART_BYTES)
#define ITEMS_LEAST   3u /* items of a multiprocessor, below which the other kernel is as fast */
#define COPY_LANES    0xFFFFu
static_assert(PARTS == 16, "COPY_LANES has a lane for each part");

struct item_token {
    rp_delta_token<ROWS, DIM> values;
    uint32_t token, head; /* where o goes */
    bool live, zero;      /* zero: the state before it is */
    uint32_t unused;
};

struct __align__(128) shared_memory {
    unsigned char states[STAGES][PARTS * PART_STRIDE];
    item_token tokens[2 * PASS];
    /* A state has arrived, has been computed; the tokens of a pass are there, have been read. */
    uint64_t arrived[STAGES], computed[STAGES], prepared[2], spent[2];
};

/* A row's head. */
struct delta_item {
    rp_live_row row;
    uint32_t head;
    bool live, zero;
};

/* The items of a block. */
struct item_range {
    uint32_t first, count;
};

#if RP_CUDA_HOPPER
/* --- barriers and bulk copies ---------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t address_of(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}
static __device__ __forceinline__ void barrier_init(uint64_t *barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_of(barrier)), "r"(arrivals)
                 : "memory");
}
static __device__ __forceinline__ void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(address_of(barrier))
                 : "memory");
}
/* Arrives, and expects the bytes of copies. */
static __device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_of(barrier)),
        "r"(bytes)
        : "memory");
}
/* Waits for the end of phase 0, 1, ... of the barrier. */
static __device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t phase) {
    asm volatile("{ .reg .pred done;\n"
                 "again_%=: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again_%=; }" ::"r"(address_of(barrier)),
                 "r"(phase & 1)
                 : "memory");
}
static __device__ __forceinline__ void copy_in(void *to, const void *from, uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(address_of(to)),
                 "l"(from), "n"(PART_BYTES), "r"(address_of(barrier))
                 : "memory");
}
static __device__ __forceinline__ void copy_out(void *to, const void *from) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(address_of(from)), "n"(PART_BYTES)
                 : "memory");
}

/* --- items ----------------------------------------------------------------------------------- */

/* A share of the step's items, row by row. */
static __device__ __forceinline__ item_range range_of_block(const rp_gated_delta_cuda &args) {
    uint64_t items = (uint64_t)args.rows.step.counts->row_count * args.delta.value_heads;
    uint32_t first = (uint32_t)(items * blockIdx.x / gridDim.x);
    return {first, (uint32_t)(items * (blockIdx.x + 1) / gridDim.x) - first};
}

static __device__ __forceinline__ delta_item item_at(const rp_gated_delta_cuda &args,
                                                     uint32_t index) {
    const rp_step_view &step = args.rows.step;
    delta_item item;
    item.row = step.rows[index / args.delta.value_heads];
    item.head = index % args.delta.value_heads;
    item.live = rp_token_is_live(step, item.row.token_begin);
    item.zero = rp_state_is_zero(step, item.row);
    return item;
}

static __device__ __forceinline__ unsigned char *
state_at(const rp_gated_delta_cuda &args, uint32_t place, uint32_t head, uint32_t part) {
    const rp_step_view &step = args.rows.step;
    return step.state + place * step.config.state_stride + args.delta.state_offset +
           (size_t)head * STATE_BYTES + part * PART_BYTES;
}

/* --- the warp that copies, a lane for each part ---------------------------------------------- */

static __device__ __forceinline__ void fetch(const rp_gated_delta_cuda &args, shared_memory *shared,
                                             uint32_t n, const delta_item &item) {
    uint32_t lane = threadIdx.x % 32, stage = n % STAGES;
    bool copies = item.live && !item.zero;
    /* What was there is stored, by each lane's copy. */
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    __syncwarp(COPY_LANES);
    if (lane == 0 && copies)
        barrier_expect(&shared->arrived[stage], STATE_BYTES);
    else if (lane == 0)
        barrier_arrive(&shared->arrived[stage]);
    __syncwarp(COPY_LANES);
    if (copies)
        copy_in(shared->states[stage] + lane * PART_STRIDE,
                state_at(args, item.row.state_from, item.head, lane), &shared->arrived[stage]);
}

static __device__ __forceinline__ void store(const rp_gated_delta_cuda &args, shared_memory *shared,
                                             uint32_t n, const delta_item &item) {
    uint32_t lane = threadIdx.x % 32, stage = n % STAGES;
    const unsigned char *from = shared->states[stage] + lane * PART_STRIDE;
    barrier_wait(&shared->computed[stage], n / STAGES);
    if (!item.live)
        return;
    copy_out(state_at(args, item.row.slot, item.head, lane), from);
    if (item.row.save_at == 1)
        copy_out(state_at(args, item.row.save_to, item.head, lane), from);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Item n is fetched when the one STAGES before it is being stored. */
static __device__ void copy_items(const rp_gated_delta_cuda &args, shared_memory *shared,
                                  item_range items) {
    if (threadIdx.x % 32 >= PARTS)
        return;
    for (uint32_t n = 0; n < items.count + STAGES - 1; n++) {
        if (n < items.count)
            fetch(args, shared, n, item_at(args, items.first + n));
        if (n >= STAGES - 1)
            store(args, shared, n - (STAGES - 1), item_at(args, items.first + n - (STAGES - 1)));
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* --- the warp that prepares ------------------------------------------------------------------ */

static __device__ void prepare_items(const rp_gated_delta_cuda &args, shared_memory *shared,
                                     item_range items) {
    uint32_t lane = threadIdx.x % 32;
    for (uint32_t pass = 0; pass * PASS < items.count; pass++) {
        uint32_t n = pass * PASS + lane / RP_DELTA_TOKEN_LANES, half = pass % 2;
        bool exists = n < items.count;
        delta_item item = item_at(args, items.first + (exists ? n : 0));
        item_token *out = &shared->tokens[n % (2 * PASS)];
        if (pass >= 2)
            barrier_wait(&shared->spent[half], pass / 2 - 1);
        rp_delta_prepare<ROWS, DIM, true>(args, rp_delta_head_of(args, item.head), 0,
                                          item.row.token_begin, exists && item.live, &out->values);
        if (exists && lane % RP_DELTA_TOKEN_LANES == 0) {
            out->token = item.row.token_begin;
            out->head = item.head;
            out->live = item.live;
            out->zero = item.zero;
        }
        barrier_arrive(&shared->prepared[half]); /* each for itself: so racecheck follows it */
    }
}

/* --- the warps that compute ------------------------------------------------------------------ */

/* This lane's o of the item, whose state is replaced. */
static __device__ __forceinline__ float compute(const item_token &token, unsigned char *state) {
    uint32_t lane = threadIdx.x % 32;
    float4 *at = (float4 *)(state + (lane >> 1) * PART_STRIDE) +
                 threadIdx.x / 32 * (RP_DELTA_WARP_COLS / 4) + (lane & 1);
    float4 s[ROWS];
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        s[r] = token.zero ? make_float4(0, 0, 0, 0) : at[r * (DIM / 4)];
    float o = rp_delta_advance<ROWS, DIM>(s, token.values);
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        at[r * (DIM / 4)] = s[r];
    /* Bulk copies see it when the barrier says so. */
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    return o;
}

static __device__ void compute_items(const rp_gated_delta_cuda &args, shared_memory *shared,
                                     item_range items) {
    uint32_t lane = threadIdx.x % 32;
    uint32_t col =
        threadIdx.x / 32 * RP_DELTA_WARP_COLS + (lane & 1) * 4 + rp_delta_lane_column(lane);
    for (uint32_t n = 0; n < items.count; n++) {
        uint32_t stage = n % STAGES, pass = n / PASS;
        const item_token &token = shared->tokens[n % (2 * PASS)];
        if (n % PASS == 0)
            barrier_wait(&shared->prepared[pass % 2], pass / 2);
        barrier_wait(&shared->arrived[stage], n / STAGES);
        float o = token.live ? compute(token, shared->states[stage]) : 0.0f;
        size_t at = token.token * args.out.stride + token.head * DIM + col;
        /* Each for itself: so racecheck follows it. */
        barrier_arrive(&shared->computed[stage]);
        if (n % PASS == PASS - 1)
            barrier_arrive(&shared->spent[pass % 2]);
        if (rp_delta_lane_stores(lane))
            ((float *)args.out.data)[at] = o;
    }
}

static __device__ __forceinline__ void open_barriers(shared_memory *shared) {
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) {
            barrier_init(&shared->arrived[i], 1);
            barrier_init(&shared->computed[i], COMPUTE_WARPS * 32);
        }
        for (uint32_t i = 0; i < 2; i++) {
            barrier_init(&shared->prepared[i], 32);
            barrier_init(&shared->spent[i], COMPUTE_WARPS * 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}
#endif

static __global__ void __launch_bounds__(THREADS, 1) gated_delta_stream(rp_gated_delta_cuda args) {
#if RP_CUDA_HOPPER
    extern __shared__ __align__(128) unsigned char dynamic[];
    rp_stamp stamp(args.rows.stamp, threadIdx.x == COPY_WARP * 32); /* it is the last to end */
    shared_memory *shared = (shared_memory *)dynamic;
    open_barriers(shared);
    stamp.begin();
    stamp.look();
    item_range items = range_of_block(args);
    uint32_t warp = threadIdx.x / 32;
    if (warp < COMPUTE_WARPS)
        compute_items(args, shared, items);
    else if (warp == COPY_WARP)
        copy_items(args, shared, items);
    else
        prepare_items(args, shared, items);
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

bool rp_gated_delta_streams(const rp_gated_delta_cuda &args) {
    const rp_cuda_limits &limits = args.limits;
    uint64_t items = (uint64_t)args.max_seq_rows * args.delta.value_heads;
    return args.decode && args.delta.key_dim == DIM && args.delta.value_dim == DIM &&
           rp_vector_ok(args.qkv) && args.delta.state_offset % 16 == 0 &&
           rp_cuda_has_hopper(&limits) && sizeof(shared_memory) <= limits.shared_bytes_block &&
           items >= (uint64_t)ITEMS_LEAST * limits.sm_count;
}

int rp_gated_delta_stream_run(const rp_gated_delta_cuda &args, cudaStream_t stream) {
    cudaError_t error =
        cudaFuncSetAttribute(gated_delta_stream, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(shared_memory));
    if (error != cudaSuccess)
        return (int)error;
    return rp_cuda_start(gated_delta_stream, dim3(args.limits.sm_count), dim3(THREADS),
                         sizeof(shared_memory), stream, !args.rows.plain_edges, args);
}
