/* server_internal.h - what the files of server/ share about one running server.
 * Thread: loop. */
#ifndef RP_SERVER_SERVER_INTERNAL_H
#define RP_SERVER_SERVER_INTERNAL_H

#include "metrics/metrics.h"
#include "server/http_server.h"
#include "server/server_metrics.h"

#include <uv.h>

struct rp_conn;
struct rp_completion;
struct rp_text_scratch;

enum rp_server_phase {
    RP_SERVER_STARTING,
    RP_SERVER_SERVING,
    RP_SERVER_DRAINING, /* open completions finish, new ones get 503 */
    RP_SERVER_STOPPING, /* everything that is open has been cancelled */
    RP_SERVER_CLOSING   /* handles are being closed */
};

struct rp_listener {
    uv_tcp_t tcp;
    struct rp_server *server;
    uint32_t port;
    bool is_open, is_admin, is_local; /* is_local: bound to loopback */
    uv_tcp_t refused;                 /* a connection that finds no memory (http_conn.c) */
    bool refusing, refuse_again;
};

struct rp_server {
    struct rp_server_config config;
    struct rp_serving serving;
    enum rp_server_phase phase;
    int exit_code;
    bool running; /* inside rp_server_run's loop */

    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t tick;
    uv_signal_t sigterm, sigint;
    struct rp_listener listeners[2];

    struct rp_conn *conns;
    uint32_t conn_count;
    struct rp_completion *completions;
    uint32_t completion_count;
    uint64_t bodies_bytes; /* of all connections */

    uint64_t drain_deadline_ns, stop_deadline_ns;
    uint64_t start_ns, next_id, seed_counter, id_secret;

    /* Scratches of the tokenizer that no worker holds (text_work.c). */
    uv_mutex_t scratch_lock;
    struct rp_text_scratch *scratches;
    uint32_t work_count; /* text jobs in the thread pool */

    struct rp_server_metrics metrics;
    struct rp_registry registry;

    /* Names of unknown fields that the log has already shown (params.c). */
    char unknown_fields[64][48];
    uint32_t unknown_field_count;

    char read_buffer[65536];
};

/* Stops when nothing is open any more; called whenever something has closed. */
void rp_server_check_drained(struct rp_server *server);
/* Why the server is not ready, or NULL. */
const char *rp_server_not_ready(struct rp_server *server);
/* 16 hexadecimal digits that nobody can guess, and a NUL. */
void rp_server_new_id(struct rp_server *server, char out[17]);

#endif
