/* grammar_schema_ref.c - $ref, and where a schema is in its document. */
#include "text/grammar/grammar_schema.h"

#include <string.h>

#define POINTER_DEPTH 256

int schema_depth(const json_t *value, int limit) {
    if (limit < 0)
        return -1;
    const char *key;
    json_t *child;
    size_t index;
    int deepest = 0;
    if (json_is_array(value)) {
        json_array_foreach(value, index, child) {
            int depth = schema_depth(child, limit - 1);
            if (depth < 0)
                return -1;
            deepest = RP_MAX(deepest, depth + 1);
        }
    } else if (json_is_object(value)) {
        json_object_foreach((json_t *)value, key, child) {
            int depth = schema_depth(child, limit - 1);
            if (depth < 0)
                return -1;
            deepest = RP_MAX(deepest, depth + 1);
        }
    }
    return deepest;
}

static bool is_base(const json_t *id) {
    const char *text = json_string_value(id);
    return text && text[0] != '#';
}

static bool nested_id(const json_t *value, bool is_root, bool is_schema) {
    const char *key;
    json_t *child;
    size_t index;
    if (json_is_array(value)) {
        json_array_foreach(value, index, child) if (nested_id(child, false, is_schema)) return true;
    } else if (json_is_object(value)) {
        if (!is_root && is_schema && (is_base(json_object_get(value, "$id"))))
            return true;
        json_object_foreach((json_t *)value, key, child) {
            if (!strcmp(key, "enum") || !strcmp(key, "const") || !strcmp(key, "examples") ||
                !strcmp(key, "default"))
                continue;
            bool names =
                is_schema && (!strcmp(key, "properties") || !strcmp(key, "$defs") ||
                              !strcmp(key, "definitions") || !strcmp(key, "patternProperties") ||
                              !strcmp(key, "dependentSchemas"));
            if (nested_id(child, false, !names))
                return true;
        }
    }
    return false;
}

bool schema_has_nested_id(const json_t *root) { return nested_id(root, true, true); }

/* One segment of a JSON pointer in a URI fragment: %XX, then ~0 and ~1. */
static bool segment_of(const char **at, char *out, size_t size) {
    size_t used = 0;
    const char *p = *at;
    for (; *p && *p != '/'; p++) {
        int c = (unsigned char)*p;
        if (c == '%') {
            char digits[3] = {p[1], p[1] ? p[2] : 0, 0};
            c = 0;
            for (int i = 0; i < 2; i++) {
                char d = digits[i] | 0x20;
                if (!((digits[i] >= '0' && digits[i] <= '9') || (d >= 'a' && d <= 'f')))
                    return false;
                c = c * 16 + (digits[i] <= '9' ? digits[i] - '0' : d - 'a' + 10);
            }
            p += 2;
        }
        if (used + 1 >= size)
            return false;
        out[used++] = (char)c;
    }
    out[used] = 0;
    *at = p;
    size_t to = 0;
    for (size_t i = 0; i < used; i++) {
        if (out[i] == '~' && (out[i + 1] == '0' || out[i + 1] == '1'))
            out[to++] = out[++i] == '0' ? '~' : '/';
        else
            out[to++] = out[i];
    }
    out[to] = 0;
    return true;
}

static const json_t *follow(const json_t *at, const char *pointer) {
    char segment[1024];
    while (at && *pointer == '/') {
        pointer++;
        if (!segment_of(&pointer, segment, sizeof segment))
            return NULL;
        if (json_is_array(at)) {
            size_t index = 0;
            for (const char *d = segment; *d; d++) {
                if (*d < '0' || *d > '9' || index > 1000000)
                    return NULL;
                index = index * 10 + (size_t)(*d - '0');
            }
            at = *segment ? json_array_get(at, index) : NULL;
        } else {
            at = json_object_get(at, segment);
        }
    }
    return *pointer ? NULL : at;
}

/* The schema that names itself by $anchor, or in older drafts by $id "#name". */
static const json_t *by_name(struct schema_compiler *c, const json_t *value, const char *name) {
    const char *key;
    json_t *child;
    size_t index;
    const json_t *found = NULL;
    if (json_is_array(value)) {
        json_array_foreach(value, index, child) if (!found) found = by_name(c, child, name);
    } else if (json_is_object(value) && grammar_burn(c->g, 1)) {
        static const char *const keys[] = {"$anchor", "$dynamicAnchor", "$id", "id"};
        for (size_t i = 0; i < RP_ARRAY_COUNT(keys); i++) {
            const char *text = json_string_value(json_object_get(value, keys[i]));
            if (text && (i < 2 ? !strcmp(text, name) : text[0] == '#' && !strcmp(text + 1, name)))
                return value;
        }
        json_object_foreach((json_t *)value, key,
                            child) if (!found && strcmp(key, "enum") && strcmp(key, "const"))
            found = by_name(c, child, name);
    }
    return found;
}

int schema_resolve(struct schema_compiler *c, const json_t *schema, const char *ref,
                   const json_t **out) {
    if (!ref)
        return schema_refuse(c, RP_STATUS_FORMAT, schema, "$ref", "not a string");
    if (c->nested_ids)
        return schema_refuse(c, RP_STATUS_UNSUPPORTED, schema, "$ref",
                             "not supported beside an $id inside the schema");
    const char *id = json_string_value(json_object_get(c->root, "$id"));
    size_t len = id ? strcspn(id, "#") : 0;
    if (len > 0 && strncmp(ref, id, len) == 0 && (ref[len] == '#' || ref[len] == 0))
        ref += len;
    else if (ref[0] != '#')
        return schema_refuse(c, RP_STATUS_UNSUPPORTED, schema, "$ref",
                             "only references inside the schema (#...) are supported");
    ref += *ref == '#';
    if (*ref == 0)
        *out = c->root;
    else
        *out = *ref == '/' ? follow(c->root, ref) : by_name(c, c->root, ref);
    if (!*out && c->g->status != RP_OK)
        return c->g->status;
    if (!*out)
        return schema_refuse(c, RP_STATUS_FORMAT, schema, "$ref", "leads nowhere");
    return RP_OK;
}

static bool path_to(const json_t *from, const json_t *to, char *out, size_t size, size_t used) {
    const char *key;
    json_t *child;
    size_t index;
    out[used] = 0;
    if (from == to)
        return true;
    if (json_is_array(from)) {
        json_array_foreach(from, index, child) {
            int n = snprintf(out + used, size - used, "/%zu", index);
            if (n > 0 && (size_t)n < size - used && path_to(child, to, out, size, used + (size_t)n))
                return true;
        }
    } else if (json_is_object(from)) {
        json_object_foreach((json_t *)from, key, child) {
            size_t at = used;
            if (at + 2 < size)
                out[at++] = '/';
            for (const char *p = key; *p && at + 3 < size; p++) {
                if (*p == '~' || *p == '/') {
                    out[at++] = '~';
                    out[at++] = *p == '~' ? '0' : '1';
                } else {
                    out[at++] = (unsigned char)*p < 0x20 ? '?' : *p;
                }
            }
            if (path_to(child, to, out, size, at))
                return true;
        }
    }
    out[used] = 0;
    return false;
}

void schema_pointer(const struct schema_compiler *c, const json_t *schema, char *out, size_t size) {
    char inner[256];
    if (path_to(c->root, schema, out, size, 0))
        return;
    for (size_t i = c->rewritten.count; i-- > 0;)
        if (path_to(c->rewritten.at[i].schema, schema, inner, sizeof inner, 0)) {
            schema_pointer(c, c->rewritten.at[i].origin, out, size);
            return;
        }
    out[0] = 0;
}
