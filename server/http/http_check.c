#include "server/http/http_check.h"

#include "server/http/auth.h"
#include "server/http/cors.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/router.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct target {
    const char *path, *host; /* host: from an absolute-form target, or NULL */
    size_t path_len, host_len;
};

/* http://host/path?query, /path?query or "*". */
static bool split_target(const char *text, struct target *out) {
    memset(out, 0, sizeof *out);
    if (strncasecmp(text, "http://", 7) == 0) {
        out->host = text + 7;
        out->host_len = strcspn(out->host, "/?#");
        text = out->host + out->host_len;
    }
    out->path = *text == '/' || !out->host ? text : "/";
    out->path_len = strcspn(out->path, "?#");
    return out->path[0] == '/' || strcmp(out->path, "*") == 0;
}

static bool fail(struct rp_conn *conn, int status, const char *code, const char *message) {
    conn->keep_alive = false;
    conn->state = RP_CONN_BUSY;
    rp_conn_fail(conn, status, code, "%s", message);
    return false;
}

/* 404; the message names the method and up to 100 bytes of the path. */
static bool fail_route(struct rp_conn *conn, const struct target *target) {
    char message[200];
    snprintf(message, sizeof message, "no such route: %s %.*s%s",
             llhttp_method_name((llhttp_method_t)conn->parser.method),
             (int)RP_MIN(target->path_len, (size_t)100), target->path,
             target->path_len > 100 ? "..." : "");
    return fail(conn, 404, "not_found", message);
}

/* An invalid or repeated X-Request-Id or traceparent counts as absent. */
static void take_identity(struct rp_conn *conn) {
    uint32_t parents;
    const char *id = rp_http_head_find(&conn->head, "X-Request-Id", NULL);
    const char *parent = rp_http_head_find(&conn->head, "traceparent", &parents);
    size_t len = id ? strlen(id) : 0;
    bool good = len > 0 && len <= RP_REQUEST_ID_MAX;
    for (size_t i = 0; good && i < len; i++)
        good = isalnum((unsigned char)id[i]) || strchr("-_.:/+=@~", id[i]);
    rp_conn_identify(conn, good ? id : NULL, parents == 1 ? parent : NULL);
}

static bool host_is_served(const char *host, size_t len, const char *allowed) {
    return rp_http_host_is_local(host, len) || rp_http_host_is_listed(host, len, allowed);
}

static bool check_host(struct rp_conn *conn, const struct target *target) {
    uint32_t count;
    const char *host = rp_http_head_find(&conn->head, "Host", &count);
    if (count > 1 || (count == 0 && !conn->http10))
        return fail(conn, 400, "invalid_host", "the request must have one Host field");
    if (host && *host && !rp_http_host_is_valid(host, strlen(host)))
        return fail(conn, 400, "invalid_host", "the Host field is not a host name");
    if (target->host && !rp_http_host_is_valid(target->host, target->host_len))
        return fail(conn, 400, "invalid_host", "the request target has no host");
    const char *allowed = conn->server->config.allowed_hosts;
    if (!conn->listener->is_local || conn->listener->is_unix)
        return true;
    /* DNS rebinding: a page of another site whose name resolves to 127.0.0.1 would send that
     * name. */
    if ((host && !host_is_served(host, strlen(host), allowed)) ||
        (target->host && !host_is_served(target->host, target->host_len, allowed)))
        return fail(conn, 403, "host_not_local",
                    "this server listens on loopback and answers only to localhost, an IP address "
                    "or a name of --allowed-hosts in Host");
    return true;
}

static bool check_framing(struct rp_conn *conn) {
    const struct rp_http_limits *limits = &conn->server->config.limits;
    uint32_t lengths, codings;
    rp_http_head_find(&conn->head, "Content-Length", &lengths);
    const char *coding = rp_http_head_find(&conn->head, "Transfer-Encoding", &codings);
    if (lengths > 1 || codings > 1 || (lengths && codings))
        return fail(conn, 400, "invalid_http", "the body length is given more than once");
    if (codings && strcasecmp(coding, "chunked") != 0) {
        /* RFC 9112 section 6.3: a body whose last coding is not chunked has no known length. */
        const char *comma = strrchr(coding, ',');
        bool framed = comma && strcasecmp(comma + 1 + strspn(comma + 1, " \t"), "chunked") == 0;
        return fail(conn, framed ? 501 : 400, framed ? "transfer_encoding" : "invalid_http",
                    "chunked is the only transfer coding that is supported");
    }
    if (codings && conn->http10)
        return fail(conn, 400, "invalid_http", "HTTP/1.0 has no Transfer-Encoding");
    /* Before any of the body arrives: the parser has the announced Content-Length. */
    if (lengths && conn->parser.content_length > limits->body_bytes)
        return fail(conn, 413, "body_too_large", "the body is larger than the limit");
    return true;
}

static bool check_body_type(struct rp_conn *conn) {
    const char *type = rp_http_head_find(&conn->head, "Content-Type", NULL);
    const char *coding = rp_http_head_find(&conn->head, "Content-Encoding", NULL);
    if (coding && *coding && strcasecmp(coding, "identity") != 0)
        return fail(conn, 415, "content_encoding", "compressed request bodies are not supported");
    if (!type || !*type)
        return true;
    size_t len = strcspn(type, "; \t");
    if (len != 16 || strncasecmp(type, "application/json", 16) != 0)
        return fail(conn, 415, "content_type",
                    "the body must be JSON: send the header Content-Type: application/json");
    const char *charset = strcasestr(type, "charset=");
    if (charset) {
        charset += 8 + (charset[8] == '"');
        size_t name = strcspn(charset, "\"; \t");
        bool known = (name == 5 && strncasecmp(charset, "utf-8", 5) == 0) ||
                     (name == 8 && strncasecmp(charset, "us-ascii", 8) == 0);
        if (!known)
            return fail(conn, 415, "content_type",
                        "JSON is UTF-8: other charsets are not supported");
    }
    return true;
}

static bool check_key(struct rp_conn *conn) {
    uint32_t count;
    const struct rp_auth *auth = conn->server->config.auth;
    bool open = conn->route &&
                (conn->route->access == RP_ACCESS_OPEN || conn->route->access == RP_ACCESS_PAGE ||
                 conn->route->access == RP_ACCESS_ADMIN_PAGE);
    conn->key_index = -1;
    if (open || rp_cors_is_preflight(conn) || !auth || auth->count == 0)
        return true;
    const char *value = rp_http_head_find(&conn->head, "Authorization", &count);
    conn->key_index = count == 1 ? rp_auth_check(auth, value) : -1;
    if (count == 0 && rp_route_errors(conn->route) == RP_ERRORS_ANTHROPIC) {
        value = rp_http_head_find(&conn->head, "X-Api-Key", &count);
        conn->key_index = count == 1 ? rp_auth_check_key(auth, value) : -1;
    }
    if (conn->key_index >= 0)
        return true;
    return fail(conn, 401, "invalid_api_key",
                count ? "the API key is not valid for this server"
                      : "an API key is required: send the header Authorization: Bearer KEY");
}

/* Which routes a listener serves when there is an admin listener or the server is not on
 * loopback. */
static bool is_shown(const struct rp_conn *conn, const struct rp_route *route) {
    if (rp_route_errors(route) == RP_ERRORS_OLLAMA && !conn->server->config.ollama)
        return false;
    if (conn->listener->is_admin)
        return route->access != RP_ACCESS_KEY && route->access != RP_ACCESS_PAGE;
    return !rp_access_is_admin(route->access) || conn->listener->is_local ||
           (route->access == RP_ACCESS_METRICS && conn->server->config.metrics_on_main);
}

static bool check_method(struct rp_conn *conn) {
    switch (conn->parser.method) {
    case HTTP_HEAD:
        if (conn->route->methods & RP_METHOD_GET)
            return true;
        break;
    case HTTP_GET:
        if (conn->route->methods & RP_METHOD_GET)
            return true;
        break;
    case HTTP_POST:
        if (conn->route->methods & RP_METHOD_POST)
            return check_body_type(conn);
        break;
    case HTTP_DELETE:
        if (conn->route->methods & RP_METHOD_DELETE)
            return true;
        break;
    case HTTP_OPTIONS:
        return true;
    default:
        break;
    }
    return fail(conn, 405, "method_not_allowed", "this route does not support this method");
}

/* A page of another site may send simple POST requests without a preflight. */
static bool check_origin(struct rp_conn *conn) {
    bool changes = conn->parser.method == HTTP_POST || conn->parser.method == HTTP_DELETE;
    if (!changes || rp_cors_accepts(conn))
        return true;
    return fail(conn, 403, "origin_not_allowed",
                "this server does not accept requests from web pages of this origin; see "
                "--allowed-origins");
}

bool rp_check_head(struct rp_conn *conn) {
    struct target target;
    uint8_t method = conn->parser.method;
    take_identity(conn);
    conn->head_only = method == HTTP_HEAD; /* HEAD: error responses have no body either */
    if (conn->parser.http_major != 1 || conn->parser.http_minor > 1)
        return fail(conn, 505, "http_version", "only HTTP/1.1 and HTTP/1.0 are supported");
    bool is_target = split_target(rp_http_head_get_target(&conn->head), &target);
    conn->route = is_target ? rp_route_find(target.path, target.path_len) : NULL;
    if (!check_host(conn, &target) || !check_framing(conn) || !check_key(conn))
        return false;
    if (method != HTTP_GET && method != HTTP_HEAD && method != HTTP_POST &&
        method != HTTP_OPTIONS && method != HTTP_PUT && method != HTTP_DELETE &&
        method != HTTP_PATCH)
        return fail(conn, 501, "method_not_implemented", "this method is not supported");
    if (!is_target)
        return fail(conn, 400, "invalid_http", "the request target is not a path");
    if (method == HTTP_OPTIONS && target.path[0] == '*')
        return true;
    if (conn->route && !is_shown(conn, conn->route))
        conn->route = NULL;
    if (!conn->route)
        return fail_route(conn, &target);
    if (!check_method(conn) || !check_origin(conn))
        return false;
    const char *expect = rp_http_head_find(&conn->head, "Expect", NULL);
    if (expect && strcasecmp(expect, "100-continue") != 0)
        return fail(conn, 417, "expectation", "only Expect: 100-continue is supported");
    return true;
}

void rp_check_expect(struct rp_conn *conn, bool has_body) {
    if (has_body || conn->http10 || !rp_http_head_find(&conn->head, "Expect", NULL))
        return;
    rp_buffer_puts(&conn->out[conn->filling], "HTTP/1.1 100 Continue\r\n\r\n");
}

bool rp_check_complete(struct rp_conn *conn) {
    char allow[96];
    if (conn->parser.method != HTTP_OPTIONS)
        return true;
    rp_route_allow_header(conn->route, allow, sizeof allow);
    rp_conn_reply(conn, 204, NULL, allow, NULL, 0);
    return false;
}
