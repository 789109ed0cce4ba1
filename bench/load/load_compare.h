/* load_compare.h - tests whether B differs from A, with a confidence interval: for interleaved
 * runs, and for two result files.
 *
 * Everything is about the ratio B / A of one metric. Its 95 % interval is computed
 *   for blocks A B B A: as a t-interval over the blocks' log ratios log((b1 + b2) / (a1 + a2)). A
 *     drift that is linear in time cancels within a block;
 *   for two result files with details: by a bootstrap with a fixed seed. Requests are resampled in
 *     ten blocks of neighbors, since queueing correlates neighbors, and the interval is widened by
 *     the ratio of Student's t to the normal quantile for ten samples; paired between the files if
 *     both sent the same lengths in the same order. It accounts for the variance within the two
 *     runs, not between runs: a drift of the machine appears as a difference, and so does chance in
 *     the tail of a short run near saturation. Use interleaved runs where it matters;
 *   for two files without details, and for rates, which are one number per run: not at all.
 * The verdict is "no difference" when the interval contains 1, or lies entirely within 1 +- margin.
 * Without an interval there is no verdict.
 *
 * Thread: any. Randomness: its own generator with a fixed seed; the same input gives the same
 * output. */
#ifndef RP_BENCH_LOAD_COMPARE_H
#define RP_BENCH_LOAD_COMPARE_H

#include "base/buffer.h"
#include "bench/load/load_metrics.h"

#define RP_COMPARE_MARGIN 0.02 /* default margin of equality */

enum rp_compare_verdict {
    RP_COMPARE_NO_INTERVAL,
    RP_COMPARE_SAME,
    RP_COMPARE_FASTER, /* B is better: less time, or a higher rate */
    RP_COMPARE_SLOWER,
    RP_COMPARE_UNRELIABLE /* a file says that its result is unreliable */
};

struct rp_comparison {
    char metric[48];
    bool larger_is_better; /* higher is better: a rate */
    double a, b;           /* the metric's values; for blocks: geometric means */
    double ratio;          /* b / a */
    double low, high;      /* bounds of the interval; both 0 without one */
    double margin;
    uint32_t samples; /* blocks, or requests of the smaller file */
    bool paired;      /* two files: with the same requests */
    enum rp_compare_verdict verdict;
};

/* values: (4 * blocks), in the order of measurement, a b b a for each block. One block gives no
 * interval. RP_STATUS_INVALID: a value that is not above 0. */
int rp_compare_blocks(const char *metric, bool larger_is_better, const double *values,
                      uint32_t blocks, double margin, struct rp_comparison *out,
                      struct rp_error *err) RP_MUST_USE;

/* Sets ratio and verdict from a, b, low, high, larger_is_better and margin. */
void rp_compare_judge(struct rp_comparison *comparison);

/* "B is 10.1 % slower (95 % interval 9.2 to 11.0)", "no difference (ratio 1.003, ...)", "no
 * interval: only totals". */
void rp_compare_text(const struct rp_comparison *comparison, char *out, size_t size);

/* 0.975 quantile of Student's t with this many degrees of freedom, at least 1. */
double rp_student_t975(uint32_t degrees);

/* A result file of reprise or vllm. */
struct rp_load_result;
/* RP_STATUS_NOT_FOUND, RP_STATUS_FORMAT, RP_STATUS_NO_MEMORY; err names the file and what is
 * wrong. */
int rp_load_result_read(const char *path, struct rp_load_result **out,
                        struct rp_error *err) RP_MUST_USE;
void rp_load_result_free(struct rp_load_result *result);

/* Warnings about the comparison: that a file is unreliable and why, that models or numbers of
 * requests differ. One line each; may be empty. */
void rp_load_result_warnings(const struct rp_load_result *a, const struct rp_load_result *b,
                             struct rp_buffer *out);

/* A metric is a key of the files: {mean,median,std,p50,...,max}_{ttft,tpot,itl,e2el}_ms, or one of
 * the rates. Any pNN is possible with details. RP_STATUS_INVALID: no such metric;
 * RP_STATUS_NOT_FOUND: a file lacks it, or it is not above 0. */
int rp_compare_results(struct rp_load_result *a, struct rp_load_result *b, const char *metric,
                       double margin, struct rp_comparison *out, struct rp_error *err) RP_MUST_USE;

/* The default metrics of a comparison; NULL-terminated. */
extern const char *const rp_compare_metrics[];

#endif
