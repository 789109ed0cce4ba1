/* fuzz_config.c - any bytes as a model's config.json and, after a NUL, its generation_config.json.
 * A configuration that is accepted can be described and emitted as a program, or is refused with a
 * text; nothing in it can overflow a size. */
#include "model/model.h"
#include "tests/fuzz/fuzz_input.h"

#include <math.h>

/* A described model has no data, but its tables grow with layers: larger ones only load. */
enum { LAYERS_MAX = 64 };

static void check_config(const struct rp_model_config *config) {
    RP_ASSERT(config->hidden && config->layers && config->layers <= RP_LAYERS_MAX);
    RP_ASSERT(config->heads && config->kv_heads && config->head_dim && config->vocab);
    RP_ASSERT(config->heads % config->kv_heads == 0 && config->intermediate);
    RP_ASSERT(config->max_position && isfinite(config->norm_eps) && config->norm_eps >= 0);
    RP_ASSERT(isfinite(config->rope.theta) && config->rope.theta > 0);
    RP_ASSERT(isfinite(config->rope.attention_factor) && isfinite(config->q_scale_beta));
    RP_ASSERT(config->rope.rotary_dim <= config->head_dim && config->rope.rotary_dim % 2 == 0);
    RP_ASSERT(config->eos_count <= RP_EOS_IDS_MAX);
    RP_ASSERT(!isinf(config->default_temperature) && !isinf(config->default_top_p));
}

static void check_model(const struct rp_model_config *config) {
    struct rp_model model;
    struct rp_program program;
    struct rp_error err = {.status = RP_OK};
    if (rp_model_describe(config, RP_DTYPE_BF16, &model, &err) != RP_OK) {
        RP_ASSERT(err.text[0]);
        return;
    }
    (void)rp_model_parameter_count(&model);
    (void)rp_model_weight_bytes(&model);
    if (rp_model_emit(&model, &program, &err) == RP_OK)
        rp_program_deinit(&program);
    else
        RP_ASSERT(err.text[0]);
    rp_model_deinit(&model);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    static struct rp_model_config config;
    struct fuzz_input input = fuzz_begin(bytes, len);
    struct fuzz_part file = fuzz_until(&input, '\0');
    struct rp_error err = {.status = RP_OK};
    fuzz_write("config.json", file.text, file.len);
    if (input.len)
        fuzz_write("generation_config.json", input.bytes, input.len);
    else
        fuzz_remove("generation_config.json");
    int status = rp_model_config_load(fuzz_dir(), &config, &err);
    if (status != RP_OK) {
        RP_ASSERT(err.status == status && err.text[0]);
        return 0;
    }
    check_config(&config);
    if (config.layers <= LAYERS_MAX)
        check_model(&config);
    return 0;
}
