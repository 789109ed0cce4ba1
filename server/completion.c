#include "server/completion.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "model/detokenizer.h"
#include "server/sse.h"
#include "server/text_work.h"

#include <string.h>
#include <time.h>

/* One prompt and its answer. */
struct rp_choice {
    struct rp_request request;
    struct rp_completion *completion;
    struct rp_detokenizer detok;
    struct rp_stop_match match;
    struct rp_buffer text; /* not sent yet; without streaming, all of it */
    int32_t *ids;          /* the prompt, when it came as ids (else in the text item) */
    uint64_t last_token_ns;
    uint32_t tokens; /* of the answer */
    int32_t stop_token;
    const char *finish_reason; /* set: the answer has ended */
    bool submitted;            /* and not closed yet */
};

struct rp_completion {
    struct rp_server *server;
    struct rp_completion *prev, *next;
    struct rp_conn *conn; /* NULL: answered, or the client has left */
    json_t *root;         /* holds the texts until they are tokenised */
    struct rp_completion_params params;
    struct rp_text_job job;
    struct rp_text_item *items;
    struct rp_buffer head, out, detok_text;
    uint64_t first_byte_ns, salt;
    uint32_t choice_count, open_count;
    uint32_t holds; /* of functions that go on using it after a call that may lose the client */
    bool working;   /* the job is in the pool */
    bool streaming;
    struct rp_choice choices[];
};

static void try_free(struct rp_completion *c) {
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

/* The client has left. */
static void on_gone(void *ctx) {
    struct rp_completion *c = ctx;
    c->conn = NULL;
    cancel_requests(c);
    try_free(c);
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

/* Answers with an error, or ends the stream with one; the caller frees. */
static void fail(struct rp_completion *c, const struct rp_http_error *error) {
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

static void fail_text(struct rp_completion *c, int status, const char *code, const char *text) {
    struct rp_http_error error;
    rp_http_error_set(&error, status, NULL, code, "%s", text);
    fail(c, &error);
}

/* --- Submitting -------------------------------------------------------------------------------- */

static uint64_t draw_seed(struct rp_server *server) {
    uint64_t seed;
    if (server->serving.seed == 0 && rp_random_fill(&seed, sizeof seed))
        return seed;
    uint64_t counter = ++server->seed_counter;
    return rp_hash64(&counter, sizeof counter, server->serving.seed);
}

static bool check_length(struct rp_completion *c, uint64_t count, struct rp_http_error *error) {
    const struct rp_engine *engine = c->server->serving.engine;
    uint32_t longest = rp_engine_max_model_len(engine);
    uint64_t max_tokens = (uint64_t)c->params.max_tokens;
    if (count == 0)
        return rp_http_error_set(error, 400, "prompt", "invalid_value", "the prompt has no tokens");
    if (count + max_tokens > longest)
        return rp_http_error_set(error, 400, count >= longest ? "prompt" : "max_tokens",
                                 "context_length_exceeded",
                                 "this model's context is %u tokens, the request asks for %llu "
                                 "(%llu in the prompt, %llu "
                                 "for the completion): shorten the prompt or lower max_tokens",
                                 longest, (unsigned long long)(count + max_tokens),
                                 (unsigned long long)count, (unsigned long long)max_tokens);
    if (!rp_engine_fits(engine, (uint32_t)count, (uint32_t)max_tokens))
        return rp_http_error_set(
            error, 400, "max_tokens", "context_length_exceeded",
            "a sequence of %llu tokens does not fit this server's KV cache: shorten the prompt or "
            "lower max_tokens",
            (unsigned long long)(count + max_tokens));
    return true;
}

static bool check_item(struct rp_completion *c, const struct rp_text_item *item,
                       struct rp_http_error *error) {
    const struct rp_serving *serving = &c->server->serving;
    if (item->status == RP_STATUS_RANGE)
        return rp_http_error_set(error, 400, "prompt", "context_length_exceeded",
                                 "this model's context is %u tokens, the prompt alone has more",
                                 rp_engine_max_model_len(serving->engine));
    if (item->status == RP_STATUS_NO_MEMORY)
        return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    if (item->status != RP_OK)
        return rp_http_error_set(error, 400, "prompt", "invalid_value",
                                 "the prompt cannot be tokenised");
    for (size_t i = 0; i < item->ids.count; i++)
        if (item->ids.ids[i] < 0 || (uint32_t)item->ids.ids[i] >= serving->vocab_size)
            return rp_http_error_set(error, 400, "prompt", "invalid_value",
                                     "the prompt has a token that the model does not know");
    return true;
}

static void fill_request(struct rp_completion *c, uint32_t index) {
    struct rp_choice *choice = &c->choices[index];
    const struct rp_completion_params *params = &c->params;
    struct rp_request *request = &choice->request;
    if (c->items) {
        request->prompt = c->items[index].ids.ids;
        request->prompt_count = (uint32_t)c->items[index].ids.count;
    }
    request->id = ++c->server->next_id;
    request->max_tokens = (uint32_t)params->max_tokens;
    request->min_tokens = (uint32_t)params->min_tokens;
    request->sampling.temperature = (float)params->temperature;
    request->sampling.top_p = (float)params->top_p;
    request->sampling.min_p = (float)params->min_p;
    request->sampling.top_k = (uint32_t)params->top_k;
    /* A top_p so small that f32 makes it 0 keeps the best token only. */
    if (request->sampling.top_p <= 0)
        request->sampling.top_p = 1e-30f;
    request->sampling.seed = params->has_seed ? (uint64_t)params->seed : draw_seed(c->server);
    request->stop_count = params->stop_id_count;
    memcpy(request->stop_ids, params->stop_ids, params->stop_id_count * sizeof(int32_t));
    request->cache_salt = c->salt;
    request->owner = choice;
    request->submit_ns = rp_clock_ns();
    rp_detokenizer_init(&choice->detok, c->server->serving.tokenizer, params->skip_special_tokens);
    rp_stop_match_init(&choice->match, &params->stop);
}

static void submit(struct rp_completion *c) {
    struct rp_server *server = c->server;
    int status = RP_OK;
    for (uint32_t i = 0; i < c->choice_count && status == RP_OK; i++) {
        fill_request(c, i);
        status = rp_engine_submit(server->serving.engine, &c->choices[i].request);
        if (status == RP_OK) {
            c->choices[i].submitted = true;
            c->open_count++;
        }
    }
    if (status == RP_STATUS_FULL) {
        rp_counter_add(&server->metrics.rejected[RP_REJECTED_QUEUE_FULL], 1);
        fail_text(c, 429, "queue_full", "too many requests are waiting, try again later");
    } else if (status != RP_OK) {
        rp_counter_add(&server->metrics.rejected[RP_REJECTED_UNHEALTHY], 1);
        fail_text(c, 503, "engine_failed", "the device has failed");
    }
}

/* The prompts are ids now. */
static void start_requests(struct rp_completion *c) {
    struct rp_http_error error = {.status = 0};
    for (uint32_t i = 0; i < c->choice_count && !error.status; i++) {
        if (c->items && !check_item(c, &c->items[i], &error))
            break;
        check_length(c, c->items ? c->items[i].ids.count : c->choices[i].request.prompt_count,
                     &error);
    }
    json_decref(c->root);
    c->root = NULL;
    c->params.prompt = NULL;
    c->params.cache_salt = NULL;
    if (!c->conn) /* left meanwhile */
        return;
    if (error.status)
        fail(c, &error);
    else if (c->server->phase >= RP_SERVER_STOPPING)
        fail_text(c, 503, "shutting_down", "the server is shutting down");
    else
        submit(c);
}

static void on_tokenised(struct rp_text_job *job) {
    struct rp_completion *c = job->ctx;
    c->working = false;
    c->holds++;
    start_requests(c);
    c->holds--;
    try_free(c);
}

/* --- Prompts ----------------------------------------------------------------------------------- */

static bool read_ids(struct rp_completion *c, uint32_t index, json_t *list,
                     struct rp_http_error *error) {
    struct rp_choice *choice = &c->choices[index];
    size_t i, count = json_array_size(list);
    json_t *item;
    if (count > rp_engine_max_model_len(c->server->serving.engine))
        return check_length(c, count, error);
    choice->ids = rp_calloc(count, sizeof *choice->ids);
    if (!choice->ids)
        return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    json_array_foreach(list, i,
                       item) if (!rp_params_token_id(item, c->server->serving.vocab_size, "prompt",
                                                     &choice->ids[i], error)) return false;
    choice->request.prompt = choice->ids;
    choice->request.prompt_count = (uint32_t)count;
    return true;
}

/* A string, a list of ids, or a list of either: how many prompts that is, 0 with *error. */
static uint32_t count_prompts(json_t *prompt, struct rp_http_error *error) {
    json_t *first = json_array_get(prompt, 0);
    if (json_is_string(prompt) || json_is_integer(first))
        return 1;
    if (!json_is_string(first) && !json_is_array(first)) {
        rp_http_error_set(error, 400, "prompt", "invalid_type",
                          "prompt must be a string, a list of strings, a list of token ids or a "
                          "list of such lists, and not empty");
        return 0;
    }
    if (json_array_size(prompt) > RP_PROMPTS_MAX) {
        rp_http_error_set(error, 400, "prompt", "out_of_range", "prompt takes up to %d prompts",
                          RP_PROMPTS_MAX);
        return 0;
    }
    return (uint32_t)json_array_size(prompt);
}

static bool read_prompts(struct rp_completion *c, struct rp_http_error *error) {
    json_t *prompt = c->params.prompt, *first = json_array_get(prompt, 0);
    if (json_is_integer(first))
        return read_ids(c, 0, prompt, error);
    bool texts = json_is_string(prompt) || json_is_string(first);
    if (texts && !(c->items = rp_calloc(c->choice_count, sizeof *c->items)))
        return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    for (uint32_t i = 0; i < c->choice_count; i++) {
        json_t *item = json_is_string(prompt) ? prompt : json_array_get(prompt, i);
        if (texts ? !json_is_string(item) : !json_is_array(item))
            return rp_http_error_set(error, 400, "prompt", "invalid_type",
                                     "the prompts of a list must all be of one kind");
        if (!texts && !read_ids(c, i, item, error))
            return false;
        if (texts)
            c->items[i] = (struct rp_text_item){.text = json_string_value(item),
                                                .len = json_string_length(item)};
    }
    return true;
}

/* Prefix pages are shared between requests of one key and one salt. */
static uint64_t make_salt(const struct rp_conn *conn, const struct rp_completion_params *params) {
    int32_t key = conn->key_index;
    uint64_t salt = key < 0 ? 0 : rp_hash64(&key, sizeof key, conn->server->id_secret);
    if (params->cache_salt)
        salt = rp_hash64(params->cache_salt, strlen(params->cache_salt), salt ^ 1);
    return salt;
}

static struct rp_completion *create(struct rp_conn *conn, json_t *root, uint32_t count,
                                    struct rp_completion_params *params) {
    struct rp_server *server = conn->server;
    struct rp_completion *c = rp_calloc(1, sizeof *c + count * sizeof c->choices[0]);
    char id[17], full_id[32] = "cmpl-";
    if (!c)
        return NULL;
    c->server = server;
    c->conn = conn;
    c->root = root;
    c->params = *params;
    c->salt = make_salt(conn, params);
    c->first_byte_ns = conn->first_byte_ns;
    c->choice_count = count;
    for (uint32_t i = 0; i < count; i++) {
        c->choices[i].completion = c;
        c->choices[i].stop_token = -1;
    }
    rp_server_new_id(server, id);
    memcpy(full_id + 5, id, sizeof id);
    rp_sse_head(&c->head, full_id, (int64_t)time(NULL), server->serving.model_name);
    c->next = server->completions;
    if (server->completions)
        server->completions->prev = c;
    server->completions = c;
    server->completion_count++;
    rp_gauge_set(&server->metrics.completions, server->completion_count);
    conn->gone = on_gone;
    conn->gone_ctx = c;
    return c;
}

void rp_completion_start(struct rp_conn *conn, json_t *root, struct rp_completion_params *params) {
    struct rp_http_error error = {.status = 0};
    uint32_t count = count_prompts(params->prompt, &error);
    struct rp_completion *c = count ? create(conn, root, count, params) : NULL;
    if (!c) {
        if (count)
            rp_http_error_set(&error, 503, NULL, "overloaded", "out of memory");
        json_decref(root);
        rp_params_deinit(params);
        rp_conn_reply_error(conn, &error);
        return;
    }
    if (!read_prompts(c, &error)) {
        fail(c, &error); /* before any stream: only replies */
        try_free(c);
        return;
    }
    c->working = true;
    if (!c->items) {
        on_tokenised(&(struct rp_text_job){.ctx = c});
        return;
    }
    c->job.items = c->items;
    c->job.item_count = count;
    c->job.flags = c->params.add_special_tokens ? RP_ENCODE_ADD_SPECIAL : 0;
    c->job.limit = rp_engine_max_model_len(conn->server->serving.engine);
    c->job.done = on_tokenised;
    c->job.ctx = c;
    rp_text_work_start(conn->server, &c->job);
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
        fail_text(c, 503, "overloaded", "out of memory");
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

static void on_token(struct rp_completion *c, struct rp_choice *choice,
                     const struct rp_event *event) {
    if (choice->finish_reason || !c->conn)
        return; /* sampled before the engine saw that it was cancelled */
    choice->tokens++;
    observe_token(c, choice, event->time_ns);
    /* The last token's text goes out with the finish reason: one chunk per token, and no more. */
    bool last = event->is_stop || choice->tokens >= choice->request.max_tokens;
    if (event->is_stop) {
        choice->stop_token = event->token;
    } else {
        int status = rp_detokenizer_push(&choice->detok, event->token, &c->detok_text);
        bool ended = status == RP_OK && take_text(c, choice);
        if (status != RP_OK || choice->text.failed) {
            fail_text(c, 503, "overloaded", "out of memory");
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
            fail_text(c, 500, "numerical_error",
                      "the model computed a value that is not a number for this request");
        else if (!rp_engine_is_healthy(c->server->serving.engine))
            fail_text(c, 500, "engine_failed", "the device has failed");
        else
            fail_text(c, 503, "shutting_down", "the server is shutting down");
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
    try_free(c);
}

void rp_completion_fail_all(struct rp_server *server, const struct rp_http_error *error) {
    struct rp_completion *next;
    for (struct rp_completion *c = server->completions; c; c = next) {
        next = c->next;
        c->holds++;
        fail(c, error);
        c->holds--;
        try_free(c);
    }
}
