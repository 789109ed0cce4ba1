#include "server/params.h"

#include "base/log.h"
#include "server/server_internal.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* --- Numbers and switches ---------------------------------------------------------------------- */

enum kind { KIND_BOOL, KIND_INT, KIND_REAL };

struct field {
    const char *name;
    enum kind kind;
    size_t offset;
    double low, high;
    bool low_open; /* the lowest value itself is out of range */
};

#define FIELD(member) offsetof(struct rp_completion_params, member)
#define ANY_INT       -9223372036854775808.0, 9223372036854775807.0

static const struct field fields[] = {
    {"stream", KIND_BOOL, FIELD(stream), 0, 0, false},
    {"add_special_tokens", KIND_BOOL, FIELD(add_special_tokens), 0, 0, false},
    {"skip_special_tokens", KIND_BOOL, FIELD(skip_special_tokens), 0, 0, false},
    {"ignore_eos", KIND_BOOL, FIELD(ignore_eos), 0, 0, false},
    {"include_stop_str_in_output", KIND_BOOL, FIELD(include_stop), 0, 0, false},
    {"max_tokens", KIND_INT, FIELD(max_tokens), 1, 2147483647, false},
    {"min_tokens", KIND_INT, FIELD(min_tokens), 0, 2147483647, false},
    {"top_k", KIND_INT, FIELD(top_k), -1, 2147483647, false},
    {"seed", KIND_INT, FIELD(seed), ANY_INT, false},
    /* OpenAI's range ends at 2; people who measure use more. */
    {"temperature", KIND_REAL, FIELD(temperature), 0, 100, false},
    {"top_p", KIND_REAL, FIELD(top_p), 0, 1, true},
    {"min_p", KIND_REAL, FIELD(min_p), 0, 1, false},
};

static bool read_field(const struct field *field, const json_t *value,
                       struct rp_completion_params *out, struct rp_http_error *error) {
    char *to = (char *)out + field->offset;
    if (field->kind == KIND_BOOL) {
        if (!json_is_boolean(value))
            return rp_http_error_set(error, 400, field->name, "invalid_type",
                                     "%s must be true or false", field->name);
        *(bool *)to = json_is_true(value);
        return true;
    }
    if (field->kind == KIND_INT ? !json_is_integer(value) : !json_is_number(value))
        return rp_http_error_set(error, 400, field->name, "invalid_type", "%s must be %s",
                                 field->name, field->kind == KIND_INT ? "an integer" : "a number");
    double number = json_number_value(value);
    if (!(number >= field->low && number <= field->high) ||
        (field->low_open && number <= field->low))
        return rp_http_error_set(error, 400, field->name, "out_of_range",
                                 field->low_open ? "%s must be above %.15g and at most %.15g"
                                                 : "%s must be from %.15g to %.15g",
                                 field->name, field->low, field->high);
    if (field->kind == KIND_INT)
        *(int64_t *)to = json_integer_value(value);
    else
        *(double *)to = number;
    return true;
}

/* --- Fields that are not supported yet ---------------------------------------------------------- */

/* What a field may hold all the same, since it changes nothing then. */
enum off_value { OFF_NUMBER, OFF_FALSE, OFF_EMPTY, OFF_TEXT_FORMAT, OFF_NEVER };

struct unsupported {
    const char *name;
    enum off_value off;
    double number, low, high; /* OFF_NUMBER: the value that is off, and what is in range at all */
    bool integer;
};

static const struct unsupported unsupported[] = {
    {"n", OFF_NUMBER, 1, 1, 128, true},
    {"best_of", OFF_NUMBER, 1, 1, 128, true},
    {"presence_penalty", OFF_NUMBER, 0, -2, 2, false},
    {"frequency_penalty", OFF_NUMBER, 0, -2, 2, false},
    {"repetition_penalty", OFF_NUMBER, 1, 0, 100, false},
    {"length_penalty", OFF_NUMBER, 1, -100, 100, false},
    {"prompt_logprobs", OFF_NEVER, 0, 0, 0, false},
    {"logprobs", OFF_NEVER, 0, 0, 0, false},
    {"top_logprobs", OFF_NEVER, 0, 0, 0, false},
    {"logit_bias", OFF_EMPTY, 0, 0, 0, false},
    {"echo", OFF_FALSE, 0, 0, 0, false},
    {"use_beam_search", OFF_FALSE, 0, 0, 0, false},
    {"suffix", OFF_EMPTY, 0, 0, 0, false},
    {"bad_words", OFF_EMPTY, 0, 0, 0, false},
    {"allowed_token_ids", OFF_NEVER, 0, 0, 0, false},
    {"truncate_prompt_tokens", OFF_NEVER, 0, 0, 0, false},
    {"return_tokens_as_token_ids", OFF_FALSE, 0, 0, 0, false},
    {"response_format", OFF_TEXT_FORMAT, 0, 0, 0, false},
    {"structured_outputs", OFF_NEVER, 0, 0, 0, false},
    {"guided_json", OFF_NEVER, 0, 0, 0, false},
    {"guided_regex", OFF_NEVER, 0, 0, 0, false},
    {"guided_choice", OFF_NEVER, 0, 0, 0, false},
    {"guided_grammar", OFF_NEVER, 0, 0, 0, false},
    {"structural_tag", OFF_NEVER, 0, 0, 0, false},
    {"tools", OFF_EMPTY, 0, 0, 0, false},
    {"messages", OFF_NEVER, 0, 0, 0, false},
    {"prompt_embeds", OFF_NEVER, 0, 0, 0, false},
    {"logits_processors", OFF_EMPTY, 0, 0, 0, false},
};

static bool is_off(const struct unsupported *field, const json_t *value) {
    switch (field->off) {
    case OFF_NUMBER:
        return json_number_value(value) == field->number;
    case OFF_FALSE:
        return json_is_false(value);
    case OFF_EMPTY:
        return (json_is_string(value) && json_string_length(value) == 0) ||
               (json_is_array(value) && json_array_size(value) == 0) ||
               (json_is_object(value) && json_object_size(value) == 0);
    case OFF_TEXT_FORMAT: {
        const char *type = json_string_value(json_object_get(value, "type"));
        return type && strcmp(type, "text") == 0;
    }
    case OFF_NEVER:
        break;
    }
    return false;
}

static bool check_unsupported(const struct unsupported *field, const json_t *value,
                              struct rp_http_error *error) {
    if (field->off == OFF_NUMBER) {
        bool right_type = field->integer ? json_is_integer(value) : json_is_number(value);
        double number = json_number_value(value);
        if (!right_type)
            return rp_http_error_set(error, 400, field->name, "invalid_type", "%s must be %s",
                                     field->name, field->integer ? "an integer" : "a number");
        if (!(number >= field->low && number <= field->high))
            return rp_http_error_set(error, 400, field->name, "out_of_range",
                                     "%s must be from %.15g to %.15g", field->name, field->low,
                                     field->high);
    }
    if (is_off(field, value))
        return true;
    return rp_http_error_set(
        error, 400, field->name, "unsupported_parameter", "%s is not supported yet%s", field->name,
        strcmp(field->name, "messages") == 0 ? ": /v1/completions takes a prompt"
                                             : ", leave it out");
}

/* --- Fields of their own ------------------------------------------------------------------------ */

/* Fields that are read elsewhere, or that change nothing here. */
static const char *const known[] = {
    "model",    "prompt",     "stop",       "stop_token_ids",
    "user",     "cache_salt", "priority",   "stream_options",
    "metadata", "store",      "request_id", "spaces_between_special_tokens"};

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
                             "stop takes up to %d strings of 1 to %d bytes", RP_STOP_STRINGS_MAX,
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
                                 "%s must hold token ids, which are integers", param);
    json_int_t id = json_integer_value(value);
    if (id < 0 || id >= (json_int_t)vocab_size)
        return rp_http_error_set(error, 400, param, "out_of_range",
                                 "%s holds the token id %" JSON_INTEGER_FORMAT
                                 ", the vocabulary has 0 to %u",
                                 param, id, vocab_size - 1);
    *out = (int32_t)id;
    return true;
}

static bool read_stop_ids(const json_t *value, const struct rp_serving *serving,
                          struct rp_completion_params *out, struct rp_http_error *error) {
    size_t i;
    json_t *item;
    /* The model's own end tokens share the list. */
    size_t room = RP_STOP_IDS_MAX - serving->stop_id_count;
    if (!json_is_array(value))
        return rp_http_error_set(error, 400, "stop_token_ids", "invalid_type",
                                 "stop_token_ids must be a list of token ids");
    if (json_array_size(value) > room)
        return rp_http_error_set(error, 400, "stop_token_ids", "out_of_range",
                                 "stop_token_ids takes up to %zu ids", room);
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
                                 "stream_options is only for stream: true");
    return rp_params_bool(value, "include_usage", &out->include_usage, error) &&
           rp_params_bool(value, "continuous_usage_stats", &out->continuous_usage, error);
}

static bool read_special(json_t *root, const struct rp_serving *serving,
                         struct rp_completion_params *out, struct rp_http_error *error) {
    json_t *value = json_object_get(root, "stop");
    if (value && !json_is_null(value) && !read_stop(value, out, error))
        return false;
    value = json_object_get(root, "stop_token_ids");
    if (value && !json_is_null(value) && !read_stop_ids(value, serving, out, error))
        return false;
    value = json_object_get(root, "stream_options");
    if (value && !json_is_null(value) && !read_stream_options(value, out, error))
        return false;
    value = json_object_get(root, "cache_salt");
    if (value && !json_is_null(value) && !json_is_string(value))
        return rp_http_error_set(error, 400, "cache_salt", "invalid_type",
                                 "cache_salt must be a string");
    out->cache_salt = json_string_value(value);
    out->prompt = json_object_get(root, "prompt");
    if (!out->prompt || json_is_null(out->prompt))
        return rp_http_error_set(error, 400, "prompt", "missing", "prompt is missing");
    return true;
}

static const struct field *find_field(const char *name) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(fields); i++)
        if (strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static const struct unsupported *find_unsupported(const char *name) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(unsupported); i++)
        if (strcmp(unsupported[i].name, name) == 0)
            return &unsupported[i];
    return NULL;
}

static bool is_known(const char *name) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(known); i++)
        if (strcmp(known[i], name) == 0)
            return true;
    return false;
}

static void set_defaults(struct rp_completion_params *out, const struct rp_serving *serving) {
    memset(out, 0, sizeof *out);
    out->add_special_tokens = out->skip_special_tokens = true;
    out->max_tokens = 16;
    out->temperature = isnan(serving->default_temperature) ? 1 : serving->default_temperature;
    out->top_p = isnan(serving->default_top_p) ? 1 : serving->default_top_p;
    out->top_k = serving->default_top_k;
}

/* Checks between fields, and what the values mean to the engine. */
static bool settle(json_t *root, const struct rp_serving *serving, struct rp_completion_params *out,
                   struct rp_http_error *error) {
    const json_t *seed = json_object_get(root, "seed");
    if (out->min_tokens > out->max_tokens)
        return rp_http_error_set(error, 400, "min_tokens", "out_of_range",
                                 "min_tokens must not be above max_tokens");
    out->has_seed = seed && !json_is_null(seed);
    if (out->top_k < 0)
        out->top_k = 0;
    for (uint32_t i = 0; i < serving->stop_id_count && !out->ignore_eos; i++)
        out->stop_ids[out->stop_id_count++] = serving->stop_ids[i];
    return true;
}

bool rp_params_read(json_t *root, const struct rp_serving *serving,
                    void (*unknown)(void *ctx, const char *name), void *ctx,
                    struct rp_completion_params *out, struct rp_http_error *error) {
    const char *name;
    json_t *value;
    set_defaults(out, serving);
    json_object_foreach(root, name, value) {
        const struct field *field = find_field(name);
        const struct unsupported *off = field ? NULL : find_unsupported(name);
        if (!field && !off && !is_known(name) && unknown)
            unknown(ctx, name);
        if (json_is_null(value))
            continue;
        if ((field && !read_field(field, value, out, error)) ||
            (off && !check_unsupported(off, value, error)))
            return false;
    }
    return read_special(root, serving, out, error) && settle(root, serving, out, error);
}

void rp_params_deinit(struct rp_completion_params *params) { rp_stop_set_deinit(&params->stop); }

bool rp_params_check_model(json_t *root, const struct rp_serving *serving,
                           struct rp_http_error *error) {
    json_t *model = json_object_get(root, "model");
    if (!model || json_is_null(model))
        return true;
    if (!json_is_string(model))
        return rp_http_error_set(error, 400, "model", "invalid_type", "model must be a string");
    if (strcmp(json_string_value(model), serving->model_name) == 0)
        return true;
    return rp_http_error_set(error, 404, "model", "model_not_found",
                             "this server serves %.200s, not the model asked for",
                             serving->model_name);
}

bool rp_params_bool(json_t *root, const char *name, bool *out, struct rp_http_error *error) {
    json_t *value = json_object_get(root, name);
    if (!value || json_is_null(value))
        return true;
    if (!json_is_boolean(value))
        return rp_http_error_set(error, 400, name, "invalid_type", "%s must be true or false",
                                 name);
    *out = json_is_true(value);
    return true;
}

void rp_params_log_unknown(void *ctx, const char *name) {
    struct rp_server *server = ctx;
    char shown[sizeof server->unknown_fields[0]];
    size_t len = 0;
    for (; name[len] && len + 1 < sizeof shown; len++)
        shown[len] =
            isalnum((unsigned char)name[len]) || strchr("_-.", name[len]) ? name[len] : '?';
    shown[len] = '\0';
    for (uint32_t i = 0; i < server->unknown_field_count; i++)
        if (strcmp(server->unknown_fields[i], shown) == 0)
            return;
    if (server->unknown_field_count == RP_ARRAY_COUNT(server->unknown_fields))
        return;
    memcpy(server->unknown_fields[server->unknown_field_count++], shown, len + 1);
    rp_log(RP_LOG_WARN, "http: a request has the unknown field \"%s\"; it is ignored", shown);
}
