/* fuzz_template.c - a chat template and, after a NUL, the messages as JSON. The spans of a rendered
 * prompt cover it; text of the messages is never in a span that allows special tokens: the
 * provenance oracle is a character that the messages contain and the template cannot write. */
#include "base/utf8.h"
#include "server/api/chat_values.h"
#include "tests/fuzz/fuzz_input.h"
#include "text/template/chat_template.h"

#include <string.h>

/* U+E000, private use. */
#define INPUT_MARK "\xee\x80\x80"

static const struct rp_chat_limits limits = {
    .steps = 20000, .depth = 100, .output_bytes = 1 << 16, .memory_bytes = 4 << 20};

static struct rp_chat_value *text(struct rp_chat_values *values, const char *bytes) {
    return rp_chat_string(values, bytes, strlen(bytes));
}

static void put(struct rp_chat_values *values, struct rp_chat_value *dict, const char *key,
                struct rp_chat_value *value) {
    rp_chat_dict_set(values, dict, key, strlen(key), value);
}

static struct rp_chat_value *make_variables(struct rp_chat_values *values, struct fuzz_part json) {
    struct rp_chat_value *variables = rp_chat_dict(values), *messages = NULL;
    json_t *root = json_loadb(json.text, json.len, JSON_DECODE_ANY, NULL);
    if (root)
        messages = rp_chat_values_from_json(values, root);
    json_decref(root);
    if (!messages) {
        struct rp_chat_value *message = rp_chat_dict(values);
        messages = rp_chat_list(values);
        put(values, message, "role", text(values, "user"));
        put(values, message, "content", text(values, " a" INPUT_MARK "<|x|>" INPUT_MARK "B "));
        rp_chat_list_add(values, messages, message);
    }
    put(values, variables, "messages", messages);
    struct rp_chat_value *tool = rp_chat_dict(values), *list = rp_chat_list(values);
    rp_chat_list_add(values, list, rp_chat_int(values, 1));
    rp_chat_list_add(values, list, rp_chat_float(values, 0.5));
    rp_chat_list_add(values, list, rp_chat_none(values));
    put(values, tool, "name", text(values, INPUT_MARK "<|x|>"));
    put(values, tool, "n", list);
    put(values, variables, "tool", tool);
    put(values, variables, "role", text(values, "x" INPUT_MARK));
    put(values, variables, "content", text(values, " a|b" INPUT_MARK));
    put(values, variables, "bos_token", rp_chat_trusted_string(values, "<s>", 3));
    put(values, variables, "add_generation_prompt", rp_chat_bool(values, true));
    return variables;
}

/* Whether a template without the mark could still write it: by an escape, a format, or from a
 * number or an encoding. */
static bool can_write_mark(struct fuzz_part source) {
    return memmem(source.text, source.len, "\xee", 1) ||
           memmem(source.text, source.len, "\x80", 1) || memchr(source.text, '\\', source.len);
}

static void check_prompt(const struct rp_chat_prompt *prompt, bool check_mark) {
    size_t covered = 0;
    RP_ASSERT(rp_utf8_valid(prompt->text, prompt->len) && prompt->text[prompt->len] == '\0');
    for (size_t i = 0; i < prompt->span_count; i++) {
        const struct rp_text_span *span = &prompt->spans[i];
        RP_ASSERT(span->text == prompt->text + covered && span->len > 0);
        RP_ASSERT(i == 0 || span->allow_special != prompt->spans[i - 1].allow_special);
        RP_ASSERT(!check_mark || !span->allow_special ||
                  !memmem(span->text, span->len, INPUT_MARK, 3));
        covered += span->len;
    }
    RP_ASSERT(covered == prompt->len && prompt->len <= limits.output_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    struct fuzz_input input = fuzz_begin(bytes, len);
    struct fuzz_part source = fuzz_until(&input, '\0'), json = {input.bytes, input.len};
    struct rp_chat_template *template = NULL;
    struct rp_chat_prompt prompt;
    struct rp_chat_fault fault;
    struct rp_error err = {.status = RP_OK};
    if (rp_chat_template_compile(source.text, source.len, "f", &template, &fault, &err) != RP_OK) {
        RP_ASSERT(!template && err.text[0] && fault.kind);
        RP_ASSERT(fault.line == 0 || (fault.kind[0] && fault.message[0]));
        return 0;
    }
    struct rp_chat_values *values = rp_chat_values_create(1 << 20);
    RP_ASSERT(values);
    struct rp_chat_value *variables = make_variables(values, json);
    int status =
        rp_chat_template_render(template, NULL, values, variables, &limits, &prompt, &fault, &err);
    if (status == RP_OK)
        check_prompt(&prompt, !can_write_mark(source));
    else
        RP_ASSERT(prompt.span_count == 0 && !prompt.text && err.text[0] && fault.kind);
    rp_chat_prompt_deinit(&prompt);
    rp_chat_values_destroy(values);
    rp_chat_template_destroy(template);
    return 0;
}
