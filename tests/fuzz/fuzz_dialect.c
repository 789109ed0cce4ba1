/* fuzz_dialect.c - any output of a model in any dialect: the events do not depend on how it was
 * cut, and calls are well formed. Input: the dialect, flags, a random seed, and the output; \xFE
 * and a byte is a special token. */
#include "tests/fuzz/fuzz_input.h"
#include "text/dialect/dialect.h"

#include <string.h>

enum { CALLS_OFF = 1, KEEP_SPECIAL = 2, REASONING = 4, TOOLS = 8, FILL = 16 };

static const char *const specials[] = {
    "<tool_call>",  "</tool_call>", "<think>",     "</think>",      "[TOOL_CALLS]", "[ARGS]",
    "<|start|>",    "<|channel|>",  "<|message|>", "<|end|>",       "<|call|>",     "<|\"|>",
    "<|tool_call>", "<tool_call|>", "<|unknown|>", "<|python_tag|>"};

struct record {
    struct rp_buffer log;
    int last;
    uint32_t calls;
    bool open;
};

static void sink(void *user, const struct rp_split_event *event) {
    struct record *record = user;
    bool bytes = event->kind <= RP_SPLIT_TEXT || event->kind == RP_SPLIT_CALL_ARGUMENTS;
    if (record->last != (int)event->kind || !bytes)
        rp_buffer_printf(&record->log, "\n%d:", (int)event->kind);
    record->last = (int)event->kind;
    if (bytes)
        rp_buffer_append(&record->log, event->bytes, event->len);
    if (event->kind <= RP_SPLIT_TEXT) {
        RP_ASSERT(!record->open);
        return;
    }
    RP_ASSERT((event->kind == RP_SPLIT_CALL_BEGIN) == !record->open);
    RP_ASSERT_CMP(event->index, ==, record->calls);
    record->open = event->kind != RP_SPLIT_CALL_END;
    record->calls += event->kind == RP_SPLIT_CALL_END;
    if (event->kind == RP_SPLIT_CALL_BEGIN)
        rp_buffer_printf(&record->log, "%s/%s", event->name, event->id);
}

static void run(const struct rp_bound_dialect *bound, const struct rp_splitter_options *base,
                const char *output, size_t len, uint32_t seed, struct record *record) {
    struct rp_splitter_options options = *base;
    options.sink = sink;
    options.user = record;
    struct rp_splitter *s = rp_splitter_create(bound, &options);
    RP_ASSERT(s != NULL);
    record->last = -1;
    for (size_t at = 0; at < len;) {
        if ((unsigned char)output[at] == 0xFE && at + 1 < len) {
            const char *special =
                specials[(unsigned char)output[at + 1] % RP_ARRAY_COUNT(specials)];
            RP_ASSERT(rp_splitter_push_special(s, special, strlen(special)) == RP_OK);
            at += 2;
            continue;
        }
        size_t n = 1;
        seed = seed * 1664525u + 1013904223u;
        while (at + n < len && (unsigned char)output[at + n] != 0xFE && (seed >> 8) % 9 > n)
            n++;
        RP_ASSERT(rp_splitter_push(s, output + at, n) == RP_OK);
        at += n;
    }
    RP_ASSERT(rp_splitter_finish(s) == RP_OK);
    RP_ASSERT(!record->open && record->calls == rp_splitter_calls(s));
    rp_splitter_destroy(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    static json_t *parameters;
    struct fuzz_input input = fuzz_begin(bytes, len);
    struct rp_bound_dialect *bound;
    struct record first = {.last = -1}, second = {.last = -1};
    if (!parameters)
        parameters =
            json_loads("{\"properties\": {\"s\": {\"type\": \"string\"}, \"n\": {\"type\": "
                       "\"number\"}, \"o\": {\"type\": \"object\"}}}",
                       0, NULL);
    const struct rp_dialect_tool tools[] = {{"f", parameters}, {"g", NULL}};
    const struct rp_dialect *row = rp_dialect_at(fuzz_byte(&input) % rp_dialect_count());
    unsigned flags = fuzz_byte(&input);
    uint32_t seed = fuzz_byte(&input);
    const struct rp_splitter_options options = {.tools = tools,
                                                .tool_count = flags & TOOLS ? 2 : 0,
                                                .start = flags & REASONING ? RP_START_REASONING
                                                         : row->shape == RP_CALL_HARMONY
                                                             ? RP_START_HEADER
                                                             : RP_START_TEXT,
                                                .calls_off = flags & CALLS_OFF,
                                                .keep_special = flags & KEEP_SPECIAL};
    size_t special_count = flags & FILL ? RP_ARRAY_COUNT(specials) : 0;
    RP_ASSERT(rp_dialect_bind(row, NULL, specials, special_count, &bound, NULL) == RP_OK);
    run(bound, &options, input.bytes, input.len, seed, &first);
    run(bound, &options, input.bytes, input.len, seed + 77, &second);
    RP_ASSERT_CMP(first.log.len, ==, second.log.len);
    RP_ASSERT(first.log.len == 0 || memcmp(first.log.data, second.log.data, first.log.len) == 0);
    rp_buffer_deinit(&first.log);
    rp_buffer_deinit(&second.log);
    rp_bound_dialect_free(bound);
    return 0;
}
