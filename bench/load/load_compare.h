/* load_compare.h - whether B differs from A, with a confidence interval: of interleaved runs, and
 * of two results.
 *
 * Everything is about the ratio B / A of one metric. Its 95 % interval is
 *   of blocks A B B A: a t-interval over the blocks' log ratios log((b1 + b2) / (a1 + a2)). A drift that is linear in
 *     time cancels within a block, so a machine that slows down meanwhile widens nothing;
 *   of two result files with details: a bootstrap with a fixed seed. Requests are drawn with what belongs to them, in
 *     ten runs of neighbors, for a queue makes neighbors alike, and the interval is widened as Student's t is over
 *     the normal for ten; the same requests from both files where both sent the same lengths in the same order. It
 *     knows the scatter within the two runs and not that between runs: a drift of the machine looks like a
 *     difference, and so does chance in the tail of a short run near saturation. Interleave where it matters;
 *   of two files without details, and of rates, which are one number for a run: none.
 * The verdict is "no difference" when the interval contains 1, or lies within 1 +- margin, whole.
 * Without an interval there is no verdict.
 *
 * Thread: any. Randomness: a generator of its own, fixed seed; the same input gives the same
 * output. */
#ifndef RP_BENCH_LOAD_COMPARE_H
#define RP_BENCH_LOAD_COMPARE_H

#include "base/buffer.h"
#include "bench/load/load_metrics.h"

#define RP_COMPARE_MARGIN 0.02 /* the default: within it two results are equal */

enum rp_compare_verdict {
    RP_COMPARE_NO_INTERVAL,
    RP_COMPARE_SAME,
    RP_COMPARE_FASTER, /* B is better: less time, or a higher rate */
    RP_COMPARE_SLOWER
};

struct rp_comparison {
    char metric[48];
    bool larger_is_better; /* a rate */
    double a, b;           /* the metric's values; of blocks: geometric means */
    double ratio;          /* b / a */
    double low, high;      /* of its interval; both 0 without one */
    double margin;
    uint32_t samples; /* blocks, or requests of the smaller file */
    bool paired;      /* of two files: the same requests */
    enum rp_compare_verdict verdict;
};

/* values: (4 * blocks), in the order in which they were measured, a b b a of each block. One block
 * has no interval. RP_STATUS_INVALID: a value that is not above 0. */
int rp_compare_blocks(const char *metric, bool larger_is_better, const double *values,
                      uint32_t blocks, double margin, struct rp_comparison *out,
                      struct rp_error *err) RP_MUST_USE;

/* Sets ratio and verdict from a, b, low, high, larger_is_better and margin. */
void rp_compare_judge(struct rp_comparison *comparison);

/* "B is 10.1 % slower (95 % interval 9.2 to 11.0)", "no difference (ratio 1.003, ...)", "no
 * interval: only totals". */
void rp_compare_text(const struct rp_comparison *comparison, char *out, size_t size);

/* 0.975 quantile of Student's t with so many degrees of freedom, at least 1. */
double rp_student_t975(uint32_t degrees);

/* A result file, of ours or vllm's. */
struct rp_load_result;
/* RP_STATUS_NOT_FOUND, RP_STATUS_FORMAT, RP_STATUS_NO_MEMORY; err names the file and what is
 * wrong. */
int rp_load_result_read(const char *path, struct rp_load_result **out,
                        struct rp_error *err) RP_MUST_USE;
void rp_load_result_free(struct rp_load_result *result);

/* What a reader should know before believing the comparison: that a file is unreliable and why,
 * that models or numbers of requests differ. One line each; may be empty. */
void rp_load_result_warnings(const struct rp_load_result *a, const struct rp_load_result *b,
                             struct rp_buffer *out);
const char *rp_load_result_model(const struct rp_load_result *result); /* "" when not said */

/* A metric is a key of the files: {mean,median,std,p50,...,max}_{ttft,tpot,itl,e2el}_ms, or one of
 * the rates. Any pNN is possible where there are details. RP_STATUS_INVALID: no such metric;
 * RP_STATUS_NOT_FOUND: a file lacks it, or it is not above 0. */
int rp_compare_results(struct rp_load_result *a, struct rp_load_result *b, const char *metric,
                       double margin, struct rp_comparison *out, struct rp_error *err) RP_MUST_USE;

/* The metrics of a comparison that was asked for none, NULL behind the last. */
extern const char *const rp_compare_metrics[];

#endif
