#include "server/observe/kv_config.h"

#include "base/base.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define FLAG "--kv-events-config: "

static int invalid(struct rp_error *err, const char *key, const char *what) {
    return rp_error_set(err, RP_STATUS_INVALID, FLAG "%.64s: %s", key, what);
}

static int read_text(const char *key, const json_t *value, char out[RP_KV_TEXT_BYTES],
                     struct rp_error *err) {
    const char *text = json_string_value(value);
    if (!text || json_string_length(value) != strlen(text) || strlen(text) >= RP_KV_TEXT_BYTES)
        return invalid(err, key, "expected a string of up to 255 bytes");
    snprintf(out, RP_KV_TEXT_BYTES, "%s", text);
    return RP_OK;
}

/* Addresses that libzmq knows and a server can use. */
static int read_endpoint(const char *key, const json_t *value, char out[RP_KV_TEXT_BYTES],
                         struct rp_error *err) {
    int status = read_text(key, value, out, err);
    if (status == RP_OK && strncmp(out, "tcp://", 6) != 0 && strncmp(out, "ipc:///", 7) != 0)
        return invalid(err, key, "expected tcp://ADDRESS:PORT or ipc:///PATH");
    return status;
}

static int read_count(const char *key, const json_t *value, uint32_t *out, struct rp_error *err) {
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 1 || number > 1000000)
        return invalid(err, key, "expected a number between 1 and 1000000");
    *out = (uint32_t)number;
    return RP_OK;
}

static int read_key(const char *key, const json_t *value, struct rp_kv_config *out,
                    bool *out_publishes, struct rp_error *err) {
    char publisher[RP_KV_TEXT_BYTES];
    const struct {
        const char *name;
        uint32_t *to;
    } counts[] = {{"buffer_steps", &out->buffer_steps},
                  {"hwm", &out->hwm},
                  {"max_queue_size", &out->max_queue_size}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(counts); i++)
        if (strcmp(key, counts[i].name) == 0)
            return read_count(key, value, counts[i].to, err);
    if (strcmp(key, "endpoint") == 0)
        return read_endpoint(key, value, out->endpoint, err);
    if (strcmp(key, "replay_endpoint") == 0)
        return json_is_null(value) ? RP_OK : read_endpoint(key, value, out->replay_endpoint, err);
    if (strcmp(key, "topic") == 0)
        return read_text(key, value, out->topic, err);
    if (strcmp(key, "enable_kv_cache_events") == 0) {
        out->enabled = json_is_true(value);
        return json_is_boolean(value) ? RP_OK : invalid(err, key, "expected true or false");
    }
    if (strcmp(key, "publisher") != 0)
        return invalid(err, key,
                       "is unknown; the keys are enable_kv_cache_events, publisher, endpoint, "
                       "replay_endpoint, topic, buffer_steps, hwm, max_queue_size");
    if (json_is_null(value))
        return RP_OK;
    int status = read_text(key, value, publisher, err);
    *out_publishes = status == RP_OK && strcmp(publisher, "zmq") == 0;
    if (status == RP_OK && !*out_publishes && strcmp(publisher, "null") != 0)
        return invalid(err, key, "expected \"zmq\" or \"null\"");
    return status;
}

int rp_kv_config_parse(const char *text, struct rp_kv_config *out, struct rp_error *err) {
    json_error_t why;
    bool publishes = true;
    int status = RP_OK;
    *out = (struct rp_kv_config){
        .endpoint = "tcp://*:5557", .buffer_steps = 10000, .hwm = 10000, .max_queue_size = 16384};
    if (!text || !*text)
        return RP_OK;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    if (!root || !json_is_object(root)) {
        status = rp_error_set(err, RP_STATUS_INVALID, FLAG "not a JSON object%s%.100s",
                              root ? "" : ": ", root ? "" : why.text);
        rp_error_hint(err, "try '{\"enable_kv_cache_events\": true}'");
        json_decref(root);
        return status;
    }
    for (void *at = json_object_iter(root); at && status == RP_OK;
         at = json_object_iter_next(root, at))
        status =
            read_key(json_object_iter_key(at), json_object_iter_value(at), out, &publishes, err);
    out->enabled = out->enabled && publishes;
    json_decref(root);
    return status;
}
