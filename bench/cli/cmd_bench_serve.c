/* reprise bench serve: load test of a server with an OpenAI-compatible API. Flags and JSON keys are
 * those of `vllm bench serve` where it has an equivalent. */
#include "base/memory.h"
#include "bench/load/load_report.h"
#include "server/cli/cmd_load_options.h"
#include "server/cli/commands.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define METADATA_MAX    64u
#define PROMPTS_DEFAULT 1000u

struct serve_options {
    struct rp_load_options load;
    const char *rate, *goodput, *metadata, *label, *html, *result_dir, *result_filename;
    double ramp_begin, ramp_end, time_scale, max_seconds;
    uint32_t prompts, arrival, ramp;
    bool closed, save_result, save_detailed, json;
};

#define AT(field)      offsetof(struct serve_options, field)
#define LOAD_AT(field) RP_LOAD_AT(AT(load), field)

static const struct rp_flag serve_flags[] = {
    RP_LOAD_FLAGS(AT(load)),
    /* vllm's names of four flags above. */
    {"random-input-len", RP_FLAG_UINT, LOAD_AT(input_len), "N", 0, 1073741824.0, "0",
     "the same as --input-len"},
    {"random-output-len", RP_FLAG_UINT, LOAD_AT(output_len), "N", 0, 1073741824.0, "0",
     "the same as --output-len"},
    {"random-range-ratio", RP_FLAG_REAL, LOAD_AT(range_ratio), "R", 0, 0.999999, "0",
     "the same as --range-ratio"},
    {"random-prefix-len", RP_FLAG_UINT, LOAD_AT(prefix_len), "N", 0, 1073741824.0, "0",
     "the same as --prefix-len"},
    {"num-prompts", RP_FLAG_UINT, AT(prompts), "N", 0, 16777216, "0",
     "number of requests; 0: 1000, or all of a trace"},
    {"request-rate", RP_FLAG_TEXT, AT(rate), "R|inf", 0, 0, "",
     "requests/s; inf: all at once, with --max-concurrency a closed loop; default: the times of a "
     "trace, else inf"},
    {"arrival", RP_FLAG_CHOICE, AT(arrival), "gamma|constant", 0, 0, "gamma",
     "gaps between requests: gamma-distributed with --burstiness, or constant"},
    {"ramp-up-strategy", RP_FLAG_CHOICE, AT(ramp), "none|linear|exponential", 0, 0, "none",
     "ramp of the rate, instead of --request-rate"},
    {"ramp-up-start-rps", RP_FLAG_REAL, AT(ramp_begin), "R", 0, 1e9, "0",
     "rate at the first request"},
    {"ramp-up-end-rps", RP_FLAG_REAL, AT(ramp_end), "R", 0, 1e9, "0", "rate at the last request"},
    {"closed", RP_FLAG_SWITCH, AT(closed), NULL, 0, 0, NULL,
     "closed loop: keep --max-concurrency requests (default 1) in flight"},
    {"time-scale", RP_FLAG_REAL, AT(time_scale), "X", 0, 1e6, "1",
     "factor applied to the times of a trace: 0.5 replays it twice as fast"},
    {"max-seconds", RP_FLAG_REAL, AT(max_seconds), "S", 0, 1e9, "0",
     "stop sending after this time; 0: no limit"},
    {"goodput", RP_FLAG_TEXT, AT(goodput), "ttft:MS,tpot:MS,e2el:MS", 0, 0, "",
     "count the requests that meet all of these bounds"},
    {"json", RP_FLAG_SWITCH, AT(json), NULL, 0, 0, NULL, "print JSON instead of the table"},
    {"save-result", RP_FLAG_SWITCH, AT(save_result), NULL, 0, 0, NULL, "write the JSON to a file"},
    {"save-detailed", RP_FLAG_SWITCH, AT(save_detailed), NULL, 0, 0, NULL,
     "include every request's times in the JSON, for the intervals of bench compare"},
    {"result-dir", RP_FLAG_TEXT, AT(result_dir), "DIR", 0, 0, "",
     "directory of the file; default: the current one"},
    {"result-filename", RP_FLAG_TEXT, AT(result_filename), "FILE", 0, 0, "",
     "name of the file, implies --save-result; default: from rate, model and date"},
    {"html", RP_FLAG_TEXT, AT(html), "FILE", 0, 0, "", "write an HTML page with charts"},
    {"metadata", RP_FLAG_TEXT, AT(metadata), "KEY=VALUE,...", 0, 0, "",
     "store these pairs with the result"},
    {"label", RP_FLAG_TEXT, AT(label), "TEXT", 0, 0, "", "store a name of the run with the result"},
};

static const struct rp_command_spec serve_spec = {
    .name = "bench serve",
    .positionals = "",
    .summary =
        "Sends load to a server with an OpenAI-compatible API and reports latencies and rates.\n"
        "Latency counts from the intended send time of a request; latency from the actual send is\n"
        "reported as well.",
    .flags = serve_flags,
    .flag_count = RP_ARRAY_COUNT(serve_flags),
};

static volatile bool stopped;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    stopped = true;
}

struct serve {
    const struct serve_options *options;
    struct rp_load_server server;
    struct rp_load_source source;
    struct rp_load_run_options run;
    struct rp_load_plan plan;
    struct rp_load_records records;
    struct rp_load_rules rules;
    struct rp_load_summary summary;
    struct rp_load_metadata metadata[METADATA_MAX];
    uint32_t metadata_count;
    double rate; /* --request-rate; INFINITY: none */
    char *metadata_text;
    char date[32];
    char command[1024];
    bool on_terminal;
};

/* --- options --------------------------------------------------------------------------------- */

/* Parses KEY=VALUE pairs separated by commas, in a copy of the text. */
static int read_metadata(struct serve *serve, struct rp_error *err) {
    if (!*serve->options->metadata)
        return RP_OK;
    char *rest = serve->metadata_text = rp_strdup(serve->options->metadata), *one;
    if (!rest)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    while ((one = strsep(&rest, ",")) != NULL) {
        if (serve->metadata_count == METADATA_MAX)
            return rp_error_set(err, RP_STATUS_INVALID, "--metadata: more than %u pairs",
                                METADATA_MAX);
        int status = rp_load_metadata_parse(one, &serve->metadata[serve->metadata_count++], err);
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}

static int read_rate(const char *text, double *out, struct rp_error *err) {
    char *end;
    *out = INFINITY;
    if (!*text || strcmp(text, "inf") == 0)
        return RP_OK;
    *out = strtod(text, &end);
    if (end != text && *end == '\0' && *out > 0 && *out <= 1e9)
        return RP_OK;
    return rp_error_set(
        err, RP_STATUS_INVALID,
        "--request-rate: \"%.64s\" is neither a number of requests per second nor inf", text);
}

static bool is_trace(const struct rp_load_source *source) {
    return source->dataset == RP_LOAD_AZURE || source->dataset == RP_LOAD_MOONCAKE;
}

static int read_arrival(struct serve *serve, struct rp_error *err) {
    const struct serve_options *options = serve->options;
    struct rp_load_source *source = &serve->source;
    struct rp_load_run_options *run = &serve->run;
    bool ramp = options->ramp != RP_LOAD_NO_RAMP;
    int status = read_rate(options->rate, &serve->rate, err);
    if (status != RP_OK)
        return status;
    if ((ramp || options->closed) && *options->rate && isfinite(serve->rate))
        return rp_error_set(err, RP_STATUS_INVALID, "--request-rate and %s are alternatives",
                            ramp ? "--ramp-up-strategy" : "--closed");
    if (ramp && options->closed)
        return rp_error_set(err, RP_STATUS_INVALID,
                            "--closed and --ramp-up-strategy are alternatives");
    if (ramp && !(options->ramp_begin > 0 && options->ramp_end > 0))
        return rp_error_set(err, RP_STATUS_INVALID,
                            "--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps");
    run->max_concurrency = options->load.max_concurrency;
    bool own_times = is_trace(source) && !*options->rate && !ramp && !options->closed;
    source->time_scale = options->time_scale;
    source->arrival = own_times                                          ? RP_LOAD_TRACE
                      : !ramp && (options->closed || isinf(serve->rate)) ? RP_LOAD_CLOSED
                      : options->arrival                                 ? RP_LOAD_CONSTANT
                                                                         : RP_LOAD_GAMMA;
    /* All at once with a limit of concurrency is a closed loop, as in vllm. */
    run->closed = source->arrival == RP_LOAD_CLOSED && (options->closed || run->max_concurrency);
    if (run->closed && run->max_concurrency == 0)
        run->max_concurrency = 1;
    source->rate = isfinite(serve->rate) ? serve->rate : 0;
    source->ramp = (enum rp_load_ramp)options->ramp;
    source->ramp_begin = options->ramp_begin;
    source->ramp_end = options->ramp_end;
    source->count = options->prompts || is_trace(source) ? options->prompts : PROMPTS_DEFAULT;
    return RP_OK;
}

/* Stores the command line for the report, without the API key. */
static void note_command(struct serve *serve, int argc, char **argv) {
    size_t len = (size_t)snprintf(serve->command, sizeof serve->command, "reprise bench");
    for (int i = 0; i < argc; i++) {
        bool is_key = strncmp(argv[i], "--api-key", 9) == 0;
        if (len < sizeof serve->command)
            len += (size_t)snprintf(serve->command + len, sizeof serve->command - len, " %s",
                                    is_key ? "--api-key=..." : argv[i]);
        i += is_key && argv[i][9] == '\0';
    }
}

static void note_date(struct serve *serve) {
    time_t now = time(NULL);
    struct tm parts;
    localtime_r(&now, &parts);
    strftime(serve->date, sizeof serve->date, "%Y%m%d-%H%M%S", &parts);
}

/* --- output ---------------------------------------------------------------------------------- */

static void print_progress(void *context, const struct rp_load_progress *now) {
    const struct serve *serve = context;
    double seconds = (double)now->elapsed_ns * 1e-9;
    if (!serve->on_terminal)
        return;
    fprintf(stderr,
            "\r\033[K%.0f s: %u of %u sent, %u done, %u failed, %u in flight, %.0f tokens/s",
            seconds, now->sent, now->planned, now->done, now->failed, now->in_flight,
            seconds > 0 ? (double)now->output_tokens / seconds : 0.0);
    fflush(stderr);
}

static struct rp_load_report make_report(const struct serve *serve) {
    const struct serve_options *options = serve->options;
    return (struct rp_load_report){
        .summary = &serve->summary,
        .rules = &serve->rules,
        .source = &serve->source,
        .records = &serve->records,
        .date = serve->date,
        .label = *options->label ? options->label : NULL,
        .backend = serve->run.target.api == RP_LOAD_CHAT ? "openai-chat" : "openai",
        .model = serve->run.target.model,
        .command = serve->command,
        .server_version = *serve->server.version ? serve->server.version : NULL,
        .request_rate = serve->rate,
        .max_concurrency = serve->run.max_concurrency,
        .metadata = serve->metadata,
        .metadata_count = serve->metadata_count,
        .details = options->save_detailed};
}

/* DIR/openai-4qps-model-20261121-155100.json, as in vllm. */
static void result_path(const struct serve *serve, char *out, size_t size) {
    const struct serve_options *options = serve->options;
    const char *dir = options->result_dir, *model = strrchr(serve->run.target.model, '/');
    char name[512], rate[32], concurrency[32] = "";
    model = model ? model + 1 : serve->run.target.model;
    snprintf(rate, sizeof rate, isfinite(serve->rate) ? "%g" : "inf", serve->rate);
    if (serve->run.max_concurrency)
        snprintf(concurrency, sizeof concurrency, "-concurrency%u", serve->run.max_concurrency);
    snprintf(name, sizeof name, "%s-%sqps%s-%.200s-%s.json",
             serve->run.target.api == RP_LOAD_CHAT ? "openai-chat" : "openai", rate, concurrency,
             model, serve->date);
    snprintf(out, size, "%s%s%s", dir, *dir ? "/" : "",
             *options->result_filename ? options->result_filename : name);
}

static int write_output(const struct serve *serve, const char *path,
                        void (*write)(const struct rp_load_report *report, struct rp_buffer *out),
                        struct rp_error *err) {
    struct rp_load_report report = make_report(serve);
    struct rp_buffer out;
    rp_buffer_init(&out, 0);
    write(&report, &out);
    int status = rp_load_options_write(path, &out, err);
    rp_buffer_deinit(&out);
    return status;
}

static void write_page(const struct rp_load_report *report, struct rp_buffer *out) {
    rp_load_html_write(report, 1, NULL, out);
}

static int write_outputs(const struct serve *serve, struct rp_error *err) {
    const struct serve_options *options = serve->options;
    int status =
        write_output(serve, "-", options->json ? rp_load_json_write : rp_load_table_write, err);
    if (status == RP_OK &&
        (options->save_result || options->save_detailed || *options->result_filename)) {
        char path[1024];
        result_path(serve, path, sizeof path);
        status = write_output(serve, path, rp_load_json_write, err);
    }
    if (status == RP_OK && *options->html)
        status = write_output(serve, options->html, write_page, err);
    return status;
}

/* --- the command ----------------------------------------------------------------------------- */

static int run_load(struct serve *serve, struct rp_error *err) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    serve->run.timeout_s = serve->options->load.timeout_s;
    serve->run.max_seconds = serve->options->max_seconds;
    serve->run.progress = print_progress;
    serve->run.context = serve;
    serve->run.stop = &stopped;
    serve->rules.closed = serve->run.closed;
    serve->rules.exclude_warm_up = serve->options->load.warm_up;
    serve->on_terminal = isatty(STDERR_FILENO);
    sigaction(SIGINT, &action, NULL);
    int status = rp_load_run(&serve->run, &serve->plan, &serve->records, err);
    if (serve->on_terminal)
        fprintf(stderr, "\r\033[K");
    if (status == RP_OK)
        status =
            rp_load_summarize(&serve->plan, &serve->records, &serve->rules, &serve->summary, err);
    return status == RP_OK ? write_outputs(serve, err) : status;
}

static int prepare(struct serve *serve, struct rp_error *err) {
    const struct serve_options *options = serve->options;
    struct rp_load_run_options *run = &serve->run;
    int status = rp_load_goodput_parse(options->goodput, &serve->rules.goodput, err);
    if (status == RP_OK)
        status = read_metadata(serve, err);
    run->target = rp_load_options_target(&options->load);
    if (status == RP_OK)
        status = rp_load_probe(&run->target, &serve->server, err);
    if (status != RP_OK)
        return status;
    run->target.model = serve->server.model;
    status = rp_load_options_source(&options->load, &serve->server, &serve->source, err);
    if (status == RP_OK)
        status = read_arrival(serve, err);
    if (status == RP_OK)
        status = rp_load_plan_make(&serve->source, &serve->plan, err);
    return status;
}

int rp_cmd_bench_serve(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct serve_options options = {.prompts = 0};
    struct rp_error err = {0};
    int status = rp_flags_parse(&serve_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    struct serve *serve = rp_calloc(1, sizeof *serve);
    if (!serve)
        return rp_fail(RP_EXIT_FAILURE, &err);
    serve->options = &options;
    note_date(serve);
    note_command(serve, argc, argv);
    status = prepare(serve, &err);
    if (status == RP_OK)
        status = run_load(serve, &err);
    bool any = serve->summary.outcomes[RP_LOAD_OK] > 0;
    rp_load_plan_free(&serve->plan);
    rp_load_records_free(&serve->records);
    rp_free(serve->metadata_text);
    rp_free(serve);
    if (status == RP_STATUS_INVALID || status == RP_STATUS_UNSUPPORTED)
        return rp_fail(RP_EXIT_USAGE, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_FAILURE, &err);
    return any ? RP_EXIT_OK : RP_EXIT_FAILURE;
}
