/* load_trace.c - reads traces: Azure's CSV and Mooncake's JSON lines. Invalid input gives an error
 * that names line and field. */
#include "base/checked.h"
#include "base/memory.h"
#include "bench/load/load_lines.h"
#include "bench/load/load_plan_internal.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_SECOND UINT64_C(1000000000)
#define AZURE_HEADER  "TIMESTAMP,ContextTokens,GeneratedTokens"
/* Year 2261: the limit of 64-bit nanoseconds. */
#define MS_MAX INT64_C(9200000000000)

void rp_load_rows_free(struct rp_load_rows *rows) {
    rp_free(rows->rows);
    rp_free(rows->hashes);
    memset(rows, 0, sizeof *rows);
}

/* Returns the array with room for `more` further elements; NULL: out of memory, the array is
 * unchanged. */
static void *grow(void *array, size_t *capacity, size_t count, size_t more, size_t size) {
    size_t need, bytes, wanted = RP_MAX(*capacity, (size_t)1024);
    if (rp_add_overflow(count, more, &need))
        return NULL;
    if (array && need <= *capacity)
        return array;
    while (wanted < need)
        if (rp_mul_overflow(wanted, 2, &wanted))
            return NULL;
    if (rp_mul_overflow(wanted, size, &bytes))
        return NULL;
    void *grown = rp_realloc(array, bytes);
    if (grown)
        *capacity = wanted;
    return grown;
}

int rp_load_rows_add(struct rp_load_rows *rows, const struct rp_load_source *source,
                     const struct rp_load_row *row, struct rp_error *err) {
    if (rows->seen == RP_LOAD_REQUESTS_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "more than %u requests", RP_LOAD_REQUESTS_MAX);
    rows->seen++;
    if (source->max_context && (uint64_t)row->input + row->output > source->max_context) {
        rows->skipped++;
        return RP_OK;
    }
    struct rp_load_row *grown =
        grow(rows->rows, &rows->capacity, rows->count, 1, sizeof *rows->rows);
    if (!grown)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for requests");
    rows->rows = grown;
    rows->rows[rows->count] = *row;
    rows->rows[rows->count++].number = rows->seen - 1;
    return RP_OK;
}

/* Scales a length of the trace; the result is at least 1. */
static int scale(const struct rp_load_lines *lines, const struct rp_load_source *source,
                 const char *field, uint64_t length, uint32_t *out, struct rp_error *err) {
    double tokens = floor((double)length * source->length_scale + 0.5);
    if (!(tokens <= RP_LOAD_TOKENS_MAX))
        return rp_load_lines_error(lines, RP_STATUS_RANGE, err,
                                   "%s %" PRIu64 " times length_scale %g is more than %u tokens",
                                   field, length, source->length_scale, RP_LOAD_TOKENS_MAX);
    *out = (uint32_t)RP_MAX(tokens, 1.0);
    return RP_OK;
}

/* --- Azure ----------------------------------------------------------------------------------- */

/* Reads exactly `digits` digits, and the separator after them unless it is 0. */
static bool read_digits(const char **text, int digits, char separator, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < digits; i++, (*text)++) {
        if (**text < '0' || **text > '9')
            return false;
        *out = *out * 10 + (uint32_t)(**text - '0');
    }
    return !separator || *(*text)++ == separator;
}

/* Days since 1970-01-01 in the Gregorian calendar (Hinnant's days_from_civil); year 1970 or
 * later. */
static uint64_t days_since_1970(uint32_t year, uint32_t month, uint32_t day) {
    year -= month <= 2;
    uint32_t era = year / 400, of_era = year % 400;
    uint32_t of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    return (uint64_t)era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

static bool is_valid_date(uint32_t year, uint32_t month, uint32_t day) {
    static const uint32_t days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return year >= 1971 && year <= 2261 && month >= 1 && month <= 12 && day >= 1 &&
           day <= days[month - 1] + (month == 2 && leap);
}

/* Reads a time zone: empty, Z, +HH:MM or -HH:MM. */
static bool read_zone(const char *text, int64_t *out_seconds) {
    uint32_t hours, minutes;
    char sign = *text;
    *out_seconds = 0;
    if (sign == '\0' || strcmp(text, "Z") == 0)
        return true;
    text++;
    if ((sign != '+' && sign != '-') || !read_digits(&text, 2, ':', &hours) ||
        !read_digits(&text, 2, 0, &minutes) || *text || hours > 14 || minutes > 59)
        return false;
    *out_seconds = (int64_t)(hours * 3600 + minutes * 60) * (sign == '-' ? -1 : 1);
    return true;
}

/* Reads YYYY-MM-DD HH:MM:SS with up to 9 decimals and a zone; NUL-terminated. */
static bool read_time(const char *text, uint64_t *out_ns) {
    uint32_t year, month, day, hour, minute, second, nanos = 0;
    int64_t zone;
    if (!read_digits(&text, 4, '-', &year) || !read_digits(&text, 2, '-', &month) ||
        !read_digits(&text, 2, 0, &day) || (*text != ' ' && *text != 'T'))
        return false;
    text++;
    if (!read_digits(&text, 2, ':', &hour) || !read_digits(&text, 2, ':', &minute) ||
        !read_digits(&text, 2, 0, &second) || !is_valid_date(year, month, day) || hour > 23 ||
        minute > 59 || second > 59)
        return false;
    if (*text == '.') {
        uint32_t unit = NS_PER_SECOND / 10;
        if (text[1] < '0' || text[1] > '9')
            return false;
        for (text++; *text >= '0' && *text <= '9'; text++, unit /= 10) {
            if (unit == 0)
                return false;
            nanos += (uint32_t)(*text - '0') * unit;
        }
    }
    if (!read_zone(text, &zone))
        return false;
    uint64_t seconds =
        days_since_1970(year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
    *out_ns = (seconds - (uint64_t)zone) * NS_PER_SECOND + nanos;
    return true;
}

/* Reads digits only: strtoull would accept a sign, white space and an overflow. */
static bool read_count(const char *text, uint64_t *out) {
    *out = 0;
    if (!*text)
        return false;
    for (; *text; text++)
        if (*text < '0' || *text > '9' || *out > RP_LOAD_TOKENS_MAX)
            return false;
        else
            *out = *out * 10 + (uint64_t)(*text - '0');
    return *out <= RP_LOAD_TOKENS_MAX;
}

static int azure_length(const struct rp_load_lines *lines, const struct rp_load_source *source,
                        const char *field, const char *text, uint32_t *out, struct rp_error *err) {
    uint64_t length;
    if (!read_count(text, &length))
        return rp_load_lines_error(lines, RP_STATUS_FORMAT, err,
                                   "%s is \"%.40s\": must be a whole number from 0 to %u", field,
                                   text, RP_LOAD_TOKENS_MAX);
    return scale(lines, source, field, length, out, err);
}

static int azure_row(const struct rp_load_lines *lines, const struct rp_load_source *source,
                     struct rp_load_row *out, struct rp_error *err) {
    char fields[3][64];
    const char *text = lines->text;
    for (int i = 0; i < 3; i++) {
        size_t len = strcspn(text, ",");
        if ((text[len] == ',') != (i < 2))
            return rp_load_lines_error(lines, RP_STATUS_FORMAT, err,
                                       "does not have three fields: %s", AZURE_HEADER);
        if (len >= sizeof fields[i])
            return rp_load_lines_error(lines, RP_STATUS_FORMAT, err, "field %d is too long", i + 1);
        memcpy(fields[i], text, len);
        fields[i][len] = '\0';
        text += len + (i < 2);
    }
    if (!read_time(fields[0], &out->at_ns))
        return rp_load_lines_error(lines, RP_STATUS_FORMAT, err,
                                   "TIMESTAMP is \"%.40s\": must be YYYY-MM-DD HH:MM:SS.fffffff",
                                   fields[0]);
    int status = azure_length(lines, source, "ContextTokens", fields[1], &out->input, err);
    return status == RP_OK
               ? azure_length(lines, source, "GeneratedTokens", fields[2], &out->output, err)
               : status;
}

/* --- Mooncake -------------------------------------------------------------------------------- */

static int mooncake_length(const struct rp_load_lines *lines, const struct rp_load_source *source,
                           const json_t *root, const char *field, uint32_t *out,
                           struct rp_error *err) {
    const json_t *value = json_object_get(root, field);
    json_int_t length = json_integer_value(value);
    if (!json_is_integer(value) || length < 0 || length > RP_LOAD_TOKENS_MAX)
        return rp_load_lines_error(lines, RP_STATUS_FORMAT, err,
                                   "%s must be a whole number from 0 to %u", field,
                                   RP_LOAD_TOKENS_MAX);
    return scale(lines, source, field, (uint64_t)length, out, err);
}

static int mooncake_hashes(const struct rp_load_lines *lines, const struct rp_load_source *source,
                           const json_t *root, struct rp_load_rows *rows, struct rp_load_row *row,
                           struct rp_error *err) {
    const json_t *list = json_object_get(root, "hash_ids");
    size_t have = json_array_size(list), need = RP_CEIL_DIV(row->input, source->block_tokens);
    if (!json_is_array(list))
        return rp_load_lines_error(lines, RP_STATUS_FORMAT, err,
                                   "hash_ids must be an array of whole numbers from 0");
    /* A trace may have ids only for full blocks: tokens after the last one are not shared. */
    if (have + 1 < need)
        return rp_load_lines_error(lines, RP_STATUS_FORMAT, err,
                                   "hash_ids has %zu ids, but a prompt of %u tokens needs %zu",
                                   have, row->input, need);
    row->hash_begin = rows->hash_count;
    row->hash_count = (uint32_t)RP_MIN(have, need);
    uint64_t *grown = grow(rows->hashes, &rows->hash_capacity, rows->hash_count, row->hash_count,
                           sizeof *rows->hashes);
    if (!grown)
        return rp_load_lines_error(lines, RP_STATUS_NO_MEMORY, err, "out of memory for hash_ids");
    rows->hashes = grown;
    for (size_t i = 0; i < have; i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return rp_load_lines_error(lines, RP_STATUS_FORMAT, err,
                                       "hash_ids[%zu] must be a whole number from 0", i);
        if (i < row->hash_count)
            rows->hashes[rows->hash_count + i] = (uint64_t)json_integer_value(id);
    }
    rows->hash_count += row->hash_count;
    return RP_OK;
}

static int mooncake_fields(const struct rp_load_lines *lines, const struct rp_load_source *source,
                           const json_t *root, struct rp_load_rows *rows, struct rp_load_row *out,
                           struct rp_error *err) {
    const json_t *time = json_object_get(root, "timestamp");
    double ms = json_number_value(time);
    if (!json_is_object(root))
        return rp_load_lines_error(lines, RP_STATUS_FORMAT, err, "must be a JSON object");
    if (!json_is_number(time) || !(ms >= 0 && ms <= (double)MS_MAX))
        return rp_load_lines_error(lines, RP_STATUS_FORMAT, err,
                                   "timestamp must be a number of milliseconds from 0");
    out->at_ns = json_is_integer(time) ? (uint64_t)json_integer_value(time) * 1000000
                                       : (uint64_t)floor(ms * 1e6 + 0.5);
    int status = mooncake_length(lines, source, root, "input_length", &out->input, err);
    if (status == RP_OK)
        status = mooncake_length(lines, source, root, "output_length", &out->output, err);
    if (status == RP_OK)
        status = mooncake_hashes(lines, source, root, rows, out, err);
    return status;
}

static int mooncake_row(const struct rp_load_lines *lines, const struct rp_load_source *source,
                        struct rp_load_rows *rows, struct rp_load_row *out, struct rp_error *err) {
    json_error_t where;
    json_t *root = json_loadb(lines->text, lines->len, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return rp_load_lines_error(
            lines,
            json_error_code(&where) == json_error_out_of_memory ? RP_STATUS_NO_MEMORY
                                                                : RP_STATUS_FORMAT,
            err, "not valid JSON: column %d: %.120s", where.column, where.text);
    int status = mooncake_fields(lines, source, root, rows, out, err);
    json_decref(root);
    return status;
}

/* --- both formats ---------------------------------------------------------------------------- */

static int by_time(const void *left, const void *right) {
    const struct rp_load_row *a = left, *b = right;
    if (a->at_ns != b->at_ns)
        return a->at_ns < b->at_ns ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

static int read_header(struct rp_load_lines *lines, struct rp_error *err) {
    int status = rp_load_lines_next(lines, err);
    if (status == RP_OK && (!lines->text || strcmp(lines->text, AZURE_HEADER) != 0))
        status = rp_load_lines_error(lines, RP_STATUS_FORMAT, err, "must be \"%s\"", AZURE_HEADER);
    return status;
}

static int read_rows(struct rp_load_lines *lines, const struct rp_load_source *source,
                     struct rp_load_rows *rows, struct rp_error *err) {
    bool azure = source->dataset == RP_LOAD_AZURE;
    int status = azure ? read_header(lines, err) : RP_OK;
    while (status == RP_OK && (source->count == 0 || rows->seen < source->count)) {
        struct rp_load_row row = {0};
        status = rp_load_lines_next(lines, err);
        if (status != RP_OK || !lines->text)
            break;
        if (lines->text[strspn(lines->text, " \t")] == '\0')
            continue;
        size_t hash_count = rows->hash_count, count = rows->count;
        status = azure ? azure_row(lines, source, &row, err)
                       : mooncake_row(lines, source, rows, &row, err);
        if (status == RP_OK)
            status = rp_load_rows_add(rows, source, &row, err);
        if (rows->count == count)
            rows->hash_count = hash_count; /* the row was skipped */
    }
    return status;
}

int rp_load_trace_read(const struct rp_load_source *source, struct rp_load_rows *rows,
                       struct rp_error *err) {
    struct rp_load_lines *lines;
    int status = rp_load_lines_open(source->path, &lines, err);
    if (status != RP_OK)
        return status;
    status = read_rows(lines, source, rows, err);
    if (status == RP_OK && rows->seen == 0)
        status = rp_load_lines_error(lines, RP_STATUS_FORMAT, err, "the file has no requests");
    rp_load_lines_close(lines);
    if (status == RP_OK && rows->count)
        qsort(rows->rows, rows->count, sizeof *rows->rows, by_time);
    return status;
}
