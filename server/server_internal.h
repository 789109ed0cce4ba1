/* server_internal.h - state of one running server, shared by the files of server/.
 * Thread: loop. */
#ifndef RP_SERVER_SERVER_INTERNAL_H
#define RP_SERVER_SERVER_INTERNAL_H

#include "metrics/metrics.h"
#include "server/http/auth.h"
#include "server/http_server.h"
#include "server/observe/goodput.h"
#include "server/observe/request_log.h"
#include "server/observe/server_metrics.h"
#include "server/observe/status_history.h"
#include "server/service_notify.h"

#include <time.h>
#include <uv.h>

struct rp_conn;
struct rp_completion;
struct rp_text_scratch;
struct rp_profile_session;
struct rp_trace_work;
struct rp_grammar_service;
struct rp_response_store;
struct rp_kv_publisher;

enum rp_server_phase {
    RP_SERVER_STARTING,
    RP_SERVER_SERVING,
    RP_SERVER_LEAVING,  /* not ready, but requests are served: gateways notice meanwhile */
    RP_SERVER_DRAINING, /* open completions finish, new ones get 503 */
    RP_SERVER_STOPPING, /* all open requests have been cancelled */
    RP_SERVER_CLOSING   /* handles are being closed */
};

/* A TCP or Unix socket. */
union rp_socket {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
};

struct rp_listener {
    union rp_socket socket;
    struct rp_server *server;
    uint32_t port;
    bool is_open, is_admin, is_local; /* is_local: bound to loopback, or a Unix socket */
    bool is_unix, has_tls;
    union rp_socket refused; /* accepts and closes a connection when memory is out (http_conn.c) */
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
    uv_signal_t sigterm, sigint, sigusr2, sighup;
    struct rp_listener listeners[2];

    time_t date_s; /* the second that `date` shows */
    char date[32]; /* of the Date header field */

    struct rp_tls *tls; /* NULL: none */

    struct rp_conn *conns;
    uint64_t conn_numbers; /* connections so far */
    uint32_t conn_count;
    uint64_t unread_turn;      /* conn_unread.c: ticks so far */
    uint32_t refused_unlogged; /* connections refused since the last log line about them */
    uint64_t refused_log_ns;   /* no such line before this time */
    struct rp_completion *completions;
    uint32_t completion_count;
    uint64_t bodies_bytes; /* bytes of request bodies being received, all connections */
    uint64_t bodies_peak_bytes;

    /* Answers in progress per API key, and tokens of these answers and their prompts. */
    uint32_t key_open[RP_KEYS_MAX];
    uint64_t key_tokens[RP_KEYS_MAX];

    struct rp_service_notify notify;
    uint64_t drain_ns, drain_deadline_ns, stop_deadline_ns; /* drain_ns: when draining begins */
    uint64_t start_ns, next_id, seed_counter, id_secret;
    uint64_t call_key[2], call_count; /* of the ids of tool calls */

    /* Tokenizer scratch buffers not in use by a worker (text_work.c). */
    uv_mutex_t scratch_lock;
    struct rp_text_scratch *scratches;
    uint32_t work_count;   /* jobs in the thread pool */
    uint32_t report_count; /* the jobs among them that build a report (report_work.c) */
    struct rp_profile_session *profile_session; /* or NULL */
    struct rp_grammar_service *grammars;
    struct rp_response_store *responses;
    bool late_system; /* the chat template takes system messages anywhere (chat_probe.h) */

    struct rp_otlp *otlp;                 /* export of traces and metrics, or NULL */
    struct rp_flight *flight;             /* automatic dumps, or NULL */
    struct rp_kv_publisher *kv_publisher; /* or NULL */
    /* the trace being streamed to a client, or NULL (api_debug_trace.c) */
    struct rp_trace_work *trace_work;
    struct rp_recorder *recorder;
    struct rp_trace_ring *ring; /* the loop thread's */
    uv_prepare_t prepare;       /* measures the loop's poll time (server_trace.c) */
    uv_check_t check;
    uint64_t poll_ns;

    struct rp_request_log log;
    struct rp_goodput goodput;
    struct rp_server_metrics metrics;
    struct rp_status_history history;
    struct rp_registry registry;

    /* Names of unknown fields already logged (params.c). */
    char unknown_fields[64][48];
    uint32_t unknown_field_count;

    char read_buffer[65536];
};

/* Initializes the handle of a connection to this listener, or of the listener itself. */
int rp_listener_init_socket(struct rp_listener *listener, union rp_socket *socket);
/* Stops the loop once nothing is open; call after anything has closed. */
void rp_server_check_drained(struct rp_server *server);
/* Why the server is not ready, or NULL. */
const char *rp_server_not_ready(struct rp_server *server);
/* Unpredictable; never zero. */
uint64_t rp_server_random(struct rp_server *server);
/* 16 unpredictable hexadecimal digits and a NUL. */
void rp_server_new_id(struct rp_server *server, char out[17]);

#endif
