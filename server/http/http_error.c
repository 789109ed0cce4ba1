#include "server/http/http_error.h"

#include "base/json_writer.h"
#include "server/http/http_conn.h"
#include "server/http/router.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int status;
    const char *reason, *type;
} statuses[] = {
    {200, "OK", NULL},
    {204, "No Content", NULL},
    {400, "Bad Request", "invalid_request_error"},
    {401, "Unauthorized", "authentication_error"},
    {403, "Forbidden", "permission_error"},
    {404, "Not Found", "not_found_error"},
    {405, "Method Not Allowed", "invalid_request_error"},
    {408, "Request Timeout", "timeout_error"},
    {409, "Conflict", "conflict_error"},
    {413, "Content Too Large", "invalid_request_error"},
    {414, "URI Too Long", "invalid_request_error"},
    {415, "Unsupported Media Type", "invalid_request_error"},
    {417, "Expectation Failed", "invalid_request_error"},
    {429, "Too Many Requests", "rate_limit_error"},
    {431, "Request Header Fields Too Large", "invalid_request_error"},
    {500, "Internal Server Error", "server_error"},
    {501, "Not Implemented", "invalid_request_error"},
    {503, "Service Unavailable", "service_unavailable_error"},
    {504, "Gateway Timeout", "timeout_error"},
    {505, "HTTP Version Not Supported", "invalid_request_error"},
};

static size_t status_index(int status) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(statuses); i++)
        if (statuses[i].status == status)
            return i;
    RP_ASSERT_CMP(status, ==, -1); /* every status that is sent is in the table */
    return 0;
}

const char *rp_http_reason(int status) { return statuses[status_index(status)].reason; }

bool rp_http_error_set(struct rp_http_error *error, int status, const char *param, const char *code,
                       const char *format, ...) {
    va_list args;
    error->status = status;
    error->code = code;
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return false;
}

void rp_http_error_write(const struct rp_http_error *error, struct rp_buffer *out) {
    struct rp_json json;
    rp_json_init(&json, out);
    rp_json_object_begin(&json, NULL);
    rp_json_object_begin(&json, "error");
    rp_json_string(&json, "message", error->message);
    rp_json_string(&json, "type", statuses[status_index(error->status)].type);
    if (error->param[0])
        rp_json_string(&json, "param", error->param);
    else
        rp_json_null(&json, "param");
    if (error->code)
        rp_json_string(&json, "code", error->code);
    else
        rp_json_null(&json, "code");
    rp_json_object_end(&json);
    rp_json_object_end(&json);
}

/* Anthropic's names of types, where they differ from OpenAI's. */
static const char *anthropic_type(int status) {
    switch (status) {
    case 413:
        return "request_too_large";
    case 500:
        return "api_error";
    case 503:
        return "overloaded_error";
    case 409:
    case 408:
        return "invalid_request_error";
    default:
        return statuses[status_index(status)].type;
    }
}

/* A chat's fields under other names. */
static const struct {
    enum rp_error_form form;
    const char *chat, *name;
} fields[] = {
    {RP_ERRORS_RESPONSES, "messages", "input"},
    {RP_ERRORS_RESPONSES, "max_completion_tokens", "max_output_tokens"},
    {RP_ERRORS_RESPONSES, "max_tokens", "max_output_tokens"},
    {RP_ERRORS_RESPONSES, "response_format", "text.format"},
    {RP_ERRORS_RESPONSES, "reasoning_effort", "reasoning.effort"},
    {RP_ERRORS_ANTHROPIC, "stop", "stop_sequences"},
    {RP_ERRORS_ANTHROPIC, "thinking_token_budget", "thinking.budget_tokens"},
    {RP_ERRORS_ANTHROPIC, "response_format", "output_config.format"},
    {RP_ERRORS_ANTHROPIC, "reasoning_effort", "output_config.effort"},
    {RP_ERRORS_OLLAMA, "max_tokens", "options.num_predict"},
    {RP_ERRORS_OLLAMA, "temperature", "options.temperature"},
    {RP_ERRORS_OLLAMA, "top_k", "options.top_k"},
    {RP_ERRORS_OLLAMA, "top_p", "options.top_p"},
    {RP_ERRORS_OLLAMA, "min_p", "options.min_p"},
    {RP_ERRORS_OLLAMA, "seed", "options.seed"},
    {RP_ERRORS_OLLAMA, "stop", "options.stop"},
    {RP_ERRORS_OLLAMA, "repetition_penalty", "options.repeat_penalty"},
    {RP_ERRORS_OLLAMA, "presence_penalty", "options.presence_penalty"},
    {RP_ERRORS_OLLAMA, "frequency_penalty", "options.frequency_penalty"},
    {RP_ERRORS_OLLAMA, "response_format", "format"},
    {RP_ERRORS_OLLAMA, "json_schema", "format"},
};

/* Replaces the field's name at the start of the text, if a name ends there. */
static void rename_start(char *text, size_t size, const char *from, const char *to) {
    char old[sizeof((struct rp_http_error *)0)->message];
    size_t len = strlen(from);
    if (strncmp(text, from, len) != 0 || (text[len] && !strchr(" .[", text[len])))
        return;
    snprintf(old, sizeof old, "%s", text + len);
    snprintf(text, size, "%s%s", to, old);
}

static void rename_fields(enum rp_error_form form, struct rp_http_error *error) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(fields); i++) {
        size_t len = strlen(fields[i].chat);
        if (fields[i].form != form || strncmp(error->param, fields[i].chat, len) != 0 ||
            (error->param[len] && !strchr(".[", error->param[len])))
            continue;
        rename_start(error->param, sizeof error->param, fields[i].chat, fields[i].name);
        rename_start(error->message, sizeof error->message, fields[i].chat, fields[i].name);
        return;
    }
}

void rp_http_error_write_as(enum rp_error_form form, const struct rp_http_error *chat_error,
                            const char *request_id, struct rp_buffer *out) {
    struct rp_http_error own = *chat_error, *error = &own;
    struct rp_json json;
    rename_fields(form, error);
    if (form == RP_ERRORS_OPENAI || form == RP_ERRORS_RESPONSES) {
        rp_http_error_write(error, out);
        return;
    }
    rp_json_init(&json, out);
    rp_json_object_begin(&json, NULL);
    if (form == RP_ERRORS_OLLAMA) {
        rp_json_string(&json, "error", error->message);
        rp_json_object_end(&json);
        return;
    }
    /* Clients look for these words to shorten the conversation. */
    bool too_long = error->code && strcmp(error->code, "context_length_exceeded") == 0;
    char message[sizeof error->message + 32];
    snprintf(message, sizeof message, "%s%.399s", too_long ? "prompt is too long: " : "",
             error->message);
    rp_json_string(&json, "type", "error");
    rp_json_object_begin(&json, "error");
    rp_json_string(&json, "type", anthropic_type(error->status));
    rp_json_string(&json, "message", message);
    rp_json_object_end(&json);
    if (request_id)
        rp_json_string(&json, "request_id", request_id);
    rp_json_object_end(&json);
}

void rp_conn_reply_error(struct rp_conn *conn, const struct rp_http_error *error) {
    struct rp_buffer body;
    char extra[96] = "";
    rp_buffer_init(&body, 0);
    rp_conn_identify(conn, NULL, NULL);
    rp_http_error_write_as(rp_route_errors(conn->route), error, conn->request_id, &body);
    rp_buffer_puts(&body, "\n");
    if (error->status == 401)
        snprintf(extra, sizeof extra, "WWW-Authenticate: Bearer realm=\"reprise\"\r\n");
    else if (error->status == 429 || error->status == 503)
        snprintf(extra, sizeof extra, "Retry-After: %u\r\n",
                 /* Retry-After spread over 1 to 3 s */
                 1u + (unsigned)(conn->first_byte_ns / 1000 % 3));
    else if (error->status == 405)
        rp_route_allow_header(conn->route, extra, sizeof extra);
    rp_record_refused(conn, error);
    rp_conn_reply(conn, error->status, "application/json", extra, body.data, body.len);
    rp_buffer_deinit(&body);
}

void rp_conn_fail(struct rp_conn *conn, int status, const char *code, const char *format, ...) {
    struct rp_http_error error = {.status = status, .code = code};
    va_list args;
    va_start(args, format);
    vsnprintf(error.message, sizeof error.message, format, args);
    va_end(args);
    rp_conn_reply_error(conn, &error);
}
