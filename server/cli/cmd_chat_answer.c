/* cmd_chat_answer.c - one request of `reprise chat`: the body, the streamed answer, what is printed
 * of it and what becomes part of the conversation. */
#include "base/clock.h"
#include "base/memory.h"
#include "bench/load/load_body.h"
#include "bench/load/load_client.h"
#include "bench/load/load_sse.h"
#include "server/cli/cmd_chat.h"

#include <stdio.h>
#include <string.h>
#include <uv.h>

enum { CALLS_MAX = 512, ERROR_BYTES = 1 << 20 };
#define ANSWER_BYTES ((size_t)64 << 20)

static const char dim[] = "\x1b[2m", plain[] = "\x1b[0m";

struct call {
    struct rp_buffer id, name, arguments;
};

struct answer {
    struct rp_load_exchange exchange; /* must be first: handlers cast it back */
    struct rp_chat *chat;
    uv_loop_t loop;
    uv_signal_t interrupt;
    struct rp_load_client client;
    struct rp_load_sse sse;
    struct rp_buffer content, reasoning, failure; /* failure: the body of an error */
    struct call *calls;                           /* (CALLS_MAX), made for the first call */
    uint32_t call_count;
    struct rp_chat_held held;
    uint32_t status;
    uint64_t sent_ns, first_ns, last_ns;
    json_int_t prompt_tokens, output_tokens, cached_tokens; /* -1: not reported */
    bool is_dim, stopped, over, done;
    enum rp_load_outcome outcome;
    char finish[32];
};

/* --- Printing -------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 character that begins with this byte. */
static uint32_t character_bytes(unsigned char first) {
    return first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* A character that a terminal takes for a command: C0 and DEL, C1. */
static bool is_control(const char *at, size_t len) {
    unsigned char first = (unsigned char)at[0];
    if (len == 1)
        return (first < 0x20 && first != '\n' && first != '\t') || first >= 0x7F;
    return len == 2 && first == 0xC2 && (unsigned char)at[1] < 0xA0;
}

void rp_chat_print(const struct rp_chat *chat, FILE *out, struct rp_chat_held *held,
                   const char *text, size_t len) {
    if (!chat->is_terminal) {
        fwrite(text, 1, len, out);
        return;
    }
    for (size_t i = 0; i < len; i++) {
        if (held->count && ((unsigned char)text[i] & 0xC0) != 0x80)
            held->count = 0; /* cut off */
        held->bytes[held->count++] = text[i];
        if (held->count < character_bytes((unsigned char)held->bytes[0]))
            continue;
        if (!is_control(held->bytes, held->count))
            fwrite(held->bytes, 1, held->count, out);
        held->count = 0;
    }
}

static void set_dim(struct answer *answer, bool on) {
    if (answer->is_dim == on)
        return;
    answer->is_dim = on;
    answer->held.count = 0;
    if (answer->chat->is_terminal)
        fputs(on ? dim : plain, stdout);
    if (!on && answer->reasoning.len)
        fputs(answer->chat->is_terminal ? "\n\n" : "", stdout);
}

static void print_stats(const struct answer *answer) {
    const struct rp_chat *chat = answer->chat;
    double first = (double)(answer->first_ns - answer->sent_ns) * 1e-9;
    double seconds = (double)(answer->last_ns - answer->first_ns) * 1e-9;
    fputs(chat->is_terminal ? dim : "", stderr);
    if (answer->output_tokens >= 0)
        fprintf(stderr, "%lld tokens", (long long)answer->output_tokens);
    if (answer->output_tokens > 1 && seconds > 0)
        fprintf(stderr, ", %.1f tokens/s", (double)(answer->output_tokens - 1) / seconds);
    if (answer->first_ns)
        fprintf(stderr, "%sfirst token after %.1f ms", answer->output_tokens >= 0 ? ", " : "",
                first * 1e3);
    if (answer->prompt_tokens > 0)
        fprintf(stderr, ", %lld prompt tokens", (long long)answer->prompt_tokens);
    if (answer->prompt_tokens > 0 && answer->cached_tokens >= 0)
        fprintf(stderr, ", %.0f %% cached",
                100.0 * (double)answer->cached_tokens / (double)answer->prompt_tokens);
    if (answer->finish[0] && strcmp(answer->finish, "stop") != 0)
        fprintf(stderr, ", ended by %s", answer->finish);
    fprintf(stderr, "%s\n", chat->is_terminal ? plain : "");
}

/* --- The stream ------------------------------------------------------------------------------ */

static void append_text(struct rp_buffer *out, const json_t *text) {
    if (json_is_string(text))
        rp_buffer_append(out, json_string_value(text), json_string_length(text));
}

static void add_call(struct answer *answer, const json_t *delta, size_t position) {
    const json_t *index = json_object_get(delta, "index");
    const json_t *function = json_object_get(delta, "function");
    json_int_t at = json_is_integer(index) ? json_integer_value(index) : (json_int_t)position;
    if (!answer->calls)
        answer->calls = rp_calloc(CALLS_MAX, sizeof *answer->calls);
    if (!answer->calls || at < 0 || at >= CALLS_MAX)
        return;
    for (; answer->call_count <= (uint32_t)at; answer->call_count++) {
        struct call *call = &answer->calls[answer->call_count];
        rp_buffer_init(&call->id, 4096);
        rp_buffer_init(&call->name, 4096);
        rp_buffer_init(&call->arguments, ANSWER_BYTES);
    }
    struct call *call = &answer->calls[at];
    append_text(&call->id, json_object_get(delta, "id"));
    append_text(&call->name, json_object_get(function, "name"));
    append_text(&call->arguments, json_object_get(function, "arguments"));
}

static void add_delta(struct answer *answer, const json_t *delta) {
    const json_t *content = json_object_get(delta, "content"), *one;
    const json_t *reasoning = json_object_get(delta, "reasoning_content");
    const json_t *calls = json_object_get(delta, "tool_calls");
    size_t i;
    if (!json_is_string(reasoning))
        reasoning = json_object_get(delta, "reasoning");
    append_text(&answer->reasoning, reasoning);
    append_text(&answer->content, content);
    json_array_foreach(calls, i, one) add_call(answer, one, i);
    if (json_string_length(reasoning) && answer->chat->is_terminal) {
        set_dim(answer, true);
        rp_chat_print(answer->chat, stdout, &answer->held, json_string_value(reasoning),
                      json_string_length(reasoning));
    }
    if (json_string_length(content)) {
        set_dim(answer, false);
        rp_chat_print(answer->chat, stdout, &answer->held, json_string_value(content),
                      json_string_length(content));
    }
    if (json_string_length(content) || json_string_length(reasoning) || json_array_size(calls)) {
        answer->last_ns = rp_clock_ns();
        if (!answer->first_ns)
            answer->first_ns = answer->last_ns;
    }
    fflush(stdout);
}

static json_int_t count_of(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

static void add_usage(struct answer *answer, const json_t *usage) {
    answer->prompt_tokens = count_of(usage, "prompt_tokens");
    answer->output_tokens = count_of(usage, "completion_tokens");
    answer->cached_tokens =
        count_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    if (answer->prompt_tokens >= 0 && answer->output_tokens >= 0)
        answer->chat->used_tokens = (uint64_t)(answer->prompt_tokens + answer->output_tokens);
}

static bool on_event(void *context, const char *data, size_t len) {
    struct answer *answer = context;
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        answer->done = true;
        return true;
    }
    json_t *chunk = json_loadb(data, len, JSON_REJECT_DUPLICATES, NULL);
    const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
    const json_t *error = json_object_get(chunk, "error");
    const json_t *finish = json_object_get(choice, "finish_reason");
    if (error || !json_is_object(chunk)) {
        snprintf(answer->exchange.why, sizeof answer->exchange.why, "%.95s",
                 error ? json_string_value(json_object_get(error, "message"))
                             ? json_string_value(json_object_get(error, "message"))
                             : "the server ended the answer"
                       : "the server sent something that is not a chunk");
        json_decref(chunk);
        return false;
    }
    if (json_is_object(json_object_get(chunk, "usage")))
        add_usage(answer, json_object_get(chunk, "usage"));
    if (choice)
        add_delta(answer, json_object_get(choice, "delta"));
    if (json_is_string(finish))
        snprintf(answer->finish, sizeof answer->finish, "%.31s", json_string_value(finish));
    json_decref(chunk);
    return true;
}

/* --- The exchange ---------------------------------------------------------------------------- */

static void finish(struct answer *answer, enum rp_load_outcome outcome) {
    if (answer->over)
        return;
    answer->over = true;
    answer->outcome = outcome;
    rp_load_client_close(&answer->client);
    rp_chat_interrupt_hold(); /* uv_close restores the default action */
    uv_close((uv_handle_t *)&answer->interrupt, NULL);
}

static void on_head(struct rp_load_exchange *exchange, uint32_t status, bool is_event_stream) {
    (void)is_event_stream;
    ((struct answer *)exchange)->status = status;
}

static enum rp_load_outcome on_body(struct rp_load_exchange *exchange, const char *bytes,
                                    size_t len) {
    struct answer *answer = (struct answer *)exchange;
    if (answer->status != 200) {
        rp_buffer_append(&answer->failure, bytes, len);
        return RP_LOAD_OK;
    }
    exchange->why[0] = '\0';
    if (rp_load_sse_feed(&answer->sse, bytes, len, on_event, answer) && !answer->content.failed &&
        !answer->reasoning.failed)
        return RP_LOAD_OK;
    if (!exchange->why[0])
        snprintf(exchange->why, sizeof exchange->why, "the answer is too large");
    return RP_LOAD_BAD_ANSWER;
}

static void on_end(struct rp_load_exchange *exchange, enum rp_load_outcome outcome,
                   const char *why) {
    (void)why;
    finish((struct answer *)exchange, outcome);
}

static void on_interrupt(uv_signal_t *signal, int number) {
    struct answer *answer = signal->data;
    (void)number;
    answer->stopped = true;
    finish(answer, RP_LOAD_NOT_SENT);
}

static json_t *make_body(const struct rp_chat *chat) {
    json_t *body = json_pack("{s:s,s:b,s:{s:b}}", "model", chat->about.model, "stream", 1,
                             "stream_options", "include_usage", 1);
    json_t *messages = json_array();
    if (chat->system)
        json_array_append_new(messages,
                              json_pack("{s:s,s:O}", "role", "system", "content", chat->system));
    json_array_extend(messages, chat->messages);
    json_object_set_new(body, "messages", messages);
    json_object_update(body, chat->parameters);
    if (chat->format)
        json_object_set(body, "response_format", chat->format);
    if (chat->tools)
        json_object_set(body, "tools", chat->tools);
    if (chat->template_values)
        json_object_set(body, "chat_template_kwargs", chat->template_values);
    return body;
}

static int dump_piece(const char *bytes, size_t len, void *out) {
    rp_buffer_append(out, bytes, len);
    return 0;
}

void rp_chat_dump(struct rp_buffer *out, const json_t *value, size_t flags) {
    if (json_dump_callback(value, dump_piece, out, flags | JSON_ENCODE_ANY) != 0)
        out->failed = true;
}

static bool make_request(const struct rp_chat *chat, const struct rp_load_url *url,
                         char **out_bytes, size_t *out_len) {
    json_t *body = make_body(chat);
    struct rp_buffer out, text;
    rp_buffer_init(&out, 0);
    rp_buffer_init(&text, 0);
    rp_chat_dump(&text, body, JSON_COMPACT);
    rp_buffer_printf(&out,
                     "POST %s/v1/chat/completions HTTP/1.1\r\nHost: %s\r\n"
                     "Content-Type: application/json\r\nAccept: text/event-stream\r\n",
                     url->prefix, url->authority);
    if (chat->target.api_key)
        rp_buffer_printf(&out, "Authorization: Bearer %s\r\n", chat->target.api_key);
    rp_buffer_printf(&out, "Content-Length: %zu\r\n\r\n", text.len);
    rp_buffer_append(&out, text.data, text.len);
    out.failed |= text.failed;
    json_decref(body);
    rp_buffer_deinit(&text);
    *out_bytes = out.failed ? NULL : out.data;
    *out_len = out.len;
    if (out.failed)
        rp_buffer_deinit(&out);
    return *out_bytes != NULL;
}

static int run(struct answer *answer, struct rp_error *err) {
    static const struct rp_load_handler handler = {on_head, on_body, on_end};
    struct rp_load_url url;
    char *bytes;
    size_t len;
    uv_signal_init(&answer->loop, &answer->interrupt);
    answer->interrupt.data = answer;
    answer->exchange.handler = &handler;
    int status = rp_load_url_parse(answer->chat->target.base_url, &url, err);
    if (status == RP_OK)
        status = rp_load_body_check_key(&answer->chat->target, err);
    if (status == RP_OK)
        status = rp_load_client_init(&answer->client, &answer->loop, &url, err);
    if (status == RP_OK) {
        uv_signal_start(&answer->interrupt, on_interrupt, SIGINT);
        rp_chat_interrupt_release();
        answer->sent_ns = rp_clock_ns();
        if (!make_request(answer->chat, &url, &bytes, &len) ||
            !rp_load_client_send(&answer->client, &answer->exchange, bytes, len))
            status = rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for a request");
    }
    if (status != RP_OK)
        finish(answer, RP_LOAD_NOT_SENT);
    uv_run(&answer->loop, UV_RUN_DEFAULT);
    rp_chat_interrupt_hold();
    return status;
}

/* --- The conversation ------------------------------------------------------------------------ */

static int failure_of(const struct answer *answer, struct rp_error *err) {
    if (answer->stopped)
        return RP_OK;
    if (answer->outcome != RP_LOAD_OK)
        return rp_error_set(err, RP_STATUS_IO, "%s", answer->exchange.why);
    if (answer->status == 200)
        return answer->done || answer->finish[0]
                   ? RP_OK
                   : rp_error_set(err, RP_STATUS_IO, "the answer is incomplete");
    json_t *body =
        json_loadb(answer->failure.data ? answer->failure.data : "", answer->failure.len, 0, NULL);
    const json_t *error = json_object_get(body, "error");
    const char *text = json_string_value(json_object_get(error, "message"));
    int status = rp_error_set(err, RP_STATUS_INVALID, "%.400s", text ? text : "no message");
    if (!text)
        rp_error_hint(err, "the server answered with status %u", answer->status);
    json_decref(body);
    return status;
}

static json_t *string_of(const struct rp_buffer *text) {
    return json_stringn(text->data ? text->data : "", text->len); /* NULL: not UTF-8 */
}

static json_t *calls_of(const struct answer *answer) {
    json_t *calls = json_array();
    for (uint32_t i = 0; i < answer->call_count; i++) {
        const struct call *call = &answer->calls[i];
        char made[32];
        snprintf(made, sizeof made, "call_%u", i);
        json_array_append_new(
            calls, json_pack("{s:o,s:s,s:{s:o,s:o}}", "id",
                             call->id.len ? string_of(&call->id) : json_string(made), "type",
                             "function", "function", "name", string_of(&call->name), "arguments",
                             string_of(&call->arguments)));
    }
    return calls;
}

static void keep(const struct answer *answer) {
    json_t *content = string_of(&answer->content), *message = json_object();
    json_object_set_new(message, "role", json_string("assistant"));
    json_object_set_new(message, "content",
                        answer->call_count && !answer->content.len ? json_null()
                        : content                                  ? json_incref(content)
                                                                   : json_string(""));
    if (answer->reasoning.len)
        json_object_set_new(message, "reasoning_content", string_of(&answer->reasoning));
    if (answer->call_count)
        json_object_set_new(message, "tool_calls", calls_of(answer));
    json_decref(content);
    json_array_append_new(answer->chat->messages, message);
}

static void release(struct answer *answer) {
    for (uint32_t i = 0; i < answer->call_count; i++) {
        rp_buffer_deinit(&answer->calls[i].id);
        rp_buffer_deinit(&answer->calls[i].name);
        rp_buffer_deinit(&answer->calls[i].arguments);
    }
    rp_free(answer->calls);
    rp_load_client_deinit(&answer->client);
    uv_loop_close(&answer->loop);
    rp_load_sse_deinit(&answer->sse);
    rp_buffer_deinit(&answer->content);
    rp_buffer_deinit(&answer->reasoning);
    rp_buffer_deinit(&answer->failure);
    rp_free(answer);
}

int rp_chat_answer(struct rp_chat *chat, struct rp_error *err) {
    struct answer *answer = rp_calloc(1, sizeof *answer);
    if (!answer || uv_loop_init(&answer->loop) != 0) {
        rp_free(answer);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for a request");
    }
    signal(SIGPIPE, SIG_IGN);
    answer->chat = chat;
    answer->prompt_tokens = answer->output_tokens = answer->cached_tokens = -1;
    rp_load_sse_init(&answer->sse);
    rp_buffer_init(&answer->content, ANSWER_BYTES);
    rp_buffer_init(&answer->reasoning, ANSWER_BYTES);
    rp_buffer_init(&answer->failure, ERROR_BYTES);
    int status = run(answer, err);
    set_dim(answer, false);
    if (status == RP_OK)
        status = failure_of(answer, err);
    bool any = answer->content.len || answer->call_count;
    if (any || (status == RP_OK && !answer->stopped))
        keep(answer);
    if (answer->content.len || answer->stopped)
        putchar('\n');
    fflush(stdout);
    if (chat->verbose && answer->status == 200)
        print_stats(answer);
    release(answer);
    return status;
}

json_t *rp_chat_calls(const struct rp_chat *chat) {
    size_t count = json_array_size(chat->messages);
    json_t *calls = json_object_get(json_array_get(chat->messages, count - 1), "tool_calls");
    return json_array_size(calls) ? calls : NULL;
}
