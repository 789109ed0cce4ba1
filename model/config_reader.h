/* config_reader.h - reads the keys of one JSON object of a model's configuration, with checks.
 * The first failure stays in `*status` and `err`; later ones are not recorded. */
#ifndef RP_MODEL_CONFIG_READER_H
#define RP_MODEL_CONFIG_READER_H

#include "model/model.h"

#include <jansson.h>

#define RP_CONFIG_KEYS_MAX 96

/* The keys that were asked for, there or not. */
struct rp_config_keys {
    const char *name[RP_CONFIG_KEYS_MAX];
    uint32_t count;
};

struct rp_config_reader {
    const char *file; /* for messages */
    const json_t *object;
    struct rp_error *err;
    int *status;                 /* one for all readers of a file, as `err` is */
    struct rp_config_keys *keys; /* NULL: not kept */
};

/* As a fallback: the key must be there. */
#define RP_CONFIG_REQUIRED (-1.0)

/* NULL also when the key is null: transformers treats both as "not set". */
const json_t *rp_config_get(const struct rp_config_reader *reader, const char *key);
bool rp_config_has(const struct rp_config_reader *reader, const char *key); /* null counts */
void rp_config_refuse(struct rp_config_reader *reader, enum rp_status status, const char *key,
                      const char *message);
/* "<key> is "<text>", supported: <list>" */
void rp_config_refuse_name(struct rp_config_reader *reader, const char *key, const char *text,
                           const char *supported);
/* A failed read returns `min`, so that nothing is divided by zero before the error is checked. */
uint32_t rp_config_uint_value(struct rp_config_reader *reader, const json_t *value, const char *key,
                              uint32_t min, uint32_t max);
uint32_t rp_config_uint(struct rp_config_reader *reader, const char *key, double fallback,
                        uint32_t min, uint32_t max);
/* min_exclusive: min itself is refused as well. */
double rp_config_double(struct rp_config_reader *reader, const char *key, double fallback,
                        double min, bool min_exclusive, double max);
bool rp_config_bool(struct rp_config_reader *reader, const char *key, bool fallback);
const char *rp_config_string(struct rp_config_reader *reader, const char *key); /* NULL: absent */

/* Reads the keys of config.json; `file` is for messages. */
int rp_config_read(const json_t *root, const char *file, struct rp_model_config *config,
                   struct rp_error *err) RP_MUST_USE;

/* Keys that several families read the same way (config.c). */
/* attention_bias: of qkv and o. */
void rp_config_attention_bias(struct rp_config_reader *reader, struct rp_model_config *config);
/* Refuses a bias that the family does not have. */
void rp_config_no_bias(struct rp_config_reader *reader, const char *key);
void rp_config_activation(struct rp_config_reader *reader, const char *key, const char *fallback,
                          struct rp_model_config *config);
/* A limit of tanh; null: 0, none. */
float rp_config_cap(struct rp_config_reader *reader, const char *key, double fallback);
/* sliding_window; `fallback` when the key is absent. */
uint32_t rp_config_window(struct rp_config_reader *reader, uint32_t fallback);
/* Layer `layer` sees everything before it, or only the window. */
void rp_config_set_full(struct rp_model_config *config, uint32_t layer, bool full);
/* A window in all layers but every n-th; n is what `key` (NULL: none) says, or `fallback`. */
void rp_config_window_pattern(struct rp_config_reader *reader, const char *key, uint32_t fallback,
                              struct rp_model_config *config);
/* A list of the types of all layers; nothing where the key is absent. */
void rp_config_layer_types(struct rp_config_reader *reader, const char *key,
                           struct rp_model_config *config);
/* Qwen's rule: use_sliding_window, from layer max_window_layers on. */
void rp_config_qwen_window(struct rp_config_reader *reader, struct rp_model_config *config);

/* config_experts.c: the keys of a mixture of experts. The names of counts differ by family. */
struct rp_config_experts_keys {
    const char *count, *intermediate; /* NULL: intermediate_size */
    const char *used;                 /* NULL: num_experts_per_tok */
    double count_default, used_default, intermediate_default;
};
/* count, used and intermediate, which every family has; softmax over all experts. */
void rp_config_experts(struct rp_config_reader *reader, const struct rp_config_experts_keys *keys,
                       struct rp_model_config *config);
/* n_group, topk_group: the choice is limited to the groups whose `best` experts have the highest
 * sums. */
void rp_config_expert_groups(struct rp_config_reader *reader, double groups_default,
                             double used_default, uint32_t best, struct rp_model_experts *experts);
/* Qwen's rule: experts in every decoder_sparse_step-th layer that is not in mlp_only_layers. */
void rp_config_sparse_layers(struct rp_config_reader *reader, struct rp_model_config *config);

/* config_state.c: which layers have state, by layer_types; without that key those that `rule` says
 * (NULL: none). `name` is their type. One layer at least must have attention. */
void rp_config_state_layers(struct rp_config_reader *reader, const char *name,
                            bool (*rule)(struct rp_config_reader *reader, uint32_t layer),
                            struct rp_model_config *config);

struct rp_model_family;

/* config_rope.c: every key that says how q and k are rotated. */
void rp_config_rope(struct rp_config_reader *reader, const struct rp_model_family *family,
                    struct rp_model_config *config);
/* config_keys.c: refuses a key that was not read, names attention, RoPE, a norm, an activation, a
 * scale, a bias or the like, is neither null nor false, and is not known to change nothing. */
void rp_config_refuse_unread(struct rp_config_reader *reader, const struct rp_model_family *family);

#endif
