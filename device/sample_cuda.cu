/* SAMPLE on CUDA: four launches, each row cut into chunks of ids.
 *
 *   scan     the slot's features (sample_features.cuh), scores' sums before them; forbids stop ids where
 *            min_tokens wants it; largest logit and NaN of each chunk
 *   weigh    rows with a temperature: draws (Gumbel-max), or, where top_k or top_p choose first, counts
 *            and probabilities of the candidates in BINS bins of equal width below the largest logit
 *   narrow   rows with top_k or top_p: draws what lies surely above the boundary, lists what lies in the
 *            boundary's bins
 *   finish   a block per row of the step: finds the boundary within the list (radix selection on logit
 *            and id), draws there, scores the token, advances the slot; further blocks score prompts' tokens,
 *            one each; the last block publishes the step
 *
 * Probabilities are summed in fixed point: their sums do not depend on the order of threads.
 * Nothing a choice depends on depends on how many chunks there are. */
#include "device/sample_features.cuh"
#include "device/sample_select.cuh"

static uint32_t chunks_of(uint32_t vocab, uint32_t chunk) { return (vocab + chunk - 1) / chunk; }

static size_t carve(unsigned char *base, uint32_t rows, uint32_t vocab, bool features,
                    sample_scratch *out) {
    size_t used = 0, chunks = chunks_of(vocab, UNIT);
    auto take = [&](size_t bytes) {
        unsigned char *at = base ? base + used : NULL;
        used += RP_ALIGN_UP(bytes, (size_t)RP_CACHE_LINE);
        return (void *)at;
    };
    out->done = (uint32_t *)take(sizeof *out->done);
    out->rows = (row_choice *)take(rows * sizeof *out->rows);
    out->largest = (uint64_t *)take(rows * chunks * 8);
    out->drawn = (uint64_t *)take(rows * chunks * 8);
    out->bin_weights = (uint64_t *)take((size_t)rows * BINS * 8);
    out->bin_counts = (uint32_t *)take((size_t)rows * BINS * 4);
    out->list_counts = (uint32_t *)take(rows * 4ull);
    out->lists = (candidate *)take((size_t)rows * LIST_MAX * sizeof *out->lists);
    out->results = (rp_row_result *)take(rows * sizeof *out->results);
    if (!features)
        return used;
    out->unit_best = (uint64_t *)take(rows * chunks * 8);
    out->unit_sums = (float *)take(rows * chunks * 4);
    out->copies = (float *)take((size_t)rows * vocab * 4);
    return used;
}

size_t rp_sample_cuda_scratch_bytes(uint32_t row_capacity, uint32_t vocab, bool features) {
    sample_scratch unused;
    return carve(NULL, row_capacity, vocab, features, &unused);
}

static __device__ __forceinline__ float slot_float(const uint32_t *slot, uint32_t field) {
    return __uint_as_float(slot[field]);
}

static __device__ row_choice choice_of(const uint32_t *slot) {
    row_choice choice = {};
    float temperature = slot_float(slot, RP_SLOT_TEMPERATURE);
    float min_p = slot_float(slot, RP_SLOT_MIN_P);
    choice.top_k = slot[RP_SLOT_TOP_K];
    choice.top_p = slot_float(slot, RP_SLOT_TOP_P);
    choice.position = slot[RP_SLOT_OUTPUT_COUNT];
    choice.seed = slot[RP_SLOT_SEED_LOW] | (uint64_t)slot[RP_SLOT_SEED_HIGH] << 32;
    choice.inverse = 1.0f / temperature;
    choice.cut = -SPAN;
    if (min_p > 0.0f)
        choice.cut = fmaxf(choice.cut, (float)log((double)min_p));
    bool select = choice.top_k != 0 || choice.top_p < 1.0f;
    choice.mode = slot[RP_SLOT_FINISHED] ? MODE_NONE
                  : temperature == 0.0f  ? MODE_GREEDY
                  : select               ? MODE_SELECT
                                         : MODE_DRAW;
    return choice;
}

struct best_logit {
    float value;
    uint32_t id;
    bool nan;
};

static __device__ __forceinline__ void look(best_logit &best, float value, uint32_t id) {
    best.nan |= value != value;
    if (value > best.value) {
        best.value = value;
        best.id = id;
    }
}

/* Logits [begin, end); each thread's ids rise. */
template <bool VEC>
static __device__ __forceinline__ uint64_t scan_chunk(const float *logits, uint32_t begin,
                                                      uint32_t end) {
    best_logit best = {-INFINITY, 0, false};
    for (uint32_t base = begin; base < end; base += UNIT) {
        uint32_t low = base + threadIdx.x * 4, high = low + THREADS * 4;
        float4 x = rp_load4<VEC>(logits, RP_DTYPE_F32, low, low, end);
        float4 y = rp_load4<VEC>(logits, RP_DTYPE_F32, high, high, end);
        const float values[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t id = (i < 4 ? low : high) + i % 4;
            if (id < end)
                look(best, values[i], id);
        }
    }
    return best.nan                  ? RP_KEY_NAN
           : best.value == -INFINITY ? RP_KEY_NONE
                                     : rp_key(best.value, best.id);
}

template <bool VEC>
static __global__ void __launch_bounds__(THREADS)
    sample_scan_kernel(const __grid_constant__ sample_args args) {
    rp_stamp stamp(args.a.stamp);
    __shared__ uint64_t shared[RP_SAMPLE_WARPS];
    const rp_step_view &step = args.a.step;
    uint32_t logit_row = blockIdx.y, thread = threadIdx.x;
    stamp.begin();
    /* Read together: a padding row has no row. */
    uint32_t live = step.counts->logit_row_count, row = step.logit_rows[logit_row];
    if ((logit_row >= live) | (row >= step.config.row_capacity))
        return;
    const uint32_t *slot = step.slots + (size_t)step.rows[row].slot * step.slot_words;
    uint32_t finished = slot[RP_SLOT_FINISHED], output_count = slot[RP_SLOT_OUTPUT_COUNT];
    uint32_t stop_count = RP_MIN(slot[RP_SLOT_STOP_COUNT], (uint32_t)RP_STOP_IDS_MAX);
    uint32_t features = slot[RP_SLOT_FEATURES];
    bool forbid = output_count < slot[RP_SLOT_MIN_TOKENS];
    bool sampled = step.logit_targets[logit_row] < 0;
    if (blockIdx.x == 0) {
        if (thread == 0) {
            args.s.rows[logit_row] = choice_of(slot);
            if (!sampled)
                args.s.rows[logit_row].mode = MODE_NONE;
            args.s.list_counts[logit_row] = 0;
        }
        args.s.bin_counts[logit_row * BINS + thread] = 0;
        args.s.bin_weights[logit_row * BINS + thread] = 0;
    }
    if (finished)
        return;
    float *logits = args.a.logits + logit_row * args.a.stride;
    uint32_t begin = blockIdx.x * args.chunk, end = RP_MIN(begin + args.chunk, args.a.vocab);
    if (features || !sampled) {
        prepare_chunk(args, logit_row, features, sampled, forbid, begin, end, shared);
        if (!sampled)
            return;
    }
    if (forbid) {
        uint32_t id = thread < stop_count ? slot[RP_SLOT_STOP_IDS + thread] : 0xFFFFFFFFu;
        if (id >= begin && id < end && logits[id] == logits[id])
            logits[id] = -INFINITY;
        __syncthreads();
    }
    uint64_t key = rp_block_key_max(scan_chunk<VEC>(logits, begin, end), shared);
    if (thread == 0)
        args.s.largest[logit_row * args.chunks + blockIdx.x] = key;
}

struct chunk_bins {
    uint32_t counts[BINS], digits[3][BINS];
};

/* Counts and probabilities of the chunk's candidates go to the row's bins. */
template <bool VEC>
static __device__ void weigh_chunk(const sample_args &args, uint32_t row, const row_scale &scale,
                                   bool with_weights, uint32_t begin, uint32_t end,
                                   chunk_bins *bins) {
    const float *logits = args.a.logits + row * args.a.stride;
    uint32_t thread = threadIdx.x;
    bins->counts[thread] = 0;
    for (int d = 0; d < 3; d++)
        bins->digits[d][thread] = 0;
    __syncthreads();
    for (uint32_t base = begin; base < end; base += UNIT) {
        float values[8];
        uint32_t ids[8];
        bool kept[8];
        load_unit<VEC>(logits, base, end, scale, values, ids, kept);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (!kept[i])
                continue;
            uint32_t bin = bin_of(values[i]);
            atomicAdd(&bins->counts[bin], 1u);
            if (!with_weights)
                continue;
            uint64_t weight = weight_of(values[i], args.unit);
            for (int d = 0; d < 3; d++)
                atomicAdd(&bins->digits[d][bin], (uint32_t)(weight >> (16 * d)) & 0xFFFFu);
        }
    }
    __syncthreads();
    if (bins->counts[thread] == 0)
        return;
    atomicAdd(&args.s.bin_counts[row * BINS + thread], bins->counts[thread]);
    uint64_t weight = bins->digits[0][thread] + ((uint64_t)bins->digits[1][thread] << 16) +
                      ((uint64_t)bins->digits[2][thread] << 32);
    if (with_weights)
        atomicAdd((unsigned long long *)&args.s.bin_weights[row * BINS + thread],
                  (unsigned long long)weight);
}

template <bool VEC>
static __device__ uint64_t draw_chunk(const sample_args &args, uint32_t row,
                                      const row_choice &choice, const row_scale &scale,
                                      uint32_t begin, uint32_t end, uint64_t *shared) {
    rp_drawing drawing = {choice.seed, choice.position, -INFINITY, RP_KEY_NONE};
    for (uint32_t base = begin; base < end; base += UNIT) {
        float values[8];
        uint32_t ids[8];
        bool kept[8];
        load_unit<VEC>(args.a.logits + row * args.a.stride, base, end, scale, values, ids, kept);
        rp_draw<8>(drawing, values, ids, kept);
    }
    return rp_block_key_max(drawing.best, shared);
}

template <bool VEC>
static __global__ void __launch_bounds__(THREADS) sample_weigh_kernel(sample_args args) {
    __shared__ uint64_t shared[RP_SAMPLE_WARPS];
    __shared__ chunk_bins bins;
    rp_pdl_begin();
    uint32_t live = args.a.step.counts->logit_row_count;
    if (!any_row(args, MODE_DRAW))
        return;
    for (uint32_t item = blockIdx.x; item < live * args.chunks; item += gridDim.x) {
        uint32_t row = item / args.chunks, at = item % args.chunks;
        row_choice choice = args.s.rows[row];
        if (choice.mode < MODE_DRAW)
            continue;
        uint64_t largest = row_key_max(args.s.largest + row * args.chunks, args.chunks, shared);
        if (largest == RP_KEY_NAN || largest == RP_KEY_NONE)
            continue;
        row_scale scale = scale_of(choice, largest);
        uint32_t begin = at * args.chunk, end = RP_MIN(begin + args.chunk, args.a.vocab);
        if (choice.mode == MODE_SELECT) {
            weigh_chunk<VEC>(args, row, scale, choice.top_p < 1.0f, begin, end, &bins);
            continue;
        }
        uint64_t best = draw_chunk<VEC>(args, row, choice, scale, begin, end, shared);
        if (threadIdx.x == 0)
            args.s.drawn[row * args.chunks + at] = best;
    }
}

template <bool VEC>
static __global__ void __launch_bounds__(THREADS) sample_narrow_kernel(sample_args args) {
    __shared__ uint64_t shared[RP_SAMPLE_WARPS];
    __shared__ cut_memory memory;
    rp_pdl_begin();
    uint32_t live = args.a.step.counts->logit_row_count;
    if (!any_row(args, MODE_SELECT))
        return;
    for (uint32_t item = blockIdx.x; item < live * args.chunks; item += gridDim.x) {
        uint32_t row = item / args.chunks, chunk = item % args.chunks;
        row_choice choice = args.s.rows[row];
        if (choice.mode != MODE_SELECT)
            continue;
        uint64_t largest = row_key_max(args.s.largest + row * args.chunks, args.chunks, shared);
        if (largest == RP_KEY_NAN || largest == RP_KEY_NONE)
            continue;
        uint64_t before;
        cuts cut = row_cuts(args, row, choice, &before, &memory);
        row_scale scale = scale_of(choice, largest);
        uint32_t begin = chunk * args.chunk, end = RP_MIN(begin + args.chunk, args.a.vocab);
        rp_drawing drawing = {choice.seed, choice.position, -INFINITY, RP_KEY_NONE};
        for (uint32_t base = begin; base < end; base += UNIT) {
            float values[8];
            uint32_t ids[8];
            bool kept[8], listed[8], any = false;
            load_unit<VEC>(args.a.logits + row * args.a.stride, base, end, scale, values, ids,
                           kept);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                uint32_t bin = bin_of(values[i]);
                listed[i] = kept[i] && is_listed(cut, bin);
                kept[i] = kept[i] && bin < cut.low;
                any |= kept[i];
            }
            append<8>(args, row, values, ids, listed);
            if (__any_sync(0xFFFFFFFFu, any))
                rp_draw<8>(drawing, values, ids, kept);
        }
        uint64_t best = rp_block_key_max(drawing.best, shared);
        if (threadIdx.x == 0)
            args.s.drawn[row * args.chunks + chunk] = best;
    }
}

/* The chosen id's key, or RP_KEY_NONE or RP_KEY_NAN. key: the largest of the chunks' keys that this
 * thread has read. */
static __device__ uint64_t choose(const sample_args &args, uint32_t row, uint64_t key,
                                  uint32_t mode, uint64_t *shared, cut_memory *memory,
                                  select_memory *selection) {
    uint64_t largest = rp_block_key_max(key, shared);
    if (mode < MODE_DRAW || largest == RP_KEY_NAN || largest == RP_KEY_NONE)
        return largest;
    uint64_t best = RP_KEY_NONE;
    if (mode == MODE_SELECT)
        best = draw_listed(args, row, args.s.rows[row], largest, memory, selection);
    for (uint32_t i = threadIdx.x; i < args.chunks; i += THREADS) {
        uint64_t drawn = args.s.drawn[row * args.chunks + i];
        best = drawn > best ? drawn : best;
    }
    return rp_block_key_max(best, shared);
}

/* Advances the slot of one row; thread 0 leaves the result in scratch. */
static __device__ void finish_row(const sample_args &args, uint32_t row, const rp_live_row &live,
                                  uint64_t *shared, cut_memory *memory, select_memory *selection) {
    const rp_step_view &step = args.a.step;
    uint32_t *slot = step.slots + (size_t)live.slot * step.slot_words, thread = threadIdx.x;
    uint32_t length = slot[RP_SLOT_LENGTH];
    uint32_t stop = slot[RP_SLOT_STOP_IDS + thread % RP_STOP_IDS_MAX];
    uint32_t stop_count = RP_MIN(slot[RP_SLOT_STOP_COUNT], (uint32_t)RP_STOP_IDS_MAX);
    bool finished = slot[RP_SLOT_FINISHED] != 0;
    uint32_t output_count = slot[RP_SLOT_OUTPUT_COUNT], features = slot[RP_SLOT_FEATURES];
    bool forbids_stop_ids = output_count < slot[RP_SLOT_MIN_TOKENS];
    /* Read beside the slot; of a row that does not sample they mean nothing. */
    uint32_t logit_row = min(live.logit_row, max(args.a.max_rows, 1u) - 1);
    uint32_t mode = *(const volatile uint32_t *)&args.s.rows[logit_row].mode;
    uint64_t key = RP_KEY_NONE;
    for (uint32_t i = thread; i < args.chunks; i += THREADS) {
        uint64_t other = *(const volatile uint64_t *)&args.s.largest[logit_row * args.chunks + i];
        key = other > key ? other : key;
    }
    rp_row_result result = {-1, 0.0f, 0, length};
    if (finished) {
        result.flags = RP_RESULT_SKIPPED;
    } else {
        result.length = length + live.token_count;
        if ((live.flags & RP_ROW_SAMPLE) && (live.flags & RP_ROW_WITHHELD)) {
            result.flags = RP_RESULT_WITHHELD;
            if (thread == 0)
                slot[RP_SLOT_FINISHED] = 1;
        } else if (live.flags & RP_ROW_SAMPLE) {
            key = choose(args, logit_row, key, mode, shared, memory, selection);
            uint32_t id = rp_key_id(key);
            bool chosen = key != RP_KEY_NAN && key != RP_KEY_NONE;
            bool stopped = __syncthreads_or(chosen && thread < stop_count && stop == id) != 0;
            result.token = chosen ? (int32_t)id : -1;
            result.flags = !chosen ? RP_RESULT_NAN : stopped ? RP_RESULT_STOPPED : 0;
            if (chosen && (features & RP_FEATURE_LOGPROBS)) {
                const float *logits = has_copy(features, forbids_stop_ids)
                                          ? args.s.copies + (size_t)logit_row * args.a.vocab
                                          : args.a.logits + logit_row * args.a.stride;
                result.logprob =
                    report_scores(args, logit_row, logits, id, slot[RP_SLOT_TOP_LOGPROBS]);
            }
            if (thread == 0 && chosen) {
                if (features)
                    note_token(step, live.slot, slot, features, output_count, id);
                slot[RP_SLOT_LAST_TOKEN] = id;
                slot[RP_SLOT_OUTPUT_COUNT] = output_count + 1;
            }
            if (thread == 0 && result.flags)
                slot[RP_SLOT_FINISHED] = 1;
        }
        if (thread == 0)
            slot[RP_SLOT_LENGTH] = result.length;
    }
    if (thread == 0)
        args.s.results[row] = result;
}

/* The step's stamps, but for the end of SAMPLE itself, for the host. A node's end is what the node
 * behind it saw, if that one was waiting. */
static __device__ void hand_stamps(const sample_args &args, rp_node_stamp *to) {
    const rp_step_view &step = args.a.step;
    uint32_t last = (uint32_t)(args.a.stamp.slot - step.stamps);
    for (uint32_t i = threadIdx.x; i <= last; i += THREADS) {
        uint64_t begin = __ldcg(&step.stamps[i].begin_ns), end = __ldcg(&step.stamps[i].end_ns);
        uint64_t seen = i < last ? __ldcg(&step.stamp_waits[i + 1]) : 0;
        bool is_taken = i == last || end != 0;
        to[i] = {is_taken ? begin : ~(uint64_t)0, is_taken ? RP_MAX(end, seen) : 0};
    }
}

/* The host may read the entry once it sees the step's number: that store is the last, and releases
 * all before it to the whole system. */
static __device__ void publish_step(const sample_args &args, uint32_t row_count) {
    const rp_step_view &step = args.a.step;
    uint64_t number = step.counts->step + 1;
    unsigned char *entry = step.results + (number % RP_STEP_RING_ENTRIES) * step.result_bytes;
    rp_result_header *header = (rp_result_header *)entry;
    uint4 *to = (uint4 *)(entry + sizeof *header);
    for (uint32_t i = threadIdx.x; i < row_count; i += THREADS)
        to[i] = __ldcg((const uint4 *)&args.s.results[i]);
    if (threadIdx.x == 0) {
        header->row_count = row_count;
        header->error = step.counts->error;
        header->begin_ns = step.counts->begin_ns;
        header->end_ns = rp_device_clock_ns();
    }
    rp_node_stamp *stamps =
        args.a.stamp.slot && step.counts->flags & RP_PACKET_STAMP
            ? step.stamp_ring + (number % RP_STEP_RING_ENTRIES) * (size_t)step.config.stamp_capacity
            : NULL;
    if (stamps)
        hand_stamps(args, stamps);
    __syncthreads();
    if (threadIdx.x == 0) {
        *args.s.done = 0;
        step.counts->step = number;
        __threadfence_system();
        if (stamps)
            stamps[args.a.stamp.slot - step.stamps].end_ns = rp_device_clock_ns();
        asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(&header->step), "l"(number)
                     : "memory");
    }
}

/* A block after those of the step's rows: the token of a prompt. */
static __device__ void finish_target(const sample_args &args, uint32_t logit_row) {
    const rp_step_view &step = args.a.step;
    if (logit_row >= step.counts->logit_row_count || step.logit_targets[logit_row] < 0)
        return;
    const rp_live_row &live = step.rows[step.logit_rows[logit_row]];
    if (live.flags & RP_ROW_SCORE) /* not of a slot that had finished */
        report_scores(
            args, logit_row, args.a.logits + logit_row * args.a.stride,
            (uint32_t)step.logit_targets[logit_row],
            step.slots[(size_t)live.slot * step.slot_words + RP_SLOT_TOP_PROMPT_LOGPROBS]);
}

static __global__ void __launch_bounds__(THREADS)
    sample_finish_kernel(const __grid_constant__ sample_args args) {
    rp_stamp stamp(args.a.stamp, threadIdx.x == 0 && args.a.max_rows == 0); /* else SCAN's */
    __shared__ uint64_t shared[RP_SAMPLE_WARPS];
    __shared__ cut_memory memory;
    __shared__ select_memory selection;
    __shared__ bool last;
    stamp.begin();
    const rp_step_view &step = args.a.step;
    uint32_t row_count = step.counts->row_count, row_blocks = RP_MAX(args.a.max_seq_rows, 1u);
    bool scored = step.counts->scored != 0;
    uint32_t blocks = scored ? gridDim.x : row_blocks; /* that have work */
    rp_live_row live = step.rows[RP_MIN(blockIdx.x, row_blocks - 1)];
    if (blockIdx.x >= blocks)
        return;
    if (blockIdx.x >= row_blocks)
        finish_target(args, blockIdx.x - row_blocks);
    else if ((blockIdx.x < row_count) & (live.slot < step.config.slot_count)) {
        live.flags |= late_row_flags(step, blockIdx.x);
        finish_row(args, blockIdx.x, live, shared, &memory, &selection);
    }
    if (threadIdx.x == 0) {
        __threadfence();
        last = blocks == 1 || atomicAdd(args.s.done, 1u) == blocks - 1;
        __threadfence();
    }
    __syncthreads();
    if (last)
        publish_step(args, row_count);
}

static int start_all(const sample_args &args, bool vector, cudaStream_t stream) {
    dim3 scan(args.chunks, args.a.max_rows);
    dim3 items(RP_MIN(args.chunks * args.a.max_rows, ROW_BLOCKS * SMS));
    bool dependent = !args.a.plain_edges;
    int status = (int)cudaSuccess;
    if (args.a.max_rows) {
        status = rp_cuda_start(vector ? sample_scan_kernel<true> : sample_scan_kernel<false>, scan,
                               THREADS, 0, stream, dependent, args);
        if (status == cudaSuccess)
            status = rp_cuda_start(vector ? sample_weigh_kernel<true> : sample_weigh_kernel<false>,
                                   items, THREADS, 0, stream, dependent, args);
        if (status == cudaSuccess)
            status =
                rp_cuda_start(vector ? sample_narrow_kernel<true> : sample_narrow_kernel<false>,
                              items, THREADS, 0, stream, dependent, args);
    }
    if (status != cudaSuccess)
        return status;
    dim3 blocks(RP_MAX(args.a.max_seq_rows, 1u) + (args.a.scores_prompts ? args.a.max_rows : 0));
    return rp_cuda_start(sample_finish_kernel, blocks, THREADS, 0, stream, dependent, args);
}

int rp_sample_cuda_run(const void *args_void, cudaStream_t stream) {
    sample_args args = {};
    args.a = *(const rp_sample_cuda *)args_void;
    /* Few rows are cut finely, so that all multiprocessors have work. */
    args.chunk = args.a.max_rows <= 8 ? UNIT : args.a.max_rows <= 32 ? 2 * UNIT : CHUNK_MAX;
    args.chunks = chunks_of(args.a.vocab, args.chunk);
    args.units = chunks_of(args.a.vocab, UNIT);
    /* The sum of all probabilities stays below 2^63, one of them below 2^48. */
    int bits = 46;
    while (bits > 16 && ((uint64_t)args.a.vocab << bits) >> 62)
        bits--;
    args.unit = (double)(1ull << bits);
    carve((unsigned char *)args.a.scratch, RP_MAX(args.a.max_rows, args.a.max_seq_rows),
          args.a.vocab, args.a.step.config.vocab != 0, &args.s);
    return start_all(args, rp_vector_ok(args.a.logits, RP_DTYPE_F32, args.a.stride), stream);
}
