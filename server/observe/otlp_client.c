#include "server/observe/otlp_client.h"

#include "base/buffer.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <llhttp.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

/* Longer answers are cut off: their status is known by then. */
enum { ANSWER_MAX = 65536, SLICE_MS = 50 };

/* --- URL and headers ------------------------------------------------------------------------- */

static int invalid_url(struct rp_error *err, const char *text, const char *why) {
    return rp_error_set(err, RP_STATUS_INVALID, "%.200s: %s", text, why);
}

static bool copy_part(char *out, size_t size, const char *from, size_t len) {
    if (len >= size)
        return false;
    memcpy(out, from, len);
    out[len] = '\0';
    return true;
}

static bool is_port(const char *text) {
    char *end;
    unsigned long port = strtoul(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && port >= 1 && port <= 65535;
}

int rp_otlp_url_parse(const char *text, struct rp_otlp_url *out, struct rp_error *err) {
    memset(out, 0, sizeof *out);
    out->https = strncasecmp(text, "https://", 8) == 0;
    if (!out->https && strncasecmp(text, "http://", 7) != 0)
        return invalid_url(err, text, "must begin with http:// or https://");
    const char *at = text + (out->https ? 8 : 7);
    for (const char *c = at; *c; c++)
        if (*c <= ' ' || *c >= 0x7f || strchr("?#@", *c))
            return invalid_url(err, text, "only a host, a port and a path are supported");
    size_t authority = strcspn(at, "/");
    const char *host = at, *end = at + authority;
    size_t host_len = *at == '[' ? strcspn(at, "]") : strcspn(at, ":/");
    if (*at == '[') {
        if (host_len >= authority)
            return invalid_url(err, text, "the bracket of the address is not closed");
        host++;
        host_len--;
        at = host + host_len + 1;
    } else {
        at += host_len;
    }
    if (host_len == 0 || !copy_part(out->host, sizeof out->host, host, host_len))
        return invalid_url(err, text, "the host is missing or too long");
    snprintf(out->port, sizeof out->port, "%s", out->https ? "443" : "80");
    if (at < end &&
        (*at != ':' || !copy_part(out->port, sizeof out->port, at + 1, (size_t)(end - at - 1)) ||
         !is_port(out->port)))
        return invalid_url(err, text, "the port must be a number from 1 to 65535");
    size_t base = strlen(end);
    while (base > 0 && end[base - 1] == '/')
        base--;
    if (!copy_part(out->base, sizeof out->base, end, base))
        return invalid_url(err, text, "the path is too long");
    return RP_OK;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 87 : -1;
}

/* Decodes %XX; false: a byte that no header value may have. */
static bool append_value(struct rp_buffer *out, const char *from, size_t len) {
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)from[i];
        if (c == '%' && i + 2 < len && hex_digit(from[i + 1]) >= 0 && hex_digit(from[i + 2]) >= 0) {
            c = (unsigned char)(hex_digit(from[i + 1]) << 4 | hex_digit(from[i + 2]));
            i += 2;
        }
        if (c < ' ' || c == 0x7f)
            return false;
        rp_buffer_append(out, &c, 1);
    }
    return true;
}

int rp_otlp_headers_parse(const char *text, char out[RP_OTLP_HEADERS_MAX], struct rp_error *err) {
    static const char token[] = "!#$&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    struct rp_buffer lines = {.data = NULL};
    int status = RP_OK;
    while (status == RP_OK && *text) {
        text += strspn(text, " ,");
        size_t len = strcspn(text, ","), key = strspn(text, token);
        if (len > 0) {
            rp_buffer_append(&lines, text, key);
            rp_buffer_puts(&lines, ": ");
            if (key == 0 || key >= len || text[key] != '=' ||
                !append_value(&lines, text + key + 1, len - key - 1))
                status = rp_error_set(err, RP_STATUS_INVALID, "header \"%.*s\" is not key=value",
                                      (int)RP_MIN(key, (size_t)64), text);
            rp_buffer_puts(&lines, "\r\n");
        }
        text += len;
    }
    if (status == RP_OK && (lines.failed || lines.len >= RP_OTLP_HEADERS_MAX))
        status = rp_error_set(err, RP_STATUS_INVALID, "headers may have %d bytes together",
                              RP_OTLP_HEADERS_MAX - 1);
    if (status == RP_OK)
        copy_part(out, RP_OTLP_HEADERS_MAX, lines.len ? lines.data : "", lines.len);
    rp_buffer_deinit(&lines);
    return status;
}

/* --- A connection ---------------------------------------------------------------------------- */

struct link {
    const struct rp_otlp_client *client;
    uint64_t deadline_ns;
    int fd;
    SSL *ssl; /* NULL: http */
};

static int fail(struct rp_error *err, const char *what, const char *why) {
    return rp_error_set(err, RP_STATUS_IO, "%s: %.160s", what, why);
}

static int fail_tls(struct rp_error *err, const struct link *link, const char *what) {
    long verified = link->ssl ? SSL_get_verify_result(link->ssl) : X509_V_OK;
    const char *reason = verified != X509_V_OK ? X509_verify_cert_error_string(verified)
                                               : ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return fail(err, what, reason ? reason : "the connection was closed");
}

/* False: the time is over. */
static bool wait_for(const struct link *link, short events) {
    for (;;) {
        uint64_t now = rp_clock_ns(), end = link->deadline_ns;
        uint64_t stop = atomic_load_explicit(&link->client->stop_ns, memory_order_relaxed);
        if (stop)
            end = RP_MIN(end, stop);
        if (now >= end)
            return false;
        struct pollfd wanted = {.fd = link->fd, .events = events};
        /* In slices, because the stop may be set meanwhile. */
        int ms = (int)RP_MIN((end - now) / 1000000 + 1, (uint64_t)SLICE_MS);
        int ready = poll(&wanted, 1, ms);
        if (ready > 0)
            return true;
        if (ready < 0 && errno != EINTR)
            return false;
    }
}

static int connect_to(struct link *link, const struct addrinfo *address, struct rp_error *err) {
    int status, error = 0;
    socklen_t len = sizeof error;
    link->fd = socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (link->fd < 0)
        return fail(err, "socket", strerror(errno));
    if (connect(link->fd, address->ai_addr, address->ai_addrlen) == 0)
        return RP_OK;
    if (errno != EINPROGRESS)
        status = fail(err, "connect", strerror(errno));
    else if (!wait_for(link, POLLOUT))
        status = fail(err, "connect", "timed out");
    else if (getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0 || error)
        status = fail(err, "connect", strerror(error ? error : errno));
    else
        return RP_OK;
    close(link->fd);
    link->fd = -1;
    return status;
}

static int open_socket(struct link *link, struct rp_error *err) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    const struct rp_otlp_url *url = &link->client->url;
    struct addrinfo *found;
    int failed = getaddrinfo(url->host, url->port, &hints, &found), status = RP_STATUS_IO;
    if (failed)
        return fail(err, url->host, gai_strerror(failed));
    for (struct addrinfo *at = found; at && status != RP_OK; at = at->ai_next)
        status = connect_to(link, at, err);
    freeaddrinfo(found);
    return status;
}

/* What a call of OpenSSL waits for; false: nothing, it failed. */
static bool wait_for_tls(const struct link *link, int result) {
    int wanted = SSL_get_error(link->ssl, result);
    if (wanted == SSL_ERROR_WANT_READ)
        return wait_for(link, POLLIN);
    return wanted == SSL_ERROR_WANT_WRITE && wait_for(link, POLLOUT);
}

static int start_tls(struct link *link, struct rp_error *err) {
    const char *host = link->client->url.host;
    unsigned char address[16];
    bool numeric =
        inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
    int result;
    link->ssl = SSL_new(link->client->tls);
    if (!link->ssl || SSL_set_fd(link->ssl, link->fd) != 1 ||
        (numeric ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(link->ssl), host)
                 : SSL_set1_host(link->ssl, host) &
                       (SSL_set_tlsext_host_name(link->ssl, host) > 0)) != 1)
        return fail_tls(err, link, "TLS");
    while ((result = SSL_connect(link->ssl)) != 1)
        if (!wait_for_tls(link, result))
            return fail_tls(err, link, "TLS handshake");
    return RP_OK;
}

static int send_all(struct link *link, const char *bytes, size_t len, struct rp_error *err) {
    while (len > 0) {
        int chunk = (int)RP_MIN(len, (size_t)65536);
        ssize_t sent = link->ssl ? SSL_write(link->ssl, bytes, chunk)
                                 : send(link->fd, bytes, (size_t)chunk, MSG_NOSIGNAL);
        if (sent > 0) {
            bytes += sent;
            len -= (size_t)sent;
        } else if (link->ssl ? !wait_for_tls(link, (int)sent)
                             : errno != EAGAIN || !wait_for(link, POLLOUT)) {
            return fail(err, "send", errno == EAGAIN ? "timed out" : strerror(errno));
        }
    }
    return RP_OK;
}

/* --- The answer ------------------------------------------------------------------------------ */

struct reply {
    struct rp_otlp_answer *answer;
    bool complete;
    char field[32], value[16]; /* of the header being read, cut off */
    size_t field_len, value_len;
};

static void keep(char *out, size_t size, size_t *len, const char *at, size_t count) {
    for (size_t i = 0; i < count && *len + 1 < size; i++)
        out[(*len)++] = at[i];
    out[*len] = '\0';
}

static int on_field(llhttp_t *parser, const char *at, size_t len) {
    struct reply *reply = parser->data;
    keep(reply->field, sizeof reply->field, &reply->field_len, at, len);
    return 0;
}

static int on_value(llhttp_t *parser, const char *at, size_t len) {
    struct reply *reply = parser->data;
    keep(reply->value, sizeof reply->value, &reply->value_len, at, len);
    return 0;
}

static int on_value_complete(llhttp_t *parser) {
    struct reply *reply = parser->data;
    char *end;
    if (strcasecmp(reply->field, "retry-after") == 0) {
        unsigned long seconds = strtoul(reply->value, &end, 10);
        if (end != reply->value && !*end) /* a date is not read: the usual waiting time is used */
            reply->answer->retry_after_s = (uint32_t)RP_MIN(seconds, 3600ul);
    }
    reply->field_len = reply->value_len = 0;
    return 0;
}

static int on_complete(llhttp_t *parser) {
    struct reply *reply = parser->data;
    if (parser->status_code < 200)
        return 0; /* 100 Continue: the answer follows */
    reply->answer->status = parser->status_code;
    reply->complete = true;
    return HPE_PAUSED;
}

static int read_answer(struct link *link, struct rp_otlp_answer *out, struct rp_error *err) {
    struct reply reply = {.answer = out};
    llhttp_settings_t settings;
    llhttp_t parser;
    char bytes[4096];
    llhttp_settings_init(&settings);
    settings.on_header_field = on_field;
    settings.on_header_value = on_value;
    settings.on_header_value_complete = on_value_complete;
    settings.on_message_complete = on_complete;
    llhttp_init(&parser, HTTP_RESPONSE, &settings);
    parser.data = &reply;
    for (size_t total = 0; total < ANSWER_MAX;) {
        ssize_t len = link->ssl ? SSL_read(link->ssl, bytes, sizeof bytes)
                                : recv(link->fd, bytes, sizeof bytes, 0);
        if (len > 0) {
            total += (size_t)len;
            llhttp_errno_t result = llhttp_execute(&parser, bytes, (size_t)len);
            if (reply.complete)
                return RP_OK;
            if (result != HPE_OK)
                return fail(err, "answer", llhttp_errno_name(result));
        } else if (len == 0 ||
                   (link->ssl && SSL_get_error(link->ssl, (int)len) == SSL_ERROR_ZERO_RETURN)) {
            llhttp_finish(&parser); /* an answer may end with its connection */
            return reply.complete ? RP_OK : fail(err, "answer", "the connection was closed");
        } else if (link->ssl ? !wait_for_tls(link, (int)len)
                             : errno != EAGAIN || !wait_for(link, POLLIN)) {
            return fail(err, "answer", errno == EAGAIN ? "timed out" : strerror(errno));
        }
    }
    return fail(err, "answer", "too long");
}

/* --- A post ---------------------------------------------------------------------------------- */

int rp_otlp_client_open(struct rp_otlp_client *client, struct rp_error *err) {
    if (!client->url.https)
        return RP_OK;
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    client->tls = context;
    if (!context || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_default_verify_paths(context) != 1) {
        ERR_clear_error();
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "TLS cannot be set up");
    }
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return RP_OK;
}

void rp_otlp_client_close(struct rp_otlp_client *client) {
    SSL_CTX_free(client->tls);
    client->tls = NULL;
}

int rp_otlp_post(struct rp_otlp_client *client, const char *path, const char *body, size_t len,
                 uint64_t timeout_ns, struct rp_otlp_answer *out, struct rp_error *err) {
    struct link link = {.client = client, .deadline_ns = rp_clock_ns() + timeout_ns, .fd = -1};
    const struct rp_otlp_url *url = &client->url;
    struct rp_buffer head = {.data = NULL};
    bool v6 = strchr(url->host, ':') != NULL;
    *out = (struct rp_otlp_answer){.retry_after_s = UINT32_MAX};
    rp_buffer_printf(&head,
                     "POST %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nUser-Agent: reprise/" RP_VERSION
                     "\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                     "Connection: close\r\n%s\r\n",
                     url->base, path, v6 ? "[" : "", url->host, v6 ? "]" : "", url->port, len,
                     client->headers);
    int status = head.failed ? fail(err, "post", "out of memory") : open_socket(&link, err);
    if (status == RP_OK && url->https)
        status = start_tls(&link, err);
    if (status == RP_OK) {
        struct rp_error unread = {0};
        int sent = send_all(&link, head.data, head.len, err);
        if (sent == RP_OK)
            sent = send_all(&link, body, len, err);
        /* A server may answer and close before all is sent. */
        status = read_answer(&link, out, sent == RP_OK ? err : &unread);
    }
    if (link.ssl)
        SSL_shutdown(link.ssl);
    SSL_free(link.ssl);
    if (link.fd >= 0)
        close(link.fd);
    ERR_clear_error();
    rp_buffer_deinit(&head);
    return status;
}
