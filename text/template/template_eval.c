/* Expressions of a compiled template, evaluated. */
#include "text/template/template_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct rp_value rp_render_fail(struct rp_trender *r, const char *kind, const char *format, ...) {
    va_list args;
    if (r->failed)
        return rp_value_none();
    r->failed = true;
    r->fault->line = r->line;
    r->fault->kind = kind;
    va_start(args, format);
    vsnprintf(r->fault->message, sizeof r->fault->message, format, args);
    va_end(args);
    return rp_value_none();
}

static bool over_budget(struct rp_trender *r, const char *what) {
    if (!r->failed)
        r->budget = true;
    (void)rp_render_fail(r, "BudgetError", "the template %s", what);
    return false;
}

bool rp_render_charge(struct rp_trender *r, size_t steps) {
    if (r->failed)
        return false;
    if (r->mem.failed)
        return over_budget(r, "takes more memory than it may");
    if (steps > r->steps_left)
        return over_budget(r, "takes more steps than it may");
    r->steps_left -= steps;
    return true;
}

bool rp_render_charge_bytes(struct rp_trender *r, size_t bytes) {
    return rp_render_charge(r, bytes / 16);
}

bool rp_render_enter(struct rp_trender *r) {
    if (!rp_render_charge(r, 1))
        return false;
    if (r->depth >= r->limits.depth)
        return over_budget(r, "calls itself, or nests values, too deeply");
    r->depth++;
    return true;
}

void rp_render_leave(struct rp_trender *r) { r->depth--; }

/* ---- Names ---------------------------------------------------------------------------- */

static struct rp_value lookup_global(struct rp_trender *r, int32_t name) {
    if (r->global_state[name] == 0) {
        struct rp_value text = r->tmpl->symbols[name];
        const struct rp_value *value = rp_tdict_get(r->variables, text);
        r->global_state[name] = 1;
        if (!value && r->set)
            value = rp_chat_templates_token(r->set, text);
        if (value)
            r->globals[name] = *value;
        else if (!rp_tfunction_find(text, &r->globals[name]))
            r->global_state[name] = 2;
    }
    if (r->global_state[name] == 1)
        return r->globals[name];
    return rp_value_undefined_name(r, r->tmpl->symbols[name]);
}

struct rp_value rp_render_lookup(struct rp_trender *r, int32_t name) {
    for (const struct rp_tframe *f = r->frame; f; f = f->parent) {
        if (!rp_render_charge(r, f->count / 16))
            return rp_value_none();
        for (size_t i = f->count; i-- > 0;)
            if (f->slots[i].name == name)
                return f->slots[i].value;
    }
    return lookup_global(r, name);
}

void rp_render_set(struct rp_trender *r, struct rp_tframe *frame, int32_t name,
                   struct rp_value value) {
    if (!rp_render_charge(r, frame->count / 16))
        return;
    for (size_t i = 0; i < frame->count; i++)
        if (frame->slots[i].name == name) {
            frame->slots[i].value = value;
            return;
        }
    struct rp_tslot *slots = rp_tmem_grow(&r->mem, frame->slots, frame->count, &frame->capacity,
                                          frame->count + 1, sizeof *slots);
    if (!slots)
        return;
    frame->slots = slots;
    slots[frame->count++] = (struct rp_tslot){name, value};
}

/* ---- Parts ---------------------------------------------------------------------------- */

static struct rp_value eval_items(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_value out = rp_tseq_make(
        &r->mem, node->kind == RP_NODE_LIST ? RP_VALUE_LIST : RP_VALUE_TUPLE, node->list.count);
    if (!rp_value_is_seq(out))
        return rp_value_none();
    for (size_t i = 0; i < node->list.count && !r->failed; i++)
        rp_tseq_add(&r->mem, out.u.seq, rp_render_eval(r, node->list.items[i]));
    return out;
}

static struct rp_value eval_dict(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_value out = rp_tdict_make(&r->mem, RP_VALUE_DICT);
    for (size_t i = 0; out.type == RP_VALUE_DICT && i + 1 < node->list.count; i += 2) {
        uint32_t hash;
        struct rp_value key = rp_render_eval(r, node->list.items[i]);
        struct rp_value value = r->failed ? key : rp_render_eval(r, node->list.items[i + 1]);
        if (r->failed)
            return rp_value_none();
        if (!rp_value_hash(key, &hash))
            return rp_render_fail(r, "TypeError", "unhashable type: '%s'", rp_value_type_name(key));
        rp_tdict_put(&r->mem, out.u.dict, key, value);
    }
    return out;
}

static struct rp_value eval_cond(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_value test = rp_render_eval(r, node->a);
    if (r->failed)
        return test;
    if (rp_value_truth(test))
        return rp_render_eval(r, node->b);
    if (node->c)
        return rp_render_eval(r, node->c);
    char hint[160];
    int n = snprintf(hint, sizeof hint,
                     "the inline if-expression on line %d evaluated to false and no else section "
                     "was defined.",
                     node->line);
    char *copy = rp_tmem_alloc(&r->mem, (size_t)n + 1);
    return copy ? rp_value_undefined(r, memcpy(copy, hint, (size_t)n + 1)) : rp_value_none();
}

static struct rp_value eval_binary(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_value a = rp_render_eval(r, node->a);
    struct rp_value b = r->failed ? a : rp_render_eval(r, node->b);
    return r->failed ? rp_value_none() : rp_value_binary(r, (enum rp_top)node->op, a, b);
}

static struct rp_value eval_logic(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_value a = rp_render_eval(r, node->a);
    if (r->failed || rp_value_truth(a) == (node->kind == RP_NODE_OR))
        return a;
    return rp_render_eval(r, node->b);
}

static struct rp_value eval_unary(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_value a = rp_render_eval(r, node->a);
    if (r->failed)
        return a;
    if (node->kind == RP_NODE_NOT)
        return rp_value_bool(!rp_value_truth(a));
    bool negate = node->kind == RP_NODE_NEG;
    if (a.type == RP_VALUE_UNDEFINED)
        return rp_value_fail_undefined(r, a);
    if (a.type == RP_VALUE_FLOAT)
        return rp_value_float(negate ? -a.u.f : a.u.f);
    if (!rp_value_is_integer(a))
        return rp_render_fail(r, "TypeError", "bad operand type for unary %s: '%s'",
                              negate ? "-" : "+", rp_value_type_name(a));
    if (negate)
        return rp_value_binary(r, RP_TOP_SUB, rp_value_int(0), a);
    return rp_value_int(rp_value_integer(a));
}

static struct rp_value eval_concat(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_tbuf buf;
    struct rp_value *parts = rp_tmem_calloc(&r->mem, node->list.count, sizeof *parts);
    rp_tbuf_init(&buf, &r->mem);
    for (size_t i = 0; parts && i < node->list.count && !r->failed; i++)
        parts[i] = rp_render_eval(r, node->list.items[i]);
    for (size_t i = 0; parts && i < node->list.count && !r->failed; i++) {
        struct rp_value text = rp_value_text(r, parts[i]);
        if (!r->failed && rp_render_charge_bytes(r, text.len))
            rp_tbuf_string(&buf, text);
    }
    return r->failed ? rp_value_none() : rp_tbuf_finish(&buf);
}

static struct rp_value eval_compare(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_value left = rp_render_eval(r, node->a), result = rp_value_bool(true);
    for (size_t i = 0; i < node->list.count && !r->failed; i++) {
        const struct rp_template_node *operand = node->list.items[i];
        struct rp_value right = rp_render_eval(r, operand->a);
        if (r->failed)
            break;
        result = rp_value_compare(r, (enum rp_top)operand->op, left, right);
        if (!rp_value_truth(result))
            break;
        left = right;
    }
    return r->failed ? rp_value_none() : result;
}

static struct rp_value eval_getitem(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_value object = rp_render_eval(r, node->a), part[3];
    if (r->failed)
        return object;
    if (node->b->kind != RP_NODE_SLICE) {
        struct rp_value key = rp_render_eval(r, node->b);
        return r->failed ? key : rp_value_getitem(r, object, key);
    }
    const struct rp_template_node *nodes[3] = {node->b->a, node->b->b, node->b->c};
    for (int i = 0; i < 3; i++) {
        part[i] = nodes[i] ? rp_render_eval(r, nodes[i]) : rp_value_none();
        if (r->failed)
            return rp_value_none();
    }
    return rp_value_slice(r, object, part[0], part[1], part[2]);
}

/* ---- Calls ---------------------------------------------------------------------------- */

static void add_keyword(struct rp_trender *r, struct rp_tcall *call, struct rp_value name,
                        struct rp_value value) {
    for (size_t i = 0; i < call->keyword_count; i++)
        if (rp_value_equal(r, call->names[i], name)) {
            (void)rp_render_fail(r, "TypeError", "got multiple values for keyword argument '%.*s'",
                                 (int)RP_MIN(name.len, 100u), name.u.s);
            return;
        }
    call->names[call->keyword_count] = name;
    call->values[call->keyword_count++] = value;
}

static void add_star_star(struct rp_trender *r, struct rp_tcall *call, struct rp_value dict) {
    if (dict.type != RP_VALUE_DICT) {
        (void)rp_render_fail(r, "TypeError", "argument after ** must be a mapping, not %s",
                             rp_value_type_name(dict));
        return;
    }
    for (size_t i = 0; i < dict.u.dict->count && !r->failed; i++) {
        struct rp_value key = dict.u.dict->entries[i].key;
        if (key.type != RP_VALUE_STRING)
            (void)rp_render_fail(r, "TypeError", "keywords must be strings");
        else
            add_keyword(r, call, key, dict.u.dict->entries[i].value);
    }
}

/* call->args[0] is reserved for the piped value. */
bool rp_render_args(struct rp_trender *r, const struct rp_targs *args, struct rp_tcall *out) {
    struct rp_value star = rp_value_none(), star_star = rp_value_none();
    const struct rp_tseq *more = NULL;
    size_t count = args ? args->positional.count : 0, keywords = args ? args->keyword_count : 0;
    *out = (struct rp_tcall){.count = 1};
    if (args && args->star) {
        star = rp_render_eval(r, args->star);
        more = r->failed ? NULL : rp_value_iterate(r, star);
        if (!more)
            return false;
    }
    if (args && args->star_star)
        star_star = rp_render_eval(r, args->star_star);
    if (r->failed)
        return false;
    size_t extra = star_star.type == RP_VALUE_DICT ? star_star.u.dict->count : 0;
    out->args = rp_tmem_calloc(&r->mem, 1 + count + (more ? more->count : 0), sizeof *out->args);
    if (!out->args || !rp_render_charge(r, (more ? more->count : 0) +
                                               (keywords + extra) * (keywords + extra) / 8))
        return false;
    for (size_t i = 0; i < count && !r->failed; i++)
        out->args[out->count++] = rp_render_eval(r, args->positional.items[i]);
    for (size_t i = 0; more && i < more->count; i++)
        out->args[out->count++] = more->items[i];
    if (keywords + extra == 0)
        return !r->failed;
    out->names = rp_tmem_calloc(&r->mem, keywords + extra, sizeof *out->names);
    out->values = rp_tmem_calloc(&r->mem, keywords + extra, sizeof *out->values);
    for (size_t i = 0; out->values && i < keywords && !r->failed; i++)
        add_keyword(r, out, args->keywords[i].name, rp_render_eval(r, args->keywords[i].value));
    if (out->values && args->star_star)
        add_star_star(r, out, star_star);
    return !r->failed && !r->mem.failed;
}

bool rp_render_bind(struct rp_trender *r, const char *function, const struct rp_tcall *call,
                    const char *const *names, size_t name_count, size_t required,
                    struct rp_value *out) {
    for (size_t i = 0; i < name_count; i++)
        out[i] = i < call->count ? call->args[i] : (struct rp_value){.type = RP_VALUE_UNDEFINED};
    if (call->count > name_count) {
        (void)rp_render_fail(r, "TypeError", "%s() takes at most %zu arguments (%zu given)",
                             function, name_count, call->count);
        return false;
    }
    for (size_t k = 0; k < call->keyword_count; k++) {
        size_t i = 0;
        int len = (int)RP_MIN(call->names[k].len, 100u);
        while (i < name_count && !rp_value_is(call->names[k], names[i]))
            i++;
        if (i == name_count)
            (void)rp_render_fail(r, "TypeError", "%s() got an unexpected keyword argument '%.*s'",
                                 function, len, call->names[k].u.s);
        else if (i < call->count)
            (void)rp_render_fail(r, "TypeError", "%s() got multiple values for argument '%.*s'",
                                 function, len, call->names[k].u.s);
        if (r->failed)
            return false;
        out[i] = call->values[k];
    }
    for (size_t i = 0; i < required; i++)
        if (!rp_targ_given(out[i])) {
            (void)rp_render_fail(r, "TypeError",
                                 "%s() missing 1 required positional argument: '%s'", function,
                                 names[i]);
            return false;
        }
    return true;
}

struct rp_value rp_render_call(struct rp_trender *r, struct rp_value callee,
                               const struct rp_tcall *call) {
    switch (callee.type) {
    case RP_VALUE_MACRO:
        return rp_render_macro(r, callee.u.macro, call);
    case RP_VALUE_METHOD:
        return rp_tmethod_call(r, callee, call);
    case RP_VALUE_FUNCTION:
        return rp_tfunction_call(r, callee.sub, call);
    case RP_VALUE_LOOP:
        if (call->count != 1 || call->keyword_count)
            return rp_render_fail(r, "TypeError", "loop() takes one argument");
        return rp_render_recurse(r, callee.u.loop, call->args[0]);
    case RP_VALUE_JOINER:
        callee.u.seq->taken++;
        return callee.u.seq->taken == 1 ? rp_value_cstr("") : callee.u.seq->items[0];
    case RP_VALUE_UNDEFINED:
        return rp_value_fail_undefined(r, callee);
    default:
        return rp_render_fail(r, "TypeError", "'%s' object is not callable",
                              rp_value_type_name(callee));
    }
}

static struct rp_value eval_call(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_tcall call;
    struct rp_value callee = rp_render_eval(r, node->a);
    if (r->failed || !rp_render_args(r, node->args, &call))
        return rp_value_none();
    call.args++; /* no piped value */
    call.count--;
    return rp_render_call(r, callee, &call);
}

/* A filter without a value (in a filter or set block) takes what the block wrote. */
static struct rp_value eval_filter(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_tcall call;
    struct rp_value value = node->a ? rp_render_eval(r, node->a) : rp_tbuf_finish(r->out);
    if (r->failed || !rp_render_args(r, node->args, &call))
        return rp_value_none();
    if (!node->filter)
        return rp_render_fail(r, "TemplateRuntimeError", "No filter named '%.*s' found.",
                              (int)RP_MIN(node->value.len, 200u), node->value.u.s);
    call.args[0] = value;
    return node->filter->run(r, &call);
}

static struct rp_value eval_test(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_tcall call;
    struct rp_value value = rp_render_eval(r, node->a);
    if (r->failed || !rp_render_args(r, node->args, &call))
        return rp_value_none();
    if (!node->test)
        return rp_render_fail(r, "TemplateRuntimeError", "No test named '%.*s' found.",
                              (int)RP_MIN(node->value.len, 200u), node->value.u.s);
    if (call.count != node->test->args + 1 || call.keyword_count)
        return rp_render_fail(r, "TypeError", "the test %s takes %zu arguments", node->test->name,
                              node->test->args);
    call.args[0] = value;
    return rp_value_bool(node->test->run(r, &call));
}

static struct rp_value eval_node(struct rp_trender *r, const struct rp_template_node *node) {
    switch (node->kind) {
    case RP_NODE_LIST:
    case RP_NODE_TUPLE:
        return eval_items(r, node);
    case RP_NODE_DICT:
        return eval_dict(r, node);
    case RP_NODE_COND:
        return eval_cond(r, node);
    case RP_NODE_BINARY:
        return eval_binary(r, node);
    case RP_NODE_AND:
    case RP_NODE_OR:
        return eval_logic(r, node);
    case RP_NODE_NOT:
    case RP_NODE_NEG:
    case RP_NODE_POS:
        return eval_unary(r, node);
    case RP_NODE_CONCAT:
        return eval_concat(r, node);
    case RP_NODE_COMPARE:
        return eval_compare(r, node);
    case RP_NODE_GETITEM:
        return eval_getitem(r, node);
    case RP_NODE_CALL:
        return eval_call(r, node);
    case RP_NODE_FILTER:
        return eval_filter(r, node);
    case RP_NODE_TEST:
        return eval_test(r, node);
    default: /* a slice among several subscripts */
        return rp_render_fail(r, "TypeError", "this expression has no value");
    }
}

struct rp_value rp_render_eval(struct rp_trender *r, const struct rp_template_node *node) {
    struct rp_value out;
    if (node->kind == RP_NODE_CONST)
        return node->value;
    if (!rp_render_enter(r))
        return rp_value_none();
    if (node->kind == RP_NODE_NAME) {
        out = rp_render_lookup(r, node->name);
    } else if (node->kind == RP_NODE_GETATTR) {
        out = rp_render_eval(r, node->a);
        if (!r->failed)
            out = rp_value_getattr(r, out, node->value);
    } else {
        out = eval_node(r, node);
    }
    rp_render_leave(r);
    return out;
}
