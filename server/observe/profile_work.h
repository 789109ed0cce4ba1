/* profile_work.h - building profile tables in the thread pool: a full ring takes tens of
 * milliseconds.
 * Thread: start, done on the loop; run on a worker, which touches the job, and of the engine what
 * any thread may. */
#ifndef RP_SERVER_PROFILE_WORK_H
#define RP_SERVER_PROFILE_WORK_H

#include "base/buffer.h"
#include "engine/observe/profile_report.h"

#include <uv.h>

struct rp_server;

enum rp_profile_format { RP_PROFILE_TEXT, RP_PROFILE_JSON, RP_PROFILE_CSV };
/* Choices of query parameters and fields, as in RP_QUERY_CHOICE. */
extern const char *const rp_profile_group_choices;
extern const char *const rp_profile_sort_choices;
extern const char *const rp_profile_format_choices;
extern const char *const rp_profile_phase_choices;
/* The name of choice `index`, its length in *out_len. */
const char *rp_profile_choice(const char *choices, uint32_t index, size_t *out_len);
const char *rp_profile_content_type(enum rp_profile_format format);

/* How a table is shown. */
struct rp_profile_view {
    enum rp_profile_format format;
    uint32_t row_limit; /* 0: all */
};

/* Zeroed by the caller, and kept until done has been called. */
struct rp_profile_work {
    struct rp_profile_query query;
    struct rp_profile_view view;
    struct rp_buffer out; /* run's; freed by done's owner */
    void (*run)(struct rp_profile_work *work);
    void (*done)(struct rp_profile_work *work);
    void *ctx;
    const struct rp_engine *engine;

    struct rp_server *server; /* private */
    uv_work_t work;
};

/* Where the pool takes nothing, run and done are called at once. */
void rp_profile_work_start(struct rp_server *server, struct rp_profile_work *work);
/* One table of `query` as work->view says, behind what work->out holds; as JSON, an object of its
 * own. What a `run` usually is. */
void rp_profile_work_table(struct rp_profile_work *work);
/* A table that was made with this status, as text or CSV, behind what work->out holds; frees the
 * table. */
void rp_profile_work_write(struct rp_profile_work *work, int status,
                           struct rp_profile_table *table);
/* The same into a JSON document: the members of an object. False: memory is out. */
bool rp_profile_work_members(const struct rp_engine *engine, const struct rp_profile_query *query,
                             uint32_t row_limit, struct rp_json *json);

#endif
