#include "base/memory.h"
#include "text/dialect/dialect_grammar.h"

#include <string.h>

/* RP_SCHEMA_LARK of text/grammar, which this folder does not know. */
#define SCHEMA_LARK "\1lark"

enum { LITERAL_DEPTH_MAX = 6, ANY_DEPTH = 2, KEYS_MAX = 128, REPEAT_MAX = 65535 };

/* --- Formats --------------------------------------------------------------------------------- */

json_t *rp_format_text_len(const char *text, size_t len) {
    return json_pack("{s:s, s:o}", "type", "const_string", "value", json_stringn(text, len));
}

json_t *rp_format_text(const char *text) { return rp_format_text_len(text, strlen(text)); }

json_t *rp_format_regex(const char *pattern) {
    return json_pack("{s:s, s:s}", "type", "regex", "pattern", pattern);
}

json_t *rp_format_optional(json_t *content) {
    return json_pack("{s:s, s:o}", "type", "optional", "content", content);
}

json_t *rp_format_sequence(void) {
    return json_pack("{s:s, s:[]}", "type", "sequence", "elements");
}

json_t *rp_format_or(void) { return json_pack("{s:s, s:[]}", "type", "or", "elements"); }

bool rp_format_add(json_t *list, json_t *format) {
    return json_array_append_new(json_object_get(list, "elements"), format) == 0;
}

json_t *rp_format_until(const char *begin, const char *end) {
    return json_pack("{s:s, s:s, s:{s:s}, s:s}", "type", "tag", "begin", begin, "content", "type",
                     "any_text", "end", end);
}

static bool has_reference(const json_t *value) {
    const char *key;
    size_t i;
    json_t *item;
    if (json_object_get(value, "$ref"))
        return true;
    json_object_foreach((json_t *)value, key, item) if (has_reference(item)) return true;
    json_array_foreach((json_t *)value, i, item) if (has_reference(item)) return true;
    return false;
}

/* Local references are found from the root, so the definitions go with the schema. */
json_t *rp_format_value(const json_t *parameters, const json_t *schema) {
    static const char *const definitions[] = {"$defs", "definitions"};
    if (schema == parameters || !has_reference(schema))
        return json_pack("{s:s, s:O}", "type", "json_schema", "json_schema", schema);
    if (!json_is_object(schema))
        return NULL;
    json_t *copy = json_copy((json_t *)schema);
    for (size_t i = 0; i < RP_ARRAY_COUNT(definitions); i++) {
        json_t *list = json_object_get(parameters, definitions[i]);
        if (list && !json_object_get(copy, definitions[i]))
            (void)json_object_set(copy, definitions[i], list);
    }
    return json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", copy);
}

/* --- Lists of items that may be absent ------------------------------------------------------- */

struct items {
    json_t *at[KEYS_MAX];
    bool needed[KEYS_MAX];
    size_t count;
};

static void free_items(struct items *items) {
    for (size_t i = 0; i < items->count; i++)
        json_decref(items->at[i]);
}

/* The items from `from` on, each with the separator before it. */
static bool add_rest(json_t *sequence, const struct items *items, size_t from,
                     const char *separator) {
    bool ok = true;
    for (size_t i = from; i < items->count && ok; i++) {
        json_t *one = items->at[i];
        json_incref(one);
        if (separator[0])
            one = json_pack("{s:s, s:[o,o]}", "type", "sequence", "elements",
                            rp_format_text(separator), one);
        ok = rp_format_add(sequence, items->needed[i] ? one : rp_format_optional(one));
    }
    return ok;
}

/* In their order, with the separator between those that are there. */
static json_t *join(const struct items *items, const char *separator) {
    if (!separator[0]) {
        json_t *all = rp_format_sequence();
        if (add_rest(all, items, 0, ""))
            return all;
        json_decref(all);
        return NULL;
    }
    json_t *choice = rp_format_or();
    bool ok = true, may_be_empty = true;
    for (size_t first = 0; first < items->count && ok && may_be_empty; first++) {
        json_t *one = rp_format_sequence();
        ok = rp_format_add(one, json_incref(items->at[first])) &&
             add_rest(one, items, first + 1, separator);
        ok = rp_format_add(choice, one) && ok;
        may_be_empty = !items->needed[first];
    }
    if (ok && may_be_empty)
        ok = rp_format_add(choice, rp_format_text(""));
    if (ok)
        return choice;
    json_decref(choice);
    return NULL;
}

/* --- Values ---------------------------------------------------------------------------------- */

/* The white space at the end of a marker's text. */
static const char *tail_space(const char *text) {
    size_t len = strlen(text);
    while (len > 0 && strchr(" \n\t\r", text[len - 1]))
        len--;
    return text + len;
}

/* `text` with neither the white space at its ends; NULL: no memory. */
static json_t *trimmed(const char *text) {
    size_t len = (size_t)(tail_space(text) - text), from = strspn(text, " \n\t\r");
    return json_stringn(text + RP_MIN(from, len), len - RP_MIN(from, len));
}

static const json_t *choices(const json_t *schema, json_t **owned) {
    const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    *owned = one ? json_pack("[O]", one) : NULL;
    return *owned ? *owned : json_is_array(list) ? list : NULL;
}

/* Text that is no string of its own: JSON; strings raw. */
static json_t *choice_text(const json_t *value, bool raw) {
    if (raw && json_is_string(value))
        return rp_format_text_len(json_string_value(value), json_string_length(value));
    size_t len = json_dumpb(value, NULL, 0, JSON_ENCODE_ANY);
    json_t *format = NULL;
    char *text = rp_alloc(len + 1);
    if (text && json_dumpb(value, text, len, JSON_ENCODE_ANY) == len)
        format = rp_format_text_len(text, len);
    rp_free(text);
    return format;
}

/* The text of a string where it is not quoted as JSON, up to one of the two ends (the second may be
 * NULL); NULL: any text. A Lark grammar may accept the ends as well. */
static json_t *string_text(const json_t *root, const json_t *schema, bool trim, const char *end,
                           const char *other) {
    static const char *const keywords[] = {"pattern", "format", "minLength", "maxLength"};
    const json_t *from = rp_dialect_follow(root, schema),
                 *value = json_object_get(from, SCHEMA_LARK);
    if (json_is_string(value))
        return json_pack("{s:s, s:O, s:s}", "type", "grammar", "grammar", value, "syntax", "lark");
    json_t *text = NULL;
    for (size_t i = 0; i < RP_ARRAY_COUNT(keywords); i++) {
        value = json_object_get(from, keywords[i]);
        if (value && !text)
            text = json_pack("{s:s, s:b, s:[s,s]}", "type", "text", "trim", trim, "excludes", end,
                             other ? other : "");
        if (value && json_object_set(text, keywords[i], (json_t *)value) != 0) {
            json_decref(text);
            return NULL;
        }
    }
    return text;
}

/* One parameter of a tagged call. A string is raw text up to its tag; an enumeration is one of its
 * texts; all else is JSON of its schema. */
static json_t *tagged_item(const struct rp_dialect *row, const json_t *parameters, const char *key,
                           const json_t *schema) {
    unsigned types = rp_dialect_types(parameters, key, strlen(key));
    bool typed = row->raw_key_close[0] != '\0', may_be_text = types & TYPE_STRING;
    json_t *either = rp_format_or(), *owned, *begin, *item;
    const json_t *list = choices(schema, &owned);
    bool ok = either != NULL;
    size_t i;
    json_array_foreach((json_t *)list, i, item) {
        const char *close = typed && !json_is_string(item) ? row->raw_key_close : row->key_close;
        ok = ok &&
             rp_format_add(either, json_pack("{s:s, s:[o,o,o]}", "type", "sequence", "elements",
                                             rp_format_text(close), choice_text(item, true),
                                             rp_format_text(row->value_close)));
    }
    json_decref(owned);
    if (!list && may_be_text) {
        /* The splitter takes the section's end for that of a value whose tag is missing. */
        json_t *end = trimmed(row->value_close), *section = trimmed(row->section_close);
        json_t *text = json_pack("{s:s}", "type", "any_text"), *bounded = NULL;
        if (json_string_length(section) > 0 && text)
            ok = ok && json_object_set_new(text, "excludes", json_pack("[O]", section)) == 0;
        if (types == TYPE_STRING && end && section)
            bounded = string_text(parameters, schema, true, json_string_value(end),
                                  json_string_value(section));
        if (bounded)
            ok = ok && rp_format_add(either, json_pack("{s:s, s:[o,o,o]}", "type", "sequence",
                                                       "elements", rp_format_text(row->key_close),
                                                       bounded, rp_format_text(row->value_close)));
        ok = ok && end &&
             (bounded ||
              rp_format_add(either, json_pack("{s:s, s:[{s:s, s:s, s:O, s:O}, o]}", "type",
                                              "sequence", "elements", "type", "tag", "begin",
                                              row->key_close, "content", text, "end", end,
                                              rp_format_text(tail_space(row->value_close)))));
        json_decref(text);
        json_decref(section);
        json_decref(end);
    }
    if (!list && (!may_be_text || typed) && types != TYPE_STRING)
        ok = ok &&
             rp_format_add(either,
                           json_pack("{s:s, s:[o,o,o]}", "type", "sequence", "elements",
                                     rp_format_text(typed ? row->raw_key_close : row->key_close),
                                     rp_format_value(parameters, schema),
                                     rp_format_text(row->value_close)));
    begin = json_pack("{s:s, s:[o,o,o]}", "type", "sequence", "elements",
                      rp_format_text(row->key_open), rp_format_text(key), either);
    if (ok)
        return begin;
    json_decref(begin);
    return NULL;
}

static json_t *any_literal(const char *quote, int depth) {
    json_t *either = rp_format_or();
    bool ok = rp_format_add(either, rp_format_until(quote, quote)) &&
              rp_format_add(either, json_pack("{s:s, s:{s:[s,s,s]}}", "type", "json_schema",
                                              "json_schema", "type", "number", "boolean", "null"));
    if (depth > 0) {
        json_t *list =
            json_pack("{s:s, s:s, s:o, s:s}", "type", "tag", "begin", "[", "content",
                      json_pack("{s:s, s:s, s:[{s:s, s:s, s:o, s:s}]}", "type",
                                "tags_with_separator", "separator", ",", "tags", "type", "tag",
                                "begin", "", "content", any_literal(quote, depth - 1), "end", ""),
                      "end", "]");
        json_t *member =
            json_pack("{s:s, s:[o,o]}", "type", "sequence", "elements",
                      rp_format_regex("[A-Za-z0-9_]{1,64}:"), any_literal(quote, depth - 1));
        json_t *object =
            json_pack("{s:s, s:s, s:o, s:s}", "type", "tag", "begin", "{", "content",
                      json_pack("{s:s, s:s, s:[{s:s, s:s, s:o, s:s}]}", "type",
                                "tags_with_separator", "separator", ",", "tags", "type", "tag",
                                "begin", "", "content", member, "end", ""),
                      "end", "}");
        ok = rp_format_add(either, list) && ok;
        ok = rp_format_add(either, object) && ok;
    }
    if (ok)
        return either;
    json_decref(either);
    return NULL;
}

static json_t *literal_value(const struct rp_dialect *row, const json_t *root, const json_t *schema,
                             int depth, struct rp_format_failure *failure);

/* The members of an object, each made by `one`. */
typedef json_t *(*item_maker)(const struct rp_dialect *row, const json_t *root, const char *key,
                              const json_t *schema, int depth, struct rp_format_failure *failure);

static bool is_required(const json_t *object, const char *key) {
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(object, "required"), i,
                       name) if (json_is_string(name) &&
                                 strcmp(json_string_value(name), key) == 0) return true;
    return false;
}

/* Keywords that the list of members cannot keep. */
static const char *refused_keyword(const json_t *object) {
    static const char *const keywords[] = {"anyOf",
                                           "oneOf",
                                           "allOf",
                                           "not",
                                           "if",
                                           "dependentRequired",
                                           "minProperties",
                                           "maxProperties",
                                           "dependentSchemas",
                                           "enum",
                                           "const",
                                           "$ref"};
    for (size_t i = 0; i < RP_ARRAY_COUNT(keywords); i++)
        if (json_object_get(object, keywords[i]))
            return keywords[i];
    return NULL;
}

static json_t *members(const struct rp_dialect *row, const json_t *root, const json_t *object,
                       int depth, const char *separator, item_maker one,
                       struct rp_format_failure *failure) {
    struct items items = {.count = 0};
    const char *key;
    json_t *schema, *result = NULL, *name;
    size_t i;
    bool ok = true;
    failure->keyword = refused_keyword(object);
    if (failure->keyword)
        return NULL;
    json_array_foreach(json_object_get(object, "required"), i, name) {
        const char *text = json_string_value(name);
        if (text && !json_object_get(json_object_get(object, "properties"), text))
            failure->keyword = "required"; /* a key without a schema */
    }
    if (json_object_size(json_object_get(object, "properties")) > KEYS_MAX)
        failure->keyword = "properties";
    if (failure->keyword)
        return NULL;
    json_object_foreach(json_object_get(object, "properties"), key, schema) {
        json_t *item = one(row, root, key, schema, depth, failure);
        ok = ok && item;
        items.needed[items.count] = is_required(object, key);
        items.at[items.count++] = item;
    }
    if (ok)
        result = join(&items, separator);
    free_items(&items);
    return result;
}

static json_t *tag_member(const struct rp_dialect *row, const json_t *root, const char *key,
                          const json_t *schema, int depth, struct rp_format_failure *failure) {
    (void)depth;
    (void)failure;
    return tagged_item(row, root, key, schema);
}

static json_t *literal_member(const struct rp_dialect *row, const json_t *root, const char *key,
                              const json_t *schema, int depth, struct rp_format_failure *failure) {
    return json_pack("{s:s, s:[o,o,o]}", "type", "sequence", "elements", rp_format_text(key),
                     rp_format_text(":"), literal_value(row, root, schema, depth - 1, failure));
}

/* Python's True and False; all else as JSON, which the splitter reads as well. */
static json_t *python_member(const struct rp_dialect *row, const json_t *root, const char *key,
                             const json_t *schema, int depth, struct rp_format_failure *failure) {
    (void)row;
    (void)depth;
    (void)failure;
    bool is_truth = rp_dialect_types(root, key, strlen(key)) == TYPE_BOOLEAN &&
                    !json_object_get(schema, "const") && !json_object_get(schema, "enum");
    return json_pack("{s:s, s:[o,o,o]}", "type", "sequence", "elements", rp_format_text(key),
                     rp_format_text("="),
                     is_truth ? rp_format_regex("True|False") : rp_format_value(root, schema));
}

static json_t *literal_list(const struct rp_dialect *row, const json_t *root, const json_t *schema,
                            int depth, struct rp_format_failure *failure) {
    const json_t *items = json_object_get(schema, "items");
    json_int_t low = json_integer_value(json_object_get(schema, "minItems"));
    json_int_t high = json_object_get(schema, "maxItems")
                          ? json_integer_value(json_object_get(schema, "maxItems"))
                          : -1;
    json_t *one = json_is_object(items) ? literal_value(row, root, items, depth - 1, failure)
                                        : any_literal(row->quote, ANY_DEPTH);
    json_t *more =
        json_pack("{s:s, s:[o,O]}", "type", "sequence", "elements", rp_format_text(","), one);
    json_t *some =
        json_pack("{s:s, s:[o,{s:s, s:I, s:I, s:o}]}", "type", "sequence", "elements", one, "type",
                  "repeat", "min", RP_MIN(low > 0 ? low - 1 : 0, REPEAT_MAX), "max",
                  high > 0 ? RP_MIN(high - 1, REPEAT_MAX) : (json_int_t)-1, "content", more);
    if (high == 0) {
        json_decref(some);
        some = rp_format_text("");
    } else if (low <= 0) {
        some = rp_format_optional(some);
    }
    return json_pack("{s:s, s:[o,o,o]}", "type", "sequence", "elements", rp_format_text("["), some,
                     rp_format_text("]"));
}

static json_t *literal_value(const struct rp_dialect *row, const json_t *root, const json_t *schema,
                             int depth, struct rp_format_failure *failure) {
    json_t *owned, *either = NULL, *item;
    schema = rp_dialect_follow(root, schema);
    const json_t *list = choices(schema, &owned);
    unsigned types = rp_dialect_schema_types(root, schema);
    size_t i;
    if (list) {
        bool ok = (either = rp_format_or()) != NULL;
        json_array_foreach((json_t *)list, i, item) {
            json_t *text = choice_text(item, true);
            const char *quote = json_is_string(item) ? row->quote : "";
            ok = ok && rp_format_add(either,
                                     json_pack("{s:s, s:[o,o,o]}", "type", "sequence", "elements",
                                               rp_format_text(quote), text, rp_format_text(quote)));
        }
        json_decref(owned);
        if (ok)
            return either;
        json_decref(either);
        return NULL;
    }
    if (types == TYPE_STRING) {
        json_t *text = string_text(root, schema, false, row->quote, NULL);
        return text ? json_pack("{s:s, s:[o,o,o]}", "type", "sequence", "elements",
                                rp_format_text(row->quote), text, rp_format_text(row->quote))
                    : rp_format_until(row->quote, row->quote);
    }
    if (depth <= 0 || (types & (types - 1)))
        return any_literal(row->quote, ANY_DEPTH);
    if (types == TYPE_ARRAY)
        return literal_list(row, root, schema, depth, failure);
    if (types == TYPE_OBJECT && json_object_size(json_object_get(schema, "properties")) > 0)
        return json_pack("{s:s, s:[o,o,o]}", "type", "sequence", "elements", rp_format_text("{"),
                         members(row, root, schema, depth, ",", literal_member, failure),
                         rp_format_text("}"));
    return types == TYPE_OBJECT ? any_literal(row->quote, ANY_DEPTH)
                                : rp_format_value(root, schema);
}

json_t *rp_format_arguments(const struct rp_dialect *row, const json_t *parameters,
                            struct rp_format_failure *failure) {
    failure->keyword = NULL;
    if (row->shape == RP_CALL_TAGGED || row->shape == RP_CALL_LITERAL ||
        row->shape == RP_CALL_PYTHONIC) {
        const json_t *object = rp_dialect_follow(parameters, parameters);
        if (row->shape == RP_CALL_TAGGED)
            return members(row, parameters, object, 0, "", tag_member, failure);
        if (row->shape == RP_CALL_PYTHONIC)
            return members(row, parameters, object, 0, ", ", python_member, failure);
        return json_pack(
            "{s:s, s:[o,o,o]}", "type", "sequence", "elements", rp_format_text("{"),
            members(row, parameters, object, LITERAL_DEPTH_MAX, ",", literal_member, failure),
            rp_format_text("}"));
    }
    if (!parameters)
        return json_pack("{s:s, s:{s:s}}", "type", "json_schema", "json_schema", "type", "object");
    return json_pack("{s:s, s:O}", "type", "json_schema", "json_schema", parameters);
}
