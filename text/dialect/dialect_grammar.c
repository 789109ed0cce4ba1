#include "text/dialect/dialect_grammar.h"

#include <stdio.h>
#include <string.h>

/* White space that a model may write before something forced. */
#define GAP "[ \\n\\t]{0,4}"

struct builder {
    const struct rp_bound_dialect *bound;
    const struct rp_dialect *row;
    const struct rp_answer_spec *spec;
    struct rp_format_failure failure;
    const char *failed_tool;
};

static json_t *pair(json_t *first, json_t *second) {
    return json_pack("{s:s, s:[o,o]}", "type", "sequence", "elements", first, second);
}

static json_t *three(json_t *first, json_t *second, json_t *third) {
    return json_pack("{s:s, s:[o,o,o]}", "type", "sequence", "elements", first, second, third);
}

/* The marker as the splitter looks for it: without the white space at its ends. */
static json_t *trimmed(const char *text) {
    size_t len = strlen(text);
    while (len > 0 && strchr(" \n\t\r", text[len - 1]))
        len--;
    size_t from = strspn(text, " \n\t\r");
    return json_stringn(text + RP_MIN(from, len), len - RP_MIN(from, len));
}

static const char *after_trimmed(const char *text, const json_t *shorter) {
    return text + strspn(text, " \n\t\r") + json_string_length(shorter);
}

/* --- Calls ----------------------------------------------------------------------------------- */

static json_t *harmony_header(const struct rp_dialect *row, const char *name, bool channel_first) {
    char text[NAME_MAX_BYTES + 128];
    const char *format = channel_first
                             ? "<|channel|>commentary to=%s%s <|constrain|>json<|message|>"
                             : " to=%s%s<|channel|>commentary <|constrain|>json<|message|>";
    int len = snprintf(text, sizeof text, format, row->name_prefix, name);
    return len > 0 && (size_t)len < sizeof text ? rp_format_text(text) : NULL;
}

static json_t *json_call(const struct rp_dialect *row, const struct rp_dialect_tool *tool,
                         json_t *arguments) {
    return json_pack("{s:s, s:[o,{s:s,s:{s:s}},o,o,o,o]}", "type", "sequence", "elements",
                     rp_format_text("{\"name\": "), "type", "json_schema", "json_schema", "const",
                     tool->name, rp_format_text(", \""), rp_format_text(row->arguments_key),
                     rp_format_text("\": "), pair(arguments, rp_format_text("}")));
}

static json_t *named_call(const struct rp_dialect *row, const struct rp_dialect_tool *tool,
                          json_t *arguments) {
    json_t *id = row->id_rule == RP_CALL_ID_FUNCTIONS ? rp_format_regex(":[0-9]{1,4}")
                 : row->id_open[0]
                     ? pair(rp_format_text(row->id_open), rp_format_regex("[A-Za-z0-9]{9}"))
                     : rp_format_text("");
    return json_pack("{s:s, s:[o,o,o,o,o]}", "type", "sequence", "elements",
                     rp_format_text(row->name_prefix), rp_format_text(tool->name), id,
                     rp_format_text(row->name_close), arguments);
}

/* A call without call_open and call_close. */
static json_t *call_body(struct builder *b, const struct rp_dialect_tool *tool) {
    const struct rp_dialect *row = b->row;
    json_t *arguments = rp_format_arguments(row, tool->parameters, &b->failure);
    if (!arguments) {
        b->failed_tool = tool->name;
        return NULL;
    }
    switch (row->shape) {
    case RP_CALL_JSON:
        return json_call(row, tool, arguments);
    case RP_CALL_NAMED:
        return named_call(row, tool, arguments);
    case RP_CALL_TAGGED:
        return three(rp_format_text(tool->name), rp_format_text(row->name_close), arguments);
    case RP_CALL_LITERAL:
        return pair(rp_format_text(tool->name), arguments);
    case RP_CALL_PYTHONIC:
        return json_pack("{s:s, s:[o,o,o,o]}", "type", "sequence", "elements",
                         rp_format_text(tool->name), rp_format_text("("), arguments,
                         rp_format_text(")"));
    default: {
        json_t *headers = json_pack("{s:s, s:[o,o]}", "type", "or", "elements",
                                    harmony_header(row, tool->name, true),
                                    harmony_header(row, tool->name, false));
        return pair(headers, arguments);
    }
    }
}

/* One call of any tool. */
static json_t *any_call(struct builder *b) {
    json_t *either = rp_format_or();
    for (size_t i = 0; i < b->spec->tool_count; i++)
        if (!rp_format_add(either, call_body(b, &b->spec->tools[i]))) {
            json_decref(either);
            return NULL;
        }
    return either;
}

/* What is written before the first name, between calls and at the end. */
static json_t *join_strings(const char *a, const char *b, const char *c) {
    struct rp_buffer text = {.data = NULL};
    rp_buffer_puts(&text, a);
    rp_buffer_puts(&text, b);
    rp_buffer_puts(&text, c);
    json_t *joined = text.failed ? NULL : json_stringn(text.len ? text.data : "", text.len);
    rp_buffer_deinit(&text);
    return joined;
}

static const char *call_open(const struct rp_dialect *row) {
    return row->bare && row->shape == RP_CALL_JSON ? "" : row->call_open;
}

/* All calls. `opening`: the text before the first name. */
static json_t *calls_after(struct builder *b, const char *opening) {
    const struct rp_dialect *row = b->row;
    json_t *between = NULL, *end = NULL, *call = any_call(b), *all = NULL;
    if (!call)
        return NULL;
    if (row->section_per_call) {
        between = join_strings(row->call_close, row->section_close, row->separator);
        end = join_strings(row->call_close, row->section_close, "");
    } else {
        between = join_strings(row->call_close, row->separator, "");
        end = join_strings(row->call_close, row->section_close, "");
    }
    json_t *again = row->section_per_call ? join_strings(row->section_open, call_open(row), "")
                                          : json_string(call_open(row));
    if (between && end && again) {
        json_t *first = pair(rp_format_text(opening), json_incref(call));
        json_t *more = three(rp_format_text(json_string_value(between)),
                             rp_format_text(json_string_value(again)), json_incref(call));
        if (!b->spec->parallel) {
            json_decref(more);
            more = rp_format_text("");
        } else {
            more = json_pack("{s:s, s:o}", "type", "star", "content", more);
        }
        all = three(first, more, rp_format_text(json_string_value(end)));
    }
    json_decref(call);
    json_decref(between);
    json_decref(end);
    json_decref(again);
    return all;
}

/* The text that free text is watched for, and what comes between it and the first name. */
static json_t *trigger_of(const struct rp_dialect *row, json_t **out_opening) {
    *out_opening = join_strings(row->section_open, call_open(row), "");
    return *out_opening ? trimmed(row->section_open[0] ? row->section_open : call_open(row)) : NULL;
}

static bool is_common(const struct rp_bound_dialect *bound, enum marker_kind kind) {
    const struct marker *marker = &bound->markers[kind];
    for (uint32_t i = 0; i < marker->count; i++)
        if (marker->symbols[i] - SYM_SPECIAL < SPECIALS_MAX)
            return false;
    return marker->count < 4;
}

/* --- Text ------------------------------------------------------------------------------------ */

static bool add_text(json_t *list, json_t *text, const char *not_inside) {
    const char *value = json_string_value(text);
    bool skip = !value || !value[0] || (not_inside && strstr(not_inside, value));
    bool ok = value && (skip || json_array_append(list, text) == 0);
    json_decref(text);
    return ok;
}

/* Texts that would start a call although none is meant to. */
static json_t *call_texts(struct builder *b, const char *not_inside) {
    static const char *const gaps[] = {"", " ", "\n", "\n  ", "\n    "};
    const struct rp_dialect *row = b->row;
    json_t *list = json_array();
    bool ok = list != NULL, section = row->section_open[0] != '\0';
    bool common = is_common(b->bound, section ? MK_SECTION_OPEN : MK_CALL_OPEN);
    char text[NAME_MAX_BYTES + 16];
    if (section && !common)
        ok = ok && add_text(list, trimmed(row->section_open), not_inside);
    if (row->call_open[0] && !is_common(b->bound, MK_CALL_OPEN))
        ok = ok && add_text(list, trimmed(row->call_open), not_inside);
    if (row->shape == RP_CALL_JSON && (row->bare || common))
        for (size_t i = 0; i < 2 * RP_ARRAY_COUNT(gaps) && ok; i++) {
            snprintf(text, sizeof text, "{%s\"%s\"", gaps[i / 2],
                     i % 2 ? row->arguments_key : "name");
            ok = add_text(list, json_string(text), not_inside);
        }
    for (size_t i = 0; row->shape == RP_CALL_PYTHONIC && common && i < b->spec->tool_count && ok;
         i++) {
        snprintf(text, sizeof text, "%.*s(", NAME_MAX_BYTES, b->spec->tools[i].name);
        ok = add_text(list, json_string(text), not_inside);
    }
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}

static bool add_no_reasoning(struct builder *b, json_t *excludes) {
    return !b->spec->reasoning_off || add_text(excludes, trimmed(b->row->reasoning_open), NULL);
}

static json_t *free_text(struct builder *b, bool may_reason) {
    json_t *excludes = b->row->shape == RP_CALL_NONE ? json_array() : call_texts(b, NULL);
    if (!excludes || (!may_reason && !add_no_reasoning(b, excludes))) {
        json_decref(excludes);
        return NULL;
    }
    return json_pack("{s:s, s:o}", "type", "any_text", "excludes", excludes);
}

static json_t *text_or_format(struct builder *b) {
    if (!b->spec->text_format)
        return free_text(b, false);
    return pair(rp_format_regex(GAP), json_incref((json_t *)b->spec->text_format));
}

/* Free text, then calls once one begins. */
static json_t *triggered(struct builder *b) {
    json_t *opening, *trigger = trigger_of(b->row, &opening), *format = NULL, *excludes = NULL;
    json_t *rest =
        trigger ? calls_after(b, after_trimmed(json_string_value(opening), trigger)) : NULL;
    if (rest)
        excludes = call_texts(b, json_string_value(trigger));
    if (excludes && add_no_reasoning(b, excludes))
        format =
            json_pack("{s:s, s:[O], s:O, s:b, s:[{s:s, s:O, s:O, s:s}]}", "type", "triggered_tags",
                      "triggers", trigger, "excludes", excludes, "stop_after_first", 1, "tags",
                      "type", "tag", "begin", trigger, "content", rest, "end", "");
    json_decref(opening);
    json_decref(trigger);
    json_decref(rest);
    json_decref(excludes);
    return format;
}

static json_t *calls_only(struct builder *b) {
    json_t *opening = join_strings(b->row->section_open, call_open(b->row), "");
    json_t *calls = opening ? calls_after(b, json_string_value(opening)) : NULL;
    json_decref(opening);
    return calls ? pair(rp_format_regex(GAP), calls) : NULL;
}

static json_t *body(struct builder *b) {
    const struct rp_dialect *row = b->row;
    if (b->spec->choice == RP_TOOLS_NONE)
        return text_or_format(b);
    if (b->spec->choice == RP_TOOLS_REQUIRED)
        return calls_only(b);
    bool common = is_common(b->bound, row->section_open[0] ? MK_SECTION_OPEN : MK_CALL_OPEN);
    if (!b->spec->text_format && !common && !(row->bare && row->shape == RP_CALL_JSON))
        return triggered(b);
    json_t *calls = calls_only(b);
    return calls ? json_pack("{s:s, s:[o,o]}", "type", "or", "elements", calls, text_or_format(b))
                 : NULL;
}

/* --- Reasoning ------------------------------------------------------------------------------- */

/* Free text up to `end`, at most so many tokens. With a budget, calls inside are not kept away. */
static json_t *thoughts(struct builder *b, const char *end) {
    json_t *text = json_pack("{s:s}", "type", "any_text");
    bool ok = text != NULL;
    if (ok && b->spec->reasoning_tokens > 0)
        ok = json_object_set_new(text, "max_tokens", json_integer(b->spec->reasoning_tokens)) == 0;
    else if (ok && b->spec->choice != RP_TOOLS_NONE && b->row->shape != RP_CALL_HARMONY)
        ok = json_object_set_new(text, "excludes", call_texts(b, end)) == 0;
    json_t *tag =
        json_pack("{s:s, s:s, s:o, s:s}", "type", "tag", "begin", "", "content", text, "end", end);
    if (ok)
        return tag;
    json_decref(tag);
    return NULL;
}

static json_t *plain_answer(struct builder *b) {
    json_t *open = trimmed(b->row->reasoning_open), *close = trimmed(b->row->reasoning_close);
    json_t *answer = body(b);
    bool has = json_string_length(open) > 0 && json_string_length(close) > 0;
    if (answer && has && b->spec->start == RP_START_REASONING)
        answer = pair(thoughts(b, json_string_value(close)), answer);
    else if (answer && has && !b->spec->reasoning_off)
        answer = pair(
            rp_format_optional(three(rp_format_regex(GAP), rp_format_text(json_string_value(open)),
                                     thoughts(b, json_string_value(close)))),
            answer);
    json_decref(open);
    json_decref(close);
    return answer;
}

#define NEXT_MESSAGE "<|end|><|start|>assistant"

static json_t *harmony_answer(struct builder *b) {
    bool text = b->spec->choice != RP_TOOLS_REQUIRED, calls = b->spec->choice != RP_TOOLS_NONE;
    json_t *last = rp_format_or();
    bool ok = last != NULL;
    if (ok && text)
        ok = rp_format_add(last,
                           pair(rp_format_text("<|channel|>final<|message|>"),
                                b->spec->text_format ? json_incref((json_t *)b->spec->text_format)
                                                     : json_pack("{s:s}", "type", "any_text")));
    if (ok && calls)
        ok = rp_format_add(last, any_call(b));
    if (ok && b->spec->start == RP_START_TEXT && text)
        ok = rp_format_add(last, json_pack("{s:s}", "type", "any_text"));
    if (!ok) {
        json_decref(last);
        return NULL;
    }
    if (b->spec->start == RP_START_REASONING)
        return pair(thoughts(b, NEXT_MESSAGE), last);
    if (b->spec->start == RP_START_TEXT || b->spec->reasoning_off)
        return last;
    json_t *preamble =
        text ? rp_format_optional(rp_format_until("<|channel|>commentary<|message|>", NEXT_MESSAGE))
             : rp_format_text("");
    return three(rp_format_optional(pair(rp_format_text("<|channel|>analysis<|message|>"),
                                         thoughts(b, NEXT_MESSAGE))),
                 preamble, last);
}

/* --- The interface --------------------------------------------------------------------------- */

static int append(const char *bytes, size_t len, void *out) {
    rp_buffer_append(out, bytes, len);
    return 0;
}

int rp_dialect_answer_grammar(const struct rp_bound_dialect *bound,
                              const struct rp_answer_spec *spec, struct rp_buffer *out,
                              struct rp_error *err) {
    struct builder b = {.bound = bound, .row = &bound->row, .spec = spec};
    if (spec->choice != RP_TOOLS_NONE && (b.row->shape == RP_CALL_NONE || spec->tool_count == 0))
        return rp_error_set(err, RP_STATUS_INVALID, "%s",
                            spec->tool_count == 0
                                ? "a call needs a tool"
                                : "this model's chat template has no form for tool calls: start "
                                  "the server with --tool-call-parser");
    json_t *answer = b.row->shape == RP_CALL_HARMONY ? harmony_answer(&b) : plain_answer(&b);
    json_t *tag = json_pack("{s:s, s:o}", "type", "structural_tag", "format", answer);
    if (tag && json_dump_callback(tag, append, out, JSON_COMPACT) == 0 && !out->failed) {
        json_decref(tag);
        return RP_OK;
    }
    json_decref(tag);
    if (b.failure.keyword)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "tool %s: \"%s\" in its parameters cannot be enforced in this model's "
                            "form of tool calls",
                            b.failed_tool, b.failure.keyword);
    return rp_error_set(err, RP_STATUS_NO_MEMORY, "grammar of the answer: out of memory");
}
