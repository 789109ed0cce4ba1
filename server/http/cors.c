#include "server/http/cors.h"

#include "server/http/http_conn.h"
#include "server/http/router.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

/* The next list entry without surrounding spaces; *len is 0 at the end or for an empty entry. */
static const char *next_entry(const char **list, size_t *len) {
    const char *entry = *list + strspn(*list, " ");
    size_t n = strcspn(entry, ",");
    *list = entry + n + (entry[n] == ',');
    while (n && entry[n - 1] == ' ')
        n--;
    *len = n;
    return entry;
}

static bool is_any(const char *entry, size_t len) { return len == 1 && *entry == '*'; }

/* scheme://host[:port] in lower case, with nothing after it. */
static bool is_origin(const char *entry, size_t len) {
    const char *host = memmem(entry, len, "://", 3);
    if (!host || host == entry || host + 3 == entry + len)
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = entry[i];
        bool scheme = entry + i < host, separator = entry + i < host + 3 && !scheme;
        bool word = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
        if (!word && !separator && (scheme ? c != '+' : !strchr(":[]_", c)))
            return false;
    }
    return true;
}

int rp_cors_check(const char *list, struct rp_error *err) {
    const char *rest = list;
    while (*rest) {
        size_t len;
        const char *entry = next_entry(&rest, &len);
        if (!is_any(entry, len) && !is_origin(entry, len)) {
            int status =
                rp_error_set(err, RP_STATUS_INVALID, "--allowed-origins: \"%.*s\" is not an origin",
                             (int)RP_MIN(len, (size_t)80), entry);
            rp_error_hint(err, "as in https://example.com,http://localhost:3000, or *");
            return status;
        }
    }
    return RP_OK;
}

static bool has_any(const char *list) {
    size_t len;
    while (list && *list) {
        const char *entry = next_entry(&list, &len);
        if (is_any(entry, len))
            return true;
    }
    return false;
}

bool rp_cors_allows(const char *list, const char *origin) {
    size_t len;
    if (!origin || !*origin)
        return false;
    while (list && *list) {
        const char *entry = next_entry(&list, &len);
        if (is_any(entry, len) || (strlen(origin) == len && memcmp(origin, entry, len) == 0))
            return true;
    }
    return false;
}

/* Operator routes are never available to other origins. */
static const char *list_of(const struct rp_conn *conn) {
    const char *list = conn->server->config.allowed_origins;
    bool admin = !conn->route || rp_access_is_admin(conn->route->access);
    return list && *list && !admin ? list : NULL;
}

bool rp_cors_is_preflight(const struct rp_conn *conn) {
    return conn->parser.method == HTTP_OPTIONS &&
           rp_http_head_find(&conn->head, "Access-Control-Request-Method", NULL) &&
           rp_cors_allows(list_of(conn), rp_http_head_find(&conn->head, "Origin", NULL));
}

bool rp_cors_accepts(const struct rp_conn *conn) {
    uint32_t count;
    const char *origin = rp_http_head_find(&conn->head, "Origin", &count);
    const char *host = rp_http_head_find(&conn->head, "Host", NULL);
    const char *authority = origin ? strstr(origin, "://") : NULL;
    if (count == 0 || (count == 1 && rp_cors_allows(list_of(conn), origin)))
        return true;
    return count == 1 && authority && host && strcasecmp(authority + 3, host) == 0;
}

/* The client libraries of OpenAI and Anthropic send fields that begin with x-stainless-, a number
 * that grows with their versions: those requested are allowed by name. */
static void allow_client_fields(const struct rp_conn *conn, struct rp_buffer *out) {
    static const char prefix[] = "x-stainless-";
    static const char *const names[] = {"x-api-key", "anthropic-version", "anthropic-beta",
                                        "anthropic-dangerous-direct-browser-access"};
    const char *rest = rp_http_head_find(&conn->head, "Access-Control-Request-Headers", NULL);
    while (rest && *rest) {
        size_t len;
        const char *entry = next_entry(&rest, &len);
        bool known = len >= sizeof prefix && strncasecmp(entry, prefix, sizeof prefix - 1) == 0;
        for (size_t i = 0; i < RP_ARRAY_COUNT(names); i++)
            known |= strlen(names[i]) == len && strncasecmp(entry, names[i], len) == 0;
        for (size_t i = 0; i < len; i++)
            known &= isalnum((unsigned char)entry[i]) || entry[i] == '-';
        if (known)
            rp_buffer_printf(out, ", %.*s", (int)len, entry);
    }
}

void rp_cors_headers(const struct rp_conn *conn, struct rp_buffer *out) {
    const char *list = list_of(conn);
    if (!list)
        return;
    const char *origin = rp_http_head_find(&conn->head, "Origin", NULL);
    bool any = has_any(list);
    if (!any)
        rp_buffer_puts(out, "Vary: Origin\r\n");
    if (!rp_cors_allows(list, origin))
        return;
    rp_buffer_printf(out,
                     "Access-Control-Allow-Origin: %s\r\n"
                     "Access-Control-Expose-Headers: X-Request-Id, traceparent, Server-Timing, "
                     "Retry-After\r\n",
                     any ? "*" : origin);
    if (!rp_cors_is_preflight(conn))
        return;
    rp_buffer_puts(out, "Access-Control-Allow-Methods: GET, HEAD, POST, DELETE, OPTIONS\r\n"
                        "Access-Control-Allow-Headers: Authorization, Content-Type, "
                        "X-Request-Id, traceparent, tracestate");
    allow_client_fields(conn, out);
    rp_buffer_puts(out, "\r\nAccess-Control-Max-Age: 600\r\n");
}
