/* flags.h - one table per command: flags, environment, ranges, defaults, help.
 *
 * Sources of a value, in increasing priority: the table's default, the environment (REPRISE_<NAME>,
 * dashes as underscores), the command line (the last one wins). `--name value` and `--name=value`
 * are equivalent; a switch is `--name`, and `--no-name` turns it off. Sizes accept K, M, G, T
 * (powers of 1024). Arguments without a dash are positional; `--` ends the flags.
 *
 * Errors: `error: ...` with a hint on standard error by rp_fail; the exit code of usage errors is
 * 2. */
#ifndef RP_SERVER_FLAGS_H
#define RP_SERVER_FLAGS_H

#include "base/nearest_name.h"
#include "base/status.h"

enum rp_flag_type {
    RP_FLAG_SWITCH, /* bool */
    RP_FLAG_UINT,   /* uint32_t; 8k is 8000, 8K is 8192 */
    RP_FLAG_SIZE,   /* uint64_t, K/M/G/T */
    RP_FLAG_REAL,   /* double */
    RP_FLAG_TEXT,   /* const char *: borrowed from argv or the environment */
    RP_FLAG_CHOICE  /* uint32_t: index into the choices */
};

struct rp_flag {
    const char *name; /* without the dashes */
    enum rp_flag_type type;
    size_t offset;             /* offset of the value in the options struct */
    const char *value_name;    /* PORT; NULL for a switch; the choices "auto|cpu" for a choice */
    double min, max;           /* UINT, SIZE, REAL; inclusive */
    const char *default_value; /* as on the command line; NULL: zero, false, "" */
    const char *help;          /* NULL: hidden, for tests */
};

/* A row of a table of flags that several commands share; base: offset of struct `options` in the
 * options of the command. */
#define RP_FLAG_ROW(name, kind, base, options, field, value_name, min, max, default_value, help)   \
    {                                                                                              \
        name, RP_FLAG_##kind, (base) + offsetof(struct options, field), value_name, min, max,      \
            default_value, help                                                                    \
    }

/* A flag of another server that does not exist here. */
struct rp_foreign_flag {
    const char *name, *instead; /* what to do, in a few words */
};

struct rp_command_spec {
    const char *name;        /* serve */
    const char *positionals; /* "DIR" or "DIR [PROMPT]" */
    uint32_t positional_min, positional_max;
    const char *summary; /* one line */
    const struct rp_flag *flags;
    uint32_t flag_count;
    const struct rp_foreign_flag *foreign; /* named in errors; may be NULL */
    uint32_t foreign_count;
};

/* Maximum number of positionals of any command. */
#define RP_POSITIONALS_MAX 4

/* Fills *options (flags) and positionals (unset ones NULL). argv[0] is the command's name. Returns
 * RP_OK, RP_STATUS_INVALID with err filled (it names all unknown flags), or RP_STATUS_CANCELLED
 * after --help was printed. */
int rp_flags_parse(const struct rp_command_spec *spec, int argc, char **argv, void *options,
                   const char *positionals[RP_POSITIONALS_MAX], struct rp_error *err) RP_MUST_USE;

/* Parses a list in a TEXT flag, "1,8,32": 1 to `most` integers from min to max into out, their
 * count into *out_count. RP_STATUS_INVALID names the flag. */
int rp_flag_list(const char *flag, const char *text, uint32_t min, uint32_t max, uint32_t *out,
                 uint32_t most, uint32_t *out_count, struct rp_error *err) RP_MUST_USE;

/* From now on --help calls `show` instead of printing; NULL: it prints. Thread: one. */
void rp_flags_on_help(void (*show)(void *ctx, const struct rp_command_spec *spec), void *ctx);

/* Exit codes of every command (DESIGN: command line). */
enum rp_exit {
    RP_EXIT_OK = 0,
    RP_EXIT_FAILURE = 1,
    RP_EXIT_USAGE = 2,
    RP_EXIT_MODEL = 3,
    RP_EXIT_DEVICE = 4,
    RP_EXIT_PORT = 5,
    RP_EXIT_FATAL_DEVICE = 70
};

/* Prints `error: text` and `hint: hint`, and returns `code`, so that a command can return it. */
int rp_fail(enum rp_exit code, const struct rp_error *err);

#endif
