/* completion.c - handling of engine events for a completion, and its end. */
#include "base/memory.h"
#include "engine/engine.h"
#include "server/api/completion_internal.h"
#include "server/api/server_keys.h"
#include "server/server_trace.h"

#include <stdio.h>
#include <string.h>

void rp_completion_try_free(struct rp_completion *c) {
    struct rp_server *server = c->server;
    if (c->conn || c->open_count || c->working || c->holds)
        return;
    rp_completion_log(c);
    if (c->prev)
        c->prev->next = c->next;
    else
        server->completions = c->next;
    if (c->next)
        c->next->prev = c->prev;
    server->completion_count--;
    rp_server_key_give(server, c->key, c->choice_count, c->key_tokens);
    rp_gauge_set(&server->metrics.completions, server->completion_count);
    for (uint32_t i = 0; i < c->choice_count; i++) {
        rp_grammar_row_close(c->choices[i].grammar);
        rp_splitter_destroy(c->choices[i].splitter);
        rp_answer_events_deinit(&c->choices[i].events);
        rp_token_log_deinit(&c->choices[i].log);
        rp_token_log_deinit(&c->choices[i].prompt_log);
        rp_token_ids_deinit(&c->choices[i].ids);
    }
    for (uint32_t i = 0; c->items && i < c->prompt_count; i++)
        rp_token_ids_deinit(&c->items[i].ids);
    rp_free(c->items);
    rp_grammar_entry_release(server->grammars, c->grammar);
    json_decref(c->root);
    rp_params_deinit(&c->params);
    rp_answer_close(&c->answer);
    rp_buffer_deinit(&c->more);
    rp_buffer_deinit(&c->detok_text);
    rp_buffer_deinit(&c->passed_text);
    rp_buffer_deinit(&c->logprobs);
    rp_buffer_deinit(&c->prompt_logprobs);
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
    c->left = true;
    c->stall_ns = rp_conn_stall_ns(c->conn);
    c->conn = NULL;
    cancel_requests(c);
    rp_completion_try_free(c);
}

void rp_completion_fail(struct rp_completion *c, const struct rp_http_error *error) {
    cancel_requests(c);
    if (!c->conn)
        return;
    rp_completion_answered(c, c->streaming ? c->status : (uint16_t)error->status, error->code);
    if (!c->streaming) {
        rp_server_trace_answered(c, error->status);
        rp_conn_reply_error(rp_completion_let_go(c), error);
        return;
    }
    rp_buffer_clear(&c->answer.out);
    c->answer.api->error(&c->answer, error);
    if (rp_completion_send_out(c)) {
        rp_server_trace_answered(c, error->status);
        rp_conn_stream_end(rp_completion_let_go(c));
    }
}

void rp_completion_fail_text(struct rp_completion *c, int status, const char *code,
                             const char *text) {
    struct rp_http_error error;
    rp_http_error_set(&error, status, NULL, code, "%s", text);
    rp_completion_fail(c, &error);
}

/* --- Events ---------------------------------------------------------------------------------- */

static void observe_token(struct rp_completion *c, struct rp_choice *choice, uint64_t time_ns) {
    struct rp_server_metrics *metrics = &c->server->metrics;
    uint64_t now = choice->tokens == 1 ? rp_tick_ns() : time_ns;
    if (choice->tokens == 1)
        rp_server_metrics_token(metrics, true, now, now - c->first_byte_ns, &choice->record.trace);
    else if (time_ns >= choice->last_token_ns)
        rp_server_metrics_token(metrics, false, now, time_ns - choice->last_token_ns,
                                &choice->record.trace);
    choice->last_token_ns = time_ns;
}

/* One of the model's own end tokens: a regular end without a stop_reason (as in vLLM). */
static bool is_model_end(const struct rp_serving *serving, int32_t token) {
    for (uint32_t i = 0; i < serving->stop_id_count; i++)
        if (serving->stop_ids[i] == token)
            return true;
    return false;
}

/* Ended by one of the client's stop ids, or by the model's own end token. */
static void note_stop(struct rp_completion *c, struct rp_choice *choice, int32_t token) {
    if (!is_model_end(&c->server->serving, token))
        choice->stop_token = token;
}

/* As OpenAI's: an answer that was to call one named tool has "stop". */
static const char *stop_reason(const struct rp_completion *c, const struct rp_choice *choice) {
    if (!choice->calls || c->params.tools.named)
        return "stop";
    return c->params.tools.legacy ? "function_call" : "tool_calls";
}

/* The answer of a choice is complete. False: the client is gone. */
static bool end_choice(struct rp_completion *c, struct rp_choice *choice, bool cut) {
    rp_choice_end_text(c, choice);
    choice->finish_reason = cut && choice->match.found < 0 ? "length" : stop_reason(c, choice);
    if (choice->match.found >= 0)
        choice->stop_token = -1;
    return !c->params.stream || rp_completion_send_chunk(c, choice);
}

static void fail_dead_end(struct rp_completion *c) {
    rp_completion_fail_text(c, 500, "grammar_dead_end",
                            "no token that the request allows can continue the answer: check "
                            "allowed_token_ids and bad_words against the grammar");
}

/* The mask thread has cancelled the request: its answer is complete, or cannot be continued. */
static void end_by_grammar(struct rp_completion *c, struct rp_choice *choice,
                           enum rp_grammar_row_status status) {
    if (status == RP_GRAMMAR_ROW_DONE)
        end_choice(c, choice, false);
    else if (status == RP_GRAMMAR_ROW_DEAD_END)
        fail_dead_end(c);
    else if (status == RP_GRAMMAR_ROW_TOO_COMPLEX)
        rp_completion_fail_text(c, 500, "grammar_too_complex",
                                "the grammar needs too much work or memory for the next token");
    else
        rp_completion_fail_text(c, 503, "overloaded", "out of memory");
}

static void on_token(struct rp_completion *c, struct rp_choice *choice,
                     const struct rp_event *event) {
    bool ended = false;
    if (choice->finish_reason || !c->conn)
        return; /* sampled before the engine processed the cancellation */
    if (c->params.max_tokens == 0)
        /* max_tokens 0: only the prompt is scored, but the engine produces at least one token */
        return;
    choice->tokens++;
    choice->logprob_sum += (double)event->logprob;
    rp_record_token(&choice->record, event);
    observe_token(c, choice, event->time_ns);
    if (c->params.return_token_ids && !rp_token_ids_add(&choice->ids, event->token)) {
        rp_completion_fail_text(c, 503, "overloaded", "out of memory");
        return;
    }
    /* The last token's text is sent with the finish reason: exactly one chunk per token. */
    bool last = event->is_stop || choice->tokens >= choice->request.max_tokens;
    if (event->is_stop)
        note_stop(c, choice, event->token);
    if (event->is_stop && choice->splitter && !c->params.include_stop)
        rp_choice_split_stop(c, choice, event->token);
    if (event->is_stop && !c->params.include_stop)
        rp_choice_log_stop(c, choice, event);
    if (!event->is_stop || c->params.include_stop) {
        if (rp_choice_take_token(c, choice, event, &ended) != RP_OK) {
            rp_completion_fail_text(c, 503, "overloaded", "out of memory");
            return;
        }
        if (ended) {
            if (choice->splitter)
                rp_choice_end_text(c, choice);
            choice->finish_reason = stop_reason(c, choice);
            atomic_store_explicit(&choice->request.cancelled, true, memory_order_relaxed);
            rp_engine_notify(c->server->serving.engine);
            last = false;
        }
    }
    if (choice->grammar && !last && !ended && !rp_grammar_row_take(choice->grammar, event->token)) {
        fail_dead_end(c);
        return;
    }
    if (c->params.stream && !last)
        rp_completion_send_chunk(c, choice);
}

static void count_closed(struct rp_completion *c, struct rp_choice *choice, uint8_t reason) {
    static const enum rp_outcome outcomes[] = {
        [RP_FINISH_NONE] = RP_OUTCOME_ERROR,           [RP_FINISH_STOP] = RP_OUTCOME_STOP,
        [RP_FINISH_LENGTH] = RP_OUTCOME_LENGTH,        [RP_FINISH_CANCELLED] = RP_OUTCOME_CANCELLED,
        [RP_FINISH_NUMERIC] = RP_OUTCOME_NUMERIC,      [RP_FINISH_ERROR] = RP_OUTCOME_ERROR,
        [RP_FINISH_MASK_DEADLINE] = RP_OUTCOME_ERROR,  [RP_FINISH_TIMEOUT] = RP_OUTCOME_TIMEOUT,
        [RP_FINISH_QUEUE_TIMEOUT] = RP_OUTCOME_TIMEOUT};
    RP_ASSERT_CMP(reason, <, RP_ARRAY_COUNT(outcomes));
    rp_server_metrics_closed(
        &c->server->metrics,
        &(struct rp_closed_request){
            .request = &choice->request,
            .trace = &choice->record.trace,
            .first_byte_ns = c->first_byte_ns,
            .last_token_ns = choice->last_token_ns,
            .tokens = choice->tokens,
            .choices = choice->request.choice == 0 ? (uint32_t)c->params.n : 0,
            .outcome = choice->finish_reason && strcmp(choice->finish_reason, "length") != 0
                           ? RP_OUTCOME_STOP
                           : outcomes[reason]});
}

static void on_closed(struct rp_completion *c, struct rp_choice *choice, uint8_t reason) {
    RP_ASSERT(choice->submitted);
    choice->submitted = false;
    c->open_count--;
    rp_record_closed(&choice->record, &choice->request, reason);
    enum rp_grammar_row_status grammar =
        choice->grammar ? rp_grammar_row_status(choice->grammar) : RP_GRAMMAR_ROW_OK;
    if (c->conn && !choice->finish_reason && grammar != RP_GRAMMAR_ROW_OK &&
        reason != RP_FINISH_STOP && reason != RP_FINISH_LENGTH) {
        end_by_grammar(c, choice, grammar);
    } else if (c->conn && !choice->finish_reason) {
        if (reason == RP_FINISH_STOP || reason == RP_FINISH_LENGTH)
            end_choice(c, choice, reason == RP_FINISH_LENGTH);
        else if (reason == RP_FINISH_NUMERIC)
            rp_completion_fail_text(
                c, 500, "numerical_error",
                "the model computed a value that is not a number for this request");
        else if (reason == RP_FINISH_MASK_DEADLINE)
            rp_completion_fail_text(c, 500, "mask_deadline",
                                    "the mask of the next token was not ready in time");
        else if (reason == RP_FINISH_TIMEOUT)
            rp_completion_fail_text(c, 504, "timeout", "the request has reached its time limit");
        else if (reason == RP_FINISH_QUEUE_TIMEOUT)
            rp_completion_fail_text(c, 503, "queue_timeout",
                                    "the request has waited too long, try again later");
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
        rp_completion_finish(c);
}

void rp_completion_event(struct rp_server *server, const struct rp_event *event) {
    struct rp_choice *choice = event->request->owner;
    struct rp_completion *c = choice->completion;
    (void)server;
    c->holds++;
    if (event->kind == RP_EVENT_TOKEN)
        on_token(c, choice, event);
    else if (event->kind == RP_EVENT_PROMPT)
        rp_choice_prompt_token(c, choice, event);
    else
        on_closed(c, choice, event->finish_reason);
    c->holds--;
    rp_completion_try_free(c);
}

void rp_completion_tick(struct rp_server *server) {
    struct rp_completion *next;
    for (struct rp_completion *c = server->completions; c; c = next) {
        next = c->next;
        c->holds++;
        rp_completion_keep_alive(c);
        c->holds--;
        rp_completion_try_free(c);
    }
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
