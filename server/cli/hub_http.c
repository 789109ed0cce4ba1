#include "server/cli/hub_http.h"

#include "base/base.h"
#include "base/library.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#if !RP_CURL

int rp_hub_http_open(struct rp_error *err) {
    return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                        "this program was built without libcurl and cannot download");
}
int rp_hub_http_get(const char *url, const char *token, struct rp_buffer *out,
                    struct rp_hub_reply *reply) {
    (void)url, (void)token, (void)out;
    memset(reply, 0, sizeof *reply);
    return RP_STATUS_UNSUPPORTED;
}
int rp_hub_http_download(const char *url, const char *token, int fd, uint64_t from, uint64_t most,
                         _Atomic uint64_t *received, struct rp_hub_reply *reply) {
    (void)url, (void)token, (void)fd, (void)from, (void)most, (void)received;
    memset(reply, 0, sizeof *reply);
    return RP_STATUS_UNSUPPORTED;
}

#else

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>
#undef curl_easy_setopt
#undef curl_easy_getinfo

#include <errno.h>
#include <unistd.h>

#define REDIRECTS_MAX 5
#define STALL_SECONDS 60L /* below 1 byte a second for so long: given up */

static struct {
    CURLcode (*global_init)(long flags);
    CURL *(*easy_init)(void);
    CURLcode (*easy_setopt)(CURL *curl, CURLoption option, ...);
    CURLcode (*easy_perform)(CURL *curl);
    CURLcode (*easy_getinfo)(CURL *curl, CURLINFO info, ...);
    void (*easy_cleanup)(CURL *curl);
    const char *(*easy_strerror)(CURLcode code);
    CURLU *(*url)(void);
    void (*url_cleanup)(CURLU *url);
    CURLUcode (*url_set)(CURLU *url, CURLUPart part, const char *text, unsigned flags);
    CURLUcode (*url_get)(const CURLU *url, CURLUPart part, char **text, unsigned flags);
    void (*free)(void *text);
} lib;

int rp_hub_http_open(struct rp_error *err) {
    static const struct rp_library_symbol symbols[] = {{"curl_global_init", &lib.global_init},
                                                       {"curl_easy_init", &lib.easy_init},
                                                       {"curl_easy_setopt", &lib.easy_setopt},
                                                       {"curl_easy_perform", &lib.easy_perform},
                                                       {"curl_easy_getinfo", &lib.easy_getinfo},
                                                       {"curl_easy_cleanup", &lib.easy_cleanup},
                                                       {"curl_easy_strerror", &lib.easy_strerror},
                                                       {"curl_url", &lib.url},
                                                       {"curl_url_cleanup", &lib.url_cleanup},
                                                       {"curl_url_set", &lib.url_set},
                                                       {"curl_url_get", &lib.url_get},
                                                       {"curl_free", &lib.free}};
    if (lib.free)
        return RP_OK;
    bool loaded = rp_library_load("libcurl.so.4", symbols, RP_ARRAY_COUNT(symbols));
    if (loaded && lib.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK)
        return RP_OK;
    int status = rp_error_set(err, RP_STATUS_UNSUPPORTED, "libcurl.so.4 cannot be loaded: %.200s",
                              loaded ? "it does not start" : "not installed");
    rp_error_hint(err, "install the package libcurl4");
    return status;
}

/* One request in flight. */
struct transfer {
    CURL *curl;
    struct rp_hub_reply *reply;
    struct rp_buffer *out; /* or: */
    int fd;
    uint64_t from, most;
    _Atomic uint64_t *received;
    uint64_t range_start; /* from Content-Range; UINT64_MAX: none */
    bool began;
    const char *refused; /* why the body was not taken */
};

static size_t on_header(char *text, size_t size, size_t count, void *ctx) {
    struct transfer *t = ctx;
    size_t len = size * count;
    static const char code[] = "x-error-code:", range[] = "content-range: bytes ";
    if (len > sizeof code && strncasecmp(text, code, sizeof code - 1) == 0) {
        const char *value = text + sizeof code - 1;
        size_t left = len - (sizeof code - 1);
        while (left && (*value == ' ' || *value == '\t')) {
            value++;
            left--;
        }
        while (left && (unsigned char)value[left - 1] <= ' ')
            left--;
        snprintf(t->reply->error_code, sizeof t->reply->error_code, "%.*s",
                 (int)RP_MIN(left, sizeof t->reply->error_code - 1), value);
    }
    if (len > sizeof range && strncasecmp(text, range, sizeof range - 1) == 0) {
        t->range_start = 0;
        for (size_t i = sizeof range - 1; i < len && text[i] >= '0' && text[i] <= '9'; i++)
            t->range_start = t->range_start * 10 + (uint64_t)(text[i] - '0');
    }
    return len;
}

static bool write_all(int fd, const char *data, size_t len, uint64_t at) {
    while (len) {
        ssize_t n = pwrite(fd, data, len, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        data += n;
        at += (uint64_t)n;
        len -= (size_t)n;
    }
    return true;
}

/* The first bytes of a body for the file: where they belong. */
static const char *begin_file(struct transfer *t, long code) {
    if (t->from && (code != 206 || t->range_start != t->from)) {
        t->from = 0; /* all of it comes */
        if (code == 206)
            return "the server sent another range";
        if (ftruncate(t->fd, 0) != 0)
            return strerror(errno);
    }
    atomic_store(t->received, t->from);
    return NULL;
}

static size_t on_body(char *data, size_t size, size_t count, void *ctx) {
    struct transfer *t = ctx;
    size_t len = size * count;
    long code = 0;
    (void)lib.easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    if (code >= 300) /* the text of a redirect or an error */
        return len;
    if (t->out) {
        rp_buffer_append(t->out, data, len);
        t->refused = t->out->failed ? "the answer is too long" : NULL;
        return t->refused ? 0 : len;
    }
    if (!t->began)
        t->refused = begin_file(t, code);
    t->began = true;
    uint64_t at = atomic_load(t->received);
    if (!t->refused && len > t->most - RP_MIN(t->most, at))
        t->refused = "the server sends more than the file's size";
    if (!t->refused && !write_all(t->fd, data, len, at))
        t->refused = strerror(errno);
    if (t->refused)
        return 0;
    atomic_store(t->received, at + len);
    return len;
}

/* Whether the two URLs have the same scheme, host and port. */
static bool same_origin(const char *a, const char *b) {
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *x = lib.url(), *y = lib.url();
    bool same = x && y && lib.url_set(x, CURLUPART_URL, a, 0) == CURLUE_OK &&
                lib.url_set(y, CURLUPART_URL, b, 0) == CURLUE_OK;
    for (size_t i = 0; i < RP_ARRAY_COUNT(parts) && same; i++) {
        char *s = NULL, *t = NULL;
        same = lib.url_get(x, parts[i], &s, CURLU_DEFAULT_PORT) == CURLUE_OK &&
               lib.url_get(y, parts[i], &t, CURLU_DEFAULT_PORT) == CURLUE_OK &&
               strcasecmp(s, t) == 0;
        lib.free(s);
        lib.free(t);
    }
    lib.url_cleanup(x);
    lib.url_cleanup(y);
    return same;
}

static void set_options(struct transfer *t, const char *url, const char *token, char *range,
                        size_t range_size) {
    CURL *c = t->curl;
    (void)lib.easy_setopt(c, CURLOPT_URL, url);
    (void)lib.easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)lib.easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    (void)lib.easy_setopt(c, CURLOPT_USERAGENT, "reprise/" RP_VERSION);
    (void)lib.easy_setopt(c, CURLOPT_CONNECTTIMEOUT, 20L);
    (void)lib.easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    (void)lib.easy_setopt(c, CURLOPT_LOW_SPEED_TIME, STALL_SECONDS);
    (void)lib.easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    (void)lib.easy_setopt(c, CURLOPT_HEADERDATA, t);
    (void)lib.easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    (void)lib.easy_setopt(c, CURLOPT_WRITEDATA, t);
    (void)lib.easy_setopt(c, CURLOPT_HTTPAUTH, *token ? CURLAUTH_BEARER : CURLAUTH_NONE);
    (void)lib.easy_setopt(c, CURLOPT_XOAUTH2_BEARER, *token ? token : NULL);
    if (t->from) {
        snprintf(range, range_size, "%llu-", (unsigned long long)t->from);
        (void)lib.easy_setopt(c, CURLOPT_RANGE, range);
    }
}

/* Follows redirects. */
static CURLcode follow(struct transfer *t, const char *first_url, const char *token,
                       char error[CURL_ERROR_SIZE]) {
    char url[4096], range[32], *next = NULL;
    CURLcode code = CURLE_OK;
    snprintf(url, sizeof url, "%s", first_url);
    for (int i = 0; i <= REDIRECTS_MAX; i++) {
        set_options(t, url, same_origin(first_url, url) ? token : "", range, sizeof range);
        (void)lib.easy_setopt(t->curl, CURLOPT_ERRORBUFFER, error);
        code = lib.easy_perform(t->curl);
        (void)lib.easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &t->reply->code);
        (void)lib.easy_getinfo(t->curl, CURLINFO_REDIRECT_URL, &next);
        if (code != CURLE_OK || t->reply->code < 300 || t->reply->code >= 400 || !next)
            return code;
        bool falls = strncasecmp(url, "https:", 6) == 0 && strncasecmp(next, "https:", 6) != 0;
        if (falls || strlen(next) >= sizeof url) {
            t->refused = falls ? "a redirect leaves https" : "a redirect is too long";
            return CURLE_WRITE_ERROR;
        }
        snprintf(url, sizeof url, "%s", next);
    }
    t->refused = "too many redirects";
    return CURLE_WRITE_ERROR;
}

static int request(struct transfer *t, const char *url, const char *token) {
    char error[CURL_ERROR_SIZE] = "";
    memset(t->reply, 0, sizeof *t->reply);
    t->curl = lib.easy_init();
    t->range_start = UINT64_MAX;
    if (!t->curl)
        return RP_STATUS_NO_MEMORY;
    CURLcode code = follow(t, url, token, error);
    lib.easy_cleanup(t->curl);
    if (code == CURLE_OK)
        return t->reply->code < 400 ? RP_OK : RP_STATUS_IO;
    t->reply->is_refused = t->refused != NULL;
    snprintf(t->reply->problem, sizeof t->reply->problem, "%s",
             t->refused ? t->refused
             : *error   ? error
                        : lib.easy_strerror(code));
    return RP_STATUS_IO;
}

int rp_hub_http_get(const char *url, const char *token, struct rp_buffer *out,
                    struct rp_hub_reply *reply) {
    struct transfer t = {.reply = reply, .out = out};
    return request(&t, url, token);
}

int rp_hub_http_download(const char *url, const char *token, int fd, uint64_t from, uint64_t most,
                         _Atomic uint64_t *received, struct rp_hub_reply *reply) {
    struct transfer t = {
        .reply = reply, .fd = fd, .from = from, .most = most, .received = received};
    return request(&t, url, token);
}

#endif
