/* sample_select.cuh - where top_k and top_p cut: among the bins, then among the listed candidates
 * by radix selection on logit and id. */
#ifndef RP_DEVICE_SAMPLE_SELECT_CUH
#define RP_DEVICE_SAMPLE_SELECT_CUH

#include "device/sample_rows.cuh"

/* What the bins tell of the cuts. Bins below `low` are kept whole; those from `low` to `high`, and
 * `top_k_bin`, hold the boundaries; BINS: no such bin. */
struct cuts {
    uint32_t low, high, top_k_bin;
    uint32_t top_k_before; /* candidates in the bins before top_k_bin */
    uint64_t total; /* probability of all candidates; with top_k, of the bins before its bin */
    bool has_top_k, has_top_p;
};

struct cut_memory {
    uint64_t scan[RP_SAMPLE_WARPS];
    uint32_t low, high, top_k_bin, top_k_before, count;
    uint64_t before, behind; /* probability without and with top_k's bin */
};

/* count, weight: the sums of the bins up to this thread's. The threshold test is that of the CPU:
 * bins are taken while the sum is below top_p of the total. */
static __device__ cuts find_cuts(const row_choice &choice, uint32_t count, uint64_t weight,
                                 uint32_t own_count, uint64_t own_weight, cut_memory *memory) {
    uint32_t thread = threadIdx.x;
    if (thread == 0) {
        memory->low = memory->high = memory->top_k_bin = BINS;
        memory->top_k_before = 0;
    }
    if (thread == BINS - 1) {
        memory->count = count;
        memory->before = memory->behind = weight;
    }
    __syncthreads();
    cuts out = {};
    out.has_top_k = choice.top_k && choice.top_k < memory->count;
    out.has_top_p = choice.top_p < 1.0f;
    __syncthreads();
    if (out.has_top_k && count - own_count < choice.top_k && choice.top_k <= count) {
        memory->top_k_bin = thread;
        memory->top_k_before = count - own_count;
        memory->before = weight - own_weight;
        memory->behind = weight;
    }
    __syncthreads();
    if (out.has_top_p) {
        double least = (double)choice.top_p * (double)memory->before;
        double most = (double)choice.top_p * (double)memory->behind;
        if (!((double)weight < least))
            atomicMin(&memory->low, thread);
        if (!((double)weight < most))
            atomicMin(&memory->high, thread);
    }
    __syncthreads();
    out.top_k_bin = memory->top_k_bin;
    out.top_k_before = memory->top_k_before;
    out.total = memory->before;
    out.low = out.has_top_p ? memory->low : out.top_k_bin;
    out.high = out.has_top_p ? memory->high : out.top_k_bin;
    return out;
}

static __device__ cuts row_cuts(const sample_args &args, uint32_t row, const row_choice &choice,
                                uint64_t *out_before, cut_memory *memory) {
    uint32_t own_count = args.s.bin_counts[row * BINS + threadIdx.x];
    uint64_t own_weight = args.s.bin_weights[row * BINS + threadIdx.x];
    uint32_t count = (uint32_t)rp_block_scan(own_count, memory->scan);
    uint64_t weight = rp_block_scan(own_weight, memory->scan);
    *out_before = weight - own_weight;
    return find_cuts(choice, count, weight, own_count, own_weight, memory);
}

static __device__ __forceinline__ bool is_listed(const cuts &cut, uint32_t bin) {
    return (bin >= cut.low && bin <= cut.high && bin < BINS) || bin == cut.top_k_bin;
}

/* Appends the wanted ones of COUNT candidates of each lane; the order within a list means
 * nothing. */
template <int COUNT>
static __device__ __forceinline__ void append(const sample_args &args, uint32_t row,
                                              const float *logits, const uint32_t *ids,
                                              const bool *wanted) {
    uint32_t own = 0, lane = threadIdx.x % 32, first = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        own += wanted[i];
    uint32_t behind = own;
    if (!__any_sync(0xFFFFFFFFu, own != 0))
        return;
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
        uint32_t other = __shfl_up_sync(0xFFFFFFFFu, behind, distance);
        behind += lane >= distance ? other : 0;
    }
    if (lane == 31)
        first = atomicAdd(&args.s.list_counts[row], behind);
    uint32_t at = __shfl_sync(0xFFFFFFFFu, first, 31) + behind - own;
    candidate *list = args.s.lists + (size_t)row * LIST_MAX;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        if (!wanted[i])
            continue;
        if (at < LIST_MAX)
            list[at] = {logits[i], ids[i]};
        at++;
    }
}

/* The listed candidates of a row: the list, or, when that was too short, the logits themselves. */
struct candidates {
    const candidate *list; /* NULL: read the logits */
    const float *logits;
    row_scale scale;
    uint32_t count;
};

static __device__ __forceinline__ bool read_candidate(const candidates &from, uint32_t at,
                                                      candidate *out) {
    if (from.list) {
        *out = from.list[at];
        return true;
    }
    *out = {from.logits[at], at};
    return scale_logit(from.scale, at, &out->logit);
}

/* Calls use(candidate, valid) for all; FLIGHT of a thread's are read at once. All lanes call it
 * together. */
#define FLIGHT 8
template <typename Use>
static __device__ __forceinline__ void each_candidate(const candidates &from, Use use) {
    for (uint32_t base = 0; base < from.count; base += THREADS * FLIGHT) {
        candidate items[FLIGHT];
        bool valid[FLIGHT];
#pragma unroll
        for (uint32_t i = 0; i < FLIGHT; i++) {
            uint32_t at = base + i * THREADS + threadIdx.x;
            items[i] = {0.0f, 0};
            valid[i] = at < from.count && read_candidate(from, at, &items[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < FLIGHT; i++)
            if (base + i * THREADS < from.count)
                use(items[i], valid[i]);
    }
}

/* Order of the candidates: smaller is earlier. */
static __device__ __forceinline__ uint64_t rank_of(const candidate &item) {
    return (uint64_t)(~rp_ordered(item.logit)) << 32 | item.id;
}

struct select_memory {
    uint64_t scan[RP_SAMPLE_WARPS], weights[BINS], lowest, highest, before;
    uint32_t counts[BINS], chosen, count_before;
};

/* Where a bin is cut: after `count` candidates, or, when count is 0, after the first with which
 * `before` plus the bin's probabilities is not below `threshold`. */
struct cut_rule {
    uint32_t bin, count;
    uint64_t before;
    double threshold;
};

/* Lowest and highest rank in the bin. */
static __device__ void rank_range(const candidates &from, uint32_t bin, select_memory *memory) {
    uint64_t lowest = ~0ull, highest = 0;
    each_candidate(from, [&](const candidate &item, bool valid) {
        if (!valid || bin_of(item.logit) != bin)
            return;
        uint64_t rank = rank_of(item);
        lowest = rank < lowest ? rank : lowest;
        highest = rank > highest ? rank : highest;
    });
    uint64_t low = ~rp_block_key_max(~lowest, memory->scan);
    uint64_t high = rp_block_key_max(highest, memory->scan);
    if (threadIdx.x == 0) {
        memory->lowest = low;
        memory->highest = high;
    }
    __syncthreads();
}

/* One digit of the radix selection: ranks with this prefix are counted by their next `width` bits
 * at `shift`; the digit in which the rule cuts is left in memory->chosen, and what lies before it
 * is taken off the rule. Returns the candidates of that digit. */
static __device__ uint32_t select_digit(const candidates &from, cut_rule *rule, double unit,
                                        uint64_t prefix, uint32_t shift, uint32_t width,
                                        select_memory *memory) {
    uint32_t thread = threadIdx.x;
    __syncthreads(); /* the last digit has been read by all */
    memory->counts[thread] = 0;
    memory->weights[thread] = 0;
    if (thread == 0)
        memory->chosen = BINS - 1;
    __syncthreads();
    each_candidate(from, [&](const candidate &item, bool valid) {
        if (!valid || bin_of(item.logit) != rule->bin)
            return;
        uint64_t rank = rank_of(item);
        if ((shift + width < 64 ? rank >> (shift + width) : 0) != prefix)
            return;
        uint32_t digit = (uint32_t)(rank >> shift) & ((1u << width) - 1);
        atomicAdd(&memory->counts[digit], 1u);
        atomicAdd((unsigned long long *)&memory->weights[digit],
                  (unsigned long long)weight_of(item.logit, unit));
    });
    __syncthreads();
    uint32_t own_count = memory->counts[thread];
    uint64_t own_weight = memory->weights[thread];
    uint32_t count = (uint32_t)rp_block_scan(own_count, memory->scan);
    uint64_t weight = rp_block_scan(own_weight, memory->scan) + rule->before;
    bool behind = rule->count ? count >= rule->count : !((double)weight < rule->threshold);
    if (own_count && behind)
        atomicMin(&memory->chosen, thread);
    __syncthreads();
    if (thread == memory->chosen) {
        memory->before = weight - own_weight;
        memory->count_before = count - own_count;
    }
    __syncthreads();
    rule->before = memory->before;
    if (rule->count)
        rule->count -= memory->count_before;
    return memory->counts[memory->chosen];
}

/* The highest rank that the rule keeps in its bin. *out_weight: `before` plus what is kept. */
static __device__ uint64_t select_rank(const candidates &from, cut_rule rule, double unit,
                                       uint64_t *out_weight, select_memory *memory) {
    rank_range(from, rule.bin, memory);
    uint64_t differing = memory->lowest ^ memory->highest;
    uint32_t bits = differing ? 64 - __clzll((long long)differing) : 1, shift = bits;
    uint64_t prefix = bits < 64 ? memory->lowest >> bits : 0;
    uint32_t left;
    do {
        uint32_t width = RP_MIN(shift, 8u);
        shift -= width;
        left = select_digit(from, &rule, unit, prefix, shift, width, memory);
        prefix = prefix << width | memory->chosen;
    } while (left > 1 && shift > 0);
    *out_weight = rule.before + memory->weights[memory->chosen];
    __syncthreads(); /* before the next selection clears */
    return (prefix << shift) | ((1ull << shift) - 1);
}

/* The best draw among the listed candidates that top_k and top_p keep. */
static __device__ uint64_t draw_listed(const sample_args &args, uint32_t row,
                                       const row_choice &choice, uint64_t largest,
                                       cut_memory *memory, select_memory *selection) {
    uint64_t before, total;
    cuts cut = row_cuts(args, row, choice, &before, memory);
    if (cut.low == BINS && !cut.has_top_k)
        return RP_KEY_NONE; /* all were kept */
    uint32_t count = args.s.list_counts[row];
    candidates from = {args.s.lists + (size_t)row * LIST_MAX, args.a.logits + row * args.a.stride,
                       scale_of(choice, largest), count};
    if (count > LIST_MAX) {
        from.list = NULL;
        from.count = args.a.vocab;
    }
    uint32_t bin = cut.top_k_bin;
    uint64_t rank = ~0ull;
    total = cut.total;
    if (cut.has_top_k) {
        cut_rule rule = {bin, choice.top_k - cut.top_k_before, cut.total, 0.0};
        rank = select_rank(from, rule, args.unit, &total, selection);
    }
    if (cut.has_top_p) {
        double threshold = (double)choice.top_p * (double)total;
        uint64_t behind = before + args.s.bin_weights[row * BINS + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0)
            memory->low = BINS - 1;
        __syncthreads();
        if (!((double)behind < threshold) && args.s.bin_counts[row * BINS + threadIdx.x])
            atomicMin(&memory->low, threadIdx.x);
        __syncthreads();
        bin = memory->low;
        if (threadIdx.x == bin)
            memory->before = before;
        __syncthreads();
        cut_rule rule = {bin, 0, memory->before, threshold};
        rank = select_rank(from, rule, args.unit, &total, selection);
    }
    rp_drawing drawing = {choice.seed, choice.position, -INFINITY, RP_KEY_NONE};
    each_candidate(from, [&](const candidate &item, bool valid) {
        uint32_t own = bin_of(item.logit);
        bool kept =
            valid && is_listed(cut, own) && (own < bin || (own == bin && rank_of(item) <= rank));
        rp_draw<1>(drawing, &item.logit, &item.id, &kept);
    });
    return drawing.best;
}

#endif
