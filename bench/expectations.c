#include "bench/expectations.h"

#include "base/json_writer.h"
#include "base/memory.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 100000u

static const char *const directions[] = {"exact", "lower", "higher"};

void rp_expectations_deinit(struct rp_expectations *list) {
    rp_free(list->rows);
    memset(list, 0, sizeof *list);
}

struct rp_expectation *rp_expectations_add(struct rp_expectations *list, const char *format, ...) {
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity ? list->capacity * 2 : 64;
        struct rp_expectation *rows =
            capacity <= ROWS_MAX * 2 ? rp_realloc(list->rows, capacity * sizeof *rows) : NULL;
        if (!rows)
            return NULL;
        list->rows = rows;
        list->capacity = capacity;
    }
    struct rp_expectation *row = &list->rows[list->count++];
    va_list args;
    *row = (struct rp_expectation){.error = NAN};
    va_start(args, format);
    vsnprintf(row->metric, sizeof row->metric, format, args);
    va_end(args);
    return row;
}

const struct rp_expectation *rp_expectations_find(const struct rp_expectations *list,
                                                  const char *metric) {
    for (uint32_t i = 0; i < list->count; i++)
        if (strcmp(list->rows[i].metric, metric) == 0)
            return &list->rows[i];
    return NULL;
}

bool rp_expectations_has_group(const struct rp_expectations *list, const char *metric) {
    size_t len = strcspn(metric, ".");
    for (uint32_t i = 0; i < list->count; i++)
        if (strcspn(list->rows[i].metric, ".") == len &&
            strncmp(list->rows[i].metric, metric, len) == 0)
            return true;
    return false;
}

/* ---- the file ------------------------------------------------------------------------------- */

/* Copies a text field, if present, to out; false when it is not text or too long. */
static bool read_text(const json_t *object, const char *key, char *out, size_t size) {
    const json_t *value = json_object_get(object, key);
    if (!value)
        return true;
    if (!json_is_string(value) || json_string_length(value) >= size)
        return false;
    memcpy(out, json_string_value(value), json_string_length(value) + 1);
    return true;
}

static bool read_number(const json_t *object, const char *key, double *out) {
    const json_t *value = json_object_get(object, key);
    if (value && json_is_number(value))
        *out = json_number_value(value);
    return !value || json_is_number(value);
}

static bool read_direction(const json_t *object, enum rp_expect_direction *out) {
    char text[16] = "exact";
    if (!read_text(object, "direction", text, sizeof text))
        return false;
    for (size_t i = 0; i < RP_ARRAY_COUNT(directions); i++)
        if (strcmp(text, directions[i]) == 0) {
            *out = (enum rp_expect_direction)i;
            return true;
        }
    return false;
}

/* Returns the name of the first invalid field, or NULL. */
static const char *read_row(const json_t *object, struct rp_expectation *row) {
    const json_t *value = json_object_get(object, "value");
    if (!read_text(object, "metric", row->metric, sizeof row->metric) || !row->metric[0])
        return "metric";
    if (!value || (json_is_string(value) ? !read_text(object, "value", row->text, sizeof row->text)
                                         : !read_number(object, "value", &row->value)))
        return "value";
    if (!read_number(object, "relative", &row->relative) || row->relative < 0)
        return "relative";
    if (!read_number(object, "absolute", &row->absolute) || row->absolute < 0)
        return "absolute";
    if (!read_direction(object, &row->direction))
        return "direction";
    if (!read_number(object, "error", &row->error))
        return "error";
    if (!read_text(object, "commit", row->commit, sizeof row->commit))
        return "commit";
    return read_text(object, "command", row->command, sizeof row->command) ? NULL : "command";
}

static int read_rows(const char *path, const json_t *root, struct rp_expectations *out,
                     struct rp_error *err) {
    const json_t *rows = json_object_get(root, "expectations");
    if (!json_is_object(root) || !json_is_array(rows) ||
        !read_text(root, "hardware", out->hardware, sizeof out->hardware))
        return rp_error_set(err, RP_STATUS_FORMAT,
                            "%s: not an object with \"hardware\" and \"expectations\"", path);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        struct rp_expectation *row = rp_expectations_add(out, "%s", "");
        if (!row)
            return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", path);
        const char *wrong = read_row(json_array_get(rows, i), row);
        if (wrong)
            return rp_error_set(err, RP_STATUS_FORMAT, "%s: row %zu (%s): \"%s\"", path, i + 1,
                                row->metric, wrong);
    }
    return RP_OK;
}

int rp_expectations_load(const char *path, struct rp_expectations *out, struct rp_error *err) {
    json_error_t error;
    memset(out, 0, sizeof *out);
    FILE *file = fopen(path, "re");
    if (!file)
        return rp_error_set(err, errno == ENOENT ? RP_STATUS_NOT_FOUND : RP_STATUS_IO, "%s: %s",
                            path, strerror(errno));
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    fclose(file);
    int status =
        root ? read_rows(path, root, out, err)
             : rp_error_set(err, RP_STATUS_FORMAT, "%s:%d: %s", path, error.line, error.text);
    json_decref(root);
    if (status != RP_OK)
        rp_expectations_deinit(out);
    return status;
}

static void write_row(struct rp_buffer *out, const struct rp_expectation *row) {
    struct rp_json json;
    rp_json_init(&json, out);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "metric", row->metric);
    if (row->text[0])
        rp_json_string(&json, "value", row->text);
    else
        rp_json_double(&json, "value", row->value);
    if (row->relative > 0)
        rp_json_double(&json, "relative", row->relative);
    if (row->absolute > 0)
        rp_json_double(&json, "absolute", row->absolute);
    rp_json_string(&json, "direction", directions[row->direction]);
    if (!isnan(row->error))
        rp_json_double(&json, "error", row->error);
    rp_json_string(&json, "commit", row->commit);
    rp_json_string(&json, "command", row->command);
    rp_json_object_end(&json);
}

/* By name; numbers within names by value, so that decode.8 sorts before decode.16. */
static int compare_rows(const void *left, const void *right) {
    return strverscmp(((const struct rp_expectation *)left)->metric,
                      ((const struct rp_expectation *)right)->metric);
}

static int write_file(const char *path, const struct rp_buffer *text, struct rp_error *err) {
    char temporary[1024];
    int len = snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *file = len > 0 && (size_t)len < sizeof temporary ? fopen(temporary, "we") : NULL;
    bool ok = file && fwrite(text->data, 1, text->len, file) == text->len;
    ok = file && fclose(file) == 0 && ok && rename(temporary, path) == 0;
    return ok ? RP_OK : rp_error_set(err, RP_STATUS_IO, "%s: %s", path, strerror(errno));
}

int rp_expectations_save(const char *path, struct rp_expectations *list, struct rp_error *err) {
    struct rp_buffer out;
    if (list->count)
        qsort(list->rows, list->count, sizeof *list->rows, compare_rows);
    rp_buffer_init(&out, 0);
    rp_buffer_puts(&out, "{\"hardware\": ");
    rp_json_escape(&out, list->hardware, strlen(list->hardware));
    rp_buffer_puts(&out, ", \"expectations\": [");
    for (uint32_t i = 0; i < list->count; i++) {
        rp_buffer_puts(&out, i ? ",\n" : "\n");
        write_row(&out, &list->rows[i]);
    }
    rp_buffer_puts(&out, "\n]}\n");
    int status = out.failed ? rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", path)
                            : write_file(path, &out, err);
    rp_buffer_deinit(&out);
    return status;
}

/* ---- judging -------------------------------------------------------------------------------- */

enum rp_expect_verdict rp_expectation_judge(const struct rp_expectation *baseline,
                                            const struct rp_expectation *measured) {
    if (measured && measured->skipped[0])
        return RP_EXPECT_SKIPPED;
    if (!baseline)
        return RP_EXPECT_NEW;
    if (!measured)
        return RP_EXPECT_MISSING;
    if (baseline->text[0] || measured->text[0])
        return strcmp(baseline->text, measured->text) == 0 ? RP_EXPECT_HOLDS : RP_EXPECT_FAILS;
    double spread = RP_MAX(baseline->relative * fabs(baseline->value), baseline->absolute);
    double change = measured->value - baseline->value;
    if (fabs(change) <= spread)
        return RP_EXPECT_HOLDS;
    if (isnan(change) || baseline->direction == RP_EXPECT_EXACT)
        return RP_EXPECT_FAILS;
    return (change > 0) == (baseline->direction == RP_EXPECT_HIGHER) ? RP_EXPECT_BETTER
                                                                     : RP_EXPECT_FAILS;
}

static void stamp(struct rp_expectation *row, const char *commit, const char *command) {
    snprintf(row->commit, sizeof row->commit, "%s", commit);
    snprintf(row->command, sizeof row->command, "%s", command);
}

bool rp_expectations_update(struct rp_expectations *baselines,
                            const struct rp_expectations *measured, const char *commit,
                            const char *command) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < baselines->count; i++) {
        struct rp_expectation *row = &baselines->rows[i];
        const struct rp_expectation *now = rp_expectations_find(measured, row->metric);
        if (!now && rp_expectations_has_group(measured, row->metric))
            continue;
        if (now && !now->skipped[0] && rp_expectation_judge(row, now) != RP_EXPECT_HOLDS) {
            memcpy(row->text, now->text, sizeof row->text);
            row->value = now->value;
            row->error = now->error;
            stamp(row, commit, command);
        }
        baselines->rows[count++] = *row;
    }
    baselines->count = count;
    for (uint32_t i = 0; i < measured->count; i++) {
        const struct rp_expectation *now = &measured->rows[i];
        if (now->skipped[0] || rp_expectations_find(baselines, now->metric))
            continue;
        struct rp_expectation *row = rp_expectations_add(baselines, "%s", "");
        if (!row)
            return false;
        *row = *now;
        stamp(row, commit, command);
    }
    return true;
}

void rp_hardware_name(const char *device, bool on_gpu, char out[64]) {
    size_t len = 0;
    for (const char *at = device; *at && len < 63 && !(on_gpu && *at == ','); at++) {
        if (isalnum((unsigned char)*at))
            out[len++] = (char)tolower((unsigned char)*at);
        else if (len > 0 && out[len - 1] != '_')
            out[len++] = '_';
    }
    while (len > 0 && out[len - 1] == '_')
        len--;
    out[len] = '\0';
}
