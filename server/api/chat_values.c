#include "server/api/chat_values.h"

static struct rp_chat_value *from_object(struct rp_chat_values *values, const json_t *json) {
    struct rp_chat_value *dict = rp_chat_dict(values);
    const char *key;
    size_t len;
    json_t *item;
    json_object_keylen_foreach((json_t *)(uintptr_t)json, key, len, item)
        rp_chat_dict_set(values, dict, key, len, rp_chat_values_from_json(values, item));
    return dict;
}

static struct rp_chat_value *from_array(struct rp_chat_values *values, const json_t *json) {
    struct rp_chat_value *list = rp_chat_list(values);
    size_t i;
    json_t *item;
    json_array_foreach(json, i, item)
        rp_chat_list_add(values, list, rp_chat_values_from_json(values, item));
    return list;
}

struct rp_chat_value *rp_chat_values_from_json(struct rp_chat_values *values, const json_t *json) {
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return from_object(values, json);
    case JSON_ARRAY:
        return from_array(values, json);
    case JSON_STRING:
        return rp_chat_string(values, json_string_value(json), json_string_length(json));
    case JSON_INTEGER:
        return rp_chat_int(values, json_integer_value(json));
    case JSON_REAL:
        return rp_chat_float(values, json_real_value(json));
    case JSON_TRUE:
    case JSON_FALSE:
        return rp_chat_bool(values, json_is_true(json));
    case JSON_NULL:
        break;
    }
    return rp_chat_none(values);
}
