#include "server/http/json_body.h"

#include "base/memory.h"
#include "base/utf8.h"
#include "text/json_file.h"

#include <malloc.h>
#include <stdatomic.h>
#include <string.h>

/* Bytes of all trees. Atomic: a tree built by a worker is freed by the loop thread. */
static _Atomic uint64_t live_bytes, peak_bytes;

/* The parse in progress on this thread. */
static _Thread_local struct {
    uint64_t bytes, limit_bytes, total_limit_bytes;
    bool active, limit_met, total_met;
} parse;

static void *counted_alloc(size_t size) {
    uint64_t live = atomic_load_explicit(&live_bytes, memory_order_relaxed);
    if (parse.active) {
        parse.limit_met |= parse.bytes + size > parse.limit_bytes;
        parse.total_met |= live + size > parse.total_limit_bytes;
        if (parse.limit_met || parse.total_met)
            return NULL;
    }
    void *ptr = rp_alloc(size);
    if (!ptr) {
        rp_json_note_no_memory();
        return NULL;
    }
    size_t usable = malloc_usable_size(ptr);
    uint64_t now = atomic_fetch_add_explicit(&live_bytes, usable, memory_order_relaxed) + usable;
    uint64_t peak = atomic_load_explicit(&peak_bytes, memory_order_relaxed);
    while (peak < now && !atomic_compare_exchange_weak(&peak_bytes, &peak, now)) {
    }
    parse.bytes += usable;
    return ptr;
}

static void counted_free(void *ptr) {
    if (!ptr)
        return;
    size_t usable = malloc_usable_size(ptr);
    atomic_fetch_sub_explicit(&live_bytes, usable, memory_order_relaxed);
    parse.bytes -= RP_MIN(usable, parse.bytes);
    rp_free(ptr);
}

void rp_json_body_init(void) {
    json_set_alloc_funcs(counted_alloc, counted_free);
    json_object_seed(0);
}

uint64_t rp_json_body_live_bytes(void) {
    return atomic_load_explicit(&live_bytes, memory_order_relaxed);
}

uint64_t rp_json_body_peak_bytes(void) {
    return atomic_load_explicit(&peak_bytes, memory_order_relaxed);
}

void rp_json_body_reset_peak(void) { atomic_store(&peak_bytes, rp_json_body_live_bytes()); }

/* Scans the tokens up to `end` and returns the deepest nesting; *out_key and *out_key_len: the key
 * of the top-level field in which the scan ended, NULL when in none. */
static uint32_t walk(const char *text, size_t end, uint32_t depth_max, const char **out_key,
                     size_t *out_key_len) {
    uint32_t depth = 0, deepest = 0;
    const char *string = NULL, *key = NULL;
    size_t string_len = 0, key_len = 0;
    for (size_t i = 0; i < end && deepest <= depth_max; i++) {
        char c = text[i];
        if (c == '"') {
            size_t begin = ++i;
            while (i < end && text[i] != '"')
                i += text[i] == '\\' ? 2 : 1;
            string = text + begin;
            string_len = RP_MIN(i, end) - begin;
        } else if (c == '[' || c == '{') {
            if (++depth > deepest)
                deepest = depth;
        } else if ((c == ']' || c == '}') && depth > 0) {
            if (--depth == 0)
                key = NULL;
        } else if (c == ':' && depth == 1) {
            key = string;
            key_len = string_len;
        } else if (c == ',' && depth == 1) {
            key = NULL;
        }
    }
    *out_key = key;
    *out_key_len = key_len;
    return deepest;
}

/* The top-level field that contains an error at this byte. */
static void name_field(const char *body, size_t at, char *out, size_t size) {
    const char *key;
    size_t len;
    out[0] = '\0';
    walk(body, at, UINT32_MAX - 1, &key, &len);
    if (!key || len >= size || !rp_utf8_valid(key, len))
        return;
    memcpy(out, key, len);
    out[len] = '\0';
}

/* jansson quotes the input: keep its message without the quoted text. */
static size_t message_len(const char *text) {
    const char *near = strstr(text, " near '");
    return near ? (size_t)(near - text) : strlen(text);
}

static void explain(const char *body, size_t len, const json_error_t *error,
                    struct rp_http_error *out) {
    char field[sizeof out->param];
    size_t at = error->position > 0 ? RP_MIN((size_t)error->position, len) : 0;
    name_field(body, at ? at - 1 : 0, field, sizeof field);
    if (json_error_code(error) == json_error_end_of_input_expected) {
        rp_http_error_set(out, 400, NULL, "invalid_json",
                          "the body has text after its JSON object (line %d, column %d)",
                          error->line, error->column);
        return;
    }
    rp_http_error_set(out, 400, field, "invalid_json",
                      "the body is not valid JSON: %.*s (line %d, column %d)",
                      (int)message_len(error->text), error->text, error->line, error->column);
}

json_t *rp_json_object_parse(const char *body, size_t len, const struct rp_http_limits *limits,
                             struct rp_http_error *out_error) {
    json_error_t error;
    const char *key;
    size_t key_len;
    bool no_memory;
    if (len == 0) {
        rp_http_error_set(out_error, 400, NULL, "invalid_json",
                          "the request body must be a JSON object");
        return NULL;
    }
    /* jansson 2.14 drops a NUL that follows a number. */
    if (memchr(body, '\0', len)) {
        rp_http_error_set(out_error, 400, NULL, "invalid_json", "the body contains a NUL byte");
        return NULL;
    }
    if (walk(body, len, limits->json_depth, &key, &key_len) > limits->json_depth) {
        rp_http_error_set(out_error, 400, NULL, "invalid_json",
                          "the body is nested more than %u levels deep", limits->json_depth);
        return NULL;
    }
    memset(&parse, 0, sizeof parse);
    parse.limit_bytes = limits->json_bytes;
    parse.total_limit_bytes = limits->json_live_bytes;
    parse.active = true;
    json_t *root =
        rp_json_parse(body, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error, &no_memory);
    parse.active = false;
    if (parse.limit_met || parse.total_met) {
        json_decref(root);
        root = NULL;
    }
    if (!root && parse.limit_met) {
        rp_http_error_set(out_error, 413, NULL, "body_too_large",
                          "the body needs more than %llu bytes of memory when parsed",
                          (unsigned long long)limits->json_bytes);
    } else if (!root && parse.total_met) {
        rp_http_error_set(out_error, 503, NULL, "overloaded",
                          "too many large bodies are being processed, try again");
    } else if (!root && no_memory) {
        rp_http_error_set(out_error, 503, NULL, "overloaded", "out of memory");
    } else if (!root) {
        explain(body, len, &error, out_error);
    } else if (!json_is_object(root)) {
        rp_http_error_set(out_error, 400, NULL, "invalid_json", "the body must be a JSON object");
        json_decref(root);
        root = NULL;
    }
    return root;
}

/* Whether a string of the tree contains U+0000. Recurses as deep as the parser allowed. */
static bool has_nul(const json_t *value) {
    const char *key;
    size_t i;
    json_t *item;
    bool found = json_is_string(value) &&
                 memchr(json_string_value(value), '\0', json_string_length(value)) != NULL;
    if (json_is_array(value))
        json_array_foreach(value, i, item) found = found || has_nul(item);
    json_object_foreach((json_t *)(uintptr_t)value, key, item) found = found || has_nul(item);
    return found;
}

/* Fields of the APIs that are text for the model. */
static bool is_conversation(const char *field) {
    static const char *const names[] = {"prompt", "messages", "input", "instructions", "system"};
    for (size_t i = 0; i < RP_ARRAY_COUNT(names); i++)
        if (strcmp(field, names[i]) == 0)
            return true;
    return false;
}

json_t *rp_json_body_parse(const char *body, size_t len, const struct rp_http_limits *limits,
                           struct rp_http_error *error) {
    static const char escape[] = "\\u0000";
    const char *key;
    json_t *value, *root = rp_json_object_parse(body, len, limits, error);
    if (!root || !memmem(body, len, escape, sizeof escape - 1))
        return root;
    json_object_foreach(root, key, value) {
        if (is_conversation(key) || !has_nul(value))
            continue;
        rp_http_error_set(error, 400, strlen(key) < sizeof error->param ? key : NULL,
                          "invalid_json",
                          "the body contains \\u0000 in a field that is not a message or prompt");
        json_decref(root);
        return NULL;
    }
    return root;
}
