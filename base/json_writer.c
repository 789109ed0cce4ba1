#include "base/json_writer.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rp_json_init(struct rp_json *json, struct rp_buffer *out) {
    memset(json, 0, sizeof *json);
    json->out = out;
}

void rp_json_escape(struct rp_buffer *out, const char *text, size_t len) {
    rp_buffer_append(out, "\"", 1);
    size_t start = 0, i = 0;
    while (i < len) {
        unsigned char c = (unsigned char)text[i];
        int n = 1;
        char escape[8];
        const char *replace = NULL;
        if (c >= 0x80) {
            n = rp_utf8_decode(text + i, len - i, NULL);
            if (n <= 0) {
                n = 1;
                replace = "\xEF\xBF\xBD";
            }
        } else if (c == '"') {
            replace = "\\\"";
        } else if (c == '\\') {
            replace = "\\\\";
        } else if (c == '\n') {
            replace = "\\n";
        } else if (c == '\r') {
            replace = "\\r";
        } else if (c == '\t') {
            replace = "\\t";
        } else if (c < 0x20 || c == 0x7F) {
            snprintf(escape, sizeof escape, "\\u%04x", c);
            replace = escape;
        }
        if (replace) {
            rp_buffer_append(out, text + start, i - start);
            rp_buffer_puts(out, replace);
            start = i + 1;
        }
        i += (size_t)n;
    }
    rp_buffer_append(out, text + start, len - start);
    rp_buffer_append(out, "\"", 1);
}

void rp_double_shortest(double value, char out[32]) {
    /* 17 significant digits always read back equal (IEEE 754 binary64); most need fewer. */
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            return;
    }
}

static void begin_value(struct rp_json *json, const char *key) {
    if (json->need_comma[json->depth])
        rp_buffer_append(json->out, ",", 1);
    json->need_comma[json->depth] = true;
    if (key) {
        rp_json_escape(json->out, key, strlen(key));
        rp_buffer_append(json->out, ":", 1);
    }
}

static void open_value(struct rp_json *json, const char *key, const char *bracket) {
    begin_value(json, key);
    rp_buffer_append(json->out, bracket, 1);
    RP_ASSERT(json->depth + 1 < RP_JSON_DEPTH_MAX);
    json->need_comma[++json->depth] = false;
}

static void close_value(struct rp_json *json, const char *bracket) {
    RP_ASSERT(json->depth > 0);
    json->depth--;
    rp_buffer_append(json->out, bracket, 1);
}

void rp_json_object_begin(struct rp_json *json, const char *key) { open_value(json, key, "{"); }
void rp_json_object_end(struct rp_json *json) { close_value(json, "}"); }
void rp_json_array_begin(struct rp_json *json, const char *key) { open_value(json, key, "["); }
void rp_json_array_end(struct rp_json *json) { close_value(json, "]"); }

void rp_json_string_len(struct rp_json *json, const char *key, const char *text, size_t len) {
    begin_value(json, key);
    rp_json_escape(json->out, text, len);
}

void rp_json_string(struct rp_json *json, const char *key, const char *text) {
    rp_json_string_len(json, key, text, strlen(text));
}

void rp_json_int(struct rp_json *json, const char *key, int64_t value) {
    begin_value(json, key);
    rp_buffer_printf(json->out, "%" PRId64, value);
}

void rp_json_uint(struct rp_json *json, const char *key, uint64_t value) {
    begin_value(json, key);
    rp_buffer_printf(json->out, "%" PRIu64, value);
}

void rp_json_double(struct rp_json *json, const char *key, double value) {
    char text[32];
    begin_value(json, key);
    if (!isfinite(value)) {
        rp_buffer_puts(json->out, "null");
        return;
    }
    rp_double_shortest(value, text);
    rp_buffer_puts(json->out, text);
}

void rp_json_bool(struct rp_json *json, const char *key, bool value) {
    begin_value(json, key);
    rp_buffer_puts(json->out, value ? "true" : "false");
}

void rp_json_null(struct rp_json *json, const char *key) {
    begin_value(json, key);
    rp_buffer_puts(json->out, "null");
}
