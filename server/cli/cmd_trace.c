/* reprise trace: reports on traces (cmd_trace_reports.c). reprise trace convert FILE: converts the
 * rings of a process killed by a signal (metrics/crash_dump.h) to a trace file. */
#include "metrics/crash_dump.h"
#include "metrics/trace_take.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES 1048576u

struct trace_options {
    uint32_t format, max_mib;
    double seconds;
    const char *output;
    bool gzip;
};
#define AT(field) offsetof(struct trace_options, field)

static const struct rp_flag flags[] = {
    {"format", RP_FLAG_CHOICE, AT(format), "json|perfetto", 0, 0, "perfetto",
     "Chrome's JSON or Perfetto's format"},
    {"seconds", RP_FLAG_REAL, AT(seconds), "SECONDS", 0.001, 86400, "60",
     "length of trace before the crash"},
    {"gzip", RP_FLAG_SWITCH, AT(gzip), NULL, 0, 0, NULL, "compress it"},
    {"max-mib", RP_FLAG_UINT, AT(max_mib), "MIB", 1, 65536, "1024",
     "maximum size; the newest events are kept"},
    {"output", RP_FLAG_TEXT, AT(output), "FILE", 0, 0, NULL,
     "output file; default: standard output"},
};
static const struct rp_command_spec spec = {
    .name = "trace convert",
    .positionals = "FILE",
    .positional_min = 1,
    .positional_max = 1,
    .summary = "Converts the file that a crash wrote to --trace-dir into a trace.",
    .flags = flags,
    .flag_count = RP_ARRAY_COUNT(flags)};

static int write_pieces(struct rp_trace_take *take, FILE *out, const char *path,
                        struct rp_error *err) {
    struct rp_buffer piece = {.data = NULL};
    int status = RP_OK;
    while (status == RP_OK && !take->done) {
        rp_buffer_clear(&piece);
        if (rp_trace_take_next(take, &piece, PIECE_BYTES) != RP_OK)
            status = rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the trace");
        else if (fwrite(piece.data, 1, piece.len, out) != piece.len)
            status = rp_error_set(err, RP_STATUS_IO, "%s: %s", path, strerror(errno));
    }
    rp_buffer_deinit(&piece);
    return status;
}

static int write_to(struct rp_trace_take *take, const char *path, struct rp_error *err) {
    const char *name = path ? path : "standard output";
    FILE *out = path ? fopen(path, "wb") : stdout;
    if (!out)
        return rp_error_set(err, RP_STATUS_IO, "%s: %s", name, strerror(errno));
    int status = write_pieces(take, out, name, err);
    if ((path ? fclose(out) : fflush(out)) != 0 && status == RP_OK)
        status = rp_error_set(err, RP_STATUS_IO, "%s: %s", name, strerror(errno));
    return status;
}

static int write_trace(const struct trace_options *options, struct rp_crash_file *file,
                       struct rp_error *err) {
    char reason[96];
    uint64_t life = file->end_ns - RP_MIN(file->end_ns, file->start_ns);
    uint64_t window = (uint64_t)(options->seconds * 1e9);
    struct rp_trace_order order = {.window_ns = RP_MIN(window, life),
                                   .max_bytes = (uint64_t)options->max_mib << 20,
                                   .format = (enum rp_trace_format)options->format,
                                   .gzip = options->gzip,
                                   .version = file->version,
                                   .model = file->model,
                                   .reason = reason,
                                   .names = rp_crash_names(file)};
    struct rp_trace_take take;
    snprintf(reason, sizeof reason, "process %u was killed by signal %d (%s)", file->pid,
             file->signal, file->signal > 0 && file->signal < 32 ? strsignal(file->signal) : "?");
    int status = rp_trace_take_from(&take, &order, &file->recording, file->end_ns, file->unix_ns);
    if (status == RP_OK)
        status = write_to(&take, options->output && *options->output ? options->output : NULL, err);
    else
        status = rp_error_set(err, status, "the trace: %s", rp_status_text(status));
    if (status == RP_OK)
        fprintf(stderr, "%s; %.3f s, %u events of unknown kinds skipped\n", reason,
                (double)(take.model.info.end_ns - take.model.info.begin_ns) / 1e9, file->unknown);
    rp_trace_take_end(&take);
    return status;
}

static int convert(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct trace_options options = {.format = 0};
    struct rp_crash_file file;
    struct rp_error err = {0};
    int status = rp_flags_parse(&spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    if (!(options.output && *options.output) && isatty(STDOUT_FILENO)) {
        status = rp_error_set(&err, RP_STATUS_INVALID, "a trace cannot be written to a terminal");
        rp_error_hint(&err, "use --output FILE, or redirect with > or |");
        return rp_fail(RP_EXIT_USAGE, &err);
    }
    status = rp_crash_read(positionals[0], &file, &err);
    if (status == RP_OK)
        status = write_trace(&options, &file, &err);
    rp_crash_file_deinit(&file);
    return status == RP_OK ? RP_EXIT_OK : rp_fail(RP_EXIT_FAILURE, &err);
}

const struct rp_command rp_trace_commands[RP_TRACE_COMMANDS] = {
    {"critical-path", rp_cmd_trace_path, "what requests and steps waited for, part by part", NULL,
     0},
    {"diff", rp_cmd_trace_diff, "what became slower from one trace to another", NULL, 0},
    {"convert", convert, "the record of a crashed process, as a trace", NULL, 0},
};

/* `reprise trace FILE` converts. */
int rp_cmd_trace(int argc, char **argv) {
    bool member = argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;
    for (uint32_t i = 0; i < RP_TRACE_COMMANDS; i++)
        member = member || strcmp(argv[1], rp_trace_commands[i].name) == 0;
    return member ? rp_cmd_group("trace", rp_trace_commands, RP_TRACE_COMMANDS, argc, argv)
                  : convert(argc, argv);
}
