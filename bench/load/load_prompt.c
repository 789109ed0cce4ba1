/* load_prompt.c - prompts: random ids after a shared prefix, Mooncake's chains of blocks, pieces of
 * a text, lines of a poem. */
#include "base/checked.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "bench/load/load_lines.h"
#include "bench/load/load_plan_internal.h"
#include "bench/load/load_random.h"

#include <math.h>
#include <string.h>

/* From vllm's sonnet dataset. */
#define SONNET_INSTRUCTION "Pick as many lines as you can from these poem lines:\n"
#define TEXT_BYTES_MAX     ((size_t)256 << 20) /* maximum size of the file */

static int too_much(struct rp_error *err) {
    int status = rp_error_set(err, RP_STATUS_RANGE, "the prompts would take more than %zu GiB",
                              RP_LOAD_PROMPT_BYTES_MAX >> 30);
    rp_error_hint(err, "send fewer requests (count), or reduce their lengths (input lengths, or "
                       "length_scale of a trace)");
    return status;
}

/* --- ids ------------------------------------------------------------------------------------- */

static int32_t *draw_ids(const struct rp_load_source *source, enum rp_load_stream stream,
                         uint64_t index, int32_t *out, uint32_t count) {
    struct rp_load_random random = rp_load_random_begin(source->seed, stream, index);
    uint32_t rows = source->vocab_end - source->vocab_begin;
    for (uint32_t i = 0; i < count; i++)
        out[i] = (int32_t)(source->vocab_begin + rp_load_random_below(&random, rows));
    return out + count;
}

/* Blocks with equal hash ids begin with the same tokens, also if a prompt's last block is
 * shorter. */
static int32_t *draw_blocks(const struct rp_load_source *source, const struct rp_load_rows *rows,
                            const struct rp_load_row *row, int32_t *out, uint32_t *left) {
    for (uint32_t i = 0; i < row->hash_count; i++) {
        uint32_t tokens = RP_MIN(*left, source->block_tokens);
        out =
            draw_ids(source, RP_LOAD_STREAM_BLOCK, rows->hashes[row->hash_begin + i], out, tokens);
        *left -= tokens;
    }
    return out;
}

int rp_load_prompt_ids(const struct rp_load_source *source, const struct rp_load_rows *rows,
                       struct rp_load_plan *out, struct rp_error *err) {
    size_t total = 0, bytes;
    for (uint32_t i = 0; i < out->count; i++)
        if (rp_add_overflow(total, rows->rows[i].input, &total))
            return too_much(err);
    if (rp_mul_overflow(total, sizeof *out->ids, &bytes) || bytes > RP_LOAD_PROMPT_BYTES_MAX)
        return too_much(err);
    out->ids = rp_alloc(bytes);
    if (!out->ids)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory: %zu MiB of prompts",
                            bytes >> 20);
    int32_t *at = out->ids;
    for (uint32_t i = 0; i < out->count; i++) {
        const struct rp_load_row *row = &rows->rows[i];
        uint32_t left = row->input, prefix = RP_MIN(source->prefix_tokens, left);
        out->requests[i].ids = at;
        out->requests[i].input_tokens = left;
        at = draw_ids(source, RP_LOAD_STREAM_PREFIX, 0, at, prefix);
        left -= prefix;
        at = draw_blocks(source, rows, row, at, &left);
        at = draw_ids(source, RP_LOAD_STREAM_PROMPT, row->number, at, left);
    }
    return RP_OK;
}

/* --- text ------------------------------------------------------------------------------------ */

/* A whole file; lines: (count + 1) offsets of the lines and of the end. */
struct text {
    struct rp_buffer bytes;
    size_t *lines;
    size_t count, capacity;
};

static void text_free(struct text *text) {
    rp_buffer_deinit(&text->bytes);
    rp_free(text->lines);
}

static bool add_line_start(struct text *text) {
    if (text->count == text->capacity) {
        size_t capacity = RP_MAX(text->capacity * 2, (size_t)1024);
        size_t *grown = rp_realloc(text->lines, capacity * sizeof *grown);
        if (!grown)
            return false;
        text->lines = grown;
        text->capacity = capacity;
    }
    text->lines[text->count++] = text->bytes.len;
    return true;
}

static int add_line(struct text *text, const struct rp_load_lines *lines, bool keep_empty,
                    struct rp_error *err) {
    if (!rp_utf8_valid(lines->text, lines->len))
        return rp_load_lines_error(lines, RP_STATUS_FORMAT, err, "is not UTF-8");
    if (lines->len == 0 && !keep_empty)
        return RP_OK;
    if (lines->len + 1 > TEXT_BYTES_MAX - text->bytes.len)
        return rp_load_lines_error(lines, RP_STATUS_RANGE, err, "more than %zu MiB of text",
                                   TEXT_BYTES_MAX >> 20);
    bool added = add_line_start(text);
    rp_buffer_append(&text->bytes, lines->text, lines->len);
    rp_buffer_append(&text->bytes, "\n", 1);
    if (!added || text->bytes.failed)
        return rp_load_lines_error(lines, RP_STATUS_NO_MEMORY, err, "out of memory");
    return RP_OK;
}

static int text_read(const char *path, bool keep_empty, struct text *text, struct rp_error *err) {
    struct rp_load_lines *lines;
    int status = rp_load_lines_open(path, &lines, err);
    if (status != RP_OK)
        return status;
    while ((status = rp_load_lines_next(lines, err)) == RP_OK && lines->text)
        if ((status = add_line(text, lines, keep_empty, err)) != RP_OK)
            break;
    if (status == RP_OK && text->count == 0)
        status = rp_load_lines_error(lines, RP_STATUS_FORMAT, err, "the file has no text");
    rp_load_lines_close(lines);
    if (status == RP_OK && !add_line_start(text))
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    text->count -= status == RP_OK; /* the last entry is the end */
    return status;
}

/* Appends a piece from a random position, of whole characters; a text that is too short is
 * repeated. */
static void append_piece(const struct text *text, struct rp_load_random *random, size_t bytes,
                         struct rp_buffer *out) {
    const struct rp_buffer *all = &text->bytes;
    size_t at = rp_load_random_below(random, (uint32_t)all->len), begin = out->len;
    while (at < all->len && ((unsigned char)all->data[at] & 0xC0) == 0x80)
        at++;
    while (out->len - begin < bytes && !out->failed) {
        at = at < all->len ? at : 0;
        size_t len = RP_MIN(bytes - (out->len - begin), all->len - at);
        rp_buffer_append(out, all->data + at, len);
        at += len;
        for (; at < all->len && ((unsigned char)all->data[at] & 0xC0) == 0x80; at++)
            rp_buffer_append(out, all->data + at, 1);
    }
}

/* Appends `count` random lines; random NULL: consecutive ones from line `at`, wrapping around. */
static void append_lines(const struct text *text, struct rp_load_random *random, size_t at,
                         size_t count, struct rp_buffer *out) {
    for (size_t i = 0; i < count && !out->failed; i++) {
        size_t line =
            random ? rp_load_random_below(random, (uint32_t)text->count) : (at + i) % text->count;
        rp_buffer_append(out, text->bytes.data + text->lines[line],
                         text->lines[line + 1] - text->lines[line]);
    }
}

/* Number of lines whose size is closest to `tokens` tokens minus the instruction. */
static size_t line_count(const struct rp_load_source *source, const struct text *text,
                         uint32_t tokens) {
    double line_bytes = (double)text->bytes.len / (double)text->count;
    double bytes = tokens * source->text_bytes_per_token - (double)strlen(SONNET_INSTRUCTION);
    return (size_t)floor(RP_MAX(bytes, 0.0) / line_bytes + 0.5);
}

static void append_sonnet(const struct rp_load_source *source, const struct text *text,
                          const struct rp_load_row *row, struct rp_load_random *random,
                          struct rp_buffer *out) {
    /* The prefix depends on the seed. In vllm it is always the file's first lines, which a server
     * would have cached in an earlier run. */
    struct rp_load_random shared = rp_load_random_begin(source->seed, RP_LOAD_STREAM_PREFIX, 0);
    size_t first = rp_load_random_below(&shared, (uint32_t)text->count);
    size_t prefix = line_count(source, text, source->prefix_tokens);
    size_t all = line_count(source, text, row->input);
    rp_buffer_puts(out, SONNET_INSTRUCTION);
    append_lines(text, NULL, first, prefix, out);
    append_lines(text, random, 0, all > prefix ? all - prefix : 1, out);
}

static int append_prompts(const struct rp_load_source *source, const struct rp_load_rows *rows,
                          const struct text *text, uint32_t count, size_t *begins,
                          struct rp_buffer *out, struct rp_error *err) {
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_load_row *row = &rows->rows[i];
        struct rp_load_random random =
            rp_load_random_begin(source->seed, RP_LOAD_STREAM_PROMPT, row->number);
        double bytes = floor(row->input * source->text_bytes_per_token + 0.5);
        if (bytes > (double)(RP_LOAD_PROMPT_BYTES_MAX - RP_MIN(out->len, RP_LOAD_PROMPT_BYTES_MAX)))
            return too_much(err);
        begins[i] = out->len;
        if (source->dataset == RP_LOAD_SONNET)
            append_sonnet(source, text, row, &random, out);
        else
            append_piece(text, &random, RP_MAX((size_t)bytes, 1), out);
        rp_buffer_append(out, "", 1);
        if (out->failed)
            return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for prompts");
    }
    return RP_OK;
}

int rp_load_prompt_text(const struct rp_load_source *source, const struct rp_load_rows *rows,
                        struct rp_load_plan *out, struct rp_error *err) {
    struct text text = {.count = 0};
    struct rp_buffer prompts;
    rp_buffer_init(&prompts, 0);
    int status = text_read(source->path, source->dataset == RP_LOAD_TEXT, &text, err);
    size_t *begins = rp_calloc(out->count, sizeof *begins);
    if (status == RP_OK && !begins)
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for prompts");
    if (status == RP_OK)
        status = append_prompts(source, rows, &text, out->count, begins, &prompts, err);
    for (uint32_t i = 0; status == RP_OK && i < out->count; i++)
        out->requests[i].text = prompts.data + begins[i];
    if (status == RP_OK)
        out->text = prompts.data;
    else
        rp_buffer_deinit(&prompts);
    rp_free(begins);
    text_free(&text);
    return status;
}
