#include "server/http/conn_unread.h"

#include "base/log.h"
#include "server/http/http_conn.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

uint64_t rp_unread_look(struct rp_unread *unread, uint64_t now_ns, uint64_t written,
                        uint64_t bytes) {
    uint64_t taken = written - RP_MIN(bytes, written), before_ns = unread->looked_ns;
    bool had_stalled = unread->stalled;
    if (bytes == 0 || taken > unread->taken || unread->progress_ns == 0)
        unread->progress_ns = now_ns;
    unread->taken = taken;
    unread->bytes = bytes;
    unread->looked_ns = now_ns;
    unread->stalled = now_ns - unread->progress_ns >= RP_UNREAD_STALL_NS;
    if (!unread->stalled)
        return 0;
    return now_ns - (had_stalled ? before_ns : unread->progress_ns);
}

/* Output that is still in the server's own buffers counts too. False: the socket has no answer. */
static bool count_unread(struct rp_conn *conn, uint64_t *out) {
    uv_os_fd_t fd;
    int queued = 0;
    if (uv_fileno(&conn->socket.handle, &fd) != 0 || ioctl(fd, SIOCOUTQ, &queued) != 0)
        return false;
    *out = (uint64_t)queued + uv_stream_get_write_queue_size(&conn->socket.stream);
    return true;
}

static void look(struct rp_conn *conn, uint64_t now_ns) {
    uint64_t bytes, limit_ns = (uint64_t)conn->server->config.limits.write_stall_ms * 1000000u;
    if (!count_unread(conn, &bytes))
        return;
    uint64_t stalled_ns = rp_unread_look(&conn->unread, now_ns, conn->written_bytes, bytes);
    if (!conn->writing) /* otherwise on_written counts the time */
        conn->stall_ns += stalled_ns;
    if (now_ns - conn->unread.progress_ns <= limit_ns)
        return;
    rp_counter_add(&conn->server->metrics.slow_readers, 1);
    rp_log(RP_LOG_INFO, "http: client stopped reading, closed id=%s unread=%llu", conn->request_id,
           (unsigned long long)bytes);
    rp_conn_close(conn);
}

void rp_server_watch_unread(struct rp_server *server, uint64_t now_ns) {
    uint64_t bytes = 0, slices = 1 + (uint64_t)server->conn_count / RP_UNREAD_LOOKS;
    int64_t stalled = 0;
    server->unread_turn++;
    for (struct rp_conn *conn = server->conns, *next; conn; conn = next) {
        next = conn->next; /* freed later, by the close callback */
        if (conn->state != RP_CONN_BUSY || !conn->streaming) {
            conn->unread = (struct rp_unread){.bytes = 0};
            continue;
        }
        if (conn->number % slices == server->unread_turn % slices)
            look(conn, now_ns);
        if (conn->state == RP_CONN_CLOSED)
            continue;
        bytes += conn->unread.bytes;
        stalled += conn->unread.stalled;
    }
    rp_gauge_set(&server->metrics.unread_bytes, (int64_t)bytes);
    rp_gauge_set(&server->metrics.stalled_streams, stalled);
}
