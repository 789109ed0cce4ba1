/* sample_rows.cuh - the rows that sample_cuda.cu chooses for: scratch, candidates, bins. */
#ifndef RP_DEVICE_SAMPLE_ROWS_CUH
#define RP_DEVICE_SAMPLE_ROWS_CUH

#include "device/ops_cuda.h"
#include "device/sample_draw.cuh"

#define THREADS    RP_SAMPLE_THREADS
#define BINS       THREADS
#define UNIT       2048u /* ids; a chunk is a multiple of it */
#define CHUNK_MAX  8192u /* sums of 16-bit digits over a chunk fit 32 bits */
#define LIST_MAX   8192u /* listed candidates of a row; with more, finish reads the logits again */
#define SPAN       26.1f /* RP_GUMBEL_SPAN of sample_cpu.c */
#define ROW_BLOCKS 8u    /* blocks per multiprocessor that weigh and narrow are cut into */
#define SMS        132u  /* any value is right */

enum sample_mode { MODE_NONE, MODE_GREEDY, MODE_DRAW, MODE_SELECT };

struct candidate {
    float logit;
    uint32_t id;
};

/* What the later kernels need of a logit row's slot. */
struct row_choice {
    uint64_t seed;
    uint32_t mode, position, top_k;
    float top_p, inverse, cut;
};

struct sample_scratch {
    uint32_t *done; /* blocks of finish that are done: 0 between launches */
    row_choice *rows;
    uint64_t *largest, *drawn; /* (row, chunk) keys */
    uint64_t *bin_weights;     /* (row, BINS) */
    uint32_t *bin_counts;      /* (row, BINS) */
    uint32_t *list_counts;     /* (row) */
    candidate *lists;          /* (row, LIST_MAX) */
    rp_row_result *results;    /* (sequence row) */
    /* For rows with scores; NULL without a vocabulary in the step's configuration. */
    uint64_t *unit_best; /* (row, unit) key of the largest logit */
    float *unit_sums;    /* (row, unit) sum of exp(logit - the largest) */
    float *copies;       /* (row, vocab) unmodified logits */
};

struct sample_args {
    rp_sample_cuda a;
    sample_scratch s;
    uint32_t chunk, chunks; /* ids of a chunk, chunks of a row */
    uint32_t units;         /* of a row */
    double unit;            /* fixed point: a probability of 1 */
};

/* Flags that the host adds to row `row` while forward runs; read only when the step has any. */
static __device__ __forceinline__ uint32_t late_row_flags(const rp_step_view &step, uint32_t row) {
    if (!(step.counts->flags & RP_PACKET_LATE_FLAGS))
        return 0;
    uint64_t entry = (step.counts->step + 1) % RP_STEP_RING_ENTRIES;
    return *(const volatile uint32_t *)&step.late_flags[entry * step.config.row_capacity + row];
}

/* Maximum over a row's chunks, for all threads. */
static __device__ uint64_t row_key_max(const uint64_t *keys, uint32_t chunks, uint64_t *shared) {
    uint64_t best = RP_KEY_NONE;
    for (uint32_t i = threadIdx.x; i < chunks; i += THREADS)
        best = keys[i] > best ? keys[i] : best;
    return rp_block_key_max(best, shared);
}

/* The candidates of a row: those that the noise and min_p leave possible. Logits become differences
 * to the largest, over the temperature. */
struct row_scale {
    float max, inverse, cut;
    uint32_t best;
};

static __device__ __forceinline__ row_scale scale_of(const row_choice &choice, uint64_t largest) {
    row_scale scale = {rp_key_score(largest), choice.inverse, choice.cut, rp_key_id(largest)};
    return scale;
}

static __device__ __forceinline__ bool scale_logit(const row_scale &scale, uint32_t id,
                                                   float *logit) {
    float scaled = __fmul_rn(__fsub_rn(*logit, scale.max), scale.inverse);
    *logit = id == scale.best ? 0.0f : scaled;
    return scaled >= scale.cut || id == scale.best;
}

/* Rises as the logit falls. */
static __device__ __forceinline__ uint32_t bin_of(float logit) {
    int bin = (int)(logit * (-(float)BINS / SPAN));
    return (uint32_t)min(max(bin, 0), (int)BINS - 1);
}

static __device__ __forceinline__ uint64_t weight_of(float logit, double unit) {
    return __double2ull_rn(exp((double)logit) * unit);
}

/* Candidates of [base, base + UNIT): eight ids a thread. */
template <bool VEC>
static __device__ __forceinline__ void load_unit(const float *logits, uint32_t base, uint32_t end,
                                                 const row_scale &scale, float *values,
                                                 uint32_t *ids, bool *kept) {
    uint32_t low = base + threadIdx.x * 4, high = low + THREADS * 4;
    float4 x = rp_load4<VEC>(logits, RP_DTYPE_F32, low, low, end);
    float4 y = rp_load4<VEC>(logits, RP_DTYPE_F32, high, high, end);
    const float raw[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        ids[i] = (i < 4 ? low : high) + i % 4;
        values[i] = raw[i];
        kept[i] = scale_logit(scale, ids[i], &values[i]) && ids[i] < end;
    }
}

/* True when one of the live rows has at least this mode. All rows of the bucket are read while the
 * live count is on its way. */
static __device__ bool any_row(const sample_args &args, uint32_t mode) {
    const volatile uint32_t *live = &args.a.step.counts->logit_row_count;
    uint32_t first = threadIdx.x < args.a.max_rows ? threadIdx.x : 0, count = *live;
    const volatile uint32_t *own = &args.s.rows[first].mode;
    bool found = (*own >= mode) & (threadIdx.x < count);
    for (uint32_t i = threadIdx.x + THREADS; i < count; i += THREADS)
        found |= args.s.rows[i].mode >= mode;
    return __syncthreads_or(found);
}

#endif
