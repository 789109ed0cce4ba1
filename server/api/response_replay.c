#include "server/api/response_replay.h"

#include <jansson.h>
#include <string.h>

struct replay {
    struct rp_buffer *out;
    uint64_t sequence, from;
};

static json_t *get(const json_t *object, const char *name) { return json_object_get(object, name); }

static bool is(const json_t *value, const char *text) {
    const char *own = json_string_value(value);
    return own && strcmp(own, text) == 0;
}

static int append_dump(const char *bytes, size_t len, void *out) {
    rp_buffer_append(out, bytes, len);
    return ((struct rp_buffer *)out)->failed ? -1 : 0;
}

/* Takes the event's members over; NULL: no memory. */
static void emit(struct replay *r, const char *name, json_t *members) {
    bool good = members != NULL;
    if (r->sequence >= r->from) {
        good = good && json_object_set_new(members, "type", json_string(name)) == 0 &&
               json_object_set_new(members, "sequence_number",
                                   json_integer((json_int_t)r->sequence)) == 0;
        rp_buffer_printf(r->out, "event: %s\ndata: ", name);
        good = good && json_dump_callback(members, append_dump, r->out, JSON_COMPACT) == 0;
        rp_buffer_puts(r->out, "\n\n");
    }
    r->out->failed |= !good;
    r->sequence++;
    json_decref(members);
}

static json_t *with(json_t *members, const char *name, json_t *value) {
    if (members && json_object_set(members, name, value) == 0)
        return members;
    json_decref(members);
    return NULL;
}

static json_t *with_new(json_t *members, const char *name, json_t *value) {
    members = with(members, name, value);
    json_decref(value);
    return members;
}

/* --- Parts of messages and of reasoning ------------------------------------------------------- */

struct place {
    json_t *item; /* the complete one */
    json_int_t index;
};

/* The members that all events of an item have. part: the index of its part, or -1. */
static json_t *item_event(const struct place *at, const char *part_name, size_t part) {
    json_t *members =
        json_pack("{s:O,s:I}", "item_id", get(at->item, "id"), "output_index", at->index);
    return part_name ? with_new(members, part_name, json_integer((json_int_t)part)) : members;
}

/* The part before its text. */
static json_t *empty_part(json_t *part) {
    json_t *empty = with_new(json_copy(part), "text", json_string(""));
    return get(part, "logprobs") ? with_new(empty, "logprobs", json_array()) : empty;
}

struct part_names {
    const char *index, *added, *delta, *text_done, *done;
};

static const struct part_names content_names = {
    "content_index", "response.content_part.added", "response.output_text.delta",
    "response.output_text.done", "response.content_part.done"};
static const struct part_names reasoning_names = {
    "content_index", "response.content_part.added", "response.reasoning_text.delta",
    "response.reasoning_text.done", "response.content_part.done"};
static const struct part_names summary_names = {
    "summary_index", "response.reasoning_summary_part.added",
    "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done",
    "response.reasoning_summary_part.done"};

static void replay_parts(struct replay *r, const struct place *at, const struct part_names *names,
                         json_t *parts) {
    size_t i;
    json_t *part;
    json_array_foreach(parts, i, part) {
        json_t *text = get(part, "text"), *logprobs = get(part, "logprobs");
        emit(r, names->added, with_new(item_event(at, names->index, i), "part", empty_part(part)));
        json_t *delta = with(item_event(at, names->index, i), "delta", text);
        json_t *done = with(item_event(at, names->index, i), "text", text);
        if (logprobs) {
            delta = with(delta, "logprobs", logprobs);
            done = with(done, "logprobs", logprobs);
        }
        if (json_string_length(text))
            emit(r, names->delta, delta);
        else
            json_decref(delta);
        emit(r, names->text_done, done);
        emit(r, names->done, with(item_event(at, names->index, i), "part", part));
    }
}

/* --- Items ----------------------------------------------------------------------------------- */

static void replay_call(struct replay *r, const struct place *at) {
    bool custom = is(get(at->item, "type"), "custom_tool_call");
    json_t *text = get(at->item, custom ? "input" : "arguments");
    json_t *done = with(item_event(at, NULL, 0), custom ? "input" : "arguments", text);
    if (!custom)
        done = with(done, "name", get(at->item, "name"));
    if (json_string_length(text))
        emit(r,
             custom ? "response.custom_tool_call_input.delta"
                    : "response.function_call_arguments.delta",
             with(item_event(at, NULL, 0), "delta", text));
    emit(r,
         custom ? "response.custom_tool_call_input.done" : "response.function_call_arguments.done",
         done);
}

/* The item when it was added: nothing of it was known but its kind. */
static json_t *begun_item(json_t *item) {
    static const char *const texts[] = {"arguments", "input"};
    json_t *begun = json_copy(item);
    if (get(item, "status"))
        begun = with_new(begun, "status", json_string("in_progress"));
    for (size_t i = 0; i < RP_ARRAY_COUNT(texts); i++)
        if (get(item, texts[i]))
            begun = with_new(begun, texts[i], json_string(""));
    if (is(get(item, "type"), "message"))
        return with_new(begun, "content", json_array());
    if (!is(get(item, "type"), "reasoning"))
        return begun;
    json_object_del(begun, "content");
    json_object_del(begun, "encrypted_content");
    return with_new(begun, "summary", json_array());
}

static void replay_item(struct replay *r, json_t *item, size_t index) {
    const struct place at = {.item = item, .index = (json_int_t)index};
    json_t *type = get(item, "type");
    emit(r, "response.output_item.added",
         with_new(json_pack("{s:I}", "output_index", at.index), "item", begun_item(item)));
    if (is(type, "message")) {
        replay_parts(r, &at, &content_names, get(item, "content"));
    } else if (is(type, "reasoning")) {
        replay_parts(r, &at, &reasoning_names, get(item, "content"));
        replay_parts(r, &at, &summary_names, get(item, "summary"));
    } else {
        replay_call(r, &at);
    }
    emit(r, "response.output_item.done",
         with(json_pack("{s:I}", "output_index", at.index), "item", item));
}

void rp_response_replay(const char *body, size_t len, uint64_t from, struct rp_buffer *out) {
    struct replay r = {.out = out, .from = from};
    json_t *object = json_loadb(body, len, JSON_ALLOW_NUL, NULL), *item;
    json_t *begun = with_new(json_copy(object), "status", json_string("in_progress"));
    bool complete = is(get(object, "status"), "completed");
    size_t i;
    begun = with_new(begun, "output", json_array());
    begun = with_new(begun, "incomplete_details", json_null());
    json_object_del(begun, "usage");
    emit(&r, "response.created", with(json_object(), "response", begun));
    emit(&r, "response.in_progress", with(json_object(), "response", begun));
    json_array_foreach(get(object, "output"), i, item) replay_item(&r, item, i);
    emit(&r, complete ? "response.completed" : "response.incomplete",
         with(json_object(), "response", object));
    json_decref(begun);
    json_decref(object);
}
