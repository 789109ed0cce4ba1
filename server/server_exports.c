#include "server/server_exports.h"

#include "base/log.h"
#include "engine/observe/power.h"
#include "server/api/grammar_service.h"
#include "server/observe/kv_publisher.h"
#include "server/server_internal.h"

#include <string.h>

static void register_metrics(struct rp_server *server) {
    struct rp_metric_sources sources = {.engine = server->serving.engine,
                                        .recorder = server->recorder,
                                        .price_per_hour = server->config.price_per_hour,
                                        .model_name = server->serving.model_name};
    memcpy(sources.startup, server->serving.startup, sizeof sources.startup);
    rp_server_metrics_register(&server->metrics, &sources, &server->registry);
    rp_goodput_register(&server->goodput, &server->registry);
    rp_grammar_service_register(server->grammars, &server->registry);
    if (server->serving.power)
        rp_power_register(server->serving.power, &server->registry);
}

int rp_server_exports_start(struct rp_server *server) {
    struct rp_error err = {0};
    const char *flag = "--trace-dir";
    register_metrics(server);
    int status = rp_flight_start(server, &server->flight, &err);
    if (status == RP_OK) {
        flag = "--otlp-endpoint";
        status = rp_otlp_start(server, &server->otlp, &err);
    }
    if (status == RP_OK && server->kv_publisher && server->serving.kv_events) {
        flag = "--kv-events-config";
        status = rp_kv_publisher_start(server->kv_publisher, server->serving.kv_events, &err);
    }
    if (status != RP_OK) {
        rp_log(RP_LOG_ERROR, "server: %s: %s", flag, err.text);
        rp_server_exports_stop(server);
        return status;
    }
    server->log.ended = rp_otlp_put;
    server->log.ended_ctx = server->otlp;
    rp_flight_register(server->flight, &server->registry);
    rp_otlp_register(server->otlp, &server->registry);
    rp_kv_publisher_register(server->kv_publisher, &server->registry);
    return RP_OK;
}

void rp_server_exports_stop(struct rp_server *server) {
    struct rp_otlp *otlp = server->otlp;
    server->otlp = NULL;
    server->log.ended = NULL;
    rp_otlp_stop(otlp);
    rp_kv_publisher_stop(server->kv_publisher);
    rp_flight_stop(server->flight);
    server->flight = NULL;
}
