#include "server/server_trace.h"

#include "server/api/completion_internal.h"

static uint32_t narrow(uint64_t value) { return (uint32_t)RP_MIN(value, (uint64_t)UINT32_MAX); }

void rp_server_trace_queued(const struct rp_completion *c, const struct rp_choice *choice) {
    struct rp_trace_ring *ring = c->server->ring;
    const struct rp_request *request = &choice->request;
    rp_trace_put(ring, RP_TRACE_RECEIVED, c->first_byte_ns, narrow(c->body_bytes), 0, request->id,
                 0);
    if (c->items)
        rp_trace_put(ring, RP_TRACE_TOKENIZED, c->text_ns, request->prompt_count, 0, request->id,
                     c->text_end_ns - c->text_ns);
    rp_trace_put(ring, RP_TRACE_QUEUED, request->submit_ns, request->prompt_count, 0, request->id,
                 request->max_tokens);
}

void rp_server_trace_written(const struct rp_completion *c, const struct rp_choice *choice,
                             size_t bytes) {
    rp_trace_put(c->server->ring, RP_TRACE_WRITTEN, rp_tick_ns(), narrow(bytes), 0,
                 choice->request.id, choice->tokens ? choice->tokens - 1 : 0);
}

void rp_server_trace_answered(const struct rp_completion *c, int status) {
    uint64_t now = rp_tick_ns();
    for (uint32_t i = 0; i < c->choice_count; i++)
        if (c->choices[i].request.submit_ns)
            rp_trace_put(c->server->ring, RP_TRACE_ANSWERED, now, narrow(c->sent_bytes),
                         (uint16_t)status, c->choices[i].request.id, 0);
}

/* --- The loop's waiting ---------------------------------------------------------------------- */

static void on_prepare(uv_prepare_t *prepare) {
    ((struct rp_server *)prepare->data)->poll_ns = rp_tick_ns();
}

static void on_check(uv_check_t *check) {
    struct rp_server *server = check->data;
    if (server->poll_ns)
        rp_server_span(server, RP_TRACE_POLL, server->poll_ns, 0);
    server->poll_ns = 0;
}

void rp_server_trace_poll_init(struct rp_server *server) {
    RP_ASSERT(uv_prepare_init(&server->loop, &server->prepare) == 0);
    RP_ASSERT(uv_check_init(&server->loop, &server->check) == 0);
    server->prepare.data = server->check.data = server;
    uv_prepare_start(&server->prepare, on_prepare);
    uv_check_start(&server->check, on_check);
    /* They do not keep the loop alive. */
    uv_unref((uv_handle_t *)&server->prepare);
    uv_unref((uv_handle_t *)&server->check);
}

void rp_server_trace_poll_close(struct rp_server *server) {
    uv_close((uv_handle_t *)&server->prepare, NULL);
    uv_close((uv_handle_t *)&server->check, NULL);
}
