/* attention_latent_chains.cuh - attention of decode rows of up to 16 heads over bf16 pages of
 * latents, on Hopper: one block on an SM, whose warps have different work.
 *
 *   feeder   four warps, each with eight keys of a tile, copy tiles into a ring, row after row of
 *            the block's part, as far ahead as the ring has room: also while the others load a
 *            query or fold partial sums
 *   chains   two times four warps: the tiles of even and of odd index. Each chain has its own
 *            maxima and sums, so one computes scores while the other adds values
 *
 *   scores   warp w of a chain: columns [144 w, + 144) of the tile's 32 keys, with q in registers;
 *            the four sums are added in order
 *   softmax  every warp, of all rows and keys: weights are the next matmul's operand as they are
 *   values   warp w: 128 of the 512 columns
 *
 * At the end of a split the sums of the odd tiles are added to those of the even ones; each chain
 * does so for half of the columns and has those until the row is stored. */
#ifndef RP_ATTENTION_ATTENTION_LATENT_CHAINS_CUH
#define RP_ATTENTION_ATTENTION_LATENT_CHAINS_CUH

#include "attention/latent/attention_latent_kernel.cuh"
#include "attention/prefill/attention_wgmma_cuda.cuh"

namespace {

constexpr uint32_t CHAINS = 2, CHAIN_WARPS = 4;
/* The feeder is the last warpgroup, which gives registers to the others. */
constexpr uint32_t CHAINS_THREADS = THREADS + 128;
constexpr uint32_t CHAIN_REGISTERS = 224, FEEDER_REGISTERS = 56;
constexpr uint32_t RING = 4; /* tiles */
constexpr uint32_t CHAIN_COLUMNS = VALUE / CHAIN_WARPS, STEPS = PART / 16;
constexpr uint32_t TILES_OUT = CHAIN_COLUMNS / 8, TILES_KEPT = TILES_OUT / CHAINS;
static_assert(CHAINS * CHAIN_WARPS == WARPS && PARTS == CHAIN_WARPS, "a part of K for each warp");
/* Else a stage passes from one chain to the other within a split, and the second could take the
 * phase before the first one's for its own. */
static_assert(RING % CHAINS == 0, "a stage has tiles of one chain, within a row");

struct latent_chains_shared {
    __nv_bfloat16 keys[RING][KEYS][ROW];
    float scores[CHAINS][2][PARTS][16][SCORE_ROW]; /* of a chain's tiles in turn */
    union {
        __nv_bfloat16 q[16][ROW];                         /* on its way to registers */
        float4 sent[CHAINS][CHAIN_WARPS][TILES_KEPT][32]; /* sums for the other chain */
    };
    float4 edges[CHAINS][32]; /* maxima and totals that belong to the sums */
    uint64_t full[RING], empty[RING];
    uint64_t met;                /* chains_meet */
    rp_attention_plan_row start; /* the row in which the block's part begins */
    uint32_t start_index;
    bool is_last;
};

/* -- the block's part of the splits, row by row ---------------------------- */

struct latent_walk {
    rp_attention_plan_row row;
    uint32_t next;    /* row, read ahead if the part goes on in it: its word lane % 8 */
    uint32_t index;   /* of the row */
    uint32_t at, end; /* splits of the part that are left */

    /* From where find_start says. */
    __device__ __forceinline__ latent_walk(const latent_args &args,
                                           const latent_chains_shared &shared, uint32_t at,
                                           uint32_t end)
        : row(shared.start), next(), index(shared.start_index), at(at), end(end) {
        look_ahead(args);
    }
    __device__ __forceinline__ uint32_t split() const { return at - row.begin; }
    __device__ __forceinline__ uint32_t split_end() const {
        return min(row.splits, end - row.begin);
    }
    __device__ __forceinline__ void look_ahead(const latent_args &args) {
        if (row.begin + row.splits < end)
            next = __ldcg((const uint32_t *)(args.rows + index + 1) + threadIdx.x % 8);
    }
    __device__ __forceinline__ uint32_t word(uint32_t i) const {
        return __shfl_sync(0xFFFFFFFFu, next, i);
    }
    /* To the next row. False: the part is done. */
    __device__ __forceinline__ bool step(const latent_args &args) {
        at = row.begin + row.splits;
        if (at >= end)
            return false;
        row = {word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7)};
        index++;
        look_ahead(args);
        return true;
    }
};

/* The keys that a row sees of its splits [split, split_end), and the tiles that have them. */
struct latent_span {
    uint32_t begin, end, tile, tile_end;

    __device__ __forceinline__ latent_span(const rp_attention_plan_row &row, uint32_t split,
                                           uint32_t split_end)
        : begin(max(row.first, (row.first_split + split) << row.split_log2)),
          end(min(row.position + 1, (row.first_split + split_end) << row.split_log2)),
          tile(begin / KEYS), tile_end((end + KEYS - 1) / KEYS) {}
};

/* Initializes the barriers and finds the row in which the block's part, from split `begin`, begins.
 * The first rows are loaded before it is known how many there are. At each barrier every thread
 * arrives for itself: racecheck does not accept one lane's arrival for its warp. */
__device__ __forceinline__ void find_start(const latent_args &args, latent_chains_shared &shared,
                                           const rp_attention_plan_row &first, uint32_t rows,
                                           uint32_t begin) {
    if (threadIdx.x == 0) {
#pragma unroll /* racecheck follows as many barriers as it finds such instructions */
        for (uint32_t i = 0; i < RING; i++) {
            barrier_init(shared_address(&shared.full[i]), CHAINS_THREADS - THREADS);
            barrier_init(shared_address(&shared.empty[i]), CHAIN_WARPS * 32);
        }
        barrier_init(shared_address(&shared.met), THREADS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < rows; i += CHAINS_THREADS) {
        const rp_attention_plan_row row = i == threadIdx.x ? first : load_row(args.rows + i);
        if (begin - row.begin < row.splits) {
            shared.start = row;
            shared.start_index = i;
        }
    }
    __syncthreads();
}

/* -- the feeder ------------------------------------------------------------- */

/* Copies the warp's eight keys of a tile into its stage once that is free, four lanes to a key.
 * Keys that are not read become zeros: their weights are 0, which NaN would survive. row: of the
 * lane's key in the tile; from: its latent, NULL: it is not read. */
__device__ __forceinline__ void feed_tile(latent_chains_shared &shared, uint32_t turn, uint32_t row,
                                          const unsigned char *from) {
    constexpr uint32_t BYTES = DIM * sizeof(__nv_bfloat16);
    const uint32_t lane = threadIdx.x % 32, stage = turn % RING;
    const uint32_t full = shared_address(&shared.full[stage]);
    const bool is_copier = from && lane % 4 == 0;
    const uint32_t count = __popc(__ballot_sync(0xFFFFFFFFu, is_copier));
    __nv_bfloat16 *to = shared.keys[stage][row];
    barrier_wait(shared_address(&shared.empty[stage]), (turn / RING & 1) ^ 1);
    if (!from) {
#pragma unroll 6
        for (uint32_t i = lane % 4; i < BYTES / 16; i += 4)
            ((uint4 *)to)[i] = make_uint4(0, 0, 0, 0);
        fence_async_proxy(); /* before the stage's next copy */
    }
    if (lane == 0)
        barrier_expect(full, count * BYTES);
    else
        barrier_arrive(full);
    __syncwarp(); /* the bytes are expected before a copy begins */
    if (is_copier)
        copy_bulk(shared_address(to), from, BYTES, full);
}

/* Copies all tiles of the block's part in order. Keys of earlier steps may be read before the wait
 * for the kernels ahead; the tile of a row's own key is copied after it. */
__device__ __forceinline__ void feed(const latent_args &args, latent_chains_shared &shared,
                                     const rp_stamp &stamp, latent_walk &walk) {
    const uint32_t lane = threadIdx.x % 32, in_page = (1u << args.page_log2) - 1;
    const uint32_t mine = threadIdx.x % 128 / 4; /* the lane's key of a tile */
    const bool is_in_page = in_page >= KEYS - 1; /* a tile */
    uint32_t turn = 0;
    bool is_due = args.early;
    do {
        const latent_span span(walk.row, walk.split(), walk.split_end());
        const uint32_t *pages = args.tables + (size_t)walk.row.slot * args.slot_words;
        uint32_t places = 0; /* pages of 32 tiles, in a lane each */
#pragma unroll 1
        for (uint32_t tile = span.tile; tile < span.tile_end; tile++, turn++) {
            const uint32_t key = tile * KEYS + mine, ahead = tile + lane;
            const bool is_read = key >= span.begin && key < span.end;
            uint32_t page = 0;
            if (!is_in_page) {
                page = is_read ? __ldcg(pages + (key >> args.page_log2)) : 0;
            } else {
                if ((tile - span.tile) % 32 == 0)
                    places = ahead < span.tile_end
                                 ? __ldcg(pages + (ahead * KEYS >> args.page_log2))
                                 : 0;
                page = __shfl_sync(0xFFFFFFFFu, places, (tile - span.tile) % 32);
            }
            if (is_due && (tile + 1) * KEYS > walk.row.position) {
                stamp.wait();
                is_due = false;
            }
            const unsigned char *from =
                args.kv + page * args.page_stride + (size_t)(key & in_page) * (DIM * 2);
            feed_tile(shared, turn, mine, is_read ? from : NULL);
        }
    } while (walk.step(args));
    if (is_due)
        stamp.wait();
}

/* -- a chain ----------------------------------------------------------------- */

__device__ __forceinline__ uint32_t chain_of_thread() { return threadIdx.x / 32 / CHAIN_WARPS; }
__device__ __forceinline__ uint32_t warp_of_chain() { return threadIdx.x / 32 % CHAIN_WARPS; }

/* The threads of both chains meet, always twice: before they store what others of them read, and
 * after it. So the parity of the barrier's phase is known: 0, then 1. racecheck does not follow a
 * bar.sync of these 256 threads. */
enum chains_meeting : uint32_t { BEFORE_STORE = 0, AFTER_STORE = 1 };
__device__ __forceinline__ void chains_meet(latent_chains_shared &shared, chains_meeting meeting) {
    barrier_arrive(shared_address(&shared.met));
    barrier_wait(shared_address(&shared.met), meeting);
}

/* Sums over a chain's keys. A lane has rows lane / 4 and + 8, and of them the columns warp *
 * CHAIN_COLUMNS + n * 8 + lane % 4 * 2 and the next one: out[n][half * 2], [half * 2 + 1]. */
struct chain_sums {
    float max[2], total[2]; /* total: of this lane's keys, until gather_total */
    float out[TILES_OUT][4];

    __device__ __forceinline__ void clear() {
        max[0] = max[1] = -INFINITY;
        total[0] = total[1] = 0.0f;
#pragma unroll
        for (uint32_t n = 0; n < TILES_OUT; n++)
            out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0.0f;
    }
    __device__ __forceinline__ void gather_total() {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            total[half] += __shfl_xor_sync(0xFFFFFFFFu, total[half], 1);
            total[half] += __shfl_xor_sync(0xFFFFFFFFu, total[half], 2);
        }
    }
};

/* A row's q in registers: the warp's part of the columns, rounded to bf16. Heads that do not exist
 * are zeros. */
struct chain_query {
    uint32_t parts[STEPS][4];

    __device__ __forceinline__ void load(const latent_args &args, latent_chains_shared &shared,
                                         uint32_t token) {
        constexpr uint32_t COUNT = 16 * (DIM / 4) / THREADS;
        static_assert(COUNT * THREADS == 16 * (DIM / 4), "no remainder");
        const uint32_t lane = threadIdx.x % 32;
        float4 x[COUNT];
        const float *const from = args.q + token * args.q_stride + (size_t)threadIdx.x * 4;
        const uint32_t columns = args.heads * DIM, column = threadIdx.x * 4;
#pragma unroll
        for (uint32_t i = 0; i < COUNT; i++)
            x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (args.q_aligned) {
#pragma unroll
            for (uint32_t i = 0; i < COUNT; i++)
                if (column + i * THREADS * 4 < columns)
                    x[i] = *(const float4 *)(from + i * THREADS * 4);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < COUNT * 4; i++)
                if (column + i / 4 * THREADS * 4 < columns)
                    ((float *)x)[i] = from[i / 4 * THREADS * 4 + i % 4];
        }
        chains_meet(shared, BEFORE_STORE); /* what else the memory held has been read */
#pragma unroll
        for (uint32_t i = 0; i < COUNT; i++) {
            const uint32_t at = i * THREADS + threadIdx.x;
            *(uint2 *)&shared.q[at / (DIM / 4)][at % (DIM / 4) * 4] =
                make_uint2(pack_bf16(x[i].x, x[i].y), pack_bf16(x[i].z, x[i].w));
        }
        chains_meet(shared, AFTER_STORE);
        const uint32_t parts_at =
            shared_address(&shared.q[lane % 16][warp_of_chain() * PART + lane / 16 * 8]);
#pragma unroll
        for (uint32_t k = 0; k < STEPS; k++)
            load_matrices(parts[k], parts_at + k * 32);
    }
};

/* q.k of the tile's keys. A lane has rows lane / 4 and + 8, and of them keys n * 8 + lane % 4 * 2
 * and the next one: s[n][half * 2], [half * 2 + 1]. buffer: 0 and 1 in turn; a warp that stores
 * into it has passed the barrier of the tile between, so all have read the one before. */
__device__ __forceinline__ void chain_scores(latent_chains_shared &shared, const chain_query &q,
                                             uint32_t stage, uint32_t buffer,
                                             float (&s)[KEYS / 8][4]) {
    const uint32_t warp = warp_of_chain(), lane = threadIdx.x % 32, chain = chain_of_thread();
    const uint32_t from = shared_address(
        &shared.keys[stage][lane / 16 * 8 + lane % 8][warp * PART + lane / 8 % 2 * 8]);
#pragma unroll
    for (uint32_t n = 0; n < KEYS / 8; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < STEPS; k++)
#pragma unroll
        for (uint32_t pair = 0; pair < KEYS / 16; pair++) {
            uint32_t b[4];
            load_matrices(b, from + pair * 16 * ROW * 2 + k * 32);
            multiply(s[pair * 2], q.parts[k], b[0], b[1]);
            multiply(s[pair * 2 + 1], q.parts[k], b[2], b[3]);
        }
    float *const parts = &shared.scores[chain][buffer][0][lane / 4][lane % 4 * 2];
    constexpr uint32_t NEXT = 16 * SCORE_ROW;
#pragma unroll
    for (uint32_t n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)(parts + warp * NEXT + half * 8 * SCORE_ROW + n * 8) =
                make_float2(s[n][half * 2], s[n][half * 2 + 1]);
    warpgroup_sync(1 + chain);
    /* (0 + 1) + (2 + 3) in every warp: sums of two have the same bits either way. */
    const float *const mate = parts + (warp ^ 1) * NEXT, *const others = parts + (~warp & 2) * NEXT;
#pragma unroll
    for (uint32_t n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t at = half * 8 * SCORE_ROW + n * 8;
            const float2 a = *(const float2 *)(mate + at), b = *(const float2 *)(others + at),
                         c = *(const float2 *)(others + NEXT + at);
            s[n][half * 2] = (s[n][half * 2] + a.x) + (b.x + c.x);
            s[n][half * 2 + 1] = (s[n][half * 2 + 1] + a.y) + (b.y + c.y);
        }
}

/* Scales, caps and masks the scores of a tile whose first key is `key`. */
__device__ __forceinline__ void chain_mask(const latent_args &args,
                                           const rp_attention_plan_row &row, uint32_t key,
                                           float (&s)[KEYS / 8][4]) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < KEYS / 2; i++)
        s[i / 4][i % 4] *= args.cap_out != 0.0f ? args.cap_in : args.scale;
    if (args.cap_out != 0.0f) {
#pragma unroll
        for (uint32_t i = 0; i < KEYS / 2; i++)
            s[i / 4][i % 4] = args.cap_out * tanhf(s[i / 4][i % 4]);
    }
    if (key >= row.first && key + KEYS - 1 <= row.position)
        return;
#pragma unroll
    for (uint32_t i = 0; i < KEYS / 2; i++) {
        const uint32_t mine = key + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (mine < row.first || mine > row.position)
            s[i / 4][i % 4] = -INFINITY;
    }
}

/* Scores become weights, to which the sums so far are rescaled. */
__device__ __forceinline__ void chain_softmax(chain_sums &sums, float (&s)[KEYS / 8][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = sums.max[half];
#pragma unroll
        for (uint32_t n = 0; n < KEYS / 8; n++)
            top = fmaxf(top, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
        /* No key seen yet: any finite maximum will do, since every weight is 0. */
        const float offset = top == -INFINITY ? 0.0f : top;
        const float rescale = exp2_fast(sums.max[half] - offset);
        float sum = 0.0f;
#pragma unroll
        for (uint32_t n = 0; n < KEYS / 8; n++) {
            s[n][half * 2] = exp2_fast(s[n][half * 2] - offset);
            s[n][half * 2 + 1] = exp2_fast(s[n][half * 2 + 1] - offset);
            sum += s[n][half * 2] + s[n][half * 2 + 1];
        }
        sums.max[half] = top;
        sums.total[half] = __fmaf_rn(sums.total[half], rescale, sum);
#pragma unroll
        for (uint32_t n = 0; n < TILES_OUT; n++) {
            sums.out[n][half * 2] *= rescale;
            sums.out[n][half * 2 + 1] *= rescale;
        }
    }
}

/* Adds weights * values of the tile, for the warp's columns. */
__device__ __forceinline__ void chain_values(latent_chains_shared &shared, uint32_t stage,
                                             const float (&weights)[KEYS / 8][4],
                                             chain_sums &sums) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t from = shared_address(
        &shared.keys[stage][lane % 16][warp_of_chain() * CHAIN_COLUMNS + lane / 16 * 8]);
#pragma unroll
    for (uint32_t k = 0; k < KEYS / 16; k++) {
        const float *const low = weights[k * 2], *const high = weights[k * 2 + 1];
        const uint32_t a[4] = {pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]),
                               pack_bf16(high[0], high[1]), pack_bf16(high[2], high[3])};
#pragma unroll
        for (uint32_t pair = 0; pair < TILES_OUT / 2; pair++) {
            uint32_t b[4];
            load_transposed(b, from + (k * 16 * ROW + pair * 16) * 2);
            multiply(sums.out[pair * 2], a, b[0], b[1]);
            multiply(sums.out[pair * 2 + 1], a, b[2], b[3]);
        }
    }
}

/* The sums of a split over the chain's tiles. turn: of the split's first tile in the ring. */
__device__ __forceinline__ void chain_split(const latent_args &args, latent_chains_shared &shared,
                                            const chain_query &q, const rp_attention_plan_row &row,
                                            const latent_span &span, uint32_t turn,
                                            uint32_t &buffer, chain_sums &sums) {
    sums.clear();
#pragma unroll 1
    for (uint32_t tile = span.tile + ((span.tile ^ chain_of_thread()) & 1); tile < span.tile_end;
         tile += CHAINS) {
        const uint32_t here = turn + tile - span.tile, stage = here % RING;
        float s[KEYS / 8][4];
        barrier_wait(shared_address(&shared.full[stage]), here / RING & 1);
        chain_scores(shared, q, stage, buffer, s);
        chain_mask(args, row, tile * KEYS, s);
        chain_softmax(sums, s);
        chain_values(shared, stage, s, sums);
        barrier_arrive(shared_address(&shared.empty[stage]));
        buffer ^= 1;
    }
    sums.gather_total();
}

/* -- both chains --------------------------------------------------------------- */

/* First column of those of which a warp has the sums of both chains. */
__device__ __forceinline__ uint32_t kept_column() {
    return warp_of_chain() * CHAIN_COLUMNS + chain_of_thread() * (TILES_KEPT * 8);
}

/* The even tiles' sums and then the odd ones', of half of the warp's columns; the other chain has
 * the other half. */
__device__ __forceinline__ void join_chains(latent_chains_shared &shared, const chain_sums &mine,
                                            latent_sums<1> &to) {
    const uint32_t chain = chain_of_thread(), warp = warp_of_chain(), lane = threadIdx.x % 32;
    const bool is_odd = chain != 0;
    chains_meet(shared, BEFORE_STORE); /* what the memory held has been read */
#pragma unroll
    for (uint32_t n = 0; n < TILES_KEPT; n++) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = is_odd ? mine.out[n][i] : mine.out[n + TILES_KEPT][i];
        shared.sent[chain][warp][n][lane] = make_float4(x[0], x[1], x[2], x[3]);
    }
    if (warp == 0) /* the same in all warps */
        shared.edges[chain][lane] =
            make_float4(mine.max[0], mine.max[1], mine.total[0], mine.total[1]);
    chains_meet(shared, AFTER_STORE);
    const float4 edge = shared.edges[chain ^ 1][lane];
    const float max[2] = {edge.x, edge.y}, total[2] = {edge.z, edge.w};
    latent_sums<1> odd;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        to.max[0][half] = is_odd ? max[half] : mine.max[half];
        odd.max[0][half] = is_odd ? mine.max[half] : max[half];
        to.total[0][half] = is_odd ? total[half] : mine.total[half];
        odd.total[0][half] = is_odd ? mine.total[half] : total[half];
    }
#pragma unroll
    for (uint32_t n = 0; n < TILES_KEPT; n++) {
        const float4 four = shared.sent[chain ^ 1][warp][n][lane];
        const float got[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float kept = is_odd ? mine.out[n + TILES_KEPT][i] : mine.out[n][i];
            to.out[0][n][i] = is_odd ? got[i] : kept;
            odd.out[0][n][i] = is_odd ? kept : got[i];
        }
    }
    to.fold(odd);
}

/* Signals that `count` of the row's splits are stored. True in the block that is the last one. */
__device__ __forceinline__ bool arrive(const latent_args &args, latent_chains_shared &shared,
                                       uint32_t row, uint32_t count, uint32_t splits) {
    chains_meet(shared, BEFORE_STORE); /* all have stored their partial sums, too */
    if (threadIdx.x == 0) {
        uint32_t before;
        /* Releases this block's partial sums and acquires those of the others. */
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                     : "=r"(before)
                     : "l"(args.arrivals + row), "r"(count)
                     : "memory");
        shared.is_last = before + count == splits;
        if (shared.is_last)
            args.arrivals[row] = 0;
    }
    chains_meet(shared, AFTER_STORE);
    return shared.is_last;
}

/* The next N of a row's partial sums, all in flight. place: in lane i, of the i-th one. */
template <int N>
__device__ __forceinline__ void gather_some(const latent_args &args, uint32_t place, uint32_t index,
                                            latent_sums<1> &state) {
    latent_sums<1> next[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t from = __shfl_sync(0xFFFFFFFFu, place, index + i);
        get_partial<1>(args.partials + (size_t)from * partial_floats(1), next[i]);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        state.fold(next[i]);
}

/* All of a row's partial sums in rising order: its folded beginning, then split by split. */
__device__ __forceinline__ void gather_all(const latent_args &args, const latent_line &line,
                                           const rp_attention_plan_row &row,
                                           latent_sums<1> &state) {
    static_assert(RP_ATTENTION_SPLITS <= 32, "a lane for each");
    const uint32_t first = line.owner_of(row.begin), lane = threadIdx.x % 32;
    const uint32_t begin = line.begin_of(first + 1), count = row.begin + row.splits - begin;
    get_partial<1>(partial_at<1>(args, first, PREFIX_SLOT), state);
    const uint32_t mine = begin + min(lane, count - 1), owner = line.owner_of(mine);
    const uint32_t place = owner * SLOTS + mine - line.begin_of(owner);
    uint32_t i = 0;
#pragma unroll 1
    for (; i + 4 <= count; i += 4)
        gather_some<4>(args, place, i, state);
    if (count - i >= 2) {
        gather_some<2>(args, place, i, state);
        i += 2;
    }
    if (i < count)
        gather_some<1>(args, place, i, state);
}

/* Stores a row, or the folded beginning of one that other blocks go on with. */
__device__ __forceinline__ void settle_row(const latent_args &args, latent_chains_shared &shared,
                                           const latent_line &line, const latent_walk &walk,
                                           latent_sums<1> &state) {
    const uint32_t count = walk.split_end() - walk.split();
    if (count != walk.row.splits) {
        if (walk.split() == 0)
            put_partial<1>(partial_at<1>(args, blockIdx.x, PREFIX_SLOT), state);
        if (!arrive(args, shared, walk.index, count, walk.row.splits))
            return;
        gather_all(args, line, walk.row, state);
    }
    const latent_work work = {.token = walk.row.token, .tokens = 1};
    store_out(args, work, state, kept_column());
}

__device__ __forceinline__ void compute(const latent_args &args, latent_chains_shared &shared,
                                        const latent_line &line, latent_walk &walk) {
    uint32_t turn = 0, buffer = 0;
    do {
        chain_query q;
        latent_sums<1> state;
        q.load(args, shared, walk.row.token);
        state.clear();
#pragma unroll 1
        for (uint32_t split = walk.split(); split < walk.split_end(); split++) {
            const latent_span span(walk.row, split, split + 1);
            chain_sums sums;
            latent_sums<1> joined;
            chain_split(args, shared, q, walk.row, span, turn, buffer, sums);
            turn += span.tile_end - span.tile;
            join_chains(shared, sums, joined);
            if (walk.split() == 0)
                state.fold(joined);
            else
                put_partial<1>(partial_at<1>(args, blockIdx.x, split - walk.split()), joined);
        }
        settle_row(args, shared, line, walk, state);
    } while (walk.step(args));
}

__device__ __forceinline__ void latent_chains(const latent_args &args,
                                              latent_chains_shared &shared) {
    rp_stamp stamp(args.stamp);
    rp_pdl_trigger();
    if (!args.early)
        stamp.wait();
    stamp.look();
    rp_attention_plan_row first = {};
    if (threadIdx.x < args.row_capacity)
        first = load_row(args.rows + threadIdx.x);
    const uint2 counts = __ldcg((const uint2 *)args.plan); /* decode_rows, decode_splits */
    const latent_line line = {counts.y, gridDim.x};
    const uint32_t at = line.begin_of(blockIdx.x), end = line.begin_of(blockIdx.x + 1);
    if (at == end) { /* no work */
        if (args.early)
            stamp.wait();
        return;
    }
    find_start(args, shared, first, counts.x, at);
    if (threadIdx.x < THREADS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CHAIN_REGISTERS));
        latent_walk walk(args, shared, at, end);
        if (args.early)
            stamp.wait();
        compute(args, shared, line, walk);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEEDER_REGISTERS));
        latent_walk walk(args, shared, at, end);
        feed(args, shared, stamp, walk);
    }
}

} // namespace

#endif
