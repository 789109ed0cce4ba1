/* answer_ollama.c - answers of Ollama's /api/chat and /api/generate: a JSON object a line, the last
 * of which has the counts and times. A tool call is written when it is complete. */
#include "base/json_writer.h"
#include "base/memory.h"
#include "metrics/tick.h"
#include "server/api/answer.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <time.h>

struct state {
    bool generate; /* /api/generate: `response`, not a message */
    uint64_t begin_ns;
    struct rp_buffer calls, arguments; /* the calls of this part; the open call's arguments */
    bool in_call;
    const char *reason;
};

static bool open_answer(struct rp_answer *answer, bool generate) {
    struct state *s = rp_calloc(1, sizeof *s);
    if (!s)
        return false;
    s->generate = generate;
    s->begin_ns = rp_tick_ns();
    answer->state = s;
    return true;
}

static bool open_chat(struct rp_answer *answer, json_t *root,
                      const struct rp_completion_params *params) {
    (void)root;
    (void)params;
    return open_answer(answer, false);
}

static bool open_generate(struct rp_answer *answer, json_t *root,
                          const struct rp_completion_params *params) {
    (void)root;
    (void)params;
    return open_answer(answer, true);
}

static void close_answer(struct rp_answer *answer) {
    struct state *s = answer->state;
    if (s) {
        rp_buffer_deinit(&s->calls);
        rp_buffer_deinit(&s->arguments);
    }
    rp_free(s);
}

/* {"model":..,"created_at":.. */
static void write_head(struct rp_answer *answer) {
    struct timespec now;
    struct tm parts;
    char text[32];
    clock_gettime(CLOCK_REALTIME, &now);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &parts));
    rp_buffer_puts(&answer->out, "{\"model\":");
    rp_json_escape(&answer->out, answer->model, strlen(answer->model));
    rp_buffer_printf(&answer->out, ",\"created_at\":\"%s.%06ldZ\"", text, now.tv_nsec / 1000);
}

/* --- Calls ----------------------------------------------------------------------------------- */

static void end_call(struct state *s) {
    if (!s->in_call)
        return;
    json_t *arguments = json_loadb(s->arguments.len ? s->arguments.data : "", s->arguments.len,
                                   JSON_ALLOW_NUL, NULL);
    if (json_is_object(arguments)) {
        rp_buffer_append(&s->calls, s->arguments.data, s->arguments.len);
    } else if (s->arguments.len == 0) {
        rp_buffer_puts(&s->calls, "{}");
    } else { /* cut off, or the text of a custom tool */
        rp_buffer_puts(&s->calls, "{\"input\":");
        rp_json_escape(&s->calls, s->arguments.data, s->arguments.len);
        rp_buffer_puts(&s->calls, "}");
    }
    json_decref(arguments);
    rp_buffer_puts(&s->calls, "}}");
    rp_buffer_clear(&s->arguments);
    s->in_call = false;
}

static void take_call(struct state *s, const struct rp_answer_events *events,
                      const struct rp_answer_event *event) {
    const char *bytes = rp_answer_bytes(events, event);
    if (event->kind == RP_ANSWER_ARGUMENTS) {
        rp_buffer_append(&s->arguments, bytes, event->len);
    } else if (event->kind == RP_ANSWER_CALL_END) {
        end_call(s);
    } else {
        end_call(s);
        rp_buffer_puts(&s->calls, s->calls.len ? ",{\"id\":" : "{\"id\":");
        rp_json_escape(&s->calls, bytes, event->id_len);
        rp_buffer_puts(&s->calls, ",\"function\":{\"name\":");
        rp_json_escape(&s->calls, bytes + event->id_len, event->len - event->id_len);
        rp_buffer_puts(&s->calls, ",\"arguments\":");
        s->in_call = true;
    }
}

/* --- Lines ----------------------------------------------------------------------------------- */

/* ,"message":{..} or ,"response":".." with the texts of events (NULL: none) and complete calls. */
static void write_body(struct rp_answer *answer, const struct rp_answer_events *events) {
    struct state *s = answer->state;
    struct rp_buffer *out = &answer->out;
    const struct rp_answer_events empty = {.bytes = {.data = NULL}};
    events = events ? events : &empty;
    rp_buffer_puts(out, s->generate ? ",\"response\":"
                                    : ",\"message\":{\"role\":\"assistant\",\"content\":");
    rp_answer_json_joined(answer, events, RP_ANSWER_TEXT);
    if (rp_answer_has(events, RP_ANSWER_REASONING)) {
        rp_buffer_puts(out, ",\"thinking\":");
        rp_answer_json_joined(answer, events, RP_ANSWER_REASONING);
    }
    if (s->calls.len && !s->in_call && !s->generate) {
        rp_buffer_puts(out, ",\"tool_calls\":[");
        rp_buffer_append(out, s->calls.data, s->calls.len);
        rp_buffer_puts(out, "]");
        rp_buffer_clear(&s->calls);
    }
    rp_buffer_puts(out, s->generate ? "" : "}");
    out->failed |= s->calls.failed || s->arguments.failed;
}

static void write_end(struct rp_answer *answer, const struct rp_answer_usage *usage) {
    const struct state *s = answer->state;
    uint64_t now_ns = rp_tick_ns();
    uint64_t first_ns = usage->first_token_ns > s->begin_ns ? usage->first_token_ns : s->begin_ns;
    rp_buffer_printf(&answer->out,
                     ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%" PRIu64
                     ",\"load_duration\":0,\"prompt_eval_count\":%" PRIu64
                     ",\"prompt_eval_duration\":%" PRIu64 ",\"eval_count\":%" PRIu64
                     ",\"eval_duration\":%" PRIu64 "}\n",
                     s->reason ? s->reason : "stop", now_ns - s->begin_ns, usage->prompt,
                     first_ns - s->begin_ns, usage->completion, now_ns - first_ns);
}

static void take_events(struct state *s, const struct rp_answer_choice *choice) {
    const struct rp_answer_events *events = choice->events;
    for (uint32_t i = 0; i < rp_answer_count(events); i++) {
        const struct rp_answer_event *event = rp_answer_event(events, i);
        if (event->kind != RP_ANSWER_TEXT && event->kind != RP_ANSWER_REASONING)
            take_call(s, events, event);
    }
    if (!choice->finish_reason)
        return;
    end_call(s);
    s->reason = strcmp(choice->finish_reason, "length") == 0 ? "length" : "stop";
}

static void write_part(struct rp_answer *answer, const struct rp_answer_choice *choice,
                       const struct rp_answer_usage *usage) {
    struct state *s = answer->state;
    (void)usage;
    take_events(s, choice);
    bool shown = rp_answer_has(choice->events, RP_ANSWER_TEXT) ||
                 rp_answer_has(choice->events, RP_ANSWER_REASONING) ||
                 (s->calls.len && !s->in_call);
    if (!shown)
        return;
    write_head(answer);
    write_body(answer, choice->events);
    rp_buffer_puts(&answer->out, ",\"done\":false}\n");
}

static void end_stream(struct rp_answer *answer, const struct rp_answer_usage *usage,
                       const struct rp_buffer *more) {
    (void)more;
    write_head(answer);
    write_body(answer, NULL);
    write_end(answer, usage);
}

static void write_error(struct rp_answer *answer, const struct rp_http_error *error) {
    rp_http_error_write_as(RP_ERRORS_OLLAMA, error, NULL, &answer->out);
    rp_buffer_puts(&answer->out, "\n");
}

static void begin_whole(struct rp_answer *answer) { write_head(answer); }

static void write_whole(struct rp_answer *answer, const struct rp_answer_choice *choice) {
    take_events(answer->state, choice);
    write_body(answer, choice->events);
}

static void end_whole(struct rp_answer *answer, const struct rp_answer_usage *usage,
                      const struct rp_buffer *more) {
    (void)more;
    write_end(answer, usage);
}

#define OLLAMA_API(open_function)                                                                  \
    {                                                                                              \
        .id_prefix = "ollama-", .content_type = "application/x-ndjson", .open = (open_function),   \
        .close = close_answer, .part = write_part, .end = end_stream, .error = write_error,        \
        .whole_begin = begin_whole, .whole_choice = write_whole, .whole_end = end_whole,           \
        .logprobs = rp_token_log_chat                                                              \
    }

const struct rp_answer_api rp_answer_ollama_chat = OLLAMA_API(open_chat);
const struct rp_answer_api rp_answer_ollama_generate = OLLAMA_API(open_generate);
