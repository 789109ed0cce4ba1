#include "base/buffer.h"

#include "base/checked.h"
#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void rp_buffer_init(struct rp_buffer *buffer, size_t limit_bytes) {
    memset(buffer, 0, sizeof *buffer);
    buffer->limit_bytes = limit_bytes;
}

void rp_buffer_deinit(struct rp_buffer *buffer) {
    rp_free(buffer->data);
    memset(buffer, 0, sizeof *buffer);
}

void rp_buffer_clear(struct rp_buffer *buffer) {
    buffer->len = 0;
    buffer->failed = false;
}

bool rp_buffer_reserve(struct rp_buffer *buffer, size_t more) {
    size_t need, capacity = buffer->capacity ? buffer->capacity : 256;
    if (buffer->failed || rp_add_overflow(buffer->len, more, &need) ||
        (buffer->limit_bytes && need > buffer->limit_bytes)) {
        buffer->failed = true;
        return false;
    }
    if (need <= buffer->capacity)
        return true;
    while (capacity < need)
        if (rp_mul_overflow(capacity, 2, &capacity))
            capacity = need;
    char *data = rp_realloc(buffer->data, capacity);
    if (!data) {
        buffer->failed = true;
        return false;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

void rp_buffer_append(struct rp_buffer *buffer, const void *bytes, size_t len) {
    if (len == 0 || !rp_buffer_reserve(buffer, len))
        return;
    memcpy(buffer->data + buffer->len, bytes, len);
    buffer->len += len;
}

void rp_buffer_puts(struct rp_buffer *buffer, const char *text) {
    rp_buffer_append(buffer, text, strlen(text));
}

void rp_buffer_printf(struct rp_buffer *buffer, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (len >= 0 && rp_buffer_reserve(buffer, (size_t)len + 1)) {
        vsnprintf(buffer->data + buffer->len, (size_t)len + 1, format, again);
        buffer->len += (size_t)len;
    }
    va_end(again);
}
