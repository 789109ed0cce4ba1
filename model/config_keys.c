/* Keys of config.json that were not read: those that might change the output are refused. */
#include "model/config_reader.h"
#include "model/family.h"
#include "text/json_file.h"

#include <stdio.h>
#include <string.h>

/* A key that contains one of these may change what the network computes. */
static const char *const words[] = {"attn",  "attention",  "rope",     "rotary",   "norm",
                                    "scal",  "activation", "_act",     "bias",     "window",
                                    "logit", "multiplier", "residual", "softcap",  "qk_",
                                    "alibi", "position",   "sliding",  "clip_qkv", "expert"};

/* Keys with such a word that change nothing: of training, of the implementation, or of features
 * whose own switch is read (a class that has no window ignores its size). */
static const char *const harmless[] = {"attention_dropout",
                                       "attention_probs_dropout_prob",
                                       "attn_pdrop",
                                       "attn_dropout",
                                       "activation_dropout",
                                       "resid_pdrop",
                                       "attn_implementation",
                                       "_attn_implementation",
                                       "_attn_implementation_autoset",
                                       "attn_implementation_internal",
                                       "output_attentions",
                                       "num_logits_to_keep",
                                       "output_router_logits",
                                       "num_experts_per_tok",
                                       "sliding_window",
                                       "use_sliding_window",
                                       "max_window_layers",
                                       "max_position_embeddings",
                                       "vision_config"};

static bool in_list(const char *const *list, size_t count, const char *key) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i], key) == 0)
            return true;
    return false;
}

static bool may_matter(const char *key) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(words); i++)
        if (strstr(key, words[i]))
            return true;
    return false;
}

void rp_config_refuse_unread(struct rp_config_reader *reader,
                             const struct rp_model_family *family) {
    size_t ignored = 0;
    const char *key;
    json_t *value;
    char shown[80];
    if (*reader->status != RP_OK)
        return; /* the hint below is for its own refusal */
    while (family->ignored_keys && family->ignored_keys[ignored])
        ignored++;
    json_object_foreach((json_t *)reader->object, key, value) {
        if (json_is_null(value) || json_is_false(value) || !may_matter(key) ||
            in_list(reader->keys->name, reader->keys->count, key) ||
            in_list(harmless, RP_ARRAY_COUNT(harmless), key) ||
            in_list(family->ignored_keys, ignored, key))
            continue;
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED,
                         rp_text_for_message(shown, sizeof shown, key),
                         "is not known in this family and may change what the model computes");
        rp_error_hint(reader->err, "remove the key if it has no effect");
        return;
    }
}
