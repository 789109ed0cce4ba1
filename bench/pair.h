/* pair.h - two configurations of this engine, or two servers, measured in turns.
 *
 * Samples go in blocks A B B A. What a machine does meanwhile meets both sides alike, and a drift
 * cancels within a block (load_compare.h). Two equal engines in one process differ all the same, on
 * a CPU by up to 8 % for as long as they live, by where their memory lies in the caches. So each
 * block makes both anew, in turns A or B first, and takes one sample of each that does not count;
 * the interval then covers what memory does. With `keep` both are made once: for cards, servers and
 * models that take long to load.
 *
 * A sample is one round of the load on one side: all sequences submitted at once and run to their
 * end. The first and second half of a block have the same prompts on both sides, and no two halves
 * share any, so that a prefix cache finds only what the load lets prompts share.
 *
 * The clock is the wall's, or the processor time of this process: on a machine that others use too,
 * that is what a change of the program moves and their work does not (much). It needs both engines
 * in this process, and counts waiting threads that spin.
 *
 * Thread: one. Memory: a side owns what it opened. */
#ifndef RP_BENCH_PAIR_H
#define RP_BENCH_PAIR_H

#include "bench/engine_run.h"
#include "bench/load/load_compare.h"

enum rp_pair_measure {
    /* milliseconds of a decode step: the median of those in which all sequences decode */
    RP_PAIR_STEP,
    RP_PAIR_OUTPUT, /* output tokens/s, from the first submit until all are closed */
    RP_PAIR_PROMPT  /* prompt tokens/s, likewise */
};

enum rp_pair_clock { RP_PAIR_WALL, RP_PAIR_CPU };

struct rp_pair_load {
    enum rp_pair_measure measure;
    uint32_t sequences, input, output;
    uint32_t shared; /* leading tokens that all prompts have in common */
};

/* What B should be beside A, where the pair has been measured or the reason is plain. */
enum rp_pair_expected { RP_PAIR_FASTER, RP_PAIR_EQUAL, RP_PAIR_DEPENDS };

enum rp_pair_needs { RP_PAIR_ANY, RP_PAIR_ONLY_CPU, RP_PAIR_ONLY_CARD };

/* A named pair: A the baseline, B with what is compared. */
struct rp_pair {
    const char *name, *what;
    const char *a, *b; /* flags of `reprise serve` */
    struct rp_pair_load load;
    enum rp_pair_expected expected;
    enum rp_pair_needs needs;
};

extern const struct rp_pair rp_pairs[];
extern const uint32_t rp_pair_count;
/* NULL: there is none of this name. */
const struct rp_pair *rp_pair_find(const char *name);
/* "ms/step", "output tokens/s", "prompt tokens/s". */
const char *rp_pair_measure_name(enum rp_pair_measure measure);

/* One side. open, close: NULL where nothing is to be made; close is called after a failed open too.
 * sample: takes a sample of the load with the prompts of this seed. */
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
    uint32_t sequences, input, output; /* that there is memory for */
};

/* As rp_engine_run_open; the queue must hold load->sequences. Close it in any case. */
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
    bool keep;       /* make both sides once */
    double margin;   /* rp_comparison's */
    uint64_t seed;
    void (*progress)(void *ctx, uint32_t block, const double values[4]); /* NULL: none */
    void *ctx;
};

int rp_pair_run(const struct rp_pair_side *a, const struct rp_pair_side *b,
                const struct rp_pair_run_options *options, struct rp_comparison *out,
                struct rp_error *err) RP_MUST_USE;

#endif
