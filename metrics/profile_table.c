#include "metrics/profile_table.h"

#include "base/hash.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

const char *const rp_profile_bounds[] = {"-", "memory", "compute", "latency", "cache"};

void rp_profile_table_init(struct rp_profile_table *table) {
    memset(table, 0, sizeof *table);
    table->footer.whole = true;
}

void rp_profile_table_deinit(struct rp_profile_table *table) {
    for (uint32_t i = 0; i < table->count; i++) {
        rp_free(table->lines[i].name);
        rp_free(table->lines[i].layer);
        rp_free(table->lines[i].shape);
    }
    rp_free(table->lines);
    rp_free(table->places);
    rp_free(table->calls);
    memset(table, 0, sizeof *table);
}

/* ---- rows
 *
 --------------------------------------------------------------------------------------------- */

static uint32_t *find_place(const struct rp_profile_table *table, const char *name) {
    uint64_t hash = rp_hash64(name, strlen(name), 0);
    for (uint32_t i = 0;; i++) {
        uint32_t *place = &table->places[(hash + i) & (table->place_count - 1)];
        if (*place == 0 || strcmp(table->lines[*place - 1].name, name) == 0)
            return place;
    }
}

/* Room for one row more: lines, and twice as many places. */
static bool grow_rows(struct rp_profile_table *table) {
    if (table->count < table->capacity)
        return true;
    uint32_t capacity = table->capacity ? 2 * table->capacity : 64;
    uint32_t *places = rp_calloc((size_t)2 * capacity, sizeof *places);
    struct rp_profile_line *lines = rp_realloc(table->lines, capacity * sizeof *lines);
    if (lines)
        table->lines = lines;
    if (!lines || !places) {
        rp_free(places);
        return false;
    }
    rp_free(table->places);
    table->places = places;
    table->place_count = 2 * capacity;
    table->capacity = capacity;
    for (uint32_t i = 0; i < table->count; i++)
        *find_place(table, table->lines[i].name) = i + 1;
    return true;
}

/* What rows of one name have in common. */
static void merge(char *text, const char *with) {
    if (text[0] && strcmp(text, with) != 0)
        memcpy(text, "*", 2);
}

int32_t rp_profile_table_row(struct rp_profile_table *table, const struct rp_profile_row_key *key) {
    if (table->failed || !grow_rows(table)) {
        table->failed = true;
        return -1;
    }
    uint32_t *place = find_place(table, key->name);
    if (*place) {
        merge(table->lines[*place - 1].layer, key->layer);
        merge(table->lines[*place - 1].shape, key->shape);
        return (int32_t)(*place - 1);
    }
    struct rp_profile_line *line = &table->lines[table->count];
    memset(line, 0, sizeof *line);
    line->name = rp_strdup(key->name);
    line->layer = rp_strdup(key->layer);
    line->shape = rp_strdup(key->shape);
    line->last_step = UINT64_MAX;
    *place = ++table->count;
    table->failed = !line->name || !line->layer || !line->shape;
    if (table->failed) { /* not to be compared with any more */
        rp_free(line->name);
        rp_free(line->layer);
        rp_free(line->shape);
        *place = 0;
        table->count--;
        return -1;
    }
    return (int32_t)table->count - 1;
}

void rp_profile_table_add(struct rp_profile_table *table, int32_t row,
                          const struct rp_profile_add *call) {
    if (row < 0 || table->failed)
        return;
    if (table->call_count == table->call_capacity) {
        uint64_t capacity = table->call_capacity ? 2 * table->call_capacity : 1024;
        struct rp_profile_call *calls = rp_realloc(table->calls, capacity * sizeof *calls);
        if (!calls) {
            table->failed = true;
            return;
        }
        table->calls = calls;
        table->call_capacity = capacity;
    }
    table->calls[table->call_count++] =
        (struct rp_profile_call){.row = (uint32_t)row, .self_ns = call->self_ns};
    struct rp_profile_line *line = &table->lines[row];
    line->calls++;
    line->self_ns += call->self_ns;
    line->total_ns += RP_MAX(call->total_ns, call->self_ns);
    line->bytes += call->bytes;
    line->flops += call->flops;
    line->rows += call->rows;
    line->kv_tokens += call->kv_tokens;
    line->kv_max = RP_MAX(line->kv_max, call->kv_max);
    table->self_ns += call->self_ns;
    if (line->last_step != call->step) {
        line->last_step = call->step;
        line->tokens += call->tokens;
    }
}

/* ---- finish
 *
 --------------------------------------------------------------------------------------------- */

static int compare_calls(const void *a_void, const void *b_void) {
    const struct rp_profile_call *a = a_void, *b = b_void;
    if (a->row != b->row)
        return a->row < b->row ? -1 : 1;
    return (a->self_ns > b->self_ns) - (a->self_ns < b->self_ns);
}

/* calls: of one row, sorted. The smallest value that at least the share `q` of them do not
 * exceed. */
static uint64_t quantile(const struct rp_profile_call *calls, uint64_t count, uint32_t percent) {
    uint64_t rank = (count * percent + 99) / 100;
    return calls[rank ? rank - 1 : 0].self_ns;
}

static void find_percentiles(struct rp_profile_table *table) {
    if (table->call_count == 0)
        return;
    qsort(table->calls, table->call_count, sizeof *table->calls, compare_calls);
    for (uint64_t begin = 0, end; begin < table->call_count; begin = end) {
        const struct rp_profile_call *calls = table->calls + begin;
        for (end = begin; end < table->call_count && table->calls[end].row == calls->row;)
            end++;
        struct rp_profile_line *line = &table->lines[calls->row];
        line->p25_ns = quantile(calls, end - begin, 25);
        line->p50_ns = quantile(calls, end - begin, 50);
        line->p75_ns = quantile(calls, end - begin, 75);
        line->p99_ns = quantile(calls, end - begin, 99);
        line->max_ns = calls[end - begin - 1].self_ns;
    }
}

static void find_bound(struct rp_profile_line *line, const struct rp_profile_footer *footer) {
    double self = (double)line->self_ns * 1e-9;
    double memory = footer->peak_bytes > 0 ? line->bytes / footer->peak_bytes : 0.0;
    double compute = footer->peak_flops > 0 ? line->flops / footer->peak_flops : 0.0;
    line->intensity = line->bytes > 0 ? line->flops / line->bytes : 0.0;
    if (self <= 0 || memory + compute <= 0)
        return;
    line->roof_share = RP_MAX(memory, compute) / self;
    line->bound = line->roof_share < RP_PROFILE_LATENCY_SHARE ? RP_BOUND_LATENCY
                  : memory >= compute && memory > self        ? RP_BOUND_CACHE
                  : memory >= compute                         ? RP_BOUND_MEMORY
                                                              : RP_BOUND_COMPUTE;
}

static double sort_value(const struct rp_profile_line *line, enum rp_profile_sort sort) {
    switch (sort) {
    case RP_PROFILE_SORT_SELF:
        return (double)line->self_ns;
    case RP_PROFILE_SORT_TOTAL:
        return (double)line->total_ns;
    case RP_PROFILE_SORT_CALLS:
        return (double)line->calls;
    case RP_PROFILE_SORT_AVG:
        return (double)line->self_ns / (double)RP_MAX(line->calls, 1u);
    case RP_PROFILE_SORT_P99:
        return (double)line->p99_ns;
    case RP_PROFILE_SORT_BYTES:
        return line->bytes;
    case RP_PROFILE_SORT_FLOPS:
        return line->flops;
    case RP_PROFILE_SORT_ROOF:
        return line->roof_share;
    case RP_PROFILE_SORT_NAME:
        break;
    }
    return 0.0;
}

/* qsort hands its comparison nothing else: one sort at a time would need a lock, so the order is
 * made by heads. */
static bool comes_before(const struct rp_profile_line *a, const struct rp_profile_line *b,
                         enum rp_profile_sort sort) {
    double left = sort_value(a, sort), right = sort_value(b, sort);
    return left != right ? left > right : strcmp(a->name, b->name) < 0;
}

/* Heap sort (Williams 1964): the heap's top is what comes last. */
static void sift(struct rp_profile_line *lines, uint32_t at, uint32_t count,
                 enum rp_profile_sort sort) {
    struct rp_profile_line moved = lines[at];
    for (uint32_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && comes_before(&lines[child], &lines[child + 1], sort))
            child++;
        if (!comes_before(&moved, &lines[child], sort))
            break;
        lines[at] = lines[child];
        at = child;
    }
    lines[at] = moved;
}

static void sort_lines(struct rp_profile_table *table, enum rp_profile_sort sort) {
    for (uint32_t i = table->count / 2; i-- > 0;)
        sift(table->lines, i, table->count, sort);
    for (uint32_t end = table->count; end-- > 1;) {
        struct rp_profile_line last = table->lines[0];
        table->lines[0] = table->lines[end];
        table->lines[end] = last;
        sift(table->lines, 0, end, sort);
    }
}

void rp_profile_table_finish(struct rp_profile_table *table, enum rp_profile_sort sort) {
    if (table->failed)
        return;
    find_percentiles(table);
    for (uint32_t i = 0; i < table->count; i++) {
        struct rp_profile_line *line = &table->lines[i];
        uint64_t whole = table->footer.replay_ns;
        line->self_share = whole ? (double)line->self_ns / (double)whole : 0.0;
        find_bound(line, &table->footer);
    }
    sort_lines(table, sort);
}
