/* completion_grammar.c - what the answer of a chat must match: the model's dialect, the tools, and
 * the request's own grammar as the form of its text. Runs on the thread that tokenizes, after the
 * prompt was rendered: its end says how the answer begins. */
#include "base/memory.h"
#include "server/api/completion_internal.h"

#include <string.h>

/* The request's grammar as a format of a structural tag; NULL: it has none, or memory is out. */
static json_t *text_format(const struct rp_grammar_spec *spec) {
    json_t *format = NULL, *parsed = NULL;
    switch (spec->kind) {
    case RP_GRAMMAR_JSON_OBJECT:
        return json_pack("{s:s, s:{s:s}}", "type", "json_schema", "json_schema", "type", "object");
    case RP_GRAMMAR_JSON_SCHEMA:
        parsed = json_loadb(spec->source, spec->len, JSON_DECODE_ANY, NULL);
        return json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", parsed);
    case RP_GRAMMAR_REGEX:
        return json_pack("{s:s, s:s%}", "type", "regex", "pattern", spec->source, spec->len);
    case RP_GRAMMAR_CHOICE: {
        size_t i;
        json_t *text, *elements = json_array();
        parsed = json_loadb(spec->source, spec->len, 0, NULL);
        json_array_foreach(parsed, i, text) json_array_append_new(
            elements, json_pack("{s:s, s:O}", "type", "const_string", "value", text));
        json_decref(parsed);
        return json_pack("{s:s, s:o}", "type", "or", "elements", elements);
    }
    case RP_GRAMMAR_STRUCTURAL_TAG:
        parsed = json_loadb(spec->source, spec->len, 0, NULL);
        format = json_incref(json_object_get(parsed, "format"));
        json_decref(parsed);
        return format;
    case RP_GRAMMAR_GBNF:
    case RP_GRAMMAR_LARK:
        return json_pack("{s:s, s:s%}", "type", "grammar", "grammar", spec->source, spec->len);
    case RP_GRAMMAR_NONE:
        break;
    }
    return NULL;
}

static bool reasons(const struct rp_completion *c) {
    const struct rp_dialect *row = rp_bound_dialect_row(c->server->serving.dialect);
    return row->reasoning_close[0] || row->shape == RP_CALL_HARMONY;
}

/* Whether the dialect restricts the answer. Without tools and reasoning the request's own grammar
 * is the answer's. */
static bool needs_dialect(const struct rp_completion *c) {
    const struct rp_completion_params *params = &c->params;
    if (!c->server->serving.dialect || params->api != RP_API_CHAT)
        return false;
    if (params->tools.count && !c->server->serving.free_calls)
        return true;
    return reasons(c) && (params->reasoning_tokens >= 0 || params->grammar.kind != RP_GRAMMAR_NONE);
}

static bool thinking_off(const struct rp_completion_params *params) {
    const json_t *kwargs = params->template_kwargs;
    return json_is_false(params->enable_thinking) ||
           json_is_false(json_object_get(kwargs, "enable_thinking")) ||
           json_is_false(json_object_get(kwargs, "thinking")) || params->reasoning_tokens == 0 ||
           (params->reasoning_effort && strcmp(params->reasoning_effort, "none") == 0);
}

/* tools: those of the request, or stand-ins whose arguments are any object. */
static bool compile(struct rp_completion *c, const struct rp_dialect_tool *tools,
                    struct rp_http_error *error) {
    const struct rp_completion_params *params = &c->params;
    bool has_text = params->grammar.kind != RP_GRAMMAR_NONE;
    json_t *format = has_text ? text_format(&params->grammar) : NULL;
    const struct rp_answer_spec spec = {
        .tools = tools,
        .tool_count = params->tools.callable,
        .choice = params->tools.count ? params->tools.choice : RP_TOOLS_NONE,
        .parallel = params->parallel_tool_calls,
        .start = c->start,
        .reasoning_off = thinking_off(params),
        .reasoning_tokens = (uint32_t)RP_MAX(params->reasoning_tokens, 0),
        .text_format = format};
    struct rp_buffer source = {.data = NULL};
    struct rp_error err = {.text = ""};
    const char *field = has_text                   ? params->grammar.field
                        : params->tools.count == 0 ? "messages"
                        : params->tools.legacy     ? "functions"
                                                   : "tools";
    int status = has_text && !format
                     ? RP_STATUS_NO_MEMORY
                     : rp_dialect_answer_grammar(c->server->serving.dialect, &spec, &source, &err);
    if (status == RP_OK) {
        const struct rp_grammar_spec grammar = {.kind = RP_GRAMMAR_STRUCTURAL_TAG,
                                                .field = field,
                                                .source = source.data,
                                                .len = source.len};
        c->grammar = rp_grammar_compile(c->server->grammars, &grammar, error);
    } else if (status == RP_STATUS_NO_MEMORY) {
        rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    } else {
        rp_http_error_set(error, 400, field, "invalid_grammar", "%s cannot be enforced: %.300s",
                          field, err.text);
    }
    rp_buffer_deinit(&source);
    json_decref(format);
    return c->grammar != NULL;
}

/* Schemas of agents' tools have keywords that cannot be enforced. Unless a tool is strict, all
 * tools are then called with any JSON object. */
static bool compile_relaxed(struct rp_completion *c, struct rp_http_error *error) {
    const struct rp_tools *tools = &c->params.tools;
    struct rp_dialect_tool *any = rp_calloc(tools->count, sizeof *any);
    if (!any)
        return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    for (uint32_t i = 0; i < tools->count; i++)
        any[i].name = tools->tools[i].name;
    bool ok = compile(c, any, error);
    rp_free(any);
    return ok;
}

void rp_completion_make_grammar(struct rp_completion *c) {
    const struct rp_tools *tools = &c->params.tools;
    struct rp_http_error relaxed_error = {.status = 0};
    if (!needs_dialect(c)) {
        if (c->params.grammar.kind != RP_GRAMMAR_NONE)
            c->grammar =
                rp_grammar_compile(c->server->grammars, &c->params.grammar, &c->grammar_error);
        return;
    }
    if (compile(c, tools->tools, &c->grammar_error) || c->grammar_error.status != 400 ||
        tools->strict || tools->count == 0)
        return;
    /* Where the model may also answer with text, its calls are then only parsed. */
    bool is_free = tools->choice == RP_TOOLS_AUTO && c->params.grammar.kind == RP_GRAMMAR_NONE;
    if (compile_relaxed(c, &relaxed_error) || (is_free && relaxed_error.status == 400))
        memset(&c->grammar_error, 0, sizeof c->grammar_error);
}
