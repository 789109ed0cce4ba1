#include "server/http/http_query.h"

#include "server/http/http_conn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes %xx and '+'. False: a bad escape, a NUL, or too long. */
static bool decode(const char *text, size_t len, char out[RP_QUERY_VALUE_MAX]) {
    size_t used = 0;
    for (size_t i = 0; i < len; i++) {
        int c = text[i] == '+' ? ' ' : (unsigned char)text[i];
        if (text[i] == '%') {
            int high = i + 2 < len ? hex_digit(text[i + 1]) : -1;
            int low = i + 2 < len ? hex_digit(text[i + 2]) : -1;
            if (high < 0 || low < 0)
                return false;
            c = high * 16 + low;
            i += 2;
        }
        if (c == 0 || used + 1 >= RP_QUERY_VALUE_MAX)
            return false;
        out[used++] = (char)c;
    }
    out[used] = '\0';
    return true;
}

static bool set_choice(const struct rp_query_param *param, const char *value,
                       struct rp_http_error *error) {
    uint32_t index = 0;
    for (const char *at = param->choices; *at; index++) {
        size_t len = strcspn(at, "|");
        if (strlen(value) == len && memcmp(at, value, len) == 0) {
            *(uint32_t *)param->value = index;
            return true;
        }
        at += len + (at[len] == '|');
    }
    return rp_http_error_set(error, 400, param->name, "invalid_value",
                             "query parameter \"%s\" must be one of %s", param->name,
                             param->choices);
}

static bool set_number(const struct rp_query_param *param, const char *value,
                       struct rp_http_error *error) {
    char *end = NULL;
    double number = strtod(value, &end);
    bool fits = param->type == RP_QUERY_DOUBLE || number == floor(number);
    bool plain = value[0] >= '0' && value[0] <= '9'; /* no signs, spaces, "inf" or "nan" */
    if (!plain || *end || !fits || !(number >= param->min && number <= param->max))
        return rp_http_error_set(error, 400, param->name, "invalid_value",
                                 "query parameter \"%s\" must be %s from %g to %g", param->name,
                                 param->type == RP_QUERY_UINT ? "a whole number" : "a number",
                                 param->min, param->max);
    if (param->type == RP_QUERY_UINT)
        *(uint64_t *)param->value = (uint64_t)number;
    else
        *(double *)param->value = number;
    return true;
}

static bool set_value(const struct rp_query_param *param, const char *text, size_t len,
                      struct rp_http_error *error) {
    char value[RP_QUERY_VALUE_MAX];
    if (!decode(text, len, value))
        return rp_http_error_set(error, 400, param->name, "invalid_value",
                                 "query parameter \"%s\" is badly encoded or longer than %d bytes",
                                 param->name, RP_QUERY_VALUE_MAX - 1);
    if (param->given)
        *param->given = true;
    if (param->type == RP_QUERY_CHOICE)
        return set_choice(param, value, error);
    if (param->type != RP_QUERY_TEXT)
        return set_number(param, value, error);
    memcpy(param->value, value, strlen(value) + 1);
    return true;
}

bool rp_query_read(const char *target, const struct rp_query_param *params, size_t count,
                   struct rp_http_error *error) {
    uint64_t seen = 0;
    const char *at = strchr(target, '?');
    RP_ASSERT(count <= 64);
    for (at = at ? at + 1 : ""; *at && *at != '#';) {
        size_t len = strcspn(at, "&#"), name_len = strcspn(at, "=&#"), i = 0;
        while (i < count &&
               !(strlen(params[i].name) == name_len && memcmp(params[i].name, at, name_len) == 0))
            i++;
        if (i == count && len > 0)
            return rp_http_error_set(error, 400, NULL, "unknown_parameter",
                                     "this route has no query parameter \"%.*s\"",
                                     (int)(name_len < 40 ? name_len : 40), at);
        if (len > 0) {
            if (seen >> i & 1)
                return rp_http_error_set(error, 400, params[i].name, "invalid_value",
                                         "query parameter \"%s\" is repeated", params[i].name);
            seen |= (uint64_t)1 << i;
            size_t skip = name_len + (name_len < len); /* '=' */
            if (!set_value(&params[i], at + skip, len - skip, error))
                return false;
        }
        at += len + (at[len] == '&');
    }
    return true;
}

bool rp_query_read_conn(struct rp_conn *conn, const struct rp_query_param *params, size_t count) {
    struct rp_http_error error;
    if (rp_query_read(rp_http_head_get_target(&conn->head), params, count, &error))
        return true;
    rp_conn_reply_error(conn, &error);
    return false;
}
