/* expectations.h - what a measurement should give: a file of baselines, and the comparison with it.
 *
 * bench/expectations_<hardware>.json: {"hardware": NAME, "expectations": [{"metric": NAME, "value":
 * NUMBER or TEXT,
 * "relative": R, "absolute": A, "direction": "exact"|"lower"|"higher", "error": E, "commit": HASH, "command": TEXT},
 * ...]}, sorted by metric. The spread is the larger of R * |value| and A; text has none and is compared as it is.
 * "error" stands where precision is involved: how far the measured kernels were from the scalar
 * ones. What is counted and does not depend on the machine lies under the hardware "counts".
 *
 * Thread: any, one owner. Memory: rp_expectations_deinit frees; legal on a zeroed struct. */
#ifndef RP_BENCH_EXPECTATIONS_H
#define RP_BENCH_EXPECTATIONS_H

#include "base/buffer.h"
#include "base/status.h"

enum rp_expect_direction {
    RP_EXPECT_EXACT, /* beyond the spread in either direction is a change */
    RP_EXPECT_LOWER, /* lower is better: above the spread is worse */
    RP_EXPECT_HIGHER
};

/* A baseline, or a measurement. */
struct rp_expectation {
    char metric[96]; /* "nodes.demo.fused.decode.8": a group, and what in it */
    char text[40];   /* "": the value is a number */
    double value;
    double relative, absolute;
    enum rp_expect_direction direction;
    double error;     /* NAN: none */
    char skipped[96]; /* of a measurement: why it could not be made; "" when it was */
    bool optional;    /* of a measurement: without a baseline it is named and does not fail */
    char commit[48], command[128];
};

struct rp_expectations {
    char hardware[64];
    struct rp_expectation *rows;
    uint32_t count, capacity;
};

void rp_expectations_deinit(struct rp_expectations *list);
/* A new row with everything but the metric zero (error NAN), or NULL when memory is out; the name
 * is a printf format. The pointer holds until the next one. */
struct rp_expectation *rp_expectations_add(struct rp_expectations *list, const char *format, ...)
    RP_PRINTF(2, 3);
const struct rp_expectation *rp_expectations_find(const struct rp_expectations *list,
                                                  const char *metric);

/* RP_STATUS_NOT_FOUND: there is no such file. RP_STATUS_FORMAT names file, row and field. */
int rp_expectations_load(const char *path, struct rp_expectations *out,
                         struct rp_error *err) RP_MUST_USE;
/* Sorts the rows and writes them, one on each line; a file is replaced as a whole or not at all. */
int rp_expectations_save(const char *path, struct rp_expectations *list,
                         struct rp_error *err) RP_MUST_USE;

enum rp_expect_verdict {
    RP_EXPECT_HOLDS,
    RP_EXPECT_BETTER,  /* beyond the spread, in the good direction: the baseline is out of date */
    RP_EXPECT_FAILS,   /* beyond the spread */
    RP_EXPECT_MISSING, /* a baseline of a group that was measured, and nobody measured it */
    RP_EXPECT_NEW,     /* measured, and there is no baseline */
    RP_EXPECT_SKIPPED
};

/* baseline or measured may be NULL, not both. */
enum rp_expect_verdict rp_expectation_judge(const struct rp_expectation *baseline,
                                            const struct rp_expectation *measured);

/* Takes measurements over into the baselines. Rows whose value holds stay as they are, others get
 * value, error, commit and command and keep their spread; new ones come in whole; rows whose group
 * (the metric up to its first dot) was measured and which were not measured go. False when memory
 * is out. */
bool rp_expectations_update(struct rp_expectations *baselines,
                            const struct rp_expectations *measured, const char *commit,
                            const char *command) RP_MUST_USE;

/* A short stable name of a device from what it calls itself: "AMD EPYC, 2 threads, avx512_bf16" is
 * "amd_epyc_2_threads_avx512_bf16"; of a card what stands before the first comma. */
void rp_hardware_name(const char *device, bool on_card, char out[64]);

#endif
