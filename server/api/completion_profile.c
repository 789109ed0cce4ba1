#include "server/api/completion_profile.h"

#include "base/memory.h"
#include "engine/engine.h"
#include "server/api/completion_internal.h"
#include "server/observe/profile_work.h"

#define ROWS_MAX 100

struct job {
    struct rp_profile_work work;
    struct rp_completion *completion;
    void (*finish)(struct rp_completion *c);
    uint64_t ids[];
};

static void on_done(struct rp_profile_work *work) {
    struct job *job = work->ctx;
    struct rp_completion *c = job->completion;
    rp_buffer_puts(&c->more, ",\"profile\":");
    rp_buffer_append(&c->more, work->out.data, work->out.len);
    c->more.failed = c->more.failed || work->out.failed;
    rp_buffer_deinit(&work->out);
    void (*finish)(struct rp_completion *) = job->finish;
    rp_free(job);
    c->working = false;
    c->holds++;
    if (c->conn)
        finish(c);
    c->holds--;
    rp_completion_try_free(c);
}

bool rp_completion_profile_start(struct rp_completion *c, void (*finish)(struct rp_completion *c)) {
    if (!c->params.profile || c->profiled || !rp_engine_profile(c->server->serving.engine))
        return false;
    struct job *job = rp_calloc(1, sizeof *job + c->choice_count * sizeof job->ids[0]);
    c->profiled = true;
    if (!job) {
        c->more.failed = true;
        return false;
    }
    for (uint32_t i = 0; i < c->choice_count; i++)
        job->ids[i] = c->choices[i].request.id;
    job->completion = c;
    job->finish = finish;
    job->work = (struct rp_profile_work){.query = {.group = RP_PROFILE_BY_OP,
                                                   .since_ns = c->first_byte_ns,
                                                   .requests = job->ids,
                                                   .request_count = c->choice_count},
                                         .view = {RP_PROFILE_JSON, ROWS_MAX},
                                         .run = rp_profile_work_table,
                                         .done = on_done,
                                         .ctx = job};
    c->working = true;
    rp_profile_work_start(c->server, &job->work);
    return true;
}
