/* Statements of a compiled template, executed; macros, loops, and the whole rendering. */
#include "text/template/template_internal.h"

#include <stdio.h>
#include <string.h>

struct rp_tframe *rp_render_frame(struct rp_trender *r, struct rp_tframe *parent) {
    struct rp_tframe *frame = rp_tmem_alloc(&r->mem, sizeof *frame);
    if (frame)
        frame->parent = parent;
    return frame;
}

/* Frames enclosing one that a closure uses must stay alive as well. */
static void capture(struct rp_tframe *frame) {
    for (; frame && !frame->captured; frame = frame->parent)
        frame->captured = true;
}

static void write_value(struct rp_trender *r, struct rp_value v) {
    struct rp_value text = rp_value_text(r, v);
    if (r->failed || !rp_render_charge_bytes(r, text.len))
        return;
    rp_tbuf_string(r->out, text);
    if (r->out->full) {
        r->budget = true;
        (void)rp_render_fail(r, "BudgetError", "the template writes more than it may");
    }
}

static void exec_output(struct rp_trender *r, const struct rp_template_node *node) {
    for (size_t i = 0; i < node->list.count && !r->failed; i++) {
        const struct rp_template_node *child = node->list.items[i];
        r->line = child->line;
        write_value(r, child->kind == RP_NODE_TEXT ? child->value : rp_render_eval(r, child));
    }
}

/* ---- Assignment ----------------------------------------------------------------------- */

static void assign_tuple(struct rp_trender *r, struct rp_tframe *frame,
                         const struct rp_template_node *target, struct rp_value value) {
    size_t want = target->list.count;
    if (!rp_value_is_seq(value) && value.type != RP_VALUE_DICT && value.type != RP_VALUE_STRING &&
        value.type != RP_VALUE_UNDEFINED) {
        (void)rp_render_fail(r, "TypeError", "cannot unpack non-iterable %s object",
                             rp_value_type_name(value));
        return;
    }
    const struct rp_tseq *items = rp_value_iterate(r, value);
    if (!items)
        return;
    if (items->count > want)
        (void)rp_render_fail(r, "ValueError", "too many values to unpack (expected %zu)", want);
    else if (items->count < want)
        (void)rp_render_fail(r, "ValueError", "not enough values to unpack (expected %zu, got %zu)",
                             want, items->count);
    for (size_t i = 0; i < want && !r->failed; i++)
        (void)rp_render_assign(r, frame, target->list.items[i], items->items[i]);
}

bool rp_render_assign(struct rp_trender *r, struct rp_tframe *frame,
                      const struct rp_template_node *target, struct rp_value value) {
    if (target->kind == RP_NODE_NAME) {
        rp_render_set(r, frame, target->name, value);
    } else if (target->kind == RP_NODE_TUPLE) {
        if (rp_render_enter(r)) {
            assign_tuple(r, frame, target, value);
            rp_render_leave(r);
        }
    } else {
        struct rp_value ns = rp_render_lookup(r, target->name);
        if (!r->failed && ns.type == RP_VALUE_NAMESPACE)
            rp_tdict_put(&r->mem, ns.u.dict, target->value, value);
    }
    return !r->failed;
}

/* `ns.x = ...` is refused before its value is computed. */
static bool check_namespaces(struct rp_trender *r, const struct rp_template_node *target) {
    if (target->kind == RP_NODE_NSREF) {
        struct rp_value ns = rp_render_lookup(r, target->name);
        if (!r->failed && ns.type != RP_VALUE_NAMESPACE)
            (void)rp_render_fail(r, "TemplateRuntimeError",
                                 "cannot assign attribute on non-namespace object");
    }
    for (size_t i = 0; target->kind == RP_NODE_TUPLE && i < target->list.count && !r->failed; i++)
        (void)check_namespaces(r, target->list.items[i]);
    return !r->failed;
}

static void exec_set(struct rp_trender *r, const struct rp_template_node *node) {
    if (!check_namespaces(r, node->a))
        return;
    r->line = node->line;
    struct rp_value value = rp_render_eval(r, node->b);
    if (!r->failed)
        (void)rp_render_assign(r, r->frame, node->a, value);
}

/* ---- Bodies with a scope -------------------------------------------------------------- */

static enum rp_tsignal scoped_body(struct rp_trender *r, const struct rp_template_nodes *body) {
    struct rp_tframe *outer = r->frame, *frame = rp_render_frame(r, outer);
    if (!frame)
        return RP_TS_NEXT;
    r->frame = frame;
    enum rp_tsignal signal = rp_render_body(r, body);
    r->frame = outer;
    return signal;
}

/* A set or filter block: the body goes into a buffer of its own, then through the filters. */
static enum rp_tsignal captured_body(struct rp_trender *r, const struct rp_template_node *node,
                                     struct rp_value *out) {
    struct rp_tbuf buf, *outer_out = r->out;
    struct rp_tframe *outer = r->frame, *frame = rp_render_frame(r, outer);
    if (!frame)
        return RP_TS_NEXT;
    rp_tbuf_init(&buf, &r->mem);
    r->frame = frame;
    r->out = &buf;
    enum rp_tsignal signal = rp_render_body(r, &node->list);
    *out = rp_value_none();
    if (!r->failed && signal == RP_TS_NEXT) {
        r->line = node->line;
        *out = node->b ? rp_render_eval(r, node->b) : rp_tbuf_finish(&buf);
    }
    r->frame = outer;
    r->out = outer_out;
    return signal;
}

static enum rp_tsignal exec_set_block(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_value value;
    enum rp_tsignal signal = captured_body(r, node, &value);
    if (!r->failed && signal == RP_TS_NEXT && check_namespaces(r, node->a))
        (void)rp_render_assign(r, r->frame, node->a, value);
    return signal;
}

static enum rp_tsignal exec_filter_block(struct rp_trender *r,
                                         const struct rp_template_node *node) {
    struct rp_value value;
    enum rp_tsignal signal = captured_body(r, node, &value);
    if (!r->failed && signal == RP_TS_NEXT)
        write_value(r, value);
    return signal;
}

static enum rp_tsignal exec_with(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_tframe *outer = r->frame, *frame = rp_render_frame(r, outer);
    if (!frame)
        return RP_TS_NEXT;
    for (size_t i = 0; i < node->other.count && !r->failed; i++) {
        const struct rp_template_node *set = node->other.items[i];
        struct rp_value value = rp_render_eval(r, set->b); /* sees the names outside */
        if (!r->failed)
            (void)rp_render_assign(r, frame, set->a, value);
    }
    r->frame = frame;
    enum rp_tsignal signal = rp_render_body(r, &node->list);
    r->frame = outer;
    return signal;
}

/* ---- Macros --------------------------------------------------------------------------- */

static void bind_macro(struct rp_trender *r, const struct rp_tmacro *macro,
                       const struct rp_tcall *call, struct rp_tframe *frame, uint8_t *used) {
    const struct rp_tparams *params = macro->node->params;
    if (!rp_render_charge(r, params->count * (params->count + call->keyword_count) / 8))
        return;
    for (size_t i = 0; i < params->count; i++) {
        struct rp_value value = {.type = RP_VALUE_UNDEFINED};
        bool given = i < call->count;
        if (given)
            value = call->args[i];
        for (size_t k = 0; !given && k < call->keyword_count; k++)
            if (rp_value_equal(r, call->names[k], r->tmpl->symbols[params->names[i]])) {
                value = call->values[k];
                used[k] = given = true;
            }
        if (given)
            rp_render_set(r, frame, params->names[i], value);
    }
    for (size_t i = 0; i < params->count && !r->failed; i++) { /* defaults see what was given */
        size_t k = 0;
        while (k < frame->count && frame->slots[k].name != params->names[i])
            k++;
        if (k < frame->count)
            continue;
        struct rp_value value;
        if (params->defaults[i]) {
            value = rp_render_eval(r, params->defaults[i]);
        } else {
            static const char text[] = "parameter '%.*s' was not provided";
            struct rp_value name = r->tmpl->symbols[params->names[i]];
            char *hint = rp_tmem_alloc(&r->mem, sizeof text + name.len);
            if (hint)
                snprintf(hint, sizeof text + name.len, text, (int)name.len, name.u.s);
            value = rp_value_undefined(r, hint);
        }
        if (!r->failed)
            rp_render_set(r, frame, params->names[i], value);
    }
}

static struct rp_value rest_of_keywords(struct rp_trender *r, const struct rp_tcall *call,
                                        const uint8_t *used) {
    struct rp_value dict = rp_tdict_make(&r->mem, RP_VALUE_DICT);
    for (size_t k = 0; dict.type == RP_VALUE_DICT && k < call->keyword_count; k++)
        if (!used[k])
            rp_tdict_put(&r->mem, dict.u.dict, call->names[k], call->values[k]);
    return dict;
}

/* Arguments not bound to parameters: caller, kwargs, varargs, or a fault. */
static void bind_rest(struct rp_trender *r, const struct rp_tmacro *macro,
                      const struct rp_tcall *call, struct rp_tframe *frame, uint8_t *used) {
    const struct rp_tparams *params = macro->node->params;
    struct rp_value name = rp_value_repr_string(r, macro->name);
    if (name.type != RP_VALUE_STRING)
        return;
    for (size_t k = 0; params->uses_caller && k < call->keyword_count; k++)
        if (!used[k] && rp_value_is(call->names[k], "caller")) {
            used[k] = true;
            rp_render_set(r, frame, r->tmpl->sym_caller, call->values[k]);
            break;
        } else if (k + 1 == call->keyword_count) {
            rp_render_set(r, frame, r->tmpl->sym_caller,
                          rp_value_undefined(r, "No caller defined"));
        }
    if (params->uses_kwargs)
        rp_render_set(r, frame, r->tmpl->sym_kwargs, rest_of_keywords(r, call, used));
    for (size_t k = 0; !params->uses_kwargs && k < call->keyword_count && !r->failed; k++)
        if (!used[k])
            (void)rp_render_fail(
                r, "TypeError",
                rp_value_is(call->names[k], "caller")
                    ? "macro %.*s was invoked with two values for the special caller argument. "
                      "This is most likely a bug.%.*s"
                    : "macro %.*s takes no keyword argument '%.*s'",
                (int)name.len, name.u.s,
                rp_value_is(call->names[k], "caller") ? 0 : (int)RP_MIN(call->names[k].len, 100u),
                call->names[k].u.s);
    if (params->uses_varargs) {
        struct rp_value rest = rp_tseq_make(&r->mem, RP_VALUE_TUPLE, 0);
        for (size_t i = params->count; rp_value_is_seq(rest) && i < call->count; i++)
            rp_tseq_add(&r->mem, rest.u.seq, call->args[i]);
        rp_render_set(r, frame, r->tmpl->sym_varargs, rest);
    } else if (call->count > params->count) {
        (void)rp_render_fail(r, "TypeError", "macro %.*s takes not more than %zu argument(s)",
                             (int)name.len, name.u.s, params->count);
    }
}

struct rp_value rp_render_macro(struct rp_trender *r, const struct rp_tmacro *macro,
                                const struct rp_tcall *call) {
    struct rp_tbuf buf, *outer_out = r->out;
    struct rp_tframe *outer = r->frame, *frame;
    int line = r->line;
    if (!rp_render_enter(r))
        return rp_value_none();
    frame = rp_render_frame(r, macro->closure);
    uint8_t *used = rp_tmem_calloc(&r->mem, call->keyword_count + 1, 1);
    if (frame && used) {
        rp_tbuf_init(&buf, &r->mem);
        r->frame = frame;
        r->out = &buf;
        bind_macro(r, macro, call, frame, used);
        r->line = r->failed ? r->line : line;
        if (!r->failed)
            bind_rest(r, macro, call, frame, used);
        if (!r->failed)
            (void)rp_render_body(r, &macro->node->list);
        r->frame = outer;
        r->out = outer_out;
        r->line = line;
    }
    rp_render_leave(r);
    return r->failed || !frame || !used ? rp_value_none() : rp_tbuf_finish(&buf);
}

static struct rp_value make_macro(struct rp_trender *r, const struct rp_template_node *node,
                                  struct rp_value name) {
    struct rp_tmacro *macro = rp_tmem_alloc(&r->mem, sizeof *macro);
    if (!macro)
        return rp_value_none();
    *macro = (struct rp_tmacro){.node = node, .closure = r->frame, .name = name};
    capture(r->frame);
    return (struct rp_value){.type = RP_VALUE_MACRO, .u.macro = macro};
}

static void exec_macro(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_value macro = make_macro(r, node, r->tmpl->symbols[node->name]);
    rp_render_set(r, r->frame, node->name, macro);
}

static void exec_call_block(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_tcall call, with_caller;
    struct rp_value caller = make_macro(r, node, rp_value_none());
    r->line = node->line;
    struct rp_value callee = rp_render_eval(r, node->a->a);
    if (r->failed || !rp_render_args(r, node->a->args, &call))
        return;
    size_t n = call.keyword_count;
    with_caller = (struct rp_tcall){.args = call.args + 1, .count = call.count - 1};
    with_caller.names = rp_tmem_calloc(&r->mem, n + 1, sizeof *call.names);
    with_caller.values = rp_tmem_calloc(&r->mem, n + 1, sizeof *call.values);
    if (!with_caller.names || !with_caller.values)
        return;
    for (size_t i = 0; i < n; i++) {
        with_caller.names[i] = call.names[i];
        with_caller.values[i] = call.values[i];
    }
    with_caller.names[n] = rp_value_cstr("caller");
    with_caller.values[n] = caller;
    with_caller.keyword_count = n + 1;
    struct rp_value out = rp_render_call(r, callee, &with_caller);
    if (!r->failed)
        write_value(r, out);
}

/* ---- if and the dispatch -------------------------------------------------------------- */

static enum rp_tsignal exec_if(struct rp_trender *r, const struct rp_template_node *node) {
    for (; node; node = node->b) {
        if (!node->a)
            return rp_render_body(r, &node->list);
        r->line = node->line;
        struct rp_value test = rp_render_eval(r, node->a);
        if (r->failed)
            return RP_TS_NEXT;
        if (rp_value_truth(test))
            return rp_render_body(r, &node->list);
    }
    return RP_TS_NEXT;
}

static enum rp_tsignal exec_node(struct rp_trender *r, const struct rp_template_node *node) {
    switch (node->kind) {
    case RP_NODE_OUTPUT:
        exec_output(r, node);
        return RP_TS_NEXT;
    case RP_NODE_IF:
        return exec_if(r, node);
    case RP_NODE_FOR:
        return rp_render_for(r, node);
    case RP_NODE_SET:
        exec_set(r, node);
        return RP_TS_NEXT;
    case RP_NODE_SET_BLOCK:
        return exec_set_block(r, node);
    case RP_NODE_FILTER_BLOCK:
        return exec_filter_block(r, node);
    case RP_NODE_WITH:
        return exec_with(r, node);
    case RP_NODE_SCOPE:
        return scoped_body(r, &node->list);
    case RP_NODE_MACRO:
        exec_macro(r, node);
        return RP_TS_NEXT;
    case RP_NODE_CALL_BLOCK:
        exec_call_block(r, node);
        return RP_TS_NEXT;
    default:
        return node->kind == RP_NODE_BREAK ? RP_TS_BREAK : RP_TS_CONTINUE;
    }
}

enum rp_tsignal rp_render_body(struct rp_trender *r, const struct rp_template_nodes *body) {
    enum rp_tsignal signal = RP_TS_NEXT;
    if (!rp_render_enter(r))
        return signal;
    for (size_t i = 0; i < body->count && signal == RP_TS_NEXT && rp_render_charge(r, 1); i++)
        signal = exec_node(r, body->items[i]);
    rp_render_leave(r);
    return signal;
}

/* ---- Rendering ------------------------------------------------------------------------ */

static int finish(const struct rp_tbuf *buf, struct rp_chat_prompt *out) {
    size_t count = 0;
    struct rp_value s = rp_tbuf_finish(buf);
    for (size_t i = 0; i < s.len; i++)
        count += i == 0 || rp_value_mark(s, i) != rp_value_mark(s, i - 1);
    out->text = rp_alloc(s.len + 1u);
    out->spans = rp_calloc(count ? count : 1, sizeof *out->spans);
    if (!out->text || !out->spans)
        return RP_STATUS_NO_MEMORY;
    memcpy(out->text, s.u.s, s.len);
    out->text[s.len] = 0;
    out->len = s.len;
    for (size_t i = 0; i < s.len; i++) {
        if (i == 0 || rp_value_mark(s, i) != rp_value_mark(s, i - 1))
            out->spans[out->span_count++] =
                (struct rp_text_span){out->text + i, 0, !rp_value_mark(s, i)};
        out->spans[out->span_count - 1].len++;
    }
    return RP_OK;
}

static struct rp_chat_limits with_defaults(const struct rp_chat_limits *given) {
    struct rp_chat_limits limits = given ? *given : (struct rp_chat_limits){0};
    limits.steps = limits.steps ? limits.steps : 20000000;
    limits.depth = limits.depth ? limits.depth : 1000;
    limits.output_bytes = limits.output_bytes ? limits.output_bytes : (size_t)16 << 20;
    limits.memory_bytes = limits.memory_bytes ? limits.memory_bytes : (size_t)128 << 20;
    return limits;
}

static int outcome(struct rp_trender *r, const struct rp_tbuf *buf, struct rp_chat_prompt *out,
                   struct rp_error *err) {
    if (!r->failed && r->mem.failed) {
        r->budget = true;
        (void)rp_render_fail(r, "BudgetError", "the template takes more memory than it may");
    }
    if (!r->failed) {
        int status = finish(buf, out);
        return status == RP_OK ? status
                               : rp_error_set(err, status, "%s: out of memory", r->tmpl->name);
    }
    if (r->fault->line > 0)
        return rp_error_set(err, r->budget ? RP_STATUS_RANGE : RP_STATUS_INVALID, "%s line %d: %s",
                            r->tmpl->name, r->fault->line, r->fault->message);
    return rp_error_set(err, r->budget ? RP_STATUS_RANGE : RP_STATUS_INVALID, "%s: %s",
                        r->tmpl->name, r->fault->message);
}

int rp_chat_template_render(const struct rp_chat_template *tmpl,
                            const struct rp_chat_templates *set, struct rp_chat_values *values,
                            const struct rp_chat_value *variables,
                            const struct rp_chat_limits *limits, struct rp_chat_prompt *out,
                            struct rp_chat_fault *fault, struct rp_error *err) {
    struct rp_chat_fault own;
    struct rp_tbuf buf;
    struct rp_trender r = {.tmpl = tmpl, .set = set, .fault = fault ? fault : &own, .line = 1};
    memset(out, 0, sizeof *out);
    memset(r.fault, 0, sizeof *r.fault);
    r.fault->kind = "";
    if (rp_chat_values_failed(values) || !variables || variables->v.type != RP_VALUE_DICT)
        return rp_error_set(err, RP_STATUS_NO_MEMORY,
                            "%s: the conversation takes more memory than it may", tmpl->name);
    r.limits = with_defaults(limits);
    r.steps_left = r.limits.steps;
    r.mem.arena.limit_bytes = r.limits.memory_bytes;
    r.variables = variables->v.u.dict;
    r.globals = rp_tmem_calloc(&r.mem, tmpl->symbol_count, sizeof *r.globals);
    r.global_state = rp_tmem_calloc(&r.mem, tmpl->symbol_count, 1);
    r.frame = rp_render_frame(&r, NULL);
    rp_tbuf_init(&buf, &r.mem);
    buf.limit = r.limits.output_bytes;
    r.out = &buf;
    if (r.globals && r.global_state && r.frame)
        (void)rp_render_body(&r, &tmpl->body);
    int status = outcome(&r, &buf, out, err);
    if (status != RP_OK)
        rp_chat_prompt_deinit(out);
    rp_arena_deinit(&r.mem.arena);
    return status;
}

void rp_chat_prompt_deinit(struct rp_chat_prompt *prompt) {
    rp_free(prompt->text);
    rp_free(prompt->spans);
    memset(prompt, 0, sizeof *prompt);
}
