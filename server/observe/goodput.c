#include "server/observe/goodput.h"

#include "metrics/exposition.h"

#include <stdio.h>
#include <string.h>

const char *const rp_slo_kinds[RP_SLO_COUNT] = {
    [RP_SLO_TTFT] = "ttft", [RP_SLO_TPOT] = "tpot", [RP_SLO_E2E] = "e2e", [RP_SLO_ITL] = "itl"};

const char *rp_slo_cause_name(uint32_t cause) {
    static const char *const phases[] = {[RP_SLO_RECEIVE] = "receive",
                                         [RP_SLO_TOKENIZE] = "tokenize",
                                         [RP_SLO_QUEUE] = "queue",
                                         [RP_SLO_PREFILL] = "prefill"};
    if (cause == RP_SLO_UNREAD)
        return "unread";
    return cause < RP_SLO_GAP ? phases[cause] : rp_gap_causes[cause - RP_SLO_GAP];
}

void rp_goodput_init(struct rp_goodput *goodput, const struct rp_slo *slo) {
    memset(goodput, 0, sizeof *goodput);
    goodput->slo = *slo;
}

static const struct rp_metric_family good_requests = {
    "reprise_goodput_requests_total", NULL, "Requests that ended normally and met every objective.",
    RP_METRIC_COUNTER, RP_METRICS_OWN};
static const struct rp_metric_family good_tokens = {"reprise_goodput_tokens_total", NULL,
                                                    "Tokens of requests that met every objective.",
                                                    RP_METRIC_COUNTER, RP_METRICS_OWN};
static const struct rp_metric_family misses = {
    "reprise_slo_misses_total", NULL,
    "Requests that missed an objective, by largest contribution to that time. A series appears "
    "with its "
    "first miss.",
    RP_METRIC_COUNTER, RP_METRICS_OWN};

static void collect_misses(void *ctx, struct rp_metric_out *out) {
    const struct rp_goodput *goodput = ctx;
    for (uint32_t kind = 0; kind < RP_SLO_COUNT; kind++)
        for (uint32_t cause = 0; cause < RP_SLO_CAUSE_COUNT; cause++) {
            uint64_t count = rp_counter_read(&goodput->misses[kind][cause]);
            char labels[64];
            if (!count)
                continue;
            snprintf(labels, sizeof labels, "slo=\"%s\",cause=\"%s\"", rp_slo_kinds[kind],
                     rp_slo_cause_name(cause));
            rp_metric_put_count(out, labels, count);
        }
}

void rp_goodput_register(struct rp_goodput *goodput, struct rp_registry *registry) {
    if (!rp_slo_is_set(&goodput->slo))
        return;
    rp_registry_add(registry, &good_requests, NULL, &goodput->good_requests);
    rp_registry_add(registry, &good_tokens, NULL, &goodput->good_tokens);
    rp_registry_add_collected(registry, &misses, collect_misses, goodput);
}

static enum rp_slo_cause largest(const uint64_t parts[RP_SLO_CAUSE_COUNT]) {
    uint32_t found = 0;
    for (uint32_t i = 1; i < RP_SLO_CAUSE_COUNT; i++)
        found = parts[i] > parts[found] ? i : found;
    return (enum rp_slo_cause)found;
}

uint32_t rp_goodput_judge(const struct rp_slo *slo, const struct rp_request_record *record,
                          enum rp_slo_cause causes[RP_SLO_COUNT]) {
    struct rp_record_times times;
    uint64_t parts[RP_SLO_CAUSE_COUNT] = {0};
    uint32_t missed = 0;
    rp_record_times(record, &times);
    parts[RP_SLO_RECEIVE] = times.receive;
    parts[RP_SLO_TOKENIZE] = times.parse + times.tokenize;
    parts[RP_SLO_QUEUE] = times.queue;
    parts[RP_SLO_PREFILL] = times.prefill;
    if (slo->ttft_ns && times.ttft > slo->ttft_ns) {
        missed |= 1u << RP_SLO_TTFT;
        causes[RP_SLO_TTFT] = largest(parts);
    }
    for (uint32_t i = 0; i < RP_GAP_CAUSE_COUNT; i++)
        parts[RP_SLO_GAP + i] = record->stats.gap_ns[i];
    parts[RP_SLO_UNREAD] = record->stall_ns;
    if (slo->e2e_ns && times.total > slo->e2e_ns) {
        missed |= 1u << RP_SLO_E2E;
        causes[RP_SLO_E2E] = largest(parts);
    }
    if (slo->tpot_ns && times.per_token > slo->tpot_ns) {
        memset(parts, 0, RP_SLO_GAP * sizeof *parts);
        parts[RP_SLO_UNREAD] = 0;
        missed |= 1u << RP_SLO_TPOT;
        causes[RP_SLO_TPOT] = (enum rp_slo_cause)RP_MAX((uint32_t)largest(parts), RP_SLO_GAP);
    }
    if (slo->itl_ns && record->stats.worst_gap_ns > slo->itl_ns) {
        missed |= 1u << RP_SLO_ITL;
        causes[RP_SLO_ITL] = (enum rp_slo_cause)(
            RP_SLO_GAP + RP_MIN(record->stats.worst_gap_cause, (uint32_t)RP_GAP_CAUSE_COUNT - 1));
    }
    return missed;
}

void rp_goodput_note(struct rp_goodput *goodput, const struct rp_request_record *record) {
    enum rp_slo_cause causes[RP_SLO_COUNT];
    bool ended = record->stop_string || record->finish == RP_FINISH_STOP ||
                 record->finish == RP_FINISH_LENGTH;
    if (!rp_slo_is_set(&goodput->slo) || !record->engine_id || !ended || record->client_left)
        return;
    uint32_t missed = rp_goodput_judge(&goodput->slo, record, causes);
    if (missed == 0) {
        rp_counter_add(&goodput->good_requests, 1);
        rp_counter_add(&goodput->good_tokens, record->output_tokens);
    }
    for (uint32_t kind = 0; kind < RP_SLO_COUNT; kind++)
        if (missed >> kind & 1)
            rp_counter_add(&goodput->misses[kind][causes[kind]], 1);
}
