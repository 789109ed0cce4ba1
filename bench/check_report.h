/* check_report.h - reports measurements against baselines, and updates the baselines.
 * Thread: one. */
#ifndef RP_BENCH_CHECK_REPORT_H
#define RP_BENCH_CHECK_REPORT_H

#include "base/json_writer.h"
#include "bench/expectations.h"

struct rp_check_output {
    bool as_json;
    struct rp_buffer buffer; /* contents of the JSON object */
    struct rp_json json;
    uint32_t held, failed, better, skipped;
    uint32_t new_metrics; /* metrics without a baseline */
};

void rp_check_output_begin(struct rp_check_output *output, bool as_json);
/* Lists every metric that does not hold; `failed` counts those that cause a failure. */
void rp_check_report(struct rp_check_output *output, const struct rp_expectations *baselines,
                     const struct rp_expectations *measured);
void rp_check_no_baseline(struct rp_check_output *output, const char *hardware);
/* Prints the last line, or the JSON object. */
void rp_check_output_end(struct rp_check_output *output);

/* Updates *baselines and writes them with the commit; NULL or "": that of this checkout ("unknown"
 * without git). */
int rp_check_write(const char *path, struct rp_expectations *baselines,
                   const struct rp_expectations *measured, const char *command,
                   const char *known_commit, struct rp_error *err) RP_MUST_USE;

#endif
