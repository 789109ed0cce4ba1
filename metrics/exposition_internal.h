/* exposition_internal.h - what the two formats share. */
#ifndef RP_METRICS_EXPOSITION_INTERNAL_H
#define RP_METRICS_EXPOSITION_INTERNAL_H

#include "metrics/exposition.h"

#define RP_NUMBER_TEXT 40

/* In what the formats differ. */
struct rp_exposition_format {
    const char *content_type;
    void (*header)(struct rp_buffer *out, const struct rp_metric_family *family);
    /* A bucket's upper bound as the value of le. */
    void (*bound)(double bound, char out[RP_NUMBER_TEXT]);
    /* Behind a bucket's value; NULL: the format has none. */
    void (*exemplar)(struct rp_buffer *out, const struct rp_exemplar_copy *exemplar);
    const char *end; /* of the text */
    /* NULL: lines of text; else these write the samples. labels as rp_label_append makes them. */
    void (*number)(struct rp_metric_out *out, const char *labels, double value);
    /* counts: of each bucket by itself, bound_count + 1. */
    void (*histogram)(struct rp_metric_out *out, const char *labels, const double *bounds,
                      const uint64_t *counts, uint32_t bound_count, double sum);
};
extern const struct rp_exposition_format rp_exposition_prometheus, rp_exposition_openmetrics;

struct rp_metric_out {
    struct rp_buffer *buffer;
    const struct rp_exposition_format *format;
    const struct rp_metric_family *family;
    uint32_t series;          /* of the family */
    uint32_t dropped;         /* of all */
    struct rp_otlp_out *otlp; /* exposition_otlp.c's */
};

/* The families of these sets, one after the other, by out->format. */
void rp_exposition_walk(struct rp_registry *registry, unsigned sets, struct rp_metric_out *out);
/* Escapes backslash and line feed; quotes too if so said. */
void rp_exposition_escape(struct rp_buffer *out, const char *text, bool quotes);
/* The fewest digits that read back equal, as Go's %g writes them: 0.001, 1, 1e+06, +Inf, NaN. */
void rp_exposition_number(double value, char out[RP_NUMBER_TEXT]);

#endif
