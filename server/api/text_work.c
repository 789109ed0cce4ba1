#include "server/api/text_work.h"

#include "base/memory.h"
#include "server/server_trace.h"

/* One per concurrently tokenizing thread; unused ones are kept in a free list. */
struct rp_text_scratch {
    struct rp_text_scratch *next;
    struct rp_tokenizer_scratch *scratch;
};

static struct rp_text_scratch *take_scratch(struct rp_server *server) {
    uv_mutex_lock(&server->scratch_lock);
    struct rp_text_scratch *scratch = server->scratches;
    if (scratch)
        server->scratches = scratch->next;
    uv_mutex_unlock(&server->scratch_lock);
    if (scratch)
        return scratch;
    scratch = rp_calloc(1, sizeof *scratch);
    if (scratch)
        scratch->scratch = rp_tokenizer_scratch_create(server->serving.tokenizer);
    if (scratch && !scratch->scratch) {
        rp_free(scratch);
        return NULL;
    }
    return scratch;
}

static void give_scratch(struct rp_server *server, struct rp_text_scratch *scratch) {
    uv_mutex_lock(&server->scratch_lock);
    scratch->next = server->scratches;
    server->scratches = scratch;
    uv_mutex_unlock(&server->scratch_lock);
}

static void encode_item(struct rp_text_job *job, struct rp_text_item *item,
                        struct rp_tokenizer_scratch *scratch) {
    struct rp_text_span span = {item->text, item->len, true};
    item->status = RP_OK;
    if (item->make) {
        item->status = item->make(item);
    } else if (item->text) {
        item->spans = &span;
        item->span_count = 1;
    } else {
        return;
    }
    if (item->status == RP_OK)
        item->status =
            rp_tokenizer_encode(job->server->serving.tokenizer, item->spans, item->span_count,
                                job->flags, job->limit, scratch, &item->ids);
    item->spans = NULL;
}

static void encode(struct rp_text_job *job) {
    if (job->prepare)
        job->prepare(job->ctx);
    struct rp_text_scratch *scratch = take_scratch(job->server);
    for (uint32_t i = 0; i < job->item_count; i++) {
        if (scratch)
            encode_item(job, &job->items[i], scratch->scratch);
        else
            job->items[i].status = RP_STATUS_NO_MEMORY;
    }
    if (scratch)
        give_scratch(job->server, scratch);
}

int rp_text_encode_now(struct rp_server *server, const char *text, size_t len,
                       struct rp_token_ids *out) {
    struct rp_text_scratch *scratch = take_scratch(server);
    struct rp_text_span span = {text, len, false};
    if (!scratch)
        return RP_STATUS_NO_MEMORY;
    int status =
        rp_tokenizer_encode(server->serving.tokenizer, &span, 1, 0, 0, scratch->scratch, out);
    give_scratch(server, scratch);
    return status;
}

static void on_work(uv_work_t *work) {
    struct rp_text_job *job = work->data;
    uint64_t begin_ns = rp_tick_ns();
    size_t bytes = 0;
    for (uint32_t i = 0; i < job->item_count; i++)
        bytes += job->items[i].len;
    encode(job);
    rp_server_worker_span(job->server, RP_TRACE_JOB_TEXT, begin_ns, bytes);
}

static void on_done(uv_work_t *work, int status) {
    struct rp_text_job *job = work->data;
    struct rp_server *server = job->server;
    (void)status; /* never cancelled */
    server->work_count--;
    job->done(job);
    rp_server_check_drained(server);
}

void rp_text_work_start(struct rp_server *server, struct rp_text_job *job) {
    size_t bytes = 0;
    bool on_worker = job->prepare != NULL;
    for (uint32_t i = 0; i < job->item_count; i++) {
        bytes += job->items[i].len;
        on_worker |= job->items[i].make != NULL;
    }
    job->server = server;
    job->work.data = job;
    if ((on_worker || bytes > RP_TEXT_INLINE_BYTES) &&
        uv_queue_work(&server->loop, &job->work, on_work, on_done) == 0) {
        server->work_count++;
        return;
    }
    encode(job);
    job->done(job);
}

void rp_text_work_deinit(struct rp_server *server) {
    while (server->scratches) {
        struct rp_text_scratch *scratch = server->scratches;
        server->scratches = scratch->next;
        rp_tokenizer_scratch_destroy(scratch->scratch);
        rp_free(scratch);
    }
}
