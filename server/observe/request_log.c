#include "server/observe/request_log.h"

#include "base/memory.h"

#include <string.h>

static const uint64_t minute_ns = 60000000000u;

static struct rp_request_record *finished_of(const struct rp_request_log *log) {
    return log->records;
}

static struct rp_request_record *refused_of(const struct rp_request_log *log) {
    return log->records + RP_LOG_FINISHED;
}

size_t rp_request_log_bytes(void) {
    return RP_LOG_RECORDS * (sizeof(struct rp_request_record) + sizeof(void *));
}

bool rp_request_log_init(struct rp_request_log *log) {
    memset(log, 0, sizeof *log);
    log->records = rp_calloc(RP_LOG_RECORDS, sizeof *log->records);
    log->scratch = rp_calloc(RP_LOG_RECORDS, sizeof *log->scratch);
    if (!log->records || !log->scratch) {
        rp_request_log_deinit(log);
        return false;
    }
    for (uint32_t i = 0; i < RP_LOG_MINUTES; i++)
        log->minutes[i].records =
            log->records + RP_LOG_FINISHED + RP_LOG_REFUSED + (size_t)i * RP_LOG_SLOW;
    return true;
}

void rp_request_log_deinit(struct rp_request_log *log) {
    rp_free(log->records);
    rp_free(log->scratch);
    memset(log, 0, sizeof *log);
}

static uint64_t total_ns(const struct rp_request_record *record) {
    struct rp_record_times times;
    rp_record_times(record, &times);
    return times.total;
}

/* The minute's slot: its own, else an unused one, else the oldest. */
static struct rp_log_minute *find_minute(struct rp_request_log *log, uint64_t minute) {
    struct rp_log_minute *found = &log->minutes[0];
    for (uint32_t i = 0; i < RP_LOG_MINUTES; i++) {
        if (log->minutes[i].minute == minute)
            return &log->minutes[i];
        if (log->minutes[i].minute < found->minute)
            found = &log->minutes[i];
    }
    found->minute = minute;
    found->count = 0;
    return found;
}

static uint64_t minute_of(const struct rp_request_record *record) {
    return record->closed_ns / minute_ns + 1;
}

static void keep_slow(struct rp_request_log *log, const struct rp_request_record *record) {
    struct rp_log_minute *minute = find_minute(log, minute_of(record));
    uint64_t total = total_ns(record);
    uint32_t at = 0;
    if (minute->count < RP_LOG_SLOW) {
        at = minute->count++;
    } else {
        for (uint32_t i = 1; i < RP_LOG_SLOW; i++)
            at = minute->totals[i] < minute->totals[at] ? i : at;
        if (total <= minute->totals[at])
            return;
    }
    minute->totals[at] = total;
    minute->sequences[at] = record->sequence;
    minute->records[at] = *record;
}

uint64_t rp_request_log_add(struct rp_request_log *log, struct rp_request_record *record) {
    record->sequence = ++log->sequence;
    if (record->engine_id == 0) {
        refused_of(log)[log->refused++ % RP_LOG_REFUSED] = *record;
    } else {
        finished_of(log)[log->finished++ % RP_LOG_FINISHED] = *record;
        keep_slow(log, record);
    }
    return record->sequence;
}

static void note_written(struct rp_request_record *record, uint64_t written_ns, uint64_t stall_ns) {
    record->written_ns = written_ns;
    record->client_left = record->client_left || written_ns == 0;
    record->stall_ns = stall_ns;
}

static void note_written_slow(struct rp_request_log *log, const struct rp_request_record *record) {
    for (uint32_t m = 0; m < RP_LOG_MINUTES; m++) {
        struct rp_log_minute *minute = &log->minutes[m];
        if (minute->minute != minute_of(record))
            continue;
        for (uint32_t i = 0; i < minute->count; i++)
            if (minute->sequences[i] == record->sequence)
                minute->records[i] = *record;
    }
}

void rp_request_log_written(struct rp_request_log *log, uint64_t first, uint32_t count,
                            uint64_t written_ns, uint64_t stall_ns) {
    /* They ended recently: searches backward until records are older. */
    uint64_t kept = RP_MIN(log->finished, (uint64_t)RP_LOG_FINISHED);
    for (uint64_t i = 0; i < kept; i++) {
        struct rp_request_record *record =
            &finished_of(log)[(log->finished - 1 - i) % RP_LOG_FINISHED];
        if (record->sequence < first)
            break;
        if (record->sequence >= first + count)
            continue;
        note_written(record, written_ns, stall_ns);
        note_written_slow(log, record);
        rp_request_log_complete(log, record);
    }
}

void rp_request_log_complete(const struct rp_request_log *log,
                             const struct rp_request_record *record) {
    if (log->ended)
        log->ended(log->ended_ctx, record);
}

uint32_t rp_request_log_collect(const struct rp_request_log *log,
                                const struct rp_request_record **out) {
    uint32_t count = 0;
    uint64_t oldest = UINT64_MAX;
    uint64_t finished = RP_MIN(log->finished, (uint64_t)RP_LOG_FINISHED);
    uint64_t refused = RP_MIN(log->refused, (uint64_t)RP_LOG_REFUSED);
    for (uint64_t i = 0; i < finished; i++) {
        out[count++] = &finished_of(log)[i];
        oldest = RP_MIN(oldest, finished_of(log)[i].sequence);
    }
    for (uint64_t i = 0; i < refused; i++)
        out[count++] = &refused_of(log)[i];
    /* Slow records that are no longer among the most recent ones. */
    for (uint32_t m = 0; m < RP_LOG_MINUTES; m++)
        for (uint32_t i = 0; i < log->minutes[m].count; i++)
            if (log->minutes[m].records[i].sequence < oldest)
                out[count++] = &log->minutes[m].records[i];
    return count;
}

static uint64_t measure(const struct rp_request_record *record, enum rp_log_sort sort) {
    struct rp_record_times times;
    rp_record_times(record, &times);
    switch (sort) {
    case RP_LOG_BY_TTFT:
        return times.ttft;
    case RP_LOG_BY_ITL:
        return record->stats.worst_gap_ns;
    case RP_LOG_BY_QUEUE:
        return times.queue;
    case RP_LOG_BY_END:
        return record->sequence ? record->sequence : UINT64_MAX; /* open ones are the newest */
    case RP_LOG_BY_E2E:
        break;
    }
    return times.total;
}

static bool goes_first(const struct rp_request_record *a, const struct rp_request_record *b,
                       enum rp_log_sort sort) {
    uint64_t left = measure(a, sort), right = measure(b, sort);
    return left != right ? left > right : a->sequence > b->sequence;
}

/* Min-heap: the root is the smallest of the selected records, the next to be replaced. */
static void sift_down(const struct rp_request_record **heap, uint32_t count, uint32_t at,
                      enum rp_log_sort sort) {
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count)
            return;
        if (child + 1 < count && goes_first(heap[child], heap[child + 1], sort))
            child++;
        if (!goes_first(heap[at], heap[child], sort))
            return;
        const struct rp_request_record *moved = heap[at];
        heap[at] = heap[child];
        heap[child] = moved;
        at = child;
    }
}

uint32_t rp_request_log_select(const struct rp_request_record **records, uint32_t count,
                               enum rp_log_sort sort, uint32_t keep) {
    keep = RP_MIN(keep, count);
    if (keep == 0)
        return 0;
    for (uint32_t i = keep / 2; i-- > 0;)
        sift_down(records, keep, i, sort);
    for (uint32_t i = keep; i < count; i++) {
        if (!goes_first(records[i], records[0], sort))
            continue;
        const struct rp_request_record *out = records[0];
        records[0] = records[i];
        records[i] = out;
        sift_down(records, keep, 0, sort);
    }
    for (uint32_t end = keep; end-- > 1;) {
        const struct rp_request_record *smallest = records[0];
        records[0] = records[end];
        records[end] = smallest;
        sift_down(records, end, 0, sort);
    }
    return keep;
}
