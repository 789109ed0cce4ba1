/* stack_flame.c - the flame graph of folded stacks. Width: share of samples; the outermost frame,
 * the thread, is at the bottom. */
#include "metrics/stack_fold.h"

#include "base/hash.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { WIDTH = 1200, ROW = 18, TOP = 34, LETTER_TENTHS = 68 };
#define NARROWEST 0.4 /* pixels */

struct line {
    const char *text;
    size_t len;     /* without the count */
    uint64_t count; /* samples */
};

struct flame {
    struct line *lines;
    uint32_t line_count, rows;
    uint64_t samples;
    struct rp_buffer *out;
};

static uint32_t count_lines(const char *folded) {
    uint32_t count = 0;
    for (; *folded; folded++)
        count += *folded == '\n';
    return count;
}

static void read_lines(struct flame *flame, const char *folded) {
    for (const char *end; (end = strchr(folded, '\n')); folded = end + 1) {
        const char *space = memrchr(folded, ' ', (size_t)(end - folded));
        if (!space)
            continue;
        struct line *line = &flame->lines[flame->line_count++];
        *line = (struct line){folded, (size_t)(space - folded), strtoull(space + 1, NULL, 10)};
        uint32_t rows = 1;
        for (size_t i = 0; i < line->len; i++)
            rows += folded[i] == ';';
        flame->rows = RP_MAX(flame->rows, rows);
        flame->samples += line->count;
    }
}

static void put_escaped(struct rp_buffer *out, const char *text, size_t len) {
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '<' || c == '>' || c == '&' || c == '"' || c < 0x20 || c > 0x7e)
            rp_buffer_printf(out, "&#%u;", c < 0x20 || c > 0x7e ? '?' : c);
        else
            rp_buffer_append(out, text + i, 1);
    }
}

static void put_frame(const struct flame *flame, const char *name, size_t len, uint32_t row,
                      uint64_t first, uint64_t count) {
    double scale = (double)WIDTH / (double)flame->samples;
    double x = (double)first * scale, width = (double)count * scale;
    uint32_t y = TOP + (flame->rows - 1 - row) * ROW;
    size_t letters = width > 24 ? (size_t)((width - 6) * 10 / LETTER_TENTHS) : 0;
    if (width < NARROWEST)
        return;
    rp_buffer_puts(flame->out, "<g><title>");
    put_escaped(flame->out, name, len);
    /* A function has the same colour everywhere. */
    rp_buffer_printf(flame->out,
                     ": %llu samples, %.1f %%</title><rect x=\"%.1f\" y=\"%u\" width=\"%.1f\" "
                     "height=\"%u\" fill=\"hsl(%u,70%%,70%%)\"/>",
                     (unsigned long long)count, 100.0 * (double)count / (double)flame->samples, x,
                     y, width, ROW - 1, (unsigned)(rp_hash64(name, len, 0) % 55));
    if (letters) {
        rp_buffer_printf(flame->out, "<text x=\"%.1f\" y=\"%u\">", x + 3, y + 13);
        put_escaped(flame->out, name, RP_MIN(letters, len));
        rp_buffer_puts(flame->out, "</text>");
    }
    rp_buffer_puts(flame->out, "</g>\n");
}

/* Whether the line continues the first `len` bytes of text with a further frame or not at all. */
static bool shares(const struct line *line, const char *text, size_t len) {
    return line->len >= len && memcmp(line->text, text, len) == 0 &&
           (line->len == len || line->text[len] == ';');
}

/* Draws the frames at byte `at` of lines [first, last), which are equal before it. Recursion: at
 * most one level for each frame of a line. */
static void put_row(const struct flame *flame, uint32_t first, uint32_t last, size_t at,
                    uint32_t row, uint64_t begin) {
    while (first < last) {
        const struct line *line = &flame->lines[first];
        if (line->len < at) { /* it ends with the frame below */
            begin += line->count;
            first++;
            continue;
        }
        size_t len = RP_MIN(strcspn(line->text + at, ";"), line->len - at);
        uint64_t count = 0;
        uint32_t end = first;
        for (; end < last && shares(&flame->lines[end], line->text, at + len); end++)
            count += flame->lines[end].count;
        put_frame(flame, line->text + at, len, row, begin, count);
        if (row + 1 < flame->rows)
            put_row(flame, first, end, at + len + 1, row + 1, begin);
        begin += count;
        first = end;
    }
}

int rp_stacks_flame(const char *folded, const char *title, struct rp_buffer *out) {
    struct flame flame = {.out = out};
    flame.lines = rp_calloc(count_lines(folded), sizeof *flame.lines);
    if (!flame.lines)
        return RP_STATUS_NO_MEMORY;
    read_lines(&flame, folded);
    uint32_t height = TOP + flame.rows * ROW + 6;
    rp_buffer_printf(out,
                     "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %u %u\" "
                     "width=\"%u\" height=\"%u\" font-family=\"monospace\" font-size=\"11\">\n"
                     "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
                     "<text x=\"3\" y=\"20\" font-size=\"14\">",
                     WIDTH, height, WIDTH, height);
    put_escaped(out, title, strlen(title));
    rp_buffer_puts(out, "</text>\n");
    if (flame.samples)
        put_row(&flame, 0, flame.line_count, 0, 0, 0);
    rp_buffer_puts(out, "</svg>\n");
    rp_free(flame.lines);
    return out->failed ? RP_STATUS_NO_MEMORY : RP_OK;
}
