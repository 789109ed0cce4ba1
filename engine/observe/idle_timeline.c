#include "engine/observe/idle_timeline.h"

void rp_idle_timeline_add(struct rp_idle_timeline *timeline, uint64_t begin_ns, uint64_t end_ns,
                          enum rp_idle_cause cause) {
    if (end_ns <= begin_ns)
        return;
    if (timeline->count) {
        struct rp_idle_piece *last = &timeline->spans[(timeline->count - 1) % RP_TIMELINE_SPANS];
        if (last->cause == cause && last->end_ns == begin_ns) {
            last->end_ns = end_ns;
            return;
        }
    }
    timeline->spans[timeline->count++ % RP_TIMELINE_SPANS] =
        (struct rp_idle_piece){begin_ns, end_ns, cause};
}

static void add_piece(struct rp_idle_piece *out, uint32_t *count, uint64_t begin_ns,
                      uint64_t end_ns, enum rp_idle_cause cause) {
    if (end_ns <= begin_ns)
        return;
    if (*count && out[*count - 1].cause == cause)
        out[*count - 1].end_ns = end_ns;
    else
        out[(*count)++] = (struct rp_idle_piece){begin_ns, end_ns, cause};
}

uint32_t rp_idle_timeline_split(const struct rp_idle_timeline *timeline, uint64_t begin_ns,
                                uint64_t end_ns, uint64_t launched_ns,
                                struct rp_idle_piece out[RP_IDLE_PIECES_MAX]) {
    uint64_t kept = RP_MIN(timeline->count, (uint64_t)RP_TIMELINE_SPANS), first = timeline->count;
    uint64_t until = RP_MIN(end_ns, RP_MAX(launched_ns, begin_ns)), at = begin_ns;
    uint32_t count = 0;
    /* The spans that reach into the gap are the newest ones, as a rule a few. */
    while (first > timeline->count - kept &&
           timeline->spans[(first - 1) % RP_TIMELINE_SPANS].end_ns > begin_ns)
        first--;
    for (uint64_t i = first; i < timeline->count && at < until; i++) {
        const struct rp_idle_piece *span = &timeline->spans[i % RP_TIMELINE_SPANS];
        uint64_t from = RP_MIN(RP_MAX(span->begin_ns, at), until);
        uint64_t to = RP_MIN(span->end_ns, until);
        add_piece(out, &count, at, from, RP_IDLE_UNKNOWN);
        add_piece(out, &count, from, to, span->cause);
        at = RP_MAX(at, to);
    }
    add_piece(out, &count, at, until, RP_IDLE_UNKNOWN);
    add_piece(out, &count, until, end_ns, RP_IDLE_START);
    return count;
}
