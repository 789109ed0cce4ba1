/* log.h - one line per event on standard error: `time level module: event key=value`.
 * Texts never hold a prompt, a key or anything a client sent unescaped.
 * Thread: any (one write call per line). */
#ifndef RP_BASE_LOG_H
#define RP_BASE_LOG_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum rp_log_level { RP_LOG_ERROR, RP_LOG_WARN, RP_LOG_INFO, RP_LOG_DEBUG };

void rp_log_set_level(enum rp_log_level level);
void rp_log(enum rp_log_level level, const char *format, ...) RP_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif
#endif
