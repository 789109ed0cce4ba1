/* template_internal.h - rendering of chat templates: shared by its files. A template is compiled
 * once to a tree (template_lexer.c, template_parse*.c, template_check.c); rendering walks it
 * (template_exec.c, template_loop.c, template_eval.c) in an arena of its own. A fault is set once
 * (rp_render_fail), then everything unwinds: callers look at r->failed. */
#ifndef RP_TEXT_TEMPLATE_INTERNAL_H
#define RP_TEXT_TEMPLATE_INTERNAL_H

#include "text/template/template_tree.h"

/* ---- Rendering ------------------------------------------------------------------------ */

struct rp_tslot {
    int32_t name;
    struct rp_value value;
};

struct rp_tframe {
    struct rp_tframe *parent;
    struct rp_tslot *slots;
    size_t count, capacity;
    bool captured; /* a macro points here: never reused */
};

struct rp_tmacro {
    const struct rp_template_node *node;
    struct rp_tframe *closure;
    struct rp_value name;
    bool is_caller;
};

struct rp_tloop {
    const struct rp_template_node *node;
    struct rp_tframe *outer;
    struct rp_tseq *items;
    size_t next;
    int64_t index0, depth0;
    struct rp_value current, before, after;
    bool has_after, has_changed, filtered;
    int64_t length; /* once `filtered` */
    struct rp_value changed;
};

struct rp_trender {
    struct rp_tmem mem;
    const struct rp_chat_template *tmpl;
    const struct rp_chat_templates *set;
    const struct rp_tdict *variables;
    struct rp_value *globals; /* by symbol, looked up once */
    uint8_t *global_state;    /* 0 not looked up, 1 there, 2 missing */
    struct rp_tframe *frame;
    struct rp_tbuf *out;
    struct rp_chat_fault *fault;
    struct rp_chat_limits limits;
    uint64_t steps_left;
    uint32_t depth;
    int line;
    bool failed, budget;
};

enum rp_tsignal { RP_TS_NEXT, RP_TS_BREAK, RP_TS_CONTINUE };

/* Sets the fault unless there is one, and returns none. */
struct rp_value rp_render_fail(struct rp_trender *r, const char *kind, const char *format, ...)
    RP_PRINTF(3, 4);
/* Takes steps from the budget; false when it is spent. */
bool rp_render_charge(struct rp_trender *r, size_t steps);
bool rp_render_charge_bytes(struct rp_trender *r, size_t bytes);
bool rp_render_enter(struct rp_trender *r);
void rp_render_leave(struct rp_trender *r);

struct rp_value rp_render_eval(struct rp_trender *r, const struct rp_template_node *node);
enum rp_tsignal rp_render_body(struct rp_trender *r, const struct rp_template_nodes *body);
enum rp_tsignal rp_render_for(struct rp_trender *r, const struct rp_template_node *node);
struct rp_value rp_render_lookup(struct rp_trender *r, int32_t name);
void rp_render_set(struct rp_trender *r, struct rp_tframe *frame, int32_t name,
                   struct rp_value value);
bool rp_render_assign(struct rp_trender *r, struct rp_tframe *frame,
                      const struct rp_template_node *target, struct rp_value value);
struct rp_tframe *rp_render_frame(struct rp_trender *r, struct rp_tframe *parent);

/* Positional and keyword arguments after evaluation. */
struct rp_tcall {
    struct rp_value *args;
    size_t count;
    struct rp_value *names, *values;
    size_t keyword_count;
};
bool rp_render_args(struct rp_trender *r, const struct rp_targs *args, struct rp_tcall *out);
struct rp_value rp_render_call(struct rp_trender *r, struct rp_value callee,
                               const struct rp_tcall *call);
struct rp_value rp_render_macro(struct rp_trender *r, const struct rp_tmacro *macro,
                                const struct rp_tcall *call);
struct rp_value rp_render_recurse(struct rp_trender *r, struct rp_tloop *loop,
                                  struct rp_value iterable);
struct rp_value rp_render_loop_attribute(struct rp_trender *r, struct rp_tloop *loop,
                                         struct rp_value name, bool *found);

/* Matches arguments to `names` ("value", "d", ...; the first `required` must be given): absent ones
 * are left RP_VALUE_UNDEFINED with u.undefined NULL (rp_targ_given). false after a fault. */
bool rp_render_bind(struct rp_trender *r, const char *function, const struct rp_tcall *call,
                    const char *const *names, size_t name_count, size_t required,
                    struct rp_value *out);
static inline bool rp_targ_given(struct rp_value v) {
    return v.type != RP_VALUE_UNDEFINED || v.u.undefined;
}

/* template_ops.c: Python's operators */
bool rp_value_truth(struct rp_value v);
bool rp_value_equal(struct rp_trender *r, struct rp_value a, struct rp_value b);
/* <0, 0, >0; fails on types without order (op is for the message: "<"). */
int rp_value_order(struct rp_trender *r, struct rp_value a, struct rp_value b, const char *op);
struct rp_value rp_value_binary(struct rp_trender *r, enum rp_top op, struct rp_value a,
                                struct rp_value b);
struct rp_value rp_value_compare(struct rp_trender *r, enum rp_top op, struct rp_value a,
                                 struct rp_value b);
bool rp_value_contains(struct rp_trender *r, struct rp_value container, struct rp_value item);
struct rp_value rp_value_undefined(struct rp_trender *r, const char *hint);
struct rp_value rp_value_undefined_name(struct rp_trender *r, struct rp_value name);
struct rp_value rp_value_undefined_member(struct rp_trender *r, struct rp_value object,
                                          struct rp_value name);
struct rp_value rp_value_fail_undefined(struct rp_trender *r, struct rp_value v);
struct rp_value rp_value_getattr(struct rp_trender *r, struct rp_value object,
                                 struct rp_value name);
struct rp_value rp_value_getitem(struct rp_trender *r, struct rp_value object, struct rp_value key);
/* a, b, c: none when left out. */
struct rp_value rp_value_slice(struct rp_trender *r, struct rp_value object, struct rp_value a,
                               struct rp_value b, struct rp_value c);
/* The items of a loop over v; NULL after a fault ("'int' object is not iterable"). Generators are
 * consumed. */
struct rp_tseq *rp_value_iterate(struct rp_trender *r, struct rp_value v);
/* -1 after a fault */
int64_t rp_value_length(struct rp_trender *r, struct rp_value v);

/* template_text.c: values as text */
struct rp_value rp_value_text(struct rp_trender *r, struct rp_value v); /* Python's str() */
void rp_value_repr(struct rp_trender *r, struct rp_tbuf *out, struct rp_value v);
struct rp_value rp_value_repr_string(struct rp_trender *r, struct rp_value v);
struct rp_value rp_value_tojson(struct rp_trender *r, const struct rp_tcall *call);
struct rp_value rp_value_from_json(struct rp_trender *r, struct rp_value text);

/* template_string.c: strings by code points */
size_t rp_tstr_count(struct rp_value s);
size_t rp_tstr_offset(struct rp_value s, size_t index);
/* Position of needle in s at or after `from`, or SIZE_MAX. */
size_t rp_tstr_find(struct rp_value s, struct rp_value needle, size_t from);
size_t rp_tstr_find_last(struct rp_trender *r, struct rp_value s, struct rp_value needle,
                         size_t end);
bool rp_tchar_is_space(uint32_t code);
uint32_t rp_tstr_char(struct rp_value s, size_t at, size_t *size);
enum rp_tcase {
    RP_TCASE_UPPER,
    RP_TCASE_LOWER,
    RP_TCASE_TITLE,
    RP_TCASE_CAPITALIZE,
    RP_TCASE_SWAP
};
struct rp_value rp_tstr_case(struct rp_trender *r, struct rp_value s, enum rp_tcase to);
/* sides: 1 left, 2 right; chars none: white space */
struct rp_value rp_tstr_strip(struct rp_trender *r, struct rp_value s, struct rp_value chars,
                              int sides);
struct rp_value rp_tstr_replace(struct rp_trender *r, struct rp_value s, struct rp_value old_text,
                                struct rp_value new_text, int64_t count);
struct rp_value rp_tstr_split(struct rp_trender *r, struct rp_value s, struct rp_value separator,
                              int64_t limit, bool from_right);
struct rp_value rp_tstr_lines(struct rp_trender *r, struct rp_value s, bool keep_ends);
struct rp_value rp_tstr_join(struct rp_trender *r, struct rp_value separator, struct rp_value items,
                             bool convert);
struct rp_value rp_tstr_repeat(struct rp_trender *r, struct rp_value s, int64_t times);
/* Padded to `width` code points: left, right or both sides (Python's center). */
struct rp_value rp_tstr_pad(struct rp_trender *r, struct rp_value s, int64_t width,
                            struct rp_value fill, int sides);
struct rp_value rp_tstr_escape(struct rp_trender *r, struct rp_value s);

/* template_format.c */
struct rp_value rp_tstr_percent(struct rp_trender *r, struct rp_value format, struct rp_value args);
struct rp_value rp_tstr_format(struct rp_trender *r, struct rp_value format,
                               const struct rp_tcall *call);
struct rp_value rp_tstr_strftime(struct rp_trender *r, struct rp_value format);

/* template_methods.c: 0 when Python's type has no such attribute. */
int rp_tmethod_find(struct rp_value object, struct rp_value name, bool *safe);
struct rp_value rp_tmethod_call(struct rp_trender *r, struct rp_value method,
                                const struct rp_tcall *call);
const char *rp_tmethod_name(int method);

/* template_functions.c: globals */
bool rp_tfunction_find(struct rp_value name, struct rp_value *out);
struct rp_value rp_tfunction_call(struct rp_trender *r, int function, const struct rp_tcall *call);

/* template_filters*.c, template_tests.c */
typedef struct rp_value (*rp_tfilter_fn)(struct rp_trender *r, const struct rp_tcall *call);
struct rp_tfilter {
    const char *name;
    rp_tfilter_fn run; /* call->args[0] is the value */
};
typedef bool (*rp_ttest_fn)(struct rp_trender *r, const struct rp_tcall *call);
struct rp_ttest {
    const char *name;
    rp_ttest_fn run;
    size_t args; /* besides the value */
};
const struct rp_tfilter *rp_tfilter_find(struct rp_value name);
const struct rp_ttest *rp_ttest_find(struct rp_value name);
extern const struct rp_tfilter rp_tfilters_list[];
extern const size_t rp_tfilters_list_count;
/* Follows "a.b.0"; none: the value itself. */
struct rp_value rp_value_attribute_path(struct rp_trender *r, struct rp_value v,
                                        struct rp_value path, struct rp_value fallback);
/* Stable; keys[i] belongs to items[i]. false after a fault. */
bool rp_value_sort(struct rp_trender *r, struct rp_value *items, struct rp_value *keys,
                   size_t count, bool reverse);

/* chat_template.c: what the model's files call their special tokens; NULL when there is none. */
const struct rp_value *rp_chat_templates_token(const struct rp_chat_templates *set,
                                               struct rp_value name);

#endif
