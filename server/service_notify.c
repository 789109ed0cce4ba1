#include "server/service_notify.h"

#include "base/log.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

bool rp_service_is_managed(void) {
    const char *path = getenv("NOTIFY_SOCKET");
    return path && *path;
}

/* Never blocks the loop: a message that does not fit the receiver's queue is dropped. */
static void send_message(const char *text) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = path ? strlen(path) : 0;
    if (len == 0)
        return;
    if ((path[0] != '/' && path[0] != '@') || len >= sizeof address.sun_path) {
        rp_log(RP_LOG_WARN, "server: NOTIFY_SOCKET is not the path of a socket");
        return;
    }
    memcpy(address.sun_path, path, len);
    if (path[0] == '@')
        address.sun_path[0] = '\0'; /* an abstract socket */
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || sendto(fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL,
                         (const struct sockaddr *)&address, size) < 0)
        rp_log(RP_LOG_WARN, "server: %s not delivered to NOTIFY_SOCKET: %s", text, strerror(errno));
    if (fd >= 0)
        close(fd);
}

/* Half of $WATCHDOG_USEC in ns; 0 if there is none or it is meant for another process. */
static uint64_t watchdog_interval_ns(void) {
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!usec || (pid && strtoul(pid, NULL, 10) != (unsigned long)getpid()))
        return 0;
    char *end;
    unsigned long long value = strtoull(usec, &end, 10);
    return *end || value > UINT64_MAX / 1000 ? 0 : (uint64_t)value * 1000 / 2;
}

void rp_service_notify_ready(struct rp_service_notify *notify, uint64_t now_ns) {
    *notify = (struct rp_service_notify){.interval_ns = watchdog_interval_ns(), .next_ns = now_ns};
    send_message("READY=1");
}

void rp_service_notify_stopping(struct rp_service_notify *notify) {
    if (!notify->stopping)
        send_message("STOPPING=1");
    notify->stopping = true;
}

void rp_service_notify_alive(struct rp_service_notify *notify, uint64_t now_ns) {
    if (!notify->interval_ns || now_ns < notify->next_ns)
        return;
    notify->next_ns = now_ns + notify->interval_ns;
    send_message("WATCHDOG=1");
}
