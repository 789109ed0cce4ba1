#include "model/config_reader.h"

#include "text/json_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Keys are literals. */
static void note(struct rp_config_keys *keys, const char *key) {
    for (uint32_t i = 0; keys && i < keys->count; i++)
        if (strcmp(keys->name[i], key) == 0)
            return;
    if (keys) {
        RP_ASSERT_CMP(keys->count, <, RP_CONFIG_KEYS_MAX);
        keys->name[keys->count++] = key;
    }
}

const json_t *rp_config_get(const struct rp_config_reader *reader, const char *key) {
    const json_t *value = json_object_get(reader->object, key);
    note(reader->keys, key);
    return json_is_null(value) ? NULL : value;
}

void rp_config_refuse(struct rp_config_reader *reader, enum rp_status status, const char *key,
                      const char *message) {
    if (*reader->status == RP_OK)
        *reader->status =
            rp_error_set(reader->err, status, "%s: %s %s", reader->file, key, message);
}

uint32_t rp_config_uint_value(struct rp_config_reader *reader, const json_t *value, const char *key,
                              uint32_t min, uint32_t max) {
    char message[96];
    if (!json_is_integer(value)) {
        rp_config_refuse(reader, RP_STATUS_FORMAT, key, "must be an integer");
        return min;
    }
    json_int_t number = json_integer_value(value);
    if (number < min || number > max) {
        snprintf(message, sizeof message,
                 "is %" JSON_INTEGER_FORMAT ", must be %" PRIu32 " to %" PRIu32, number, min, max);
        rp_config_refuse(reader, RP_STATUS_RANGE, key, message);
        return min;
    }
    return (uint32_t)number;
}

uint32_t rp_config_uint(struct rp_config_reader *reader, const char *key, double fallback,
                        uint32_t min, uint32_t max) {
    const json_t *value = rp_config_get(reader, key);
    if (value)
        return rp_config_uint_value(reader, value, key, min, max);
    if (fallback == RP_CONFIG_REQUIRED) {
        rp_config_refuse(reader, RP_STATUS_FORMAT, key, "is missing");
        return min;
    }
    return (uint32_t)fallback;
}

double rp_config_double(struct rp_config_reader *reader, const char *key, double fallback,
                        double min, bool min_exclusive, double max) {
    char message[96];
    const json_t *value = rp_config_get(reader, key);
    if (!value) {
        if (fallback == RP_CONFIG_REQUIRED)
            rp_config_refuse(reader, RP_STATUS_FORMAT, key, "is missing");
        return fallback;
    }
    if (!json_is_number(value)) {
        rp_config_refuse(reader, RP_STATUS_FORMAT, key, "must be a number");
        return fallback;
    }
    double number = json_number_value(value);
    if (!isfinite(number) || number < min || number > max || (min_exclusive && number == min)) {
        snprintf(message, sizeof message, "is %g, must be %s %g and at most %g", number,
                 min_exclusive ? "above" : "at least", min, max);
        rp_config_refuse(reader, RP_STATUS_RANGE, key, message);
        return fallback;
    }
    return number;
}

bool rp_config_bool(struct rp_config_reader *reader, const char *key, bool fallback) {
    const json_t *value = rp_config_get(reader, key);
    if (value && !json_is_boolean(value))
        rp_config_refuse(reader, RP_STATUS_FORMAT, key, "must be true or false");
    return value ? json_is_true(value) : fallback;
}

const char *rp_config_string(struct rp_config_reader *reader, const char *key) {
    const json_t *value = rp_config_get(reader, key);
    if (value && !json_is_string(value))
        rp_config_refuse(reader, RP_STATUS_FORMAT, key, "must be a string");
    return json_string_value(value);
}

void rp_config_refuse_name(struct rp_config_reader *reader, const char *key, const char *text,
                           const char *supported) {
    char message[480], shown[80];
    snprintf(message, sizeof message, "is \"%s\", supported: %s",
             rp_text_for_message(shown, sizeof shown, text), supported);
    rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, key, message);
}

bool rp_config_has(const struct rp_config_reader *reader, const char *key) {
    note(reader->keys, key);
    return json_object_get(reader->object, key) != NULL;
}
