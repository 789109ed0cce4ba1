/* fuzz_query.c - any bytes as a request target with a query string and, after a newline, as a
 * traceparent. Values that are accepted are within the parameters' ranges; a traceparent is
 * accepted exactly when it matches the grammar of the W3C recommendation. */
#include "server/http/http_query.h"
#include "server/observe/trace_context.h"
#include "tests/fuzz/fuzz_input.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

static char text[RP_QUERY_VALUE_MAX];

static void check_query(const char *target) {
    uint32_t choice = 0;
    uint64_t limit = 7;
    double seconds = 5;
    bool given = false;
    const struct rp_query_param params[] = {
        {.name = "name", .type = RP_QUERY_TEXT, .value = text},
        {.name = "format", .type = RP_QUERY_CHOICE, .choices = "json|text|csv", .value = &choice},
        {.name = "limit", .type = RP_QUERY_UINT, .min = 1, .max = 100, .value = &limit},
        {.name = "seconds", .type = RP_QUERY_DOUBLE, .max = 60, .value = &seconds, .given = &given},
    };
    struct rp_http_error error = {0};
    memset(text, 'x', sizeof text);
    text[0] = '\0';
    bool good = rp_query_read(target, params, RP_ARRAY_COUNT(params), &error);
    RP_ASSERT(choice < 3 && limit >= 1 && limit <= 100);
    RP_ASSERT(isfinite(seconds) && seconds >= 0 && seconds <= 60);
    RP_ASSERT(given || seconds == 5);
    RP_ASSERT(memchr(text, '\0', sizeof text));
    RP_ASSERT(good ? error.status == 0 : error.status == 400 && error.message[0]);
    if (!good) {
        struct rp_buffer out = {.data = NULL};
        rp_http_error_write(&error, &out);
        rp_buffer_deinit(&out);
    }
}

/* `count` lower-case hex digits, not all of them zero unless zero_allowed. */
static bool is_hex(const char *at, size_t count, bool zero_allowed) {
    return strspn(at, "0123456789abcdef") >= count && (zero_allowed || strspn(at, "0") < count);
}

static bool is_traceparent(const char *at) {
    size_t len = strlen(at);
    if (len < 55 || !is_hex(at, 2, true) || strncmp(at, "ff", 2) == 0 || at[2] != '-')
        return false;
    if (!is_hex(at + 3, 32, false) || at[35] != '-' || !is_hex(at + 36, 16, false))
        return false;
    if (at[52] != '-' || !is_hex(at + 53, 2, true))
        return false;
    return len == 55 || (strncmp(at, "00", 2) != 0 && at[55] == '-');
}

static void check_traceparent(const char *header) {
    struct rp_trace_context context, again;
    char written[RP_TRACEPARENT_LENGTH + 1];
    bool good = rp_trace_context_parse(header, &context);
    RP_ASSERT(good == is_traceparent(header));
    if (!good)
        return;
    context.span = 1;
    rp_trace_context_header(&context, written);
    RP_ASSERT(strlen(written) == RP_TRACEPARENT_LENGTH);
    RP_ASSERT(memcmp(written + 3, header + 3, RP_TRACE_ID_HEX) == 0);
    RP_ASSERT(rp_trace_context_parse(written, &again));
    RP_ASSERT(again.parent == context.span && again.flags == context.flags);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    struct fuzz_input input = fuzz_begin(bytes, len);
    char *target = fuzz_string(fuzz_until(&input, '\n'));
    char *header = fuzz_string(fuzz_until(&input, '\n'));
    check_query(target);
    check_traceparent(header);
    rp_free(target);
    rp_free(header);
    return 0;
}
