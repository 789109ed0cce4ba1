/* conn_unread.h - how much of a stream's output its client has not taken, including what the kernel
 * still holds (SIOCOUTQ). Without it a client that stops reading is noticed only when the kernel's
 * send buffer, up to some megabytes, is full.
 *
 * TCP: bytes that the client's kernel has not acknowledged. Unix sockets: bytes that the client has
 * not read.
 * Thread: loop, on its timer. At most RP_UNREAD_LOOKS connections are read in a tick, each about
 * 0.3 us; with more streams each is read every second tick, every third, and so on. */
#ifndef RP_SERVER_CONN_UNREAD_H
#define RP_SERVER_CONN_UNREAD_H

#include "base/base.h"

#define RP_UNREAD_LOOKS    512
#define RP_UNREAD_STALL_NS UINT64_C(1000000000) /* without progress: the stream has stalled */

struct rp_server;

struct rp_unread {
    uint64_t taken;       /* bytes that the client had taken at the last look */
    uint64_t progress_ns; /* when that last grew, or when nothing was unread; 0: no look yet */
    uint64_t bytes;       /* unread at the last look */
    uint64_t looked_ns;
    bool stalled;
};

/* Notes that of `written` bytes `bytes` are unread. Returns how much longer the stream has been
 * stalled than at the look before. */
uint64_t rp_unread_look(struct rp_unread *unread, uint64_t now_ns, uint64_t written,
                        uint64_t bytes);

/* Looks at every stream of the server, updates the gauges, and closes connections without progress
 * for limits.write_stall_ms. now_ns: rp_clock_ns. */
void rp_server_watch_unread(struct rp_server *server, uint64_t now_ns);

#endif
