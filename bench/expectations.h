/* expectations.h - files of baselines, and the comparison of measurements with them.
 *
 * bench/expectations_<hardware>.json:
 *   {"hardware": NAME, "expectations": [{"metric": NAME, "value": NUMBER or TEXT, "relative": R,
 *    "absolute": A, "direction": "exact"|"lower"|"higher", "error": E, "commit": HASH,
 *    "command": TEXT}, ...]}, sorted by metric
 * The spread is the larger of R * |value| and A; text is compared exactly. "error" is given where
 * precision matters: the distance of the measured kernels from the scalar ones. Counts that do not
 * depend on the machine are stored under the hardware "counts".
 *
 * Thread: any, one owner. Memory: rp_expectations_deinit frees; legal on a zeroed struct. */
#ifndef RP_BENCH_EXPECTATIONS_H
#define RP_BENCH_EXPECTATIONS_H

#include "base/buffer.h"
#include "base/status.h"

enum rp_expect_direction {
    RP_EXPECT_EXACT, /* any deviation beyond the spread is a failure */
    RP_EXPECT_LOWER, /* lower is better: above the spread is worse */
    RP_EXPECT_HIGHER
};

/* A baseline, or a measurement. */
struct rp_expectation {
    char metric[96]; /* "nodes.demo.fused.decode.8": a group and a metric within it */
    char text[40];   /* "": the value is a number */
    double value;
    double relative, absolute;
    enum rp_expect_direction direction;
    double error;     /* NAN: none */
    char skipped[96]; /* for a measurement: why it was not made; "" when it was */
    bool optional;    /* for a measurement: without a baseline it is listed and does not fail */
    char commit[48], command[128];
};

struct rp_expectations {
    char hardware[64];
    struct rp_expectation *rows;
    uint32_t count, capacity;
};

void rp_expectations_deinit(struct rp_expectations *list);
/* Adds a row with the metric's name (a printf format) and everything else zero (error NAN); NULL
 * when memory is out. The pointer is valid until the next call. */
struct rp_expectation *rp_expectations_add(struct rp_expectations *list, const char *format, ...)
    RP_PRINTF(2, 3);
const struct rp_expectation *rp_expectations_find(const struct rp_expectations *list,
                                                  const char *metric);
/* Whether the list has a metric of the same group: equal up to the first dot. */
bool rp_expectations_has_group(const struct rp_expectations *list, const char *metric);

/* RP_STATUS_NOT_FOUND: there is no such file. RP_STATUS_FORMAT names file, row and field. */
int rp_expectations_load(const char *path, struct rp_expectations *out,
                         struct rp_error *err) RP_MUST_USE;
/* Sorts the rows and writes them, one on each line; a file is replaced as a whole or not at all. */
int rp_expectations_save(const char *path, struct rp_expectations *list,
                         struct rp_error *err) RP_MUST_USE;

enum rp_expect_verdict {
    RP_EXPECT_HOLDS,
    RP_EXPECT_BETTER,  /* beyond the spread in the good direction: the baseline is out of date */
    RP_EXPECT_FAILS,   /* beyond the spread */
    RP_EXPECT_MISSING, /* a baseline that was not measured, although its group was */
    RP_EXPECT_NEW,     /* measured, without a baseline */
    RP_EXPECT_SKIPPED
};

/* baseline or measured may be NULL, not both. */
enum rp_expect_verdict rp_expectation_judge(const struct rp_expectation *baseline,
                                            const struct rp_expectation *measured);

/* Updates the baselines from measurements. Rows whose value holds are unchanged, others get a new
 * value, error, commit and command and keep their spread; new rows are added; rows that were not
 * measured, although their group (the metric up to its first dot) was, are removed. False when
 * memory is out. */
bool rp_expectations_update(struct rp_expectations *baselines,
                            const struct rp_expectations *measured, const char *commit,
                            const char *command) RP_MUST_USE;

/* A short stable name of a device from its description: "AMD EPYC, 2 threads, avx512_bf16" becomes
 * "amd_epyc_2_threads_avx512_bf16"; for a GPU, the part before the first comma. */
void rp_hardware_name(const char *device, bool on_gpu, char out[64]);

#endif
