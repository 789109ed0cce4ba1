#include "bench/load/load_url.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static int invalid(const char *text, const char *what, struct rp_error *err) {
    int status = rp_error_set(err, RP_STATUS_INVALID, "%.200s: %s", text, what);
    rp_error_hint(err, "a base URL looks like http://127.0.0.1:8000");
    return status;
}

/* The text is copied to a request header, so it must not contain line breaks. */
static bool is_plain(const char *text) {
    for (; *text; text++)
        if ((unsigned char)*text <= ' ' || (unsigned char)*text >= 127)
            return false;
    return true;
}

static bool read_port(const char *text, size_t len, uint16_t *out) {
    uint32_t port = 0;
    if (len == 0 || len > 5)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (!isdigit((unsigned char)text[i]))
            return false;
        port = port * 10 + (uint32_t)(text[i] - '0');
    }
    *out = (uint16_t)port;
    return port > 0 && port <= 65535;
}

static bool copy(char *out, size_t size, const char *text, size_t len) {
    if (len >= size)
        return false;
    memcpy(out, text, len);
    out[len] = '\0';
    return true;
}

static bool read_authority(const char *text, size_t len, struct rp_load_url *out) {
    const char *host = text, *colon, *end = text + len;
    size_t host_len;
    if (*text == '[') {
        const char *bracket = memchr(text, ']', len);
        if (!bracket)
            return false;
        host++;
        host_len = (size_t)(bracket - host);
        colon = bracket + 1;
    } else {
        colon = memchr(text, ':', len);
        colon = colon ? colon : end;
        host_len = (size_t)(colon - host);
    }
    out->port = 80;
    if (colon != end &&
        (*colon != ':' || !read_port(colon + 1, (size_t)(end - colon - 1), &out->port)))
        return false;
    return host_len > 0 && copy(out->host, sizeof out->host, host, host_len) &&
           copy(out->authority, sizeof out->authority, text, len);
}

int rp_load_url_parse(const char *text, struct rp_load_url *out, struct rp_error *err) {
    const char *at = text;
    memset(out, 0, sizeof *out);
    if (!is_plain(text))
        return invalid(text, "a URL must not contain blanks or control characters", err);
    if (strncasecmp(at, "https://", 8) == 0) {
        int status = rp_error_set(err, RP_STATUS_UNSUPPORTED,
                                  "%.200s: https is not supported, only plain http", text);
        rp_error_hint(err, "use the server's own http address instead of the proxy");
        return status;
    }
    if (strncasecmp(at, "http://", 7) == 0)
        at += 7;
    else if (strstr(at, "://"))
        return invalid(text, "only http:// is supported", err);
    size_t len = strcspn(at, "/?#");
    if (memchr(at, '@', len))
        return invalid(text, "a user in the URL is not supported", err);
    if (!read_authority(at, len, out))
        return invalid(text, "invalid host or port", err);
    at += len;
    if (*at == '?' || *at == '#' || at[strcspn(at, "?#")])
        return invalid(text, "a base URL must not have a query", err);
    len = strlen(at);
    while (len && at[len - 1] == '/')
        len--;
    if (len >= 3 && memcmp(at + len - 3, "/v1", 3) == 0)
        len -= 3;
    while (len && at[len - 1] == '/')
        len--;
    if (!copy(out->prefix, sizeof out->prefix, at, len))
        return invalid(text, "the path is too long", err);
    return RP_OK;
}
