#include "server/api/response_reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ID_DIGITS = 16 /* of an answer's id after its prefix */ };

static bool wrong(struct rp_http_error *error, size_t index, const char *code, const char *what) {
    char name[40];
    snprintf(name, sizeof name, "input[%zu]", index);
    return rp_http_error_set(error, 400, name, code, "%s %s", name, what);
}

/* Clients may leave the type out: then there is nothing but an id. */
static bool is_reference(const json_t *item) {
    const json_t *type = json_object_get(item, "type");
    if (json_is_string(type))
        return strcmp(json_string_value(type), "item_reference") == 0;
    return json_is_object(item) && (!type || json_is_null(type)) &&
           !json_object_get(item, "role") && json_is_string(json_object_get(item, "id"));
}

/* An item's id is made of its answer's id and its index: msg_<the same as in resp_..><index>. */
static json_t *find_item(struct rp_response_store *store, uint64_t owner, const char *id) {
    char name[sizeof "resp_" + ID_DIGITS];
    const char *stem = strchr(id, '_');
    if (!stem || strlen(++stem) <= ID_DIGITS)
        return NULL;
    int len = snprintf(name, sizeof name, "resp_%.*s", ID_DIGITS, stem);
    const struct rp_stored_response *found =
        rp_response_store_find(store, owner, name, (size_t)len);
    if (!found)
        return NULL;
    size_t index = strtoul(stem + ID_DIGITS, NULL, 10);
    size_t count = json_array_size(found->items) - found->input_count;
    json_t *item = index < count ? json_array_get(found->items, found->input_count + index) : NULL;
    const char *own = json_string_value(json_object_get(item, "id"));
    return own && strcmp(own, id) == 0 ? item : NULL;
}

bool rp_response_references_resolve(json_t *request, struct rp_response_store *store,
                                    uint64_t owner, struct rp_http_error *error) {
    json_t *input = json_object_get(request, "input"), *item, *seen = NULL;
    size_t i;
    bool good = true;
    json_array_foreach(input, i, item) {
        if (!is_reference(item))
            continue;
        const char *id = json_string_value(json_object_get(item, "id"));
        json_t *found = id ? find_item(store, owner, id) : NULL;
        seen = seen ? seen : json_object();
        if (!found)
            good = wrong(error, i, "item_not_found",
                         "refers to an item that is not stored: send the item itself");
        else if (json_object_get(seen, id))
            good = wrong(error, i, "invalid_value", "refers to the same item as an earlier one");
        else if (json_object_set_new(seen, id, json_true()) != 0 ||
                 json_array_set(input, i, found) != 0)
            good = rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
        if (!good)
            break;
    }
    json_decref(seen);
    return good;
}
