/* goodput.h - counts requests that met all latency objectives, and the causes of misses.
 * Thread: loop; any thread may read the counters. */
#ifndef RP_SERVER_GOODPUT_H
#define RP_SERVER_GOODPUT_H

#include "metrics/metrics.h"
#include "server/observe/request_record.h"

/* Objectives per request, ns; 0: none. */
struct rp_slo {
    uint64_t ttft_ns; /* first byte to first token */
    uint64_t tpot_ns; /* time per output token, of answers of two or more */
    uint64_t e2e_ns;  /* first byte to the end */
    uint64_t itl_ns;  /* inter-token latency: its longest gap between two tokens */
};

enum rp_slo_kind { RP_SLO_TTFT, RP_SLO_TPOT, RP_SLO_E2E, RP_SLO_ITL, RP_SLO_COUNT };

/* The largest contribution to the time that exceeded its objective: a phase before the first token,
 * a cause between tokens, or a client that did not read. */
enum rp_slo_cause {
    RP_SLO_RECEIVE,
    RP_SLO_TOKENIZE, /* parsing the body included */
    RP_SLO_QUEUE,
    RP_SLO_PREFILL,
    RP_SLO_GAP, /* + rp_gap_cause */
    RP_SLO_UNREAD = RP_SLO_GAP + RP_GAP_CAUSE_COUNT,
    RP_SLO_CAUSE_COUNT
};

struct rp_goodput {
    struct rp_slo slo;
    struct rp_counter good_requests, good_tokens; /* counts of those that met all objectives */
    struct rp_counter misses[RP_SLO_COUNT][RP_SLO_CAUSE_COUNT];
};

extern const char *const rp_slo_kinds[RP_SLO_COUNT];
const char *rp_slo_cause_name(uint32_t cause);

static inline bool rp_slo_is_set(const struct rp_slo *slo) {
    return slo->ttft_ns || slo->tpot_ns || slo->e2e_ns || slo->itl_ns;
}

/* Zeroes the counters. */
void rp_goodput_init(struct rp_goodput *goodput, const struct rp_slo *slo);
/* Nothing when no objective is set. */
void rp_goodput_register(struct rp_goodput *goodput, struct rp_registry *registry);

/* Objectives that a request missed, as bits of rp_slo_kind, with their causes[]. */
uint32_t rp_goodput_judge(const struct rp_slo *slo, const struct rp_request_record *record,
                          enum rp_slo_cause causes[RP_SLO_COUNT]);
/* Counts a request that ended normally; others are neither good nor a miss. */
void rp_goodput_note(struct rp_goodput *goodput, const struct rp_request_record *record);

#endif
