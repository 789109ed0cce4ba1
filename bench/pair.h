/* pair.h - compares two configurations of this engine, or two servers, in interleaved measurements.
 *
 * Samples are taken in blocks A B B A. Interference affects both sides equally, and a drift cancels
 * within a block (load_compare.h). Two equal engines in one process still differ, on a CPU by up to
 * 8 % for their whole lifetime, because of the placement of their memory relative to the caches.
 * Each block therefore creates both again, alternating which is first, and takes one sample of each
 * that does not count; the interval then includes the effect of memory placement. With `keep` both
 * are created once: for GPUs, servers and models that take long to load.
 *
 * A sample is one round of the load on one side: all sequences are submitted at once and run to
 * completion. Within each half of a block both sides have the same prompts, and no two halves have
 * prompts in common, so that the prefix cache finds only the prefix that the load shares on
 * purpose.
 *
 * The clock is wall time, or the CPU time of this process: on a shared machine CPU time depends on
 * the program and hardly on other processes. It requires both engines in this process, and includes
 * spinning threads.
 *
 * Thread: one. Memory: a side owns what it opened. */
#ifndef RP_BENCH_PAIR_H
#define RP_BENCH_PAIR_H

#include "bench/engine_run.h"
#include "bench/load/load_compare.h"

enum rp_pair_measure {
    /* milliseconds per decode step: median over the steps in which all sequences decode */
    RP_PAIR_STEP,
    RP_PAIR_OUTPUT, /* output tokens/s, from the first submit until all are closed */
    RP_PAIR_PROMPT  /* prompt tokens/s, likewise */
};

enum rp_pair_clock { RP_PAIR_WALL, RP_PAIR_CPU };

struct rp_pair_load {
    enum rp_pair_measure measure;
    uint32_t sequences, input, output;
    uint32_t shared; /* leading tokens shared by all prompts */
};

/* Expected result of B compared with A, from earlier measurements or by design. */
enum rp_pair_expected { RP_PAIR_FASTER, RP_PAIR_EQUAL, RP_PAIR_DEPENDS };

enum rp_pair_needs { RP_PAIR_ANY, RP_PAIR_ONLY_CPU, RP_PAIR_ONLY_GPU };

/* A named pair: A is the baseline, B the variant. */
struct rp_pair {
    const char *name, *what;
    const char *a, *b; /* flags of `reprise serve` */
    struct rp_pair_load load;
    enum rp_pair_expected expected;
    enum rp_pair_needs needs;
};

extern const struct rp_pair rp_pairs[];
extern const uint32_t rp_pair_count;
/* NULL: no such pair. */
const struct rp_pair *rp_pair_find(const char *name);
/* "ms/step", "output tokens/s", "prompt tokens/s". */
const char *rp_pair_measure_name(enum rp_pair_measure measure);

/* One side. open, close: NULL if not needed; close is also called after a failed open. sample:
 * takes a sample of the load with the prompts of this seed. */
struct rp_pair_side {
    int (*open)(void *ctx, struct rp_error *err);
    int (*sample)(void *ctx, const struct rp_pair_load *load, enum rp_pair_clock clock,
                  uint64_t seed, double *out, struct rp_error *err);
    void (*close)(void *ctx);
    void *ctx;
};

/* An engine in this process as a side. */
struct rp_pair_engine {
    struct rp_engine_run run;
    struct rp_request *requests;
    int32_t *prompts;
    bool *has_token;
    double *gaps_ms;
    uint32_t sequences, input, output; /* maximum load that memory was allocated for */
};

/* As rp_engine_run_open; the queue must have room for load->sequences. Call close in any case. */
int rp_pair_engine_open(const struct rp_engine_run_model *model,
                        const struct rp_engine_config *config, const struct rp_pair_load *load,
                        struct rp_pair_engine *out, struct rp_error *err) RP_MUST_USE;
/* Legal on a zeroed struct. */
void rp_pair_engine_close(struct rp_pair_engine *engine);
/* rp_pair_side.sample. */
int rp_pair_engine_sample(struct rp_pair_engine *engine, const struct rp_pair_load *load,
                          enum rp_pair_clock clock, uint64_t seed, double *out,
                          struct rp_error *err) RP_MUST_USE;

struct rp_pair_run_options {
    struct rp_pair_load load;
    enum rp_pair_clock clock;
    uint32_t blocks; /* at least 2 */
    bool keep;       /* create both sides only once */
    double margin;   /* as in struct rp_comparison */
    uint64_t seed;
    void (*progress)(void *ctx, uint32_t block, const double values[4]); /* NULL: none */
    void *ctx;
};

int rp_pair_run(const struct rp_pair_side *a, const struct rp_pair_side *b,
                const struct rp_pair_run_options *options, struct rp_comparison *out,
                struct rp_error *err) RP_MUST_USE;

#endif
