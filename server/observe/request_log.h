/* request_log.h - records of ended requests: the most recent ones, the slowest of each recent
 * minute, and the most recent refused ones.
 *
 * Memory: allocated at init (rp_request_log_bytes); the oldest records are overwritten. Thread:
 * loop. */
#ifndef RP_SERVER_REQUEST_LOG_H
#define RP_SERVER_REQUEST_LOG_H

#include "server/observe/request_record.h"

enum {
    RP_LOG_FINISHED = 4096,
    RP_LOG_REFUSED = 256,
    RP_LOG_SLOW = 64,    /* slowest requests kept per minute */
    RP_LOG_MINUTES = 15, /* most recent minutes in which a request ended */
    RP_LOG_RECORDS = RP_LOG_FINISHED + RP_LOG_REFUSED + RP_LOG_SLOW * RP_LOG_MINUTES
};

struct rp_log_minute {
    uint64_t minute; /* minute number of rp_tick_ns, from 1; 0: unused */
    uint32_t count;
    /* copied from the records, because they are searched often */
    uint64_t totals[RP_LOG_SLOW], sequences[RP_LOG_SLOW];
    struct rp_request_record *records; /* (RP_LOG_SLOW) */
};

struct rp_request_log {
    struct rp_request_record *records; /* (RP_LOG_RECORDS): finished, refused, slow */
    struct rp_log_minute minutes[RP_LOG_MINUTES];
    uint64_t sequence, finished, refused; /* counts since the start */
    /* Gets each record once, when nothing will change it any more; NULL: nobody. */
    void (*ended)(void *ctx, const struct rp_request_record *record);
    void *ended_ctx;
    /* (RP_LOG_RECORDS) for callers of rp_request_log_collect */
    const struct rp_request_record **scratch;
};

bool rp_request_log_init(struct rp_request_log *log);   /* false: no memory */
void rp_request_log_deinit(struct rp_request_log *log); /* legal on a zeroed struct */
size_t rp_request_log_bytes(void);

/* Adds a copy of an ended record and returns its sequence number. */
uint64_t rp_request_log_add(struct rp_request_log *log, struct rp_request_record *record);
/* A record that was added is complete: there is no connection that could write its answer. */
void rp_request_log_complete(const struct rp_request_log *log,
                             const struct rp_request_record *record);
/* The answers of records [first, first + count) were sent to the client, or (written_ns 0) it
 * disconnected before. */
void rp_request_log_written(struct rp_request_log *log, uint64_t first, uint32_t count,
                            uint64_t written_ns, uint64_t stall_ns);

/* Collects all stored records, each once, unordered; returns their count (at most
 * RP_LOG_RECORDS). */
uint32_t rp_request_log_collect(const struct rp_request_log *log,
                                const struct rp_request_record **out);

enum rp_log_sort { RP_LOG_BY_E2E, RP_LOG_BY_TTFT, RP_LOG_BY_ITL, RP_LOG_BY_QUEUE, RP_LOG_BY_END };
/* Moves the `keep` largest by the sort key to the front, largest first; returns how many there
 * are. */
uint32_t rp_request_log_select(const struct rp_request_record **records, uint32_t count,
                               enum rp_log_sort sort, uint32_t keep);

#endif
