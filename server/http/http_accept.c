/* http_accept.c - new connections: accepted, or refused when there are too many or memory is
 * out. */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/http_parse.h"
#include "server/http/tls.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

/* Connections beyond --max-connections that get an answer at the same time. */
enum { REFUSED_ANSWERS = 8 };

/* Bytes that the client's machine does not acknowledge close the connection after this time. */
static void set_user_timeout(struct rp_conn *conn) {
    unsigned timeout_ms = conn->server->config.limits.write_stall_ms;
    uv_os_fd_t fd;
    if (uv_fileno(&conn->socket.handle, &fd) == 0)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

static void on_refused(uv_handle_t *handle) {
    struct rp_listener *listener = handle->data;
    listener->refusing = false;
    if (listener->refuse_again)
        rp_conn_accept(listener);
}

/* Out of memory: accepts the connection into a handle owned by the listener and closes it. libuv
 * accepts no further connection until this one is accepted. */
static void refuse(struct rp_listener *listener) {
    rp_counter_add(&listener->server->metrics.connections_refused, 1);
    listener->refuse_again = listener->refusing;
    if (listener->refusing)
        return;
    listener->refusing = true;
    RP_ASSERT(rp_listener_init_socket(listener, &listener->refused) == 0);
    listener->refused.handle.data = listener;
    (void)uv_accept(&listener->socket.stream, &listener->refused.stream);
    uv_close(&listener->refused.handle, on_refused);
}

/* Too many connections: a few of them get an answer, so that a client learns the reason; the others
 * are closed. One log line a second. */
static void refuse_connection(struct rp_conn *conn) {
    struct rp_server *server = conn->server;
    uint64_t now_ns = rp_clock_ns();
    rp_counter_add(&server->metrics.connections_refused, 1);
    server->refused_unlogged++;
    if (now_ns >= server->refused_log_ns) {
        rp_log(RP_LOG_WARN, "http: connections refused count=%" PRIu32 " max_connections=%" PRIu32,
               server->refused_unlogged, server->config.max_connections);
        server->refused_unlogged = 0;
        server->refused_log_ns = now_ns + 1000000000u;
    }
    if (conn->tls || server->conn_count > server->config.max_connections + REFUSED_ANSWERS) {
        rp_conn_close(conn);
        return;
    }
    conn->state = RP_CONN_BUSY;
    rp_conn_fail(conn, 503, "too_many_connections",
                 "this server has its maximum of %" PRIu32 " connections open, try again later",
                 server->config.max_connections);
}

void rp_conn_accept(struct rp_listener *listener) {
    struct rp_server *server = listener->server;
    struct rp_conn *conn = rp_calloc(1, sizeof *conn);
    listener->refuse_again = false;
    if (!conn) {
        refuse(listener);
        return;
    }
    conn->server = server;
    conn->listener = listener;
    conn->key_index = -1;
    conn->number = ++server->conn_numbers;
    RP_ASSERT(rp_listener_init_socket(listener, &conn->socket) == 0);
    conn->socket.handle.data = conn;
    conn->next = server->conns;
    if (server->conns)
        server->conns->prev = conn;
    server->conns = conn;
    server->conn_count++;
    rp_counter_add(&server->metrics.connections_total, 1);
    rp_gauge_set(&server->metrics.connections, server->conn_count);
    conn->deadline_ns = rp_clock_ns() + (uint64_t)server->config.limits.header_ms * 1000000u;
    rp_parse_init(conn);
    if (uv_accept(&listener->socket.stream, &conn->socket.stream) != 0) {
        rp_conn_close(conn);
        return;
    }
    if (listener->has_tls && !(conn->tls = rp_tls_conn_create(server->tls))) {
        rp_conn_close(conn);
        return;
    }
    if (server->conn_count > server->config.max_connections) {
        refuse_connection(conn);
        return;
    }
    if (!listener->is_unix) {
        uv_tcp_nodelay(&conn->socket.tcp, 1);
        uv_tcp_keepalive(&conn->socket.tcp, 1, 30);
        set_user_timeout(conn);
    }
    rp_conn_read(conn);
}
