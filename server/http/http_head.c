#include "server/http/http_head.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <string.h>
#include <strings.h>

enum {
    LINE_FIRST,
    LINE_FIRST_TARGET,
    LINE_FIRST_REST,
    LINE_START,
    LINE_NAME,
    LINE_VALUE,
    SEEN_CR,
    BLANK_CR
};

/* RFC 9110 section 5.6.2: characters of a field name (token). */
static bool is_token(unsigned char c) { return isalnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c)); }

void rp_head_scan_trailers(struct rp_head_scan *scan) {
    *scan = (struct rp_head_scan){.state = LINE_START, .any = true};
}

enum rp_head_verdict rp_head_scan(struct rp_head_scan *scan, const struct rp_http_limits *limits,
                                  const char *bytes, size_t len, size_t *out_used) {
    size_t i = 0;
    enum rp_head_verdict verdict = RP_HEAD_MORE;
    while (i < len && verdict == RP_HEAD_MORE) {
        unsigned char c = (unsigned char)bytes[i++];
        /* A blank line before the request line is ignored (RFC 9112 section 2.2). */
        bool leading = !scan->any && (c == '\r' || c == '\n');
        if (leading)
            continue;
        scan->any = true;
        scan->bytes++;
        if (scan->state == SEEN_CR || scan->state == BLANK_CR) {
            if (c != '\n')
                verdict = RP_HEAD_BAD;
            else if (scan->state == BLANK_CR)
                verdict = RP_HEAD_DONE;
            else
                scan->state = LINE_START;
        } else if (c == '\n' || (c < 0x20 && c != '\r' && c != '\t') || c == 0x7F) {
            verdict = RP_HEAD_BAD;
        } else if (c == '\r') {
            if (scan->state == LINE_NAME)
                verdict = RP_HEAD_BAD;
            scan->state = scan->state == LINE_START ? BLANK_CR : SEEN_CR;
        } else if (scan->state == LINE_START) {
            if (c == ' ' || c == '\t')
                verdict = RP_HEAD_FOLDED;
            else if (!is_token(c))
                verdict = RP_HEAD_BAD;
            else if (++scan->fields > limits->header_count)
                verdict = RP_HEAD_TOO_LARGE;
            scan->state = LINE_NAME;
        } else if (scan->state == LINE_NAME) {
            if (c == ':')
                scan->state = LINE_VALUE;
            else if (!is_token(c))
                verdict = RP_HEAD_BAD;
        } else if (scan->state <= LINE_FIRST_TARGET) {
            if (c == ' ' && scan->state == LINE_FIRST_TARGET && scan->target == 0)
                verdict = RP_HEAD_BAD; /* a second space after the method */
            else if (c == ' ')
                scan->state++;
            else if (c >= 0x80)
                /* a target is ASCII, anything else must be percent-encoded */
                verdict = RP_HEAD_BAD;
            else if (scan->state == LINE_FIRST_TARGET && ++scan->target > limits->target_bytes)
                verdict = RP_HEAD_TARGET_LONG;
        }
        if (verdict == RP_HEAD_MORE && scan->bytes - scan->target > limits->header_bytes)
            verdict = RP_HEAD_TOO_LARGE;
    }
    *out_used = i;
    return verdict;
}

void rp_http_head_clear(struct rp_http_head *head) {
    rp_buffer_clear(&head->text);
    head->field_count = 0;
    head->collecting = 0;
}

void rp_http_head_deinit(struct rp_http_head *head) { rp_buffer_deinit(&head->text); }

/* Ends the fragment being collected; trailing white space is not part of a value. */
static void end_piece(struct rp_http_head *head) {
    if (head->collecting == 3) {
        size_t begin = head->fields[head->field_count - 1].value;
        while (head->text.len > begin && (head->text.data[head->text.len - 1] == ' ' ||
                                          head->text.data[head->text.len - 1] == '\t'))
            head->text.len--;
    }
    rp_buffer_append(&head->text, "", 1);
}

static bool collect(struct rp_http_head *head, uint8_t what, const char *bytes, size_t len) {
    if (head->collecting != what) {
        if (head->collecting)
            end_piece(head);
        if (what == 2) {
            if (head->field_count == RP_HTTP_HEADERS_MAX)
                return false;
            head->fields[head->field_count].name = (uint32_t)head->text.len;
        }
        if (what == 3)
            head->fields[head->field_count++].value = (uint32_t)head->text.len;
        head->collecting = what;
    }
    rp_buffer_append(&head->text, bytes, len);
    return !head->text.failed;
}

bool rp_http_head_target(struct rp_http_head *head, const char *bytes, size_t len) {
    return collect(head, 1, bytes, len);
}

bool rp_http_head_name(struct rp_http_head *head, const char *bytes, size_t len) {
    return collect(head, 2, bytes, len);
}

bool rp_http_head_value(struct rp_http_head *head, const char *bytes, size_t len) {
    return collect(head, 3, bytes, len);
}

bool rp_http_head_field_done(struct rp_http_head *head) {
    /* Some versions of llhttp make no callback for an empty value. */
    return head->collecting != 2 || collect(head, 3, "", 0);
}

bool rp_http_head_finish(struct rp_http_head *head) {
    if (!rp_http_head_field_done(head))
        return false;
    end_piece(head);
    head->collecting = 0;
    return !head->text.failed;
}

const char *rp_http_head_find(const struct rp_http_head *head, const char *name,
                              uint32_t *out_count) {
    const char *value = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < head->field_count; i++) {
        if (strcasecmp(head->text.data + head->fields[i].name, name) != 0)
            continue;
        if (count++ == 0)
            value = head->text.data + head->fields[i].value;
    }
    if (out_count)
        *out_count = count;
    return value;
}

const char *rp_http_head_get_target(const struct rp_http_head *head) {
    return head->text.len ? head->text.data : "";
}

/* Length of the host part of host[:port], or 0 when malformed. */
static size_t host_part(const char *text, size_t len) {
    size_t host = 0;
    if (len && text[0] == '[') {
        while (host < len && text[host] != ']')
            host++;
        if (host == len)
            return 0;
        host++;
        for (size_t i = 1; i + 1 < host; i++)
            if (!isxdigit((unsigned char)text[i]) && text[i] != ':' && text[i] != '.')
                return 0;
    } else {
        while (host < len && text[host] != ':')
            host++;
        for (size_t i = 0; i < host; i++)
            if (!isalnum((unsigned char)text[i]) && !strchr("-._~!$&'()*+,;=", text[i]))
                return 0;
    }
    if (host < len && text[host] != ':')
        return 0;
    for (size_t i = host + 1; i < len; i++)
        if (!isdigit((unsigned char)text[i]))
            return 0;
    return host;
}

bool rp_http_host_is_valid(const char *text, size_t len) { return host_part(text, len) > 0; }

bool rp_http_host_is_local(const char *text, size_t len) {
    char host[64];
    unsigned char address[16];
    size_t n = host_part(text, len);
    if (n == 0 || n >= sizeof host)
        return false;
    memcpy(host, text, n);
    host[n] = '\0';
    if (strcasecmp(host, "localhost") == 0 || inet_pton(AF_INET, host, address) == 1)
        return true;
    if (host[0] != '[')
        return false;
    host[n - 1] = '\0';
    return inet_pton(AF_INET6, host + 1, address) == 1;
}

bool rp_http_host_is_listed(const char *text, size_t len, const char *list) {
    size_t n = host_part(text, len);
    while (n && list && *list) {
        const char *entry = list + strspn(list, ", ");
        size_t size = strcspn(entry, ", ");
        if (size == n && strncasecmp(entry, text, n) == 0)
            return true;
        list = entry + size;
    }
    return false;
}
