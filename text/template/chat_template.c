/* The values that a caller builds: messages, tools and arguments, without a JSON library. */
#include "text/template/chat_template.h"

#include "base/utf8.h"
#include "text/template/template_internal.h"

#include <string.h>

struct rp_chat_values *rp_chat_values_create(size_t limit_bytes) {
    struct rp_chat_values *values = rp_calloc(1, sizeof *values);
    if (values)
        values->mem.arena.limit_bytes = limit_bytes ? limit_bytes : (size_t)64 << 20;
    return values;
}

void rp_chat_values_destroy(struct rp_chat_values *values) {
    if (!values)
        return;
    rp_arena_deinit(&values->mem.arena);
    rp_free(values);
}

bool rp_chat_values_failed(const struct rp_chat_values *values) {
    return !values || values->mem.failed;
}

static struct rp_chat_value *make(struct rp_chat_values *values, struct rp_value v, bool input) {
    if (rp_chat_values_failed(values))
        return NULL;
    struct rp_chat_value *value = rp_tmem_alloc(&values->mem, sizeof *value);
    if (!value)
        return NULL;
    value->v = v;
    value->v.input = input;
    return value;
}

struct rp_chat_value *rp_chat_none(struct rp_chat_values *values) {
    return make(values, rp_value_none(), true);
}

struct rp_chat_value *rp_chat_bool(struct rp_chat_values *values, bool value) {
    return make(values, rp_value_bool(value), true);
}

struct rp_chat_value *rp_chat_int(struct rp_chat_values *values, int64_t value) {
    return make(values, rp_value_int(value), true);
}

struct rp_chat_value *rp_chat_float(struct rp_chat_values *values, double value) {
    return make(values, rp_value_float(value), true);
}

/* A copy in which each byte that is not UTF-8 is U+FFFD. */
static struct rp_value copy_text(struct rp_tmem *mem, const char *text, size_t len) {
    struct rp_tbuf buf;
    size_t begin = 0;
    if (len > (size_t)UINT32_MAX / 4) {
        mem->failed = true;
        return rp_value_none();
    }
    if (rp_utf8_valid(text, len)) {
        char *copy = rp_tmem_alloc(mem, len + 1);
        if (!copy)
            return rp_value_none();
        memcpy(copy, text, len);
        return rp_value_str(copy, len, true);
    }
    rp_tbuf_init(&buf, mem);
    for (size_t i = 0; i < len;) {
        int n = rp_utf8_decode(text + i, len - i, NULL);
        if (n > 0) {
            i += (size_t)n;
            continue;
        }
        rp_tbuf_bytes(&buf, text + begin, i - begin, true);
        rp_tbuf_bytes(&buf, "\xEF\xBF\xBD", 3, true);
        begin = ++i;
    }
    rp_tbuf_bytes(&buf, text + begin, len - begin, true);
    return rp_tbuf_finish(&buf);
}

struct rp_chat_value *rp_chat_string(struct rp_chat_values *values, const char *text, size_t len) {
    if (rp_chat_values_failed(values))
        return NULL;
    return make(values, copy_text(&values->mem, text, len), true);
}

struct rp_chat_value *rp_chat_trusted_string(struct rp_chat_values *values, const char *text,
                                             size_t len) {
    struct rp_chat_value *value = rp_chat_string(values, text, len);
    if (value)
        value->v.input = false;
    return value;
}

struct rp_chat_value *rp_chat_list(struct rp_chat_values *values) {
    if (rp_chat_values_failed(values))
        return NULL;
    return make(values, rp_tseq_make(&values->mem, RP_VALUE_LIST, 0), true);
}

struct rp_chat_value *rp_chat_dict(struct rp_chat_values *values) {
    if (rp_chat_values_failed(values))
        return NULL;
    return make(values, rp_tdict_make(&values->mem, RP_VALUE_DICT), true);
}

void rp_chat_list_add(struct rp_chat_values *values, struct rp_chat_value *list,
                      struct rp_chat_value *item) {
    if (list && item && list->v.type == RP_VALUE_LIST)
        rp_tseq_add(&values->mem, list->v.u.seq, item->v);
}

void rp_chat_dict_set(struct rp_chat_values *values, struct rp_chat_value *dict, const char *key,
                      size_t key_len, struct rp_chat_value *item) {
    if (!dict || !item || dict->v.type != RP_VALUE_DICT)
        return;
    struct rp_value name = copy_text(&values->mem, key, key_len);
    if (!values->mem.failed)
        rp_tdict_put(&values->mem, dict->v.u.dict, name, item->v);
}
