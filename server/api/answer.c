/* answer.c - the events of an answer. */
#include "server/api/answer.h"

#include <string.h>

static struct rp_answer_event *event_at(const struct rp_answer_events *events, uint32_t i) {
    /* The list's memory comes from malloc and holds nothing else. */
    return (struct rp_answer_event *)(void *)events->list.data + i;
}

uint32_t rp_answer_count(const struct rp_answer_events *events) {
    return (uint32_t)(events->list.len / sizeof(struct rp_answer_event));
}

const struct rp_answer_event *rp_answer_event(const struct rp_answer_events *events, uint32_t i) {
    RP_ASSERT_CMP(i, <, rp_answer_count(events));
    return event_at(events, i);
}

const char *rp_answer_bytes(const struct rp_answer_events *events,
                            const struct rp_answer_event *event) {
    return event->len ? events->bytes.data + event->at : "";
}

bool rp_answer_has(const struct rp_answer_events *events, enum rp_answer_event_kind kind) {
    for (uint32_t i = 0; i < rp_answer_count(events); i++)
        if (event_at(events, i)->kind == kind)
            return true;
    return false;
}

bool rp_answer_events_failed(const struct rp_answer_events *events) {
    return events->bytes.failed || events->list.failed;
}

/* Adds an event, or continues the last one. The event's bytes are appended already. */
static void add(struct rp_answer_events *events, const struct rp_answer_event *event) {
    uint32_t count = rp_answer_count(events);
    struct rp_answer_event *last = count ? event_at(events, count - 1) : NULL;
    bool joins = event->kind == RP_ANSWER_REASONING || event->kind == RP_ANSWER_TEXT ||
                 event->kind == RP_ANSWER_ARGUMENTS;
    if (rp_answer_events_failed(events))
        return;
    if (joins && last && last->kind == event->kind && last->call == event->call)
        last->len += event->len;
    else
        rp_buffer_append(&events->list, event, sizeof *event);
}

/* Zeroes the padding, too: events are copied as bytes. */
static struct rp_answer_event make(const struct rp_answer_events *events,
                                   enum rp_answer_event_kind kind, uint32_t call, bool custom,
                                   size_t len) {
    struct rp_answer_event event;
    memset(&event, 0, sizeof event);
    event.kind = kind;
    event.call = call;
    event.custom = custom;
    event.at = events->bytes.len;
    event.len = len;
    return event;
}

void rp_answer_add(struct rp_answer_events *events, enum rp_answer_event_kind kind,
                   const char *bytes, size_t len) {
    struct rp_answer_event event = make(events, kind, 0, false, len);
    if (len == 0)
        return;
    rp_buffer_append(&events->bytes, bytes, len);
    add(events, &event);
}

void rp_answer_add_call(struct rp_answer_events *events, uint32_t call, bool custom, const char *id,
                        const char *name, size_t name_len) {
    size_t id_len = strlen(id);
    struct rp_answer_event event = make(events, RP_ANSWER_CALL, call, custom, id_len + name_len);
    event.id_len = (uint32_t)id_len;
    rp_buffer_append(&events->bytes, id, id_len);
    rp_buffer_append(&events->bytes, name, name_len);
    add(events, &event);
}

void rp_answer_add_arguments(struct rp_answer_events *events, uint32_t call, bool custom,
                             const char *bytes, size_t len) {
    struct rp_answer_event event = make(events, RP_ANSWER_ARGUMENTS, call, custom, len);
    if (len == 0)
        return;
    rp_buffer_append(&events->bytes, bytes, len);
    add(events, &event);
}

void rp_answer_add_call_end(struct rp_answer_events *events, uint32_t call, bool custom) {
    struct rp_answer_event event = make(events, RP_ANSWER_CALL_END, call, custom, 0);
    add(events, &event);
}

void rp_answer_events_clear(struct rp_answer_events *events) {
    rp_buffer_clear(&events->bytes);
    rp_buffer_clear(&events->list);
}

void rp_answer_events_deinit(struct rp_answer_events *events) {
    rp_buffer_deinit(&events->bytes);
    rp_buffer_deinit(&events->list);
}

bool rp_answer_open(struct rp_answer *answer, json_t *root,
                    const struct rp_completion_params *params) {
    answer->api = params->answers;
    answer->stream = params->stream;
    answer->include_usage = params->include_usage;
    answer->continuous_usage = params->continuous_usage;
    return answer->api->open(answer, root, params);
}

void rp_answer_close(struct rp_answer *answer) {
    if (answer->api->close)
        answer->api->close(answer);
    rp_buffer_deinit(&answer->head);
    rp_buffer_deinit(&answer->out);
    rp_buffer_deinit(&answer->scratch);
}
