/* diagnose.h - what limits a server: a verdict with its evidence, and what to try.
 *
 * A pure function of its input: rules in a fixed order, the first that holds is the verdict. Each
 * rule compares numbers with the thresholds below, and every comparison is given as evidence,
 * whether it held or not.
 *
 *   starved        the device had no request to work on for most of the time
 *   kv_limited     requests wait or were preempted because the KV pages are taken
 *   slot_limited   requests wait because all slots (--max-num-seqs) are taken
 *   queueing       requests wait although slots and pages are free
 *   cpu_bound      there was work and the device waited for the host
 *   launch_bound   most of the device's time goes into launches too small to use it
 *   memory_bound   most of it goes into launches limited by memory bandwidth
 *   compute_bound  likewise, by the rate of GEMMs
 *   unknown        too few steps, or none was stamped, or peaks were not measured
 *
 * The three of these say that more comes than is served; `limit` is then what the device itself is
 * bound by.
 * Thread: any. Memory: none. */
#ifndef RP_METRICS_DIAGNOSE_H
#define RP_METRICS_DIAGNOSE_H

#include "base/buffer.h"
#include "metrics/event.h"

struct rp_json;

#define RP_DIAGNOSE_STARVED_SHARE 0.5  /* of the window without work */
#define RP_DIAGNOSE_QUEUE_SHARE   0.25 /* waiting requests per running one */
#define RP_DIAGNOSE_PAGES_SHARE   0.05 /* of the KV pages that are free or only cached */
#define RP_DIAGNOSE_SLOTS_SHARE   0.9  /* of the slots that are taken */
#define RP_DIAGNOSE_HOST_SHARE    0.15 /* of the time with work, the device idle for the host */
#define RP_DIAGNOSE_SMALL_SHARE                                                                    \
    0.5 /* of launches' time, in those that reach a quarter of no peak */
#define RP_DIAGNOSE_STEPS_MIN 8u

enum rp_verdict {
    RP_VERDICT_UNKNOWN,
    RP_VERDICT_STARVED,
    RP_VERDICT_KV_LIMITED,
    RP_VERDICT_SLOT_LIMITED,
    RP_VERDICT_QUEUEING,
    RP_VERDICT_CPU_BOUND,
    RP_VERDICT_LAUNCH_BOUND,
    RP_VERDICT_MEMORY_BOUND,
    RP_VERDICT_COMPUTE_BOUND,
    RP_VERDICT_COUNT
};
extern const char *const rp_verdicts[RP_VERDICT_COUNT];

struct rp_diagnose_input {
    double seconds;                         /* the window */
    uint64_t steps;                         /* in it */
    double busy_share;                      /* of the window */
    double idle_share[RP_IDLE_CAUSE_COUNT]; /* of the window */
    uint32_t running, waiting, swapped;     /* requests, now */
    uint32_t slots;
    uint64_t preempted;                /* sequences swapped out in the window */
    double pages_free_share;           /* of the KV pool, now: cached pages count as free */
    double step_seconds, host_seconds; /* of a step: on the device; planning and launching it */
    double tokens_per_step;
    /* Shares of the launch time in stamped steps; all zero when none was stamped or peaks are
     * unknown. */
    uint64_t stamped_steps;
    double memory_share, compute_share, latency_share;
    double bandwidth_used, flops_used; /* of the peaks, over whole replays */
};

#define RP_DIAGNOSE_EVIDENCE_MAX 16
#define RP_DIAGNOSE_NEXT_MAX     3

struct rp_evidence {
    const char *what, *unit; /* unit: "share", "requests", "steps", "seconds" */
    double value, threshold;
    bool at_least; /* holds: value >= threshold; else value < threshold */
    bool holds;
    enum rp_verdict speaks_for;
};

struct rp_diagnosis {
    enum rp_verdict verdict;
    enum rp_verdict limit; /* of the device itself, when it had work; UNKNOWN otherwise */
    struct rp_evidence evidence[RP_DIAGNOSE_EVIDENCE_MAX];
    uint32_t evidence_count;
    const char *summary;
    const char *next[RP_DIAGNOSE_NEXT_MAX]; /* what to try, in order */
    uint32_t next_count;
};

void rp_diagnose(const struct rp_diagnose_input *input, struct rp_diagnosis *out);
/* The members of an object. */
void rp_diagnosis_write_json(const struct rp_diagnose_input *input,
                             const struct rp_diagnosis *diagnosis, struct rp_json *json);
void rp_diagnosis_write_text(const struct rp_diagnose_input *input,
                             const struct rp_diagnosis *diagnosis, struct rp_buffer *out);

#endif
