#include "attention/mask/mask_picture.h"

#include <inttypes.h>
#include <string.h>

/* --- Tiles ----------------------------------------------------------------------------- */

/* The end of the tile or page that contains `at`, or of the view. */
static int32_t step_end(int32_t at, int32_t size, int32_t end) {
    int64_t next = ((int64_t)at / size + 1) * size;
    return next < end ? (int32_t)next : end;
}

static enum rp_mask_class class_of(const struct rp_mask *mask, const struct rp_mask_view *view,
                                   int32_t q, int32_t kv) {
    struct rp_mask_tile tile = {.q_begin = q,
                                .q_end = step_end(q, view->tile, view->q_end),
                                .kv_begin = kv,
                                .kv_end = step_end(kv, view->page, view->kv_end),
                                .h_begin = view->h,
                                .h_end = view->h + 1,
                                .layer = view->layer};
    return rp_mask_classify(mask, &tile, view->params);
}

void rp_mask_count_tiles(const struct rp_mask *mask, const struct rp_mask_view *view,
                         uint64_t counts[3]) {
    memset(counts, 0, 3 * sizeof *counts);
    for (int32_t q = view->q_begin; q < view->q_end; q = step_end(q, view->tile, view->q_end))
        for (int32_t kv = view->kv_begin; kv < view->kv_end;
             kv = step_end(kv, view->page, view->kv_end))
            counts[class_of(mask, view, q, kv)]++;
}

/* --- Text ------------------------------------------------------------------------------ */

static void print_tiles(const struct rp_mask *mask, const struct rp_mask_view *view,
                        struct rp_buffer *out) {
    static const char signs[] = {
        [RP_MASK_SKIP] = '.', [RP_MASK_FULL] = '#', [RP_MASK_PARTIAL] = '+'};
    for (int32_t q = view->q_begin; q < view->q_end; q = step_end(q, view->tile, view->q_end)) {
        rp_buffer_puts(out, "  ");
        for (int32_t kv = view->kv_begin; kv < view->kv_end;
             kv = step_end(kv, view->page, view->kv_end))
            rp_buffer_append(out, &signs[class_of(mask, view, q, kv)], 1);
        rp_buffer_puts(out, "\n");
    }
}

static bool sees(const struct rp_mask *mask, const struct rp_mask_view *view, int32_t q,
                 int32_t kv) {
    struct rp_mask_pair pair = {.q = q, .kv = kv, .h = view->h, .layer = view->layer};
    return rp_mask_sees(mask, &pair, view->params);
}

void rp_mask_picture_text(const struct rp_mask *mask, const struct rp_mask_view *view,
                          struct rp_buffer *out) {
    rp_buffer_puts(out, "tiles\n");
    print_tiles(mask, view, out);
    if (view->q_end - view->q_begin > RP_MASK_PICTURE_MAX ||
        view->kv_end - view->kv_begin > RP_MASK_PICTURE_MAX)
        return;
    rp_buffer_puts(out, "pairs\n");
    for (int32_t q = view->q_begin; q < view->q_end; q++) {
        rp_buffer_puts(out, "  ");
        for (int32_t kv = view->kv_begin; kv < view->kv_end; kv++)
            rp_buffer_puts(out, sees(mask, view, q, kv) ? "#" : ".");
        rp_buffer_puts(out, "\n");
    }
}

/* --- SVG ------------------------------------------------------------------------------- */

/* Colors legible on white and on black; text uses the page's color. */
static const char style[] =
    "<style>\n"
    "rect { shape-rendering: crispEdges; }\n"
    "text { font: 12px sans-serif; fill: #3d444d; }\n"
    "text.program { font-family: monospace; }\n"
    ".full { fill: #2f81f7; }\n"
    ".seen { fill: #e3a008; }\n"
    ".partial { fill: #e3a008; fill-opacity: 0.25; }\n"
    ".skip { fill: #8b949e; fill-opacity: 0.12; }\n"
    ".grid { fill: none; stroke: #8b949e; stroke-opacity: 0.5; stroke-width: 0.5; }\n"
    "@media (prefers-color-scheme: dark) { text { fill: #d0d7de; } }\n"
    "</style>\n";

struct drawing {
    const struct rp_mask *mask;
    const struct rp_mask_view *view;
    struct rp_buffer *out;
    double cell;
    bool pairs;
};

#define LEFT 24.0
#define TOP  52.0

static double x_of(const struct drawing *d, int32_t kv) {
    return LEFT + d->cell * (kv - d->view->kv_begin);
}

static double y_of(const struct drawing *d, int32_t q) {
    return TOP + d->cell * (q - d->view->q_begin);
}

static void rectangle(const struct drawing *d, const char *class, int32_t q, int32_t q_end,
                      int32_t kv, int32_t kv_end) {
    rp_buffer_printf(
        d->out, "<rect class=\"%s\" x=\"%.4g\" y=\"%.4g\" width=\"%.4g\" height=\"%.4g\"/>\n",
        class, x_of(d, kv), y_of(d, q), d->cell * (kv_end - kv), d->cell * (q_end - q));
}

/* Adjacent keys are merged into one rectangle. */
static void draw_pairs(const struct drawing *d, int32_t q, int32_t kv, int32_t kv_end) {
    int32_t begin = kv;
    for (int32_t k = kv; k <= kv_end; k++) {
        if (k < kv_end && sees(d->mask, d->view, q, k))
            continue;
        if (k > begin)
            rectangle(d, "seen", q, q + 1, begin, k);
        begin = k + 1;
    }
}

static void draw_tile(const struct drawing *d, int32_t q, int32_t kv) {
    static const char *const classes[] = {
        [RP_MASK_SKIP] = "skip", [RP_MASK_FULL] = "full", [RP_MASK_PARTIAL] = "partial"};
    const struct rp_mask_view *view = d->view;
    int32_t q_end = step_end(q, view->tile, view->q_end);
    int32_t kv_end = step_end(kv, view->page, view->kv_end);
    enum rp_mask_class class = class_of(d->mask, view, q, kv);
    rectangle(d, classes[class], q, q_end, kv, kv_end);
    for (int32_t row = q; row < q_end && class == RP_MASK_PARTIAL && d->pairs; row++)
        draw_pairs(d, row, kv, kv_end);
    rectangle(d, "grid", q, q_end, kv, kv_end);
}

static void escape(struct rp_buffer *out, const char *text) {
    for (; *text; text++) {
        if (*text == '<' || *text == '>' || *text == '&')
            rp_buffer_puts(out, *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : "&amp;");
        else
            rp_buffer_append(out, text, 1);
    }
}

static void draw_words(const struct drawing *d, double bottom) {
    const struct rp_mask_view *view = d->view;
    uint64_t counts[3];
    rp_mask_count_tiles(d->mask, view, counts);
    rp_buffer_printf(d->out, "<text class=\"program\" x=\"%g\" y=\"18\">", LEFT);
    escape(d->out, rp_mask_text(d->mask));
    rp_buffer_printf(d->out, "</text>\n<text x=\"%g\" y=\"%g\">keys %d to %d</text>\n", LEFT,
                     TOP - 8, view->kv_begin, view->kv_end - 1);
    rp_buffer_printf(d->out,
                     "<text transform=\"translate(%g %g) rotate(90)\">queries %d to %d</text>\n",
                     LEFT - 16, TOP, view->q_begin, view->q_end - 1);
    rp_buffer_printf(
        d->out,
        "<rect class=\"full\" x=\"%g\" y=\"%g\" width=\"12\" height=\"12\"/>\n<text x=\"%g\" "
        "y=\"%g\">%" PRIu64 " full</text>\n",
        LEFT, bottom, LEFT + 18, bottom + 10, counts[RP_MASK_FULL]);
    rp_buffer_printf(
        d->out,
        "<rect class=\"%s\" x=\"%g\" y=\"%g\" width=\"12\" height=\"12\"/>\n<text x=\"%g\" "
        "y=\"%g\">%" PRIu64 " partial</text>\n",
        d->pairs ? "seen" : "partial", LEFT + 90, bottom, LEFT + 108, bottom + 10,
        counts[RP_MASK_PARTIAL]);
    rp_buffer_printf(
        d->out,
        "<rect class=\"skip\" x=\"%g\" y=\"%g\" width=\"12\" height=\"12\"/>\n<text x=\"%g\" "
        "y=\"%g\">%" PRIu64 " skip, tiles of %d x %d</text>\n",
        LEFT + 190, bottom, LEFT + 208, bottom + 10, counts[RP_MASK_SKIP], view->tile, view->page);
}

void rp_mask_picture_svg(const struct rp_mask *mask, const struct rp_mask_view *view,
                         struct rp_buffer *out) {
    int32_t rows = view->q_end - view->q_begin, keys = view->kv_end - view->kv_begin;
    struct drawing d = {.mask = mask,
                        .view = view,
                        .out = out,
                        .cell = 512.0 / RP_MAX(rows, keys),
                        .pairs = rows <= RP_MASK_SVG_MAX && keys <= RP_MASK_SVG_MAX};
    double text_width = 7.3 * (double)strlen(rp_mask_text(mask));
    double width = RP_MAX(RP_MAX(d.cell * keys, 400.0), text_width) + 2 * LEFT;
    double bottom = TOP + d.cell * rows + 12;
    rp_buffer_printf(out,
                     "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
                     "width=\"%.0f\" height=\"%.0f\" role=\"img\">\n<title>",
                     width, bottom + 24, width, bottom + 24);
    escape(out, rp_mask_text(mask));
    rp_buffer_puts(out, "</title>\n");
    rp_buffer_puts(out, style);
    for (int32_t q = view->q_begin; q < view->q_end; q = step_end(q, view->tile, view->q_end))
        for (int32_t kv = view->kv_begin; kv < view->kv_end;
             kv = step_end(kv, view->page, view->kv_end))
            draw_tile(&d, q, kv);
    draw_words(&d, bottom);
    rp_buffer_puts(out, "</svg>\n");
}
