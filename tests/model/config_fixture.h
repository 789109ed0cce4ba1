/* config_fixture.h - config.json for tests: a valid configuration, and changes to it. */
#ifndef RP_TESTS_MODEL_CONFIG_FIXTURE_H
#define RP_TESTS_MODEL_CONFIG_FIXTURE_H

#include "base/buffer.h"
#include "model/model.h"
#include "tests/support/model_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    struct rp_test_dir dir;
    struct rp_model_config config;
    struct rp_error err;
};

static int setup(void **state) {
    static struct fixture fixture;
    return rp_test_fixture_create(state, &fixture, sizeof fixture, &fixture.dir);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_test_dir_remove(&f->dir);
    return 0;
}

/* A key and the JSON text of its value; value NULL removes the key. */
struct entry {
    const char *key, *value;
};

static const struct entry good[] = {
    {"architectures", "[\"LlamaForCausalLM\"]"},
    {"model_type", "\"llama\""},
    {"hidden_size", "64"},
    {"intermediate_size", "172"},
    {"num_hidden_layers", "6"},
    {"num_attention_heads", "8"},
    {"num_key_value_heads", "4"},
    {"vocab_size", "512"},
    {"max_position_embeddings", "2048"},
    {"rms_norm_eps", "1e-05"},
    {"rope_theta", "10000.0"},
    {"hidden_act", "\"silu\""},
    {"tie_word_embeddings", "false"},
    {"torch_dtype", "\"bfloat16\""},
    {"bos_token_id", "1"},
    {"eos_token_id", "2"},
};

/* Writes the valid configuration with up to `count` entries changed or added; another architecture
 * removes the model_type. */
static void write_config(struct fixture *f, const struct entry *changes, size_t count) {
    struct rp_buffer text;
    bool first = true;
    rp_buffer_init(&text, 0);
    rp_buffer_puts(&text, "{");
    for (size_t i = 0; i < RP_ARRAY_COUNT(good) + count; i++) {
        const struct entry *entry =
            i < RP_ARRAY_COUNT(good) ? &good[i] : &changes[i - RP_ARRAY_COUNT(good)];
        bool changed = false;
        for (size_t c = 0; i < RP_ARRAY_COUNT(good) && c < count; c++)
            changed =
                changed || (changes[c].key &&
                            (strcmp(changes[c].key, entry->key) == 0 ||
                             (strcmp(entry->key, "model_type") == 0 &&
                              strcmp(changes[c].key, "architectures") == 0 && changes[c].value)));
        if (changed || !entry->key || !entry->value)
            continue;
        rp_buffer_printf(&text, "%s\"%s\":%s", first ? "" : ",", entry->key, entry->value);
        first = false;
    }
    rp_buffer_puts(&text, "}");
    rp_test_file_write(&f->dir, "config.json", text.data, text.len);
    rp_buffer_deinit(&text);
}

static int load(struct fixture *f) {
    return rp_model_config_load(f->dir.path, &f->config, &f->err);
}

/* Gemma 2, which is tied where the key is absent. */
#define GEMMA                                                                                      \
    {"architectures", "[\"Gemma2ForCausalLM\"]"}, { "tie_word_embeddings", NULL }

#endif
