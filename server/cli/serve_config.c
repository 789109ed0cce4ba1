#include "server/cli/serve_config.h"

#include "server/cli/hub_cache.h"

#include "base/json_writer.h"
#include "base/log.h"
#include "server/http/cors.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* For spans and metrics that are left at the end. */
#define OTLP_FLUSH_S 2

static bool is_set(const char *text) { return text && *text; }

static bool is_loopback(const char *host) {
    struct in6_addr v6;
    struct in_addr v4;
    if (strcmp(host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool rp_serve_is_exposed(const struct rp_serve_options *options) {
    return !is_set(options->uds) && !is_loopback(options->host);
}

int rp_serve_read_keys(void *ctx, struct rp_auth *auth, struct rp_error *err) {
    const struct rp_serve_options *options = ctx;
    const char *alias = getenv("VLLM_API_KEY"), *ours = getenv("REPRISE_API_KEY");
    int status = RP_OK;
    memset(auth, 0, sizeof *auth);
    if (is_set(options->api_key_file))
        status = rp_auth_read_file(auth, options->api_key_file, err);
    if (status == RP_OK && is_set(options->api_key)) {
        status = rp_auth_add(auth, options->api_key, strlen(options->api_key), err);
        if (!ours || strcmp(ours, options->api_key) != 0)
            rp_log(RP_LOG_WARN, "server: --api-key is visible in the process list; prefer "
                                "--api-key-file or REPRISE_API_KEY");
    }
    if (status == RP_OK && auth->count == 0 && is_set(alias))
        status = rp_auth_add(auth, alias, strlen(alias), err);
    for (uint32_t i = 0; i < auth->count; i++)
        if (auth->keys[i].limit == 0)
            auth->keys[i].limit = options->key_limit;
    return status;
}

int rp_serve_config(const struct rp_serve_options *options, struct rp_auth *out_auth,
                    struct rp_server_config *out_config, struct rp_error *err) {
    int status = rp_serve_read_keys((void *)options, out_auth, err);
    if (status != RP_OK)
        return status;
    if (options->served_model_name && strlen(options->served_model_name) >= RP_MODEL_NAME_BYTES)
        return rp_error_set(err, RP_STATUS_INVALID,
                            "--served-model-name: a name can have up to %d bytes",
                            RP_MODEL_NAME_BYTES - 1);
    if (is_set(options->allowed_origins) &&
        (status = rp_cors_check(options->allowed_origins, err)) != RP_OK)
        return status;
    bool exposed =
        rp_serve_is_exposed(options) || (options->admin_port && !is_loopback(options->admin_host));
    if (exposed && out_auth->count == 0 && !options->insecure_no_auth) {
        status = rp_error_set(err, RP_STATUS_INVALID,
                              "without an API key only loopback is allowed, but --host or "
                              "--admin-host is not a loopback address");
        rp_error_hint(err, "add --api-key-file FILE, or --insecure-no-auth on a trusted network");
        return status;
    }
    if (is_set(options->trace_dir) && (!options->trace_seconds || !options->trace_mib))
        return rp_error_set(err, RP_STATUS_INVALID,
                            "--trace-dir requires recording: --trace-seconds and --trace-mib "
                            "must not be 0");
    if (is_set(options->tls_cert) != is_set(options->tls_key))
        return rp_error_set(err, RP_STATUS_INVALID, "--tls-cert and --tls-key belong together");
    memset(out_config, 0, sizeof *out_config);
    out_config->tls_cert = is_set(options->tls_cert) ? options->tls_cert : NULL;
    out_config->tls_key = options->tls_key;
    out_config->uds = is_set(options->uds) ? options->uds : NULL;
    out_config->allowed_origins = options->allowed_origins;
    out_config->allowed_hosts = options->allowed_hosts;
    out_config->host = options->host;
    out_config->port = options->port;
    out_config->admin_host = options->admin_host;
    out_config->admin_port = options->admin_port ? (int32_t)options->admin_port : -1;
    out_config->max_connections = options->max_connections;
    out_config->shutdown_timeout_ms = (uint32_t)(options->shutdown_timeout_s * 1000.0);
    out_config->drain_delay_ms = (uint32_t)(options->drain_delay_s * 1000.0);
    out_config->request_timeout_ns = (uint64_t)(options->request_timeout_s * 1e9);
    out_config->queue_timeout_ns = (uint64_t)(options->queue_timeout_s * 1e9);
    out_config->watchdog_ms = (uint32_t)(options->engine.watchdog_timeout_s * 1000.0);
    out_config->sandbox = (enum rp_sandbox_mode)options->sandbox;
    out_config->metrics_on_main = options->metrics_on_main;
    out_config->price_per_hour = options->price_per_hour;
    out_config->ollama = options->ollama;
    out_config->responses_store_bytes = options->responses_store_bytes;
    out_config->vllm_metrics = options->vllm_metrics;
    rp_http_limits_init(&out_config->limits);
    /* Stored responses are trees, too. */
    out_config->limits.json_live_bytes += options->responses_store_bytes;
    out_config->limits.idle_ms = (uint32_t)(options->timeout_keep_alive_s * 1000.0);
    out_config->slo = (struct rp_slo){.ttft_ns = (uint64_t)(options->slo_ttft_ms * 1e6),
                                      .tpot_ns = (uint64_t)(options->slo_tpot_ms * 1e6),
                                      .e2e_ns = (uint64_t)(options->slo_e2e_ms * 1e6),
                                      .itl_ns = (uint64_t)(options->engine.slo_itl_ms * 1e6)};
    out_config->auth = out_auth;
    if (is_set(options->api_key_file)) {
        out_config->reload_keys = rp_serve_read_keys;
        out_config->reload_ctx = (void *)options;
    }
    out_config->flight =
        (struct rp_flight_config){.dir = options->trace_dir,
                                  .bytes_max = (uint64_t)options->trace_dir_mib << 20,
                                  .interval_s = options->trace_interval_s,
                                  .seconds = options->trace_dump_seconds,
                                  .preemptions = options->trace_preemptions,
                                  .step_factor = options->slow_step_factor};
    out_config->otlp = (struct rp_otlp_config){.endpoint = options->otlp_endpoint,
                                               .sample_ratio = options->otlp_sample_ratio,
                                               .interval_s = options->otlp_interval_s,
                                               .flush_s = OTLP_FLUSH_S};
    if ((status = rp_otlp_check(&out_config->otlp, err)) != RP_OK)
        return status;
    if ((status = rp_kv_config_parse(options->kv_events_config, &out_config->kv_events, err)) !=
        RP_OK)
        return status;
    if (out_config->kv_events.enabled && !options->engine.enable_prefix_caching)
        return rp_error_set(err, RP_STATUS_INVALID,
                            "--kv-events-config: requires --enable-prefix-caching");
    out_config->recorder.seconds = options->trace_seconds;
    out_config->recorder.mib = options->trace_mib;
    return RP_OK;
}

void rp_serve_model_name(const struct rp_serve_options *options, const char *model_arg,
                         const char *dir, char *out, size_t size) {
    struct rp_hub_name hub;
    if (is_set(options->served_model_name)) {
        snprintf(out, size, "%s", options->served_model_name);
        return;
    }
    if (strcmp(model_arg, dir) != 0 && rp_hub_name_parse(model_arg, &hub)) {
        snprintf(out, size, "%s", hub.id);
        return;
    }
    /* Resolves ".", ".." and symbolic links. */
    char full[PATH_MAX];
    const char *last = realpath(dir, full) ? strrchr(full, '/') : NULL;
    snprintf(out, size, "%s", last && last[1] ? last + 1 : "model");
}

/* By its name, as on the command line. */
static void write_choice(const struct rp_flag *flag, uint32_t index, struct rp_json *json) {
    const char *name = flag->value_name;
    char text[64];
    for (; index > 0; index--)
        name += strcspn(name, "|") + 1;
    snprintf(text, sizeof text, "%.*s", (int)strcspn(name, "|"), name);
    rp_json_string(json, flag->name, text);
}

void rp_serve_write_flags(void *ctx, struct rp_json *json) {
    for (uint32_t i = 0; i < rp_serve_spec.flag_count; i++) {
        const struct rp_flag *flag = &rp_serve_spec.flags[i];
        const char *from = (const char *)ctx + flag->offset, *text;
        switch (flag->type) {
        case RP_FLAG_SWITCH:
            rp_json_bool(json, flag->name, *(const bool *)from);
            break;
        case RP_FLAG_CHOICE:
            write_choice(flag, *(const uint32_t *)(const void *)from, json);
            break;
        case RP_FLAG_UINT:
            rp_json_uint(json, flag->name, *(const uint32_t *)(const void *)from);
            break;
        case RP_FLAG_SIZE:
            rp_json_uint(json, flag->name, *(const uint64_t *)(const void *)from);
            break;
        case RP_FLAG_REAL:
            rp_json_double(json, flag->name, *(const double *)(const void *)from);
            break;
        case RP_FLAG_TEXT:
            text = *(const char *const *)(const void *)from;
            if (strcmp(flag->name, "api-key") == 0)
                rp_json_bool(json, flag->name, is_set(text));
            else if (is_set(text))
                rp_json_string(json, flag->name, text);
            else
                rp_json_null(json, flag->name);
            break;
        }
    }
}

int rp_serve_open_templates(const struct rp_serve_options *options, const char *dir,
                            struct rp_chat_templates **out, struct rp_error *err) {
    *out = NULL;
    const char *named = is_set(options->chat_template) ? options->chat_template : NULL;
    int status = rp_chat_templates_open(dir, named, out, err);
    if (status == RP_OK || named || status == RP_STATUS_NO_MEMORY)
        return status;
    rp_log(status == RP_STATUS_NOT_FOUND ? RP_LOG_INFO : RP_LOG_WARN,
           "server: no chat: %s; set one with --chat-template FILE", err->text);
    *out = NULL;
    memset(err, 0, sizeof *err);
    return RP_OK;
}
