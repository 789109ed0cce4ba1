/* log.h - one line per event on standard error: `time level module: event key=value`.
 * Texts never contain a prompt, a key or unescaped bytes of a client.
 * Never waits for the reader of a pipe, socket or terminal: a line that does not fit is dropped and
 * counted, and the next line that fits is preceded by the count.
 * Thread: any (one write call per line). */
#ifndef RP_BASE_LOG_H
#define RP_BASE_LOG_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum rp_log_level { RP_LOG_ERROR, RP_LOG_WARN, RP_LOG_INFO, RP_LOG_DEBUG };

void rp_log_set_level(enum rp_log_level level);
/* Opens the output now, otherwise the first line does: for a process that may open none later. */
void rp_log_open(void);
void rp_log(enum rp_log_level level, const char *format, ...) RP_PRINTF(2, 3);
/* Lines dropped since the start of the process. */
uint64_t rp_log_dropped(void);

#ifdef __cplusplus
}
#endif
#endif
