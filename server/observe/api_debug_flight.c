/* api_debug_flight.c - GET /debug/flight: automatic trace dumps, newest first. */
#include "server/http/api_reply.h"
#include "server/http/http_conn.h"
#include "server/http/router.h"
#include "server/observe/flight.h"

void rp_api_debug_flight(struct rp_conn *conn) {
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    rp_flight_describe(conn->server->flight, &json);
    rp_json_object_end(&json);
    rp_api_reply_json(conn, 200, &body);
}
