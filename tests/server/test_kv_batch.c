/* Goal: a batch is the msgpack that vLLM's subscribers read, byte for byte; --kv-events-config is
 * vLLM's, and its mistakes are named. */
#include "server/observe/kv_batch.h"
#include "server/observe/kv_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define PAGE_TOKENS 2u

static _Alignas(8) unsigned char storage[300 * (sizeof(struct rp_kv_event) + 8)];
static uint32_t count;
static struct rp_buffer out;

static struct rp_kv_event *add(uint64_t hash, bool stored) {
    struct rp_kv_event *event =
        (struct rp_kv_event *)(storage + count++ * rp_kv_event_bytes(PAGE_TOKENS));
    memset(event, 0, rp_kv_event_bytes(PAGE_TOKENS));
    event->hash = hash;
    event->is_stored = stored;
    return event;
}

static void store(uint64_t hash, uint64_t parent, int32_t a, int32_t b) {
    struct rp_kv_event *event = add(hash, true);
    event->parent = parent;
    event->has_parent = parent != 0;
    event->tokens[0] = a;
    event->tokens[1] = b;
}

static int setup(void **state) {
    (void)state;
    count = 0;
    rp_buffer_init(&out, 0);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    rp_buffer_deinit(&out);
    return 0;
}

static void expect(const char *bytes, size_t len) {
    assert_false(out.failed);
    assert_int_equal(out.len, len);
    assert_memory_equal(out.data, bytes, len);
}
#define EXPECT(text) expect(text, sizeof(text) - 1)

static void test_pages_of_a_prompt_share_an_event(void **state) {
    (void)state;
    store(1, 0, 5, 300);
    store(0x123456789abcdef0, 1, 70000, 127);
    rp_kv_batch_write(storage, count, PAGE_TOKENS, false, 1.5, &out);
    EXPECT("\x93\xcb\x3f\xf8\0\0\0\0\0\0\x91\x88\xa4type\xab"
           "BlockStored\xac"
           "block_hashes\x92\x01\xcf\x12\x34\x56\x78\x9a\xbc\xde\xf0\xb1"
           "parent_block_hash\xc0\xa9token_ids\x94\x05\xcd\x01\x2c\xce\0\x01\x11\x70\x7f\xaa"
           "block_size\x02\xa7lora_id\xc0\xa6medium\xa3GPU\xa9lora_name\xc0\0");
}

static void test_removals_share_an_event_and_order_is_kept(void **state) {
    (void)state;
    add(200, false);
    add(65536, false);
    store(9, 7, 1, 2);
    rp_kv_batch_write(storage, count, PAGE_TOKENS, true, 1.5, &out);
    EXPECT("\x93\xcb\x3f\xf8\0\0\0\0\0\0\x93\x81\xa4type\xb0"
           "AllBlocksCleared\x83\xa4type\xac"
           "BlockRemoved\xac"
           "block_hashes\x92\xcc\xc8\xce\0\x01\0\0\xa6medium\xa3GPU\x88\xa4type\xab"
           "BlockStored\xac"
           "block_hashes\x91\x09\xb1parent_block_hash\x07\xa9token_ids\x92\x01\x02\xaa"
           "block_size\x02\xa7lora_id\xc0\xa6medium\xa3GPU\xa9lora_name\xc0\0");
}

static void test_pages_of_different_prompts_do_not_share_an_event(void **state) {
    (void)state;
    store(1, 0, 1, 2);
    store(2, 0, 3, 4);  /* another beginning */
    store(3, 99, 5, 6); /* after a page that is not its neighbor */
    store(4, 3, 7, 8);
    rp_kv_batch_write(storage, count, PAGE_TOKENS, false, 0, &out);
    assert_int_equal((unsigned char)out.data[10], 0x93); /* three events */
}

static void test_long_arrays_have_long_headers(void **state) {
    (void)state;
    for (uint64_t i = 1; i <= 300; i++)
        store(i, i - 1, 1, 1);
    rp_kv_batch_write(storage, count, PAGE_TOKENS, false, 0, &out);
    const char *hashes = "block_hashes\xdc\x01\x2c", *tokens = "token_ids\xdc\x02\x58";
    assert_non_null(memmem(out.data, out.len, hashes, strlen(hashes)));
    assert_non_null(memmem(out.data, out.len, tokens, strlen(tokens)));
}

static void test_defaults_are_off_and_vllms(void **state) {
    struct rp_kv_config config;
    (void)state;
    assert_int_equal(rp_kv_config_parse(NULL, &config, NULL), RP_OK);
    assert_false(config.enabled);
    assert_int_equal(rp_kv_config_parse("{\"enable_kv_cache_events\": true}", &config, NULL),
                     RP_OK);
    assert_true(config.enabled);
    assert_string_equal(config.endpoint, "tcp://*:5557");
    assert_string_equal(config.replay_endpoint, "");
    assert_int_equal(config.buffer_steps, 10000);
    assert_int_equal(rp_kv_config_parse("{\"enable_kv_cache_events\": true, \"publisher\": "
                                        "\"null\"}",
                                        &config, NULL),
                     RP_OK);
    assert_false(config.enabled);
    const char *whole = "{\"publisher\": \"zmq\", \"enable_kv_cache_events\": true, \"endpoint\": "
                        "\"tcp://10.0.0.1:5557\", \"replay_endpoint\": \"ipc:///tmp/r\", "
                        "\"topic\": \"kv@pod@m\", \"buffer_steps\": 7, \"hwm\": 8, "
                        "\"max_queue_size\": 9}";
    assert_int_equal(rp_kv_config_parse(whole, &config, NULL), RP_OK);
    assert_true(config.enabled);
    assert_string_equal(config.topic, "kv@pod@m");
    assert_string_equal(config.replay_endpoint, "ipc:///tmp/r");
    assert_int_equal(config.buffer_steps * 100 + config.hwm * 10 + config.max_queue_size, 789);
}

static void test_mistakes_name_the_key(void **state) {
    static const struct {
        const char *text, *named;
    } cases[] = {{"[]", "not a JSON object"},
                 {"{\"endpoint\": ", "not a JSON object"},
                 {"{\"end_point\": \"tcp://*:1\"}", "end_point: is unknown"},
                 {"{\"endpoint\": 5557}", "endpoint: expected a string"},
                 {"{\"endpoint\": \"5557\"}", "endpoint: expected tcp://"},
                 {"{\"replay_endpoint\": \"inproc://x\"}", "replay_endpoint: expected tcp://"},
                 {"{\"topic\": \"a\\u0000b\"}", "not a JSON object"},
                 {"{\"publisher\": \"nats\"}", "publisher: expected \"zmq\""},
                 {"{\"enable_kv_cache_events\": 1}", "enable_kv_cache_events: expected true"},
                 {"{\"hwm\": 0}", "hwm: expected a number"},
                 {"{\"buffer_steps\": 1000001}", "buffer_steps: expected a number"},
                 {"{\"max_queue_size\": 1.5}", "max_queue_size: expected a number"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rp_kv_config config;
        struct rp_error err;
        assert_int_equal(rp_kv_config_parse(cases[i].text, &config, &err), RP_STATUS_INVALID);
        assert_non_null(strstr(err.text, "--kv-events-config"));
        assert_non_null(strstr(err.text, cases[i].named));
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_pages_of_a_prompt_share_an_event),
        TEST(test_removals_share_an_event_and_order_is_kept),
        TEST(test_pages_of_different_prompts_do_not_share_an_event),
        TEST(test_long_arrays_have_long_headers),
        TEST(test_defaults_are_off_and_vllms),
        TEST(test_mistakes_name_the_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
