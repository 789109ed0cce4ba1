/* exposition_lint.c - promlint's style rules, one function each, with its messages. */
#include "tests/support/exposition_model.h"

#include <string.h>

/* A name in lower case, with a 0 at its end; longer ones are cut. */
struct name {
    char text[256];
};

static struct name lower(struct rp_span span) {
    struct name name = {""};
    size_t len = RP_MIN(span.len, sizeof name.text - 1);
    for (size_t i = 0; i < len; i++)
        name.text[i] =
            (char)(span.at[i] >= 'A' && span.at[i] <= 'Z' ? span.at[i] + 32 : span.at[i]);
    return name;
}

static bool ends_in(const char *text, const char *suffix) {
    size_t len = strlen(text), n = strlen(suffix);
    return len >= n && strcmp(text + len - n, suffix) == 0;
}

/* _word_ inside, or _word at the end. */
static bool has_word(const char *text, const char *word) {
    size_t n = strlen(word);
    for (const char *at = strchr(text, '_'); at; at = strchr(at + 1, '_'))
        if (strncmp(at + 1, word, n) == 0 && (at[1 + n] == '_' || at[1 + n] == '\0'))
            return true;
    return false;
}

static const struct {
    const char *unit, *base;
} units[] = {{"amperes", "amperes"}, {"bytes", "bytes"},        {"celsius", "celsius"},
             {"grams", "grams"},     {"joules", "joules"},      {"kelvin", "kelvin"},
             {"meters", "meters"},   {"metres", "metres"},      {"moles", "moles"},
             {"seconds", "seconds"}, {"volts", "volts"},        {"minutes", "seconds"},
             {"hours", "seconds"},   {"days", "seconds"},       {"weeks", "seconds"},
             {"kelvins", "kelvin"},  {"fahrenheit", "celsius"}, {"rankine", "celsius"},
             {"inches", "meters"},   {"yards", "meters"},       {"miles", "meters"},
             {"bits", "bytes"},      {"calories", "joules"},    {"pounds", "grams"},
             {"ounces", "grams"}};
static const char *const prefixes[] = {"",     "pico", "nano",  "micro", "milli", "centi", "deci",
                                       "deca", "deka", "hecto", "kilo",  "kibi",  "mega",  "mibi",
                                       "giga", "gibi", "tera",  "tebi",  "peta",  "pebi"};

/* The first word that is a unit, and whether it is not a base unit. */
static bool other_unit(const char *name, struct name *out_word, const char **out_base) {
    while (*name) {
        size_t len = strcspn(name, "_");
        for (size_t p = 0; p < RP_ARRAY_COUNT(prefixes); p++) {
            size_t skip = strlen(prefixes[p]);
            if (strncmp(name, prefixes[p], skip) != 0 || skip > len)
                continue;
            for (size_t u = 0; u < RP_ARRAY_COUNT(units); u++)
                if (strlen(units[u].unit) == len - skip &&
                    strncmp(name + skip, units[u].unit, len - skip) == 0) {
                    *out_word = lower((struct rp_span){name, len});
                    *out_base = units[u].base;
                    return strcmp(out_word->text, units[u].base) != 0;
                }
        }
        name += len + (name[len] == '_');
    }
    return false;
}

static bool is_camel(struct rp_span name) {
    for (size_t i = 1; i < name.len; i++)
        if (name.at[i - 1] >= 'a' && name.at[i - 1] <= 'z' && name.at[i] >= 'A' &&
            name.at[i] <= 'Z')
            return true;
    return false;
}

static void lint_suffixes(struct rp_expo *expo, const struct rp_expo_family *family,
                          const char *name) {
    bool distribution = family->type == RP_EXPO_HISTOGRAM || family->type == RP_EXPO_SUMMARY;
    uint32_t line = family->line;
    if (family->type == RP_EXPO_COUNTER && !ends_in(name, "_total"))
        rp_expo_fault(expo, line, "counter metrics should have \"_total\" suffix");
    if (family->type != RP_EXPO_COUNTER && family->type != RP_EXPO_UNKNOWN &&
        ends_in(name, "_total"))
        rp_expo_fault(expo, line, "non-counter metrics should not have \"_total\" suffix");
    if (family->type == RP_EXPO_UNKNOWN)
        return;
    if (family->type != RP_EXPO_HISTOGRAM && ends_in(name, "_bucket"))
        rp_expo_fault(expo, line, "non-histogram metrics should not have \"_bucket\" suffix");
    if (!distribution && ends_in(name, "_count"))
        rp_expo_fault(expo, line,
                      "non-histogram and non-summary metrics should not have \"_count\" suffix");
    if (!distribution && ends_in(name, "_sum"))
        rp_expo_fault(expo, line,
                      "non-histogram and non-summary metrics should not have \"_sum\" suffix");
}

static void lint_name(struct rp_expo *expo, const struct rp_expo_family *family) {
    static const char *const abbreviations[] = {"s",  "ms", "us", "ns", "sec", "b", "kb",
                                                "mb", "gb", "tb", "pb", "m",   "h", "d"};
    static const char *const types[] = {"counter", "gauge", "summary", "histogram",
                                        "gauge_histogram"};
    struct name name = lower(family->name), word;
    const char *base;
    if (!family->has_help)
        rp_expo_fault(expo, family->line, "no help text");
    if (other_unit(name.text, &word, &base))
        rp_expo_fault(expo, family->line, "use base unit \"%s\" instead of \"%.40s\"", base,
                      word.text);
    lint_suffixes(expo, family, name.text);
    for (size_t i = 0; i < RP_ARRAY_COUNT(types); i++)
        if (has_word(name.text, types[i]))
            rp_expo_fault(expo, family->line, "metric name should not include type '%s'", types[i]);
    if (strchr(name.text, ':'))
        rp_expo_fault(expo, family->line, "metric names should not contain ':'");
    if (is_camel(family->name))
        rp_expo_fault(expo, family->line,
                      "metric names should be written in 'snake_case' not "
                      "'camelCase'");
    for (size_t i = 0; i < RP_ARRAY_COUNT(abbreviations); i++)
        if (has_word(name.text, abbreviations[i]))
            rp_expo_fault(expo, family->line, "metric names should not contain abbreviated units");
}

/* Reported once per family. */
static void lint_labels(struct rp_expo *expo, const struct rp_expo_family *family) {
    bool camel = false, le = false, quantile = false;
    for (uint32_t i = 0; i < family->sample_count; i++) {
        const struct rp_expo_sample *sample = &expo->samples[family->sample_first + i];
        for (uint32_t j = 0; j < sample->label_count; j++) {
            struct rp_span label = expo->labels[sample->label_first + j].name;
            camel = camel || is_camel(label);
            le = le || (rp_expo_is(label, "le") && family->type != RP_EXPO_HISTOGRAM);
            quantile =
                quantile || (rp_expo_is(label, "quantile") && family->type != RP_EXPO_SUMMARY);
        }
    }
    if (camel)
        rp_expo_fault(expo, family->line,
                      "label names should be written in 'snake_case' not "
                      "'camelCase'");
    if (le && family->type != RP_EXPO_UNKNOWN)
        rp_expo_fault(expo, family->line, "non-histogram metrics should not have \"le\" label");
    if (quantile && family->type != RP_EXPO_UNKNOWN)
        rp_expo_fault(expo, family->line, "non-summary metrics should not have \"quantile\" label");
}

void rp_exposition_lint(const char *text, size_t len, struct rp_exposition_report *out) {
    struct rp_expo expo;
    rp_expo_parse(&expo, RP_EXPOSITION_PROMETHEUS, text, len, out);
    for (uint32_t i = 0; i < expo.family_count; i++) {
        if (!expo.families[i].sample_count)
            continue; /* promtool ignores such families too */
        lint_name(&expo, &expo.families[i]);
        lint_labels(&expo, &expo.families[i]);
    }
    rp_expo_deinit(&expo);
}
