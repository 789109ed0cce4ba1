/* profile_work.h - builds profile tables in the thread pool: a full ring takes tens of
 * milliseconds.
 * Thread: start and done on the loop; run on a worker, which accesses only the job and the engine's
 * thread-safe functions. */
#ifndef RP_SERVER_PROFILE_WORK_H
#define RP_SERVER_PROFILE_WORK_H

#include "base/buffer.h"
#include "engine/observe/profile_report.h"

#include <uv.h>

struct rp_server;

enum rp_profile_format { RP_PROFILE_TEXT, RP_PROFILE_JSON, RP_PROFILE_CSV };
/* Choices for query parameters and fields, in the format of RP_QUERY_CHOICE. */
extern const char *const rp_profile_group_choices;
extern const char *const rp_profile_sort_choices;
extern const char *const rp_profile_format_choices;
extern const char *const rp_profile_phase_choices;
/* The name of choice `index`, its length in *out_len. */
const char *rp_profile_choice(const char *choices, uint32_t index, size_t *out_len);
const char *rp_profile_content_type(enum rp_profile_format format);

/* How a table is printed. */
struct rp_profile_view {
    enum rp_profile_format format;
    uint32_t row_limit; /* 0: all */
};

/* Zeroed by the caller; must stay valid until done has been called. */
struct rp_profile_work {
    struct rp_profile_query query;
    struct rp_profile_view view;
    struct rp_buffer out; /* written by run; freed by the caller after done */
    void (*run)(struct rp_profile_work *work);
    void (*done)(struct rp_profile_work *work);
    void *ctx;
    const struct rp_engine *engine;

    struct rp_server *server; /* private */
    uv_work_t work;
};

/* If the job cannot be queued, run and done are called inline. */
void rp_profile_work_start(struct rp_server *server, struct rp_profile_work *work);
/* Appends one table of `query`, formatted by work->view, to work->out; as JSON, a complete object.
 * The usual `run`. */
void rp_profile_work_table(struct rp_profile_work *work);
/* Appends a table built with this status, as text or CSV, to work->out; frees the table. */
void rp_profile_work_write(struct rp_profile_work *work, int status,
                           struct rp_profile_table *table);
/* The same as members of an open JSON object. False: out of memory. */
bool rp_profile_work_members(const struct rp_engine *engine, const struct rp_profile_query *query,
                             uint32_t row_limit, struct rp_json *json);

#endif
