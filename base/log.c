#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* How standard error is written without waiting for its reader. */
enum output { OUTPUT_UNKNOWN, OUTPUT_FILE, OUTPUT_SOCKET, OUTPUT_OWN, OUTPUT_POLLED };

static _Atomic int log_level = RP_LOG_INFO;
static _Atomic int output = OUTPUT_UNKNOWN;
static _Atomic int own_fd = -1;
static _Atomic uint64_t dropped, dropped_reported;

/* A pipe or terminal is opened a second time, because O_NONBLOCK on the inherited descriptor would
 * also apply to the other processes that share it. */
static enum output open_output(void) {
    struct stat info;
    if (fstat(STDERR_FILENO, &info) != 0 || S_ISREG(info.st_mode))
        return OUTPUT_FILE;
    if (S_ISSOCK(info.st_mode))
        return OUTPUT_SOCKET;
    int fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), none = -1;
    if (fd < 0)
        return OUTPUT_POLLED; /* for example a pipe of another user */
    if (!atomic_compare_exchange_strong(&own_fd, &none, fd))
        close(fd); /* another thread was first */
    return OUTPUT_OWN;
}

void rp_log_open(void) {
    if (atomic_load(&output) == OUTPUT_UNKNOWN)
        atomic_store(&output, (int)open_output());
}

static bool write_line(const char *line, size_t len) {
    struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
    rp_log_open();
    switch (atomic_load(&output)) {
    case OUTPUT_SOCKET:
        return send(STDERR_FILENO, line, len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len;
    case OUTPUT_OWN:
        return write(atomic_load(&own_fd), line, len) == (ssize_t)len;
    case OUTPUT_POLLED:
        /* A writable pipe has room for PIPE_BUF bytes, which is more than a line. */
        if (poll(&ready, 1, 0) != 1 || !(ready.revents & POLLOUT))
            return false;
        break;
    default:
        break;
    }
    return write(STDERR_FILENO, line, len) == (ssize_t)len;
}

uint64_t rp_log_dropped(void) { return atomic_load(&dropped); }

/* Reports lines that were lost before this one. */
static void report_dropped(void) {
    uint64_t now = atomic_load(&dropped), before = atomic_load(&dropped_reported);
    char line[96];
    if (now == before || !atomic_compare_exchange_strong(&dropped_reported, &before, now))
        return;
    int len = snprintf(line, sizeof line, "warn log: lines dropped, nobody read them count=%llu\n",
                       (unsigned long long)(now - before));
    if (!write_line(line, (size_t)len))
        atomic_store(&dropped_reported, before);
}

void rp_log_set_level(enum rp_log_level level) { atomic_store(&log_level, (int)level); }

void rp_log(enum rp_log_level level, const char *format, ...) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    char line[1024];
    struct timespec now;
    struct tm parts;
    if ((int)level > atomic_load_explicit(&log_level, memory_order_relaxed))
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t len = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &parts);
    len += (size_t)snprintf(line + len, sizeof line - len, ".%03ldZ %s ", now.tv_nsec / 1000000,
                            names[level]);
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + len, sizeof line - len, format, args);
    va_end(args);
    if (more > 0)
        len = RP_MIN(len + (size_t)more, sizeof line - 2);
    line[len++] = '\n';
    report_dropped();
    if (!write_line(line, len))
        atomic_fetch_add(&dropped, 1);
}
