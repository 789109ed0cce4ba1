/* template_fixture.h - renders templates written in a test, and formats the output's spans. */
#ifndef RP_TESTS_MODEL_TEMPLATE_FIXTURE_H
#define RP_TESTS_MODEL_TEMPLATE_FIXTURE_H

#include "base/buffer.h"
#include "tests/text/tokenizer_fixture.h"
#include "text/template/chat_template.h"

struct chat_fixture {
    struct rp_chat_values *values;
    struct rp_chat_value *variables;
    struct rp_chat_prompt prompt;
    struct rp_chat_fault fault;
    struct rp_error err;
    struct rp_buffer text;
};

static inline void chat_put(struct chat_fixture *f, struct rp_chat_value *dict, const char *key,
                            struct rp_chat_value *value) {
    rp_chat_dict_set(f->values, dict, key, strlen(key), value);
}

static inline struct rp_chat_value *chat_text(struct chat_fixture *f, const char *text) {
    return rp_chat_string(f->values, text, strlen(text));
}

/* role "user", content " <|x|>aB ", letter "x", bos_token "<s>", tool {"name": "<|x|>", "n": [1, true,
 * none, 0.5]} */
static inline void chat_variables(struct chat_fixture *f) {
    f->values = rp_chat_values_create(0);
    f->variables = rp_chat_dict(f->values);
    struct rp_chat_value *tool = rp_chat_dict(f->values), *list = rp_chat_list(f->values);
    chat_put(f, f->variables, "role", chat_text(f, "user"));
    chat_put(f, f->variables, "content", chat_text(f, " <|x|>aB "));
    chat_put(f, f->variables, "letter", chat_text(f, "x"));
    chat_put(f, f->variables, "bos_token", rp_chat_trusted_string(f->values, "<s>", 3));
    chat_put(f, tool, "name", chat_text(f, "<|x|>"));
    rp_chat_list_add(f->values, list, rp_chat_int(f->values, 1));
    rp_chat_list_add(f->values, list, rp_chat_bool(f->values, true));
    rp_chat_list_add(f->values, list, rp_chat_none(f->values));
    rp_chat_list_add(f->values, list, rp_chat_float(f->values, 0.5));
    chat_put(f, tool, "n", list);
    chat_put(f, f->variables, "tool", tool);
}

static inline void chat_reset(struct chat_fixture *f) {
    rp_chat_values_destroy(f->values);
    rp_chat_prompt_deinit(&f->prompt);
    rp_buffer_deinit(&f->text);
    memset(f, 0, sizeof *f);
}

static inline int chat_setup(void **state) {
    struct chat_fixture *f = calloc(1, sizeof *f);
    if (f)
        chat_variables(f);
    *state = f;
    return f ? 0 : -1;
}

static inline int chat_teardown(void **state) {
    chat_reset(*state);
    free(*state);
    return 0;
}

/* Compiles and renders; returns the first failure. */
static inline int chat_try(struct chat_fixture *f, const char *source,
                           const struct rp_chat_limits *limits) {
    struct rp_chat_template *tmpl;
    rp_chat_prompt_deinit(&f->prompt);
    int status =
        rp_chat_template_compile(source, strlen(source), "test.jinja", &tmpl, &f->fault, &f->err);
    if (status == RP_OK)
        status = rp_chat_template_render(tmpl, NULL, f->values, f->variables, limits, &f->prompt,
                                         &f->fault, &f->err);
    rp_chat_template_destroy(tmpl);
    return status;
}

static inline void chat_render(struct chat_fixture *f, const char *source) {
    if (chat_try(f, source, NULL) != RP_OK)
        fail_msg("%s", f->err.text);
}

/* "T<template's>;I<input's>;" */
static inline const char *chat_spans(struct chat_fixture *f, const char *source) {
    chat_render(f, source);
    rp_buffer_clear(&f->text);
    for (size_t i = 0; i < f->prompt.span_count; i++) {
        const struct rp_text_span *span = &f->prompt.spans[i];
        rp_buffer_puts(&f->text, span->allow_special ? "T" : "I");
        rp_buffer_append(&f->text, span->text, span->len);
        rp_buffer_puts(&f->text, ";");
    }
    rp_buffer_append(&f->text, "", 1);
    return f->text.data;
}

#define CHAT_TEST(name) cmocka_unit_test_setup_teardown(name, chat_setup, chat_teardown)

#endif
