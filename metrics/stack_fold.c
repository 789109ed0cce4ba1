#include "metrics/stack_fold.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 96

/* --- Names of addresses ---------------------------------------------------------------------- */

/* A return address belongs to the call before it, which may be the last instruction of its
 * function. */
static uintptr_t key_of(const struct rp_stack_sample *sample, uint32_t frame) {
    return (uintptr_t)sample->frames[frame] - (frame > 0);
}

static int compare_keys(const void *left, const void *right) {
    uintptr_t a = *(const uintptr_t *)left, b = *(const uintptr_t *)right;
    return a < b ? -1 : a > b;
}

/* Each different address once, with its name at an offset of texts: looked up only once. */
struct named {
    uintptr_t *keys;
    uint32_t *offsets;
    uint32_t count;
    struct rp_buffer texts;
};

static void named_deinit(struct named *named) {
    rp_free(named->keys);
    rp_free(named->offsets);
    rp_buffer_deinit(&named->texts);
}

static int name_all(const struct rp_stacks *stacks, const struct rp_symbols *symbols,
                    struct named *out) {
    uint32_t total = 0, count = 0;
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < stacks->sample_count; i++)
        total += stacks->samples[i].depth;
    out->keys = rp_calloc(total, sizeof *out->keys);
    out->offsets = rp_calloc(total, sizeof *out->offsets);
    if (total && (!out->keys || !out->offsets))
        return RP_STATUS_NO_MEMORY;
    for (uint32_t i = 0, at = 0; i < stacks->sample_count; i++)
        for (uint32_t frame = 0; frame < stacks->samples[i].depth; frame++)
            out->keys[at++] = key_of(&stacks->samples[i], frame);
    if (total)
        qsort(out->keys, total, sizeof *out->keys, compare_keys);
    for (uint32_t i = 0; i < total; i++) {
        char name[NAME_MAX_BYTES];
        if (i > 0 && out->keys[i] == out->keys[count - 1])
            continue;
        rp_symbols_name(symbols, (const void *)out->keys[i], name, sizeof name);
        out->keys[count] = out->keys[i];
        out->offsets[count++] = (uint32_t)out->texts.len;
        rp_buffer_append(&out->texts, name, strlen(name) + 1);
    }
    out->count = count;
    return out->texts.failed ? RP_STATUS_NO_MEMORY : RP_OK;
}

static const char *name_of(const struct named *named, uintptr_t key) {
    const uintptr_t *found = bsearch(&key, named->keys, named->count, sizeof key, compare_keys);
    return named->texts.data + named->offsets[found - named->keys];
}

/* --- Folding --------------------------------------------------------------------------------- */

/* ';' before everything else, so that lines with the same outer frames follow each other. */
static int compare_lines(const void *left, const void *right) {
    const unsigned char *a = *(const unsigned char *const *)left;
    const unsigned char *b = *(const unsigned char *const *)right;
    for (; *a && *a == *b; a++, b++) {
    }
    int from = *a == ';' ? 1 : *a ? *a + 1 : 0, to = *b == ';' ? 1 : *b ? *b + 1 : 0;
    return from - to;
}

/* libc's own start of a thread, which has no exported name. */
static bool is_start(const char *name) { return strncmp(name, "libc.so.6+", 10) == 0; }

static void put_line(const struct rp_stacks *stacks, const struct rp_stack_sample *sample,
                     const struct named *named, struct rp_buffer *out) {
    uint32_t outermost = sample->depth;
    while (outermost > 1 && is_start(name_of(named, key_of(sample, outermost - 1))))
        outermost--;
    rp_buffer_puts(out, stacks->names[sample->thread]);
    for (uint32_t frame = outermost; frame > 0; frame--) {
        rp_buffer_puts(out, ";");
        rp_buffer_puts(out, name_of(named, key_of(sample, frame - 1)));
    }
    rp_buffer_append(out, "", 1);
}

/* Sorted lines with the number of equal ones. */
static void put_counts(const char **lines, uint32_t count, struct rp_buffer *out) {
    if (count)
        qsort(lines, count, sizeof *lines, compare_lines);
    for (uint32_t i = 0; i < count;) {
        uint32_t same = 1;
        while (i + same < count && strcmp(lines[i], lines[i + same]) == 0)
            same++;
        rp_buffer_printf(out, "%s %u\n", lines[i], same);
        i += same;
    }
}

int rp_stacks_fold(const struct rp_stacks *stacks, const struct rp_symbols *symbols,
                   struct rp_buffer *out) {
    struct named named;
    struct rp_buffer texts = {.data = NULL};
    const char **lines = NULL;
    size_t *offsets = rp_calloc(stacks->sample_count, sizeof *offsets);
    int status = name_all(stacks, symbols, &named);
    if (status == RP_OK && offsets)
        lines = rp_calloc(stacks->sample_count, sizeof *lines);
    for (uint32_t i = 0; lines && i < stacks->sample_count; i++) {
        offsets[i] = texts.len;
        put_line(stacks, &stacks->samples[i], &named, &texts);
    }
    if (!lines || texts.failed)
        status = RP_STATUS_NO_MEMORY;
    for (uint32_t i = 0; status == RP_OK && i < stacks->sample_count; i++)
        lines[i] = texts.data + offsets[i];
    if (status == RP_OK)
        put_counts(lines, stacks->sample_count, out);
    rp_free(lines);
    rp_free(offsets);
    rp_buffer_deinit(&texts);
    named_deinit(&named);
    return out->failed ? RP_STATUS_NO_MEMORY : status;
}
