#include "server/cli/flags.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_LEN 64
#define FLAGS_MAX    128

int rp_fail(enum rp_exit code, const struct rp_error *err) {
    fprintf(stderr, "error: %s\n", err->text[0] ? err->text : rp_status_text(err->status));
    if (err->hint[0])
        fprintf(stderr, "hint: %s\n", err->hint);
    return code;
}

/* -- values ----------------------------------------------------------------------------------- */

static int bad_value(struct rp_error *err, const struct rp_flag *flag, const char *text,
                     const char *wanted) {
    return rp_error_set(err, RP_STATUS_INVALID, "--%s: \"%s\" is not %s", flag->name, text, wanted);
}

static int out_of_range(struct rp_error *err, const struct rp_flag *flag, const char *text) {
    return rp_error_set(err, RP_STATUS_INVALID, "--%s: %s is not between %.15g and %.15g",
                        flag->name, text, flag->min, flag->max);
}

/* Parses a decimal number; false when invalid. Sizes may have a suffix K, M, G or T in either case;
 * counts one as vLLM reads them: k, m, g are powers of 1000, K, M, G of 1024. */
static bool parse_number(const char *text, enum rp_flag_type type, double *out) {
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || errno == ERANGE || !isfinite(value) || isspace((unsigned char)*text))
        return false;
    if (type == RP_FLAG_UINT && *end) {
        const char *suffixes = "kmgKMG", *at = strchr(suffixes, *end);
        if (!at)
            return false;
        value *= at < suffixes + 3 ? pow(1000.0, (double)(at - suffixes) + 1.0)
                                   : pow(1024.0, (double)(at - suffixes) - 2.0);
        value = round(value * 1e6) / 1e6; /* 25.6k is whole */
        end++;
    } else if (type == RP_FLAG_SIZE && *end) {
        const char *suffixes = "KMGT", *at = strchr(suffixes, toupper((unsigned char)*end));
        if (!at)
            return false;
        value *= pow(1024.0, (double)(at - suffixes) + 1.0);
        end++;
        if (*end == 'i' || *end == 'I')
            end++;
        if (*end == 'B' || *end == 'b')
            end++;
    }
    *out = value;
    return *end == '\0';
}

static int set_choice(const struct rp_flag *flag, uint32_t *out, const char *text,
                      struct rp_error *err) {
    uint32_t index = 0;
    size_t len = strlen(text);
    for (const char *at = flag->value_name; *at; index++) {
        size_t choice_len = strcspn(at, "|");
        if (choice_len == len && strncmp(at, text, len) == 0) {
            *out = index;
            return RP_OK;
        }
        at += choice_len + (at[choice_len] == '|');
    }
    char wanted[160];
    snprintf(wanted, sizeof wanted, "one of %s", flag->value_name);
    return bad_value(err, flag, text, wanted);
}

static int set_switch(const struct rp_flag *flag, bool *out, const char *text,
                      struct rp_error *err) {
    static const char *const yes[] = {"1", "true", "yes", "on"}, *const no[] = {"0", "false", "no",
                                                                                "off", ""};
    for (size_t i = 0; i < RP_ARRAY_COUNT(yes); i++)
        if (strcmp(text, yes[i]) == 0) {
            *out = true;
            return RP_OK;
        }
    for (size_t i = 0; i < RP_ARRAY_COUNT(no); i++)
        if (strcmp(text, no[i]) == 0) {
            *out = false;
            return RP_OK;
        }
    return bad_value(err, flag, text, "true or false");
}

static int set_value(const struct rp_flag *flag, void *options, const char *text,
                     struct rp_error *err) {
    void *at = (unsigned char *)options + flag->offset;
    double number;
    switch (flag->type) {
    case RP_FLAG_SWITCH:
        return set_switch(flag, at, text, err);
    case RP_FLAG_TEXT:
        *(const char **)at = text;
        return RP_OK;
    case RP_FLAG_CHOICE:
        return set_choice(flag, at, text, err);
    case RP_FLAG_UINT:
    case RP_FLAG_SIZE:
        if (!parse_number(text, flag->type, &number) || number != floor(number))
            return bad_value(err, flag, text, "a whole number");
        if (number < flag->min || number > flag->max)
            return out_of_range(err, flag, text);
        if (flag->type == RP_FLAG_UINT)
            *(uint32_t *)at = (uint32_t)number;
        else
            *(uint64_t *)at = (uint64_t)number;
        return RP_OK;
    case RP_FLAG_REAL:
        if (!parse_number(text, RP_FLAG_REAL, &number))
            return bad_value(err, flag, text, "a number");
        if (number < flag->min || number > flag->max)
            return out_of_range(err, flag, text);
        *(double *)at = number;
        return RP_OK;
    }
    return RP_STATUS_INVALID;
}

/* -- the table -------------------------------------------------------------------------------- */

static void environment_name(const char *name, char out[NAME_MAX_LEN + 16]) {
    size_t len = (size_t)snprintf(out, NAME_MAX_LEN + 16, "REPRISE_%s", name);
    for (size_t i = 0; i < len; i++)
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

static int set_defaults(const struct rp_command_spec *spec, void *options, struct rp_error *err) {
    int status = RP_OK;
    for (uint32_t i = 0; i < spec->flag_count && status == RP_OK; i++)
        if (spec->flags[i].default_value)
            status = set_value(&spec->flags[i], options, spec->flags[i].default_value, err);
    return status;
}

/* Reads the environment variables of flags that are not on the command line; those of other flags
 * are not read. */
static int set_from_environment(const struct rp_command_spec *spec, const bool *given,
                                void *options, struct rp_error *err) {
    for (uint32_t i = 0; i < spec->flag_count; i++) {
        char name[NAME_MAX_LEN + 16];
        environment_name(spec->flags[i].name, name);
        const char *value = given[i] ? NULL : getenv(name);
        int status = value ? set_value(&spec->flags[i], options, value, err) : RP_OK;
        if (status != RP_OK) {
            rp_error_hint(err, "the value is from the environment variable %s", name);
            return status;
        }
    }
    return RP_OK;
}

static const struct rp_flag *find_flag(const struct rp_command_spec *spec, const char *name,
                                       size_t len) {
    for (uint32_t i = 0; i < spec->flag_count; i++)
        if (strlen(spec->flags[i].name) == len && strncmp(spec->flags[i].name, name, len) == 0)
            return &spec->flags[i];
    return NULL;
}

/* The short name of a flag in vLLM's command line, or NULL; with one dash. */
static const char *long_name(const char *name, size_t len) {
    static const char *const names[][2] = {{"tp", "tensor-parallel-size"}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(names); i++)
        if (strlen(names[i][0]) == len && strncmp(names[i][0], name, len) == 0)
            return names[i][1];
    return NULL;
}

/* Unknown flags of a command line, described one after the other. */
struct unknown {
    uint32_t count;
    char list[360];
    const char *nearest; /* of the first one that resembles a flag */
};

static const char *find_foreign(const struct rp_command_spec *spec, const char *name) {
    for (uint32_t i = 0; i < spec->foreign_count; i++)
        if (strcmp(spec->foreign[i].name, name) == 0)
            return spec->foreign[i].instead;
    return NULL;
}

static void add_unknown(const struct rp_command_spec *spec, const char *arg,
                        struct unknown *unknown) {
    const char *names[FLAGS_MAX], *name = arg + strspn(arg, "-");
    char cut[NAME_MAX_LEN + 1];
    uint32_t count = 0;
    for (uint32_t i = 0; i < RP_MIN(spec->flag_count, (uint32_t)FLAGS_MAX); i++)
        if (spec->flags[i].help)
            names[count++] = spec->flags[i].name;
    snprintf(cut, sizeof cut, "%.*s", (int)strcspn(name, "="), name);
    const char *instead = find_foreign(spec, cut);
    size_t used = strlen(unknown->list);
    snprintf(unknown->list + used, sizeof unknown->list - used, "%s%.*s%s%s%s",
             unknown->count++ ? ", " : "", (int)strcspn(arg, "="), arg, instead ? " (" : "",
             instead ? instead : "", instead ? ")" : "");
    if (!unknown->nearest && !instead)
        unknown->nearest = rp_nearest_name(cut, names, count);
}

static int fail_unknown(const struct rp_command_spec *spec, const struct unknown *unknown,
                        struct rp_error *err) {
    int status = rp_error_set(err, RP_STATUS_INVALID, "%s: unknown flag%s %s", spec->name,
                              unknown->count > 1 ? "s" : "", unknown->list);
    if (unknown->nearest)
        rp_error_hint(err, "did you mean --%s? `reprise %s --help` lists all flags",
                      unknown->nearest, spec->name);
    else
        rp_error_hint(err, "`reprise %s --help` lists all flags", spec->name);
    return status;
}

/* Parses one argument that begins with dashes; *at advances past a separate value. An unknown flag
 * is noted, with what follows it unless that is a flag. */
static int parse_flag(const struct rp_command_spec *spec, int argc, char **argv, int *at,
                      bool *given, void *options, struct unknown *unknown, struct rp_error *err) {
    const char *arg = argv[*at], *name = arg + (arg[1] == '-' ? 2 : 1);
    bool dashes = arg[1] == '-';
    size_t len = strcspn(name, "=");
    const char *full = dashes ? NULL : long_name(name, len);
    const struct rp_flag *flag = dashes ? find_flag(spec, name, len)
                                 : full ? find_flag(spec, full, strlen(full))
                                        : NULL;
    if (dashes && !flag && strncmp(name, "no-", 3) == 0 && name[len] == '\0') {
        flag = find_flag(spec, name + 3, len - 3);
        if (flag && flag->type == RP_FLAG_SWITCH) {
            given[flag - spec->flags] = true;
            return set_value(flag, options, "false", err);
        }
        flag = NULL;
    }
    if (!flag) {
        add_unknown(spec, arg, unknown);
        if (!strchr(arg, '=') && *at + 1 < argc && argv[*at + 1][0] != '-')
            ++*at;
        return RP_OK;
    }
    given[flag - spec->flags] = true;
    if (name[len] == '=')
        return set_value(flag, options, name + len + 1, err);
    if (flag->type == RP_FLAG_SWITCH)
        return set_value(flag, options, "true", err);
    if (*at + 1 >= argc)
        return rp_error_set(err, RP_STATUS_INVALID, "--%s needs a value: %s", flag->name,
                            flag->value_name);
    return set_value(flag, options, argv[++*at], err);
}

static struct {
    void (*show)(void *ctx, const struct rp_command_spec *spec);
    void *ctx;
} on_help;

void rp_flags_on_help(void (*show)(void *ctx, const struct rp_command_spec *spec), void *ctx) {
    on_help.show = show;
    on_help.ctx = ctx;
}

static void print_help(const struct rp_command_spec *spec) {
    printf("reprise %s %s [flags]\n\n%s\n\nflags (each also as environment variable "
           "REPRISE_<NAME>):\n",
           spec->name, spec->positionals, spec->summary);
    for (uint32_t i = 0; i < spec->flag_count; i++) {
        const struct rp_flag *flag = &spec->flags[i];
        char left[96];
        if (!flag->help)
            continue;
        snprintf(left, sizeof left, "--%s%s%s", flag->name, flag->value_name ? " " : "",
                 flag->value_name ? flag->value_name : "");
        printf("  %-40s %s", left, flag->help);
        if (flag->default_value && flag->default_value[0])
            printf(" (default %s)", flag->default_value);
        printf("\n");
    }
}

int rp_flags_parse(const struct rp_command_spec *spec, int argc, char **argv, void *options,
                   const char *positionals[RP_POSITIONALS_MAX], struct rp_error *err) {
    uint32_t count = 0;
    bool flags_end = false, given[FLAGS_MAX] = {false};
    struct unknown unknown = {.count = 0};
    RP_ASSERT(spec->flag_count <= FLAGS_MAX);
    memset(positionals, 0, RP_POSITIONALS_MAX * sizeof *positionals);
    int status = set_defaults(spec, options, err);
    for (int i = 1; i < argc && status == RP_OK; i++) {
        const char *arg = argv[i];
        if (flags_end || arg[0] != '-' || arg[1] == '\0') {
            if (count == spec->positional_max && unknown.count)
                continue; /* the value of an unknown flag, perhaps */
            if (count == spec->positional_max)
                return rp_error_set(err, RP_STATUS_INVALID, "%s: too many arguments, from: %s",
                                    spec->name, arg);
            positionals[count++] = arg;
        } else if (strcmp(arg, "--") == 0) {
            flags_end = true;
        } else if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            if (on_help.show)
                on_help.show(on_help.ctx, spec);
            else
                print_help(spec);
            return RP_STATUS_CANCELLED;
        } else {
            status = parse_flag(spec, argc, argv, &i, given, options, &unknown, err);
        }
    }
    if (unknown.count)
        return fail_unknown(spec, &unknown, err);
    if (status == RP_OK)
        status = set_from_environment(spec, given, options, err);
    if (status == RP_OK && count < spec->positional_min) {
        status = rp_error_set(err, RP_STATUS_INVALID, "%s needs %s", spec->name, spec->positionals);
        rp_error_hint(err, "reprise %s %s [flags]; `reprise %s --help` lists the flags", spec->name,
                      spec->positionals, spec->name);
    }
    return status;
}

int rp_flag_list(const char *flag, const char *text, uint32_t min, uint32_t max, uint32_t *out,
                 uint32_t most, uint32_t *out_count, struct rp_error *err) {
    const char *at = text;
    *out_count = 0;
    do {
        char *end = NULL;
        unsigned long value = isdigit((unsigned char)*at) ? strtoul(at, &end, 10) : 0;
        if (!end || value < min || value > max || *out_count == most ||
            (*end != ',' && *end != '\0'))
            return rp_error_set(err, RP_STATUS_INVALID,
                                "--%s: \"%.64s\" is not a list of up to %u numbers between %u and "
                                "%u",
                                flag, text, most, min, max);
        out[(*out_count)++] = (uint32_t)value;
        at = *end ? end + 1 : NULL;
    } while (at);
    return RP_OK;
}
