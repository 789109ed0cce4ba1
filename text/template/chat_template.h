/* chat_template.h - renders a conversation to a model's prompt format with its Jinja template. The
 * language and the environment are those of `transformers` (jinja2 with trim_blocks, lstrip_blocks,
 * loopcontrols, the immutable sandbox, tojson, raise_exception, strftime_now); what jinja2 prints
 * is printed byte for byte, and where it fails this fails, with the line.
 *
 * Provenance: every byte of the output is known to come from the template (and from strings that
 * the model's files give, such as bos_token) or from input (messages, tools, arguments), through
 * any filter, method and operator. The output is a list of spans that is passed to
 * rp_tokenizer_encode unchanged: special tokens are recognized where the template wrote them and
 * nowhere else. Encode with flags 0, as transformers does: the template writes BOS itself where the
 * model wants one.
 *
 * Thread: a compiled template is immutable and shared; values and one rendering belong to one
 * thread at a time. Memory: compile and render allocate within limits, everything is freed by the
 * close, destroy and deinit calls. Hostile templates and input exhaust a budget, never crash. */
#ifndef RP_TEXT_CHAT_TEMPLATE_H
#define RP_TEXT_CHAT_TEMPLATE_H

#include "base/base.h"
#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Longer sources are refused; the largest published template has 40 KB. */
#define RP_CHAT_TEMPLATE_BYTES_MAX ((size_t)1 << 20)

/* ---- Templates ------------------------------------------------------------------------ */

struct rp_chat_template;  /* one compiled template */
struct rp_chat_templates; /* a model's templates, one or several by name, and its special tokens */

/* Where and why a template failed, in jinja2's words. */
struct rp_chat_fault {
    int line; /* of the template, from 1; 0: no line (memory, limits of the caller) */
    /* jinja2's or Python's name: "TemplateSyntaxError", "UndefinedError", "TypeError",
     * "TemplateError" (raise_exception), "BudgetError" (ours); static text */
    const char *kind;
    char message[400];
};

/* `name` is what messages call the source ("chat_template.jinja"). RP_OK; FORMAT with the line in
 * err and in *fault (may be NULL); RANGE (too long, nested too deep); NO_MEMORY. */
int rp_chat_template_compile(const char *source, size_t len, const char *name,
                             struct rp_chat_template **out, struct rp_chat_fault *fault,
                             struct rp_error *err) RP_MUST_USE;
void rp_chat_template_destroy(struct rp_chat_template *tmpl); /* NULL is allowed */

/* The templates of a model directory, in this order: `override` (what --chat-template names: a
 * file, or template text when it holds "{{" or "{%"; NULL: none); chat_template.jinja with
 * additional_chat_templates/NAME.jinja; chat_template.json; chat_template in tokenizer_config.json,
 * a string or a list of {name, template}. The special tokens come from tokenizer_config.json and
 * special_tokens_map.json, as strings or objects. NOT_FOUND when there is no template (err says
 * where it was looked for), else IO, FORMAT, RANGE or NO_MEMORY. */
int rp_chat_templates_open(const char *model_dir, const char *override,
                           struct rp_chat_templates **out, struct rp_error *err) RP_MUST_USE;
void rp_chat_templates_close(struct rp_chat_templates *set); /* NULL is allowed */

/* As transformers chooses: with tools "tool_use" when there is one, else "default", else the only
 * one. Never NULL. */
const struct rp_chat_template *rp_chat_templates_pick(const struct rp_chat_templates *set,
                                                      bool have_tools);
/* By name ("default", "tool_use", ...); NULL when there is none. */
const struct rp_chat_template *rp_chat_templates_find(const struct rp_chat_templates *set,
                                                      const char *name);
/* Where it came from, for the log: "chat_template.jinja". */
const char *rp_chat_templates_source(const struct rp_chat_templates *set);
/* Whether any template of the set loops over message content or asks what type it is: then content
 * given as parts should be passed as a list, else their texts joined into one string. */
bool rp_chat_templates_content_parts(const struct rp_chat_templates *set);
/* Its source. */
const char *rp_chat_template_text(const struct rp_chat_template *tmpl);
/* Whether the template's text mentions a variable (such as "tools" or "enable_thinking"). */
bool rp_chat_template_uses(const struct rp_chat_template *tmpl, const char *variable);

/* ---- Values --------------------------------------------------------------------------- */

/* A pool of values; freed together. Every maker returns NULL once memory or the limit is out, and
 * NULL is a legal argument everywhere: build the whole tree, then check rp_chat_values_failed (a
 * rendering does). All values count as input unless they are made by rp_chat_trusted_string. */
struct rp_chat_values;
struct rp_chat_value;

/* limit_bytes 0: 64 MiB. */
struct rp_chat_values *rp_chat_values_create(size_t limit_bytes) RP_MUST_USE;
void rp_chat_values_destroy(struct rp_chat_values *values); /* NULL is allowed */
bool rp_chat_values_failed(const struct rp_chat_values *values);

struct rp_chat_value *rp_chat_none(struct rp_chat_values *values);
struct rp_chat_value *rp_chat_bool(struct rp_chat_values *values, bool value);
struct rp_chat_value *rp_chat_int(struct rp_chat_values *values, int64_t value);
struct rp_chat_value *rp_chat_float(struct rp_chat_values *values, double value);
/* The bytes are copied; those that are not UTF-8 become U+FFFD. */
struct rp_chat_value *rp_chat_string(struct rp_chat_values *values, const char *text, size_t len);
/* Trusted text, from the operator or the model: special tokens in it are recognized. */
struct rp_chat_value *rp_chat_trusted_string(struct rp_chat_values *values, const char *text,
                                             size_t len);
struct rp_chat_value *rp_chat_list(struct rp_chat_values *values);
struct rp_chat_value *rp_chat_dict(struct rp_chat_values *values);
void rp_chat_list_add(struct rp_chat_values *values, struct rp_chat_value *list,
                      struct rp_chat_value *item);
/* A key that is there already keeps its place and gets the new value, as in Python. A container is
 * copied by reference: fill it before or after, but never put it into itself. */
void rp_chat_dict_set(struct rp_chat_values *values, struct rp_chat_value *dict, const char *key,
                      size_t key_len, struct rp_chat_value *item);

/* ---- Rendering ------------------------------------------------------------------------ */

struct rp_chat_limits {
    uint64_t steps;      /* nodes evaluated, and bytes moved / 16; 0: 20 million */
    uint32_t depth;      /* nested evaluations; 0: 1000 */
    size_t output_bytes; /* 0: 16 MiB */
    size_t memory_bytes; /* 0: 128 MiB */
    int64_t now_s;       /* Unix time that strftime_now shows in local time */
};

struct rp_chat_prompt {
    char *text; /* UTF-8, NUL after it */
    size_t len;
    /* into text; allow_special: the template wrote it; neighbors differ */
    struct rp_text_span *spans;
    size_t span_count;
};

/* `variables` is a dict: messages, tools, documents, add_generation_prompt, the whitelisted
 * chat_template_kwargs ... `set` (may be NULL) adds bos_token, eos_token and the other special
 * tokens where the dict has none. `limits` NULL: the defaults, 1970. RP_OK; INVALID when the
 * template refuses or fails (raise_exception, undefined, types), RANGE when a budget is spent,
 * NO_MEMORY. err->text is "NAME line N: message"; *fault (may be NULL) has the parts. On failure
 * *out is empty. */
int rp_chat_template_render(const struct rp_chat_template *tmpl,
                            const struct rp_chat_templates *set, struct rp_chat_values *values,
                            const struct rp_chat_value *variables,
                            const struct rp_chat_limits *limits, struct rp_chat_prompt *out,
                            struct rp_chat_fault *fault, struct rp_error *err) RP_MUST_USE;
void rp_chat_prompt_deinit(struct rp_chat_prompt *prompt);

#ifdef __cplusplus
}
#endif
#endif
