/* profile_table.h - a table of times like torch.profiler's, as text, JSON and CSV.
 *
 * Rows are found or made by name, and calls are added to them. A call's total is the time from its
 * begin to its end, its self time the part of it that no call before it covers: self times of all
 * rows and `unattributed_ns` add up to `replay_ns`, and no self time is more than the total. After
 * finish a row has its share, percentiles of its calls' self times (exact), its arithmetic
 * intensity, and its share of the machine's peaks:
 *
 *     roof time = max(bytes / peak_bytes, flops / peak_flops)       Williams et al. 2009
 *     roof share = roof time / self time; above 1 its data came from a cache
 *     bound: what the larger of the two is; latency, where the share is below RP_PROFILE_LATENCY_SHARE
 *
 * Independent of what was measured. Thread: one owner. Memory: grows with rows
 * and calls; deinit frees. Errors: `failed` is set when memory was out, and stays. */
#ifndef RP_METRICS_PROFILE_TABLE_H
#define RP_METRICS_PROFILE_TABLE_H

#include "base/buffer.h"
#include "metrics/event.h"

struct rp_json;

#define RP_PROFILE_LATENCY_SHARE 0.25

enum rp_profile_bound {
    RP_BOUND_UNKNOWN, /* no peaks, or nothing to compare with them */
    RP_BOUND_MEMORY,
    RP_BOUND_COMPUTE,
    RP_BOUND_LATENCY,
    RP_BOUND_CACHE /* above the peak of memory: what it reads was in a cache */
};
/* "-", "memory", "compute", "latency", "cache" */
extern const char *const rp_profile_bounds[];

/* clang-format off */
#define RP_PROFILE_SORTS(X)                                                                        \
    X(SELF, "self") X(TOTAL, "total") X(CALLS, "calls") X(AVG, "avg") X(P99, "p99")                 \
    X(BYTES, "bytes") X(FLOPS, "flops") X(ROOF, "roof") X(NAME, "name")
/* clang-format on */
enum rp_profile_sort {
#define X(name, text) RP_PROFILE_SORT_##name,
    RP_PROFILE_SORTS(X)
#undef X
};

struct rp_profile_row_key {
    const char *name, *layer, *shape; /* copied; the name finds the row */
};

struct rp_profile_line {
    char *name, *layer, *shape; /* "" where there is none; "*": more than one */
    uint64_t calls, tokens;
    uint64_t self_ns, total_ns;
    double bytes, flops;
    uint64_t rows, kv_tokens; /* of its calls' steps, summed: live rows and their KV lengths */
    uint32_t kv_max;          /* the longest of these */
    uint64_t last_step;       /* whose tokens were counted */
    /* finish */
    uint64_t p25_ns, p50_ns, p75_ns, p99_ns, max_ns;
    double self_share, intensity, roof_share;
    enum rp_profile_bound bound;
};

struct rp_profile_call {
    uint32_t row;
    uint64_t self_ns;
};

/* The lines below the rows. */
struct rp_profile_footer {
    double window_seconds;    /* from the first to the last step seen */
    uint64_t steps_seen;      /* in the window; 0: not known */
    uint64_t steps_stamped;   /* that the rows are made of */
    uint64_t replay_ns;       /* those steps on the device, begin to end */
    uint64_t unattributed_ns; /* of it, in no row */
    uint32_t every;           /* one step in so many is stamped; 0: only on demand */
    bool whole;               /* false: some stamped steps of the window were overwritten */
    uint64_t dropped;         /* launches without times */
    bool has_idle;            /* busy_share, idle_ns, misses are known: all steps of the window */
    double busy_share;        /* of the window */
    uint64_t idle_ns[RP_IDLE_CAUSE_COUNT];
    uint64_t misses[RP_MISS_COUNT]; /* steps by what they replayed */
    /* stamped ones for which there are unstamped ones of the same kind */
    uint64_t perturbation_steps;
    double perturbation_spread; /* of perturbation: +-, a 95 % interval */
    double perturbation;        /* stamped / unstamped duration of a step - 1, weighted by these */
    double peak_bytes, peak_flops; /* per second; 0: not measured */
};

struct rp_profile_table {
    struct rp_profile_line *lines;
    uint32_t count, capacity;
    uint32_t *places; /* hash of names: line + 1 */
    uint32_t place_count;
    struct rp_profile_call *calls;
    uint64_t call_count, call_capacity;
    struct rp_profile_footer footer;
    uint64_t self_ns; /* of all rows */
    bool with_load;   /* text shows batch and KV lengths too */
    bool failed;
};

void rp_profile_table_init(struct rp_profile_table *table);
void rp_profile_table_deinit(struct rp_profile_table *table); /* legal on a zeroed struct */

/* The row of this name, made when it is new; -1 when memory is out. A layer or shape that differs
 * from the row's becomes "*". */
int32_t rp_profile_table_row(struct rp_profile_table *table, const struct rp_profile_row_key *key);
/* A call. step: any number that differs between steps; tokens are counted once for each. share of a
 * call: calls 0. */
struct rp_profile_add {
    uint64_t step, self_ns, total_ns, tokens;
    double bytes, flops;
    uint64_t kv_tokens; /* positions in the pages of its live rows, summed; rows 0: not known */
    uint32_t rows, kv_max;
};
void rp_profile_table_add(struct rp_profile_table *table, int32_t row,
                          const struct rp_profile_add *call);
/* Percentiles, shares, bounds; sorts: largest first, names from A on; equal ones by name. The
 * footer is set before. */
void rp_profile_table_finish(struct rp_profile_table *table, enum rp_profile_sort sort);

/* row_limit 0: all rows. */
void rp_profile_write_text(const struct rp_profile_table *table, uint32_t row_limit,
                           struct rp_buffer *out);
void rp_profile_write_csv(const struct rp_profile_table *table, uint32_t row_limit,
                          struct rp_buffer *out);
/* The members of an object: "rows": [...], "footer": {...}. */
void rp_profile_write_json(const struct rp_profile_table *table, uint32_t row_limit,
                           struct rp_json *json);

#endif
