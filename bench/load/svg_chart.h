/* svg_chart.h - charts as inline SVG: axes, lines, dots, bars, marks.
 *
 * Colors are CSS classes (c0 to c5, and "mark", "shade", "grid", "axis") defined by the page.
 * Values that an axis cannot represent (not finite, or not above 0 on a logarithmic axis) are
 * skipped; values out of range are clipped at the frame. Thread: any. */
#ifndef RP_BENCH_SVG_CHART_H
#define RP_BENCH_SVG_CHART_H

#include "base/buffer.h"

enum rp_svg_scale {
    RP_SVG_LINEAR,
    RP_SVG_LOG,
    RP_SVG_TAIL /* quantiles below 1, by -log10(1 - q): each additional nine has the same width */
};

struct rp_svg_axis {
    enum rp_svg_scale scale;
    double min, max; /* widened to whole ticks on a linear axis */
    const char *label;
};

struct rp_svg_chart {
    struct rp_buffer *out;
    struct rp_svg_axis x, y;
};

/* `name` is for screen readers. The caller sets all of `chart`. */
void rp_svg_begin(struct rp_svg_chart *chart, const char *name);
void rp_svg_end(struct rp_svg_chart *chart);

void rp_svg_line(const struct rp_svg_chart *chart, const double *x, const double *y, uint32_t count,
                 const char *css_class);
void rp_svg_dots(const struct rp_svg_chart *chart, const double *x, const double *y, uint32_t count,
                 const char *css_class);
/* A bar from x to x_end with height y. */
void rp_svg_bar(const struct rp_svg_chart *chart, double x, double x_end, double y,
                const char *css_class);
/* A shaded region from x to x_end over the whole height. */
void rp_svg_shade(const struct rp_svg_chart *chart, double x, double x_end);
/* Lines across the frame, labeled with a text (escaped here). */
void rp_svg_mark_x(const struct rp_svg_chart *chart, double x, const char *text);
void rp_svg_mark_y(const struct rp_svg_chart *chart, double y, const char *text);

/* Escapes for HTML element content and quoted attributes. Control characters become spaces, invalid
 * UTF-8 U+FFFD. */
void rp_html_escape(struct rp_buffer *out, const char *text);

#endif
