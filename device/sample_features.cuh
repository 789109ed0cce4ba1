/* sample_features.cuh - sampling features that few slots use (RP_SLOT_FEATURES), as in
 * sample_features_cpu.c. Scan and finish call it for rows of such slots; other rows only read one
 * more word of their slot.
 *
 * Log-softmax is merged from units of UNIT ids, each summed by one block in one order: it depends
 * neither on the units per chunk nor on the other rows of the step. */
#ifndef RP_DEVICE_SAMPLE_FEATURES_CUH
#define RP_DEVICE_SAMPLE_FEATURES_CUH

#include "device/sample_rows.cuh"

static __device__ __forceinline__ uint32_t mask_words(const rp_step_view &step) {
    return (step.config.vocab + 127) / 128 * 4;
}

static __device__ __forceinline__ uint16_t *state_counts(const rp_step_view &step,
                                                         uint32_t *state) {
    return (uint16_t *)(state + RP_SAMPLING_ALLOWED + mask_words(step));
}

static __device__ __forceinline__ void forbid(float *logits, uint32_t id, uint32_t begin,
                                              uint32_t end) {
    if (id >= begin && id < end && logits[id] == logits[id])
        logits[id] = -INFINITY;
}

/* Calls use(id) for each id of [begin, end), a quad of neighbors to each thread. */
template <typename Use>
static __device__ __forceinline__ void each_id(uint32_t begin, uint32_t end, Use use) {
    for (uint32_t quad = begin + threadIdx.x * 4; quad < end; quad += THREADS * 4)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (quad + i < end)
                use(quad + i);
}

/* A chunk's part of a mask over the ids. */
struct chunk_mask {
    uint32_t words[CHUNK_MAX / 32];

    __device__ __forceinline__ bool has(uint32_t begin, uint32_t id) const {
        return words[(id - begin) / 32] >> id % 32 & 1;
    }
};

/* Reads it from the sample inputs, which are host memory and never read through a cache, from the
 * sample state or from the pool. copy: where to store it; may be NULL. Ends with a barrier. */
static __device__ __forceinline__ void load_mask(chunk_mask *mask, const uint32_t *from,
                                                 uint32_t *copy, uint32_t begin, uint32_t end) {
    static_assert(CHUNK_MAX / 32 <= THREADS, "a thread reads one word");
    uint32_t at = begin / 32 + threadIdx.x;
    if (at < (end + 31) / 32) {
        uint32_t word = ((const volatile uint32_t *)from)[at];
        mask->words[threadIdx.x] = word;
        if (copy)
            copy[at] = word;
    }
    __syncthreads();
}

/* first: it is the slot's first token, and the counts begin from the prompt's ids. */
static __device__ void penalize(const rp_step_view &step, const uint32_t *slot,
                                const uint32_t *inputs, uint32_t *state, bool first, float *logits,
                                uint32_t begin, uint32_t end, chunk_mask *mask) {
    uint16_t *counts = state_counts(step, state);
    if (first)
        load_mask(mask, inputs + RP_SAMPLING_ALLOWED + mask_words(step), NULL, begin, end);
    float repetition = __uint_as_float(slot[RP_SLOT_REPETITION]);
    float frequency = __uint_as_float(slot[RP_SLOT_FREQUENCY]);
    float presence = __uint_as_float(slot[RP_SLOT_PRESENCE]);
    each_id(begin, end, [&](uint32_t id) {
        uint32_t seen;
        if (first) {
            seen = mask->has(begin, id) ? RP_COUNT_PROMPT : 0;
            counts[id] = (uint16_t)seen;
        } else {
            seen = counts[id];
        }
        if (seen == 0)
            return;
        float x = logits[id];
        x = x > 0.0f ? __fdiv_rn(x, repetition) : __fmul_rn(x, repetition);
        uint32_t count = seen & RP_COUNT_MAX;
        if (count)
            x = __fsub_rn(__fsub_rn(x, __fmul_rn(frequency, (float)count)), presence);
        logits[id] = x;
    });
}

/* One word for each thread. */
static __device__ void forbid_bad_words(const uint32_t *slot, const volatile uint32_t *words,
                                        float *logits, uint32_t begin, uint32_t end) {
    static_assert(RP_BAD_TOKENS_MAX <= THREADS, "a thread looks at one word");
    if (threadIdx.x >= slot[RP_SLOT_BAD_COUNT])
        return;
    uint32_t head = words[threadIdx.x], before = head % 256 - 1;
    uint32_t output_count = slot[RP_SLOT_OUTPUT_COUNT];
    const volatile uint32_t *tokens = words + head / 256;
    if (before > output_count)
        return;
    for (uint32_t i = 0; i < before; i++)
        if (slot[RP_SLOT_LAST_TOKENS + (output_count - before + i) % RP_BAD_WORD_MAX] != tokens[i])
            return;
    forbid(logits, tokens[before], begin, end);
}

/* Ids [begin, end) of the row, by one block. */
static __device__ void modify_chunk(const rp_step_view &step, const rp_live_row &live,
                                    float *logits, uint32_t begin, uint32_t end) {
    __shared__ chunk_mask mask;
    const uint32_t *slot = step.slots + (size_t)live.slot * step.slot_words;
    const uint32_t *inputs = step.sample_inputs + live.slot * step.sample_input_words;
    uint32_t *state = step.sample_state + live.slot * step.sample_state_words;
    uint32_t features = slot[RP_SLOT_FEATURES];
    bool first = slot[RP_SLOT_OUTPUT_COUNT] == 0;
    if (first && begin == 0) /* one block copies what is not per id */
        for (uint32_t i = threadIdx.x; i < RP_SAMPLING_ALLOWED; i += THREADS)
            state[i] = ((const volatile uint32_t *)inputs)[i];
    const volatile uint32_t *lists = first ? inputs : state;
    if (features & RP_FEATURE_PENALTIES)
        penalize(step, slot, inputs, state, first, logits, begin, end, &mask);
    __syncthreads();
    if (features & RP_FEATURE_BIASES)
        for (uint32_t i = threadIdx.x;
             i < RP_MIN(slot[RP_SLOT_BIAS_COUNT], (uint32_t)RP_LOGIT_BIAS_MAX); i += THREADS) {
            uint32_t id = lists[RP_SAMPLING_BIASES + 2 * i];
            float value = __uint_as_float(lists[RP_SAMPLING_BIASES + 2 * i + 1]);
            if (id >= begin && id < end)
                logits[id] = __fadd_rn(logits[id], value);
        }
    __syncthreads();
    if (features & RP_FEATURE_BAD_WORDS)
        forbid_bad_words(slot, lists + RP_SAMPLING_BAD_WORDS, logits, begin, end);
    if (features & RP_FEATURE_ALLOWED) {
        if (live.flags & RP_ROW_MASK)
            load_mask(&mask,
                      step.masks + (size_t)(live.flags >> RP_ROW_MASK_SHIFT) * mask_words(step),
                      NULL, begin, end);
        else
            load_mask(&mask, (first ? inputs : state) + RP_SAMPLING_ALLOWED,
                      first ? state + RP_SAMPLING_ALLOWED : NULL, begin, end);
        each_id(begin, end, [&](uint32_t id) {
            if (!mask.has(begin, id))
                forbid(logits, id, begin, end);
        });
    }
}

/* Largest logit and sum of exp(logit - largest) of each of the chunk's units. */
static __device__ void score_units(const sample_args &args, uint32_t row, const float *logits,
                                   uint32_t begin, uint32_t end, uint64_t *shared) {
    __shared__ float sums[RP_SAMPLE_WARPS];
    for (uint32_t base = begin; base < end; base += UNIT) {
        uint32_t limit = RP_MIN(base + UNIT, end), unit = base / UNIT;
        uint64_t best = RP_KEY_NONE;
        each_id(base, limit, [&](uint32_t id) {
            float x = logits[id];
            uint64_t key = x != x ? RP_KEY_NAN : x == -INFINITY ? RP_KEY_NONE : rp_key(x, id);
            best = key > best ? key : best;
        });
        best = rp_block_key_max(best, shared);
        float sum = 0.0f, max = rp_key_score(best);
        if (best != RP_KEY_NONE && best != RP_KEY_NAN)
            each_id(base, limit, [&](uint32_t id) { sum += expf(__fsub_rn(logits[id], max)); });
        sum = rp_warp_sum(sum);
        if (threadIdx.x % 32 == 0)
            sums[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (uint32_t w = 1; w < RP_SAMPLE_WARPS; w++)
                sum += sums[w];
            args.s.unit_best[row * args.units + unit] = best;
            args.s.unit_sums[row * args.units + unit] = sum;
        }
        __syncthreads();
    }
}

/* A row that is to be scored and is modified as well is scored by a copy. */
static __device__ __forceinline__ bool has_copy(uint32_t features, bool forbids_stop_ids) {
    return (features & RP_FEATURE_LOGPROBS) &&
           ((features & RP_FEATURES_MODIFYING) || forbids_stop_ids);
}

/* Before the chunk is scanned. sampled: a token is chosen from it; otherwise it is scored alone. */
static __device__ __noinline__ void prepare_chunk(const sample_args &args, uint32_t row,
                                                  uint32_t features, bool sampled,
                                                  bool forbids_stop_ids, uint32_t begin,
                                                  uint32_t end, uint64_t *shared) {
    const rp_step_view &step = args.a.step;
    float *logits = args.a.logits + row * args.a.stride;
    if (!sampled || (features & RP_FEATURE_LOGPROBS))
        score_units(args, row, logits, begin, end, shared);
    if (sampled && has_copy(features, forbids_stop_ids)) {
        float *copy = args.s.copies + (size_t)row * args.a.vocab;
        each_id(begin, end, [&](uint32_t id) { copy[id] = logits[id]; });
    }
    __syncthreads();
    if (sampled && (features & RP_FEATURES_MODIFYING)) {
        rp_live_row live = step.rows[step.logit_rows[row]];
        live.flags |= late_row_flags(step, step.logit_rows[row]);
        modify_chunk(step, live, logits, begin, end);
    }
    __syncthreads();
}

/* The chosen token, by one thread, before it is counted. */
static __device__ __forceinline__ void note_token(const rp_step_view &step, uint32_t slot_index,
                                                  uint32_t *slot, uint32_t features,
                                                  uint32_t output_count, uint32_t token) {
    if (features & RP_FEATURE_BAD_WORDS)
        slot[RP_SLOT_LAST_TOKENS + output_count % RP_BAD_WORD_MAX] = token;
    if (features & RP_FEATURE_PENALTIES) {
        uint16_t *count =
            state_counts(step, step.sample_state + slot_index * step.sample_state_words) + token;
        *count += (*count & RP_COUNT_MAX) < RP_COUNT_MAX;
    }
}

struct score_memory {
    uint64_t keys[RP_SAMPLE_WARPS];
    double sums[RP_SAMPLE_WARPS];
    uint32_t units[THREADS], unit_count, larger;
};

/* Log of the sum over all units of exp(logit - max); NaN where one is. */
static __device__ double log_sum(const sample_args &args, uint32_t row, float max,
                                 score_memory *memory) {
    double sum = 0.0;
    for (uint32_t unit = threadIdx.x; unit < args.units; unit += THREADS) {
        uint64_t best = args.s.unit_best[row * args.units + unit];
        if (best != RP_KEY_NONE)
            sum += (double)args.s.unit_sums[row * args.units + unit] *
                   exp((double)__fsub_rn(rp_key_score(best), max));
    }
    for (int lane = 16; lane > 0; lane /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lane);
    if (threadIdx.x % 32 == 0)
        memory->sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = memory->sums[0];
    for (uint32_t w = 1; w < RP_SAMPLE_WARPS; w++)
        sum += memory->sums[w];
    return log(sum);
}

/* How many logits are larger: only units whose largest is are looked through. */
static __device__ uint32_t count_larger(const sample_args &args, uint32_t row, const float *logits,
                                        float value, score_memory *memory) {
    uint32_t own = 0;
    if (threadIdx.x == 0)
        memory->larger = 0;
    for (uint32_t base = 0; base < args.units; base += THREADS) {
        uint32_t unit = base + threadIdx.x;
        __syncthreads();
        if (threadIdx.x == 0)
            memory->unit_count = 0;
        __syncthreads();
        uint64_t best = unit < args.units ? args.s.unit_best[row * args.units + unit] : RP_KEY_NONE;
        if (best != RP_KEY_NONE && rp_key_score(best) > value)
            memory->units[atomicAdd(&memory->unit_count, 1u)] = unit;
        __syncthreads();
        for (uint32_t i = 0; i < memory->unit_count; i++) {
            uint32_t begin = memory->units[i] * UNIT;
            each_id(begin, RP_MIN(begin + UNIT, args.a.vocab),
                    [&](uint32_t id) { own += logits[id] > value; });
        }
    }
    own = __reduce_add_sync(0xFFFFFFFFu, own);
    if (threadIdx.x % 32 == 0 && own)
        atomicAdd(&memory->larger, own);
    __syncthreads();
    return memory->larger;
}

/* The largest key of the units that are this thread's. */
static __device__ uint64_t own_best(const sample_args &args, uint32_t row) {
    uint64_t best = RP_KEY_NONE;
    for (uint32_t unit = threadIdx.x; unit < args.units; unit += THREADS) {
        uint64_t key = args.s.unit_best[row * args.units + unit];
        best = key > best ? key : best;
    }
    return best;
}

/* The likeliest tokens, one after the other: the unit that had it is looked through for its next
 * one. Uses up the row's unit_best. Returns how many there are. */
static __device__ uint32_t find_top(const sample_args &args, uint32_t row, const float *logits,
                                    uint32_t top, float max, double log_of_sum, rp_token_score *out,
                                    score_memory *memory) {
    uint64_t own = own_best(args, row);
    for (uint32_t i = 0; i < top; i++) {
        uint64_t best = rp_block_key_max(own, memory->keys), next = RP_KEY_NONE;
        if (best == RP_KEY_NONE)
            return i;
        uint32_t unit = rp_key_id(best) / UNIT, begin = unit * UNIT;
        if (threadIdx.x == 0)
            out[i] = {(int32_t)rp_key_id(best),
                      (float)((double)__fsub_rn(rp_key_score(best), max) - log_of_sum)};
        if (i + 1 == top)
            break;
        each_id(begin, RP_MIN(begin + UNIT, args.a.vocab), [&](uint32_t id) {
            uint64_t key = logits[id] == -INFINITY ? RP_KEY_NONE : rp_key(logits[id], id);
            next = key < best && key > next ? key : next;
        });
        next = rp_block_key_max(next, memory->keys);
        if (threadIdx.x == unit % THREADS) {
            args.s.unit_best[row * args.units + unit] = next;
            own = own_best(args, row);
        }
    }
    return top;
}

/* Scores of one logit row, by one block, straight into the step's result. Returns the token's
 * logprob. */
static __device__ __noinline__ float report_scores(const sample_args &args, uint32_t row,
                                                   const float *logits, uint32_t token,
                                                   uint32_t top) {
    __shared__ score_memory memory;
    const rp_step_view &step = args.a.step;
    unsigned char *entry =
        step.results + ((step.counts->step + 1) % RP_STEP_RING_ENTRIES) * step.result_bytes;
    rp_token_scores *out = (rp_token_scores *)(entry + sizeof(rp_result_header) +
                                               step.config.row_capacity * sizeof(rp_row_result)) +
                           row;
    float logprob = __int_as_float(0x7FC00000);
    uint32_t rank = 1, count = 0;
    uint64_t best = rp_block_key_max(own_best(args, row), memory.keys);
    if (best != RP_KEY_NONE && best != RP_KEY_NAN && token < args.a.vocab) {
        float max = rp_key_score(best);
        double log_of_sum = log_sum(args, row, max, &memory);
        if (log_of_sum == log_of_sum) {
            float value = logits[token];
            logprob = (float)((double)__fsub_rn(value, max) - log_of_sum);
            rank = 1 + count_larger(args, row, logits, value, &memory);
            count = find_top(args, row, logits, RP_MIN(top, (uint32_t)RP_LOGPROBS_MAX), max,
                             log_of_sum, out->top, &memory);
        }
    }
    if (threadIdx.x == 0) {
        out->token = (int32_t)token;
        out->logprob = logprob;
        out->rank = rank;
        out->top_count = count;
        __threadfence_system();
    }
    return logprob;
}

#endif
