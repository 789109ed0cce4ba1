/* STEP_BEGIN on CUDA: one block. What costs time here is round trips over PCIe, so the header and
 * as many rows and edits as a decode step usually has are read at once, before it is known how many
 * there are; a prompt's tokens are the second trip. The arrays are filled with padding
 * meanwhile. */
#include "device/ops_cuda.h"

#include "device/cuda_kernel.cuh"

#define THREADS     512u
#define AHEAD       256u /* rows, and edits, that are read together with the header */
#define TOKEN_BATCH 4u   /* prompt tokens that a thread has in flight */

/* Sums over rows in one word: tokens << LOGIT_BITS | logit rows. A row counts for at most
 * token_capacity + 1 of either, so the first row that does not fit shows before anything
 * overflows. */
#define LOGIT_BITS 32

/* Rows of one pass, for the threads that expand their tokens. */
struct pass_rows {
    uint32_t begin[THREADS], length[THREADS], last_token[THREADS], prompt_offset[THREADS];
    uint32_t flags[THREADS], token_count[THREADS], logit_begin[THREADS];
    bool finished[THREADS];
    bool scored; /* a row of this pass or one before has RP_ROW_SCORE */
};

/* Host memory that changes between launches: never from a cache. */
static __device__ __forceinline__ uint4 load_host(const void *at) {
    uint4 value;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(at));
    return value;
}

static __device__ void fill_padding(const rp_step_view &view) {
    for (uint32_t i = threadIdx.x; i < view.config.token_capacity; i += THREADS) {
        view.token_ids[i] = 0;
        view.positions[i] = 0;
        view.token_rows[i] = RP_ROW_NONE;
    }
    for (uint32_t i = threadIdx.x; i < view.config.logit_row_capacity; i += THREADS) {
        view.logit_tokens[i] = 0;
        view.logit_rows[i] = RP_ROW_NONE;
        view.logit_targets[i] = RP_NO_TARGET;
    }
}

/* Before any node stores its end; each step stores begins again. */
static __device__ void clear_stamps(const rp_step_view &view, uint32_t flags) {
    if (flags & RP_PACKET_STAMP)
        for (uint32_t i = threadIdx.x; i < view.config.stamp_capacity; i += THREADS)
            view.stamps[i].end_ns = 0;
}

static __device__ void publish(rp_live_counts *counts, uint32_t rows, uint64_t sum, uint32_t flags,
                               bool scored, bool failed) {
    if (threadIdx.x != 0)
        return;
    counts->flags = failed ? 0 : flags;
    counts->row_count = failed ? 0 : rows;
    counts->token_count = failed ? 0 : (uint32_t)(sum >> LOGIT_BITS);
    counts->logit_row_count = failed ? 0 : (uint32_t)sum;
    counts->scored = !failed && scored;
    if (failed)
        counts->error = 1;
}

/* edit: slot, field, index, value. False when it lies outside the slots; nothing is written
 * then. */
static __device__ bool apply_edit(const rp_step_view &view, uint4 edit) {
    uint64_t word = (uint64_t)edit.y + edit.z;
    if (edit.x >= view.config.slot_count || word >= view.slot_words)
        return false;
    view.slots[(size_t)edit.x * view.slot_words + word] = edit.w;
    return true;
}

/* Inclusive sum over the block's threads; *total is the sum of all. */
static __device__ uint64_t block_scan(uint64_t value, uint64_t *warp_sums, uint64_t *total) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
        uint64_t other = __shfl_up_sync(0xFFFFFFFFu, value, distance);
        if (lane >= distance)
            value += other;
    }
    __syncthreads(); /* the last pass has read warp_sums */
    if (lane == 31)
        warp_sums[warp] = value;
    __syncthreads();
    uint64_t before = 0, sum = 0;
    for (uint32_t w = 0; w < THREADS / 32; w++) {
        before += w < warp ? warp_sums[w] : 0;
        sum += warp_sums[w];
    }
    *total = sum;
    return before + value;
}

/* Where the row's recurrent state comes from, and where and when it is saved; false: the packet
 * lies. */
static __device__ bool expand_state(const rp_step_view &view, uint32_t *slot, rp_live_row *live) {
    uint32_t from = slot[RP_SLOT_STATE], save_at = slot[RP_SLOT_SAVE_AT];
    uint32_t save_to = slot[RP_SLOT_SAVE_TO], places = view.config.state_places;
    slot[RP_SLOT_STATE] = slot[RP_SLOT_SAVE_AT] = 0;
    live->save_to = save_to;
    live->state_from = from ? from - 1 : live->kv_begin ? live->slot : RP_STATE_ZERO;
    if (save_at > live->kv_begin && save_at - live->kv_begin <= live->token_count)
        live->save_at = save_at - live->kv_begin;
    return (from == 0 || live->state_from < places) && save_to < places;
}

/* Row `index` of the packet, kept for its tokens; false when the packet lies. before: the sum over
 * the rows before it. */
static __device__ bool expand_row(const rp_step_view &view, uint32_t index, uint4 row,
                                  uint64_t before, pass_rows *pass) {
    uint32_t begin = (uint32_t)(before >> LOGIT_BITS);
    uint32_t logit_row = (uint32_t)before;
    bool sample = row.w & RP_ROW_SAMPLE, score = row.w & RP_ROW_SCORE;
    if (row.x >= view.config.slot_count || row.y == 0 ||
        (before >> LOGIT_BITS) + row.y > view.config.token_capacity ||
        (uint64_t)logit_row + (score ? row.y : sample) > view.config.logit_row_capacity)
        return false;
    uint32_t *slot = view.slots + (size_t)row.x * view.slot_words;
    uint32_t length = slot[RP_SLOT_LENGTH], last = slot[RP_SLOT_LAST_TOKEN];
    bool finished = slot[RP_SLOT_FINISHED] != 0;
    rp_live_row live = {row.x,
                        begin,
                        row.y,
                        length,
                        finished ? 0 : row.w,
                        sample ? logit_row + (score ? row.y - 1 : 0) : 0};
    if (view.config.state_places && !expand_state(view, slot, &live))
        return false;
    view.rows[index] = live;
    if (score) { /* expand_scores writes its logit rows */
        pass->scored = true;
    } else if (sample) {
        view.logit_tokens[logit_row] = begin + row.y - 1;
        view.logit_rows[logit_row] = index;
    }
    pass->begin[threadIdx.x] = begin;
    pass->length[threadIdx.x] = length;
    pass->last_token[threadIdx.x] = last;
    pass->prompt_offset[threadIdx.x] = row.z;
    pass->flags[threadIdx.x] = row.w;
    pass->token_count[threadIdx.x] = row.y;
    pass->logit_begin[threadIdx.x] = logit_row;
    pass->finished[threadIdx.x] = finished;
    return true;
}

/* The last of `count` rows that begins at or before the token. */
static __device__ uint32_t row_of(const pass_rows *pass, uint32_t count, uint32_t token) {
    uint32_t low = 0, high = count;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (pass->begin[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Tokens [begin, end) of the pass's rows. */
static __device__ void expand_tokens(const rp_step_view &view, const pass_rows *pass,
                                     uint32_t first_row, uint32_t count, uint32_t begin,
                                     uint32_t end) {
    bool single = end - begin == count;
    for (uint32_t base = begin; base < end; base += THREADS * TOKEN_BATCH) {
        uint32_t at[TOKEN_BATCH];
        int32_t id[TOKEN_BATCH];
#pragma unroll
        for (uint32_t i = 0; i < TOKEN_BATCH; i++) {
            uint32_t token = base + i * THREADS + threadIdx.x;
            if (token >= end)
                continue;
            at[i] = single ? token - begin : row_of(pass, count, token);
            id[i] = (int32_t)pass->last_token[at[i]];
            uint32_t prompt_at = (pass->prompt_offset[at[i]] + (token - pass->begin[at[i]])) &
                                 (view.config.prompt_ring_capacity - 1);
            if (!(pass->flags[at[i]] & RP_ROW_DECODE))
                id[i] = *(const volatile int32_t *)&view.prompt_ring[prompt_at];
        }
#pragma unroll
        for (uint32_t i = 0; i < TOKEN_BATCH; i++) {
            uint32_t token = base + i * THREADS + threadIdx.x;
            if (token >= end)
                continue;
            bool finished = pass->finished[at[i]];
            view.token_ids[token] = id[i];
            view.positions[token] =
                finished ? 0 : pass->length[at[i]] + (token - pass->begin[at[i]]);
            view.token_rows[token] = finished ? RP_ROW_NONE : first_row + at[i];
        }
    }
}

/* Logit rows of those of the pass's rows that are scored: one for each of their tokens. */
static __device__ void expand_scores(const rp_step_view &view, const pass_rows *pass,
                                     uint32_t first_row, uint32_t count, uint32_t begin,
                                     uint32_t end) {
    for (uint32_t token = begin + threadIdx.x; token < end; token += THREADS) {
        uint32_t at = row_of(pass, count, token), own = token - pass->begin[at];
        if (!(pass->flags[at] & RP_ROW_SCORE))
            continue;
        uint32_t logit_row = pass->logit_begin[at] + own;
        uint32_t prompt_at =
            (pass->prompt_offset[at] + own + 1) & (view.config.prompt_ring_capacity - 1);
        bool samples = (pass->flags[at] & RP_ROW_SAMPLE) && own + 1 == pass->token_count[at];
        view.logit_tokens[logit_row] = token;
        view.logit_rows[logit_row] = first_row + at;
        view.logit_targets[logit_row] =
            samples ? RP_NO_TARGET : *(const volatile int32_t *)&view.prompt_ring[prompt_at];
    }
}

static __global__ void __launch_bounds__(THREADS) step_begin_kernel(rp_step_begin_cuda args) {
    __shared__ uint4 header[2];
    __shared__ uint64_t warp_sums[THREADS / 32];
    __shared__ pass_rows pass;
    const rp_step_view &view = args.step;
    const rp_step_config &config = view.config;
    uint32_t thread = threadIdx.x;
    rp_stamp stamp(args.stamp);
    stamp.begin();
    if (thread == 0)
        view.counts->begin_ns = rp_device_clock_ns();
    uint64_t step = view.counts->step + 1;
    bool failed = view.counts->error != 0;
    const unsigned char *packet = view.packets + (step % RP_STEP_RING_ENTRIES) * view.packet_bytes;
    const uint4 *rows = (const uint4 *)(packet + sizeof(rp_packet_header));
    const uint4 *edits = rows + config.row_capacity;
    uint4 head = thread < 2 ? load_host(packet + 16 * thread) : make_uint4(0, 0, 0, 0);
    uint4 ahead = make_uint4(0, 0, 0, 0);
    if (thread < AHEAD ? thread < config.row_capacity : thread - AHEAD < config.edit_capacity)
        ahead = load_host(thread < AHEAD ? &rows[thread] : &edits[thread - AHEAD]);
    fill_padding(view);
    if (thread < 2)
        header[thread] = head;
    if (thread == 0)
        pass.scored = false;
    __syncthreads();
    uint64_t packet_step = header[0].x | (uint64_t)header[0].y << 32;
    uint32_t row_count = header[0].z, edit_count = header[1].y;
    bool bad = failed || packet_step != step || row_count > config.row_capacity ||
               edit_count > config.edit_capacity;
    if (bad) {
        publish(view.counts, 0, 0, 0, false, true);
        return;
    }
    uint32_t flags = header[1].z;
    clear_stamps(view, flags);
    if (thread >= AHEAD && thread - AHEAD < edit_count)
        bad = !apply_edit(view, ahead);
    for (uint32_t i = THREADS - AHEAD + thread; i < edit_count; i += THREADS)
        bad |= !apply_edit(view, load_host(&edits[i]));
    bad = __syncthreads_or(bad); /* stamps are clear, too */
    stamp.take(thread == 0 && args.stamp.slot ? flags : 0);
    uint64_t sum = 0;
    for (uint32_t first = 0; first < row_count && !bad; first += THREADS) {
        uint32_t index = first + thread, count = min(row_count - first, THREADS);
        uint4 row = ahead;
        if (index >= AHEAD)
            row = index < row_count ? load_host(&rows[index]) : make_uint4(0, 0, 0, 0);
        uint64_t mine = 0, total;
        if (index < row_count) {
            uint64_t tokens = min((uint64_t)row.y, (uint64_t)config.token_capacity + 1);
            mine = (tokens << LOGIT_BITS) + ((row.w & RP_ROW_SCORE)    ? tokens
                                             : (row.w & RP_ROW_SAMPLE) ? 1
                                                                       : 0);
        }
        uint64_t before = sum + block_scan(mine, warp_sums, &total) - mine;
        if (index < row_count)
            bad = !expand_row(view, index, row, before, &pass);
        bad = __syncthreads_or(bad);
        if (!bad)
            expand_tokens(view, &pass, first, count, (uint32_t)(sum >> LOGIT_BITS),
                          (uint32_t)((sum + total) >> LOGIT_BITS));
        if (!bad && pass.scored)
            expand_scores(view, &pass, first, count, (uint32_t)(sum >> LOGIT_BITS),
                          (uint32_t)((sum + total) >> LOGIT_BITS));
        sum += total;
    }
    publish(view.counts, row_count, sum, flags, pass.scored, bad);
}

int rp_step_begin_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_step_begin_cuda *args = (const rp_step_begin_cuda *)args_void;
    return rp_cuda_start(step_begin_kernel, dim3(1), dim3(THREADS), 0, stream, !args->plain_edges,
                         *args);
}
