#include "server/http_server.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "metrics/stack_sampler.h"
#include "server/api/chat_probe.h"
#include "server/api/completion.h"
#include "server/api/grammar_service.h"
#include "server/api/response_store.h"
#include "server/api/server_keys.h"
#include "server/api/text_work.h"
#include "server/http/http_conn.h"
#include "server/http/json_body.h"
#include "server/http/tls.h"
#include "server/observe/kv_publisher.h"
#include "server/observe/profile_session.h"
#include "server/server_exports.h"
#include "server/server_trace.h"
#include "server/server_workers.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    TICK_MS = 100,
    BACKLOG = 1024,
    FDS_FOR_OTHERS = 64,     /* files, dumps, counters, connections being refused */
    FDS_FOR_OTHERS_MIN = 24, /* of a small limit */
    CONNECTIONS_MIN = 4,
    GRAMMAR_THREADS = 2,
    EXIT_FAILED = 1,
    EXIT_PORT = 5,
    EXIT_DEVICE = 70
};

void rp_http_limits_init(struct rp_http_limits *limits) {
    *limits = (struct rp_http_limits){
        .header_ms = 10000,
        .body_ms = 30000,
        .idle_ms = 75000,
        .write_stall_ms = 30000,
        .linger_ms = 2000,
        .header_bytes = 16 << 10,
        .header_count = 100,
        .target_bytes = 8 << 10,
        .body_bytes = 8 << 20,
        .bodies_bytes = (uint64_t)256 << 20,
        .json_bytes = (uint64_t)64 << 20,
        .json_live_bytes = (uint64_t)512 << 20,
        .json_depth = 64,
        .stream_bytes = 1 << 20,
        .pipeline_bytes = 64 << 10,
        .keep_alive_ms = 10000,
        .stuck_ms = 5000,
    };
}

uint64_t rp_server_random(struct rp_server *server) {
    uint64_t counter = ++server->next_id;
    uint64_t number = rp_hash64(&counter, sizeof counter, server->id_secret);
    return number ? number : 1;
}

void rp_server_new_id(struct rp_server *server, char out[17]) {
    snprintf(out, 17, "%016" PRIx64, rp_server_random(server));
}

static bool is_stuck(const struct rp_server *server) {
    uint64_t stuck_ns = (uint64_t)server->config.limits.stuck_ms * 1000000u;
    /* Uses the server's own list: the gauges of a hung engine do not change. */
    return server->completions &&
           rp_clock_ns() > rp_engine_last_progress_ns(server->serving.engine) + stuck_ns;
}

const char *rp_server_not_ready(struct rp_server *server) {
    const struct rp_engine *engine = server->serving.engine;
    if (server->phase == RP_SERVER_STARTING)
        return "the server is starting";
    if (!rp_engine_is_healthy(engine))
        return "the device has failed";
    if (server->phase >= RP_SERVER_LEAVING)
        return "the server is shutting down";
    if (is_stuck(server))
        return "requests are open and no step has completed";
    if (!rp_engine_is_consistent(engine))
        return "an invariant of the engine is broken, see the log; restart the server";
    return NULL;
}

/* --- Ending ---------------------------------------------------------------------------------- */

static void close_listener(struct rp_listener *listener) {
    if (listener->is_open)
        uv_close(&listener->socket.handle, NULL);
    listener->is_open = false;
}

/* Closes every handle the loop waits for; rp_server_run returns when none is left. */
static void close_all(struct rp_server *server) {
    if (server->phase == RP_SERVER_CLOSING)
        return;
    server->phase = RP_SERVER_CLOSING;
    close_listener(&server->listeners[0]);
    close_listener(&server->listeners[1]);
    for (struct rp_conn *conn = server->conns; conn; conn = conn->next)
        rp_conn_close(conn);
    uv_close((uv_handle_t *)&server->sigterm, NULL);
    uv_close((uv_handle_t *)&server->sigint, NULL);
    uv_close((uv_handle_t *)&server->sigusr2, NULL);
    uv_close((uv_handle_t *)&server->sighup, NULL);
    /* Ignored from here on: another signal would kill a process that is already shutting down. */
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    uv_close((uv_handle_t *)&server->tick, NULL);
}

/* Whether an answer has not been written completely to its client. */
static bool is_writing(const struct rp_server *server) {
    for (const struct rp_conn *conn = server->conns; conn; conn = conn->next)
        if (conn->writing || conn->state == RP_CONN_LINGER ||
            (conn->state == RP_CONN_BUSY && conn->reply_done))
            return true;
    return false;
}

void rp_server_check_drained(struct rp_server *server) {
    if (server->phase < RP_SERVER_DRAINING || server->phase == RP_SERVER_CLOSING)
        return;
    bool late = server->phase == RP_SERVER_STOPPING && rp_clock_ns() > server->stop_deadline_ns;
    bool busy = server->completions || server->work_count || is_writing(server);
    if (server->phase == RP_SERVER_STOPPING && server->exit_code == EXIT_DEVICE) {
        /* A hung engine closes no request and the process exits without it, so only answers
         * count. */
        if (server->running && (!is_writing(server) || late))
            uv_stop(&server->loop);
        return;
    }
    if (!busy || (late && server->work_count == 0))
        close_all(server);
}

/* Cancels all open completions. Clients get an error; the engine closes its requests within two
 * steps. */
static void stop_now(struct rp_server *server, int exit_code, const char *code, const char *why) {
    struct rp_http_error error;
    if (server->phase >= RP_SERVER_STOPPING)
        return;
    server->phase = RP_SERVER_STOPPING;
    server->exit_code = exit_code;
    server->stop_deadline_ns = rp_clock_ns() + (uint64_t)1000000000u;
    rp_http_error_set(&error, exit_code ? 500 : 503, NULL, code, "%s", why);
    rp_completion_fail_all(server, &error);
    rp_server_check_drained(server);
}

static void start_draining(struct rp_server *server) {
    server->phase = RP_SERVER_DRAINING;
    server->drain_deadline_ns =
        rp_clock_ns() + (uint64_t)server->config.shutdown_timeout_ms * 1000000u;
    rp_log(RP_LOG_INFO, "server: draining open=%" PRIu32 " timeout_ms=%" PRIu32,
           server->completion_count, server->config.shutdown_timeout_ms);
    rp_server_check_drained(server);
}

static void on_signal(uv_signal_t *signal, int number) {
    struct rp_server *server = signal->data;
    rp_service_notify_stopping(&server->notify);
    if (server->phase == RP_SERVER_SERVING) {
        server->phase = RP_SERVER_LEAVING;
        server->drain_ns = rp_clock_ns() + (uint64_t)server->config.drain_delay_ms * 1000000u;
        rp_log(RP_LOG_INFO, "server: leaving signal=%d drain_delay_ms=%" PRIu32, number,
               server->config.drain_delay_ms);
        if (server->config.drain_delay_ms == 0)
            start_draining(server);
    } else {
        rp_log(RP_LOG_INFO, "server: second signal, stopping now");
        stop_now(server, 0, "shutting_down", "the server is shutting down");
    }
}

static void on_usr2(uv_signal_t *signal, int number) {
    (void)number;
    rp_flight_request(((struct rp_server *)signal->data)->flight);
}

static void on_hup(uv_signal_t *signal, int number) {
    struct rp_server *server = signal->data;
    struct rp_error err = {0};
    (void)number;
    if (server->config.reload_keys)
        rp_server_reload_keys(server);
    if (!server->tls)
        return;
    if (rp_tls_reload(server->tls, &err) == RP_OK)
        rp_log(RP_LOG_INFO, "server: TLS certificate reloaded");
    else
        rp_log(RP_LOG_ERROR, "server: TLS certificate not reloaded, the old one stays in force: %s",
               err.text);
}

static void drain_events(struct rp_server *server) {
    struct rp_event event;
    uint64_t begin_ns = rp_tick_ns();
    uint32_t count = 0;
    for (; rp_engine_next_event(server->serving.engine, &event); count++)
        rp_completion_event(server, &event);
    rp_grammar_flush(server->grammars);
    if (count)
        rp_server_span(server, RP_TRACE_EVENTS, begin_ns, count);
}

/* After the events, so that requests closed by the engine have been answered. The engine has its
 * own watchdog for steps; a driver call that never returns is detected only here, a second
 * later. */
static void check_device(struct rp_server *server) {
    const struct rp_engine *engine = server->serving.engine;
    char why[512];
    if (server->phase >= RP_SERVER_STOPPING)
        return;
    uint64_t patience_ns = ((uint64_t)server->config.watchdog_ms + 1000) * 1000000u;
    const char *failure = rp_engine_failure(engine);
    if (!failure && server->config.watchdog_ms && server->completions &&
        rp_clock_ns() > rp_engine_last_progress_ns(engine) + patience_ns)
        failure = "the engine makes no progress";
    if (!failure)
        return;
    rp_log(RP_LOG_ERROR, "server: exiting with code %d cause=\"%s\"", EXIT_DEVICE, failure);
    snprintf(why, sizeof why, "the device has failed: %.400s", failure);
    stop_now(server, EXIT_DEVICE, "engine_failed", why);
}

static void on_wake(uv_async_t *async) {
    struct rp_server *server = async->data;
    if (!server->serving.engine)
        return;
    drain_events(server);
    check_device(server);
}

void rp_server_wake(void *ctx) { uv_async_send(&((struct rp_server *)ctx)->wake); }

static void on_tick(uv_timer_t *timer) {
    struct rp_server *server = timer->data;
    uint64_t now_ns = rp_clock_ns();
    rp_tick_check();
    /* The wake can precede the health flag; drain events again so that none is missed. */
    drain_events(server);
    check_device(server);
    rp_server_watch_unread(server, now_ns);
    for (struct rp_conn *conn = server->conns, *next; conn; conn = next) {
        next = conn->next; /* freed later, by the close callback */
        rp_conn_tick(conn, now_ns);
    }
    rp_completion_tick(server);
    rp_profile_session_tick(server, now_ns);
    rp_otlp_tick(server->otlp, now_ns);
    rp_status_history_tick(&server->history, rp_tick_ns(),
                           rp_engine_metrics(server->serving.engine), &server->metrics.latency);
    rp_counter_add(&server->metrics.sandbox_refused, rp_sandbox_report());
    if (rp_engine_is_healthy(server->serving.engine) && !is_stuck(server))
        rp_service_notify_alive(&server->notify, now_ns);
    if (server->phase == RP_SERVER_LEAVING && now_ns >= server->drain_ns)
        start_draining(server);
    if (server->phase == RP_SERVER_DRAINING && now_ns > server->drain_deadline_ns)
        stop_now(server, 0, "shutting_down", "the server is shutting down");
    rp_server_check_drained(server);
}

/* --- Listening ------------------------------------------------------------------------------- */

static bool address_is_local(const struct sockaddr_storage *address) {
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
        return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
    }
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static int bind_listener(struct rp_server *server, struct rp_listener *listener, const char *host,
                         uint32_t port, struct rp_error *err) {
    struct sockaddr_storage address;
    int len = sizeof address;
    memset(&address, 0, sizeof address);
    if (strcmp(host, "localhost") == 0)
        host = "127.0.0.1";
    if (uv_ip4_addr(host, (int)port, (struct sockaddr_in *)&address) != 0 &&
        uv_ip6_addr(host, (int)port, (struct sockaddr_in6 *)&address) != 0) {
        int status = rp_error_set(err, RP_STATUS_INVALID, "%s is not an IP address", host);
        rp_error_hint(err, "127.0.0.1 for this machine only, 0.0.0.0 for all");
        return status;
    }
    listener->server = server;
    listener->is_local = address_is_local(&address);
    /* The admin listener on loopback stays plain for the tools that read it. */
    listener->has_tls = server->tls && !(listener->is_admin && listener->is_local);
    int rc = rp_listener_init_socket(listener, &listener->socket);
    if (rc == 0) {
        listener->is_open = true;
        listener->socket.handle.data = listener;
        rc = uv_tcp_bind(&listener->socket.tcp, (struct sockaddr *)&address, 0);
    }
    /* libuv reports an address in use only here. */
    if (rc == 0)
        rc = uv_tcp_getsockname(&listener->socket.tcp, (struct sockaddr *)&address, &len);
    if (rc != 0)
        return rp_error_set(err, rc == UV_EADDRINUSE ? RP_STATUS_IN_USE : RP_STATUS_IO,
                            "%s port %" PRIu32 ": %s", host, port, uv_strerror(rc));
    listener->port =
        ntohs(address.ss_family == AF_INET ? ((struct sockaddr_in *)&address)->sin_port
                                           : ((struct sockaddr_in6 *)&address)->sin6_port);
    return RP_OK;
}

int rp_listener_init_socket(struct rp_listener *listener, union rp_socket *socket) {
    uv_loop_t *loop = &listener->server->loop;
    return listener->is_unix ? uv_pipe_init(loop, &socket->pipe, 0)
                             : uv_tcp_init(loop, &socket->tcp);
}

/* Removes a stale socket file left by a killed server; if something accepts connections, it is in
 * use. */
static bool is_left_behind(const struct sockaddr_un *address) {
    struct stat info;
    if (lstat(address->sun_path, &info) != 0 || !S_ISSOCK(info.st_mode))
        return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool refused = fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) != 0 &&
                   errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return refused;
}

/* File permissions control who may connect: owner and group. */
static int bind_unix(struct rp_server *server, struct rp_listener *listener, const char *path,
                     struct rp_error *err) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return rp_error_set(err, RP_STATUS_INVALID, "--uds: a path has up to %zu bytes",
                            sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (is_left_behind(&address))
        (void)unlink(path);
    listener->server = server;
    listener->is_local = listener->is_unix = true;
    int rc = rp_listener_init_socket(listener, &listener->socket);
    if (rc == 0) {
        listener->is_open = true;
        listener->socket.handle.data = listener;
        rc = uv_pipe_bind(&listener->socket.pipe, path);
    }
    if (rc == 0 && chmod(path, 0660) != 0)
        rc = uv_translate_sys_error(errno);
    if (rc != 0)
        return rp_error_set(err, rc == UV_EADDRINUSE ? RP_STATUS_IN_USE : RP_STATUS_IO, "%s: %s",
                            path, uv_strerror(rc));
    return RP_OK;
}

static void on_connection(uv_stream_t *stream, int status) {
    struct rp_listener *listener = stream->data;
    if (status != 0) {
        rp_log(RP_LOG_WARN, "http: a connection could not be accepted: %s", uv_strerror(status));
        return;
    }
    rp_conn_accept(listener);
}

static int start_listening(struct rp_listener *listener) {
    return listener->is_open ? uv_listen(&listener->socket.stream, BACKLOG, on_connection) : 0;
}

static uint32_t count_open_fds(void) {
    DIR *dir = opendir("/proc/self/fd");
    uint32_t count = 0;
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count; /* "." and ".." and the directory itself included */
}

/* When file descriptors run out, libuv accepts and closes all pending connections without a word,
 * so connections are limited to what the descriptors allow. */
static int fit_connections(struct rp_server *server, struct rp_error *err) {
    struct rlimit limit;
    uint32_t used = count_open_fds(), wanted = server->config.max_connections;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return RP_OK;
    rlim_t needed = (rlim_t)wanted + used + FDS_FOR_OTHERS;
    if (limit.rlim_cur < needed) {
        limit.rlim_cur = RP_MIN(limit.rlim_max, needed);
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur >= needed)
        return RP_OK;
    rlim_t others = used + RP_MAX(RP_MIN(limit.rlim_cur / 4, FDS_FOR_OTHERS), FDS_FOR_OTHERS_MIN);
    if (limit.rlim_cur < others + CONNECTIONS_MIN) {
        int status = rp_error_set(err, RP_STATUS_INVALID,
                                  "the limit of %llu open files leaves no room for connections",
                                  (unsigned long long)limit.rlim_cur);
        rp_error_hint(err, "raise it: ulimit -n 1024, or LimitNOFILE= of the service");
        return status;
    }
    server->config.max_connections = RP_MIN(wanted, (uint32_t)(limit.rlim_cur - others));
    if (server->config.max_connections < wanted)
        rp_log(RP_LOG_WARN,
               "server: --max-connections lowered to %" PRIu32 ", the open files limit is %llu",
               server->config.max_connections, (unsigned long long)limit.rlim_cur);
    return RP_OK;
}

/* --- Life ------------------------------------------------------------------------------------ */

static void init_handles(struct rp_server *server) {
    RP_ASSERT(uv_async_init(&server->loop, &server->wake, on_wake) == 0);
    RP_ASSERT(uv_timer_init(&server->loop, &server->tick) == 0);
    RP_ASSERT(uv_signal_init(&server->loop, &server->sigterm) == 0);
    RP_ASSERT(uv_signal_init(&server->loop, &server->sigint) == 0);
    RP_ASSERT(uv_signal_init(&server->loop, &server->sigusr2) == 0);
    RP_ASSERT(uv_signal_init(&server->loop, &server->sighup) == 0);
    RP_ASSERT(uv_mutex_init(&server->scratch_lock) == 0);
    rp_server_trace_poll_init(server);
    server->wake.data = server->tick.data = server->sigterm.data = server->sigint.data = server;
    server->sigusr2.data = server->sighup.data = server;
}

int rp_server_create(const struct rp_server_config *config, struct rp_server **out,
                     struct rp_error *err) {
    struct rp_server *server = rp_calloc(1, sizeof *server);
    *out = NULL;
    /* libuv's io_uring would pass by the sandbox's filter, which knows system calls alone. */
    setenv("UV_USE_IO_URING", "0", 1);
    if (!server || !rp_request_log_init(&server->log) || uv_loop_init(&server->loop) != 0) {
        if (server)
            rp_request_log_deinit(&server->log);
        rp_free(server);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the server");
    }
    server->config = *config;
    rp_goodput_init(&server->goodput, &config->slo);
    rp_tick_start();
    server->start_ns = rp_clock_ns();
    if (rp_recorder_create(&config->recorder, &server->recorder, err) != RP_OK) {
        uv_loop_close(&server->loop);
        rp_request_log_deinit(&server->log);
        rp_free(server);
        return RP_STATUS_NO_MEMORY;
    }
    server->ring = rp_recorder_add(server->recorder, "loop", RP_RECORDER_LOOP);
    server->listeners[1].is_admin = true;
    if (!rp_random_fill(&server->id_secret, sizeof server->id_secret))
        server->id_secret = server->start_ns;
    if (!rp_random_fill(server->call_key, sizeof server->call_key))
        server->call_key[0] = server->id_secret;
    rp_server_metrics_init(&server->metrics);
    rp_json_body_init();
    signal(SIGPIPE, SIG_IGN);
    init_handles(server);
    rp_stacks_prepare();
    int status = rp_server_workers_start(&server->loop, err);
    if (status == RP_OK)
        status = rp_grammar_service_create(GRAMMAR_THREADS, &server->grammars, err);
    if (status == RP_OK &&
        !(server->responses = rp_response_store_create(config->responses_store_bytes)))
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the server");
    if (status == RP_OK)
        status = fit_connections(server, err);
    if (status == RP_OK)
        status = rp_flight_check(&config->flight, err);
    if (status == RP_OK)
        status = rp_kv_publisher_create(&config->kv_events, &server->kv_publisher, err);
    if (status == RP_OK && config->tls_cert)
        status = rp_tls_open(config->tls_cert, config->tls_key, &server->tls, err);
    if (status == RP_OK && config->uds)
        status = bind_unix(server, &server->listeners[0], config->uds, err);
    else if (status == RP_OK)
        status = bind_listener(server, &server->listeners[0], config->host, config->port, err);
    if (status == RP_OK && config->admin_port >= 0)
        status = bind_listener(server, &server->listeners[1], config->admin_host,
                               (uint32_t)config->admin_port, err);
    if (status != RP_OK) {
        rp_server_destroy(server);
        return status;
    }
    *out = server;
    return RP_OK;
}

uint32_t rp_server_port(const struct rp_server *server) { return server->listeners[0].port; }

struct rp_recorder *rp_server_recorder(struct rp_server *server) {
    return server->recorder;
}

uint32_t rp_server_admin_port(const struct rp_server *server) { return server->listeners[1].port; }

/* Everything is open and every thread runs. */
static int enter_sandbox(struct rp_server *server, struct rp_error *err) {
    const struct rp_server_config *config = &server->config;
    bool makes_files = config->flight.dir && *config->flight.dir;
    bool connects = server->otlp || rp_kv_publisher_connects(server->kv_publisher);
    uint32_t needs = (makes_files ? RP_SANDBOX_FILES : 0) | (config->uds ? RP_SANDBOX_UNLINK : 0) |
                     (rp_service_is_managed() ? RP_SANDBOX_NOTIFY : 0) |
                     (server->serving.has_driver ? RP_SANDBOX_DRIVER : 0) |
                     (connects ? RP_SANDBOX_CONNECT : 0);
    int status = rp_sandbox_enter(config->sandbox, needs, err);
    rp_gauge_set(&server->metrics.sandbox, rp_sandbox_is_on());
    return status;
}

int rp_server_run(struct rp_server *server, const struct rp_serving *serving,
                  void (*ready)(void *ctx), void *ctx) {
    server->serving = *serving;
    struct rp_error err;
    rp_grammar_service_set_model(server->grammars,
                                 &(struct rp_grammar_config){.tokenizer = serving->tokenizer,
                                                             .vocab_size = serving->vocab_size,
                                                             .end_ids = server->serving.stop_ids,
                                                             .end_count = serving->stop_id_count,
                                                             .engine = serving->engine});
    server->late_system = rp_chat_probe_late_system(serving->templates);
    if (rp_server_exports_start(server) != RP_OK)
        return EXIT_FAILED;
    int rc = start_listening(&server->listeners[0]);
    if (rc == 0)
        rc = start_listening(&server->listeners[1]);
    if (rc != 0) {
        rp_log(RP_LOG_ERROR, "server: cannot listen: %s", uv_strerror(rc));
        rp_server_exports_stop(server);
        return EXIT_PORT;
    }
    if (enter_sandbox(server, &err) != RP_OK) {
        rp_log(RP_LOG_ERROR, "server: %s; %s", err.text, err.hint);
        rp_server_exports_stop(server);
        return EXIT_FAILED;
    }
    server->phase = RP_SERVER_SERVING;
    uv_signal_start(&server->sigterm, on_signal, SIGTERM);
    uv_signal_start(&server->sigint, on_signal, SIGINT);
    uv_signal_start(&server->sigusr2, on_usr2, SIGUSR2);
    if (server->config.reload_keys || server->tls || rp_service_is_managed())
        uv_signal_start(&server->sighup, on_hup, SIGHUP);
    /* The first call only begins: what the first requests do is in the first sample. */
    rp_status_history_tick(&server->history, rp_tick_ns(), rp_engine_metrics(serving->engine),
                           &server->metrics.latency);
    uv_timer_start(&server->tick, on_tick, TICK_MS, TICK_MS);
    /* The wake handle stays open for an engine that is stopped later; it does not keep the loop
     * alive. */
    uv_unref((uv_handle_t *)&server->wake);
    rp_service_notify_ready(&server->notify, rp_clock_ns());
    if (ready)
        ready(ctx);
    server->running = true;
    uv_run(&server->loop, UV_RUN_DEFAULT);
    server->running = false;
    rp_server_exports_stop(server);
    return server->exit_code;
}

void rp_server_destroy(struct rp_server *server) {
    if (!server)
        return;
    if (server->serving.engine)
        drain_events(server);
    close_all(server);
    uv_close((uv_handle_t *)&server->wake, NULL);
    rp_server_trace_poll_close(server);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    RP_ASSERT_CMP(uv_loop_close(&server->loop), ==, 0);
    rp_profile_session_deinit(server);
    RP_ASSERT(!server->completions);
    rp_text_work_deinit(server);
    rp_grammar_service_destroy(server->grammars);
    rp_response_store_destroy(server->responses);
    rp_kv_publisher_destroy(server->kv_publisher);
    uv_mutex_destroy(&server->scratch_lock);
    rp_request_log_deinit(&server->log);
    rp_recorder_destroy(server->recorder);
    rp_tls_close(server->tls);
    rp_free(server);
}
