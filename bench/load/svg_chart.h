/* svg_chart.h - charts as inline SVG: axes, lines, dots, bars, marks.
 *
 * Colors are CSS classes (c0 to c5, and "mark", "shade", "grid", "axis") that the page defines.
 * Values that an axis cannot show are left out (not finite, or not above 0 on a logarithmic one) or
 * clipped at the frame. Thread: any. */
#ifndef RP_BENCH_SVG_CHART_H
#define RP_BENCH_SVG_CHART_H

#include "base/buffer.h"

enum rp_svg_scale {
    RP_SVG_LINEAR,
    RP_SVG_LOG,
    RP_SVG_TAIL /* quantiles below 1, by -log10(1 - q): each nine is as wide as the one before */
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

/* `name` is read by screen readers. Of `chart` all is set by the caller. */
void rp_svg_begin(struct rp_svg_chart *chart, const char *name);
void rp_svg_end(struct rp_svg_chart *chart);

void rp_svg_line(const struct rp_svg_chart *chart, const double *x, const double *y, uint32_t count,
                 const char *css_class);
void rp_svg_dots(const struct rp_svg_chart *chart, const double *x, const double *y, uint32_t count,
                 const char *css_class);
/* A bar from x to x_end, as high as y. */
void rp_svg_bar(const struct rp_svg_chart *chart, double x, double x_end, double y,
                const char *css_class);
/* A region from x to x_end over the whole height. */
void rp_svg_shade(const struct rp_svg_chart *chart, double x, double x_end);
/* Lines across the frame with a text (escaped here) beside them. */
void rp_svg_mark_x(const struct rp_svg_chart *chart, double x, const char *text);
void rp_svg_mark_y(const struct rp_svg_chart *chart, double y, const char *text);

/* Escapes for HTML, element content and quoted attributes alike. Control characters become blanks,
 * what is no UTF-8 U+FFFD. */
void rp_html_escape(struct rp_buffer *out, const char *text);

#endif
