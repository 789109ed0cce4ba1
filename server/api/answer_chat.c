/* answer_chat.c - answers of /v1/chat/completions. A stream has one delta for each event: a tool
 * call begins with a delta that has its index, id, type and name, and later deltas repeat none but
 * the index. Reasoning is written under both names that clients know. */
#include "base/json_writer.h"
#include "server/api/answer.h"

static bool open_answer(struct rp_answer *answer, json_t *root,
                        const struct rp_completion_params *params) {
    (void)root;
    answer->legacy_calls = params->tools.legacy;
    return rp_answer_json_head(answer,
                               answer->stream ? "chat.completion.chunk" : "chat.completion");
}

/* ,"key":"text" for each of two keys. */
static void write_reasoning(struct rp_answer *answer, const struct rp_answer_events *events) {
    rp_buffer_puts(&answer->out, "\"reasoning\":");
    rp_answer_json_joined(answer, events, RP_ANSWER_REASONING);
    rp_buffer_puts(&answer->out, ",\"reasoning_content\":");
    rp_answer_json_joined(answer, events, RP_ANSWER_REASONING);
}

/* "name":..,"arguments":  without the arguments */
static void write_name(struct rp_buffer *out, const struct rp_answer_events *events,
                       const struct rp_answer_event *call) {
    const char *bytes = rp_answer_bytes(events, call);
    rp_buffer_puts(out, "\"name\":");
    rp_json_escape(out, bytes + call->id_len, call->len - call->id_len);
    rp_buffer_printf(out, ",\"%s\":", call->custom ? "input" : "arguments");
}

/* "id":..,"type":..,"function":{"name":..,"arguments":  without the arguments */
static void write_call(struct rp_buffer *out, const struct rp_answer_events *events,
                       const struct rp_answer_event *call) {
    const char *bytes = rp_answer_bytes(events, call);
    const char *type = call->custom ? "custom" : "function";
    rp_buffer_puts(out, "\"id\":");
    rp_json_escape(out, bytes, call->id_len);
    rp_buffer_printf(out, ",\"type\":\"%s\",\"%s\":{", type, type);
    write_name(out, events, call);
}

/* --- Whole answers --------------------------------------------------------------------------- */

/* The arguments of a call are one event, or none. */
static void write_arguments(struct rp_buffer *out, const struct rp_answer_events *events,
                            uint32_t call_at) {
    const struct rp_answer_event *next =
        call_at + 1 < rp_answer_count(events) ? rp_answer_event(events, call_at + 1) : NULL;
    if (next && next->kind == RP_ANSWER_ARGUMENTS)
        rp_json_escape(out, rp_answer_bytes(events, next), next->len);
    else
        rp_buffer_puts(out, "\"\"");
}

/* The older form has one call, without id and type. */
static void write_function_call(struct rp_buffer *out, const struct rp_answer_events *events) {
    uint32_t i = 0;
    while (i < rp_answer_count(events) && rp_answer_event(events, i)->kind != RP_ANSWER_CALL)
        i++;
    if (i == rp_answer_count(events))
        return;
    rp_buffer_puts(out, ",\"function_call\":{");
    write_name(out, events, rp_answer_event(events, i));
    write_arguments(out, events, i);
    rp_buffer_puts(out, "}");
}

static void write_calls(struct rp_buffer *out, const struct rp_answer_events *events) {
    bool any = false;
    for (uint32_t i = 0; i < rp_answer_count(events); i++) {
        const struct rp_answer_event *event = rp_answer_event(events, i);
        if (event->kind != RP_ANSWER_CALL)
            continue;
        rp_buffer_puts(out, any ? ",{" : ",\"tool_calls\":[{");
        write_call(out, events, event);
        write_arguments(out, events, i);
        rp_buffer_puts(out, "}}");
        any = true;
    }
    rp_buffer_puts(out, any ? "]" : "");
}

static void write_whole(struct rp_answer *answer, const struct rp_answer_choice *choice) {
    const struct rp_answer_events *events = choice->events;
    struct rp_buffer *out = &answer->out;
    rp_buffer_printf(out, "%s{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":",
                     choice->index ? "," : "", choice->index);
    if (rp_answer_has(events, RP_ANSWER_TEXT) || rp_answer_count(events) == 0)
        rp_answer_json_joined(answer, events, RP_ANSWER_TEXT);
    else
        rp_buffer_puts(out, "null");
    rp_buffer_puts(out, ",\"refusal\":null");
    if (rp_answer_has(events, RP_ANSWER_REASONING)) {
        rp_buffer_puts(out, ",");
        write_reasoning(answer, events);
    }
    if (answer->legacy_calls)
        write_function_call(out, events);
    else
        write_calls(out, events);
    rp_buffer_puts(out, "}");
    rp_answer_json_choice_tail(out, choice, choice->finish_reason != NULL);
}

/* --- Streams --------------------------------------------------------------------------------- */

/* The members of the delta that shows the event. */
static void write_event(struct rp_answer *answer, const struct rp_answer_events *events,
                        const struct rp_answer_event *event) {
    struct rp_buffer *out = &answer->out;
    switch (event->kind) {
    case RP_ANSWER_TEXT:
        rp_buffer_puts(out, "\"content\":");
        rp_json_escape(out, rp_answer_bytes(events, event), event->len);
        break;
    case RP_ANSWER_REASONING:
        rp_buffer_puts(out, "\"reasoning\":");
        rp_json_escape(out, rp_answer_bytes(events, event), event->len);
        rp_buffer_puts(out, ",\"reasoning_content\":");
        rp_json_escape(out, rp_answer_bytes(events, event), event->len);
        break;
    case RP_ANSWER_CALL:
        if (answer->legacy_calls) {
            rp_buffer_puts(out, "\"function_call\":{");
            write_name(out, events, event);
            rp_buffer_puts(out, "\"\"}");
            break;
        }
        rp_buffer_printf(out, "\"tool_calls\":[{\"index\":%u,", event->call);
        write_call(out, events, event);
        rp_buffer_puts(out, "\"\"}}]");
        break;
    case RP_ANSWER_ARGUMENTS:
        if (answer->legacy_calls)
            rp_buffer_puts(out, "\"function_call\":{\"arguments\":");
        else
            rp_buffer_printf(out, "\"tool_calls\":[{\"index\":%u,\"%s\":{\"%s\":", event->call,
                             event->custom ? "custom" : "function",
                             event->custom ? "input" : "arguments");
        rp_json_escape(out, rp_answer_bytes(events, event), event->len);
        rp_buffer_puts(out, answer->legacy_calls ? "}" : "}}]");
        break;
    case RP_ANSWER_CALL_END:
        break;
    }
}

/* One chunk. event NULL: without one. Log-probabilities and ids are in the first chunk only. */
static void write_chunk(struct rp_answer *answer, const struct rp_answer_choice *choice,
                        const struct rp_answer_event *event, bool first, bool finished,
                        const struct rp_answer_usage *usage) {
    static const char role[] = "\"role\":\"assistant\"";
    struct rp_answer_choice shown = *choice;
    struct rp_buffer *out = &answer->out;
    if (!first) {
        shown.logprobs = NULL;
        shown.token_ids = shown.prompt_ids = NULL;
    }
    rp_answer_json_begin(answer);
    rp_buffer_printf(out, "{\"index\":%u,\"delta\":{", choice->index);
    bool no_text =
        event ? event->kind != RP_ANSWER_TEXT : choice->held || rp_answer_count(choice->events) > 0;
    if (first && choice->first) {
        rp_buffer_puts(out, role);
        rp_buffer_puts(out, no_text ? ",\"content\":null" : "");
        rp_buffer_puts(out, event || !no_text ? "," : "");
    }
    if (event)
        write_event(answer, choice->events, event);
    else if (!no_text && ((first && choice->first) || !finished))
        rp_buffer_puts(out, "\"content\":\"\"");
    rp_buffer_puts(out, "}");
    rp_answer_json_choice_tail(out, &shown, finished);
    rp_answer_json_end(answer, usage, NULL);
}

/* Text and the end of the choice share a chunk; a call's last delta has no finish_reason. */
static void write_part(struct rp_answer *answer, const struct rp_answer_choice *choice,
                       const struct rp_answer_usage *usage) {
    bool first = true, finished = false;
    uint32_t count = rp_answer_count(choice->events);
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_answer_event *event = rp_answer_event(choice->events, i);
        if (event->kind == RP_ANSWER_CALL_END)
            continue;
        finished = choice->finish_reason && i + 1 == count && event->kind == RP_ANSWER_TEXT;
        write_chunk(answer, choice, event, first, finished, usage);
        first = false;
    }
    bool pending = choice->logprobs || choice->token_ids || answer->continuous_usage;
    if (!finished && (choice->finish_reason || (first && (count == 0 || pending))))
        write_chunk(answer, choice, NULL, first, choice->finish_reason != NULL, usage);
}

const struct rp_answer_api rp_answer_chat = {
    .id_prefix = "chatcmpl-",
    .open = open_answer,
    .part = write_part,
    .end = rp_answer_json_last,
    .error = rp_answer_json_error,
    .whole_begin = rp_answer_json_whole_begin,
    .whole_choice = write_whole,
    .whole_end = rp_answer_json_whole_end,
    .logprobs = rp_token_log_chat,
};
