/* Values: small ones by value, sequences, dicts, and strings built with their marks. */
#include "base/hash.h"
#include "text/template/template_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Python has no such limit; nobody makes keys of tuples of this size. */
#define HASHED_VALUES_MAX 256

void *rp_tmem_alloc(struct rp_tmem *mem, size_t size) {
    void *ptr = mem->failed ? NULL : rp_arena_alloc(&mem->arena, size);
    if (!ptr)
        mem->failed = true;
    return ptr;
}

void *rp_tmem_calloc(struct rp_tmem *mem, size_t count, size_t size) {
    void *ptr = mem->failed ? NULL : rp_arena_calloc(&mem->arena, count, size);
    if (!ptr)
        mem->failed = true;
    return ptr;
}

void *rp_tmem_grow(struct rp_tmem *mem, void *items, size_t count, size_t *capacity, size_t need,
                   size_t item_bytes) {
    if (need <= *capacity)
        return items;
    size_t wanted = RP_MAX(need, RP_MAX(*capacity * 2, (size_t)4));
    void *grown = rp_tmem_calloc(mem, wanted, item_bytes);
    if (!grown)
        return NULL;
    if (count)
        memcpy(grown, items, count * item_bytes);
    *capacity = wanted;
    return grown;
}

struct rp_value rp_value_none(void) {
    return (struct rp_value){.type = RP_VALUE_NONE};
}
struct rp_value rp_value_bool(bool b) {
    return (struct rp_value){.type = RP_VALUE_BOOL, .u.b = b};
}
struct rp_value rp_value_int(int64_t i) {
    return (struct rp_value){.type = RP_VALUE_INT, .u.i = i};
}
struct rp_value rp_value_float(double f) {
    return (struct rp_value){.type = RP_VALUE_FLOAT, .u.f = f};
}

struct rp_value rp_value_str(const char *text, size_t len, bool input) {
    return (struct rp_value){
        .type = RP_VALUE_STRING, .input = input, .len = (uint32_t)len, .u.s = len ? text : ""};
}

struct rp_value rp_value_cstr(const char *text) {
    return rp_value_str(text, strlen(text), false);
}

struct rp_value rp_value_sub(struct rp_value s, size_t begin, size_t len) {
    s.u.s += begin;
    s.len = (uint32_t)len;
    if (s.marks)
        s.marks += begin;
    return s;
}

bool rp_value_mark(struct rp_value s, size_t at) { return s.marks ? s.marks[at] != 0 : s.input; }

bool rp_value_is(struct rp_value v, const char *text) {
    return v.type == RP_VALUE_STRING && strlen(text) == v.len && memcmp(v.u.s, text, v.len) == 0;
}

double rp_value_number(struct rp_value v) {
    return v.type == RP_VALUE_FLOAT ? v.u.f : (double)rp_value_integer(v);
}

const char *rp_value_type_name(struct rp_value v) {
    static const char *const names[] = {
        [RP_VALUE_UNDEFINED] = "Undefined", [RP_VALUE_NONE] = "NoneType",
        [RP_VALUE_BOOL] = "bool",           [RP_VALUE_INT] = "int",
        [RP_VALUE_FLOAT] = "float",         [RP_VALUE_STRING] = "str",
        [RP_VALUE_LIST] = "list",           [RP_VALUE_TUPLE] = "tuple",
        [RP_VALUE_GENERATOR] = "generator", [RP_VALUE_DICT_ITEMS] = "dict_items",
        [RP_VALUE_DICT_KEYS] = "dict_keys", [RP_VALUE_DICT_VALUES] = "dict_values",
        [RP_VALUE_RANGE] = "range",         [RP_VALUE_DICT] = "dict",
        [RP_VALUE_NAMESPACE] = "Namespace", [RP_VALUE_MACRO] = "Macro",
        [RP_VALUE_FUNCTION] = "function",   [RP_VALUE_METHOD] = "builtin_function_or_method",
        [RP_VALUE_LOOP] = "LoopContext",    [RP_VALUE_CYCLER] = "Cycler",
        [RP_VALUE_JOINER] = "Joiner",
    };
    return v.type == RP_VALUE_STRING && v.markup ? "Markup" : names[v.type];
}

struct rp_value rp_tseq_make(struct rp_tmem *mem, enum rp_value_type type, size_t capacity) {
    struct rp_tseq *seq = rp_tmem_alloc(mem, sizeof *seq);
    if (seq && capacity) {
        seq->items = rp_tmem_calloc(mem, capacity, sizeof *seq->items);
        seq->capacity = seq->items ? capacity : 0;
    }
    if (!seq)
        return rp_value_none();
    return (struct rp_value){.type = (uint8_t)type, .u.seq = seq};
}

void rp_tseq_add(struct rp_tmem *mem, struct rp_tseq *seq, struct rp_value item) {
    struct rp_value *items =
        rp_tmem_grow(mem, seq->items, seq->count, &seq->capacity, seq->count + 1, sizeof *items);
    if (!items)
        return;
    seq->items = items;
    seq->items[seq->count++] = item;
}

struct rp_value rp_tdict_make(struct rp_tmem *mem, enum rp_value_type type) {
    struct rp_tdict *dict = rp_tmem_alloc(mem, sizeof *dict);
    if (!dict)
        return rp_value_none();
    return (struct rp_value){.type = (uint8_t)type, .u.dict = dict};
}

/* One random seed for the process, so that nobody can choose keys that collide. */
static uint64_t hash_seed(void) {
    static uint64_t seed; /* racing threads must agree, so the first to store wins */
    uint64_t now = __atomic_load_n(&seed, __ATOMIC_ACQUIRE);
    if (now)
        return now;
    uint64_t fresh = 0;
    if (!rp_random_fill(&fresh, sizeof fresh))
        fresh = 0x9E3779B97F4A7C15u;
    fresh |= 1;
    return __atomic_compare_exchange_n(&seed, &now, fresh, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE)
               ? fresh
               : now;
}

static uint32_t hash_bytes(const void *bytes, size_t len) {
    return (uint32_t)rp_hash64(bytes, len, hash_seed());
}

/* Tuples hold tuples: `left` bounds how many values are looked at, shared ones each time. */
static bool hash_within(struct rp_value v, int *left, uint32_t *out) {
    int64_t i;
    if (--*left < 0)
        return false;
    switch (v.type) {
    case RP_VALUE_STRING:
        *out = hash_bytes(v.u.s, v.len);
        return true;
    case RP_VALUE_FLOAT:
        if (!(v.u.f >= -9e18 && v.u.f <= 9e18) || v.u.f != floor(v.u.f)) {
            *out = hash_bytes(&v.u.f, sizeof v.u.f);
            return true;
        }
        i = (int64_t)v.u.f;
        *out = hash_bytes(&i, sizeof i);
        return true;
    case RP_VALUE_BOOL:
    case RP_VALUE_INT:
        i = rp_value_integer(v);
        *out = hash_bytes(&i, sizeof i);
        return true;
    case RP_VALUE_TUPLE:
        *out = 7;
        for (size_t n = 0; n < v.u.seq->count; n++) {
            uint32_t part;
            if (!hash_within(v.u.seq->items[n], left, &part))
                return false;
            *out = *out * 31 + part;
        }
        return true;
    case RP_VALUE_LIST:
    case RP_VALUE_DICT:
        return false;
    default:
        *out = v.type;
        return true;
    }
}

bool rp_value_hash(struct rp_value v, uint32_t *out) {
    int left = HASHED_VALUES_MAX;
    return hash_within(v, &left, out);
}

/* Both are hashable values, so both are small. */
static bool same_key(struct rp_value a, struct rp_value b) {
    if (a.type == RP_VALUE_STRING || b.type == RP_VALUE_STRING)
        return a.type == b.type && a.len == b.len && memcmp(a.u.s, b.u.s, a.len) == 0;
    if (rp_value_is_integer(a) && rp_value_is_integer(b))
        return rp_value_integer(a) == rp_value_integer(b);
    if (rp_value_is_number(a) && rp_value_is_number(b))
        return rp_value_number(a) == rp_value_number(b);
    if (a.type != b.type)
        return false;
    if (a.type != RP_VALUE_TUPLE)
        return a.type == RP_VALUE_NONE || a.type == RP_VALUE_UNDEFINED || a.u.seq == b.u.seq;
    if (a.u.seq->count != b.u.seq->count)
        return false;
    for (size_t i = 0; i < a.u.seq->count; i++)
        if (!same_key(a.u.seq->items[i], b.u.seq->items[i]))
            return false;
    return true;
}

static struct rp_tdict_entry *find_entry(const struct rp_tdict *dict, struct rp_value key,
                                         uint32_t hash) {
    if (!dict->index) {
        for (size_t i = 0; i < dict->count; i++)
            if (dict->entries[i].hash == hash && same_key(dict->entries[i].key, key))
                return &dict->entries[i];
        return NULL;
    }
    for (size_t at = hash;; at++) {
        uint32_t number = dict->index[at & (dict->index_size - 1)];
        if (number == 0)
            return NULL;
        struct rp_tdict_entry *entry = &dict->entries[number - 1];
        if (entry->hash == hash && same_key(entry->key, key))
            return entry;
    }
}

static void index_entry(struct rp_tdict *dict, size_t number) {
    size_t at = dict->entries[number].hash;
    while (dict->index[at & (dict->index_size - 1)])
        at++;
    dict->index[at & (dict->index_size - 1)] = (uint32_t)number + 1;
}

static bool grow_index(struct rp_tmem *mem, struct rp_tdict *dict) {
    if (dict->count < 8 || (dict->count + 1) * 2 <= dict->index_size)
        return true;
    size_t size = dict->index_size ? dict->index_size * 4 : 64;
    uint32_t *index = rp_tmem_calloc(mem, size, sizeof *index);
    if (!index)
        return false;
    dict->index = index;
    dict->index_size = size;
    for (size_t i = 0; i < dict->count; i++)
        index_entry(dict, i);
    return true;
}

void rp_tdict_put(struct rp_tmem *mem, struct rp_tdict *dict, struct rp_value key,
                  struct rp_value value) {
    uint32_t hash = 0;
    if (!rp_value_hash(key, &hash))
        return;
    struct rp_tdict_entry *entry = find_entry(dict, key, hash);
    if (entry) {
        entry->value = value;
        return;
    }
    struct rp_tdict_entry *entries = rp_tmem_grow(mem, dict->entries, dict->count, &dict->capacity,
                                                  dict->count + 1, sizeof *entries);
    if (!entries)
        return;
    dict->entries = entries;
    if (!grow_index(mem, dict))
        return;
    entries[dict->count] = (struct rp_tdict_entry){key, value, hash};
    if (dict->index)
        index_entry(dict, dict->count);
    dict->count++;
}

const struct rp_value *rp_tdict_get(const struct rp_tdict *dict, struct rp_value key) {
    uint32_t hash;
    if (!rp_value_hash(key, &hash))
        return NULL;
    struct rp_tdict_entry *entry = find_entry(dict, key, hash);
    return entry ? &entry->value : NULL;
}

const struct rp_value *rp_tdict_get_text(const struct rp_tdict *dict, const char *text,
                                         size_t len) {
    return rp_tdict_get(dict, rp_value_str(text, len, false));
}

/* ---- Strings being built -------------------------------------------------------------- */

void rp_tbuf_init(struct rp_tbuf *buf, struct rp_tmem *mem) { *buf = (struct rp_tbuf){.mem = mem}; }

static bool buf_reserve(struct rp_tbuf *buf, size_t more, bool input) {
    if (buf->full || buf->mem->failed)
        return false;
    if ((buf->limit && more > buf->limit - buf->len) || more > (size_t)UINT32_MAX / 2 - buf->len) {
        buf->full = true;
        buf->mem->failed = buf->mem->failed || !buf->limit;
        return false;
    }
    if (buf->len + more > buf->capacity) {
        size_t capacity = RP_MAX(RP_MAX(buf->len + more, buf->capacity * 2), (size_t)32);
        char *data = rp_tmem_alloc(buf->mem, capacity);
        if (!data)
            return false;
        if (buf->len)
            memcpy(data, buf->data, buf->len);
        buf->data = data;
        buf->capacity = capacity;
    }
    if (!buf->marks && buf->len && buf->input == input)
        return true;
    if (!buf->marks && !buf->len) {
        buf->input = input;
        return true;
    }
    if (buf->marks_capacity < buf->capacity) {
        uint8_t *marks = rp_tmem_alloc(buf->mem, buf->capacity);
        if (!marks)
            return false;
        if (buf->marks)
            memcpy(marks, buf->marks, buf->len);
        else
            memset(marks, buf->input, buf->len);
        buf->marks = marks;
        buf->marks_capacity = buf->capacity;
    }
    return true;
}

void rp_tbuf_bytes(struct rp_tbuf *buf, const char *text, size_t len, bool input) {
    if (len == 0 || !buf_reserve(buf, len, input))
        return;
    memcpy(buf->data + buf->len, text, len);
    if (buf->marks)
        memset(buf->marks + buf->len, input, len);
    buf->len += len;
}

void rp_tbuf_sub(struct rp_tbuf *buf, struct rp_value s, size_t begin, size_t len) {
    size_t at = begin, end = begin + len;
    if (!s.marks) {
        rp_tbuf_bytes(buf, s.u.s + begin, len, s.input);
        return;
    }
    while (at < end) { /* a run of one origin at a time */
        const uint8_t *other = memchr(s.marks + at, !s.marks[at], end - at);
        size_t stop = other ? (size_t)(other - s.marks) : end;
        rp_tbuf_bytes(buf, s.u.s + at, stop - at, s.marks[at] != 0);
        at = stop;
    }
}

void rp_tbuf_string(struct rp_tbuf *buf, struct rp_value s) { rp_tbuf_sub(buf, s, 0, s.len); }

struct rp_value rp_tbuf_finish(const struct rp_tbuf *buf) {
    struct rp_value s = rp_value_str(buf->data, buf->len, buf->input);
    s.marks = buf->len ? buf->marks : NULL;
    return s;
}

size_t rp_tfloat_repr(double value, char out[40]) {
    char digits[40];
    if (isnan(value))
        return (size_t)snprintf(out, 40, "nan");
    if (isinf(value))
        return (size_t)snprintf(out, 40, value < 0 ? "-inf" : "inf");
    int precision = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", precision, value);
    while (strtod(digits, NULL) != value && ++precision < 17);
    const char *e = strchr(digits, 'e');
    int exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= 16) { /* the mantissa as it is, exponent of two digits */
        int mantissa = (int)(e - digits);
        return (size_t)snprintf(out, 40, "%.*se%c%02d", mantissa, digits, exponent < 0 ? '-' : '+',
                                abs(exponent));
    }
    int decimals = precision - exponent;
    return (size_t)snprintf(out, 40, "%.*f", RP_MAX(decimals, 1), value);
}
