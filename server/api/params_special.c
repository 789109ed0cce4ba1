/* params_special.c - the fields that are neither numbers nor booleans: stop strings and ids, logit
 * biases, bad words, attention mask parameters, messages. */
#include "attention/mask/mask.h"
#include "base/memory.h"
#include "server/api/legacy_functions.h"
#include "server/api/params.h"

#include <stdio.h>
#include <string.h>

static bool add_stop(struct rp_completion_params *out, const json_t *value,
                     struct rp_http_error *error) {
    if (!json_is_string(value))
        return rp_http_error_set(error, 400, "stop", "invalid_type",
                                 "stop must be a string or a list of strings");
    int status = rp_stop_set_add(&out->stop, json_string_value(value), json_string_length(value));
    if (status == RP_STATUS_NO_MEMORY)
        return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    if (status == RP_OK)
        return true;
    return rp_http_error_set(error, 400, "stop", "out_of_range",
                             "stop accepts up to %d strings of 1 to %d bytes", RP_STOP_STRINGS_MAX,
                             RP_STOP_BYTES_MAX);
}

static bool read_stop(const json_t *value, struct rp_completion_params *out,
                      struct rp_http_error *error) {
    size_t i;
    json_t *item;
    if (!json_is_array(value))
        return add_stop(out, value, error);
    json_array_foreach(value, i, item) if (!add_stop(out, item, error)) return false;
    return true;
}

bool rp_params_token_id(const json_t *value, uint32_t vocab_size, const char *param, int32_t *out,
                        struct rp_http_error *error) {
    if (!json_is_integer(value))
        return rp_http_error_set(error, 400, param, "invalid_type",
                                 "%s must contain token ids, which are integers", param);
    json_int_t id = json_integer_value(value);
    if (id < 0 || id >= (json_int_t)vocab_size)
        return rp_http_error_set(error, 400, param, "out_of_range",
                                 "%s contains the token id %" JSON_INTEGER_FORMAT
                                 ", the vocabulary is 0 to %u",
                                 param, id, vocab_size - 1);
    *out = (int32_t)id;
    return true;
}

static bool read_stop_ids(const json_t *value, const struct rp_serving *serving,
                          struct rp_completion_params *out, struct rp_http_error *error) {
    size_t i;
    json_t *item;
    /* The model's own end tokens share the array. */
    size_t room = RP_STOP_IDS_MAX - serving->stop_id_count;
    if (!json_is_array(value))
        return rp_http_error_set(error, 400, "stop_token_ids", "invalid_type",
                                 "stop_token_ids must be a list of token ids");
    if (json_array_size(value) > room)
        return rp_http_error_set(error, 400, "stop_token_ids", "out_of_range",
                                 "stop_token_ids accepts up to %zu ids", room);
    json_array_foreach(value, i, item) {
        if (!rp_params_token_id(item, serving->vocab_size, "stop_token_ids",
                                &out->stop_ids[out->stop_id_count], error))
            return false;
        out->stop_id_count++;
    }
    return true;
}

static bool read_stream_options(json_t *value, struct rp_completion_params *out,
                                struct rp_http_error *error) {
    if (!json_is_object(value))
        return rp_http_error_set(error, 400, "stream_options", "invalid_type",
                                 "stream_options must be an object");
    if (!out->stream)
        return rp_http_error_set(error, 400, "stream_options", "invalid_value",
                                 "stream_options requires stream: true");
    return rp_params_bool(value, "include_usage", &out->include_usage, error) &&
           rp_params_bool(value, "continuous_usage_stats", &out->continuous_usage, error);
}

static bool no_memory(struct rp_http_error *error) {
    return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
}

/* Parses a key of logit_bias: an id in canonical decimal, so that no id can be repeated. -1: not an
 * id. */
static int32_t bias_token(const char *key, uint32_t vocab_size) {
    uint64_t id = 0;
    size_t len = strlen(key);
    if (len == 0 || len > 9 || (key[0] == '0' && len > 1))
        return -1;
    for (size_t i = 0; i < len; i++) {
        if (key[i] < '0' || key[i] > '9')
            return -1;
        id = id * 10 + (uint64_t)(key[i] - '0');
    }
    return id < vocab_size ? (int32_t)id : -1;
}

static bool read_biases(json_t *value, const struct rp_serving *serving,
                        struct rp_completion_params *out, struct rp_http_error *error) {
    static const char name[] = "logit_bias";
    const char *key;
    json_t *item;
    if (!json_is_object(value))
        return rp_http_error_set(error, 400, name, "invalid_type",
                                 "logit_bias must be an object of token ids and numbers");
    if (json_object_size(value) > RP_LOGIT_BIAS_MAX)
        return rp_http_error_set(error, 400, name, "out_of_range",
                                 "logit_bias accepts up to %d ids", RP_LOGIT_BIAS_MAX);
    if (json_object_size(value) == 0)
        return true;
    out->biases = rp_calloc(json_object_size(value), sizeof *out->biases);
    if (!out->biases)
        return no_memory(error);
    json_object_foreach(value, key, item) {
        int32_t token = bias_token(key, serving->vocab_size);
        double number = json_number_value(item);
        if (token < 0)
            return rp_http_error_set(error, 400, name, "out_of_range",
                                     "a key of logit_bias is not a token id from 0 to %u",
                                     serving->vocab_size - 1);
        if (!json_is_number(item))
            return rp_http_error_set(error, 400, name, "invalid_type",
                                     "logit_bias must give each id a number");
        if (!(number >= -100 && number <= 100))
            return rp_http_error_set(error, 400, name, "out_of_range",
                                     "logit_bias accepts numbers from -100 to 100");
        out->biases[out->bias_count++] =
            (struct rp_logit_bias){.token = token, .value = (float)number};
    }
    return true;
}

static bool read_allowed(json_t *value, const struct rp_serving *serving,
                         struct rp_completion_params *out, struct rp_http_error *error) {
    static const char name[] = "allowed_token_ids";
    size_t i;
    json_t *item;
    int32_t id;
    if (!json_is_array(value) || json_array_size(value) == 0)
        return rp_http_error_set(error, 400, name, "invalid_type",
                                 "allowed_token_ids must be a non-empty list of token ids");
    out->allowed = rp_calloc(((size_t)serving->vocab_size + 31) / 32, sizeof *out->allowed);
    if (!out->allowed)
        return no_memory(error);
    json_array_foreach(value, i, item) {
        if (!rp_params_token_id(item, serving->vocab_size, name, &id, error))
            return false;
        out->allowed[id / 32] |= 1u << (id % 32);
    }
    return true;
}

static bool read_bad_words(json_t *value, struct rp_completion_params *out,
                           struct rp_http_error *error) {
    size_t i;
    json_t *item;
    if (!json_is_array(value))
        return rp_http_error_set(error, 400, "bad_words", "invalid_type",
                                 "bad_words must be a list of strings");
    if (json_array_size(value) > RP_BAD_WORDS_MAX)
        return rp_http_error_set(error, 400, "bad_words", "out_of_range",
                                 "bad_words accepts up to %d strings", RP_BAD_WORDS_MAX);
    json_array_foreach(value, i, item) {
        size_t len = json_string_length(item);
        if (!json_is_string(item))
            return rp_http_error_set(error, 400, "bad_words", "invalid_type",
                                     "bad_words must be a list of strings");
        if (len == 0 || len > RP_BAD_WORD_BYTES_MAX)
            return rp_http_error_set(error, 400, "bad_words", "out_of_range",
                                     "bad_words accepts strings of 1 to %d bytes",
                                     RP_BAD_WORD_BYTES_MAX);
    }
    out->bad_words = json_array_size(value) ? value : NULL;
    return true;
}

/* Index of a parameter of the mask program; their count when there is none of this name. */
static uint32_t find_mask_param(const struct rp_mask *mask, const char *name) {
    uint32_t i = 0, count = rp_mask_param_count(mask);
    while (i < count && strcmp(rp_mask_param(mask, i)->name, name) != 0)
        i++;
    return i;
}

/* "w, sink" */
static void list_mask_params(const struct rp_mask *mask, char *out, size_t size) {
    size_t len = 0;
    *out = '\0';
    for (uint32_t i = 0; i < rp_mask_param_count(mask); i++) {
        const char *name = rp_mask_param(mask, i)->name;
        if (len + strlen(name) + 3 > size)
            return;
        len += (size_t)snprintf(out + len, size - len, "%s%s", i ? ", " : "", name);
    }
}

static bool read_mask_param(const struct rp_mask_param *param, const json_t *value, int32_t *out,
                            struct rp_http_error *error) {
    char name[RP_MASK_NAME_MAX + 16];
    snprintf(name, sizeof name, "attention_mask.%s", param->name);
    if (!json_is_integer(value))
        return rp_http_error_set(error, 400, name, "invalid_type", "%s must be an integer", name);
    json_int_t number = json_integer_value(value);
    if (number < param->min || number > param->max)
        return rp_http_error_set(error, 400, name, "out_of_range", "%s must be from %d to %d", name,
                                 param->min, param->max);
    *out = (int32_t)number;
    return true;
}

/* Also fills in the defaults. */
static bool read_mask(json_t *value, const struct rp_mask *mask, struct rp_completion_params *out,
                      struct rp_http_error *error) {
    static const char field[] = "attention_mask";
    const char *name;
    char known[160];
    json_t *item;
    uint32_t count = mask ? rp_mask_param_count(mask) : 0;
    out->mask_param_count = count;
    for (uint32_t i = 0; i < count; i++)
        out->mask_params[i] = rp_mask_param(mask, i)->value;
    if (!value)
        return true;
    if (!json_is_object(value))
        return rp_http_error_set(error, 400, field, "invalid_type",
                                 "attention_mask must be an object of names and integers");
    if (count == 0 && json_object_size(value) > 0)
        return rp_http_error_set(
            error, 400, field, "unsupported_parameter",
            "this server has no attention mask with parameters, leave the field out "
            "(--attention-mask sets one)");
    json_object_foreach(value, name, item) {
        uint32_t i = find_mask_param(mask, name);
        if (i == count) {
            list_mask_params(mask, known, sizeof known);
            return rp_http_error_set(error, 400, field, "invalid_value",
                                     "attention_mask names a parameter that this server's program "
                                     "does not have: it has %s",
                                     known);
        }
        if (!read_mask_param(rp_mask_param(mask, i), item, &out->mask_params[i], error))
            return false;
    }
    return true;
}

/* Reads an optional string field. */
static bool read_text(json_t *root, const char *name, const char **out,
                      struct rp_http_error *error) {
    json_t *value = rp_params_get(root, name);
    if (value && !json_is_string(value))
        return rp_http_error_set(error, 400, name, "invalid_type", "%s must be a string", name);
    *out = json_string_value(value);
    return true;
}

static bool read_chat(json_t *root, struct rp_completion_params *out, struct rp_http_error *error) {
    out->prompt = rp_params_get(root, "messages");
    if (!json_is_array(out->prompt) || json_array_size(out->prompt) == 0)
        return rp_http_error_set(error, 400, "messages", out->prompt ? "invalid_type" : "missing",
                                 out->prompt ? "messages must be a non-empty list"
                                             : "messages is missing");
    if (!rp_legacy_functions_convert(out->prompt, error))
        return false;
    out->documents = rp_params_get(root, "documents");
    out->template_kwargs = rp_params_get(root, "chat_template_kwargs");
    out->enable_thinking = rp_params_get(root, "enable_thinking");
    if (out->enable_thinking && !json_is_boolean(out->enable_thinking))
        return rp_http_error_set(error, 400, "enable_thinking", "invalid_type",
                                 "enable_thinking must be true or false");
    if (!rp_tools_read(root, &out->tools, error))
        return false;
    return read_text(root, "reasoning_effort", &out->reasoning_effort, error);
}

bool rp_params_read_special(json_t *root, const struct rp_serving *serving,
                            struct rp_completion_params *out, struct rp_http_error *error) {
    json_t *value = rp_params_get(root, "stop");
    if (value && !read_stop(value, out, error))
        return false;
    value = rp_params_get(root, "stop_token_ids");
    if (value && !read_stop_ids(value, serving, out, error))
        return false;
    value = rp_params_get(root, "logit_bias");
    if (value && !read_biases(value, serving, out, error))
        return false;
    value = rp_params_get(root, "allowed_token_ids");
    if (value && !read_allowed(value, serving, out, error))
        return false;
    value = rp_params_get(root, "bad_words");
    if (value && !read_bad_words(value, out, error))
        return false;
    if (!read_mask(rp_params_get(root, "attention_mask"), serving->mask, out, error))
        return false;
    value = rp_params_get(root, "stream_options");
    if (value && !read_stream_options(value, out, error))
        return false;
    if (!read_text(root, "cache_salt", &out->cache_salt, error))
        return false;
    if (out->api == RP_API_CHAT)
        return read_chat(root, out, error);
    out->prompt = rp_params_get(root, "prompt");
    return out->prompt || rp_http_error_set(error, 400, "prompt", "missing", "prompt is missing");
}
