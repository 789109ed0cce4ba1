/* service_notify.h - systemd notifications (sd_notify) without libsystemd: datagrams to the
 * socket named by $NOTIFY_SOCKET. Without that variable every call does nothing. Thread: loop. */
#ifndef RP_SERVER_SERVICE_NOTIFY_H
#define RP_SERVER_SERVICE_NOTIFY_H

#include "base/base.h"

struct rp_service_notify {
    bool stopping;        /* STOPPING=1 has been sent */
    uint64_t interval_ns; /* between watchdog messages: half of $WATCHDOG_USEC; 0: no watchdog */
    uint64_t next_ns;     /* rp_clock_ns of the next watchdog message */
};

/* Whether a service manager started this process. Its reload is SIGHUP, which must not end a server
 * that has nothing to read again. */
bool rp_service_is_managed(void);
/* Reads the environment and sends READY=1. */
void rp_service_notify_ready(struct rp_service_notify *notify, uint64_t now_ns);
/* Sends STOPPING=1, once. */
void rp_service_notify_stopping(struct rp_service_notify *notify);
/* Sends WATCHDOG=1 when it is due. Call it from the loop, only while the server makes progress. */
void rp_service_notify_alive(struct rp_service_notify *notify, uint64_t now_ns);

#endif
