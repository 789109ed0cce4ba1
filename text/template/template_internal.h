/* template_internal.h - rendering of chat templates: what its files share.
 * A template is compiled once to a tree (template_lexer.c, template_parse*.c, template_check.c);
 * rendering walks it (template_exec.c, template_loop.c, template_eval.c) in an arena of its own. A
 * fault is set once (rp_render_fail), then everything unwinds: callers look at r->failed. */
#ifndef RP_TEXT_TEMPLATE_INTERNAL_H
#define RP_TEXT_TEMPLATE_INTERNAL_H

#include "text/template/template_tree.h"

/* ---- Rendering ------------------------------------------------------------------------ */

struct rp_tslot {
    int32_t name;
    struct rp_tv value;
};

struct rp_tframe {
    struct rp_tframe *parent;
    struct rp_tslot *slots;
    size_t count, capacity;
    bool captured; /* a macro points here: never reused */
};

struct rp_tmacro {
    const struct rp_tnode *node;
    struct rp_tframe *closure;
    struct rp_tv name;
    bool is_caller;
};

struct rp_tloop {
    const struct rp_tnode *node;
    struct rp_tframe *outer;
    struct rp_tseq *items;
    size_t next;
    int64_t index0, depth0;
    struct rp_tv current, before, after;
    bool has_after, has_changed, filtered;
    int64_t length; /* once `filtered` */
    struct rp_tv changed;
};

struct rp_trender {
    struct rp_tmem mem;
    const struct rp_chat_template *tmpl;
    const struct rp_chat_templates *set;
    const struct rp_tdict *variables;
    struct rp_tv *globals; /* by symbol, looked up once */
    uint8_t *global_state; /* 0 not looked up, 1 there, 2 missing */
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
struct rp_tv rp_render_fail(struct rp_trender *r, const char *kind, const char *format, ...)
    RP_PRINTF(3, 4);
/* Takes steps from the budget; false when it is spent. */
bool rp_render_charge(struct rp_trender *r, size_t steps);
bool rp_render_charge_bytes(struct rp_trender *r, size_t bytes);
bool rp_render_enter(struct rp_trender *r);
void rp_render_leave(struct rp_trender *r);

struct rp_tv rp_render_eval(struct rp_trender *r, const struct rp_tnode *node);
enum rp_tsignal rp_render_body(struct rp_trender *r, const struct rp_tnodes *body);
enum rp_tsignal rp_render_for(struct rp_trender *r, const struct rp_tnode *node);
struct rp_tv rp_render_lookup(struct rp_trender *r, int32_t name);
void rp_render_set(struct rp_trender *r, struct rp_tframe *frame, int32_t name, struct rp_tv value);
bool rp_render_assign(struct rp_trender *r, struct rp_tframe *frame, const struct rp_tnode *target,
                      struct rp_tv value);
struct rp_tframe *rp_render_frame(struct rp_trender *r, struct rp_tframe *parent);

/* Positional and keyword arguments after evaluation. */
struct rp_tcall {
    struct rp_tv *args;
    size_t count;
    struct rp_tv *names, *values;
    size_t keyword_count;
};
bool rp_render_args(struct rp_trender *r, const struct rp_targs *args, struct rp_tcall *out);
struct rp_tv rp_render_call(struct rp_trender *r, struct rp_tv callee, const struct rp_tcall *call);
struct rp_tv rp_render_macro(struct rp_trender *r, const struct rp_tmacro *macro,
                             const struct rp_tcall *call);
struct rp_tv rp_render_recurse(struct rp_trender *r, struct rp_tloop *loop, struct rp_tv iterable);
struct rp_tv rp_render_loop_attribute(struct rp_trender *r, struct rp_tloop *loop,
                                      struct rp_tv name, bool *found);

/* Matches arguments to `names` ("value", "d", ...; the first `required` must be given): absent ones
 * are left RP_TV_UNDEFINED with u.undefined NULL (rp_targ_given). false after a fault. */
bool rp_render_bind(struct rp_trender *r, const char *function, const struct rp_tcall *call,
                    const char *const *names, size_t name_count, size_t required,
                    struct rp_tv *out);
static inline bool rp_targ_given(struct rp_tv v) {
    return v.type != RP_TV_UNDEFINED || v.u.undefined;
}

/* template_ops.c: Python's operators */
bool rp_tv_truth(struct rp_tv v);
bool rp_tv_equal(struct rp_trender *r, struct rp_tv a, struct rp_tv b);
/* <0, 0, >0; fails on types without order (op is for the message: "<"). */
int rp_tv_order(struct rp_trender *r, struct rp_tv a, struct rp_tv b, const char *op);
struct rp_tv rp_tv_binary(struct rp_trender *r, enum rp_top op, struct rp_tv a, struct rp_tv b);
struct rp_tv rp_tv_compare(struct rp_trender *r, enum rp_top op, struct rp_tv a, struct rp_tv b);
bool rp_tv_contains(struct rp_trender *r, struct rp_tv container, struct rp_tv item);
struct rp_tv rp_tv_undefined(struct rp_trender *r, const char *hint);
struct rp_tv rp_tv_undefined_name(struct rp_trender *r, struct rp_tv name);
struct rp_tv rp_tv_undefined_member(struct rp_trender *r, struct rp_tv object, struct rp_tv name);
struct rp_tv rp_tv_fail_undefined(struct rp_trender *r, struct rp_tv v);
struct rp_tv rp_tv_getattr(struct rp_trender *r, struct rp_tv object, struct rp_tv name);
struct rp_tv rp_tv_getitem(struct rp_trender *r, struct rp_tv object, struct rp_tv key);
/* a, b, c: none when left out. */
struct rp_tv rp_tv_slice(struct rp_trender *r, struct rp_tv object, struct rp_tv a, struct rp_tv b,
                         struct rp_tv c);
/* What a loop over v sees; NULL after a fault ("'int' object is not iterable"). Generators are
 * consumed. */
struct rp_tseq *rp_tv_iterate(struct rp_trender *r, struct rp_tv v);
/* -1 after a fault */
int64_t rp_tv_length(struct rp_trender *r, struct rp_tv v);

/* template_text.c: values as text */
struct rp_tv rp_tv_text(struct rp_trender *r, struct rp_tv v); /* Python's str() */
void rp_tv_repr(struct rp_trender *r, struct rp_tbuf *out, struct rp_tv v);
struct rp_tv rp_tv_repr_string(struct rp_trender *r, struct rp_tv v);
struct rp_tv rp_tv_tojson(struct rp_trender *r, const struct rp_tcall *call);
struct rp_tv rp_tv_from_json(struct rp_trender *r, struct rp_tv text);

/* template_string.c: strings by code points */
size_t rp_tstr_count(struct rp_tv s);
size_t rp_tstr_offset(struct rp_tv s, size_t index);
/* Position of needle in s at or after `from`, or SIZE_MAX. */
size_t rp_tstr_find(struct rp_tv s, struct rp_tv needle, size_t from);
size_t rp_tstr_find_last(struct rp_trender *r, struct rp_tv s, struct rp_tv needle, size_t end);
bool rp_tchar_is_space(uint32_t code);
uint32_t rp_tstr_char(struct rp_tv s, size_t at, size_t *size);
enum rp_tcase {
    RP_TCASE_UPPER,
    RP_TCASE_LOWER,
    RP_TCASE_TITLE,
    RP_TCASE_CAPITALIZE,
    RP_TCASE_SWAP
};
struct rp_tv rp_tstr_case(struct rp_trender *r, struct rp_tv s, enum rp_tcase to);
/* sides: 1 left, 2 right; chars none: white space */
struct rp_tv rp_tstr_strip(struct rp_trender *r, struct rp_tv s, struct rp_tv chars, int sides);
struct rp_tv rp_tstr_replace(struct rp_trender *r, struct rp_tv s, struct rp_tv old_text,
                             struct rp_tv new_text, int64_t count);
struct rp_tv rp_tstr_split(struct rp_trender *r, struct rp_tv s, struct rp_tv separator,
                           int64_t limit, bool from_right);
struct rp_tv rp_tstr_lines(struct rp_trender *r, struct rp_tv s, bool keep_ends);
struct rp_tv rp_tstr_join(struct rp_trender *r, struct rp_tv separator, struct rp_tv items,
                          bool convert);
struct rp_tv rp_tstr_repeat(struct rp_trender *r, struct rp_tv s, int64_t times);
/* Padded to `width` code points: left, right or both sides (Python's center). */
struct rp_tv rp_tstr_pad(struct rp_trender *r, struct rp_tv s, int64_t width, struct rp_tv fill,
                         int sides);
struct rp_tv rp_tstr_escape(struct rp_trender *r, struct rp_tv s);

/* template_format.c */
struct rp_tv rp_tstr_percent(struct rp_trender *r, struct rp_tv format, struct rp_tv args);
struct rp_tv rp_tstr_format(struct rp_trender *r, struct rp_tv format, const struct rp_tcall *call);
struct rp_tv rp_tstr_strftime(struct rp_trender *r, struct rp_tv format);

/* template_methods.c: 0 when Python's type has no such attribute. */
int rp_tmethod_find(struct rp_tv object, struct rp_tv name, bool *safe);
struct rp_tv rp_tmethod_call(struct rp_trender *r, struct rp_tv method,
                             const struct rp_tcall *call);
const char *rp_tmethod_name(int method);

/* template_functions.c: globals */
bool rp_tfunction_find(struct rp_tv name, struct rp_tv *out);
struct rp_tv rp_tfunction_call(struct rp_trender *r, int function, const struct rp_tcall *call);

/* template_filters*.c, template_tests.c */
typedef struct rp_tv (*rp_tfilter_fn)(struct rp_trender *r, const struct rp_tcall *call);
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
const struct rp_tfilter *rp_tfilter_find(struct rp_tv name);
const struct rp_ttest *rp_ttest_find(struct rp_tv name);
extern const struct rp_tfilter rp_tfilters_list[];
extern const size_t rp_tfilters_list_count;
/* Follows "a.b.0"; none: the value itself. */
struct rp_tv rp_tv_attribute_path(struct rp_trender *r, struct rp_tv v, struct rp_tv path,
                                  struct rp_tv fallback);
/* Stable; keys[i] belongs to items[i]. false after a fault. */
bool rp_tv_sort(struct rp_trender *r, struct rp_tv *items, struct rp_tv *keys, size_t count,
                bool reverse);

/* chat_template.c: what the model's files call their special tokens; NULL when there is none. */
const struct rp_tv *rp_chat_templates_token(const struct rp_chat_templates *set, struct rp_tv name);

#endif
