/* grammar_schema.c - conjunctions of schemas to rules. */
#include "text/grammar/grammar_schema.h"

#include "base/buffer.h"
#include "base/hash.h"
#include "text/json_file.h"

#include <string.h>

#define SOURCE_BYTES  ((size_t)1 << 20)
#define NESTING_MAX   128
#define REF_DEPTH_MAX 256
#define ITEMS_MAX     512 /* schemas of one conjunction */

int schema_refuse(struct schema_compiler *c, int status, const json_t *schema, const char *keyword,
                  const char *what) {
    char pointer[256];
    if (!c->err)
        return status; /* the pointer needs a walk over the document */
    schema_pointer(c, schema, pointer, sizeof pointer);
    return rp_error_set(c->err, status, "schema, #%s: \"%s\": %s", pointer, keyword, what);
}

const json_t *schema_keep(struct schema_compiler *c, json_t *made, const json_t *origin) {
    struct rewritten entry = {made, origin};
    if (!made || !VEC_PUSH(c->g, &c->rewritten, entry)) {
        json_decref(made);
        grammar_fail(c->g, RP_STATUS_NO_MEMORY);
        return NULL;
    }
    return made;
}

uint32_t schema_quoted(struct schema_compiler *c, const char *text, size_t len) {
    struct rp_buffer buffer;
    rp_buffer_init(&buffer, 0);
    rp_buffer_append(&buffer, "\"", 1);
    for (size_t i = 0; i < len; i++) {
        static const char letters[] = "\"\\bfnrt", codes[] = "\"\\\b\f\n\r\t";
        const char *found = memchr(codes, text[i], sizeof codes - 1);
        if (found)
            rp_buffer_printf(&buffer, "\\%c", letters[found - codes]);
        else if ((unsigned char)text[i] < 0x20)
            rp_buffer_printf(&buffer, "\\u%04x", (unsigned)text[i]);
        else
            rp_buffer_append(&buffer, &text[i], 1);
    }
    rp_buffer_append(&buffer, "\"", 1);
    if (buffer.failed)
        grammar_fail(c->g, RP_STATUS_NO_MEMORY);
    uint32_t node = buffer.failed ? NODE_NONE : g_lit(c->g, buffer.data, buffer.len);
    rp_buffer_deinit(&buffer);
    return node;
}

int schema_add(struct schema_compiler *c, struct item_list *items, const json_t *schema,
               int depth) {
    if (json_is_true(schema))
        return RP_OK;
    if (json_is_false(schema)) {
        items->nothing = true;
        return RP_OK;
    }
    if (!json_is_object(schema))
        return rp_error_set(c->err, RP_STATUS_FORMAT, "schema: not an object or a boolean");
    for (size_t i = 0; i < items->list.count; i++)
        if (items->list.at[i].schema == schema)
            return RP_OK;
    if (depth > REF_DEPTH_MAX || items->list.count >= ITEMS_MAX)
        return schema_refuse(c, RP_STATUS_FULL, schema, "$ref", "too many schemas apply here");
    int rc = schema_check_keywords(c, schema);
    struct item item = {schema, 0};
    if (rc == RP_OK && !VEC_PUSH(c->g, &items->list, item))
        rc = c->g->status;
    const json_t *ref = json_object_get(schema, "$ref"), *target = NULL;
    if (rc == RP_OK && ref) {
        rc = schema_resolve(c, schema, json_string_value(ref), &target);
        if (rc == RP_OK)
            rc = schema_add(c, items, target, depth + 1);
    }
    const json_t *all = json_object_get(schema, "allOf");
    for (size_t i = 0; rc == RP_OK && i < json_array_size(all); i++)
        rc = schema_add(c, items, json_array_get(all, i), depth + 1);
    return rc;
}

/* ---- Rules by conjunction -------------------------------------------------------------------- */

static size_t job_slot(const struct schema_compiler *c, const struct item *items, size_t count) {
    size_t mask = c->job_table.count - 1;
    size_t i = rp_hash64(items, count * sizeof *items, 0) & mask;
    for (; c->job_table.at[i] != 0; i = (i + 1) & mask) {
        const struct conj *conj = &c->jobs.at[c->job_table.at[i] - 1].conj;
        if (conj->count == count &&
            (count == 0 || memcmp(conj->items, items, count * sizeof *items) == 0))
            break;
    }
    return i;
}

static bool grow_job_table(struct schema_compiler *c) {
    if (c->jobs.count * 2 < c->job_table.count)
        return true;
    size_t size = c->job_table.count ? c->job_table.count * 2 : 64;
    uint32_t *old = c->job_table.at;
    uint32_t *at = rp_calloc(size, sizeof *at);
    if (!at) {
        grammar_fail(c->g, RP_STATUS_NO_MEMORY);
        return false;
    }
    c->job_table.at = at;
    c->job_table.count = size;
    for (uint32_t k = 0; k < c->jobs.count; k++)
        at[job_slot(c, c->jobs.at[k].conj.items, c->jobs.at[k].conj.count)] = k + 1;
    rp_free(old);
    return true;
}

static int arena_failed(struct schema_compiler *c) {
    bool full = c->arena.used_bytes + 4096 > c->arena.limit_bytes;
    return grammar_fail(c->g, full ? RP_STATUS_FULL : RP_STATUS_NO_MEMORY);
}

static int find_rule(struct schema_compiler *c, const struct item_list *items, uint32_t *out) {
    struct rp_grammar *g = c->g;
    size_t count = items->list.count;
    if (!grammar_burn(g, 16 + count) || !grow_job_table(c))
        return g->status;
    size_t slot = job_slot(c, items->list.at, count);
    if (c->job_table.at[slot] != 0) {
        *out = c->jobs.at[c->job_table.at[slot] - 1].ref;
        return RP_OK;
    }
    struct job job = {.conj = {.count = count}, .ref = g_rule(g)};
    job.conj.items = rp_arena_calloc(&c->arena, count + 1, sizeof *job.conj.items);
    if (!job.conj.items)
        return arena_failed(c);
    if (count > 0)
        memcpy(job.conj.items, items->list.at, count * sizeof *job.conj.items);
    if (!VEC_PUSH(g, &c->jobs, job))
        return g->status;
    c->job_table.at[slot] = (uint32_t)c->jobs.count;
    *out = job.ref;
    return g->status;
}

int schema_rule(struct schema_compiler *c, struct item_list *items, uint32_t *out) {
    int rc = RP_OK;
    *out = NODE_NONE;
    if (!items->nothing)
        rc = find_rule(c, items, out);
    rp_free(items->list.at);
    c->g->memory_bytes -= items->list.capacity * sizeof *items->list.at;
    *items = (struct item_list){.nothing = false};
    return rc;
}

int schema_rule_with(struct schema_compiler *c, const struct conj *conj, size_t index,
                     unsigned done, const json_t *more, uint32_t *out) {
    struct item_list items = {.nothing = false};
    int rc = RP_OK;
    for (size_t i = 0; i < conj->count && rc == RP_OK; i++) {
        struct item item = conj->items[i];
        if (i == index)
            item.done |= done;
        if (!VEC_PUSH(c->g, &items.list, item))
            rc = c->g->status;
    }
    if (rc == RP_OK && more)
        rc = schema_add(c, &items, more, 0);
    uint32_t unused;
    int made = schema_rule(c, &items, rc == RP_OK ? out : &unused);
    return rc != RP_OK ? rc : made;
}

/* ---- One rule ------------------------------------------------------------ */

static int branches(struct schema_compiler *c, const struct conj *conj, size_t index, unsigned done,
                    const json_t *list, uint32_t *out) {
    size_t base = c->g->work.count;
    int rc = RP_OK;
    for (size_t i = 0; rc == RP_OK && i < json_array_size(list); i++) {
        uint32_t branch;
        rc = schema_rule_with(c, conj, index, done, json_array_get(list, i), &branch);
        if (rc == RP_OK && !VEC_PUSH(c->g, &c->g->work, branch))
            rc = c->g->status;
    }
    *out = rc == RP_OK ? g_or(c->g, c->g->work.at + base, c->g->work.count - base) : NODE_NONE;
    c->g->work.count = base;
    return rc;
}

/* The first keyword that splits the conjunction or must be rewritten; *out_found says whether. */
static int split(struct schema_compiler *c, const struct conj *conj, unsigned types,
                 bool *out_found, uint32_t *out) {
    *out_found = true;
    for (size_t i = 0; i < conj->count; i++) {
        const json_t *s = conj->items[i].schema, *list;
        unsigned done = (unsigned)conj->items[i].done, now = 0;
        json_t *made = NULL;
        int rc = schema_rewrite(c, s, done, &made, &now);
        if (rc != RP_OK)
            return rc;
        if (now) {
            const json_t *kept = schema_keep(c, made, s);
            return kept ? schema_rule_with(c, conj, i, now, kept, out) : c->g->status;
        }
        if ((list = json_object_get(s, "anyOf")) && !(done & DONE_ANY_OF))
            return branches(c, conj, i, DONE_ANY_OF, list, out);
        if (json_object_get(s, "oneOf") && !(done & DONE_ONE_OF)) {
            rc = schema_one_of(c, s, types, &made);
            if (rc != RP_OK)
                return rc;
            list = schema_keep(c, made, s);
            return list ? branches(c, conj, i, DONE_ONE_OF, list, out) : c->g->status;
        }
    }
    *out_found = false;
    return RP_OK;
}

int schema_sizes(struct schema_compiler *c, const struct conj *conj, const char *min_key,
                 const char *max_key, uint32_t *out_min, uint32_t *out_max) {
    *out_min = 0;
    *out_max = REP_INF;
    for (size_t i = 0; i < conj->count; i++)
        for (int is_max = 0; is_max < 2; is_max++) {
            const char *key = is_max ? max_key : min_key;
            const json_t *value = json_object_get(conj->items[i].schema, key);
            if (!value)
                continue;
            double size = json_number_value(value);
            if (!json_is_number(value) || size < 0 || size != (double)(uint64_t)size)
                return schema_refuse(c, RP_STATUS_FORMAT, conj->items[i].schema, key,
                                     "not a natural number");
            uint32_t limit = size > 1e9 ? REP_INF - 1 : (uint32_t)size;
            if (is_max)
                *out_max = RP_MIN(*out_max, limit);
            else
                *out_min = RP_MAX(*out_min, limit);
        }
    return RP_OK;
}

/* Types that schemas name and the values that `not` excludes. */
static int types_of(struct schema_compiler *c, const struct conj *conj, unsigned *out) {
    *out = TYPE_ANY;
    for (size_t i = 0; i < conj->count; i++) {
        const json_t *s = conj->items[i].schema;
        unsigned bits;
        int rc = schema_type_bits(c, s, &bits);
        if (rc != RP_OK)
            return rc;
        *out &= bits;
        const json_t *excluded = json_object_get(s, "\1notValues");
        for (size_t k = 0; k < json_array_size(excluded); k++)
            if (json_is_null(json_array_get(excluded, k)))
                *out &= ~(unsigned)TYPE_NULL;
    }
    return RP_OK;
}

static uint32_t booleans(struct schema_compiler *c, const struct conj *conj) {
    bool no[2] = {false, false};
    for (size_t i = 0; i < conj->count; i++) {
        const json_t *excluded = json_object_get(conj->items[i].schema, "\1notValues");
        for (size_t k = 0; k < json_array_size(excluded); k++) {
            no[0] |= json_is_false(json_array_get(excluded, k));
            no[1] |= json_is_true(json_array_get(excluded, k));
        }
    }
    return g_or2(c->g, no[0] ? NODE_NONE : g_lit(c->g, "false", 5),
                 no[1] ? NODE_NONE : g_lit(c->g, "true", 4));
}

static int body_of(struct schema_compiler *c, const struct conj *conj, uint32_t *out) {
    bool found;
    unsigned types;
    uint32_t parts[6] = {NODE_NONE};
    int rc = types_of(c, conj, &types);
    *out = NODE_NONE;
    if (rc == RP_OK && types & TYPE_OBJECT && conj->count > 1 && schema_contradicts(c, conj))
        types &= ~(unsigned)TYPE_OBJECT;
    if (rc != RP_OK || types == 0)
        return rc;
    rc = split(c, conj, types, &found, out);
    if (rc != RP_OK || found)
        return rc;
    for (size_t i = 0; i < conj->count; i++) {
        const json_t *s = conj->items[i].schema;
        if (!(conj->items[i].done & DONE_VALUES) &&
            (json_object_get(s, "enum") || json_object_get(s, "const")))
            return schema_values(c, conj, out);
    }
    if (types & TYPE_NULL)
        parts[0] = g_lit(c->g, "null", 4);
    if (types & TYPE_BOOLEAN)
        parts[1] = booleans(c, conj);
    if (types & (TYPE_INTEGER | TYPE_NUMBER))
        rc = schema_number(c, conj, types, &parts[2]);
    if (rc == RP_OK && types & TYPE_STRING)
        rc = schema_string(c, conj, &parts[3]);
    if (rc == RP_OK && types & TYPE_ARRAY)
        rc = schema_array(c, conj, &parts[4]);
    if (rc == RP_OK && types & TYPE_OBJECT)
        rc = schema_object(c, conj, &parts[5]);
    *out = g_or(c->g, parts, 6);
    return rc;
}

static int compile_all(struct schema_compiler *c, const json_t *schema, uint32_t *out) {
    struct rp_grammar *g = c->g;
    struct item_list items = {.nothing = false};
    int rc = schema_add(c, &items, schema, 0);
    int made = schema_rule(c, &items, out);
    rc = rc != RP_OK ? rc : made;
    for (size_t i = 0; rc == RP_OK && i < c->jobs.count; i++) {
        struct job job = c->jobs.at[i];
        uint32_t body = NODE_NONE;
        rc = body_of(c, &job.conj, &body);
        g_rule_set(g, job.ref, body);
        if (rc == RP_OK)
            rc = g->status;
    }
    if (rc == RP_OK)
        rc = schema_filter_values(c);
    if (rc == RP_OK && node_at(g, *out)->flags & NODE_DEAD)
        *out = NODE_NONE;
    return rc;
}

static void common_nodes(struct schema_compiler *c, uint32_t whitespace) {
    struct rp_grammar *g = c->g;
    uint32_t space[] = {rx_range(g, ' ', ' '), rx_range(g, '\t', '\n'), rx_range(g, '\r', '\r')};
    c->ws = g_lex(g, rx_rep(g, rx_or(g, space, 3), 0, whitespace));
    c->comma = g_cat(g, c->ws, g_cat(g, g_lit(g, ",", 1), c->ws));
    c->colon = g_cat(g, c->ws, g_cat(g, g_lit(g, ":", 1), c->ws));
    c->string_end = g_lit(g, "\"", 1);
}

static void deinit(struct schema_compiler *c) {
    for (size_t i = 0; i < c->rewritten.count; i++)
        json_decref(c->rewritten.at[i].schema);
    for (size_t i = 0; i < c->values.count; i++)
        json_decref(c->values.at[i].values);
    c->g->memory_bytes -= c->rewritten.capacity * sizeof *c->rewritten.at +
                          c->values.capacity * sizeof *c->values.at +
                          c->jobs.capacity * sizeof *c->jobs.at;
    rp_free(c->rewritten.at);
    rp_free(c->values.at);
    rp_free(c->jobs.at);
    rp_free(c->job_table.at);
    rp_arena_deinit(&c->arena);
}

int schema_compile(struct rp_grammar *g, json_t *root, const json_t *schema, uint32_t whitespace,
                   uint32_t *out, struct rp_error *err) {
    struct schema_compiler c = {.g = g, .err = err, .root = root, .first_node = g->nodes.count};
    *out = NODE_NONE;
    if (err)
        *err = (struct rp_error){.status = RP_STATUS_OK};
    if (schema_depth(root, NESTING_MAX) < 0)
        return rp_error_set(err, RP_STATUS_FULL, "schema: is nested deeper than %d", NESTING_MAX);
    c.arena.limit_bytes = (size_t)16 << 20;
    c.nested_ids = schema_has_nested_id(root);
    common_nodes(&c, whitespace);
    int rc = compile_all(&c, schema, out);
    deinit(&c);
    if (g->status != RP_OK)
        rc = rp_error_set(err, g->status, "schema: %s",
                          g->status == RP_STATUS_FULL ? "it is too complex" : "out of memory");
    return rc;
}

/* true and false are schemas too. */
static int load(const char *schema, size_t len, json_t **out, struct rp_error *err) {
    size_t begin = 0;
    while (begin < len && strchr(" \t\r\n", schema[begin]))
        begin++;
    while (len > begin && strchr(" \t\r\n", schema[len - 1]))
        len--;
    bool yes = len - begin == 4 && memcmp(schema + begin, "true", 4) == 0;
    bool no = len - begin == 5 && memcmp(schema + begin, "false", 5) == 0;
    *out = json_boolean(yes);
    return yes || no ? RP_OK
                     : rp_json_text_load_with(schema, len, "schema", JSON_ALLOW_NUL, out, err);
}

int rp_grammar_compile_json_schema(const char *schema, size_t len,
                                   const struct rp_grammar_limits *limits, struct rp_grammar **out,
                                   struct rp_error *err) {
    size_t bytes = limits && limits->source_bytes ? limits->source_bytes : SOURCE_BYTES;
    json_t *root;
    *out = NULL;
    if (len > bytes)
        return rp_error_set(err, RP_STATUS_FULL, "schema: has %zu bytes, at most %zu are taken",
                            len, bytes);
    int rc = load(schema, len, &root, err);
    if (rc != RP_OK)
        return rc;
    struct rp_grammar *g = grammar_create(limits);
    uint32_t start = NODE_NONE;
    rc = g ? schema_compile(g, root, root, SCHEMA_WHITESPACE, &start, err)
           : rp_error_set(err, RP_STATUS_NO_MEMORY, "schema: out of memory");
    json_decref(root);
    if (rc == RP_OK) {
        g->start = g_state(g, start);
        if (g->status != RP_OK)
            rc = rp_error_set(err, g->status, "schema: it is too complex");
        else if (g->start == NODE_NONE)
            rc = rp_error_set(err, RP_STATUS_UNSUPPORTED, "schema: no value can satisfy it");
    }
    if (rc == RP_OK)
        *out = g;
    else
        rp_grammar_free(g);
    return rc;
}

int rp_grammar_compile_json_object(const struct rp_grammar_limits *limits, struct rp_grammar **out,
                                   struct rp_error *err) {
    static const char schema[] = "{\"type\":\"object\"}";
    return rp_grammar_compile_json_schema(schema, sizeof schema - 1, limits, out, err);
}
