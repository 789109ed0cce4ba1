/* load_lines.h - a file's lines, one after another, of bounded length: nothing that a file holds
 * makes this grow.
 *
 * LF and CRLF end a line; the last one needs neither. A UTF-8 byte order mark at the beginning is
 * left out.
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

/* The next line into text and len; text is NULL at the end. Errors name file and line: one that is
 * too long or holds a NUL (RP_STATUS_FORMAT), RP_STATUS_IO, RP_STATUS_NO_MEMORY. */
int rp_load_lines_next(struct rp_load_lines *lines, struct rp_error *err) RP_MUST_USE;

/* Fills err with `path:line: ...`, control bytes as '?', and gives `status`. */
int rp_load_lines_refuse(const struct rp_load_lines *lines, int status, struct rp_error *err,
                         const char *format, ...) RP_PRINTF(4, 5);

#endif
