#include "bench/load/load_body.h"

#include "base/json_writer.h"

#include <string.h>

/* Faster than rp_json: a prompt has thousands of ids, and the time is part of the client's lag. */
static void append_ids(struct rp_buffer *out, const int32_t *ids, uint32_t count) {
    char digits[16];
    if (!rp_buffer_reserve(out, (size_t)count * 12 + 2))
        return;
    char *at = out->data + out->len;
    *at++ = '[';
    for (uint32_t i = 0; i < count; i++) {
        uint32_t value = (uint32_t)ids[i], len = 0;
        if (i)
            *at++ = ',';
        if (ids[i] < 0) {
            *at++ = '-';
            value = 0 - value;
        }
        do
            digits[len++] = (char)('0' + value % 10);
        while ((value /= 10) != 0);
        while (len)
            *at++ = digits[--len];
    }
    *at++ = ']';
    out->len = (size_t)(at - out->data);
}

static void append_prompt(struct rp_buffer *out, const struct rp_load_target *target,
                          const struct rp_load_request *request) {
    const char *text = request->text ? request->text : "";
    if (target->api == RP_LOAD_CHAT) {
        rp_buffer_puts(out, ",\"messages\":[{\"role\":\"user\",\"content\":");
        rp_json_escape(out, text, strlen(text));
        rp_buffer_puts(out, "}]");
        return;
    }
    rp_buffer_puts(out, ",\"prompt\":");
    if (request->ids)
        append_ids(out, request->ids, request->input_tokens);
    else
        rp_json_escape(out, text, strlen(text));
}

static void append_json(struct rp_buffer *out, const struct rp_load_target *target,
                        const struct rp_load_request *request) {
    char temperature[32];
    rp_double_shortest(target->temperature, temperature);
    rp_buffer_puts(out, "{\"model\":");
    rp_json_escape(out, target->model, strlen(target->model));
    append_prompt(out, target, request);
    rp_buffer_printf(out, ",\"max_tokens\":%u,\"temperature\":%s,\"stream\":true",
                     request->output_tokens, temperature);
    rp_buffer_puts(out, ",\"stream_options\":{\"include_usage\":true}");
    rp_buffer_puts(out, target->no_ignore_eos ? "}" : ",\"ignore_eos\":true}");
}

static void append_key(struct rp_buffer *out, const struct rp_load_target *target) {
    if (target->api_key && *target->api_key)
        rp_buffer_printf(out, "Authorization: Bearer %s\r\n", target->api_key);
}

/* Transfers the buffer's bytes to the caller. */
static bool detach(struct rp_buffer *out, char **out_bytes, size_t *out_len) {
    *out_bytes = NULL;
    *out_len = 0;
    if (out->failed) {
        rp_buffer_deinit(out);
        return false;
    }
    *out_bytes = out->data;
    *out_len = out->len;
    return true;
}

bool rp_load_body_make(const struct rp_load_target *target, const struct rp_load_url *url,
                       const struct rp_load_request *request, char **out_bytes, size_t *out_len) {
    struct rp_buffer json, out;
    rp_buffer_init(&json, 0);
    rp_buffer_init(&out, 0);
    append_json(&json, target, request);
    rp_buffer_printf(
        &out, "POST %s%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n", url->prefix,
        target->api == RP_LOAD_CHAT ? "/v1/chat/completions" : "/v1/completions", url->authority);
    append_key(&out, target);
    rp_buffer_printf(&out, "Accept: text/event-stream\r\nContent-Length: %zu\r\n\r\n", json.len);
    rp_buffer_append(&out, json.data, json.len);
    out.failed |= json.failed;
    rp_buffer_deinit(&json);
    return detach(&out, out_bytes, out_len);
}

bool rp_load_body_get(const struct rp_load_target *target, const struct rp_load_url *url,
                      const char *path, char **out_bytes, size_t *out_len) {
    struct rp_buffer out;
    rp_buffer_init(&out, 0);
    rp_buffer_printf(&out, "GET %s%s HTTP/1.1\r\nHost: %s\r\n", url->prefix, path, url->authority);
    append_key(&out, target);
    rp_buffer_puts(&out, "Accept: */*\r\n\r\n");
    return detach(&out, out_bytes, out_len);
}

int rp_load_body_check_key(const struct rp_load_target *target, struct rp_error *err) {
    for (const char *at = target->api_key; at && *at; at++)
        if ((unsigned char)*at < ' ' || (unsigned char)*at >= 127)
            return rp_error_set(err, RP_STATUS_INVALID,
                                "the API key contains a byte that is invalid in a header");
    return RP_OK;
}
