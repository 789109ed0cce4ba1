/* fake_main.c - the server with a fake engine (fake_engine.h): `fake_reprise TOKENIZER [serve's
 * flags]`. Environment: FAKE_STEP_US, FAKE_KV_TOKENS, FAKE_TIMEOUT_MS (every phase),
 * FAKE_STREAM_BYTES, FAKE_STUCK_MS. The n-th SIGUSR1 makes the n-th following allocation fail.
 * Exits with the server's code, or 99 if requests are still open. */
#include "base/log.h"
#include "base/memory.h"
#include "server/cli/serve_config.h"
#include "server/cli/serve_dialect.h"
#include "tests/http/fake_engine.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

struct context {
    struct rp_serve_options options;
    struct rp_server *server;
};

static uint32_t from_environment(const char *name, uint32_t otherwise) {
    const char *text = getenv(name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

static void on_ready(void *ctx) {
    struct context *context = ctx;
    printf("ready port=%u admin_port=%u\n", rp_server_port(context->server),
           rp_server_admin_port(context->server));
    fflush(stdout);
}

static void on_usr1(int number) {
    static volatile sig_atomic_t n;
    (void)number;
    rp_alloc_fail_at((uint64_t)++n);
}

static void set_limits(struct rp_http_limits *limits) {
    uint32_t timeout = from_environment("FAKE_TIMEOUT_MS", 0);
    if (timeout)
        limits->header_ms = limits->body_ms = limits->idle_ms = limits->write_stall_ms =
            limits->linger_ms = timeout;
    limits->stream_bytes = from_environment("FAKE_STREAM_BYTES", limits->stream_bytes);
    limits->keep_alive_ms = from_environment("FAKE_KEEP_ALIVE_MS", limits->keep_alive_ms);
    limits->stuck_ms = from_environment("FAKE_STUCK_MS", limits->stuck_ms);
}

static int serve(struct context *context, struct rp_auth *auth, const char *path) {
    struct rp_serve_options *options = &context->options;
    struct rp_server_config config;
    struct rp_error err = {0};
    struct rp_tokenizer *tok;
    struct rp_chat_templates *templates = NULL;
    char name[RP_MODEL_NAME_BYTES];
    if (rp_serve_config(options, auth, &config, &err) != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &err);
    set_limits(&config.limits);
    if (rp_tokenizer_open(path, &tok, &err) != RP_OK)
        return rp_fail(RP_EXIT_MODEL, &err);
    if (rp_serve_open_templates(options, path, &templates, &err) != RP_OK) {
        rp_tokenizer_close(tok);
        return rp_fail(RP_EXIT_MODEL, &err);
    }
    struct rp_serve_dialect dialect;
    if (rp_serve_dialect_open(options, tok, templates, &dialect, &err) != RP_OK) {
        rp_serve_dialect_close(&dialect);
        rp_chat_templates_close(templates);
        rp_tokenizer_close(tok);
        return rp_fail(RP_EXIT_MODEL, &err);
    }
    if (rp_server_create(&config, &context->server, &err) != RP_OK) {
        rp_serve_dialect_close(&dialect);
        rp_chat_templates_close(templates);
        rp_tokenizer_close(tok);
        return rp_fail(err.status == RP_STATUS_IN_USE ? RP_EXIT_PORT : RP_EXIT_USAGE, &err);
    }
    struct rp_fake_config fake = {
        .max_num_seqs = options->engine.max_num_seqs ? options->engine.max_num_seqs : 64,
        .queue_capacity = options->engine.max_num_queued_reqs,
        .max_model_len = options->engine.max_model_len ? options->engine.max_model_len : 4096,
        .step_us = from_environment("FAKE_STEP_US", 100),
        .kv_tokens = from_environment("FAKE_KV_TOKENS", 1u << 20),
        .answer_open = RP_MAX(rp_tokenizer_find(tok, "<|say|>", 7), 0),
        .answer_close = RP_MAX(rp_tokenizer_find(tok, "<|/say|>", 8), 0),
        .answer_end = RP_MAX(rp_tokenizer_find(tok, "</s>", 4), 0),
        .wake = rp_server_wake,
        .wake_ctx = context->server};
    struct rp_engine *engine = rp_fake_engine_create(&fake);
    rp_serve_model_name(options, path, path, name, sizeof name);
    struct rp_serving serving = {.engine = engine,
                                 .tokenizer = tok,
                                 .templates = templates,
                                 .dialect = dialect.bound,
                                 .free_calls = !options->enforce_tools,
                                 .text_arguments = dialect.text_arguments,
                                 .model_name = name,
                                 .model_aliases = options->model_alias,
                                 .model_root = path,
                                 .vocab_size = rp_tokenizer_vocab_size(tok),
                                 .default_temperature = NAN,
                                 .default_top_p = NAN,
                                 .seed = options->seed,
                                 .write_flags = rp_serve_write_flags,
                                 .write_flags_ctx = options};
    int32_t eos = rp_tokenizer_find(tok, "</s>", 4);
    if (eos >= 0)
        serving.stop_ids[serving.stop_id_count++] = eos;
    int code = RP_EXIT_DEVICE;
    if (rp_engine_start(engine, &err) == RP_OK)
        code = rp_server_run(context->server, &serving, on_ready, context);
    else
        rp_fail(RP_EXIT_DEVICE, &err);
    rp_engine_stop(engine);
    rp_server_destroy(context->server);
    uint32_t open = rp_fake_engine_open(engine);
    rp_engine_destroy(engine);
    rp_serve_dialect_close(&dialect);
    rp_chat_templates_close(templates);
    rp_tokenizer_close(tok);
    return open ? 99 : code;
}

int main(int argc, char **argv) {
    static struct context context;
    static struct rp_auth auth;
    const char *positionals[RP_POSITIONALS_MAX];
    struct rp_error err = {0};
    int status = rp_flags_parse(&rp_serve_spec, argc, argv, &context.options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    rp_log_set_level((enum rp_log_level)context.options.log_level);
    signal(SIGUSR1, on_usr1);
    int code = serve(&context, &auth, positionals[0]);
    rp_auth_deinit(&auth);
    return code;
}
