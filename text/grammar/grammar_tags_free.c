/* grammar_tags_free.c - formats of structural tags with free text: any_text, triggered_tags and
 * dispatch, and their forms for tokens. The strings that stop the text are the patterns of one
 * G_FREE: triggers go on with their tag, an end of the tag around it ends it, excluded strings and
 * triggers without a tag must not occur. */
#include "text/grammar/grammar_tags.h"

#include <string.h>

/* The patterns of a free text under construction. */
struct stops {
    struct free_pattern *at;
    size_t count;
};

/* Room for `count` patterns and the ends. */
static int make_stops(struct tag_compiler *c, size_t count, const struct tag_ends *ends,
                      struct stops *out) {
    *out = (struct stops){NULL, 0};
    out->at = rp_arena_calloc(&c->arena, count + (ends ? ends->count : 0) + 1, sizeof *out->at);
    if (!out->at)
        return rp_error_set(c->err, RP_STATUS_FULL, "structural_tag: too many strings");
    for (size_t i = 0; ends && i < ends->count; i++)
        out->at[out->count++] = (struct free_pattern){
            .bytes = ends->texts[i].bytes, .len = ends->texts[i].len, .node = NODE_EPS};
    return RP_OK;
}

static bool contains(const struct free_pattern *in, const struct tag_text *text) {
    for (uint32_t i = 0; text->len <= in->len && i <= in->len - text->len; i++)
        if (memcmp(in->bytes + i, text->bytes, text->len) == 0)
            return true;
    return false;
}

/* Excluded strings. One that is a trigger or an end itself changes nothing; one inside of these
 * would make them unreachable. */
static int add_excludes(struct tag_compiler *c, const json_t *f, const char *key, bool tokens,
                        struct stops *stops) {
    const json_t *list = json_object_get(f, key);
    size_t live = stops->count;
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct tag_text text;
        const json_t *item = json_array_get(list, i);
        int rc = tokens ? tag_token(c, f, key, item, &text) : tag_string(c, f, key, item, &text);
        if (rc != RP_OK)
            return rc;
        if (text.len == 0)
            return tag_refuse(c, RP_STATUS_FORMAT, f, key, "an empty string");
        if (memchr(text.bytes, SPECIAL_MARK, text.len))
            continue; /* free text has no special tokens */
        bool same = false;
        for (size_t k = 0; k < live; k++) {
            bool inside = contains(&stops->at[k], &text);
            same |= inside && stops->at[k].len == text.len;
            if (inside && stops->at[k].len != text.len && stops->at[k].node != NODE_NONE)
                return tag_refuse(c, RP_STATUS_UNSUPPORTED, f, key,
                                  "a trigger or an end contains the excluded string");
        }
        if (!same)
            stops->at[stops->count++] = (struct free_pattern){.bytes = text.bytes, .len = text.len};
    }
    return RP_OK;
}

static int read_limit(struct tag_compiler *c, const json_t *f, const char *key, uint32_t *out) {
    const json_t *value = json_object_get(f, key);
    *out = REP_INF;
    if (!value || json_is_null(value))
        return RP_OK;
    json_int_t limit = json_integer_value(value);
    if (!json_is_integer(value) || limit < 0 || limit > INT32_MAX)
        return tag_refuse(c, RP_STATUS_RANGE, f, key, "not an integer of 0 to 2147483647");
    *out = (uint32_t)limit;
    return RP_OK;
}

static int free_format(struct tag_compiler *c, const json_t *f, const char *excludes, bool tokens,
                       const struct tag_ends *ends, uint32_t *out) {
    const json_t *list;
    uint32_t token_limit, char_limit;
    struct stops stops;
    int rc = tag_list(c, f, excludes, false, &list);
    if (rc == RP_OK)
        rc = read_limit(c, f, "max_tokens", &token_limit);
    if (rc == RP_OK)
        rc = read_limit(c, f, "max_chars", &char_limit);
    if (rc == RP_OK)
        rc = make_stops(c, json_array_size(list), ends, &stops);
    size_t live = rc == RP_OK ? stops.count : 0;
    if (rc == RP_OK)
        rc = add_excludes(c, f, excludes, tokens, &stops);
    if (rc != RP_OK)
        return rc;
    if ((token_limit != REP_INF || char_limit != REP_INF) && live > 0 && stops.count > live)
        return tag_refuse(c, RP_STATUS_UNSUPPORTED, f, excludes,
                          "with max_tokens or max_chars only the end can be excluded");
    *out =
        g_free(c->g, stops.at, stops.count, !ends || ends->may_be_empty, token_limit, char_limit);
    return RP_OK;
}

int tag_any_text(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                 uint32_t *out) {
    return free_format(c, f, "excludes", false, ends, out);
}

int tag_any_tokens(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                   uint32_t *out) {
    return free_format(c, f, "exclude_tokens", true, ends, out);
}

/* ---- Triggers ------------------------------------------------------------ */

/* Bytes of the trigger within begin, 0 when begin does not begin with it. A trigger that ends
 * inside the text of a special token reaches to its end. */
static uint32_t trigger_bytes(const struct tag_compiler *c, const struct tag_text *begin,
                              const struct tag_text *trigger) {
    if (!begin->raw || !trigger->raw)
        return trigger->len <= begin->len && memcmp(begin->bytes, trigger->bytes, trigger->len) == 0
                   ? trigger->len
                   : 0;
    if (trigger->raw_len > begin->raw_len ||
        memcmp(begin->raw, trigger->raw, trigger->raw_len) != 0)
        return 0;
    uint32_t used = 0;
    for (uint32_t i = 0; i < trigger->raw_len;) {
        const struct trie_special *special =
            trie_special_at(c->trie, begin->raw + i, begin->raw_len - i);
        used += special ? SPECIAL_BYTES : 1;
        i += special ? special->len : 1;
    }
    return used;
}

struct triggered {
    struct tag_text *triggers;
    struct tag_branch *tags, *group;
    uint32_t *used; /* bytes of its trigger in each tag's begin */
    size_t trigger_count, tag_count;
};

static int read_tags(struct tag_compiler *c, const json_t *f, struct triggered *t) {
    bool tokens = !json_object_get(f, "triggers");
    const char *key = tokens ? "trigger_tokens" : "triggers";
    const json_t *triggers, *tags;
    int rc = tag_list(c, f, key, true, &triggers);
    if (rc == RP_OK)
        rc = tag_list(c, f, "tags", true, &tags);
    if (rc != RP_OK)
        return rc;
    t->trigger_count = json_array_size(triggers);
    t->tag_count = json_array_size(tags);
    t->triggers = rp_arena_calloc(&c->arena, t->trigger_count, sizeof *t->triggers);
    t->tags = rp_arena_calloc(&c->arena, t->tag_count, sizeof *t->tags);
    t->group = rp_arena_calloc(&c->arena, t->tag_count, sizeof *t->group);
    t->used = rp_arena_calloc(&c->arena, t->tag_count, sizeof *t->used);
    if (!t->triggers || !t->tags || !t->group || !t->used)
        return rp_error_set(c->err, RP_STATUS_FULL, "structural_tag: too many tags");
    for (size_t i = 0; i < t->trigger_count && rc == RP_OK; i++) {
        const json_t *item = json_array_get(triggers, i);
        rc = tokens ? tag_token(c, f, key, item, &t->triggers[i])
                    : tag_string(c, f, key, item, &t->triggers[i]);
        if (rc == RP_OK && t->triggers[i].len == 0)
            rc = tag_refuse(c, RP_STATUS_FORMAT, f, key, "an empty string");
    }
    for (size_t k = 0; k < t->tag_count && rc == RP_OK; k++) {
        const json_t *tag = json_array_get(tags, k);
        size_t found = 0;
        rc = tag_parts(c, tag, &t->tags[k].begin, &t->tags[k].node);
        for (size_t i = 0; i < t->trigger_count && rc == RP_OK; i++) {
            uint32_t used = trigger_bytes(c, &t->tags[k].begin, &t->triggers[i]);
            found += used > 0;
            if (used > 0)
                t->used[k] = used;
        }
        if (rc == RP_OK && found != 1)
            rc = tag_refuse(c, RP_STATUS_FORMAT, tag, "begin",
                            found ? "begins with two triggers" : "begins with no trigger");
    }
    return rc;
}

static int make_triggers(struct tag_compiler *c, const json_t *f, const struct triggered *t,
                         const struct tag_ends *ends, uint32_t after, bool may_end, uint32_t *out) {
    const char *key = json_object_get(f, "triggers") ? "excludes" : "exclude_tokens";
    const json_t *list;
    struct stops stops;
    int rc = tag_list(c, f, key, false, &list);
    if (rc == RP_OK)
        rc = make_stops(c, t->tag_count + t->trigger_count + json_array_size(list), ends, &stops);
    for (size_t k = 0; k < t->tag_count && rc == RP_OK; k++) {
        const char *bytes = t->tags[k].begin.bytes;
        uint32_t used = t->used[k];
        size_t count = 0;
        bool done = false;
        for (size_t i = 0; i < t->tag_count; i++) {
            struct tag_branch b = t->tags[i];
            if (t->used[i] != used || memcmp(b.begin.bytes, bytes, used) != 0)
                continue;
            done |= i < k;
            b.begin.bytes += used;
            b.begin.len -= used;
            b.node = g_cat(c->g, b.node, after);
            t->group[count++] = b;
        }
        if (done) /* with an earlier tag */
            continue;
        uint32_t node = tag_branches(c, t->group, count);
        stops.at[stops.count++] = (struct free_pattern){.bytes = bytes, .len = used, .node = node};
    }
    for (size_t i = 0; i < t->trigger_count && rc == RP_OK; i++) {
        bool used = (bool)memchr(t->triggers[i].bytes, SPECIAL_MARK, t->triggers[i].len);
        for (size_t k = 0; k < t->tag_count; k++)
            used |= trigger_bytes(c, &t->tags[k].begin, &t->triggers[i]) > 0;
        if (!used)
            stops.at[stops.count++] =
                (struct free_pattern){.bytes = t->triggers[i].bytes, .len = t->triggers[i].len};
    }
    if (rc == RP_OK)
        rc = add_excludes(c, f, key, strcmp(key, "excludes") != 0, &stops);
    if (rc == RP_OK)
        *out = g_free(c->g, stops.at, stops.count, may_end, REP_INF, REP_INF);
    return rc;
}

int tag_triggered(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                  uint32_t *out) {
    struct rp_grammar *g = c->g;
    struct triggered t;
    bool first = json_is_true(json_object_get(f, "at_least_one"));
    bool once = json_is_true(json_object_get(f, "stop_after_first"));
    uint32_t end = ends ? ends->node : NODE_EPS, body = NODE_NONE;
    int rc = read_tags(c, f, &t);
    if (rc != RP_OK)
        return rc;
    uint32_t loop = once ? end : g_rule(g);
    if (!once || !first)
        rc = make_triggers(c, f, &t, ends, loop, !ends || ends->may_be_empty, &body);
    if (rc != RP_OK)
        return rc;
    if (!once)
        g_rule_set(g, loop, body);
    *out = body;
    if (first) {
        for (size_t i = 0; i < t.tag_count; i++)
            t.tags[i].node = g_cat(g, t.tags[i].node, loop);
        *out = tag_branches(c, t.tags, t.tag_count);
    }
    return RP_OK;
}

int tag_dispatch(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                 uint32_t *out) {
    struct rp_grammar *g = c->g;
    bool tokens = strcmp(json_string_value(json_object_get(f, "type")), "dispatch") != 0;
    const char *key = tokens ? "exclude_tokens" : "excludes";
    const json_t *rules, *list, *loop_value = json_object_get(f, "loop");
    struct stops stops;
    bool loop = !loop_value || json_is_true(loop_value);
    int rc = tag_list(c, f, "rules", true, &rules);
    if (rc == RP_OK)
        rc = tag_list(c, f, key, false, &list);
    if (rc == RP_OK)
        rc = make_stops(c, json_array_size(rules) + json_array_size(list), ends, &stops);
    size_t first = rc == RP_OK ? stops.count : 0;
    for (size_t i = 0; i < json_array_size(rules) && rc == RP_OK; i++) {
        const json_t *rule = json_array_get(rules, i), *pattern = json_array_get(rule, 0);
        struct tag_text text;
        uint32_t node;
        if (json_array_size(rule) != 2)
            return tag_refuse(c, RP_STATUS_FORMAT, f, "rules", "a rule is [pattern, format]");
        rc = tokens ? tag_token(c, f, "rules", pattern, &text)
                    : tag_string(c, f, "rules", pattern, &text);
        if (rc == RP_OK && text.len == 0)
            rc = tag_refuse(c, RP_STATUS_FORMAT, f, "rules", "an empty pattern");
        if (rc == RP_OK)
            rc = tag_format(c, json_array_get(rule, 1), NULL, &node);
        if (rc == RP_OK)
            stops.at[stops.count++] =
                (struct free_pattern){.bytes = text.bytes, .len = text.len, .node = node};
    }
    uint32_t after = loop ? g_rule(g) : ends ? ends->node : NODE_EPS;
    for (size_t i = first; rc == RP_OK && i < stops.count; i++)
        stops.at[i].node = g_cat(g, stops.at[i].node, after);
    if (rc == RP_OK)
        rc = add_excludes(c, f, key, tokens, &stops);
    if (rc != RP_OK)
        return rc;
    *out = g_free(g, stops.at, stops.count, !ends || ends->may_be_empty, REP_INF, REP_INF);
    if (loop)
        g_rule_set(g, after, *out);
    return RP_OK;
}
