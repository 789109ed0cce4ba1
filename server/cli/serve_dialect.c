#include "server/cli/serve_dialect.h"

#include "base/log.h"
#include "base/memory.h"
#include "server/api/chat_probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX ((size_t)1 << 20)

/* The contents of the model's special tokens. */
struct specials {
    const char **texts; /* (count) in `bytes` */
    size_t count;
    struct rp_buffer bytes;
};

static void specials_deinit(struct specials *specials) {
    rp_free(specials->texts);
    rp_buffer_deinit(&specials->bytes);
}

static int collect(const struct rp_tokenizer *tokenizer, struct specials *out) {
    uint32_t vocab = rp_tokenizer_vocab_size(tokenizer);
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < vocab; i++) {
        size_t len;
        if (!rp_tokenizer_token(tokenizer, (int32_t)i).special)
            continue;
        const char *content = rp_tokenizer_content(tokenizer, (int32_t)i, &len);
        rp_buffer_append(&out->bytes, content, len);
        rp_buffer_append(&out->bytes, "", 1);
        out->count++;
    }
    out->texts = rp_calloc(out->count + 1, sizeof *out->texts);
    if (out->bytes.failed || !out->texts)
        return RP_STATUS_NO_MEMORY;
    const char *at = out->bytes.data;
    for (size_t i = 0; i < out->count; i++, at += strlen(at) + 1)
        out->texts[i] = at;
    return RP_OK;
}

static bool is_word(const char *value, const char *word) {
    return value && strcmp(value, word) == 0;
}

static bool is_auto(const char *value) { return !value || !*value || is_word(value, "auto"); }

/* --- A file of rows -------------------------------------------------------------------------- */

static int read_file(const char *path, struct rp_buffer *out, struct rp_error *err) {
    char block[65536];
    size_t got;
    FILE *file = fopen(path, "rbe");
    if (!file)
        return rp_error_set(err, RP_STATUS_IO, "--tool-call-parser: %s cannot be opened", path);
    rp_buffer_init(out, FILE_BYTES_MAX);
    while ((got = fread(block, 1, sizeof block, file)) > 0)
        rp_buffer_append(out, block, got);
    bool bad = ferror(file) != 0;
    fclose(file);
    if (bad || out->failed)
        return rp_error_set(err, bad ? RP_STATUS_IO : RP_STATUS_RANGE,
                            "--tool-call-parser: %s cannot be read, or is longer than 1 MiB", path);
    return RP_OK;
}

/* FILE.json[:NAME]; without a name, the first row. */
static int open_file(const char *value, struct rp_serve_dialect *out,
                     const struct rp_dialect **out_row, struct rp_error *err) {
    const char *end = strstr(value, ".json") + 5;
    const char *name = *end == ':' ? end + 1 : NULL;
    struct rp_buffer text = {.data = NULL};
    char path[4096];
    if ((*end && *end != ':') ||
        snprintf(path, sizeof path, "%.*s", (int)(end - value), value) >= (int)sizeof path)
        return rp_error_set(err, RP_STATUS_INVALID, "--tool-call-parser: expected FILE.json:NAME");
    int status = read_file(path, &text, err);
    if (status == RP_OK)
        status = rp_dialect_file_load(text.data ? text.data : "", text.len, &out->file, err);
    rp_buffer_deinit(&text);
    if (status != RP_OK)
        return status;
    *out_row = rp_dialect_file_find(out->file, name);
    if (*out_row)
        return RP_OK;
    return rp_error_set(err, RP_STATUS_INVALID, "--tool-call-parser: %s has no dialect %s", path,
                        name ? name : "at all");
}

/* --- Rows ------------------------------------------------------------------------------------ */

static void list_names(char *out, size_t size) {
    size_t len = 0;
    *out = '\0';
    for (size_t i = 0; i < rp_dialect_count() && len < size; i++)
        len +=
            (size_t)snprintf(out + len, size - len, "%s%s", i ? ", " : "", rp_dialect_at(i)->name);
}

static int find_row(const char *value, const char *text, const struct specials *specials,
                    const struct rp_dialect **out, struct rp_error *err) {
    char names[1024];
    bool any = is_auto(value);
    *out = rp_dialect_detect(any ? NULL : value, text, specials->texts, specials->count);
    if (*out || any)
        return RP_OK;
    *out = rp_dialect_find(value);
    if (*out)
        return RP_OK;
    list_names(names, sizeof names);
    return rp_error_set(err, RP_STATUS_INVALID,
                        "--tool-call-parser: %s is not known: auto, none, FILE.json or one of %s",
                        value, names);
}

/* Whether the template or a special token has a marker of reasoning, without white space at its
 * ends. */
static bool has_marker(const char *text, const struct specials *specials, const char *marker) {
    char word[128];
    marker += strspn(marker, " \n");
    size_t len = strcspn(marker, "\n");
    if (len == 0 || len >= sizeof word)
        return len > 0;
    memcpy(word, marker, len);
    word[len] = '\0';
    for (size_t i = 0; i < specials->count; i++)
        if (strcmp(specials->texts[i], word) == 0)
            return true;
    return strstr(text, word) != NULL;
}

/* Where the reasoning comes from: the row itself, *out, or (neither) nowhere. A row that was found
 * by the template alone is that of many models, and some of them do not reason. */
static int find_reasoning(const struct rp_serve_options *options, const char *text,
                          const struct specials *specials, const struct rp_dialect *row,
                          bool *out_own, const struct rp_dialect **out, struct rp_error *err) {
    const char *value = options->reasoning_parser;
    *out = NULL;
    *out_own = false;
    if (is_word(value, "none"))
        return RP_OK;
    if (is_auto(value)) {
        bool markers = row && row->reasoning_close[0];
        if (markers && is_auto(options->tool_call_parser))
            markers = has_marker(text, specials, row->reasoning_open) ||
                      has_marker(text, specials, row->reasoning_close);
        *out_own = markers || (row && row->shape == RP_CALL_HARMONY);
        *out = *out_own ? NULL : rp_dialect_detect_reasoning(text);
        return RP_OK;
    }
    *out = rp_dialect_find_reasoning(value);
    if (*out)
        return RP_OK;
    return rp_error_set(err, RP_STATUS_INVALID,
                        "--reasoning-parser: %s is not known: auto, none, or a name that vLLM has",
                        value);
}

static int bind(const struct rp_dialect *row, const struct rp_dialect *reasoning,
                bool own_reasoning, const struct specials *specials, struct rp_serve_dialect *out,
                struct rp_error *err) {
    struct rp_dialect own;
    if (!row && !reasoning)
        return RP_OK;
    own = row ? *row : *reasoning;
    if (!row) { /* reasoning alone */
        own.shape = RP_CALL_NONE;
        own.section_open = own.section_close = own.call_open = own.call_close = "";
        own.separator = own.name_prefix = own.name_close = own.id_open = own.quote = "";
        own.bare = false;
    }
    if (!own_reasoning && !reasoning)
        own.reasoning_open = own.reasoning_close = "";
    int status =
        rp_dialect_bind(&own, reasoning, specials->texts, specials->count, &out->bound, err);
    if (status == RP_OK)
        rp_log(RP_LOG_INFO, "server: tool calls: %s, reasoning: %s", row ? own.name : "none",
               own.reasoning_close[0] || reasoning ? "yes" : "none");
    return status;
}

int rp_serve_dialect_open(const struct rp_serve_options *options,
                          const struct rp_tokenizer *tokenizer,
                          const struct rp_chat_templates *templates, struct rp_serve_dialect *out,
                          struct rp_error *err) {
    const char *value = options->tool_call_parser;
    const struct rp_dialect *row = NULL, *reasoning = NULL;
    bool own_reasoning = false;
    struct specials specials;
    memset(out, 0, sizeof *out);
    if (!templates)
        return RP_OK;
    const char *text = rp_chat_template_text(rp_chat_templates_pick(templates, true));
    int status = collect(tokenizer, &specials);
    if (status != RP_OK)
        rp_error_set(err, status, "out of memory");
    else if (value && strstr(value, ".json"))
        status = open_file(value, out, &row, err);
    else if (!is_word(value, "none"))
        status = find_row(value, text, &specials, &row, err);
    if (status == RP_OK)
        status = find_reasoning(options, text, &specials, row, &own_reasoning, &reasoning, err);
    if (status == RP_OK)
        status = bind(row, reasoning, own_reasoning, &specials, out, err);
    specials_deinit(&specials);
    out->text_arguments = status == RP_OK && rp_chat_probe_text_arguments(templates);
    return status;
}

void rp_serve_dialect_close(struct rp_serve_dialect *dialect) {
    rp_bound_dialect_free(dialect->bound);
    rp_dialect_file_free(dialect->file);
    memset(dialect, 0, sizeof *dialect);
}
