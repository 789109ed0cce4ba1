/* profile_report.h - tables of the kernel times of stamped steps (step_profile.h), and statistics
 * of all steps of that time.
 *
 * A launch's total is the time between its stamps; its self time begins where the launches before
 * it ended, since dependent launches begin before the previous ones have ended. The time between
 * the step's two graphs, forward and sample, is a separate row, and so is the time between launches
 * of an eager step; other parts of a replay that no launch covers are unattributed.
 * Costs are those of the live tokens, logit rows and positions of each step, not of the bucket's.
 *
 * A launch's time is split over the rows of the step: attention by pairs of token and position,
 * operators on logit rows by the rows that sample, everything else by tokens. So the shares of a
 * step's requests add up to the step. Padding is not a row: its time belongs to the live rows.
 *
 * Thread: any but the engine's; it allocates, and takes milliseconds for a full ring. */
#ifndef RP_ENGINE_PROFILE_REPORT_H
#define RP_ENGINE_PROFILE_REPORT_H

#include "engine/engine.h"
#include "engine/observe/step_profile.h"
#include "metrics/profile_table.h"

/* clang-format off */
#define RP_PROFILE_GROUPS(X)                                                                       \
    X(OP, "op")           /* a launch of every layer and bucket: attn.qkv */                       \
    X(LAYER, "layer")     /* all launches of a layer; calls are steps */                           \
    X(NODE, "node")       /* a launch of one layer: layer.17.attn.qkv */                           \
    X(BUCKET, "bucket")   /* steps of a captured bucket */                                         \
    X(PHASE, "phase")     /* decode steps; steps with prompt tokens */                             \
    X(REQUEST, "request") /* each request's share of its steps */                                  \
    X(OP_BUCKET, "op,bucket")       /* a launch of every layer, by bucket */                       \
    X(OP_BUCKET_KV, "op,bucket,kv") /* and by the mean KV length of the step's rows, as powers of  \
                                     * two */
/* clang-format on */
enum rp_profile_group {
#define X(name, text) RP_PROFILE_BY_##name,
    RP_PROFILE_GROUPS(X)
#undef X
};

struct rp_profile_query {
    enum rp_profile_group group;
    enum rp_profile_phase phase;
    enum rp_profile_sort sort;
    uint64_t since_ns;        /* rp_clock_ns; 0: all that is kept */
    uint32_t session, repeat; /* only active steps of this session (and repeat); 0: all */
    /* Only steps with rows of these requests, and only their shares; 0: all. */
    const uint64_t *requests;
    uint32_t request_count;
};

/* Fills a table, which the caller frees in any case. RP_STATUS_NO_MEMORY. */
int rp_engine_profile_table(const struct rp_engine *engine, const struct rp_profile_query *query,
                            struct rp_profile_table *out) RP_MUST_USE;

/* The same of a copy, into a table that was initialized. */
int rp_profile_table_of(const struct rp_engine *engine, const struct rp_profile_query *query,
                        const struct rp_profile_copy *copy,
                        struct rp_profile_table *out) RP_MUST_USE;

/* The name of a launch (layer.17.attn.qkv) of captured bucket `graph`; false when there is none. */
bool rp_engine_node_name(const struct rp_engine *engine, uint32_t graph, uint32_t node, char *out,
                         size_t size);

/* What stamping or a session does to steps: durations of steps of a against those of b, bucket by
 * bucket (medians), weighted by a's steps. */
struct rp_step_record;
struct rp_profile_ratio {
    double value; /* 1: alike */
    /* value +- spread is a 95 % interval of it (medians: McGill et al. 1978, 1.57 IQR / sqrt n) */
    double spread;
    uint64_t steps; /* of a, with any of b beside them; 0: value and spread are 0 */
};
struct rp_profile_ratio rp_profile_compare(const struct rp_step_record *a, uint32_t a_count,
                                           const struct rp_step_record *b, uint32_t b_count);

/* Overhead of stamping: each stamped step is compared with the steps before and after it, so that a
 * change of load affects both. */
struct rp_profile_ratio rp_profile_compare_stamped(const struct rp_step_record *records,
                                                   uint32_t count);

/* How a session from started_ns to done_ns (rp_clock_ns) slowed steps: the stamped steps and those
 * after it, relative to those of the ten seconds before. */
struct rp_profile_slowdown {
    uint64_t before_steps;
    struct rp_profile_ratio during, after;
};
void rp_engine_profile_slowdown(const struct rp_engine *engine, uint64_t started_ns,
                                uint64_t done_ns, struct rp_profile_slowdown *out);

#endif
