#include "bench/load/load_lines.h"

#include "base/memory.h"
#include "text/json_file.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

/* Maximum length of a path in an error, so that line and field fit as well. */
#define PATH_SHOWN 200

int rp_load_lines_open(const char *path, struct rp_load_lines **out, struct rp_error *err) {
    struct rp_load_lines *lines = rp_calloc(1, sizeof *lines);
    if (!lines)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%.*s: out of memory", PATH_SHOWN, path);
    lines->path = path;
    rp_buffer_init(&lines->line, RP_LOAD_LINE_BYTES_MAX + 1);
    lines->file = fopen(path, "re");
    if (!lines->file) {
        int reason = errno;
        rp_load_lines_close(lines);
        return rp_error_set(
            err, reason == ENOENT || reason == ENOTDIR ? RP_STATUS_NOT_FOUND : RP_STATUS_IO,
            "%.*s: cannot open: %s", PATH_SHOWN, path, strerror(reason));
    }
    *out = lines;
    return RP_OK;
}

void rp_load_lines_close(struct rp_load_lines *lines) {
    if (!lines)
        return;
    if (lines->file)
        fclose(lines->file);
    rp_buffer_deinit(&lines->line);
    rp_free(lines);
}

int rp_load_lines_error(const struct rp_load_lines *lines, int status, struct rp_error *err,
                        const char *format, ...) {
    char text[256], shown[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return rp_error_set(err, status, "%.*s:%llu: %s", PATH_SHOWN, lines->path,
                        (unsigned long long)lines->number,
                        rp_text_for_message(shown, sizeof shown, text));
}

/* Reads the next piece of the file; piece_len is 0 at its end. */
static int read_piece(struct rp_load_lines *lines, struct rp_error *err) {
    lines->piece_at = 0;
    lines->piece_len = fread(lines->piece, 1, sizeof lines->piece, lines->file);
    if (lines->piece_len == 0 && ferror(lines->file))
        return rp_load_lines_error(lines, RP_STATUS_IO, err, "cannot read: %s", strerror(errno));
    return RP_OK;
}

static int finish_line(struct rp_load_lines *lines, struct rp_error *err) {
    struct rp_buffer *line = &lines->line;
    if (line->len && line->data[line->len - 1] == '\r')
        line->len--;
    rp_buffer_append(line, "", 1);
    if (line->failed)
        return rp_load_lines_error(lines, RP_STATUS_NO_MEMORY, err, "out of memory");
    lines->text = line->data;
    lines->len = line->len - 1;
    if (memchr(lines->text, '\0', lines->len))
        return rp_load_lines_error(lines, RP_STATUS_FORMAT, err,
                                   "contains a NUL byte: not a text file");
    if (lines->number == 1 && lines->len >= 3 && memcmp(lines->text, "\xEF\xBB\xBF", 3) == 0) {
        lines->text += 3;
        lines->len -= 3;
    }
    return RP_OK;
}

int rp_load_lines_next(struct rp_load_lines *lines, struct rp_error *err) {
    lines->text = NULL;
    lines->len = 0;
    if (lines->ended)
        return RP_OK;
    lines->number++;
    rp_buffer_clear(&lines->line);
    for (;;) {
        if (lines->piece_at == lines->piece_len) {
            int status = read_piece(lines, err);
            if (status != RP_OK)
                return status;
            if (lines->piece_len == 0) {
                lines->ended = true;
                return lines->line.len ? finish_line(lines, err) : RP_OK;
            }
        }
        const char *from = lines->piece + lines->piece_at;
        size_t have = lines->piece_len - lines->piece_at;
        const char *end = memchr(from, '\n', have);
        size_t len = end ? (size_t)(end - from) : have;
        if (lines->line.len + len > RP_LOAD_LINE_BYTES_MAX)
            return rp_load_lines_error(lines, RP_STATUS_FORMAT, err, "is longer than %zu bytes",
                                       RP_LOAD_LINE_BYTES_MAX);
        rp_buffer_append(&lines->line, from, len);
        lines->piece_at += len + (end != NULL);
        if (end)
            return finish_line(lines, err);
    }
}
