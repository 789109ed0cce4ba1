#include "bench/load/svg_chart.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* In the units of the view box. */
#define WIDTH  760.0
#define HEIGHT 300.0
#define LEFT   64.0
#define RIGHT  14.0
#define TOP    14.0
#define BOTTOM 44.0

#define TICKS_MAX 64u

void rp_html_escape(struct rp_buffer *out, const char *text) {
    size_t len = strlen(text);
    for (size_t i = 0; i < len;) {
        int n = rp_utf8_decode(text + i, len - i, NULL);
        char c = text[i];
        if (n <= 0)
            rp_buffer_puts(out, "\xEF\xBF\xBD");
        else if (c == '&')
            rp_buffer_puts(out, "&amp;");
        else if (c == '<')
            rp_buffer_puts(out, "&lt;");
        else if (c == '>')
            rp_buffer_puts(out, "&gt;");
        else if (c == '"')
            rp_buffer_puts(out, "&quot;");
        else if (c == '\'')
            rp_buffer_puts(out, "&#39;");
        else if ((unsigned char)c < 0x20 || c == 0x7F)
            rp_buffer_puts(out, " ");
        else
            rp_buffer_append(out, text + i, (size_t)n);
        i += n > 0 ? (size_t)n : 1;
    }
}

/* ---- scales --------------------------------------------------------------------------------- */

static double transform(const struct rp_svg_axis *axis, double value) {
    switch (axis->scale) {
    case RP_SVG_LOG:
        return value > 0 ? log10(value) : -INFINITY;
    case RP_SVG_TAIL:
        return value < 1 ? -log10(1 - value) : INFINITY;
    default:
        return value;
    }
}

/* 0 to 1 inside the frame. */
static double place(const struct rp_svg_axis *axis, double value) {
    double low = transform(axis, axis->min), high = transform(axis, axis->max);
    return (transform(axis, value) - low) / (high - low);
}

static double place_x(const struct rp_svg_chart *chart, double x) {
    return LEFT + place(&chart->x, x) * (WIDTH - LEFT - RIGHT);
}

static double place_y(const struct rp_svg_chart *chart, double y) {
    return HEIGHT - BOTTOM - place(&chart->y, y) * (HEIGHT - TOP - BOTTOM);
}

static double clip(double value, double low, double high) {
    return value < low ? low : value > high ? high : value;
}

/* 1, 2 or 5 times a power of ten, so that about `count` steps fit into the span. */
static double nice_step(double span, double count) {
    double raw = span / count, power = pow(10, floor(log10(raw)));
    double digit = raw / power;
    return (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10) * power;
}

/* Corrects the range of an axis so that it can be drawn. */
static void fix_axis(struct rp_svg_axis *axis) {
    if (!isfinite(axis->min))
        axis->min = 0;
    if (!isfinite(axis->max))
        axis->max = axis->min + 1;
    if (axis->scale == RP_SVG_LINEAR) {
        if (!(axis->max > axis->min))
            axis->max = axis->min + (fabs(axis->min) > 0 ? fabs(axis->min) : 1);
        double step = nice_step(axis->max - axis->min, 6);
        axis->min = floor(axis->min / step) * step;
        axis->max = ceil(axis->max / step - 1e-9) * step;
    } else if (axis->scale == RP_SVG_LOG) {
        axis->max = axis->max > 1e-6 ? axis->max : 1;
        axis->min = clip(axis->min, axis->max * 1e-9, axis->max);
        if (axis->max / axis->min < 10) {
            double middle = sqrt(axis->min * axis->max);
            axis->min = RP_MIN(axis->min, middle / 3.5);
            axis->max = RP_MAX(axis->max, middle * 3.5);
        }
    } else {
        axis->min = clip(axis->min, 0, 0.9);
        axis->max = clip(axis->max, 0.99, 0.9999999);
    }
}

static void add_tick(double *ticks, uint32_t *count, const struct rp_svg_axis *axis, double value) {
    double slack = (axis->max - axis->min) * 1e-9;
    if (*count < TICKS_MAX && value >= axis->min - slack && value <= axis->max + slack)
        ticks[(*count)++] = value;
}

static uint32_t make_ticks(const struct rp_svg_axis *axis, double ticks[TICKS_MAX]) {
    uint32_t count = 0;
    if (axis->scale == RP_SVG_LINEAR) {
        double step = nice_step(axis->max - axis->min, 6);
        double first = round(axis->min / step);
        for (uint32_t i = 0; i < TICKS_MAX / 2; i++)
            add_tick(ticks, &count, axis, (first + i) * step);
    } else if (axis->scale == RP_SVG_LOG) {
        int first = (int)floor(log10(axis->min)), last = (int)ceil(log10(axis->max));
        bool dense = last - first <= 3;
        for (int p = first; p <= last; p++) {
            add_tick(ticks, &count, axis, pow(10, p));
            if (dense) {
                add_tick(ticks, &count, axis, 2 * pow(10, p));
                add_tick(ticks, &count, axis, 5 * pow(10, p));
            }
        }
    } else {
        static const double quantiles[] = {0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 0.99999};
        for (size_t i = 0; i < RP_ARRAY_COUNT(quantiles); i++)
            add_tick(ticks, &count, axis, quantiles[i]);
    }
    return count;
}

static void tick_text(const struct rp_svg_axis *axis, double value, char out[32]) {
    double size = fabs(value);
    if (axis->scale == RP_SVG_TAIL)
        snprintf(out, 32, "p%.6g", value * 100);
    else if (size >= 1e6)
        snprintf(out, 32, "%.4gM", value * 1e-6);
    else if (size >= 1e4)
        snprintf(out, 32, "%.4gk", value * 1e-3);
    else
        snprintf(out, 32, "%.4g", size < 1e-12 ? 0.0 : value);
}

/* ---- the frame ------------------------------------------------------------------------------ */

static void put_text(struct rp_buffer *out, double x, double y, const char *anchor,
                     const char *css_class, const char *text) {
    rp_buffer_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y,
                     anchor, css_class);
    rp_html_escape(out, text);
    rp_buffer_puts(out, "</text>");
}

static void put_segment(struct rp_buffer *out, double x, double y, double x_end, double y_end,
                        const char *css_class) {
    rp_buffer_printf(out,
                     "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"></line>",
                     x, y, x_end, y_end, css_class);
}

void rp_svg_begin(struct rp_svg_chart *chart, const char *name) {
    struct rp_buffer *out = chart->out;
    double ticks[TICKS_MAX];
    char text[32];
    fix_axis(&chart->x);
    fix_axis(&chart->y);
    rp_buffer_printf(out, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", WIDTH,
                     HEIGHT);
    rp_html_escape(out, name);
    rp_buffer_puts(out, "\">");
    for (uint32_t i = 0, count = make_ticks(&chart->x, ticks); i < count; i++) {
        double x = place_x(chart, ticks[i]);
        tick_text(&chart->x, ticks[i], text);
        put_segment(out, x, TOP, x, HEIGHT - BOTTOM, "grid");
        put_text(out, x, HEIGHT - BOTTOM + 15, "middle", "tick", text);
    }
    for (uint32_t i = 0, count = make_ticks(&chart->y, ticks); i < count; i++) {
        double y = place_y(chart, ticks[i]);
        tick_text(&chart->y, ticks[i], text);
        put_segment(out, LEFT, y, WIDTH - RIGHT, y, "grid");
        put_text(out, LEFT - 6, y + 4, "end", "tick", text);
    }
    put_segment(out, LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "axis");
    put_text(out, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "middle", "name", chart->x.label);
    rp_buffer_printf(out, "<g transform=\"translate(14 %.1f) rotate(-90)\">",
                     (TOP + HEIGHT - BOTTOM) / 2);
    put_text(out, 0, 0, "middle", "name", chart->y.label);
    rp_buffer_puts(out, "</g>\n");
}

void rp_svg_end(struct rp_svg_chart *chart) { rp_buffer_puts(chart->out, "</svg>\n"); }

/* ---- marks ---------------------------------------------------------------------------------- */

/* Converts to view box coordinates, clipped to the frame; false: not representable. */
static bool point(const struct rp_svg_chart *chart, double x, double y, double *out_x,
                  double *out_y) {
    if (!isfinite(transform(&chart->x, x)) || !isfinite(transform(&chart->y, y)))
        return false;
    *out_x = clip(place_x(chart, x), LEFT, WIDTH - RIGHT);
    *out_y = clip(place_y(chart, y), TOP, HEIGHT - BOTTOM);
    return true;
}

static void put_path(const struct rp_svg_chart *chart, const double *x, const double *y,
                     uint32_t count, const char *css_class, bool dots) {
    struct rp_buffer *out = chart->out;
    double at_x, at_y;
    bool open = false;
    rp_buffer_printf(out, "<path class=\"%s %s\" d=\"", dots ? "dots" : "line", css_class);
    for (uint32_t i = 0; i < count; i++) {
        bool shown = point(chart, x[i], y[i], &at_x, &at_y);
        if (shown && dots) /* a line of length 0 with round caps */
            rp_buffer_printf(out, "M%.1f %.1fh0", at_x, at_y);
        else if (shown)
            rp_buffer_printf(out, "%c%.1f %.1f", open ? 'L' : 'M', at_x, at_y);
        open = shown;
    }
    rp_buffer_puts(out, "\"></path>\n");
}

void rp_svg_line(const struct rp_svg_chart *chart, const double *x, const double *y, uint32_t count,
                 const char *css_class) {
    put_path(chart, x, y, count, css_class, false);
}

void rp_svg_dots(const struct rp_svg_chart *chart, const double *x, const double *y, uint32_t count,
                 const char *css_class) {
    put_path(chart, x, y, count, css_class, true);
}

static void put_rect(const struct rp_svg_chart *chart, double left, double top, double right,
                     const char *css_class) {
    rp_buffer_printf(
        chart->out,
        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\"></rect>", left,
        top, RP_MAX(right - left, 0.0), HEIGHT - BOTTOM - top, css_class);
}

void rp_svg_bar(const struct rp_svg_chart *chart, double x, double x_end, double y,
                const char *css_class) {
    double left, top, right;
    if (point(chart, x, y, &left, &top) && point(chart, x_end, y, &right, &top))
        put_rect(chart, left, top, right - 0.5, css_class);
}

void rp_svg_shade(const struct rp_svg_chart *chart, double x, double x_end) {
    double left = clip(place_x(chart, x), LEFT, WIDTH - RIGHT);
    double right = clip(place_x(chart, x_end), LEFT, WIDTH - RIGHT);
    put_rect(chart, left, TOP, right, "shade");
}

void rp_svg_mark_x(const struct rp_svg_chart *chart, double x, const char *text) {
    double at = place_x(chart, x);
    if (!isfinite(at) || at < LEFT || at > WIDTH - RIGHT)
        return;
    bool right_half = at > (LEFT + WIDTH) / 2;
    put_segment(chart->out, at, TOP, at, HEIGHT - BOTTOM, "mark");
    put_text(chart->out, at + (right_half ? -5 : 5), TOP + 12, right_half ? "end" : "start", "name",
             text);
}

void rp_svg_mark_y(const struct rp_svg_chart *chart, double y, const char *text) {
    double at = place_y(chart, y);
    if (!isfinite(at) || at < TOP || at > HEIGHT - BOTTOM)
        return;
    put_segment(chart->out, LEFT, at, WIDTH - RIGHT, at, "mark");
    put_text(chart->out, WIDTH - RIGHT - 4, at - 4, "end", "name", text);
}
