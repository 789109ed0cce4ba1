#include "base/memory.h"
#include "text/dialect/dialect_internal.h"
#include "text/json_file.h"

#include <string.h>

enum { ROWS_MAX = 256 };

struct rp_dialect_file {
    struct rp_arena strings;
    size_t count;
    struct rp_dialect rows[];
};

static const char *const shapes[] = {
    [RP_CALL_NONE] = "none",       [RP_CALL_JSON] = "json",       [RP_CALL_NAMED] = "named",
    [RP_CALL_TAGGED] = "tagged",   [RP_CALL_LITERAL] = "literal", [RP_CALL_PYTHONIC] = "pythonic",
    [RP_CALL_HARMONY] = "harmony",
};
static const char *const id_rules[] = {
    [RP_CALL_ID_OPENAI] = "openai",
    [RP_CALL_ID_MISTRAL] = "mistral",
    [RP_CALL_ID_FUNCTIONS] = "functions",
};

static const struct {
    const char *name;
    size_t offset;
} strings[] = {
#define X(member) {#member, offsetof(struct rp_dialect, member)},
    RP_DIALECT_STRINGS(X)
#undef X
};

static int index_of(const char *const *names, size_t count, const char *name) {
    for (size_t i = 0; name && i < count; i++)
        if (strcmp(names[i], name) == 0)
            return (int)i;
    return -1;
}

static int wrong(const struct rp_dialect *row, const char *key, const char *what,
                 struct rp_error *err) {
    char name[64], member[64];
    return rp_error_set(err, RP_STATUS_FORMAT, "dialects: row \"%s\": \"%s\" %s",
                        rp_text_for_message(name, sizeof name, row->name),
                        rp_text_for_message(member, sizeof member, key), what);
}

static int set_member(struct rp_dialect_file *file, struct rp_dialect *row, const char *key,
                      const json_t *value, struct rp_error *err) {
    const char *text = json_string_value(value);
    if (strcmp(key, "shape") == 0 || strcmp(key, "id_rule") == 0) {
        bool shape = key[0] == 's';
        int at = shape ? index_of(shapes, RP_ARRAY_COUNT(shapes), text)
                       : index_of(id_rules, RP_ARRAY_COUNT(id_rules), text);
        if (at < 0)
            return wrong(row, key,
                         shape ? "must be none, json, named, tagged, literal, pythonic or harmony"
                               : "must be openai, mistral or functions",
                         err);
        if (shape)
            row->shape = (enum rp_call_shape)at;
        else
            row->id_rule = (enum rp_call_id_rule)at;
        return RP_OK;
    }
    if (strcmp(key, "bare") == 0 || strcmp(key, "section_per_call") == 0) {
        if (!json_is_boolean(value))
            return wrong(row, key, "must be true or false", err);
        *(key[0] == 'b' ? &row->bare : &row->section_per_call) = json_is_true(value);
        return RP_OK;
    }
    for (size_t i = 0; i < RP_ARRAY_COUNT(strings); i++) {
        if (strcmp(strings[i].name, key) != 0)
            continue;
        if (!text)
            return wrong(row, key, "must be a string", err);
        const char *copy = rp_arena_strndup(&file->strings, text, strlen(text));
        if (!copy)
            return rp_error_set(err, RP_STATUS_NO_MEMORY, "dialects: out of memory");
        memcpy((char *)row + strings[i].offset, &copy, sizeof copy);
        return RP_OK;
    }
    return wrong(row, key, "is no member of a dialect", err);
}

/* What the splitter and the grammar need of each shape. */
static int check_row(const struct rp_dialect *row, struct rp_error *err) {
    const char *missing = NULL;
    bool opens = row->section_open[0] || row->call_open[0];
    if (row->shape == RP_CALL_TAGGED && (!row->key_open[0] || !row->key_close[0]))
        missing = "key_open and key_close";
    else if (row->shape == RP_CALL_TAGGED && (!row->value_close[0] || !row->call_close[0]))
        missing = "value_close and call_close";
    else if (row->shape == RP_CALL_NAMED && !row->name_close[0])
        missing = "name_close";
    else if (row->shape == RP_CALL_LITERAL && !row->quote[0])
        missing = "quote";
    else if (row->shape != RP_CALL_NONE && row->shape != RP_CALL_HARMONY && !opens && !row->bare)
        missing = "section_open or call_open";
    else if (!row->reasoning_open[0] != !row->reasoning_close[0])
        missing = "reasoning_open and reasoning_close";
    return missing ? wrong(row, missing, "is missing", err) : RP_OK;
}

static int read_row(struct rp_dialect_file *file, const json_t *object, struct rp_dialect *row,
                    struct rp_error *err) {
    static const char none[] = "";
    const char *empty = none, *key, *name = json_string_value(json_object_get(object, "name"));
    const json_t *base = json_object_get(object, "base");
    json_t *value;
    if (!name || !name[0])
        return rp_error_set(err, RP_STATUS_FORMAT,
                            "dialects: row %zu: \"name\" must be a string that is not empty",
                            file->count);
    for (size_t i = 0; i < RP_ARRAY_COUNT(strings); i++)
        memcpy((char *)row + strings[i].offset, &empty, sizeof empty);
    row->arguments_key = "arguments";
    row->name = name; /* for messages; replaced by its copy below */
    if (base) {
        const struct rp_dialect *other =
            json_is_string(base) ? rp_dialect_find(json_string_value(base)) : NULL;
        if (!other)
            return wrong(row, "base", "must name a dialect", err);
        *row = *other;
        row->name = name;
        row->tool_parser = row->reasoning_parser = row->clues = none;
    }
    json_object_foreach((json_t *)object, key, value) {
        int rc = strcmp(key, "base") == 0 ? RP_OK : set_member(file, row, key, value, err);
        if (rc != RP_OK)
            return rc;
    }
    return check_row(row, err);
}

int rp_dialect_file_load(const char *text, size_t len, struct rp_dialect_file **out,
                         struct rp_error *err) {
    json_t *root, *object;
    size_t i;
    *out = NULL;
    int rc = rp_json_text_load(text, len, "dialects", &root, err);
    if (rc != RP_OK)
        return rc;
    const json_t *list = json_object_get(root, "dialects");
    size_t count = json_array_size(list);
    struct rp_dialect_file *file = NULL;
    if (!json_is_array(list) || count > ROWS_MAX)
        rc = rp_error_set(err, RP_STATUS_FORMAT,
                          "dialects: the file must be {\"dialects\": [..]} with up to %d rows",
                          ROWS_MAX);
    else if (!(file = rp_calloc(1, sizeof *file + count * sizeof *file->rows)))
        rc = rp_error_set(err, RP_STATUS_NO_MEMORY, "dialects: out of memory");
    for (i = 0; rc == RP_OK && i < count; i++) {
        object = json_array_get(list, i);
        rc = read_row(file, object, &file->rows[file->count], err);
        file->count += rc == RP_OK;
    }
    json_decref(root);
    if (rc == RP_OK)
        *out = file;
    else
        rp_dialect_file_free(file);
    return rc;
}

void rp_dialect_file_free(struct rp_dialect_file *file) {
    if (!file)
        return;
    rp_arena_deinit(&file->strings);
    rp_free(file);
}

const struct rp_dialect *rp_dialect_file_find(const struct rp_dialect_file *file,
                                              const char *name) {
    for (size_t i = 0; i < file->count; i++)
        if (!name || strcmp(file->rows[i].name, name) == 0)
            return &file->rows[i];
    return NULL;
}
