/* exposition_model.h - a metrics text as families and samples, read by exposition_parse.c and
 * checked by exposition_rules.c and exposition_lint.c. Spans point into the text or into the
 * parser's pool. */
#ifndef RP_TESTS_EXPOSITION_MODEL_H
#define RP_TESTS_EXPOSITION_MODEL_H

#include "tests/support/exposition_check.h"

struct rp_span {
    const char *at;
    size_t len;
};

enum rp_expo_type {
    RP_EXPO_UNKNOWN, /* "unknown", Prometheus: "untyped" */
    RP_EXPO_COUNTER,
    RP_EXPO_GAUGE,
    RP_EXPO_HISTOGRAM,
    RP_EXPO_SUMMARY,
    RP_EXPO_GAUGEHISTOGRAM, /* this one and below: OpenMetrics only */
    RP_EXPO_STATESET,
    RP_EXPO_INFO,
    RP_EXPO_TYPE_COUNT
};
extern const char *const rp_expo_types[RP_EXPO_TYPE_COUNT]; /* OpenMetrics' names */

struct rp_expo_label {
    struct rp_span name, value; /* value: unescaped */
};

struct rp_expo_sample {
    uint32_t line, family;
    struct rp_span name, suffix; /* suffix: after the family's name */
    uint32_t label_first, label_count;
    double value, time;
    bool has_time, has_exemplar, exemplar_has_time;
    uint32_t exemplar_first, exemplar_count;
    double exemplar_value, exemplar_time;
};

struct rp_expo_family {
    uint32_t line;
    struct rp_span name, unit;
    enum rp_expo_type type;
    bool has_type, has_help, has_unit;
    uint32_t sample_first, sample_count;
};

struct rp_expo {
    enum rp_exposition format;
    struct rp_exposition_report *report;
    struct rp_expo_family *families;
    struct rp_expo_sample *samples;
    struct rp_expo_label *labels;
    uint32_t family_count, family_room, sample_count, sample_room, label_count, label_room;
    char *pool; /* unescaped values: at most as many bytes as the text */
    size_t pool_used;
};

/* Fills the model and reports grammar errors. Lines with errors are skipped. */
void rp_expo_parse(struct rp_expo *expo, enum rp_exposition format, const char *text, size_t len,
                   struct rp_exposition_report *report);
void rp_expo_deinit(struct rp_expo *expo);
void rp_expo_fault(struct rp_expo *expo, uint32_t line, const char *format, ...) RP_PRINTF(3, 4);

/* [sign] digits [. digits] [e [sign] digits], or with special: inf, infinity (signed or not), nan,
 * in any case. */
bool rp_expo_number(struct rp_span text, bool special, double *out);
bool rp_expo_is(struct rp_span span, const char *text);
bool rp_expo_equal(struct rp_span a, struct rp_span b);
/* Suffixes that samples of that type may have after the family's name, ended by NULL. */
const char *const *rp_expo_suffixes(enum rp_exposition format, enum rp_expo_type type);
/* The label's value; at is NULL if there is no such label. */
struct rp_span rp_expo_label_of(const struct rp_expo *expo, const struct rp_expo_sample *sample,
                                const char *name);
/* exposition_rules.c */
void rp_expo_judge(struct rp_expo *expo);

#endif
