/* json_writer.h - writes JSON into an rp_buffer, commas included; no tree is built.
 * Strings must be UTF-8: bytes that are not become U+FFFD. Doubles are written with the fewest
 * digits that read back equal; those that JSON cannot say (NaN, infinities) become null.
 * Thread: one owner. Errors: buffer->failed. */
#ifndef RP_BASE_JSON_WRITER_H
#define RP_BASE_JSON_WRITER_H

#include "base/buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_JSON_DEPTH_MAX 32

struct rp_json {
    struct rp_buffer *out;
    int depth;
    bool need_comma[RP_JSON_DEPTH_MAX];
};

void rp_json_init(struct rp_json *json, struct rp_buffer *out);
/* key NULL: a value inside an array, or the document itself. */
void rp_json_object_begin(struct rp_json *json, const char *key);
void rp_json_object_end(struct rp_json *json);
void rp_json_array_begin(struct rp_json *json, const char *key);
void rp_json_array_end(struct rp_json *json);
void rp_json_string(struct rp_json *json, const char *key, const char *text);
void rp_json_string_len(struct rp_json *json, const char *key, const char *text, size_t len);
void rp_json_int(struct rp_json *json, const char *key, int64_t value);
void rp_json_uint(struct rp_json *json, const char *key, uint64_t value);
void rp_json_double(struct rp_json *json, const char *key, double value);
void rp_json_bool(struct rp_json *json, const char *key, bool value);
void rp_json_null(struct rp_json *json, const char *key);

/* The quoted, escaped string alone. */
void rp_json_escape(struct rp_buffer *out, const char *text, size_t len);
/* Shortest text that strtod reads back to the same double; at most 32 bytes with the NUL. */
void rp_double_shortest(double value, char out[32]);

#ifdef __cplusplus
}
#endif
#endif
