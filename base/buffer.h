/* buffer.h - a byte buffer that grows up to a limit that is fixed when it is made.
 * After a failed append `failed` stays set and later appends do nothing, so a writer may check once
 * at its end. Thread: one owner. Memory: rp_buffer_deinit frees; legal on a zeroed struct. */
#ifndef RP_BASE_BUFFER_H
#define RP_BASE_BUFFER_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rp_buffer {
    char *data;
    size_t len;
    size_t capacity;
    size_t limit_bytes; /* 0: no limit */
    bool failed;        /* an append met the limit or memory was out */
};

void rp_buffer_init(struct rp_buffer *buffer, size_t limit_bytes);
void rp_buffer_deinit(struct rp_buffer *buffer);
/* Empties it and keeps its memory. */
void rp_buffer_clear(struct rp_buffer *buffer);
/* Makes room for `more` further bytes; false when that fails. */
bool rp_buffer_reserve(struct rp_buffer *buffer, size_t more);
void rp_buffer_append(struct rp_buffer *buffer, const void *bytes, size_t len);
void rp_buffer_puts(struct rp_buffer *buffer, const char *text);
void rp_buffer_printf(struct rp_buffer *buffer, const char *format, ...) RP_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif
#endif
