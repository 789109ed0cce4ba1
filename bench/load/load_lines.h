/* load_lines.h - reads a file line by line, with bounded line length and memory.
 *
 * Lines end with LF or CRLF; the last one may end without. A leading UTF-8 byte order mark is
 * skipped.
 * Thread: one owner. */
#ifndef RP_BENCH_LOAD_LINES_H
#define RP_BENCH_LOAD_LINES_H

#include "base/buffer.h"
#include "base/status.h"

#include <stdio.h>

#define RP_LOAD_LINE_BYTES_MAX ((size_t)1 << 20)

struct rp_load_lines {
    const char *path;
    FILE *file;
    uint64_t number; /* of the current line, from 1 */
    const char *text;
    size_t len; /* of the current line, without its end; NUL-terminated, and no NUL in it */
    struct rp_buffer line;
    size_t piece_at, piece_len;
    bool ended;
    char piece[65536];
};

/* RP_STATUS_NOT_FOUND, RP_STATUS_IO, RP_STATUS_NO_MEMORY. path is borrowed. */
int rp_load_lines_open(const char *path, struct rp_load_lines **out,
                       struct rp_error *err) RP_MUST_USE;
void rp_load_lines_close(struct rp_load_lines *lines);

/* Reads the next line into text and len; text is NULL at the end. Errors name file and line: a line
 * that is too long or contains a NUL (RP_STATUS_FORMAT), RP_STATUS_IO, RP_STATUS_NO_MEMORY. */
int rp_load_lines_next(struct rp_load_lines *lines, struct rp_error *err) RP_MUST_USE;

/* Fills err with `path:line: ...`, control bytes replaced by '?', and returns `status`. */
int rp_load_lines_error(const struct rp_load_lines *lines, int status, struct rp_error *err,
                        const char *format, ...) RP_PRINTF(4, 5);

#endif
