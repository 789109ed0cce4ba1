/* completion_answer.c - output to the client: stream chunks, or the whole answer. */
#include "base/json_writer.h"
#include "base/memory.h"
#include "metrics/tick.h"
#include "server/api/completion_internal.h"
#include "server/api/completion_profile.h"
#include "server/server_trace.h"

#include <math.h>
#include <string.h>

struct rp_conn *rp_completion_let_go(struct rp_completion *c) {
    struct rp_conn *conn = c->conn;
    conn->gone = NULL;
    c->conn = NULL;
    return conn;
}

bool rp_completion_send_out(struct rp_completion *c) {
    struct rp_buffer *out = &c->answer.out;
    if (c->conn && !out->failed && out->len == 0)
        return true; /* an empty chunk would end the body */
    bool sent = c->conn && !out->failed && rp_conn_stream_write(c->conn, out->data, out->len);
    c->sent_bytes += sent ? out->len : 0;
    c->output_ns = rp_tick_ns();
    if (sent)
        rp_buffer_clear(out);
    else if (c->conn)
        rp_conn_close(c->conn);
    return sent;
}

/* Records when the kernel took the choice's tokens, each against the ones before. */
static void note_taken(struct rp_completion *c, struct rp_choice *choice, uint32_t tokens) {
    uint64_t now_ns = rp_tick_ns();
    if (choice->taken_ns) {
        uint64_t gap_ns = now_ns - choice->taken_ns;
        choice->record.worst_write_ns = RP_MAX(choice->record.worst_write_ns, gap_ns);
        rp_server_metrics_written(&c->server->metrics, tokens, gap_ns, &choice->record.trace);
    }
    choice->taken_ns = now_ns;
}

/* conn->sent: the kernel has taken the buffer before sent_number as a whole. */
static void on_sent(void *ctx) {
    struct rp_completion *c = ctx;
    uint64_t place = (c->conn->sent_number - 1) % RP_ARRAY_COUNT(c->choices[0].waiting);
    for (uint32_t i = 0; i < c->choice_count; i++) {
        struct rp_choice *choice = &c->choices[i];
        if (choice->waiting[place])
            note_taken(c, choice, choice->waiting[place]);
        choice->waiting[place] = 0;
    }
}

/* A chunk with all tokens so far went into the connection's output buffer of that number. */
static void note_handed(struct rp_completion *c, struct rp_choice *choice, uint64_t number) {
    uint32_t tokens = choice->tokens - choice->handed;
    choice->handed = choice->tokens;
    if (tokens == 0)
        return;
    if (c->conn->sent_number > number)
        note_taken(c, choice, tokens);
    else
        choice->waiting[number % RP_ARRAY_COUNT(choice->waiting)] += tokens;
}

/* --- One choice ------------------------------------------------------------------------------ */

static struct rp_token_style style_of(const struct rp_completion *c, int64_t top) {
    return (struct rp_token_style){.tokenizer = c->server->serving.tokenizer,
                                   .top = (uint32_t)RP_MAX(top, 0),
                                   .as_token_ids = c->params.as_token_ids};
}

/* The prompt's log: in a stream each choice has its own, otherwise the first choice of the
 * prompt. */
static const struct rp_token_log *prompt_log(const struct rp_completion *c,
                                             const struct rp_choice *choice) {
    uint32_t index = (uint32_t)(choice - c->choices);
    return c->params.stream ? &choice->prompt_log
                            : &c->choices[index - index % c->per_prompt].prompt_log;
}

/* Writes the choice's log-probabilities that are ready into c->logprobs; NULL: none requested. */
static const struct rp_buffer *write_logprobs(struct rp_completion *c, struct rp_choice *choice) {
    struct rp_token_style style = style_of(c, c->params.logprobs);
    bool echo = c->params.echo && !choice->begun;
    rp_buffer_clear(&c->logprobs);
    if (c->params.logprobs < 0)
        return NULL;
    if (c->params.stream && !echo && choice->log.sent == choice->log.ready)
        return NULL; /* a chunk without tokens */
    c->answer.api->logprobs(echo ? prompt_log(c, choice) : NULL, &choice->log, &style,
                            &c->logprobs);
    return &c->logprobs;
}

static struct rp_answer_choice describe(struct rp_completion *c, struct rp_choice *choice) {
    uint32_t index = (uint32_t)(choice - c->choices);
    struct rp_answer_choice out = {
        .index = index / c->per_prompt * (uint32_t)c->params.n + index % c->per_prompt,
        .first = !choice->begun,
        .held = choice->splitter && !choice->finish_reason && rp_answer_count(&choice->events) == 0,
        .events = &choice->events,
        .finish_reason = choice->finish_reason,
        .stop_token = choice->stop_token,
        .token_ids = c->params.return_token_ids ? &choice->ids : NULL,
        .prompt_ids = c->params.return_token_ids && !choice->begun
                          ? &c->items[index / c->per_prompt].ids
                          : NULL,
        .logprobs = write_logprobs(c, choice)};
    c->answer.out.failed = c->answer.out.failed || rp_answer_events_failed(&choice->events);
    if (choice->match.found >= 0) {
        out.stop_string = c->params.stop.strings[choice->match.found].bytes;
        out.stop_string_len = c->params.stop.strings[choice->match.found].len;
    }
    return out;
}

/* --- Streams --------------------------------------------------------------------------------- */

static void sum_tokens(const struct rp_completion *c, struct rp_answer_usage *tokens) {
    memset(tokens, 0, sizeof *tokens);
    tokens->first_token_ns = c->choices[0].record.first_token_ns;
    for (uint32_t i = 0; i < c->choice_count; i++) {
        const struct rp_choice *choice = &c->choices[i];
        tokens->completion += choice->tokens;
        tokens->reasoning += choice->reasoning_tokens;
        if (i % c->per_prompt)
            continue; /* a prompt counts once, regardless of its number of answers */
        tokens->prompt += choice->request.prompt_count;
        tokens->cached += choice->request.cached_tokens;
    }
}

/* False: the client is gone. */
static bool begin_stream(struct rp_completion *c, const struct rp_answer_usage *usage) {
    const struct rp_answer_api *api = c->answer.api;
    const char *extra = rp_completion_timing_header(c, &c->more);
    c->streaming = true;
    c->status = 200;
    bool begun = api->content_type ? rp_conn_body_begin(c->conn, 200, api->content_type, extra)
                                   : rp_conn_stream_begin(c->conn, extra);
    rp_buffer_clear(&c->more);
    if (!begun)
        return false;
    c->conn->sent = on_sent;
    if (api->begin)
        api->begin(&c->answer, usage);
    return true;
}

void rp_completion_keep_alive(struct rp_completion *c) {
    uint64_t limit_ns = (uint64_t)c->server->config.limits.keep_alive_ms * 1000000u;
    const char *text = c->answer.api->keep_alive;
    if (!text || !c->params.stream || !c->conn || !c->open_count ||
        rp_tick_ns() - c->output_ns < limit_ns)
        return;
    /* How much of the prompt is cached is known only when it is admitted. */
    struct rp_answer_usage usage = {.prompt = c->choices[0].request.prompt_count};
    if (!c->streaming && !begin_stream(c, &usage))
        return;
    rp_buffer_puts(&c->answer.out, text);
    rp_completion_send_out(c);
}

/* While the beginning of a tool call is held back, its tokens give no chunk. */
static bool has_news(const struct rp_completion *c, const struct rp_choice *choice) {
    return !choice->splitter || choice->finish_reason || choice->ids.count ||
           rp_answer_count(&choice->events) || choice->log.sent < choice->log.ready ||
           c->params.continuous_usage;
}

bool rp_completion_send_chunk(struct rp_completion *c, struct rp_choice *choice) {
    if (!has_news(c, choice))
        return true;
    struct rp_answer_choice described = describe(c, choice); /* marks log-probabilities as sent */
    struct rp_answer_usage usage = {.prompt = choice->request.prompt_count,
                                    .completion = choice->tokens,
                                    .cached = choice->request.cached_tokens,
                                    .first_token_ns = choice->record.first_token_ns};
    if (!c->streaming && !begin_stream(c, &usage))
        return false;
    c->answer.api->part(&c->answer, &described, &usage);
    rp_answer_events_clear(&choice->events);
    choice->ids.count = 0;
    choice->begun = true;
    size_t bytes = c->answer.out.len;
    uint64_t number = c->conn->fill_number;
    if (!rp_completion_send_out(c))
        return false;
    if (bytes == 0)
        return true; /* its tokens count with the next part */
    note_handed(c, choice, number);
    rp_server_trace_written(c, choice, bytes);
    return true;
}

static void finish_stream(struct rp_completion *c, const struct rp_answer_usage *usage) {
    c->answer.api->end(&c->answer, usage, &c->more);
    if (rp_completion_send_out(c)) {
        rp_server_trace_answered(c, 200);
        rp_conn_stream_end(rp_completion_let_go(c));
    }
}

/* --- Whole answers --------------------------------------------------------------------------- */

/* Mean log-probability per token, the ranking criterion of best_of. */
static double score(const struct rp_choice *choice) {
    return choice->tokens ? choice->logprob_sum / choice->tokens : -INFINITY;
}

/* Sorts the best n of a prompt's answers to the front, in descending order; stable. */
static void rank(struct rp_choice *choices, uint32_t count, struct rp_choice *out[RP_CHOICES_MAX]) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;
        for (; at > 0 && score(out[at - 1]) < score(&choices[i]); at--)
            out[at] = out[at - 1];
        out[at] = &choices[i];
    }
}

static void write_prompt_logprobs(struct rp_completion *c, const struct rp_choice *choice) {
    struct rp_token_style style = style_of(c, c->params.prompt_logprobs);
    rp_token_log_prompt(prompt_log(c, choice), &style, &c->prompt_logprobs);
}

static void write_prompt_choices(struct rp_completion *c, uint32_t prompt) {
    struct rp_choice *first = &c->choices[prompt * c->per_prompt], *ordered[RP_CHOICES_MAX];
    bool shown = c->params.prompt_logprobs >= 0 && c->answer.api->prompt_logprobs_in_choice;
    for (uint32_t i = 0; i < c->per_prompt; i++)
        ordered[i] = &first[i];
    if (c->params.best_of > c->params.n)
        rank(first, c->per_prompt, ordered);
    rp_buffer_clear(&c->prompt_logprobs);
    if (shown)
        write_prompt_logprobs(c, first);
    for (uint32_t i = 0; i < (uint32_t)c->params.n; i++) {
        struct rp_answer_choice described = describe(c, ordered[i]);
        described.index = prompt * (uint32_t)c->params.n + i;
        described.prompt_logprobs = shown ? &c->prompt_logprobs : NULL;
        c->answer.api->whole_choice(&c->answer, &described);
    }
}

static void finish_whole(struct rp_completion *c, const struct rp_answer_usage *usage) {
    const struct rp_answer_api *api = c->answer.api;
    struct rp_buffer *out = &c->answer.out;
    api->whole_begin(&c->answer);
    for (uint32_t i = 0; i < c->prompt_count; i++)
        write_prompt_choices(c, i);
    if (c->params.prompt_logprobs >= 0 && !api->prompt_logprobs_in_choice) {
        write_prompt_logprobs(c, &c->choices[0]);
        rp_buffer_puts(&c->more, ",\"prompt_logprobs\":");
        rp_buffer_append(&c->more, c->prompt_logprobs.data, c->prompt_logprobs.len);
    }
    api->whole_end(&c->answer, usage, &c->more);
    rp_buffer_clear(&c->more);
    const char *extra = rp_completion_timing_header(c, &c->more);
    if (out->failed || c->more.failed || c->prompt_logprobs.failed) {
        rp_completion_fail_text(c, 503, "overloaded", "out of memory");
        return;
    }
    rp_completion_answered(c, 200, NULL);
    rp_completion_log(c);
    c->sent_bytes = out->len;
    rp_server_trace_answered(c, 200);
    rp_conn_reply(rp_completion_let_go(c), 200, "application/json", extra, out->data, out->len);
}

void rp_completion_finish(struct rp_completion *c) {
    struct rp_answer_usage usage;
    if (rp_completion_profile_start(c, rp_completion_finish))
        return;
    sum_tokens(c, &usage);
    rp_completion_timing(c, &c->more);
    if (!c->params.stream) {
        finish_whole(c, &usage);
        return;
    }
    rp_completion_answered(c, 200, NULL);
    rp_completion_log(c);
    finish_stream(c, &usage);
}
