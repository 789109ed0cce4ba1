/* status.h - the one list of what can go wrong, and the error text that travels with it.
 * A function that can fail returns int: RP_OK (0) or a negative status. Set-up and parse calls also
 * fill a caller-owned struct rp_error: `text` says what happened and names the file, tensor or
 * field; `hint` says what to try (may be empty). A NULL rp_error is allowed everywhere.
 * Thread: any. */
#ifndef RP_BASE_STATUS_H
#define RP_BASE_STATUS_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_STATUS_MAP(X)                                                                           \
    X(OK, 0, "ok")                                                                                 \
    X(NO_MEMORY, -1, "out of memory")                                                              \
    X(INVALID, -2, "invalid argument")                                                             \
    X(RANGE, -3, "value out of range")                                                             \
    X(OVERFLOW, -4, "size overflow")                                                               \
    X(IO, -5, "input/output error")                                                                \
    X(NOT_FOUND, -6, "not found")                                                                  \
    X(FORMAT, -7, "malformed data")                                                                \
    X(UNSUPPORTED, -8, "not supported")                                                            \
    X(FULL, -9, "full")                                                                            \
    X(CANCELLED, -10, "cancelled")                                                                 \
    X(DEVICE, -11, "device error")                                                                 \
    X(IN_USE, -12, "address in use")                                                               \
    X(SHUTTING_DOWN, -13, "shutting down")

enum rp_status {
#define X(name, value, text) RP_STATUS_##name = value,
    RP_STATUS_MAP(X)
#undef X
};
#define RP_OK RP_STATUS_OK

struct rp_error {
    enum rp_status status;
    char text[512];
    char hint[192];
};

/* "NO_MEMORY" and "out of memory"; an unknown value gives "?". Never NULL. */
const char *rp_status_name(int status);
const char *rp_status_text(int status);

/* Fills *err (when not NULL), clears its hint, and gives `status`, so that a caller can write
 * `return rp_error_set(err, RP_STATUS_FORMAT, "%s: ...", path)`. A macro, so that the compiler sees
 * that the value is not RP_OK; `status` is evaluated twice. */
#define rp_error_set(err, status, ...)                                                             \
    (rp_error_fill(err, (enum rp_status)(status), __VA_ARGS__), rp_status_pass((int)(status)))
static inline int rp_status_pass(int status) { return status; }
void rp_error_fill(struct rp_error *err, enum rp_status status, const char *format, ...)
    RP_PRINTF(3, 4);
/* Adds what to try. */
void rp_error_hint(struct rp_error *err, const char *format, ...) RP_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif
#endif
