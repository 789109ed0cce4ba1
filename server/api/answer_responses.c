/* answer_responses.c - answers of /v1/responses: items (reasoning, message, call), one after
 * another. A stream has the events of each item, numbered, and ends with the whole object. */
#include "server/api/answer_responses.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "server/api/answer.h"
#include "server/api/response_store.h"
#include "server/api/responses_request.h"
#include "server/server_internal.h"

#include <inttypes.h>
#include <string.h>

enum item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_FUNCTION, ITEM_CUSTOM };

static const char *const id_prefixes[] = {"", "rs", "msg", "fc", "ctc"};

struct state {
    json_t *names;                  /* names of tools in namespaces: responses_request.h */
    json_t *items;                  /* the conversation before the answer */
    bool store, summary, encrypted; /* summary: reasoning is shown as its own summary */
    uint64_t sequence;
    enum item item;            /* the one that is open */
    uint32_t index;            /* its index; without an open one: of the next */
    struct rp_buffer text;     /* its text, or the arguments of the call */
    struct rp_buffer call;     /* of a call: "call_id":..,"name":..[,"namespace":..] as JSON */
    struct rp_buffer name;     /* its name as JSON */
    struct rp_buffer logprobs; /* of the open message: entries as JSON, separated by commas */
    struct rp_buffer fresh;    /* those that no delta has shown yet */
    struct rp_buffer done;     /* closed items as JSON, separated by commas */
    bool incomplete;
};

static struct rp_buffer *buffers(struct state *s, size_t i) {
    struct rp_buffer *const all[] = {&s->text,     &s->call,  &s->name,
                                     &s->logprobs, &s->fresh, &s->done};
    return i < RP_ARRAY_COUNT(all) ? all[i] : NULL;
}

/* --- Opening: the members that do not change -------------------------------------------------- */

static json_t *get(const json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static bool is(const json_t *value, const char *text) {
    const char *own = json_string_value(value);
    return own && strcmp(own, text) == 0;
}

static int append_dump(const char *bytes, size_t len, void *out) {
    rp_buffer_append(out, bytes, len);
    return ((struct rp_buffer *)out)->failed ? -1 : 0;
}

/* ,"name":value, or what is written for an absent one. */
static void echo(struct rp_buffer *out, const char *name, const json_t *value,
                 const char *otherwise) {
    rp_buffer_printf(out, ",\"%s\":", name);
    if (!value)
        rp_buffer_puts(out, otherwise);
    else if (json_dump_callback(value, append_dump, out, JSON_COMPACT | JSON_ENCODE_ANY) != 0)
        out->failed = true;
}

/* Those in use: tools that a server would run are not. Their optional members are written, too. */
static void echo_tools(struct rp_buffer *out, json_t *tools) {
    size_t i;
    json_t *tool, *used = json_array();
    json_array_foreach(tools, i, tool) {
        bool function = is(get(tool, "type"), "function");
        if (!function && !is(get(tool, "type"), "custom") && !is(get(tool, "type"), "namespace"))
            continue;
        json_t *copy = json_copy(tool);
        if (function && !json_object_get(copy, "strict"))
            json_object_set_new(copy, "strict", json_null());
        if (function && !json_object_get(copy, "parameters"))
            json_object_set_new(copy, "parameters", json_null());
        out->failed |= json_array_append_new(used, copy) != 0;
    }
    echo(out, "tools", used, "[]");
    json_decref(used);
}

static void write_head(struct rp_answer *answer, const json_t *request, const json_t *previous,
                       const struct rp_completion_params *params) {
    const struct state *s = answer->state;
    struct rp_buffer *out = &answer->head;
    char number[32];
    echo(out, "instructions", get(request, "instructions"), "null");
    echo(out, "max_output_tokens", get(request, "max_output_tokens"), "null");
    echo(out, "metadata", get(request, "metadata"), "{}");
    rp_buffer_puts(out, ",\"model\":");
    rp_json_escape(out, answer->model, strlen(answer->model));
    echo(out, "parallel_tool_calls", get(request, "parallel_tool_calls"), "true");
    echo(out, "previous_response_id", previous, "null");
    echo(out, "reasoning", get(request, "reasoning"), "{\"effort\":null,\"summary\":null}");
    rp_double_shortest(params->temperature, number);
    rp_buffer_printf(out, ",\"store\":%s,\"temperature\":%s", s->store ? "true" : "false", number);
    echo(out, "text", get(get(request, "text"), "format") ? get(request, "text") : NULL,
         "{\"format\":{\"type\":\"text\"}}");
    echo(out, "tool_choice", get(request, "tool_choice"), "\"auto\"");
    echo_tools(out, get(request, "tools"));
    rp_double_shortest(params->top_p, number);
    rp_buffer_printf(out, ",\"top_logprobs\":%d,\"top_p\":%s,\"truncation\":\"disabled\"",
                     (int)RP_MAX(params->logprobs, 0), number);
    if (get(request, "user"))
        echo(out, "user", get(request, "user"), "");
}

static bool open_answer(struct rp_answer *answer, json_t *root,
                        const struct rp_completion_params *params) {
    struct state *s = rp_calloc(1, sizeof *s);
    const json_t *origin = json_object_get(root, RP_RESPONSES_ORIGIN);
    const json_t *request = json_object_get(origin, "request");
    json_t *include = get(request, "include"), *name;
    size_t i;
    answer->state = s;
    if (!s)
        return false;
    s->names = json_incref(json_object_get(origin, "names"));
    s->items = json_incref(json_object_get(origin, "items"));
    s->store = json_is_true(json_object_get(origin, "store"));
    s->summary = get(get(request, "reasoning"), "summary") != NULL;
    json_array_foreach(include, i, name) s->encrypted |= is(name, "reasoning.encrypted_content");
    write_head(answer, request, get(request, "previous_response_id"), params);
    return !answer->head.failed;
}

static void close_answer(struct rp_answer *answer) {
    struct state *s = answer->state;
    if (!s)
        return;
    for (size_t i = 0; buffers(s, i); i++)
        rp_buffer_deinit(buffers(s, i));
    json_decref(s->names);
    json_decref(s->items);
    rp_free(s);
}

/* --- The object ------------------------------------------------------------------------------ */

static void write_usage(struct rp_buffer *out, const struct rp_answer_usage *usage) {
    rp_buffer_printf(out,
                     ",\"usage\":{\"input_tokens\":%" PRIu64
                     ",\"input_tokens_details\":{\"cached_tokens\":%" PRIu64
                     ",\"cache_write_tokens\":0},\"output_tokens\":%" PRIu64
                     ",\"output_tokens_details\":{\"reasoning_tokens\":%" PRIu64
                     "},\"total_tokens\":%" PRIu64 "}",
                     usage->prompt, usage->cached, usage->completion, usage->reasoning,
                     usage->prompt + usage->completion);
}

static void write_error_member(struct rp_buffer *out, const struct rp_http_error *error) {
    if (!error) {
        rp_buffer_puts(out, ",\"error\":null");
        return;
    }
    const char *code = error->status == 429  ? "rate_limit_exceeded"
                       : error->status < 500 ? "invalid_prompt"
                                             : "server_error";
    rp_buffer_printf(out, ",\"error\":{\"code\":\"%s\",\"message\":", code);
    rp_json_escape(out, error->message, strlen(error->message));
    rp_buffer_puts(out, "}");
}

/* usage NULL: not known. */
static void write_object(const struct rp_answer *answer, const char *status,
                         const struct rp_http_error *error, const struct rp_answer_usage *usage,
                         struct rp_buffer *out) {
    const struct state *s = answer->state;
    bool cut = strcmp(status, "incomplete") == 0;
    rp_buffer_printf(out,
                     "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%" PRId64
                     ",\"status\":\"%s\",\"background\":false",
                     answer->id, answer->created, status);
    write_error_member(out, error);
    rp_buffer_printf(out, ",\"incomplete_details\":%s",
                     cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    rp_buffer_append(out, answer->head.data, answer->head.len);
    rp_buffer_puts(out, ",\"output\":[");
    rp_buffer_append(out, s->done.data, s->done.len);
    rp_buffer_puts(out, "]");
    if (usage)
        write_usage(out, usage);
    rp_buffer_puts(out, "}");
}

void rp_answer_responses_cancelled(const struct rp_answer *answer, struct rp_buffer *out) {
    write_object(answer, "cancelled", NULL, NULL, out);
}

static const char *final_status(const struct state *s) {
    return s->incomplete ? "incomplete" : "completed";
}

static void store_answer(struct rp_answer *answer, const char *body, size_t len) {
    struct state *s = answer->state;
    struct rp_buffer list = {.data = NULL};
    if (!s->store || answer->out.failed)
        return;
    rp_buffer_puts(&list, "[");
    rp_buffer_append(&list, s->done.data, s->done.len);
    rp_buffer_puts(&list, "]");
    json_t *output = list.failed ? NULL : json_loadb(list.data, list.len, JSON_ALLOW_NUL, NULL);
    json_t *items = output ? json_copy(s->items) : NULL;
    if (items && json_array_extend(items, output) == 0)
        rp_response_store_put(answer->server->responses, answer->owner,
                              &(struct rp_stored_response){.id = answer->id,
                                                           .items = items,
                                                           .input_count = json_array_size(s->items),
                                                           .body = body,
                                                           .len = len});
    json_decref(items);
    json_decref(output);
    rp_buffer_deinit(&list);
}

/* --- Events ---------------------------------------------------------------------------------- */

/* event: NAME, data: {"type":NAME,"sequence_number":N */
static void begin_event(struct rp_answer *answer, const char *name) {
    struct state *s = answer->state;
    if (answer->stream)
        rp_buffer_printf(&answer->out,
                         "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%" PRIu64, name,
                         name, s->sequence++);
}

static void end_event(struct rp_answer *answer) {
    if (answer->stream)
        rp_buffer_puts(&answer->out, "}\n\n");
}

static void write_response_event(struct rp_answer *answer, const char *name, const char *status,
                                 const struct rp_http_error *error,
                                 const struct rp_answer_usage *usage) {
    begin_event(answer, name);
    rp_buffer_puts(&answer->out, ",\"response\":");
    size_t at = answer->out.len;
    write_object(answer, status, error, usage, &answer->out);
    if (usage)
        store_answer(answer, answer->out.data + at, answer->out.len - at);
    end_event(answer);
}

static void begin_stream(struct rp_answer *answer, const struct rp_answer_usage *usage) {
    (void)usage;
    write_response_event(answer, "response.created", "in_progress", NULL, NULL);
    write_response_event(answer, "response.in_progress", "in_progress", NULL, NULL);
}

static void write_item_id(struct rp_buffer *out, const struct rp_answer *answer) {
    const struct state *s = answer->state;
    rp_buffer_printf(out, "%s_%s%04u", id_prefixes[s->item], strchr(answer->id, '_') + 1, s->index);
}

/* An event of the open item: its id and index, and the index of its only part where it has one. */
static void begin_item_event(struct rp_answer *answer, const char *name, const char *part_index) {
    const struct state *s = answer->state;
    begin_event(answer, name);
    rp_buffer_puts(&answer->out, ",\"item_id\":\"");
    write_item_id(&answer->out, answer);
    rp_buffer_printf(&answer->out, "\",\"output_index\":%u", s->index);
    if (part_index)
        rp_buffer_printf(&answer->out, ",\"%s\":0", part_index);
}

static void write_text(struct rp_buffer *out, const char *member, const struct rp_buffer *text) {
    rp_buffer_printf(out, ",\"%s\":", member);
    rp_json_escape(out, text->len ? text->data : "", text->len);
}

static void write_entries(struct rp_buffer *out, const struct rp_buffer *entries) {
    rp_buffer_puts(out, ",\"logprobs\":[");
    if (entries->len)
        rp_buffer_append(out, entries->data, entries->len);
    rp_buffer_puts(out, "]");
}

/* The only part of the open message or reasoning; its text only when it is complete. */
static void write_part_object(struct rp_buffer *out, const struct state *s, bool complete) {
    static const struct rp_buffer empty = {.data = NULL};
    bool message = s->item == ITEM_MESSAGE;
    rp_buffer_printf(out, "{\"type\":\"%s\"",
                     message      ? "output_text"
                     : s->summary ? "summary_text"
                                  : "reasoning_text");
    write_text(out, "text", complete ? &s->text : &empty);
    if (message) {
        rp_buffer_puts(out, ",\"annotations\":[]");
        write_entries(out, complete ? &s->logprobs : &empty);
    }
    rp_buffer_puts(out, "}");
}

/* --- Items ----------------------------------------------------------------------------------- */

static void write_reasoning_item(struct rp_buffer *out, const struct state *s, bool complete) {
    bool shown = complete && s->text.len;
    rp_buffer_puts(out, ",\"summary\":[");
    if (shown && s->summary)
        write_part_object(out, s, true);
    rp_buffer_puts(out, "]");
    if (shown && !s->summary) {
        rp_buffer_puts(out, ",\"content\":[");
        write_part_object(out, s, true);
        rp_buffer_puts(out, "]");
    }
    if (!complete || !s->encrypted)
        return;
    json_t *packed = rp_responses_pack_reasoning(s->text.len ? s->text.data : "", s->text.len);
    echo(out, "encrypted_content", packed, "null");
    out->failed |= !packed;
    json_decref(packed);
}

static void write_item(struct rp_answer *answer, struct rp_buffer *out, const char *status) {
    static const char *const types[] = {"", "reasoning", "message", "function_call",
                                        "custom_tool_call"};
    static const struct rp_buffer empty = {.data = NULL};
    const struct state *s = answer->state;
    bool complete = strcmp(status, "in_progress") != 0;
    rp_buffer_puts(out, "{\"id\":\"");
    write_item_id(out, answer);
    rp_buffer_printf(out, "\",\"type\":\"%s\"", types[s->item]);
    if (s->item != ITEM_CUSTOM)
        rp_buffer_printf(out, ",\"status\":\"%s\"", status);
    if (s->item == ITEM_REASONING) {
        write_reasoning_item(out, s, complete);
    } else if (s->item == ITEM_MESSAGE) {
        rp_buffer_puts(out, ",\"role\":\"assistant\",\"content\":[");
        if (complete)
            write_part_object(out, s, true);
        rp_buffer_puts(out, "]");
    } else {
        rp_buffer_append(out, s->call.data, s->call.len);
        write_text(out, s->item == ITEM_CUSTOM ? "input" : "arguments",
                   complete ? &s->text : &empty);
    }
    rp_buffer_puts(out, "}");
}

static const char *part_index(const struct state *s) {
    return s->item == ITEM_REASONING && s->summary ? "summary_index" : "content_index";
}

static void write_part_event(struct rp_answer *answer, bool complete) {
    const struct state *s = answer->state;
    const char *name = s->item == ITEM_REASONING && s->summary
                           ? complete ? "response.reasoning_summary_part.done"
                                      : "response.reasoning_summary_part.added"
                       : complete ? "response.content_part.done"
                                  : "response.content_part.added";
    begin_item_event(answer, name, part_index(s));
    rp_buffer_puts(&answer->out, ",\"part\":");
    write_part_object(&answer->out, s, complete);
    end_event(answer);
}

static bool has_part(const struct state *s) {
    return s->item == ITEM_REASONING || s->item == ITEM_MESSAGE;
}

static void open_item(struct rp_answer *answer, enum item item) {
    struct state *s = answer->state;
    s->item = item;
    rp_buffer_clear(&s->text);
    rp_buffer_clear(&s->logprobs);
    if (!answer->stream)
        return;
    begin_event(answer, "response.output_item.added");
    rp_buffer_printf(&answer->out, ",\"output_index\":%u,\"item\":", s->index);
    write_item(answer, &answer->out, "in_progress");
    end_event(answer);
    if (has_part(s))
        write_part_event(answer, false);
}

/* The events' names for what an item contains. */
static const char *delta_name(const struct state *s, bool done) {
    switch (s->item) {
    case ITEM_REASONING:
        if (s->summary)
            return done ? "response.reasoning_summary_text.done"
                        : "response.reasoning_summary_text.delta";
        return done ? "response.reasoning_text.done" : "response.reasoning_text.delta";
    case ITEM_FUNCTION:
        return done ? "response.function_call_arguments.done"
                    : "response.function_call_arguments.delta";
    case ITEM_CUSTOM:
        return done ? "response.custom_tool_call_input.done"
                    : "response.custom_tool_call_input.delta";
    case ITEM_MESSAGE:
    case ITEM_NONE:
        break;
    }
    return done ? "response.output_text.done" : "response.output_text.delta";
}

static void take_fresh(struct state *s) {
    if (s->fresh.len && s->logprobs.len)
        rp_buffer_puts(&s->logprobs, ",");
    rp_buffer_append(&s->logprobs, s->fresh.data, s->fresh.len);
    rp_buffer_clear(&s->fresh);
}

static void add_delta(struct rp_answer *answer, const char *bytes, size_t len) {
    struct state *s = answer->state;
    const struct rp_buffer piece = {.data = (char *)(uintptr_t)bytes, .len = len};
    rp_buffer_append(&s->text, bytes, len);
    if (answer->stream) {
        begin_item_event(answer, delta_name(s, false), has_part(s) ? part_index(s) : NULL);
        write_text(&answer->out, "delta", &piece);
        if (s->item == ITEM_MESSAGE)
            write_entries(&answer->out, &s->fresh);
        end_event(answer);
    }
    if (s->item == ITEM_MESSAGE)
        take_fresh(s);
}

static void write_done_events(struct rp_answer *answer, const char *status) {
    const struct state *s = answer->state;
    struct rp_buffer *out = &answer->out;
    begin_item_event(answer, delta_name(s, true), has_part(s) ? part_index(s) : NULL);
    if (s->item == ITEM_FUNCTION) {
        rp_buffer_puts(out, ",\"name\":");
        rp_buffer_append(out, s->name.data, s->name.len);
    }
    write_text(out,
               s->item == ITEM_FUNCTION ? "arguments"
               : s->item == ITEM_CUSTOM ? "input"
                                        : "text",
               &s->text);
    if (s->item == ITEM_MESSAGE)
        write_entries(out, &s->logprobs);
    end_event(answer);
    if (has_part(s))
        write_part_event(answer, true);
    begin_event(answer, "response.output_item.done");
    rp_buffer_printf(out, ",\"output_index\":%u,\"item\":", s->index);
    write_item(answer, out, status);
    end_event(answer);
}

static void close_item(struct rp_answer *answer, const char *status) {
    struct state *s = answer->state;
    if (s->item == ITEM_NONE)
        return;
    if (s->item == ITEM_MESSAGE)
        take_fresh(s);
    if (answer->stream)
        write_done_events(answer, status);
    if (s->index)
        rp_buffer_puts(&s->done, ",");
    write_item(answer, &s->done, status);
    s->item = ITEM_NONE;
    s->index++;
}

/* The call's members; a tool of a namespace gets its own names back. */
static void take_call(struct state *s, const char *bytes, const struct rp_answer_event *event) {
    const char *name = bytes + event->id_len;
    size_t len = event->len - event->id_len;
    const json_t *own = json_object_getn(s->names, name, len);
    const json_t *own_name = json_object_get(own, "name");
    rp_buffer_clear(&s->call);
    rp_buffer_clear(&s->name);
    if (own_name)
        rp_json_escape(&s->name, json_string_value(own_name), json_string_length(own_name));
    else
        rp_json_escape(&s->name, name, len);
    rp_buffer_puts(&s->call, ",\"call_id\":");
    rp_json_escape(&s->call, bytes, event->id_len);
    rp_buffer_puts(&s->call, ",\"name\":");
    rp_buffer_append(&s->call, s->name.data, s->name.len);
    if (own)
        echo(&s->call, "namespace", json_object_get(own, "namespace"), "null");
}

static void take_event(struct rp_answer *answer, const struct rp_answer_events *events,
                       const struct rp_answer_event *event) {
    struct state *s = answer->state;
    const char *bytes = rp_answer_bytes(events, event);
    enum item item = event->kind == RP_ANSWER_REASONING ? ITEM_REASONING
                     : event->kind == RP_ANSWER_TEXT    ? ITEM_MESSAGE
                     : event->custom                    ? ITEM_CUSTOM
                                                        : ITEM_FUNCTION;
    if (event->kind == RP_ANSWER_CALL_END) {
        close_item(answer, "completed");
        return;
    }
    if (s->item != item || event->kind == RP_ANSWER_CALL) {
        close_item(answer, "completed");
        if (event->kind == RP_ANSWER_CALL)
            take_call(s, bytes, event);
        open_item(answer, item);
    }
    if (event->kind != RP_ANSWER_CALL)
        add_delta(answer, bytes, event->len);
}

/* The entries of {"content":[...],"refusal":null}. */
static void take_logprobs(struct state *s, const struct rp_buffer *logprobs) {
    const char *begin = logprobs ? memchr(logprobs->data, '[', logprobs->len) : NULL;
    size_t len = begin ? (size_t)(logprobs->data + logprobs->len - begin - 1) : 0;
    while (len && begin[len] != ']')
        len--;
    if (!len || len == 1)
        return;
    if (s->fresh.len)
        rp_buffer_puts(&s->fresh, ",");
    rp_buffer_append(&s->fresh, begin + 1, len - 1);
}

static void take_part(struct rp_answer *answer, const struct rp_answer_choice *choice) {
    struct state *s = answer->state;
    take_logprobs(s, choice->logprobs);
    for (uint32_t i = 0; i < rp_answer_count(choice->events); i++)
        take_event(answer, choice->events, rp_answer_event(choice->events, i));
    if (choice->finish_reason) {
        s->incomplete = strcmp(choice->finish_reason, "length") == 0;
        if (s->item == ITEM_NONE && s->index == 0)
            open_item(answer, ITEM_MESSAGE); /* an answer without tokens */
        close_item(answer, final_status(s));
    }
    for (size_t i = 0; buffers(s, i); i++)
        answer->out.failed |= buffers(s, i)->failed;
}

/* --- Table ----------------------------------------------------------------------------------- */

static void write_part(struct rp_answer *answer, const struct rp_answer_choice *choice,
                       const struct rp_answer_usage *usage) {
    (void)usage;
    take_part(answer, choice);
}

static void end_stream(struct rp_answer *answer, const struct rp_answer_usage *usage,
                       const struct rp_buffer *more) {
    const struct state *s = answer->state;
    (void)more; /* members that the clients of this API do not ask for */
    write_response_event(answer, s->incomplete ? "response.incomplete" : "response.completed",
                         final_status(s), NULL, usage);
}

static void write_error(struct rp_answer *answer, const struct rp_http_error *error) {
    write_response_event(answer, "response.failed", "failed", error, NULL);
}

static void begin_whole(struct rp_answer *answer) { (void)answer; }

static void end_whole(struct rp_answer *answer, const struct rp_answer_usage *usage,
                      const struct rp_buffer *more) {
    (void)more;
    write_object(answer, final_status(answer->state), NULL, usage, &answer->out);
    store_answer(answer, answer->out.data, answer->out.len);
    rp_buffer_puts(&answer->out, "\n");
}

const struct rp_answer_api rp_answer_responses = {
    .id_prefix = "resp_",
    .keep_alive = ": waiting\n\n",
    .open = open_answer,
    .close = close_answer,
    .begin = begin_stream,
    .part = write_part,
    .end = end_stream,
    .error = write_error,
    .whole_begin = begin_whole,
    .whole_choice = take_part,
    .whole_end = end_whole,
    .logprobs = rp_token_log_chat,
};
