/* exposition_rules.c - rules about samples: grouping, order and values. */
#include "base/utf8.h"
#include "tests/support/exposition_model.h"

#include <math.h>
#include <string.h>

enum { EXEMPLAR_CHARACTERS_MAX = 128 };

static bool is_open(const struct rp_expo *expo) {
    return expo->format == RP_EXPOSITION_OPENMETRICS;
}

/* The label that distinguishes samples of one metric; "" when there is none. In a state set it has
 * the family's name. */
static struct rp_span part_label(const struct rp_expo_family *family) {
    switch (family->type) {
    case RP_EXPO_HISTOGRAM:
    case RP_EXPO_GAUGEHISTOGRAM:
        return (struct rp_span){"le", 2};
    case RP_EXPO_SUMMARY:
        return (struct rp_span){"quantile", 8};
    case RP_EXPO_STATESET:
        return family->name;
    default:
        return (struct rp_span){"", 0};
    }
}

static bool is_part(const struct rp_expo_family *family, const struct rp_expo_label *label) {
    struct rp_span part = part_label(family);
    return part.len && rp_expo_equal(part, label->name);
}

/* True if each label of a is also in b; parts: including part_label. */
static bool covers(const struct rp_expo *expo, const struct rp_expo_family *family,
                   const struct rp_expo_sample *a, const struct rp_expo_sample *b, bool parts) {
    for (uint32_t i = 0; i < a->label_count; i++) {
        const struct rp_expo_label *label = &expo->labels[a->label_first + i];
        bool found = !parts && is_part(family, label);
        for (uint32_t j = 0; j < b->label_count && !found; j++) {
            const struct rp_expo_label *other = &expo->labels[b->label_first + j];
            found = rp_expo_equal(label->name, other->name) &&
                    rp_expo_equal(label->value, other->value);
        }
        if (!found)
            return false;
    }
    return true;
}

static bool same_labels(const struct rp_expo *expo, const struct rp_expo_family *family,
                        const struct rp_expo_sample *a, const struct rp_expo_sample *b,
                        bool parts) {
    return covers(expo, family, a, b, parts) && covers(expo, family, b, a, parts);
}

/* --- Families -------------------------------------------------------------------------------- */

static bool may_name(const struct rp_expo *expo, const struct rp_expo_family *family,
                     struct rp_span base, const char *suffix) {
    size_t len = base.len + strlen(suffix);
    for (const char *const *s = rp_expo_suffixes(expo->format, family->type);; s++) {
        const char *own = *s ? *s : ""; /* the family's own name is reserved too */
        size_t own_len = family->name.len + strlen(own);
        if (own_len == len) {
            bool equal = true;
            for (size_t i = 0; i < len && equal; i++) {
                char a = i < base.len ? base.at[i] : suffix[i - base.len];
                char b = i < family->name.len ? family->name.at[i] : own[i - family->name.len];
                equal = a == b;
            }
            if (equal)
                return true;
        }
        if (!*s)
            return false;
    }
}

static void judge_names(struct rp_expo *expo, uint32_t index) {
    const struct rp_expo_family *family = &expo->families[index];
    for (uint32_t i = 0; i < index; i++) {
        const struct rp_expo_family *other = &expo->families[i];
        bool clash = rp_expo_equal(family->name, other->name);
        const char *const *s = rp_expo_suffixes(expo->format, family->type);
        for (; is_open(expo) && !clash; s++) {
            clash = may_name(expo, other, family->name, *s ? *s : "");
            if (!*s)
                break;
        }
        if (clash)
            rp_expo_fault(expo, family->line,
                          "%.*s clashes with, or is apart from, %.*s of line %u",
                          (int)RP_MIN(family->name.len, 40u), family->name.at,
                          (int)RP_MIN(other->name.len, 40u), other->name.at, other->line);
    }
}

static void judge_unit(struct rp_expo *expo, const struct rp_expo_family *family) {
    struct rp_span name = family->name, unit = family->unit;
    if (!unit.len)
        return;
    if (family->type == RP_EXPO_INFO || family->type == RP_EXPO_STATESET)
        rp_expo_fault(expo, family->line, "this type has no unit");
    if (name.len <= unit.len + 1 || name.at[name.len - unit.len - 1] != '_' ||
        memcmp(name.at + name.len - unit.len, unit.at, unit.len) != 0)
        rp_expo_fault(expo, family->line, "the name does not end in its unit");
}

/* --- Samples --------------------------------------------------------------------------------- */

/* The value of le or quantile. */
static bool threshold(const struct rp_expo *expo, const struct rp_expo_sample *sample,
                      const char *label, double *out) {
    struct rp_span text = rp_expo_label_of(expo, sample, label);
    if (!text.at)
        return false;
    if (!is_open(expo) || strcmp(label, "le") != 0)
        return rp_expo_number(text, true, out) && !isnan(*out);
    /* OpenMetrics: "Exposers MUST produce output for positive infinity as +Inf". */
    *out = INFINITY;
    return rp_expo_is(text, "+Inf") || rp_expo_number(text, false, out);
}

static bool is_count(double value) { return value >= 0 && (isinf(value) || floor(value) == value); }

/* Allowed values by type and suffix, in OpenMetrics; Prometheus' text has no such rules. */
static const char *judge_value(const struct rp_expo_family *family,
                               const struct rp_expo_sample *sample) {
    double value = sample->value;
    bool counts = rp_expo_is(sample->suffix, "_count") || rp_expo_is(sample->suffix, "_gcount") ||
                  rp_expo_is(sample->suffix, "_bucket");
    if (rp_expo_is(sample->suffix, "_created"))
        return isfinite(value) ? NULL : "no time of creation";
    switch (family->type) {
    case RP_EXPO_COUNTER:
        return value >= 0 ? NULL : "a counter that is negative or no number";
    case RP_EXPO_HISTOGRAM:
        if (counts)
            return is_count(value) ? NULL : "no count";
        return value >= 0 ? NULL : "a sum that is negative or no number";
    case RP_EXPO_GAUGEHISTOGRAM:
        if (counts)
            return is_count(value) ? NULL : "no count";
        return isnan(value) ? "a sum that is no number" : NULL;
    case RP_EXPO_SUMMARY:
        if (counts)
            return is_count(value) ? NULL : "no count";
        if (sample->suffix.len)
            return value >= 0 ? NULL : "a sum that is negative or no number";
        return value < 0 ? "a quantile that is negative" : NULL;
    case RP_EXPO_INFO:
        return value == 1 ? NULL : "an info is 1";
    case RP_EXPO_STATESET:
        return value == 0 || value == 1 ? NULL : "a state is 0 or 1";
    default:
        return NULL;
    }
}

static const char *judge_exemplar(const struct rp_expo *expo, const struct rp_expo_family *family,
                                  const struct rp_expo_sample *sample) {
    bool bucket = rp_expo_is(sample->suffix, "_bucket"),
         total = rp_expo_is(sample->suffix, "_total");
    double le;
    size_t characters = 0;
    if (!(total && family->type == RP_EXPO_COUNTER) &&
        !(bucket && (family->type == RP_EXPO_HISTOGRAM || family->type == RP_EXPO_GAUGEHISTOGRAM)))
        return "an exemplar where none may be";
    for (uint32_t i = 0; i < sample->exemplar_count; i++) {
        const struct rp_expo_label *label = &expo->labels[sample->exemplar_first + i];
        characters += label->name.len;
        for (size_t j = 0; j < label->value.len; j++)
            characters += ((unsigned char)label->value.at[j] & 0xC0) != 0x80;
    }
    if (characters > EXEMPLAR_CHARACTERS_MAX)
        return "the labels of an exemplar are too long";
    /* "the value of the exemplar MUST be within this range": less than or equal to the
     * threshold. */
    if (bucket && threshold(expo, sample, "le", &le) && !(sample->exemplar_value <= le))
        return "an exemplar beyond its bucket";
    return NULL;
}

static const char *judge_labels(const struct rp_expo *expo, const struct rp_expo_family *family,
                                const struct rp_expo_sample *sample) {
    double value;
    if (rp_expo_is(sample->suffix, "_bucket") && !threshold(expo, sample, "le", &value))
        return "a bucket without a threshold";
    if (family->type == RP_EXPO_SUMMARY && !sample->suffix.len &&
        (!threshold(expo, sample, "quantile", &value) || !(value >= 0 && value <= 1)))
        return "a quantile that is none";
    if (family->type != RP_EXPO_STATESET)
        return NULL;
    for (uint32_t i = 0; i < sample->label_count; i++)
        if (is_part(family, &expo->labels[sample->label_first + i]))
            return NULL;
    return "a state without its label";
}

static void judge_sample(struct rp_expo *expo, const struct rp_expo_family *family,
                         const struct rp_expo_sample *sample) {
    const char *wrong = judge_labels(expo, family, sample);
    if (!wrong && is_open(expo))
        wrong = judge_value(family, sample);
    if (!wrong && sample->has_exemplar)
        wrong = judge_exemplar(expo, family, sample);
    if (wrong)
        rp_expo_fault(expo, sample->line, "%s", wrong);
}

/* --- Metrics: the samples of a family with the same labels ----------------------------------- */

/* One histogram at one timestamp: samples [first, end). */
static void judge_histogram(struct rp_expo *expo, const struct rp_expo_family *family,
                            uint32_t first, uint32_t end) {
    double last_le = -INFINITY, last_value = 0, infinite = -1, count = -1, sum = NAN, le;
    bool negative = false, has_sum = false, any = false;
    uint32_t line = expo->samples[first].line;
    for (uint32_t i = first; i < end; i++) {
        const struct rp_expo_sample *sample = &expo->samples[i];
        if (rp_expo_is(sample->suffix, "_bucket") && threshold(expo, sample, "le", &le)) {
            if (any && le <= last_le)
                rp_expo_fault(expo, sample->line, "buckets are not in order");
            if (sample->value < last_value)
                rp_expo_fault(expo, sample->line, "a bucket has less than the one before");
            negative = negative || le < 0;
            infinite = isinf(le) && le > 0 ? sample->value : infinite;
            last_le = le;
            last_value = sample->value;
            any = true;
        } else if (rp_expo_is(sample->suffix, "_count") || rp_expo_is(sample->suffix, "_gcount")) {
            count = sample->value;
        } else if (rp_expo_is(sample->suffix, "_sum") || rp_expo_is(sample->suffix, "_gsum")) {
            sum = sample->value;
            has_sum = true;
        }
    }
    if (infinite < 0)
        rp_expo_fault(expo, line, "no bucket for +Inf");
    if (count >= 0 && infinite >= 0 && count != infinite)
        rp_expo_fault(expo, line, "the count is not what the +Inf bucket has");
    if ((count >= 0) != has_sum || (!is_open(expo) && !has_sum))
        rp_expo_fault(expo, line, "sum and count belong together");
    if (is_open(expo) && family->type == RP_EXPO_HISTOGRAM && negative && has_sum)
        rp_expo_fault(expo, line, "a sum beside buckets below 0");
    if (is_open(expo) && family->type == RP_EXPO_GAUGEHISTOGRAM && sum < 0 && !negative)
        rp_expo_fault(expo, line, "a negative sum without buckets below 0");
}

static bool same_time(const struct rp_expo_sample *a, const struct rp_expo_sample *b) {
    return a->has_time == b->has_time && (!a->has_time || a->time == b->time);
}

/* Samples [first, end) have the same labels except for part_label. */
static void judge_metric(struct rp_expo *expo, const struct rp_expo_family *family, uint32_t first,
                         uint32_t end) {
    for (uint32_t i = first; i < end; i++) {
        const struct rp_expo_sample *sample = &expo->samples[i];
        for (uint32_t j = first; j < i; j++)
            if ((!sample->has_time || !is_open(expo)) &&
                rp_expo_equal(sample->name, expo->samples[j].name) &&
                same_labels(expo, family, sample, &expo->samples[j], true)) {
                rp_expo_fault(expo, sample->line, "the same series as line %u",
                              expo->samples[j].line);
                break;
            }
        if (i == first || !is_open(expo))
            continue;
        if (sample->has_time != expo->samples[i - 1].has_time)
            rp_expo_fault(expo, sample->line, "timestamps on some samples only");
        else if (sample->has_time && sample->time < expo->samples[i - 1].time)
            rp_expo_fault(expo, sample->line, "timestamps go back");
    }
    if (family->type != RP_EXPO_HISTOGRAM && family->type != RP_EXPO_GAUGEHISTOGRAM)
        return;
    for (uint32_t i = first, point = first; i < end; i++)
        if (i + 1 == end || !same_time(&expo->samples[i], &expo->samples[i + 1])) {
            judge_histogram(expo, family, point, i + 1);
            point = i + 1;
        }
}

static void judge_family(struct rp_expo *expo, const struct rp_expo_family *family) {
    uint32_t first = family->sample_first, end = first + family->sample_count;
    for (uint32_t i = first; i < end; i++)
        judge_sample(expo, family, &expo->samples[i]);
    for (uint32_t i = first; i < end;) {
        uint32_t next = i + 1;
        while (next < end &&
               same_labels(expo, family, &expo->samples[i], &expo->samples[next], false))
            next++;
        for (uint32_t j = first; j < i; j++)
            if (same_labels(expo, family, &expo->samples[i], &expo->samples[j], false)) {
                rp_expo_fault(expo, expo->samples[i].line, "apart from the same metric's line %u",
                              expo->samples[j].line);
                break;
            }
        judge_metric(expo, family, i, next);
        i = next;
    }
}

void rp_expo_judge(struct rp_expo *expo) {
    for (uint32_t i = 0; i < expo->family_count; i++) {
        judge_names(expo, i);
        judge_unit(expo, &expo->families[i]);
        judge_family(expo, &expo->families[i]);
    }
}

void rp_exposition_check(enum rp_exposition format, const char *text, size_t len,
                         struct rp_exposition_report *out) {
    struct rp_expo expo;
    rp_expo_parse(&expo, format, text, len, out);
    rp_expo_judge(&expo);
    rp_expo_deinit(&expo);
}
