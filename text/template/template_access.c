/* Attributes, subscripts, slices, iteration, and what is undefined. */
#include "text/template/template_internal.h"

#include <stdio.h>
#include <string.h>

static struct rp_value make_undefined(struct rp_trender *r, struct rp_tundefined fields) {
    struct rp_tundefined *u = rp_tmem_alloc(&r->mem, sizeof *u);
    if (!u)
        return rp_value_none();
    *u = fields;
    return (struct rp_value){.type = RP_VALUE_UNDEFINED, .u.undefined = u};
}

struct rp_value rp_value_undefined(struct rp_trender *r, const char *hint) {
    return make_undefined(r, (struct rp_tundefined){.hint = hint, .name = rp_value_none()});
}

struct rp_value rp_value_undefined_name(struct rp_trender *r, struct rp_value name) {
    return make_undefined(r, (struct rp_tundefined){.name = name});
}

struct rp_value rp_value_undefined_member(struct rp_trender *r, struct rp_value object,
                                          struct rp_value name) {
    return make_undefined(
        r, (struct rp_tundefined){.object = object, .name = name, .has_object = true});
}

static struct rp_value unsafe_member(struct rp_trender *r, struct rp_value object,
                                     struct rp_value name) {
    return make_undefined(
        r, (struct rp_tundefined){
               .object = object, .name = name, .has_object = true, .security = true});
}

/* "dict object", as jinja2 describes objects. */
static void describe_object(struct rp_value v, char *out, size_t size) {
    static const char *const modules[] = {
        [RP_VALUE_UNDEFINED] = "jinja2.runtime.", [RP_VALUE_MACRO] = "jinja2.runtime.",
        [RP_VALUE_LOOP] = "jinja2.runtime.",      [RP_VALUE_NAMESPACE] = "jinja2.utils.",
        [RP_VALUE_CYCLER] = "jinja2.utils.",      [RP_VALUE_JOINER] = "jinja2.utils."};
    const char *module = v.type < RP_ARRAY_COUNT(modules) ? modules[v.type] : NULL;
    if (v.type == RP_VALUE_NONE)
        snprintf(out, size, "None");
    else if (v.type == RP_VALUE_STRING && v.markup)
        snprintf(out, size, "markupsafe.Markup object");
    else
        snprintf(out, size, "%s%s object", module ? module : "", rp_value_type_name(v));
}

struct rp_value rp_value_fail_undefined(struct rp_trender *r, struct rp_value v) {
    const struct rp_tundefined *u = v.u.undefined;
    char object[80];
    if (!u)
        return rp_render_fail(r, "UndefinedError", "undefined");
    if (u->hint)
        return rp_render_fail(r, "UndefinedError", "%s", u->hint);
    struct rp_value name = rp_value_repr_string(r, u->name);
    if (name.type != RP_VALUE_STRING)
        return name;
    int len = (int)RP_MIN(name.len, 200u);
    if (u->security)
        return rp_render_fail(r, "SecurityError",
                              "access to attribute %.*s of '%s' object is unsafe.", len, name.u.s,
                              rp_value_type_name(u->object));
    if (!u->has_object)
        return rp_render_fail(r, "UndefinedError", "%.*s is undefined", len, name.u.s);
    describe_object(u->object, object, sizeof object);
    if (u->name.type == RP_VALUE_STRING)
        return rp_render_fail(r, "UndefinedError", "'%s' has no attribute %.*s", object, len,
                              name.u.s);
    return rp_render_fail(r, "UndefinedError", "%s has no element %.*s", object, len, name.u.s);
}

/* Python's own attributes of a value, before its items. */
static bool own_attribute(struct rp_trender *r, struct rp_value object, struct rp_value name,
                          struct rp_value *out) {
    bool safe = true, found = false;
    if (object.type == RP_VALUE_LOOP) {
        *out = rp_render_loop_attribute(r, object.u.loop, name, &found);
        return found;
    }
    if (object.type == RP_VALUE_NAMESPACE) {
        const struct rp_value *value = rp_tdict_get(object.u.dict, name);
        if (value)
            *out = *value;
        return value != NULL;
    }
    if (object.type == RP_VALUE_MACRO && rp_value_is(name, "name")) {
        *out = object.u.macro->name;
        return true;
    }
    int method = rp_tmethod_find(object, name, &safe);
    if (!method)
        return false;
    if (!safe) {
        *out = unsafe_member(r, object, name);
        return true;
    }
    struct rp_value *self = rp_tmem_alloc(&r->mem, sizeof *self);
    if (!self)
        return false;
    *self = object;
    *out = (struct rp_value){.type = RP_VALUE_METHOD, .sub = (uint8_t)method, .u.self = self};
    return true;
}

/* object[key]: false when there is no such item. */
static bool item(struct rp_trender *r, struct rp_value object, struct rp_value key,
                 struct rp_value *out) {
    if (object.type == RP_VALUE_DICT) {
        const struct rp_value *value = rp_tdict_get(object.u.dict, key);
        if (value)
            *out = *value;
        return value != NULL;
    }
    if (!rp_value_is_integer(key))
        return false;
    int64_t index = rp_value_integer(key), count;
    if (object.type == RP_VALUE_STRING)
        count = (int64_t)rp_tstr_count(object);
    else if (object.type == RP_VALUE_LIST || object.type == RP_VALUE_TUPLE ||
             object.type == RP_VALUE_RANGE)
        count = (int64_t)object.u.seq->count;
    else
        return false;
    if (index < 0)
        index += count;
    if (index < 0 || index >= count)
        return false;
    if (object.type != RP_VALUE_STRING) {
        *out = object.u.seq->items[index];
        return true;
    }
    size_t begin = rp_tstr_offset(object, (size_t)index), size;
    (void)rp_render_charge_bytes(r, object.len);
    (void)rp_tstr_char(object, begin, &size);
    *out = rp_value_sub(object, begin, size);
    return true;
}

struct rp_value rp_value_getattr(struct rp_trender *r, struct rp_value object,
                                 struct rp_value name) {
    struct rp_value out;
    bool safe;
    if (object.type == RP_VALUE_UNDEFINED && !rp_tmethod_find(object, name, &safe))
        return rp_value_fail_undefined(r, object);
    if (own_attribute(r, object, name, &out) || r->failed)
        return r->failed ? rp_value_none() : out;
    if (item(r, object, name, &out))
        return out;
    return rp_value_undefined_member(r, object, name);
}

struct rp_value rp_value_getitem(struct rp_trender *r, struct rp_value object,
                                 struct rp_value key) {
    struct rp_value out;
    if (object.type == RP_VALUE_UNDEFINED)
        return rp_value_fail_undefined(r, object);
    if (item(r, object, key, &out))
        return out;
    if (key.type == RP_VALUE_STRING && (own_attribute(r, object, key, &out) || r->failed))
        return r->failed ? rp_value_none() : out;
    return rp_value_undefined_member(r, object, key);
}

/* ---- Slices --------------------------------------------------------------------------- */

static bool slice_index(struct rp_trender *r, struct rp_value v, int64_t *out) {
    if (v.type == RP_VALUE_NONE)
        return true;
    if (rp_value_is_integer(v)) {
        *out = rp_value_integer(v);
        return true;
    }
    /* An undefined value has no __index__, so Python reports its type. */
    (void)rp_render_fail(r, "TypeError",
                         "slice indices must be integers or None or have an __index__ method");
    return false;
}

/* Python's rules: begin, end and step for a sequence of n, so that begin + k * step stays
 * inside. */
static bool slice_bounds(struct rp_trender *r, int64_t n, const struct rp_value part[3],
                         int64_t *begin, int64_t *count, int64_t *step) {
    *step = 1;
    if (!slice_index(r, part[2], step))
        return false;
    if (*step == 0) {
        (void)rp_render_fail(r, "ValueError", "slice step cannot be zero");
        return false;
    }
    if (*step < -INT64_MAX)
        *step = -INT64_MAX;
    int64_t low = *step < 0 ? -1 : 0, high = *step < 0 ? n - 1 : n, end;
    *begin = *step < 0 ? high : low;
    end = *step < 0 ? low : high;
    bool has_end = part[1].type != RP_VALUE_NONE, has_begin = part[0].type != RP_VALUE_NONE;
    if (!slice_index(r, part[0], begin) || !slice_index(r, part[1], &end))
        return false;
    if (has_begin)
        *begin = *begin < 0 ? RP_MAX(*begin + n, low) : RP_MIN(*begin, high);
    if (has_end)
        end = end < 0 ? RP_MAX(end + n, low) : RP_MIN(end, high);
    if (*step > 0)
        *count = end > *begin ? (end - *begin - 1) / *step + 1 : 0;
    else
        *count = *begin > end ? (*begin - end - 1) / -*step + 1 : 0;
    return true;
}

static struct rp_value slice_string(struct rp_trender *r, struct rp_value s, int64_t begin,
                                    int64_t count, int64_t step) {
    if (!rp_render_charge_bytes(r, s.len) || count == 0)
        return rp_value_sub(s, 0, 0);
    if (step == 1) {
        size_t from = rp_tstr_offset(s, (size_t)begin);
        size_t to = from + rp_tstr_offset(rp_value_sub(s, from, s.len - from), (size_t)count);
        return rp_value_sub(s, from, to - from);
    }
    size_t n = rp_tstr_count(s), at = 0, size;
    uint32_t *offsets = rp_tmem_calloc(&r->mem, n + 1, sizeof *offsets);
    if (!offsets)
        return rp_value_none();
    for (size_t i = 0; i < n; i++, at += size) {
        offsets[i] = (uint32_t)at;
        (void)rp_tstr_char(s, at, &size);
    }
    offsets[n] = s.len;
    struct rp_tbuf buf;
    rp_tbuf_init(&buf, &r->mem);
    for (int64_t k = 0, i = begin; k < count; k++, i += step)
        rp_tbuf_sub(&buf, s, offsets[i], offsets[i + 1] - offsets[i]);
    return rp_tbuf_finish(&buf);
}

struct rp_value rp_value_slice(struct rp_trender *r, struct rp_value object, struct rp_value a,
                               struct rp_value b, struct rp_value c) {
    const struct rp_value part[3] = {a, b, c};
    int64_t begin, count, step;
    if (object.type == RP_VALUE_UNDEFINED)
        return rp_value_fail_undefined(r, object);
    if (object.type == RP_VALUE_DICT)
        return rp_render_fail(r, "TypeError", "unhashable type: 'slice'");
    bool is_string = object.type == RP_VALUE_STRING;
    if (!is_string && object.type != RP_VALUE_LIST && object.type != RP_VALUE_TUPLE &&
        object.type != RP_VALUE_RANGE)
        return rp_render_fail(r, "TypeError", "'%s' object is not subscriptable",
                              rp_value_type_name(object));
    int64_t n = is_string ? (int64_t)rp_tstr_count(object) : (int64_t)object.u.seq->count;
    if (!slice_bounds(r, n, part, &begin, &count, &step))
        return rp_value_none();
    if (is_string)
        return slice_string(r, object, begin, count, step);
    struct rp_value out = rp_tseq_make(&r->mem, (enum rp_value_type)object.type, (size_t)count);
    if (out.type != object.type || !rp_render_charge(r, (size_t)count))
        return rp_value_none();
    for (int64_t k = 0, i = begin; k < count; k++, i += step)
        rp_tseq_add(&r->mem, out.u.seq, object.u.seq->items[i]);
    out.input = object.input;
    return out;
}

/* ---- Iteration ------------------------------------------------------------------------ */

static struct rp_tseq *string_items(struct rp_trender *r, struct rp_value s) {
    struct rp_value out = rp_tseq_make(&r->mem, RP_VALUE_LIST, rp_tstr_count(s));
    if (out.type != RP_VALUE_LIST || !rp_render_charge(r, s.len))
        return NULL;
    for (size_t at = 0, size; at < s.len; at += size) {
        (void)rp_tstr_char(s, at, &size);
        rp_tseq_add(&r->mem, out.u.seq, rp_value_sub(s, at, size));
    }
    return out.u.seq;
}

struct rp_tseq *rp_value_iterate(struct rp_trender *r, struct rp_value v) {
    struct rp_value out;
    if (v.type == RP_VALUE_STRING)
        return string_items(r, v);
    if (rp_value_is_seq(v) && v.type != RP_VALUE_GENERATOR)
        return v.u.seq;
    if (v.type != RP_VALUE_DICT && v.type != RP_VALUE_UNDEFINED && v.type != RP_VALUE_GENERATOR) {
        (void)rp_render_fail(r, "TypeError", "'%s' object is not iterable", rp_value_type_name(v));
        return NULL;
    }
    out = rp_tseq_make(&r->mem, RP_VALUE_LIST, 0);
    if (out.type != RP_VALUE_LIST)
        return NULL;
    if (v.type == RP_VALUE_GENERATOR) {
        struct rp_tseq *from = v.u.seq;
        out.u.seq->items = from->items ? from->items + from->taken : NULL;
        out.u.seq->count = out.u.seq->capacity = from->count - from->taken;
        from->taken = from->count;
    } else if (v.type == RP_VALUE_DICT && rp_render_charge(r, v.u.dict->count)) {
        for (size_t i = 0; i < v.u.dict->count; i++)
            rp_tseq_add(&r->mem, out.u.seq, v.u.dict->entries[i].key);
    }
    return r->mem.failed ? NULL : out.u.seq;
}

int64_t rp_value_length(struct rp_trender *r, struct rp_value v) {
    if (v.type == RP_VALUE_STRING) {
        (void)rp_render_charge_bytes(r, v.len);
        return (int64_t)rp_tstr_count(v);
    }
    if (v.type == RP_VALUE_DICT)
        return (int64_t)v.u.dict->count;
    if (v.type == RP_VALUE_UNDEFINED)
        return 0;
    if (rp_value_is_seq(v) && v.type != RP_VALUE_GENERATOR)
        return (int64_t)v.u.seq->count;
    (void)rp_render_fail(r, "TypeError", "object of type '%s' has no len()", rp_value_type_name(v));
    return -1;
}
