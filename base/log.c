#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static _Atomic int log_level = RP_LOG_INFO;

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
    ssize_t written = write(STDERR_FILENO, line, len); /* a lost log line is not worth an error */
    (void)written;
}
