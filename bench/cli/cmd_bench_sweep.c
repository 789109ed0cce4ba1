/* reprise bench sweep: finds the highest request rate at which a server meets an objective; prints
 * a line per run, then the result. The search is bench/load/load_sweep.h. */
#include "base/clock.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "bench/load/load_report.h"
#include "bench/load/load_sweep_run.h"
#include "server/cli/cmd_load_options.h"
#include "server/cli/commands.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* If 5 % more requests arrive than are completed, the queueing delay exceeds a bound t only after
 * 20 t. */
#define SECONDS_PER_BOUND 20.0
#define SECONDS_AT_LEAST  10.0
/* The estimate of the capacity: seconds, and requests in flight if the server names no number. */
#define ESTIMATE_SECONDS 8.0
#define ESTIMATE_SLOTS   64u
/* Seconds between lines of progress when standard error is no terminal. */
#define LINE_SECONDS 5.0
/* The whole search. */
#define SEARCH_SECONDS 120.0
#define SEARCH_RUNS    12

struct sweep_options {
    struct rp_load_options load;
    const char *objective, *goodput, *save_result, *html;
    double share, first_rate, min_rate, max_rate, growth, tolerance, seconds, max_seconds;
    uint32_t repeats, runs, min_requests, max_requests;
    bool json;
};

#define AT(field) offsetof(struct sweep_options, field)

static const struct rp_flag sweep_flags[] = {
    RP_LOAD_FLAGS(AT(load)),
    {"objective", RP_FLAG_TEXT, AT(objective), "NAME", 0, 0, "",
     "MLPerf's bounds on p99: llama2-70b-server, llama2-70b-interactive, llama3.1-8b-server, "
     "llama3.1-8b-interactive (default: the last, unless --goodput is given)"},
    {"goodput", RP_FLAG_TEXT, AT(goodput), "ttft:MS,tpot:MS,e2el:MS", 0, 0, "",
     "custom bounds: --share of the requests must meet all of them"},
    {"share", RP_FLAG_REAL, AT(share), "S", 0.01, 0.9999, "0.99",
     "required share of good requests; failed requests are not good"},
    {"first-rate", RP_FLAG_REAL, AT(first_rate), "R", 0, 1e9, "0",
     "requests/s of the first run; 0: 80 % of what a short closed loop completes"},
    {"min-rate", RP_FLAG_REAL, AT(min_rate), "R", 0, 1e9, "0",
     "lower limit of the search; 0: a hundredth of --first-rate"},
    {"max-rate", RP_FLAG_REAL, AT(max_rate), "R", 1e-6, 1e9, "100000", "upper limit of the search"},
    {"growth", RP_FLAG_REAL, AT(growth), "X", 1.01, 1000, "1.25",
     "factor of the first step away from the first rate; further steps grow, up to 2 or X"},
    {"tolerance", RP_FLAG_REAL, AT(tolerance), "T", 0.005, 9, "0.05",
     "precision: relative width of the final bracket"},
    {"repeats", RP_FLAG_UINT, AT(repeats), "N", 1, 99, "3",
     "maximum runs of an undecided rate, odd; a majority decides"},
    {"max-runs", RP_FLAG_UINT, AT(runs), "N", 1, RP_SWEEP_RUNS_MAX, "60", "maximum number of runs"},
    {"seconds", RP_FLAG_REAL, AT(seconds), "S", 0, 1e6, "0",
     "duration of each run; 0: 10, or 20 times the bound on TTFT if that is longer"},
    {"max-seconds", RP_FLAG_REAL, AT(max_seconds), "S", 0, 1e9, "0",
     "duration of the search, which then reports what it has found; 0: 120, or 12 runs if that is "
     "longer"},
    {"min-requests", RP_FLAG_UINT, AT(min_requests), "N", 0, 1048576, "0",
     "minimum requests per run; 0: 300, or fewer (at least 20) if the search would take too long"},
    {"max-requests", RP_FLAG_UINT, AT(max_requests), "N", 1, 1048576, "20000",
     "maximum requests per run"},
    {"save-result", RP_FLAG_TEXT, AT(save_result), "FILE", 0, 0, "", "write the JSON of all runs"},
    {"html", RP_FLAG_TEXT, AT(html), "FILE", 0, 0, "", "write an HTML page with charts"},
    {"json", RP_FLAG_SWITCH, AT(json), NULL, 0, 0, NULL, "print JSON instead of the table"},
};

static const struct rp_command_spec sweep_spec = {
    .name = "bench sweep",
    .positionals = "",
    .summary =
        "Finds the highest request rate at which a server meets an objective. A short closed loop\n"
        "estimates the capacity; the search begins near it, finds a rate that meets the objective\n"
        "and one that fails it, and halves the interval between them, on a logarithmic scale, "
        "until\n"
        "it is as narrow as --tolerance. Every run has different prompts; an unclear result is\n"
        "repeated, and a run that has clearly failed ends early. Progress goes to standard error.",
    .flags = sweep_flags,
    .flag_count = RP_ARRAY_COUNT(sweep_flags),
};

static volatile bool stopped;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    stopped = true;
}

struct sweep {
    const struct sweep_options *options;
    struct rp_sweep_objective objective;
    struct rp_sweep_config config;
    struct rp_load_source source;
    struct rp_load_target target;
    struct rp_load_server server;
    struct rp_sweep_result result;
    bool on_terminal;
    double max_seconds; /* of the whole search; 0: no limit */
    struct rp_sweep_estimate estimate;
    double line_seconds; /* of the run: when the last line of progress was printed */
};

/* --- options --------------------------------------------------------------------------------- */

static int read_objective(const struct sweep_options *options, struct rp_sweep_objective *out,
                          struct rp_error *err) {
    if (*options->goodput && *options->objective)
        return rp_error_set(err, RP_STATUS_INVALID, "--objective and --goodput are alternatives");
    if (*options->goodput) {
        *out = (struct rp_sweep_objective){.share = options->share};
        return rp_load_goodput_parse(options->goodput, &out->bounds, err);
    }
    const char *name = *options->objective ? options->objective : "llama3.1-8b-interactive";
    const struct rp_sweep_objective *preset = rp_sweep_preset(name);
    if (!preset) {
        int status = rp_error_set(err, RP_STATUS_INVALID, "--objective: no preset %.64s", name);
        rp_error_hint(err, "`reprise bench sweep --help` lists them; --goodput sets custom bounds");
        return status;
    }
    *out = *preset;
    out->share = options->share;
    return RP_OK;
}

static bool has_bounds(const struct rp_sweep_objective *objective) {
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++)
        if (objective->bounds.ms[q] > 0)
            return true;
    return false;
}

static int read_config(const struct sweep_options *options,
                       const struct rp_sweep_objective *objective, struct rp_sweep_config *out,
                       double *max_seconds, struct rp_error *err) {
    double first = options->first_rate > 0
                       ? options->first_rate
                       : RP_MAX(RP_MIN(1.0, options->max_rate), options->min_rate);
    double longest = objective->bounds.ms[RP_LOAD_TTFT] * 1e-3 * SECONDS_PER_BOUND;
    double seconds = options->seconds > 0 ? options->seconds : RP_MAX(longest, SECONDS_AT_LEAST);
    *max_seconds = options->max_seconds > 0 ? options->max_seconds
                                            : RP_MAX(SEARCH_SECONDS, SEARCH_RUNS * seconds);
    *out = (struct rp_sweep_config){
        .share = objective->share,
        .first_rate = first,
        .min_rate = options->min_rate > 0 ? options->min_rate : first / 100,
        .max_rate = options->max_rate,
        .growth = options->growth,
        .tolerance = options->tolerance,
        .repeats = options->repeats,
        .runs = options->runs,
        .seconds = seconds,
        .requests_min = options->min_requests ? options->min_requests
                                              : RP_MIN(rp_sweep_requests_min(first, *max_seconds),
                                                       options->max_requests),
        .requests_max = options->max_requests,
        .seed = options->load.seed};
    if (!has_bounds(objective))
        return rp_error_set(err, RP_STATUS_INVALID, "--goodput has no bound");
    return rp_sweep_check(out, err);
}

/* "p99 TTFT 500 ms, p99 TPOT 30 ms" */
static const char *objective_text(const struct rp_sweep_objective *objective, char *out,
                                  size_t size) {
    static const char *const names[] = {[RP_LOAD_TTFT] = "TTFT",
                                        [RP_LOAD_TPOT] = "TPOT",
                                        [RP_LOAD_ITL] = "",
                                        [RP_LOAD_E2EL] = "E2EL"};
    size_t len = 0;
    out[0] = '\0';
    for (int q = 0; q < RP_LOAD_QUANTITIES && len < size; q++)
        if (objective->bounds.ms[q] > 0)
            len += (size_t)snprintf(out + len, size - len, "%s%s %g ms", len ? ", " : "", names[q],
                                    objective->bounds.ms[q]);
    if (len < size)
        snprintf(out + len, size - len, " for %g %% of the requests%s", 100 * objective->share,
                 objective->each ? ", each" : "");
    return out;
}

/* --- output ---------------------------------------------------------------------------------- */

static void clear_progress(const struct sweep *sweep) {
    if (sweep->on_terminal)
        fprintf(stderr, "\r\033[K");
}

/* One line that is overwritten on a terminal; elsewhere a line now and then. */
static void print_progress(void *context, const struct rp_load_progress *now) {
    struct sweep *sweep = context;
    double elapsed = (double)now->elapsed_ns * 1e-9;
    if (!sweep->on_terminal && elapsed < sweep->line_seconds + LINE_SECONDS)
        return;
    sweep->line_seconds = elapsed;
    fprintf(stderr, "%s  %.0f s: %u of %u sent, %u done, %u failed, %u in flight%s",
            sweep->on_terminal ? "\r\033[K" : "", elapsed, now->sent, now->planned, now->done,
            now->failed, now->in_flight, sweep->on_terminal ? "" : "\n");
    fflush(stderr);
}

static void print_start(void *context, uint32_t index, const struct rp_sweep_step *step) {
    struct sweep *sweep = context;
    char bracket[80] = "";
    sweep->line_seconds = 0;
    clear_progress(sweep);
    if (step->holds > 0 && step->breaks > 0)
        snprintf(bracket, sizeof bracket, "; met at %.4g, failed at %.4g", step->holds,
                 step->breaks);
    else if (step->holds > 0 || step->breaks > 0)
        snprintf(bracket, sizeof bracket, "; %s at %.4g", step->holds > 0 ? "met" : "failed",
                 step->holds > 0 ? step->holds : step->breaks);
    fprintf(stderr, "run %u: %u requests at %.4g/s, about %.0f s%s\n", index + 1, step->requests,
            step->rate, step->requests / step->rate, bracket);
}

static void print_head(const struct sweep *sweep) {
    char text[160];
    printf("%s at %s: %s\n", sweep->server.model, sweep->target.base_url,
           objective_text(&sweep->objective, text, sizeof text));
    printf("%10s %9s %8s %9s %9s %9s %9s %10s %8s  %s\n", "requests/s", "requests", "good %",
           "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "tokens/s", "cached %", "");
    fflush(stdout);
}

static void print_run(void *context, uint32_t index, const struct rp_sweep_measured *measured) {
    const struct sweep *sweep = context;
    const struct rp_load_summary *summary = &measured->summary;
    const struct rp_sweep_run *run = &measured->run;
    char cached[16] = "-", why_not[sizeof summary->why_not + 4] = "";
    (void)index;
    clear_progress(sweep);
    if (sweep->options->json)
        return;
    if (summary->cached_reported && summary->prompt_tokens)
        snprintf(cached, sizeof cached, "%.1f",
                 100.0 * (double)summary->cached_tokens / (double)summary->prompt_tokens);
    if (run->ended_early)
        snprintf(why_not, sizeof why_not, " (ended early: %u of %u requests missed it)",
                 run->requests - run->good, run->requests);
    else if (!summary->reliable)
        snprintf(why_not, sizeof why_not, " (%s)", summary->why_not);
    bool holds = run->requests && run->good >= sweep->config.share * run->requests;
    printf("%10.4g %9u %8.2f %9.1f %9.1f %9.2f %9.2f %10.1f %8s  %s%s\n", run->rate, run->requests,
           run->requests ? 100.0 * run->good / run->requests : 0.0,
           summary->latency[RP_LOAD_TTFT].p50, summary->latency[RP_LOAD_TTFT].p99,
           summary->latency[RP_LOAD_TPOT].p50, summary->latency[RP_LOAD_TPOT].p99,
           summary->output_rate, cached,
           holds              ? "met"
           : run->client_slow ? "inconclusive: the client was too slow"
                              : "failed",
           why_not);
    fflush(stdout);
}

static const char *const state_names[] = {
    [RP_SWEEP_GOES_ON] = "interrupted",       [RP_SWEEP_FOUND] = "found",
    [RP_SWEEP_NEVER_BROKE] = "never_broke",   [RP_SWEEP_NEVER_HELD] = "never_held",
    [RP_SWEEP_CLIENT_LIMIT] = "client_limit", [RP_SWEEP_OUT_OF_RUNS] = "out_of_runs",
    [RP_SWEEP_OUT_OF_TIME] = "out_of_time"};

static void print_answer(const struct sweep *sweep) {
    const struct rp_sweep_step *end = &sweep->result.end;
    const double *alone = sweep->estimate.alone_ms;
    if (end->holds > 0)
        printf("The objective is met up to %.4g requests/s", end->holds);
    else
        printf("The objective is not met at any rate that was tried");
    switch (end->state) {
    case RP_SWEEP_FOUND:
        printf(" and fails at %.4g (precision %.0f %%).\n", end->breaks,
               100 * (end->breaks / end->holds - 1));
        break;
    case RP_SWEEP_NEVER_BROKE:
        printf(", the upper limit of the search (--max-rate).\n");
        break;
    case RP_SWEEP_NEVER_HELD:
        if (sweep->estimate.is_hopeless) {
            printf(": a request alone misses it (TTFT %.0f ms, TPOT %.1f ms, E2EL %.0f ms).\n",
                   alone[RP_LOAD_TTFT], alone[RP_LOAD_TPOT], alone[RP_LOAD_E2EL]);
            break;
        }
        printf(", down to %.4g requests/s (--min-rate).\n", end->breaks);
        break;
    case RP_SWEEP_CLIENT_LIMIT:
        printf("; above it the client was too slow, not the server: run it on separate cores.\n");
        break;
    default:
        printf(" so far: the search %s",
               end->state == RP_SWEEP_OUT_OF_RUNS   ? "ran out of runs (--max-runs)"
               : end->state == RP_SWEEP_OUT_OF_TIME ? "ran out of time (--max-seconds)"
                                                    : "was interrupted");
        if (end->breaks > 0)
            printf("; it fails at %.4g", end->breaks);
        printf(".\n");
        break;
    }
}

static struct rp_load_report make_report(const struct sweep *sweep, uint32_t index,
                                         const struct rp_load_rules *rules, char label[48]) {
    const struct rp_sweep_measured *measured = &sweep->result.measured[index];
    snprintf(label, 48, "%.4g requests/s, run %u", measured->run.rate, index + 1);
    return (struct rp_load_report){
        .summary = &measured->summary,
        .rules = rules,
        .source = &measured->source,
        .label = label,
        .backend = sweep->target.api == RP_LOAD_CHAT ? "openai-chat" : "openai",
        .model = sweep->server.model,
        .server_version = *sweep->server.version ? sweep->server.version : NULL,
        .command = "reprise bench sweep",
        .request_rate = measured->run.rate,
        .max_concurrency = sweep->options->load.max_concurrency};
}

static void write_points(const struct sweep *sweep, struct rp_json *json) {
    static const char *const verdicts[] = {[RP_SWEEP_OPEN] = "open",
                                           [RP_SWEEP_HOLDS] = "holds",
                                           [RP_SWEEP_BREAKS] = "breaks",
                                           [RP_SWEEP_CLIENT_SLOW] = "client_slow"};
    struct rp_sweep_point points[RP_SWEEP_RUNS_MAX];
    uint32_t count =
        rp_sweep_points(&sweep->config, sweep->result.runs, sweep->result.run_count, points);
    rp_json_array_begin(json, "points");
    for (uint32_t i = 0; i < count; i++) {
        rp_json_object_begin(json, NULL);
        rp_json_double(json, "rate", points[i].rate);
        rp_json_uint(json, "runs", points[i].runs);
        rp_json_uint(json, "held", points[i].held);
        rp_json_uint(json, "broke", points[i].broke);
        rp_json_uint(json, "client_slow", points[i].client_slow);
        rp_json_uint(json, "requests", points[i].requests);
        rp_json_uint(json, "good", points[i].good);
        rp_json_string(json, "verdict", verdicts[points[i].verdict]);
        rp_json_bool(json, "firm", points[i].firm);
        rp_json_object_end(json);
    }
    rp_json_array_end(json);
}

static void write_json(const struct sweep *sweep, const struct rp_load_rules *rules,
                       struct rp_buffer *out) {
    static const char *const bounds[] = {[RP_LOAD_TTFT] = "ttft_ms",
                                         [RP_LOAD_TPOT] = "tpot_ms",
                                         [RP_LOAD_ITL] = NULL,
                                         [RP_LOAD_E2EL] = "e2el_ms"};
    const struct rp_sweep_objective *objective = &sweep->objective;
    struct rp_json json;
    rp_json_init(&json, out);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "bench", "sweep");
    rp_json_string(&json, "state", state_names[sweep->result.end.state]);
    rp_json_double(&json, "highest_rate", sweep->result.end.holds);
    rp_json_double(&json, "breaks_at", sweep->result.end.breaks);
    if (sweep->estimate.alone_ms[RP_LOAD_E2EL] > 0) {
        rp_json_object_begin(&json, "estimate");
        rp_json_double(&json, "first_rate", sweep->estimate.first_rate);
        for (int q = 0; q < RP_LOAD_QUANTITIES; q++)
            if (bounds[q])
                rp_json_double(&json, bounds[q], sweep->estimate.alone_ms[q]);
        rp_json_object_end(&json);
    }
    rp_json_object_begin(&json, "objective");
    rp_json_string(&json, "name", objective->name ? objective->name : "goodput");
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++)
        if (bounds[q] && objective->bounds.ms[q] > 0)
            rp_json_double(&json, bounds[q], objective->bounds.ms[q]);
    rp_json_double(&json, "share", objective->share);
    rp_json_bool(&json, "each", objective->each);
    rp_json_object_end(&json);
    write_points(sweep, &json);
    rp_json_array_begin(&json, "runs");
    for (uint32_t i = 0; i < sweep->result.run_count; i++) { /* each as in `bench serve` */
        char label[48];
        struct rp_load_report report = make_report(sweep, i, rules, label);
        rp_buffer_puts(out, i ? ",\n" : "\n");
        rp_load_json_write(&report, out);
    }
    rp_json_array_end(&json);
    rp_json_object_end(&json);
    rp_buffer_puts(out, "\n");
}

static void write_html(const struct sweep *sweep, const struct rp_load_rules *rules,
                       struct rp_buffer *out) {
    struct rp_load_objective objective = {.name = sweep->objective.name,
                                          .bounds = sweep->objective.bounds,
                                          .highest_rate = sweep->result.end.holds};
    uint32_t count = sweep->result.run_count;
    struct rp_load_report *reports = rp_calloc(count + 1, sizeof *reports);
    char(*labels)[48] = rp_calloc(count + 1, sizeof *labels);
    for (uint32_t i = 0; reports && labels && i < count; i++)
        reports[i] = make_report(sweep, i, rules, labels[i]);
    if (reports && labels)
        rp_load_html_write(reports, count, &objective, out);
    else
        out->failed = true;
    rp_free(reports);
    rp_free(labels);
}

/* `path` "-": standard output. */
static int write_output(const struct sweep *sweep, const char *path,
                        void (*write)(const struct sweep *sweep, const struct rp_load_rules *rules,
                                      struct rp_buffer *out),
                        struct rp_error *err) {
    struct rp_load_rules rules = {.goodput = sweep->objective.bounds,
                                  .exclude_warm_up = sweep->options->load.warm_up};
    struct rp_buffer out;
    rp_buffer_init(&out, 0);
    write(sweep, &rules, &out);
    int status = rp_load_options_write(path, &out, err);
    rp_buffer_deinit(&out);
    return status;
}

static int write_outputs(const struct sweep *sweep, struct rp_error *err) {
    const struct sweep_options *options = sweep->options;
    int status = RP_OK;
    if (options->json)
        status = write_output(sweep, "-", write_json, err);
    if (status == RP_OK && *options->save_result)
        status = write_output(sweep, options->save_result, write_json, err);
    if (status == RP_OK && *options->html)
        status = write_output(sweep, options->html, write_html, err);
    return status;
}

/* --- the command ----------------------------------------------------------------------------- */

/* Sets the first rate from closed loops. */
static int estimate(struct sweep *sweep, const struct rp_sweep_session *session,
                    struct rp_error *err) {
    const struct sweep_options *options = sweep->options;
    struct rp_sweep_config *config = &sweep->config;
    uint32_t slots = sweep->server.slots ? sweep->server.slots : ESTIMATE_SLOTS;
    fprintf(stderr, "estimate: closed loops with 1 and %u requests in flight, %.0f s each\n", slots,
            ESTIMATE_SECONDS);
    int status = rp_sweep_estimate(session, slots, ESTIMATE_SECONDS, &sweep->estimate, err);
    clear_progress(sweep);
    if (status != RP_OK || sweep->estimate.first_rate <= 0)
        return status;
    double rate = RP_MIN(sweep->estimate.first_rate, config->max_rate);
    config->min_rate = options->min_rate > 0 ? options->min_rate : rate / 100;
    config->first_rate = RP_MAX(rate, config->min_rate);
    if (!options->min_requests)
        config->requests_min =
            RP_MIN(rp_sweep_requests_min(rate, sweep->max_seconds), config->requests_max);
    fprintf(stderr, "estimate: begin at %.4g requests/s\n", config->first_rate);
    return RP_OK;
}

static int run_sweep(struct sweep *sweep, struct rp_error *err) {
    struct rp_load_run_options run = {.target = sweep->target,
                                      .max_concurrency = sweep->options->load.max_concurrency,
                                      .timeout_s = sweep->options->load.timeout_s,
                                      .progress = print_progress,
                                      .context = sweep,
                                      .stop = &stopped};
    struct rp_sweep_session session = {.config = &sweep->config,
                                       .objective = &sweep->objective,
                                       .source = &sweep->source,
                                       .options = &run,
                                       .exclude_warm_up = sweep->options->load.warm_up,
                                       .before = print_start,
                                       .after = print_run,
                                       .context = sweep};
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    if (sweep->max_seconds > 0)
        session.deadline_ns = rp_clock_ns() + (uint64_t)(sweep->max_seconds * 1e9);
    int status = sweep->options->first_rate > 0 ? RP_OK : estimate(sweep, &session, err);
    if (status != RP_OK)
        return status;
    if (!sweep->options->json)
        print_head(sweep);
    if (sweep->estimate.is_hopeless)
        sweep->result.end.state = RP_SWEEP_NEVER_HELD;
    else
        status = rp_sweep_measure(&session, &sweep->result, err);
    clear_progress(sweep);
    if (status == RP_OK && !sweep->options->json)
        print_answer(sweep);
    struct rp_error write_err = {0};
    bool has_result = sweep->result.run_count || sweep->estimate.is_hopeless;
    int write_status = has_result ? write_outputs(sweep, &write_err) : RP_OK;
    if (status != RP_OK || write_status == RP_OK)
        return status;
    *err = write_err;
    return write_status;
}

int rp_cmd_bench_sweep(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct sweep_options options = {.runs = 0};
    struct rp_error err = {0};
    int status = rp_flags_parse(&sweep_spec, argc, argv, &options, positionals, &err);
    if (status == RP_STATUS_CANCELLED)
        return RP_EXIT_OK;
    struct sweep *sweep = rp_calloc(1, sizeof *sweep);
    if (!sweep)
        return rp_fail(RP_EXIT_FAILURE, &err);
    sweep->options = &options;
    sweep->on_terminal = isatty(STDERR_FILENO);
    if (status == RP_OK)
        status = read_objective(&options, &sweep->objective, &err);
    if (status == RP_OK)
        status =
            read_config(&options, &sweep->objective, &sweep->config, &sweep->max_seconds, &err);
    if (status == RP_OK) {
        sweep->target = rp_load_options_target(&options.load);
        status = rp_load_probe(&sweep->target, &sweep->server, &err);
    }
    if (status == RP_OK) {
        sweep->target.model = sweep->server.model;
        status = rp_load_options_source(&options.load, &sweep->server, &sweep->source, &err);
    }
    if (status == RP_OK)
        status = run_sweep(sweep, &err);
    bool held = sweep->result.end.holds > 0;
    rp_sweep_free(&sweep->result);
    rp_free(sweep);
    if (status == RP_STATUS_INVALID)
        return rp_fail(RP_EXIT_USAGE, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_FAILURE, &err);
    return held ? RP_EXIT_OK : RP_EXIT_FAILURE;
}
