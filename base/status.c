#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void rp_assert_fail(const char *file, int line, const char *expr) {
    fprintf(stderr, "assertion failed: %s:%d: %s\n", file, line, expr);
    abort();
}

void rp_assert_fail_cmp(const char *file, int line, const char *expr, long long left,
                        long long right) {
    fprintf(stderr, "assertion failed: %s:%d: %s (%lld, %lld)\n", file, line, expr, left, right);
    abort();
}

const char *rp_status_name(int status) {
    switch (status) {
#define X(name, value, text)                                                                       \
    case value:                                                                                    \
        return #name;
        RP_STATUS_MAP(X)
#undef X
    }
    return "?";
}

const char *rp_status_text(int status) {
    switch (status) {
#define X(name, value, text)                                                                       \
    case value:                                                                                    \
        return text;
        RP_STATUS_MAP(X)
#undef X
    }
    return "?";
}

void rp_error_fill(struct rp_error *err, enum rp_status status, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        err->status = status;
        err->hint[0] = '\0';
    }
}

void rp_error_hint(struct rp_error *err, const char *format, ...) {
    if (!err)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(err->hint, sizeof err->hint, format, args);
    va_end(args);
}
