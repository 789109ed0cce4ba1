/* api_metrics.c - /metrics: selects the format, the metric names and compression. */
#include "metrics/tick.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/http_gzip.h"
#include "server/http/http_query.h"
#include "server/http/router.h"
#include "server/server_trace.h"

#include <stdio.h>

/* Smaller answers are not compressed. */
enum { GZIP_BYTES_MIN = 1400 };

static void reply(struct rp_conn *conn, enum rp_exposition format, const struct rp_buffer *body,
                  bool gzipped) {
    rp_conn_reply(conn, 200, rp_exposition_type(format),
                  gzipped ? "Vary: Accept, Accept-Encoding\r\nContent-Encoding: gzip\r\n"
                          : "Vary: Accept, Accept-Encoding\r\n",
                  body->data, body->len);
}

void rp_api_metrics(struct rp_conn *conn) {
    enum { NONE, VLLM, OTEL };
    static const unsigned sets[] = {RP_METRICS_OWN, RP_METRICS_OWN | RP_METRICS_VLLM,
                                    RP_METRICS_OWN | RP_METRICS_OTEL};
    struct rp_server *server = conn->server;
    uint32_t compat = server->config.vllm_metrics ? VLLM : NONE;
    const struct rp_query_param params[] = {
        {.name = "compat", .type = RP_QUERY_CHOICE, .choices = "none|vllm|otel", .value = &compat}};
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return;
    const char *accept = rp_http_head_find(&conn->head, "accept", NULL);
    const char *encodings = rp_http_head_find(&conn->head, "accept-encoding", NULL);
    enum rp_exposition format = rp_exposition_accepted(accept);
    struct rp_buffer body = {.data = NULL}, packed = {.data = NULL};
    uint64_t begin_ns = rp_tick_ns();
    rp_server_metrics_sample(&server->metrics);
    rp_buffer_reserve(&body, 96 * 1024);
    rp_exposition_write(&server->registry, format, sets[compat], &body);
    if (body.failed)
        rp_conn_fail(conn, 503, "overloaded", "out of memory");
    else if (body.len >= GZIP_BYTES_MIN && rp_http_accepts_gzip(encodings) &&
             rp_http_gzip(body.data, body.len, 1, &packed))
        reply(conn, format, &packed, true);
    else
        reply(conn, format, &body, false);
    rp_server_span(server, RP_TRACE_SCRAPE, begin_ns, body.len);
    rp_buffer_deinit(&body);
    rp_buffer_deinit(&packed);
}
