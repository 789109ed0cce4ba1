/* fuzz_load.c - any bytes as the body of a streamed answer that the load client reads. The first
 * byte seeds the points where the body is split into fragments: a split body gives the same record
 * as a whole one. An event that is a chunk by a JSON parser has the same text, usage and finish in
 * the client's scanner. */
#include "base/memory.h"
#include "bench/load/load_stream.h"
#include "tests/fuzz/fuzz_input.h"

#include <jansson.h>
#include <string.h>

/* What a tree says of a chunk; false: not a chunk that the oracle judges. */
struct tree_chunk {
    struct rp_load_text_hash text;
    bool finished, stopped, has_content;
};

/* A text with a NUL would end a jansson string early: not judged. */
static bool add_text(struct tree_chunk *out, const json_t *value) {
    if (!json_is_string(value))
        return true;
    size_t len = json_string_length(value);
    rp_load_text_hash_add(&out->text, json_string_value(value), len);
    out->has_content |= len != 0;
    return true;
}

static bool read_choice(struct tree_chunk *out, const json_t *choice) {
    const json_t *delta = json_object_get(choice, "delta");
    const json_t *reason = json_object_get(choice, "finish_reason");
    /* Texts are hashed in the order of the text: only choices with one are judged. */
    if (json_object_get(choice, "text") && delta)
        return false;
    if (json_is_object(delta) &&
        (json_object_get(delta, "reasoning") || json_object_get(delta, "reasoning_content")))
        return false;
    out->finished |= json_is_string(reason);
    out->stopped |= json_is_string(reason) && strcmp(json_string_value(reason), "stop") == 0;
    return add_text(out, json_object_get(choice, "text")) &&
           add_text(out, json_object_get(delta, "content"));
}

static bool read_tree(struct tree_chunk *out, const json_t *root) {
    const json_t *choices = json_object_get(root, "choices");
    rp_load_text_hash_init(&out->text);
    for (size_t i = 0; i < json_array_size(choices); i++)
        if (!json_is_object(json_array_get(choices, i)) ||
            !read_choice(out, json_array_get(choices, i)))
            return false;
    return true;
}

static bool check_event(void *context, const char *data, size_t len) {
    struct rp_load_chunk chunk;
    struct rp_load_text_hash text;
    struct tree_chunk expected = {.finished = false};
    (void)context;
    rp_load_text_hash_init(&text);
    bool good = rp_load_chunk_read(data, len, &chunk, &text);
    RP_ASSERT(memchr(chunk.error, '\0', sizeof chunk.error));
    /* Keys are compared as they are written: an escape in one hides it from the scanner. jansson
     * 2.14 drops a NUL that follows a number. */
    bool judged = !memmem(data, len, "\\u", 2) && !memchr(data, '\0', len);
    json_t *root =
        judged ? json_loadb(data, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL) : NULL;
    if (json_is_object(root) && read_tree(&expected, root)) {
        RP_ASSERT(good);
        RP_ASSERT(chunk.finished == expected.finished && chunk.stopped == expected.stopped);
        RP_ASSERT(chunk.has_content == expected.has_content);
        RP_ASSERT(rp_load_text_hash_get(&text) == rp_load_text_hash_get(&expected.text));
        RP_ASSERT(chunk.has_usage == json_is_object(json_object_get(root, "usage")));
    }
    json_decref(root);
    return true;
}

/* seed 0: in one piece. */
static struct rp_load_record read_stream(const char *bytes, size_t len, uint32_t seed) {
    static struct rp_load_stream stream;
    const struct rp_load_request request = {.input_tokens = 3, .output_tokens = 2};
    struct rp_load_record record;
    enum rp_load_outcome outcome = RP_LOAD_OK;
    memset(&record, 0, sizeof record);
    rp_load_sse_init(&stream.sse);
    rp_load_stream_reset(&stream);
    stream.exchange.why[0] = '\0';
    rp_load_stream_head(&stream.exchange, 200, true);
    for (size_t at = 0, part; at < len && outcome == RP_LOAD_OK; at += part) {
        seed = seed * 1664525u + 1013904223u * (seed != 0);
        part = seed ? RP_MIN(len - at, (size_t)(seed >> 24) % 37 + 1) : len;
        /* A copy of its own, so that a read past the fragment is found. */
        char *copy = rp_strndup(bytes + at, part);
        outcome = rp_load_stream_body(&stream.exchange, copy, part);
        rp_free(copy);
    }
    rp_load_stream_result(&stream, &request, true, outcome, stream.exchange.why, &record);
    rp_load_stream_deinit(&stream);
    memset(&stream, 0, sizeof stream);
    return record;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    struct fuzz_input input = fuzz_begin(bytes, len);
    uint32_t seed = fuzz_byte(&input) + 1u;
    struct rp_load_sse sse;
    char message[96];
    rp_load_sse_init(&sse);
    if (rp_load_sse_feed(&sse, input.bytes, input.len, check_event, NULL))
        (void)rp_load_sse_finish(&sse, check_event, NULL);
    rp_load_sse_deinit(&sse);
    struct rp_load_record whole = read_stream(input.bytes, input.len, 0);
    struct rp_load_record split = read_stream(input.bytes, input.len, seed);
    RP_ASSERT_CMP(whole.outcome, ==, split.outcome);
    RP_ASSERT_CMP(whole.output_tokens, ==, split.output_tokens);
    RP_ASSERT(whole.text_hash == split.text_hash && whole.input_tokens == split.input_tokens);
    RP_ASSERT(memcmp(whole.error, split.error, sizeof whole.error) == 0);
    rp_load_error_message(input.bytes, input.len, message);
    RP_ASSERT(memchr(message, '\0', sizeof message));
    return 0;
}
