/* reprise serve DIR: loads the model, captures its graphs, and serves it until SIGTERM. The port is
 * bound before the model is loaded, so that a conflict is reported at once. */
#include "base/buffer.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/memory_plan.h"
#include "engine/observe/power.h"
#include "server/cli/cmd_stack.h"
#include "server/cli/commands.h"
#include "server/cli/hub_cache.h"
#include "server/cli/placement.h"
#include "server/cli/serve_config.h"
#include "server/cli/serve_dialect.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

struct serve {
    struct rp_serve_options options;
    struct rp_auth auth;
    struct rp_server *server;
    struct rp_stack stack;
    struct rp_power *power;
    struct rp_chat_templates *templates;
    struct rp_serve_dialect dialect;
    char name[RP_MODEL_NAME_BYTES];
    uint64_t start_ns;
};

static void print_plan(const struct rp_stack *stack) {
    const struct rp_engine *engine = stack->engine;
    struct rp_device_info info;
    uint32_t failed = 0, count = rp_engine_graph_count(engine);
    struct rp_buffer text;
    rp_engine_device_info(engine, &info);
    rp_buffer_init(&text, 0);
    rp_memory_plan_text(rp_engine_memory_plan(engine), &text);
    fprintf(stderr, "device: %s: %s (%s)\n%.*s", stack->selection.backend->name, info.name,
            stack->selection.reason, (int)text.len, text.len ? text.data : "");
    rp_buffer_deinit(&text);
    if (stack->model.mask)
        fprintf(stderr, "attention mask: %.400s (instead of the model's own)\n",
                rp_mask_text(stack->model.mask));
    for (uint32_t i = 0; i < count; i++) {
        struct rp_engine_graph graph;
        rp_engine_graph(engine, i, &graph);
        failed += !graph.captured;
    }
    if (failed)
        fprintf(stderr,
                "graphs: %u of %u sizes could not be captured, their steps replay larger ones\n",
                failed, count);
}

static void on_ready(void *ctx) {
    const struct serve *serve = ctx;
    const char *host = serve->options.host;
    bool any = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
    bool bracket = strchr(host, ':') && !any;
    char url[128];
    snprintf(url, sizeof url, "http%s://%s%s%s:%u",
             serve->options.tls_cert && *serve->options.tls_cert ? "s" : "", bracket ? "[" : "",
             any ? "127.0.0.1" : host, bracket ? "]" : "", rp_server_port(serve->server));
    if (serve->options.uds && *serve->options.uds) {
        fprintf(stderr,
                "ready: %s serves %s after %.1f s\ncurl --unix-socket %s "
                "http://localhost/v1/models\n",
                serve->options.uds, serve->name, (double)(rp_clock_ns() - serve->start_ns) * 1e-9,
                serve->options.uds);
        return;
    }
    fprintf(stderr, "ready: %s serves %s after %.1f s\n", url, serve->name,
            (double)(rp_clock_ns() - serve->start_ns) * 1e-9);
    if (rp_server_admin_port(serve->server))
        fprintf(stderr, "admin: /metrics and /debug on %s port %u\n", serve->options.admin_host,
                rp_server_admin_port(serve->server));
    if (rp_serve_is_exposed(&serve->options))
        fprintf(stderr, "%s\n",
                serve->options.metrics_on_main ? "metrics: /metrics is also served here, with a key"
                : rp_server_admin_port(serve->server)
                    ? "metrics: not served here; --metrics-on-main changes that"
                    : "metrics: /metrics and /debug are not served; see --admin-port and "
                      "--metrics-on-main");
    if (serve->templates)
        fprintf(stderr, "chat in a browser: %s/\n", url);
    fprintf(stderr, "curl %s/v1/%s -H 'Content-Type: application/json'%s -d '%s'\n", url,
            serve->templates ? "chat/completions" : "completions",
            serve->auth.count ? " -H \"Authorization: Bearer $REPRISE_API_KEY\"" : "",
            serve->templates ? "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}"
                             : "{\"prompt\": \"Once upon a time\", \"max_tokens\": 32}");
}

static void describe(struct serve *serve, const char *model_arg, const char *dir,
                     struct rp_serving *out) {
    const struct rp_model_config *model = &serve->stack.model.config;
    rp_serve_model_name(&serve->options, model_arg, dir, serve->name, sizeof serve->name);
    *out =
        (struct rp_serving){.engine = serve->stack.engine,
                            .kv_events = rp_engine_kv_events(serve->stack.engine),
                            .has_driver = strcmp(serve->stack.selection.backend->name, "cpu") != 0,
                            .power = serve->power,
                            .tokenizer = serve->stack.tokenizer,
                            .templates = serve->templates,
                            .dialect = serve->dialect.bound,
                            .free_calls = !serve->options.enforce_tools,
                            .text_arguments = serve->dialect.text_arguments,
                            .model_name = serve->name,
                            .model_aliases = serve->options.model_alias,
                            .model_root = dir,
                            .vocab_size = model->vocab,
                            .default_temperature = (double)model->default_temperature,
                            .default_top_p = (double)model->default_top_p,
                            .default_top_k = model->default_top_k,
                            .mask = serve->stack.model.mask,
                            .startup = {{"device", serve->stack.device_s},
                                        {"tokenizer", serve->stack.tokenizer_s},
                                        {"weights", serve->stack.weights_s},
                                        {"engine", serve->stack.engine_s}},
                            .seed = serve->options.seed,
                            .write_flags = rp_serve_write_flags,
                            .write_flags_ctx = &serve->options};
    for (uint32_t i = 0; i < model->eos_count && i < RP_ARRAY_COUNT(out->stop_ids); i++)
        out->stop_ids[out->stop_id_count++] = (int32_t)model->eos_ids[i];
}

static void publish_power(void *ctx, uint32_t milliwatts) { rp_engine_set_power(ctx, milliwatts); }

/* Reads power from the driver, or the CPU's energy, if possible; the server does not depend on
 * it. */
static void start_power(struct serve *serve) {
    struct rp_device_info info;
    struct rp_error err = {0};
    rp_engine_device_info(serve->stack.engine, &info);
    const char *rapl_dir = info.pci_bus_id[0] ? NULL : serve->options.rapl_dir;
    if (!info.pci_bus_id[0] && (!rapl_dir || !*rapl_dir))
        return;
    struct rp_power_config config = {
        .pci_bus_id = info.pci_bus_id,
        .rapl_dir = rapl_dir,
        .publish = publish_power,
        .publish_ctx = serve->stack.engine,
        .tokens = &rp_engine_metrics(serve->stack.engine)->generation_tokens,
        .ring = rp_recorder_add(rp_server_recorder(serve->server), "power", RP_RECORDER_SMALL)};
    /* Few CPUs have readable counters: no news unless a directory was given. */
    bool is_expected = rapl_dir && strcmp(rapl_dir, RP_RAPL_DIR) == 0;
    if (rp_power_start(&config, &serve->power, &err) != RP_OK)
        rp_log(is_expected ? RP_LOG_DEBUG : RP_LOG_INFO, "power of the %s is not available: %s",
               rapl_dir ? "CPU" : "GPU", err.text);
}

/* Templates are optional: if the model's own cannot be read, only the chat route is disabled; an
 * explicitly given one must be valid. */
static int open_templates(struct serve *serve, const char *dir, struct rp_error *err) {
    int status = rp_serve_open_templates(&serve->options, dir, &serve->templates, err);
    if (serve->templates)
        rp_log(RP_LOG_DEBUG, "start: chat template source=%s",
               rp_chat_templates_source(serve->templates));
    return status;
}

/* The server exists; everything else is created and destroyed here. */
static int serve_model(struct serve *serve, const char *model_arg, struct rp_error *err) {
    const char *dir = model_arg;
    enum rp_exit code = RP_EXIT_OK;
    struct rp_serving serving;
    if (rp_model_locate(&dir, err) != RP_OK || rp_model_dir_check(dir, err) != RP_OK ||
        open_templates(serve, dir, err) != RP_OK) {
        rp_server_destroy(serve->server);
        return rp_fail(RP_EXIT_MODEL, err);
    }
    if (rp_stack_open(
            &serve->stack, dir, &serve->options.engine, rp_server_wake, serve->server,
            rp_recorder_add(rp_server_recorder(serve->server), "engine", RP_RECORDER_ENGINE), true,
            &code, err) != RP_OK) {
        rp_server_destroy(serve->server);
        rp_chat_templates_close(serve->templates);
        return rp_fail(code, err);
    }
    int exit_code = RP_EXIT_OK;
    if (rp_serve_dialect_open(&serve->options, serve->stack.tokenizer, serve->templates,
                              &serve->dialect, err) != RP_OK) {
        exit_code = rp_fail(err->status == RP_STATUS_INVALID ? RP_EXIT_USAGE : RP_EXIT_MODEL, err);
        goto close;
    }
    print_plan(&serve->stack);
    start_power(serve);
    describe(serve, model_arg, dir, &serving);
    if (rp_engine_start(serve->stack.engine, err) == RP_OK)
        exit_code = rp_server_run(serve->server, &serving, on_ready, serve);
    else
        exit_code = rp_fail(RP_EXIT_DEVICE, err);
    if (exit_code == RP_EXIT_FATAL_DEVICE)
        rp_stack_exit_failed(); /* all answers have been sent */
    rp_engine_stop(serve->stack.engine);
    rp_power_stop(serve->power);
close:
    rp_server_destroy(serve->server);
    rp_serve_dialect_close(&serve->dialect);
    rp_stack_close(&serve->stack);
    rp_chat_templates_close(serve->templates);
    return exit_code;
}

/* Files are the owner's alone, and a crash leaves no core dump, which would contain prompts and
 * keys. */
static void keep_secrets(const struct rp_serve_options *options) {
    const struct rlimit none = {0, 0};
    umask(0077);
    if (!options->core_dumps)
        (void)setrlimit(RLIMIT_CORE, &none);
}

int rp_cmd_serve(int argc, char **argv) {
    static struct serve serve; /* static: it contains the keys */
    const char *positionals[RP_POSITIONALS_MAX];
    struct rp_server_config config;
    struct rp_error err = {0};
    serve.start_ns = rp_clock_ns();
    int status = rp_flags_parse(&rp_serve_spec, argc, argv, &serve.options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    rp_log_set_level((enum rp_log_level)serve.options.log_level);
    keep_secrets(&serve.options);
    /* No other thread exists yet: all will inherit it. */
    if (rp_placement_apply(serve.options.cpu_affinity, serve.options.numa, &err) != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &err);
    status = rp_serve_config(&serve.options, &serve.auth, &config, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &err);
    if (config.kv_events.enabled)
        serve.options.engine.kv_event_capacity = config.kv_events.max_queue_size;
    status = rp_server_create(&config, &serve.server, &err);
    if (status == RP_STATUS_IN_USE && !*err.hint)
        rp_error_hint(&err, "stop the process that uses it, or try --port %u", config.port + 1);
    if (status != RP_OK)
        return rp_fail(status == RP_STATUS_IN_USE ? RP_EXIT_PORT
                       : status == RP_STATUS_INVALID || status == RP_STATUS_NOT_FOUND ||
                               status == RP_STATUS_FORMAT
                           ? RP_EXIT_USAGE
                           : RP_EXIT_FAILURE,
                       &err);
    int code = serve_model(&serve, positionals[0], &err);
    rp_auth_deinit(&serve.auth);
    return code;
}
