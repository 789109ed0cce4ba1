/* time_diff.h - what became slower between two measurements A and B, where the samples can tell.
 *
 * Times are kept by group (operators, phases of requests), name and stratum: only times of one
 * stratum, such as the launches of one captured size, are compared with each other, so that another
 * mix of sizes is no change. For each stratum with RP_DIFF_SAMPLES_MIN times on both sides
 *
 *     ratio = median B / median A,  error = ratio (e_A / median A + e_B / median B),
 *     e = 1.57 IQR / sqrt n                                        McGill et al. 1978
 *
 * The strata of a name are weighted by B's samples. The errors of the sides and of the strata are
 * added, not squared: many names are compared at once, and few of those that did not change may
 * look as if they had. Nothing is said of a name with too few samples.
 *
 * The text depends on the times alone, not on the order in which they came. Thread: one owner.
 * Memory: grows with the samples. Errors: `failed` is set when memory was out, and stays. */
#ifndef RP_METRICS_TIME_DIFF_H
#define RP_METRICS_TIME_DIFF_H

#include "base/buffer.h"

#define RP_DIFF_SAMPLES_MIN 8

enum rp_diff_side { RP_DIFF_A, RP_DIFF_B };

struct rp_time_summary {
    uint64_t count;
    double p25, p50, p75; /* ns */
};

enum rp_diff_verdict { RP_DIFF_TOO_FEW, RP_DIFF_SAME, RP_DIFF_FASTER, RP_DIFF_SLOWER };

struct rp_time_change {
    uint64_t count[2];    /* all samples, by side */
    uint64_t compared;    /* B's, in strata that could be compared */
    double p50[2];        /* of these strata, weighted by B's samples */
    double ratio, spread; /* the ratio is in ratio +- spread */
    enum rp_diff_verdict verdict;
};

struct rp_diff_sample {
    uint32_t cell;
    uint32_t side;
    uint64_t ns;
};

struct rp_diff_cell {
    char *key; /* group, name and stratum, each ended by \1 */
    struct rp_time_summary sides[2];
};

struct rp_time_diff {
    struct rp_diff_cell *cells;
    struct rp_diff_sample *samples;
    uint32_t *places; /* hash of keys: cell + 1 */
    uint32_t cell_count, cell_capacity;
    uint64_t sample_count, sample_capacity;
    bool failed;
};

void rp_time_diff_deinit(struct rp_time_diff *diff); /* legal on a zeroed struct */

/* Groups are written in the order of their names: "1 operators". None of the texts holds \1. */
void rp_time_diff_add(struct rp_time_diff *diff, enum rp_diff_side side, const char *group,
                      const char *name, const char *stratum, uint64_t ns);
/* Instead of samples. */
void rp_time_diff_add_summary(struct rp_time_diff *diff, enum rp_diff_side side, const char *group,
                              const char *name, const char *stratum,
                              const struct rp_time_summary *summary);
/* Summarizes the samples; nothing is added after. */
void rp_time_diff_finish(struct rp_time_diff *diff);

/* The change of a name, after finish. */
void rp_time_diff_change(const struct rp_time_diff *diff, const char *group, const char *name,
                         struct rp_time_change *out);
/* A table for each group: what became slower first, by the time that it costs B; then what became
 * faster; then the rest by name, at most row_limit of them (0: all). */
void rp_time_diff_write(struct rp_time_diff *diff, uint32_t row_limit, struct rp_buffer *out);

/* Three digits and a unit: 12.3us, 4.56ms. */
const char *rp_time_text(double ns, char out[16]);

#endif
