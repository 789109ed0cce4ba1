/* completion.c - a completion's second half: events to text to the client, and its end. */
#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "server/completion_internal.h"
#include "server/sse.h"

#include <stdio.h>
#include <string.h>

void rp_completion_try_free(struct rp_completion *c) {
    struct rp_server *server = c->server;
    if (c->conn || c->open_count || c->working || c->holds)
        return;
    if (c->prev)
        c->prev->next = c->next;
    else
        server->completions = c->next;
    if (c->next)
        c->next->prev = c->prev;
    server->completion_count--;
    rp_gauge_set(&server->metrics.completions, server->completion_count);
    for (uint32_t i = 0; i < c->choice_count; i++) {
        rp_buffer_deinit(&c->choices[i].text);
        rp_free(c->choices[i].ids);
        if (c->items)
            rp_token_ids_deinit(&c->items[i].ids);
    }
    rp_free(c->items);
    json_decref(c->root);
    rp_params_deinit(&c->params);
    rp_buffer_deinit(&c->head);
    rp_buffer_deinit(&c->out);
    rp_buffer_deinit(&c->detok_text);
    rp_free(c);
    rp_server_check_drained(server);
}

static void cancel_requests(struct rp_completion *c) {
    bool any = false;
    for (uint32_t i = 0; i < c->choice_count; i++) {
        if (!c->choices[i].submitted)
            continue;
        atomic_store_explicit(&c->choices[i].request.cancelled, true, memory_order_relaxed);
        any = true;
    }
    if (any)
        rp_engine_notify(c->server->serving.engine);
}

void rp_completion_gone(void *ctx) {
    struct rp_completion *c = ctx;
    c->conn = NULL;
    cancel_requests(c);
    rp_completion_try_free(c);
}

/* The connection goes back to the client's next request. */
static struct rp_conn *let_go(struct rp_completion *c) {
    struct rp_conn *conn = c->conn;
    conn->gone = NULL;
    c->conn = NULL;
    return conn;
}

/* Sends c->out as one chunk. False: the client is gone and c may be freed. */
static bool send_out(struct rp_completion *c) {
    bool sent = c->conn && !c->out.failed && rp_conn_stream_write(c->conn, c->out.data, c->out.len);
    if (sent)
        rp_buffer_clear(&c->out);
    else if (c->conn)
        rp_conn_close(c->conn);
    return sent;
}

void rp_completion_fail(struct rp_completion *c, const struct rp_http_error *error) {
    cancel_requests(c);
    if (!c->conn)
        return;
    if (!c->streaming) {
        rp_conn_reply_error(let_go(c), error);
        return;
    }
    rp_buffer_clear(&c->out);
    rp_sse_error(&c->out, error);
    if (send_out(c))
        rp_conn_stream_end(let_go(c));
}

void rp_completion_fail_text(struct rp_completion *c, int status, const char *code,
                             const char *text) {
    struct rp_http_error error;
    rp_http_error_set(&error, status, NULL, code, "%s", text);
    rp_completion_fail(c, &error);
}

/* --- Answering --------------------------------------------------------------------------------- */

static void sum_tokens(const struct rp_completion *c, struct rp_sse_tokens *tokens) {
    memset(tokens, 0, sizeof *tokens);
    for (uint32_t i = 0; i < c->choice_count; i++) {
        tokens->prompt += c->choices[i].request.prompt_count;
        tokens->completion += c->choices[i].tokens;
        tokens->cached += c->choices[i].request.cached_tokens;
    }
}

static struct rp_sse_choice describe(const struct rp_completion *c,
                                     const struct rp_choice *choice) {
    struct rp_sse_choice out = {.index = (uint32_t)(choice - c->choices),
                                .text = choice->text.data,
                                .text_len = choice->text.len,
                                .finish_reason = choice->finish_reason,
                                .stop_token = choice->stop_token};
    if (choice->match.found >= 0) {
        out.stop_string = c->params.stop.strings[choice->match.found].bytes;
        out.stop_string_len = c->params.stop.strings[choice->match.found].len;
    }
    return out;
}

/* Sends what the choice has not sent yet, as one chunk. False: the client is gone. */
static bool send_chunk(struct rp_completion *c, struct rp_choice *choice) {
    struct rp_sse_choice described = describe(c, choice);
    struct rp_sse_tokens tokens = {.prompt = choice->request.prompt_count,
                                   .completion = choice->tokens};
    enum rp_sse_usage usage = c->params.continuous_usage ? RP_SSE_USAGE_RUNNING
                              : c->params.include_usage  ? RP_SSE_USAGE_NULL
                                                         : RP_SSE_USAGE_NONE;
    if (!c->streaming) {
        c->streaming = true;
        if (!rp_conn_stream_begin(c->conn))
            return false;
    }
    rp_sse_chunk(&c->out, &c->head, &described, usage, &tokens);
    rp_buffer_clear(&choice->text);
    return send_out(c);
}

/* All requests are closed and none failed. */
static void finish(struct rp_completion *c) {
    struct rp_sse_tokens tokens;
    sum_tokens(c, &tokens);
    if (c->params.stream) {
        if (c->params.include_usage)
            rp_sse_chunk(&c->out, &c->head, NULL, RP_SSE_USAGE_FINAL, &tokens);
        if (c->params.include_usage && !send_out(c))
            return;
        rp_buffer_puts(&c->out, "data: [DONE]\n\n");
        if (send_out(c))
            rp_conn_stream_end(let_go(c));
        return;
    }
    struct rp_sse_choice *described = rp_calloc(c->choice_count, sizeof *described);
    for (uint32_t i = 0; described && i < c->choice_count; i++)
        described[i] = describe(c, &c->choices[i]);
    if (described)
        rp_sse_whole(&c->out, &c->head, described, c->choice_count, &tokens);
    rp_free(described);
    if (!described || c->out.failed)
        rp_completion_fail_text(c, 503, "overloaded", "out of memory");
    else
        rp_conn_reply(let_go(c), 200, "application/json", NULL, c->out.data, c->out.len);
}

/* What the detokenizer made of a token goes through the stop strings. True: the text has ended. */
static bool take_text(struct rp_completion *c, struct rp_choice *choice) {
    bool ended = false;
    if (choice->tokens <= c->params.min_tokens)
        rp_buffer_append(&choice->text, c->detok_text.data, c->detok_text.len);
    else
        ended = rp_stop_match_push(&choice->match, c->detok_text.data, c->detok_text.len,
                                   &choice->text);
    rp_buffer_clear(&c->detok_text);
    if (!ended)
        return false;
    choice->finish_reason = "stop";
    if (c->params.include_stop)
        rp_buffer_append(&choice->text, c->params.stop.strings[choice->match.found].bytes,
                         c->params.stop.strings[choice->match.found].len);
    return true;
}

static void observe_token(struct rp_completion *c, struct rp_choice *choice, uint64_t time_ns) {
    struct rp_server_metrics *metrics = &c->server->metrics;
    if (choice->tokens == 1)
        rp_histogram_observe(&metrics->ttft, (double)(rp_clock_ns() - c->first_byte_ns) * 1e-9);
    else if (time_ns >= choice->last_token_ns)
        rp_histogram_observe(&metrics->inter_token,
                             (double)(time_ns - choice->last_token_ns) * 1e-9);
    choice->last_token_ns = time_ns;
}

/* One of the model's own end tokens: an ordinary end, which has no stop_reason (as vLLM has it). */
static bool is_model_end(const struct rp_serving *serving, int32_t token) {
    for (uint32_t i = 0; i < serving->stop_id_count; i++)
        if (serving->stop_ids[i] == token)
            return true;
    return false;
}

static void on_token(struct rp_completion *c, struct rp_choice *choice,
                     const struct rp_event *event) {
    if (choice->finish_reason || !c->conn)
        return; /* sampled before the engine saw that it was cancelled */
    choice->tokens++;
    observe_token(c, choice, event->time_ns);
    /* The last token's text goes out with the finish reason: one chunk per token, and no more. */
    bool last = event->is_stop || choice->tokens >= choice->request.max_tokens;
    if (event->is_stop) {
        if (!is_model_end(&c->server->serving, event->token))
            choice->stop_token = event->token;
    } else {
        int status = rp_detokenizer_push(&choice->detok, event->token, &c->detok_text);
        bool ended = status == RP_OK && take_text(c, choice);
        if (status != RP_OK || choice->text.failed) {
            rp_completion_fail_text(c, 503, "overloaded", "out of memory");
            return;
        }
        if (ended) {
            atomic_store_explicit(&choice->request.cancelled, true, memory_order_relaxed);
            rp_engine_notify(c->server->serving.engine);
            last = false;
        }
    }
    if (c->params.stream && !last)
        send_chunk(c, choice);
}

/* The answer of a choice ended by itself. False: the client is gone. */
static bool end_choice(struct rp_completion *c, struct rp_choice *choice, const char *reason) {
    if (rp_detokenizer_finish(&choice->detok, &c->detok_text) != RP_OK || !take_text(c, choice)) {
        rp_stop_match_finish(&choice->match, &choice->text);
        choice->finish_reason = reason;
    }
    if (choice->match.found >= 0)
        choice->stop_token = -1;
    return !c->params.stream || send_chunk(c, choice);
}

static void count_closed(struct rp_completion *c, struct rp_choice *choice, uint8_t reason) {
    static const enum rp_outcome outcomes[] = {
        [RP_FINISH_NONE] = RP_OUTCOME_ERROR,      [RP_FINISH_STOP] = RP_OUTCOME_STOP,
        [RP_FINISH_LENGTH] = RP_OUTCOME_LENGTH,   [RP_FINISH_CANCELLED] = RP_OUTCOME_CANCELLED,
        [RP_FINISH_NUMERIC] = RP_OUTCOME_NUMERIC, [RP_FINISH_ERROR] = RP_OUTCOME_ERROR};
    struct rp_server_metrics *metrics = &c->server->metrics;
    const struct rp_request *request = &choice->request;
    RP_ASSERT_CMP(reason, <, RP_ARRAY_COUNT(outcomes));
    enum rp_outcome outcome = choice->match.found >= 0 ? RP_OUTCOME_STOP : outcomes[reason];
    rp_counter_add(&metrics->finished[outcome], 1);
    rp_histogram_observe(&metrics->prompt_tokens, request->prompt_count);
    rp_histogram_observe(&metrics->generation_tokens, choice->tokens);
    if (request->scheduled_ns >= request->submit_ns && request->scheduled_ns)
        rp_histogram_observe(&metrics->queue,
                             (double)(request->scheduled_ns - request->submit_ns) * 1e-9);
    if (outcome <= RP_OUTCOME_LENGTH)
        rp_histogram_observe(&metrics->e2e, (double)(rp_clock_ns() - c->first_byte_ns) * 1e-9);
}

static void on_closed(struct rp_completion *c, struct rp_choice *choice, uint8_t reason) {
    RP_ASSERT(choice->submitted);
    choice->submitted = false;
    c->open_count--;
    if (c->conn && !choice->finish_reason) {
        if (reason == RP_FINISH_STOP || reason == RP_FINISH_LENGTH)
            end_choice(c, choice, reason == RP_FINISH_STOP ? "stop" : "length");
        else if (reason == RP_FINISH_NUMERIC)
            rp_completion_fail_text(
                c, 500, "numerical_error",
                "the model computed a value that is not a number for this request");
        else if (!rp_engine_is_healthy(c->server->serving.engine)) {
            char why[512];
            snprintf(why, sizeof why, "the device has failed: %.400s",
                     rp_engine_failure(c->server->serving.engine));
            rp_completion_fail_text(c, 500, "engine_failed", why);
        } else
            rp_completion_fail_text(c, 503, "shutting_down", "the server is shutting down");
    }
    count_closed(c, choice, reason);
    if (c->conn && c->open_count == 0)
        finish(c);
}

void rp_completion_event(struct rp_server *server, const struct rp_event *event) {
    struct rp_choice *choice = event->request->owner;
    struct rp_completion *c = choice->completion;
    (void)server;
    c->holds++;
    if (event->kind == RP_EVENT_TOKEN)
        on_token(c, choice, event);
    else
        on_closed(c, choice, event->finish_reason);
    c->holds--;
    rp_completion_try_free(c);
}

void rp_completion_fail_all(struct rp_server *server, const struct rp_http_error *error) {
    struct rp_completion *next;
    for (struct rp_completion *c = server->completions; c; c = next) {
        next = c->next;
        c->holds++;
        rp_completion_fail(c, error);
        c->holds--;
        rp_completion_try_free(c);
    }
}
