#include "metrics/time_diff.h"

#include "base/hash.h"
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES      512
#define NAME_WIDTH_MAX 56
#define CELLS_FIRST    64
#define SAMPLES_FIRST  1024
#define ENDS_OF_NAME   2 /* the key's first parts: group and name */
#define PART_END       '\1'

const char *rp_time_text(double ns, char out[16]) {
    static const struct {
        double ns;
        const char *unit;
    } units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
    size_t i = 0;
    while (i + 1 < RP_ARRAY_COUNT(units) && ns < units[i].ns * 0.9995)
        i++;
    double value = ns / units[i].ns;
    snprintf(out, 16, "%.*f%s", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value, units[i].unit);
    return out;
}

void rp_time_diff_deinit(struct rp_time_diff *diff) {
    for (uint32_t i = 0; i < diff->cell_count; i++)
        rp_free(diff->cells[i].key);
    rp_free(diff->cells);
    rp_free(diff->samples);
    rp_free(diff->places);
    memset(diff, 0, sizeof *diff);
}

/* --- Cells ------------------------------------------------------------------------------------ */

static uint32_t *find_place(const struct rp_time_diff *diff, const char *key) {
    uint64_t hash = rp_hash64(key, strlen(key), 0);
    for (uint32_t i = 0;; i++) {
        uint32_t *place = &diff->places[(hash + i) & (2 * diff->cell_capacity - 1)];
        if (*place == 0 || strcmp(diff->cells[*place - 1].key, key) == 0)
            return place;
    }
}

static bool grow_cells(struct rp_time_diff *diff) {
    if (diff->cell_count < diff->cell_capacity)
        return true;
    uint32_t capacity = diff->cell_capacity ? 2 * diff->cell_capacity : CELLS_FIRST;
    uint32_t *places = rp_calloc((size_t)2 * capacity, sizeof *places);
    struct rp_diff_cell *cells = rp_realloc(diff->cells, capacity * sizeof *cells);
    if (cells)
        diff->cells = cells;
    if (!cells || !places) {
        rp_free(places);
        return false;
    }
    rp_free(diff->places);
    diff->places = places;
    diff->cell_capacity = capacity;
    for (uint32_t i = 0; i < diff->cell_count; i++)
        *find_place(diff, cells[i].key) = i + 1;
    return true;
}

/* UINT32_MAX when memory is out. */
static uint32_t find_cell(struct rp_time_diff *diff, const char *group, const char *name,
                          const char *stratum) {
    char key[KEY_BYTES];
    if (diff->failed || !grow_cells(diff)) {
        diff->failed = true;
        return UINT32_MAX;
    }
    snprintf(key, sizeof key, "%.99s%c%.299s%c%.99s%c", group, PART_END, name, PART_END, stratum,
             PART_END);
    uint32_t *place = find_place(diff, key);
    if (*place)
        return *place - 1;
    struct rp_diff_cell *cell = &diff->cells[diff->cell_count];
    memset(cell, 0, sizeof *cell);
    cell->key = rp_strdup(key);
    if (!cell->key) {
        diff->failed = true;
        return UINT32_MAX;
    }
    *place = ++diff->cell_count;
    return diff->cell_count - 1;
}

void rp_time_diff_add(struct rp_time_diff *diff, enum rp_diff_side side, const char *group,
                      const char *name, const char *stratum, uint64_t ns) {
    uint32_t cell = find_cell(diff, group, name, stratum);
    if (cell == UINT32_MAX)
        return;
    if (diff->sample_count == diff->sample_capacity) {
        uint64_t capacity = diff->sample_capacity ? 2 * diff->sample_capacity : SAMPLES_FIRST;
        struct rp_diff_sample *samples = rp_realloc(diff->samples, capacity * sizeof *samples);
        if (!samples) {
            diff->failed = true;
            return;
        }
        diff->samples = samples;
        diff->sample_capacity = capacity;
    }
    diff->samples[diff->sample_count++] = (struct rp_diff_sample){cell, (uint32_t)side, ns};
}

void rp_time_diff_add_summary(struct rp_time_diff *diff, enum rp_diff_side side, const char *group,
                              const char *name, const char *stratum,
                              const struct rp_time_summary *summary) {
    uint32_t cell = find_cell(diff, group, name, stratum);
    if (cell != UINT32_MAX)
        diff->cells[cell].sides[side] = *summary;
}

static int compare_samples(const void *left, const void *right) {
    const struct rp_diff_sample *a = left, *b = right;
    if (a->cell != b->cell)
        return a->cell < b->cell ? -1 : 1;
    if (a->side != b->side)
        return a->side < b->side ? -1 : 1;
    return (a->ns > b->ns) - (a->ns < b->ns);
}

/* The smallest of the sorted samples that at least `percent` of them do not exceed. */
static double quantile(const struct rp_diff_sample *samples, uint64_t count, uint32_t percent) {
    uint64_t rank = (count * percent + 99) / 100;
    return (double)samples[rank ? rank - 1 : 0].ns;
}

static int compare_cells(const void *left, const void *right) {
    const struct rp_diff_cell *a = left, *b = right;
    return strcmp(a->key, b->key);
}

void rp_time_diff_finish(struct rp_time_diff *diff) {
    if (diff->sample_count)
        qsort(diff->samples, diff->sample_count, sizeof *diff->samples, compare_samples);
    for (uint64_t begin = 0, end; begin < diff->sample_count; begin = end) {
        const struct rp_diff_sample *first = &diff->samples[begin];
        for (end = begin; end < diff->sample_count && diff->samples[end].cell == first->cell &&
                          diff->samples[end].side == first->side;)
            end++;
        uint64_t count = end - begin;
        diff->cells[first->cell].sides[first->side] =
            (struct rp_time_summary){.count = count,
                                     .p25 = quantile(first, count, 25),
                                     .p50 = quantile(first, count, 50),
                                     .p75 = quantile(first, count, 75)};
    }
    diff->sample_count = 0;
    if (diff->cell_count)
        qsort(diff->cells, diff->cell_count, sizeof *diff->cells, compare_cells);
}

/* --- Changes ---------------------------------------------------------------------------------- */

static double error_of(const struct rp_time_summary *summary) {
    return 1.57 * (summary->p75 - summary->p25) / sqrt((double)summary->count);
}

/* The strata [begin, end) of one name. */
static void find_change(const struct rp_diff_cell *cells, uint32_t count,
                        struct rp_time_change *out) {
    double weight = 0, ratio = 0, spread = 0;
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_time_summary *a = &cells[i].sides[RP_DIFF_A],
                                     *b = &cells[i].sides[RP_DIFF_B];
        out->count[RP_DIFF_A] += a->count;
        out->count[RP_DIFF_B] += b->count;
        if (a->count < RP_DIFF_SAMPLES_MIN || b->count < RP_DIFF_SAMPLES_MIN || a->p50 <= 0 ||
            b->p50 <= 0)
            continue;
        double n = (double)b->count, r = b->p50 / a->p50;
        weight += n;
        ratio += n * r;
        spread += n * r * (error_of(a) / a->p50 + error_of(b) / b->p50);
        out->p50[RP_DIFF_A] += n * a->p50;
        out->p50[RP_DIFF_B] += n * b->p50;
        out->compared += b->count;
    }
    if (weight <= 0)
        return;
    out->ratio = ratio / weight;
    out->spread = spread / weight;
    out->p50[RP_DIFF_A] /= weight;
    out->p50[RP_DIFF_B] /= weight;
    out->verdict = out->ratio - out->spread > 1   ? RP_DIFF_SLOWER
                   : out->ratio + out->spread < 1 ? RP_DIFF_FASTER
                                                  : RP_DIFF_SAME;
}

/* Length of the key's first `parts` parts, their ends included. */
static size_t prefix_len(const char *key, int parts) {
    const char *at = key;
    while (parts-- > 0)
        at = strchr(at, PART_END) + 1;
    return (size_t)(at - key);
}

/* The end of the run of cells that share this many parts with cell `begin`. */
static uint32_t run_end(const struct rp_time_diff *diff, uint32_t begin, int parts) {
    size_t len = prefix_len(diff->cells[begin].key, parts);
    uint32_t end = begin + 1;
    while (end < diff->cell_count &&
           strncmp(diff->cells[end].key, diff->cells[begin].key, len) == 0)
        end++;
    return end;
}

void rp_time_diff_change(const struct rp_time_diff *diff, const char *group, const char *name,
                         struct rp_time_change *out) {
    char prefix[KEY_BYTES];
    int len = snprintf(prefix, sizeof prefix, "%.99s%c%.299s%c", group, PART_END, name, PART_END);
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < diff->cell_count; i++)
        if (strncmp(diff->cells[i].key, prefix, (size_t)len) == 0) {
            find_change(diff->cells + i, run_end(diff, i, ENDS_OF_NAME) - i, out);
            return;
        }
}

/* --- Text ------------------------------------------------------------------------------------- */

struct row {
    const char *name; /* in its first cell's key */
    size_t name_len;
    struct rp_time_change change;
    double cost_ns; /* of the change, in B */
};

static int compare_rows(const void *left, const void *right) {
    const struct row *a = left, *b = right;
    int rank_a = (int)RP_MAX(a->change.verdict, RP_DIFF_SAME);
    int rank_b = (int)RP_MAX(b->change.verdict, RP_DIFF_SAME);
    if (rank_a != rank_b)
        return rank_b - rank_a;
    double cost_a = fabs(a->cost_ns), cost_b = fabs(b->cost_ns);
    if (rank_a != RP_DIFF_SAME && cost_a != cost_b)
        return cost_a > cost_b ? -1 : 1;
    return strcmp(a->name, b->name); /* both end at the key's end: the name decides */
}

static void write_row(const struct row *row, int width, struct rp_buffer *out) {
    static const char *const words[] = {"too few", "no change shown", "faster", "slower"};
    const struct rp_time_change *change = &row->change;
    char a[16] = "-", b[16] = "-", percent[32] = "-";
    if (change->compared) {
        rp_time_text(change->p50[RP_DIFF_A], a);
        rp_time_text(change->p50[RP_DIFF_B], b);
        snprintf(percent, sizeof percent, "%+.1f +-%.1f %%", 100.0 * (change->ratio - 1.0),
                 100.0 * change->spread);
    }
    const char *word = !change->count[RP_DIFF_A]   ? "only in B"
                       : !change->count[RP_DIFF_B] ? "only in A"
                                                   : words[change->verdict];
    rp_buffer_printf(out, "  %-*.*s  %8llu  %8s  %8llu  %8s  %18s  %s\n", width,
                     (int)RP_MIN(row->name_len, (size_t)width), row->name,
                     (unsigned long long)change->count[RP_DIFF_A], a,
                     (unsigned long long)change->count[RP_DIFF_B], b, percent, word);
}

static void write_group(const char *group, size_t group_len, struct row *rows, uint32_t count,
                        uint32_t row_limit, struct rp_buffer *out) {
    size_t width = 4;
    uint32_t changed = 0;
    qsort(rows, count, sizeof *rows, compare_rows);
    for (uint32_t i = 0; i < count; i++) {
        width = RP_MAX(width, rows[i].name_len);
        changed += rows[i].change.verdict >= RP_DIFF_FASTER;
    }
    int name = (int)RP_MIN(width, (size_t)NAME_WIDTH_MAX);
    uint32_t shown = row_limit ? RP_MIN(count, changed + row_limit) : count;
    /* The digits that order the groups are not shown. */
    size_t skip = strspn(group, "0123456789 ");
    rp_buffer_printf(out, "%.*s\n", (int)(group_len - RP_MIN(skip, group_len)), group + skip);
    rp_buffer_printf(out, "  %-*s  %8s  %8s  %8s  %8s  %18s\n", name, "name", "A times", "median",
                     "B times", "median", "change");
    for (uint32_t i = 0; i < shown; i++)
        write_row(&rows[i], name, out);
    if (shown < count)
        rp_buffer_printf(out, "  %u more, neither slower nor faster\n", count - shown);
    rp_buffer_puts(out, "\n");
}

static void write_totals(const uint32_t verdicts[4], struct rp_buffer *out) {
    rp_buffer_printf(
        out,
        "slower %u, faster %u, no change shown %u, too few samples to say %u (at least "
        "%d on both sides, in one size)\n",
        verdicts[RP_DIFF_SLOWER], verdicts[RP_DIFF_FASTER], verdicts[RP_DIFF_SAME],
        verdicts[RP_DIFF_TOO_FEW], RP_DIFF_SAMPLES_MIN);
}

void rp_time_diff_write(struct rp_time_diff *diff, uint32_t row_limit, struct rp_buffer *out) {
    uint32_t verdicts[4] = {0};
    struct row *rows = rp_calloc((size_t)diff->cell_count + 1, sizeof *rows);
    if (!rows) {
        diff->failed = true;
        return;
    }
    for (uint32_t begin = 0, end; begin < diff->cell_count; begin = end) {
        uint32_t count = 0;
        const char *group = diff->cells[begin].key;
        size_t group_len = prefix_len(group, 1);
        end = run_end(diff, begin, 1);
        for (uint32_t i = begin, next; i < end; i = next) {
            struct row *row = &rows[count++];
            next = run_end(diff, i, ENDS_OF_NAME);
            row->name = diff->cells[i].key + group_len;
            row->name_len = prefix_len(row->name, 1) - 1;
            find_change(diff->cells + i, next - i, &row->change);
            row->cost_ns = (row->change.p50[RP_DIFF_B] - row->change.p50[RP_DIFF_A]) *
                           (double)row->change.compared;
            verdicts[row->change.verdict]++;
        }
        write_group(group, group_len - 1, rows, count, row_limit, out);
    }
    write_totals(verdicts, out);
    rp_free(rows);
}
