/* The sections normalizer, pre_tokenizer and decoder. Everything is copied out of the JSON. */
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <stdio.h>
#include <string.h>

static bool is_absent(const json_t *json) { return !json || json_is_null(json); }

static int unsupported(struct rp_tok_load *load, const char *where, const char *what) {
    return rp_error_set(load->err, RP_STATUS_UNSUPPORTED, "%s: %s \"%s\" is not supported",
                        load->file, where, rp_tok_quote(what, strlen(what)).text);
}

static int get_type(struct rp_tok_load *load, const char *where, const json_t *json,
                    const char **out) {
    size_t len;
    return rp_tok_json_string(load, where, json, "type", out, &len);
}

static int copy_text(struct rp_tok_load *load, const char *text, size_t len, const char **out) {
    *out = rp_arena_strndup(&load->tok->arena, text, len);
    return *out ? RP_OK : rp_tok_no_memory(load);
}

/* {"String": s} or {"Regex": s}, the form of Split and Replace. */
static int get_pattern(struct rp_tok_load *load, const char *where, const json_t *json,
                       const char **text, size_t *len, bool *is_regex) {
    const json_t *pattern = json_object_get(json, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *string = json_object_get(pattern, "String");
    *is_regex = regex != NULL;
    *text = json_string_value(regex ? regex : string);
    *len = json_string_length(regex ? regex : string);
    if (*text && *len)
        return RP_OK;
    return rp_error_set(load->err, RP_STATUS_FORMAT,
                        "%s: %s.pattern must be {\"String\": ...} or {\"Regex\": ...}, not empty",
                        load->file, where);
}

typedef int (*section_fn)(struct rp_tok_load *load, const char *where, const json_t *json);

/* Calls `fn` for the section, or for each entry of a Sequence in it. `list` is the Sequence's
 * field. */
static int for_each(struct rp_tok_load *load, const char *where, const json_t *json,
                    const char *list, section_fn fn) {
    const char *type;
    if (is_absent(json))
        return RP_OK;
    int status = get_type(load, where, json, &type);
    if (status != RP_OK || strcmp(type, "Sequence") != 0)
        return status != RP_OK ? status : fn(load, where, json);
    const json_t *items = json_object_get(json, list), *item;
    size_t i;
    if (!json_is_array(items))
        return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: %s.%s must be an array", load->file,
                            where, list);
    json_array_foreach(items, i, item) {
        char name[64];
        snprintf(name, sizeof name, "%s.%s[%zu]", where, list, i);
        status = fn(load, name, item);
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}

static int parse_replace(struct rp_tok_load *load, const char *where, const json_t *json,
                         struct rp_tok_normalizer *out) {
    bool is_regex;
    const char *pattern, *content;
    int status = get_pattern(load, where, json, &pattern, &out->pattern_len, &is_regex);
    if (status == RP_OK)
        status = rp_tok_json_string(load, where, json, "content", &content, &out->content_len);
    if (status == RP_OK)
        status = copy_text(load, pattern, out->pattern_len, &out->pattern);
    if (status == RP_OK)
        status = copy_text(load, content, out->content_len, &out->content);
    if (status == RP_OK && is_regex)
        status = rp_tok_regex_compile(load, where, out->pattern, out->pattern_len, &out->regex);
    return status;
}

/* NULL, with the error set, when the table is full. */
static struct rp_tok_normalizer *add_normalizer(struct rp_tok_load *load,
                                                enum rp_tok_normalizer_kind kind) {
    struct rp_tokenizer *tok = load->tok;
    if (tok->normalizer_count == RP_TOK_NORMALIZERS_MAX) {
        (void)rp_error_set(load->err, RP_STATUS_RANGE, "%s: more than %d normalizers", load->file,
                           RP_TOK_NORMALIZERS_MAX);
        return NULL;
    }
    struct rp_tok_normalizer *out = &tok->normalizers[tok->normalizer_count++];
    out->kind = kind;
    return out;
}

/* Its parts, in order. */
static int parse_bert(struct rp_tok_load *load, const char *where, const json_t *json) {
    bool clean, chinese, lowercase, accents;
    int status = rp_tok_json_bool(load, where, json, "clean_text", true, &clean);
    if (status == RP_OK)
        status = rp_tok_json_bool(load, where, json, "handle_chinese_chars", true, &chinese);
    if (status == RP_OK)
        status = rp_tok_json_bool(load, where, json, "lowercase", true, &lowercase);
    if (status == RP_OK) /* null: as lowercase says */
        status = rp_tok_json_bool(load, where, json, "strip_accents", lowercase, &accents);
    const struct {
        bool on;
        enum rp_tok_normalizer_kind kind;
    } parts[] = {{clean, RP_TOK_BERT_CLEAN},
                 {chinese, RP_TOK_BERT_CHINESE},
                 {accents, RP_TOK_NFD},
                 {accents, RP_TOK_BERT_ACCENTS},
                 {lowercase, RP_TOK_LOWERCASE}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(parts) && status == RP_OK; i++)
        if (parts[i].on && !add_normalizer(load, parts[i].kind))
            status = RP_STATUS_RANGE;
    return status;
}

static int parse_precompiled(struct rp_tok_load *load, const char *where, const json_t *json,
                             struct rp_tok_normalizer *out) {
    const json_t *value = json_object_get(json, "precompiled_charsmap");
    const char *text;
    size_t len;
    if (is_absent(value)) { /* nothing is mapped */
        load->tok->normalizer_count--;
        return RP_OK;
    }
    int status = rp_tok_json_string(load, where, json, "precompiled_charsmap", &text, &len);
    if (status != RP_OK || len == 0) {
        load->tok->normalizer_count -= status == RP_OK;
        return status;
    }
    char *bytes = rp_alloc(len);
    if (!bytes)
        return rp_tok_no_memory(load);
    size_t count = 0;
    if (!rp_tok_base64_decode(text, len, bytes, &count))
        status = rp_error_set(load->err, RP_STATUS_FORMAT,
                              "%s: %s.precompiled_charsmap is not base64", load->file, where);
    else
        status = rp_tok_charsmap_open(load, where, bytes, count, &out->charsmap);
    rp_free(bytes);
    return status;
}

static int parse_normalizer(struct rp_tok_load *load, const char *where, const json_t *json) {
    static const struct {
        const char *type;
        enum rp_tok_normalizer_kind kind;
    } kinds[] = {{"NFC", RP_TOK_NFC},
                 {"NFD", RP_TOK_NFD},
                 {"NFKC", RP_TOK_NFKC},
                 {"NFKD", RP_TOK_NFKD},
                 {"Prepend", RP_TOK_PREPEND},
                 {"Replace", RP_TOK_REPLACE},
                 {"Strip", RP_TOK_STRIP},
                 {"StripAccents", RP_TOK_STRIP_ACCENTS},
                 {"Lowercase", RP_TOK_LOWERCASE},
                 {"Nmt", RP_TOK_NMT},
                 {"Precompiled", RP_TOK_PRECOMPILED}};
    const char *type, *text;
    size_t i = 0;
    int status = get_type(load, where, json, &type);
    if (status != RP_OK)
        return status;
    while (i < RP_ARRAY_COUNT(kinds) && strcmp(kinds[i].type, type) != 0)
        i++;
    if (strcmp(type, "BertNormalizer") == 0)
        return parse_bert(load, where, json);
    if (i == RP_ARRAY_COUNT(kinds))
        return unsupported(load, where, type);
    struct rp_tok_normalizer *out = add_normalizer(load, kinds[i].kind);
    if (!out)
        return RP_STATUS_RANGE;
    if (out->kind == RP_TOK_REPLACE)
        return parse_replace(load, where, json, out);
    if (out->kind == RP_TOK_PRECOMPILED)
        return parse_precompiled(load, where, json, out);
    if (out->kind == RP_TOK_STRIP) {
        status = rp_tok_json_bool(load, where, json, "strip_left", true, &out->left);
        return status != RP_OK
                   ? status
                   : rp_tok_json_bool(load, where, json, "strip_right", true, &out->right);
    }
    if (out->kind != RP_TOK_PREPEND)
        return RP_OK;
    status = rp_tok_json_string(load, where, json, "prepend", &text, &out->content_len);
    return status == RP_OK ? copy_text(load, text, out->content_len, &out->content) : status;
}

int rp_tok_config_normalizer(struct rp_tok_load *load, const json_t *json) {
    return for_each(load, "normalizer", json, "normalizers", parse_normalizer);
}

/* NULL, with the error set, when the table is full. */
static struct rp_tok_step *add_step(struct rp_tok_load *load, enum rp_tok_step_kind kind) {
    struct rp_tokenizer *tok = load->tok;
    if (tok->step_count == RP_TOK_STEPS_MAX) {
        (void)rp_error_set(load->err, RP_STATUS_RANGE, "%s: more than %d pre-tokenizers",
                           load->file, RP_TOK_STEPS_MAX);
        return NULL;
    }
    struct rp_tok_step *step = &tok->steps[tok->step_count++];
    step->kind = kind;
    return step;
}

static int get_behavior(struct rp_tok_load *load, const char *where, const json_t *json,
                        enum rp_tok_behavior *out) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name;
    size_t len;
    int status = rp_tok_json_string(load, where, json, "behavior", &name, &len);
    if (status != RP_OK)
        return status;
    for (size_t i = 0; i < RP_ARRAY_COUNT(names); i++) {
        if (strcmp(names[i], name) == 0) {
            *out = (enum rp_tok_behavior)i;
            return RP_OK;
        }
    }
    return unsupported(load, where, name);
}

static int add_pattern_step(struct rp_tok_load *load, const char *where, const char *pattern,
                            size_t len, bool is_regex, enum rp_tok_behavior behavior, bool invert) {
    rp_tok_scan_fn scan = NULL;
    if (is_regex && behavior == RP_TOK_ISOLATED)
        scan = rp_tok_scan_find(pattern, len);
    struct rp_tok_step *step = add_step(load, scan       ? RP_TOK_STEP_SCAN
                                              : is_regex ? RP_TOK_STEP_REGEX
                                                         : RP_TOK_STEP_LITERAL);
    if (!step)
        return RP_STATUS_RANGE;
    step->behavior = behavior;
    step->invert = invert;
    step->scan = scan;
    step->literal_len = len;
    int status = copy_text(load, pattern, len, &step->literal);
    if (status == RP_OK && is_regex && !scan)
        status = rp_tok_regex_compile(load, where, step->literal, len, &step->regex);
    return status;
}

static int parse_split(struct rp_tok_load *load, const char *where, const json_t *json) {
    const char *pattern;
    size_t len;
    bool is_regex, invert;
    enum rp_tok_behavior behavior;
    int status = get_pattern(load, where, json, &pattern, &len, &is_regex);
    if (status == RP_OK)
        status = rp_tok_json_bool(load, where, json, "invert", false, &invert);
    if (status == RP_OK)
        status = get_behavior(load, where, json, &behavior);
    if (status != RP_OK)
        return status;
    return add_pattern_step(load, where, pattern, len, is_regex, behavior, invert);
}

static int parse_byte_level(struct rp_tok_load *load, const char *where, const json_t *json) {
    bool prefix, use_regex;
    int status = rp_tok_json_bool(load, where, json, "add_prefix_space", true, &prefix);
    if (status == RP_OK)
        status = rp_tok_json_bool(load, where, json, "use_regex", true, &use_regex);
    if (status == RP_OK && prefix && !add_step(load, RP_TOK_STEP_PREFIX_SPACE))
        status = RP_STATUS_RANGE;
    if (status == RP_OK && use_regex)
        status = add_pattern_step(load, where, rp_tok_gpt2_pattern, strlen(rp_tok_gpt2_pattern),
                                  true, RP_TOK_ISOLATED, false);
    load->tok->byte_level = true;
    return status;
}

static int parse_metaspace(struct rp_tok_load *load, const char *where, const json_t *json) {
    static const char *const names[] = {"always", "first", "never"};
    const char *replacement, *scheme = json_string_value(json_object_get(json, "prepend_scheme"));
    size_t len;
    bool prefix, split;
    int status = rp_tok_json_string(load, where, json, "replacement", &replacement, &len);
    if (status == RP_OK)
        status = rp_tok_json_bool(load, where, json, "split", true, &split);
    if (status == RP_OK) /* the older form of prepend_scheme */
        status = rp_tok_json_bool(load, where, json, "add_prefix_space", true, &prefix);
    if (status == RP_OK && rp_utf8_decode(replacement, len, NULL) != (int)len)
        return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: %s.replacement must be one character",
                            load->file, where);
    if (status != RP_OK)
        return status;
    struct rp_tok_step *step = add_step(load, RP_TOK_STEP_METASPACE);
    if (!step)
        return RP_STATUS_RANGE;
    step->prepend = prefix ? RP_TOK_PREPEND_ALWAYS : RP_TOK_PREPEND_NEVER;
    if (scheme) {
        size_t i = 0;
        while (i < RP_ARRAY_COUNT(names) && strcmp(names[i], scheme) != 0)
            i++;
        if (i == RP_ARRAY_COUNT(names))
            return unsupported(load, where, scheme);
        step->prepend = (enum rp_tok_prepend)i;
    }
    step->split = split;
    step->behavior = RP_TOK_MERGED_WITH_NEXT;
    step->literal_len = len;
    return copy_text(load, replacement, len, &step->literal);
}

static int parse_digits(struct rp_tok_load *load, const char *where, const json_t *json) {
    bool individual;
    int status = rp_tok_json_bool(load, where, json, "individual_digits", false, &individual);
    if (status != RP_OK)
        return status;
    struct rp_tok_step *step = add_step(load, RP_TOK_STEP_DIGITS);
    if (!step)
        return RP_STATUS_RANGE;
    step->behavior = individual ? RP_TOK_ISOLATED : RP_TOK_CONTIGUOUS;
    return RP_OK;
}

static int parse_pre_tokenizer(struct rp_tok_load *load, const char *where, const json_t *json) {
    /* Rust's \w, which has the two joiners. */
    static const char whitespace[] = "[\\w\\x{200C}\\x{200D}]+|[^\\w\\s\\x{200C}\\x{200D}]+",
                      space[] = "\\s", punctuation[] = "\\p{SplitPunct}";
    const char *type;
    enum rp_tok_behavior behavior = RP_TOK_ISOLATED;
    int status = get_type(load, where, json, &type);
    if (status != RP_OK)
        return status;
    if (load->tok->byte_level && !load->tok->mapped_steps) {
        load->tok->mapped_steps = true;
        if (!add_step(load, RP_TOK_STEP_BYTE_MAP))
            return RP_STATUS_RANGE;
    }
    if (strcmp(type, "ByteLevel") == 0 && !load->tok->byte_level)
        return parse_byte_level(load, where, json);
    if (load->tok->byte_level && (strcmp(type, "ByteLevel") == 0 || strcmp(type, "Metaspace") == 0))
        return rp_error_set(load->err, RP_STATUS_UNSUPPORTED,
                            "%s: %s: %s after ByteLevel is not supported", load->file, where, type);
    if (strcmp(type, "BertPreTokenizer") == 0) {
        status =
            add_pattern_step(load, where, space, sizeof space - 1, true, RP_TOK_REMOVED, false);
        return status != RP_OK ? status
                               : add_pattern_step(load, where, punctuation, sizeof punctuation - 1,
                                                  true, RP_TOK_ISOLATED, false);
    }
    if (strcmp(type, "CharDelimiterSplit") == 0) {
        const char *delimiter;
        size_t len;
        status = rp_tok_json_string(load, where, json, "delimiter", &delimiter, &len);
        return status != RP_OK
                   ? status
                   : add_pattern_step(load, where, delimiter, len, false, RP_TOK_REMOVED, false);
    }
    if (strcmp(type, "Split") == 0)
        return parse_split(load, where, json);
    if (strcmp(type, "Metaspace") == 0)
        return parse_metaspace(load, where, json);
    if (strcmp(type, "Digits") == 0)
        return parse_digits(load, where, json);
    if (strcmp(type, "Whitespace") == 0)
        return add_pattern_step(load, where, whitespace, sizeof whitespace - 1, true,
                                RP_TOK_REMOVED, true);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_pattern_step(load, where, space, sizeof space - 1, true, RP_TOK_REMOVED, false);
    if (strcmp(type, "Punctuation") == 0) {
        if (json_object_get(json, "behavior"))
            status = get_behavior(load, where, json, &behavior);
        return status != RP_OK ? status
                               : add_pattern_step(load, where, punctuation, sizeof punctuation - 1,
                                                  true, behavior, false);
    }
    return unsupported(load, where, type);
}

int rp_tok_config_pre_tokenizer(struct rp_tok_load *load, const json_t *json) {
    return for_each(load, "pre_tokenizer", json, "pretokenizers", parse_pre_tokenizer);
}

static int decoder_replace(struct rp_tok_load *load, const char *where, const json_t *json) {
    struct rp_tok_decoder *d = &load->tok->decoder;
    struct rp_tok_normalizer parsed = {.kind = RP_TOK_REPLACE};
    if (d->byte_fallback || d->replace_count == RP_TOK_REPLACES_MAX)
        return rp_error_set(load->err, RP_STATUS_UNSUPPORTED,
                            "%s: %s: Replace after ByteFallback, or more than %d of them, is not "
                            "supported",
                            load->file, where, RP_TOK_REPLACES_MAX);
    int status = parse_replace(load, where, json, &parsed);
    if (status == RP_OK && parsed.regex) {
        pcre2_code_free(parsed.regex);
        return rp_error_set(load->err, RP_STATUS_UNSUPPORTED,
                            "%s: %s: Replace with a Regex is not supported", load->file, where);
    }
    d->replaces[d->replace_count++] = (struct rp_tok_replace){
        parsed.pattern, parsed.content, parsed.pattern_len, parsed.content_len};
    return status;
}

static int decoder_strip(struct rp_tok_load *load, const char *where, const json_t *json) {
    struct rp_tok_decoder *d = &load->tok->decoder;
    const char *content;
    size_t len;
    json_int_t start = json_integer_value(json_object_get(json, "start"));
    json_int_t stop = json_integer_value(json_object_get(json, "stop"));
    int status = rp_tok_json_string(load, where, json, "content", &content, &len);
    if (status != RP_OK)
        return status;
    /* A strip at the end would hold back text until the stream ends, one of each token has no use.
     */
    if (!d->fused || stop != 0 || start < 0 || start > UINT32_MAX || len != 1)
        return rp_error_set(load->err, RP_STATUS_UNSUPPORTED,
                            "%s: %s: Strip is supported after Fuse, at the start, for an ASCII "
                            "character",
                            load->file, where);
    d->strip_char = content[0];
    d->strip_left = (uint32_t)start;
    return RP_OK;
}

static int decoder_metaspace(struct rp_tok_load *load, const char *where, const json_t *json) {
    struct rp_tok_decoder *d = &load->tok->decoder;
    const char *replacement, *scheme = json_string_value(json_object_get(json, "prepend_scheme"));
    size_t len;
    bool prefix;
    int status = rp_tok_json_string(load, where, json, "replacement", &replacement, &len);
    if (status == RP_OK)
        status = rp_tok_json_bool(load, where, json, "add_prefix_space", true, &prefix);
    if (status != RP_OK)
        return status;
    if (rp_utf8_decode(replacement, len, NULL) != (int)len)
        return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: %s.replacement must be one character",
                            load->file, where);
    d->drop_first_markers = scheme ? strcmp(scheme, "never") != 0 : prefix;
    d->replaces[0] = (struct rp_tok_replace){.content = " ", .pattern_len = len, .content_len = 1};
    d->replace_count = 1;
    return copy_text(load, replacement, len, &d->replaces[0].pattern);
}

static int decoder_wordpiece(struct rp_tok_load *load, const char *where, const json_t *json) {
    struct rp_tok_decoder *d = &load->tok->decoder;
    const char *prefix;
    size_t len;
    int status = rp_tok_json_string(load, where, json, "prefix", &prefix, &len);
    if (status == RP_OK)
        status = rp_tok_json_bool(load, where, json, "cleanup", true, &d->cleanup);
    if (status != RP_OK)
        return status;
    d->kind = RP_TOK_DECODER_WORDPIECE;
    d->replaces[0] = (struct rp_tok_replace){.content = "", .pattern_len = len};
    return copy_text(load, prefix, len, &d->replaces[0].pattern);
}

/* ByteLevel and Metaspace stand alone; the others come in the order Replace, ByteFallback, Fuse,
 * Strip. */
static int parse_decoder(struct rp_tok_load *load, const char *where, const json_t *json) {
    struct rp_tok_decoder *d = &load->tok->decoder;
    const char *type;
    int status = get_type(load, where, json, &type);
    if (status != RP_OK)
        return status;
    bool alone = strcmp(type, "ByteLevel") == 0 || strcmp(type, "Metaspace") == 0;
    if (d->kind != RP_TOK_DECODER_NONE && (alone || strcmp(type, "WordPiece") == 0 ||
                                           d->kind != RP_TOK_DECODER_SEQUENCE || d->fused)) {
        if (strcmp(type, "Fuse") == 0)
            return RP_OK; /* changes nothing there */
        if (alone || strcmp(type, "Strip") != 0 || d->kind != RP_TOK_DECODER_SEQUENCE)
            return rp_error_set(load->err, RP_STATUS_UNSUPPORTED,
                                "%s: %s: %s at this place is not supported", load->file, where,
                                rp_tok_quote(type, strlen(type)).text);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        d->kind = RP_TOK_DECODER_BYTE_LEVEL;
        return RP_OK;
    }
    if (strcmp(type, "WordPiece") == 0)
        return decoder_wordpiece(load, where, json);
    d->kind = alone ? RP_TOK_DECODER_METASPACE : RP_TOK_DECODER_SEQUENCE;
    if (alone)
        return decoder_metaspace(load, where, json);
    if (strcmp(type, "Replace") == 0)
        return decoder_replace(load, where, json);
    if (strcmp(type, "Strip") == 0)
        return decoder_strip(load, where, json);
    if (strcmp(type, "ByteFallback") == 0)
        d->byte_fallback = true;
    else if (strcmp(type, "Fuse") == 0)
        d->fused = true;
    else
        return unsupported(load, where, type);
    return RP_OK;
}

int rp_tok_config_decoder(struct rp_tok_load *load, const json_t *json) {
    return for_each(load, "decoder", json, "decoders", parse_decoder);
}
