/* The section post_processor: the tokens around a single text. */
#include "text/tokenizer/tokenizer_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Real templates add one or two tokens. */
#define AROUND_MAX 64

struct around {
    int32_t before[AROUND_MAX], after[AROUND_MAX];
    size_t before_count, after_count;
};

static int add_id(struct rp_tok_load *load, const char *where, const json_t *json, int32_t *ids,
                  size_t *count) {
    json_int_t id = json_integer_value(json);
    if (!json_is_integer(json) || id < 0 || id >= (json_int_t)load->tok->id_limit ||
        !(load->tok->entries[id].flags & RP_TOK_KNOWN))
        return rp_error_set(load->err, RP_STATUS_RANGE, "%s: %s names an id that no token has",
                            load->file, where);
    if (*count == AROUND_MAX)
        return rp_error_set(load->err, RP_STATUS_RANGE, "%s: %s adds more than %d tokens",
                            load->file, where, AROUND_MAX);
    ids[(*count)++] = (int32_t)id;
    return RP_OK;
}

/* Added outside the tokens of earlier processors. */
static int wrap(struct rp_tok_load *load, const char *where, struct around *all,
                const struct around *more) {
    if (all->before_count + more->before_count > AROUND_MAX ||
        all->after_count + more->after_count > AROUND_MAX)
        return rp_error_set(load->err, RP_STATUS_RANGE, "%s: %s adds more than %d tokens",
                            load->file, where, AROUND_MAX);
    memmove(all->before + more->before_count, all->before, all->before_count * sizeof *all->before);
    memcpy(all->before, more->before, more->before_count * sizeof *all->before);
    memcpy(all->after + all->after_count, more->after, more->after_count * sizeof *all->after);
    all->before_count += more->before_count;
    all->after_count += more->after_count;
    return RP_OK;
}

static int parse_template(struct rp_tok_load *load, const char *where, const json_t *json,
                          struct around *all) {
    const json_t *single = json_object_get(json, "single"), *item, *id;
    const json_t *tokens = json_object_get(json, "special_tokens");
    struct around more = {.before_count = 0};
    size_t i, j, texts = 0;
    json_array_foreach(single, i, item) {
        const json_t *sequence = json_object_get(item, "Sequence");
        const json_t *special = json_object_get(item, "SpecialToken");
        const char *name = json_string_value(json_object_get(sequence ? sequence : special, "id"));
        if (!name)
            return rp_error_set(load->err, RP_STATUS_FORMAT,
                                "%s: %s.single[%zu] is neither a Sequence nor a SpecialToken",
                                load->file, where, i);
        if (sequence) {
            texts += strcmp(name, "A") == 0 ? 1 : 2;
            continue;
        }
        const json_t *ids = json_object_get(json_object_get(tokens, name), "ids");
        if (!json_is_array(ids))
            return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: %s.special_tokens lacks \"%s\"",
                                load->file, where, rp_tok_quote(name, strlen(name)).text);
        json_array_foreach(ids, j, id) {
            int status = texts ? add_id(load, where, id, more.after, &more.after_count)
                               : add_id(load, where, id, more.before, &more.before_count);
            if (status != RP_OK)
                return status;
        }
    }
    if (texts != 1)
        return rp_error_set(load->err, RP_STATUS_UNSUPPORTED,
                            "%s: %s.single must have the text (Sequence A) once", load->file,
                            where);
    return wrap(load, where, all, &more);
}

/* "cls": [token, id] before and "sep" after the text. */
static int parse_bert(struct rp_tok_load *load, const char *where, const json_t *json,
                      struct around *all) {
    struct around more = {.before_count = 0};
    int status = add_id(load, where, json_array_get(json_object_get(json, "cls"), 1), more.before,
                        &more.before_count);
    if (status == RP_OK)
        status = add_id(load, where, json_array_get(json_object_get(json, "sep"), 1), more.after,
                        &more.after_count);
    return status == RP_OK ? wrap(load, where, all, &more) : status;
}

static int parse_one(struct rp_tok_load *load, const char *where, const json_t *json,
                     struct around *all) {
    const char *type;
    size_t len;
    int status = rp_tok_json_string(load, where, json, "type", &type, &len);
    if (status != RP_OK)
        return status;
    if (strcmp(type, "TemplateProcessing") == 0)
        return parse_template(load, where, json, all);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0)
        return parse_bert(load, where, json, all);
    if (strcmp(type, "ByteLevel") == 0)
        return RP_OK; /* it adjusts offsets only, which we have not */
    return rp_error_set(load->err, RP_STATUS_UNSUPPORTED, "%s: %s \"%s\" is not supported",
                        load->file, where, rp_tok_quote(type, len).text);
}

int rp_tok_config_post_processor(struct rp_tok_load *load, const json_t *json) {
    struct rp_tokenizer *tok = load->tok;
    struct around all = {.before_count = 0};
    const json_t *items = json_object_get(json, "processors"), *item;
    const char *type = json_string_value(json_object_get(json, "type"));
    size_t i;
    int status = RP_OK;
    if (!json || json_is_null(json))
        return RP_OK;
    if (type && strcmp(type, "Sequence") == 0 && json_is_array(items)) {
        json_array_foreach(items, i, item) {
            char where[64];
            snprintf(where, sizeof where, "post_processor.processors[%zu]", i);
            status = parse_one(load, where, item, &all);
            if (status != RP_OK)
                return status;
        }
    } else {
        status = parse_one(load, "post_processor", json, &all);
    }
    if (status != RP_OK)
        return status;
    tok->prefix_count = all.before_count;
    tok->suffix_count = all.after_count;
    tok->prefix_ids = rp_arena_calloc(&tok->arena, AROUND_MAX, sizeof(int32_t));
    tok->suffix_ids = rp_arena_calloc(&tok->arena, AROUND_MAX, sizeof(int32_t));
    if (!tok->prefix_ids || !tok->suffix_ids)
        return rp_tok_no_memory(load);
    memcpy(tok->prefix_ids, all.before, sizeof all.before);
    memcpy(tok->suffix_ids, all.after, sizeof all.after);
    return RP_OK;
}
