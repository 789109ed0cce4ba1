/* exposition_parse.c - the two grammars: lines, names, labels, numbers. */
#include "base/memory.h"
#include "base/utf8.h"
#include "tests/support/exposition_model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *const rp_expo_types[RP_EXPO_TYPE_COUNT] = {
    [RP_EXPO_UNKNOWN] = "unknown",   [RP_EXPO_COUNTER] = "counter",
    [RP_EXPO_GAUGE] = "gauge",       [RP_EXPO_HISTOGRAM] = "histogram",
    [RP_EXPO_SUMMARY] = "summary",   [RP_EXPO_GAUGEHISTOGRAM] = "gaugehistogram",
    [RP_EXPO_STATESET] = "stateset", [RP_EXPO_INFO] = "info"};

void rp_expo_fault(struct rp_expo *expo, uint32_t line, const char *format, ...) {
    struct rp_exposition_report *report = expo->report;
    if (report->fault_count++ >= RP_EXPOSITION_FAULTS_MAX)
        return;
    struct rp_exposition_fault *fault = &report->faults[report->fault_count - 1];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fault->text, sizeof fault->text, format, arguments);
    va_end(arguments);
    fault->line = line;
}

void rp_expo_deinit(struct rp_expo *expo) {
    rp_free(expo->families);
    rp_free(expo->samples);
    rp_free(expo->labels);
    rp_free(expo->pool);
}

bool rp_expo_is(struct rp_span span, const char *text) {
    return span.len == strlen(text) && memcmp(span.at, text, span.len) == 0;
}

bool rp_expo_equal(struct rp_span a, struct rp_span b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.at, b.at, a.len) == 0);
}

const char *const *rp_expo_suffixes(enum rp_exposition format, enum rp_expo_type type) {
    static const char *const open[RP_EXPO_TYPE_COUNT][5] = {
        [RP_EXPO_UNKNOWN] = {"", NULL},
        [RP_EXPO_COUNTER] = {"_total", "_created", NULL},
        [RP_EXPO_GAUGE] = {"", NULL},
        [RP_EXPO_HISTOGRAM] = {"_bucket", "_count", "_sum", "_created", NULL},
        [RP_EXPO_SUMMARY] = {"", "_count", "_sum", "_created", NULL},
        [RP_EXPO_GAUGEHISTOGRAM] = {"_bucket", "_gcount", "_gsum", NULL},
        [RP_EXPO_STATESET] = {"", NULL},
        [RP_EXPO_INFO] = {"_info", NULL}};
    static const char *const plain[] = {"", NULL};
    static const char *const histogram[] = {"_bucket", "_count", "_sum", NULL};
    static const char *const summary[] = {"", "_count", "_sum", NULL};
    if (format == RP_EXPOSITION_OPENMETRICS)
        return open[type];
    return type == RP_EXPO_HISTOGRAM ? histogram : type == RP_EXPO_SUMMARY ? summary : plain;
}

struct rp_span rp_expo_label_of(const struct rp_expo *expo, const struct rp_expo_sample *sample,
                                const char *name) {
    for (uint32_t i = 0; i < sample->label_count; i++)
        if (rp_expo_is(expo->labels[sample->label_first + i].name, name))
            return expo->labels[sample->label_first + i].value;
    return (struct rp_span){NULL, 0};
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool rp_expo_number(struct rp_span text, bool special, double *out) {
    char copy[400]; /* any number of leading zeros */
    const char *at = copy;
    size_t whole = 0, part = 0;
    if (text.len == 0 || text.len >= sizeof copy)
        return false;
    memcpy(copy, text.at, text.len);
    copy[text.len] = '\0';
    if (strlen(copy) != text.len)
        return false;
    *out = 0;
    bool sign = *at == '+' || *at == '-';
    at += sign;
    if (special && (strcasecmp(at, "inf") == 0 || strcasecmp(at, "infinity") == 0)) {
        *out = copy[0] == '-' ? -INFINITY : INFINITY;
        return true;
    }
    if (special && !sign && strcasecmp(at, "nan") == 0) {
        *out = NAN;
        return true;
    }
    while (is_digit(at[whole]))
        whole++;
    at += whole;
    if (*at == '.')
        for (at++; is_digit(*at); at++)
            part++;
    if (whole + part == 0)
        return false;
    if (*at == 'e' || *at == 'E') {
        at += 1 + (at[1] == '+' || at[1] == '-');
        if (!is_digit(*at))
            return false;
        while (is_digit(*at))
            at++;
    }
    *out = strtod(copy, NULL);
    return *at == '\0';
}

/* --- Growing arrays -------------------------------------------------------------------------- */

static void *grow(void *array, uint32_t count, uint32_t *room, size_t size) {
    if (count < *room)
        return array;
    *room = *room ? *room * 2 : 64;
    void *more = rp_calloc(*room, size);
    RP_ASSERT(more);
    if (count)
        memcpy(more, array, count * size);
    rp_free(array);
    return more;
}

static struct rp_expo_family *begin_family(struct rp_expo *expo, struct rp_span name,
                                           uint32_t line) {
    expo->families =
        grow(expo->families, expo->family_count, &expo->family_room, sizeof *expo->families);
    struct rp_expo_family *family = &expo->families[expo->family_count++];
    *family =
        (struct rp_expo_family){.line = line, .name = name, .sample_first = expo->sample_count};
    return family;
}

/* --- A line ---------------------------------------------------------------------------------- */

struct line {
    const char *at, *end;
    uint32_t number;
    bool loose; /* Prometheus: blanks and tabs where OpenMetrics has one blank or none */
};

static void skip(struct line *line) {
    while (line->loose && line->at < line->end && (*line->at == ' ' || *line->at == '\t'))
        line->at++;
}

static bool take(struct line *line, char c) {
    if (line->at == line->end || *line->at != c)
        return false;
    line->at++;
    return true;
}

/* Between two parts of a line. */
static bool take_space(struct line *line) {
    if (!line->loose)
        return take(line, ' ');
    const char *from = line->at;
    skip(line);
    return line->at > from;
}

static struct rp_span take_until(struct line *line, const char *stops) {
    struct rp_span span = {line->at, 0};
    while (line->at < line->end && !(*line->at && strchr(stops, *line->at)))
        line->at++;
    span.len = (size_t)(line->at - span.at);
    return span;
}

static bool take_name(struct line *line, bool colons, struct rp_span *out) {
    const char *from = line->at;
    while (line->at < line->end && (is_name_start(*line->at) || (colons && *line->at == ':') ||
                                    (line->at > from && is_digit(*line->at))))
        line->at++;
    *out = (struct rp_span){from, (size_t)(line->at - from)};
    return out->len > 0;
}

/* "...", unescaped into the pool. A backslash before any character other than n, " and \ is
 * literal in OpenMetrics (BS normal-char) and an error in Prometheus' text. */
static bool take_quoted(struct rp_expo *expo, struct line *line, struct rp_span *out) {
    if (!take(line, '"'))
        return false;
    char *to = expo->pool + expo->pool_used, *from = to;
    while (line->at < line->end && *line->at != '"') {
        char c = *line->at++;
        if (c == '\\') {
            if (line->at == line->end)
                return false;
            c = *line->at++;
            if (c == 'n') {
                c = '\n';
            } else if (c != '"' && c != '\\') {
                if (line->loose)
                    return false;
                *to++ = '\\';
            }
        }
        *to++ = c;
    }
    *out = (struct rp_span){from, (size_t)(to - from)};
    expo->pool_used += out->len;
    return take(line, '"');
}

/* {name="value",...} after its brace; only Prometheus' text allows a trailing comma. */
static bool take_labels(struct rp_expo *expo, struct line *line, uint32_t *out_first,
                        uint32_t *out_count) {
    *out_first = expo->label_count;
    skip(line);
    while (!take(line, '}')) {
        struct rp_expo_label label;
        if (expo->label_count > *out_first) {
            if (!take(line, ','))
                return false;
            skip(line);
            if (line->loose && take(line, '}'))
                break;
        }
        if (!take_name(line, false, &label.name))
            return false;
        skip(line);
        if (!take(line, '='))
            return false;
        skip(line);
        if (!take_quoted(expo, line, &label.value))
            return false;
        skip(line);
        expo->labels =
            grow(expo->labels, expo->label_count, &expo->label_room, sizeof *expo->labels);
        expo->labels[expo->label_count++] = label;
    }
    *out_count = expo->label_count - *out_first;
    for (uint32_t i = 0; i < *out_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (rp_expo_equal(expo->labels[*out_first + i].name, expo->labels[*out_first + j].name))
                return false;
    return true;
}

/* SP # SP {labels} SP number [SP timestamp] */
static const char *take_exemplar(struct rp_expo *expo, struct line *line,
                                 struct rp_expo_sample *sample) {
    sample->has_exemplar = true;
    if (!take(line, '#') || !take(line, ' ') || !take(line, '{') ||
        !take_labels(expo, line, &sample->exemplar_first, &sample->exemplar_count))
        return "bad labels of an exemplar";
    if (!take(line, ' ') || !rp_expo_number(take_until(line, " "), true, &sample->exemplar_value))
        return "bad value of an exemplar";
    if (line->at == line->end)
        return NULL;
    sample->exemplar_has_time = true;
    if (!take(line, ' ') || !rp_expo_number(take_until(line, " "), false, &sample->exemplar_time))
        return "bad timestamp of an exemplar";
    return line->at == line->end ? NULL : "something behind an exemplar";
}

static bool take_time(struct line *line, double *out) {
    struct rp_span text = take_until(line, line->loose ? " \t" : " ");
    if (!line->loose)
        return rp_expo_number(text, false, out);
    /* Prometheus: ms in an int64. */
    size_t sign = text.len && (*text.at == '-' || *text.at == '+');
    for (size_t i = sign; i < text.len; i++)
        if (!is_digit(text.at[i]))
            return false;
    return text.len > sign && text.len <= 19 + sign && rp_expo_number(text, false, out);
}

/* The error message, or NULL. */
static const char *take_sample(struct rp_expo *expo, struct line *line,
                               struct rp_expo_sample *sample) {
    *sample = (struct rp_expo_sample){.line = line->number};
    if (!take_name(line, true, &sample->name))
        return "no name of a metric";
    skip(line);
    bool labels = take(line, '{');
    if (labels && !take_labels(expo, line, &sample->label_first, &sample->label_count))
        return "bad labels";
    if (!take_space(line) &&
        !(line->loose && (labels || line->at[-1] == ' ' || line->at[-1] == '\t')))
        return "no blank before the value";
    if (!rp_expo_number(take_until(line, line->loose ? " \t" : " "), true, &sample->value))
        return "bad value";
    skip(line);
    if (line->at == line->end)
        return NULL;
    if (!line->loose && !take(line, ' '))
        return "something behind the value";
    if (line->loose || line->at == line->end || *line->at != '#') {
        sample->has_time = true;
        if (!take_time(line, &sample->time))
            return "bad timestamp";
        skip(line);
        if (line->at == line->end)
            return NULL;
        if (line->loose || !take(line, ' '))
            return "something behind the timestamp";
    }
    return take_exemplar(expo, line, sample);
}

static bool starts_with(struct rp_span span, struct rp_span prefix) {
    return span.len >= prefix.len && memcmp(span.at, prefix.at, prefix.len) == 0;
}

static bool belongs(const struct rp_expo *expo, const struct rp_expo_family *family,
                    struct rp_span name, struct rp_span *out_suffix) {
    if (!starts_with(name, family->name))
        return false;
    *out_suffix = (struct rp_span){name.at + family->name.len, name.len - family->name.len};
    for (const char *const *s = rp_expo_suffixes(expo->format, family->type); *s; s++)
        if (rp_expo_is(*out_suffix, *s))
            return true;
    return false;
}

static void read_sample(struct rp_expo *expo, struct line *line) {
    struct rp_expo_sample sample;
    const char *wrong = take_sample(expo, line, &sample);
    if (wrong) {
        rp_expo_fault(expo, line->number, "%s", wrong);
        return;
    }
    struct rp_expo_family *family =
        expo->family_count ? &expo->families[expo->family_count - 1] : NULL;
    if (!family || !belongs(expo, family, sample.name, &sample.suffix)) {
        family = begin_family(expo, sample.name, line->number);
        sample.suffix = (struct rp_span){sample.name.at + sample.name.len, 0};
    }
    sample.family = expo->family_count - 1;
    family->sample_count++;
    expo->samples =
        grow(expo->samples, expo->sample_count, &expo->sample_room, sizeof *expo->samples);
    expo->samples[expo->sample_count++] = sample;
    expo->report->samples++;
    expo->report->exemplars += sample.has_exemplar;
}

static bool read_type(struct rp_expo *expo, struct rp_span text, enum rp_expo_type *out) {
    bool open = expo->format == RP_EXPOSITION_OPENMETRICS;
    int count = open ? RP_EXPO_TYPE_COUNT : RP_EXPO_GAUGEHISTOGRAM;
    for (int i = 0; i < count; i++) {
        *out = (enum rp_expo_type)i;
        if (rp_expo_is(text, i == RP_EXPO_UNKNOWN && !open ? "untyped" : rp_expo_types[i]))
            return true;
    }
    return false;
}

/* Prometheus' HELP has only the escapes \\ and \n. OpenMetrics accepts any text: quotation marks
 * should be escaped, but do not end it. */
static bool is_help(const struct line *line) {
    for (const char *c = line->at; line->loose && c < line->end; c++)
        if (*c == '\\' && (++c == line->end || (*c != '\\' && *c != 'n')))
            return false;
    return true;
}

/* The rest of a line after "# TYPE ", "# UNIT " or "# HELP ". */
static void read_descriptor(struct rp_expo *expo, struct line *line, struct rp_span what) {
    struct rp_span name;
    struct rp_expo_family *family =
        expo->family_count ? &expo->families[expo->family_count - 1] : NULL;
    if (!take_name(line, true, &name)) {
        rp_expo_fault(expo, line->number, "no name of a metric");
        return;
    }
    bool spaced = take_space(line);
    /* Prometheus: a HELP may be empty. */
    if (!spaced && !(line->loose && line->at == line->end && rp_expo_is(what, "HELP"))) {
        rp_expo_fault(expo, line->number, "no blank behind the name");
        return;
    }
    if (!family || !rp_expo_equal(family->name, name))
        family = begin_family(expo, name, line->number);
    else if (family->sample_count)
        rp_expo_fault(expo, line->number, "%.*s behind the family's samples", (int)what.len,
                      what.at);
    struct rp_span rest = {line->at, (size_t)(line->end - line->at)};
    bool *seen = rp_expo_is(what, "TYPE")   ? &family->has_type
                 : rp_expo_is(what, "HELP") ? &family->has_help
                                            : &family->has_unit;
    if (*seen)
        rp_expo_fault(expo, line->number, "a second %.*s", (int)what.len, what.at);
    *seen = true;
    if (rp_expo_is(what, "UNIT")) {
        family->unit = rest;
        for (size_t i = 0; i < rest.len; i++)
            if (!is_name_start(rest.at[i]) && !is_digit(rest.at[i]) && rest.at[i] != ':')
                rp_expo_fault(expo, line->number, "bad unit");
    } else if (rp_expo_is(what, "TYPE")) {
        rest = take_until(line, line->loose ? " \t" : "");
        skip(line);
        if (!read_type(expo, rest, &family->type) || line->at != line->end)
            rp_expo_fault(expo, line->number, "no type: %.*s", (int)RP_MIN(rest.len, 40u), rest.at);
    } else if (!is_help(line)) {
        rp_expo_fault(expo, line->number, "bad escape in HELP");
    }
}

static void read_line(struct rp_expo *expo, struct line *line) {
    skip(line);
    if (line->at == line->end) {
        if (!line->loose)
            rp_expo_fault(expo, line->number, "an empty line");
        return;
    }
    if (*line->at != '#') {
        read_sample(expo, line);
        return;
    }
    line->at++;
    bool spaced = take_space(line);
    struct rp_span what = take_until(line, line->loose ? " \t" : " ");
    bool known = rp_expo_is(what, "TYPE") || rp_expo_is(what, "HELP") ||
                 (!line->loose && rp_expo_is(what, "UNIT"));
    if (line->loose && !known)
        return; /* a comment */
    if (!known || (!spaced && !line->loose) || !take_space(line))
        rp_expo_fault(expo, line->number, "neither TYPE, UNIT, HELP nor EOF");
    else
        read_descriptor(expo, line, what);
}

void rp_expo_parse(struct rp_expo *expo, enum rp_exposition format, const char *text, size_t len,
                   struct rp_exposition_report *report) {
    static const char eof[] = "# EOF";
    bool open = format == RP_EXPOSITION_OPENMETRICS, ended = false;
    *expo = (struct rp_expo){.format = format, .report = report};
    *report = (struct rp_exposition_report){.fault_count = 0};
    expo->pool = rp_calloc(len + 1, 1);
    RP_ASSERT(expo->pool);
    if (!rp_utf8_valid(text, len))
        rp_expo_fault(expo, 0, "not UTF-8");
    uint32_t number = 0;
    for (size_t at = 0; at < len;) {
        const char *lf = memchr(text + at, '\n', len - at);
        size_t end = lf ? (size_t)(lf - text) : len;
        struct line line = {text + at, text + end, ++number, !open};
        if (ended)
            rp_expo_fault(expo, number, "something behind EOF");
        else if (open && end - at == strlen(eof) && memcmp(text + at, eof, strlen(eof)) == 0)
            ended = true;
        else
            read_line(expo, &line);
        if (!lf && !ended)
            rp_expo_fault(expo, number, "the last line does not end");
        at = end + 1;
    }
    if (open && !ended)
        rp_expo_fault(expo, 0, "no # EOF");
    report->families = expo->family_count;
}
