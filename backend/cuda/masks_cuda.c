/* masks_cuda.c - the kernels of mask programs, made when a model's graphs are lowered. */
#include "attention/mask/mask_source.h"
#include "attention/program/attention_program_cuda.h"
#include "backend/cuda/device_cuda.h"
#include "device/nvrtc_cuda.h"

#include <string.h>

/* One program for one set of sizes. */
struct rp_cuda_mask_program {
    struct rp_cuda_mask_program *next;
    struct rp_attention_program *kernels;
    char *text;
    uint32_t heads, kv_heads, head_dim, page_tokens;
    enum rp_dtype dtype;
    bool latent;
};

static bool is_same(const struct rp_cuda_mask_program *program,
                    const struct rp_attention_cuda_config *config, const char *text) {
    return program->heads == config->heads && program->kv_heads == config->kv_heads &&
           program->head_dim == config->head_dim &&
           program->page_tokens == config->kv.page_tokens && program->dtype == config->kv.dtype &&
           program->latent == config->kv.latent && strcmp(program->text, text) == 0;
}

static int make(struct rp_device *device, const struct rp_attention_cuda_config *config, char *text,
                struct rp_cuda_mask_program **out, struct rp_error *err) {
    if (!device->nvrtc) {
        int status = rp_nvrtc_open(device->cache_dir, &device->nvrtc, err);
        if (status != RP_OK)
            return status;
    }
    struct rp_cuda_mask_program *program = rp_calloc(1, sizeof *program);
    if (!program)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "cuda: no memory for a mask program");
    int status = rp_attention_program_open(device->nvrtc, config, text, &program->kernels, err);
    if (status != RP_OK) {
        rp_free(program);
        return status;
    }
    program->text = text;
    program->heads = config->heads;
    program->kv_heads = config->kv_heads;
    program->head_dim = config->head_dim;
    program->page_tokens = config->kv.page_tokens;
    program->dtype = config->kv.dtype;
    program->latent = config->kv.latent;
    program->next = device->mask_programs;
    device->mask_programs = program;
    *out = program;
    return RP_OK;
}

static int find_or_make(struct rp_device *device, const struct rp_attention_cuda_config *config,
                        const struct rp_mask *mask, uint32_t first_head, const char *op,
                        const struct rp_attention_program **out, struct rp_error *err) {
    struct rp_buffer text;
    *out = NULL;
    if (rp_mask_reads_layer(mask))
        return rp_error_set(err, RP_STATUS_INVALID,
                            "%s: its mask program must be that of its layer alone", op);
    rp_buffer_init(&text, 0);
    if (first_head)
        rp_buffer_printf(&text, "#define RP_MASK_FIRST_HEAD %u\n", first_head);
    rp_mask_source(mask, &text);
    rp_buffer_append(&text, "", 1);
    if (text.failed) {
        rp_buffer_deinit(&text);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "cuda: no memory for a mask program");
    }
    struct rp_cuda_mask_program *program = device->mask_programs;
    while (program && !is_same(program, config, text.data))
        program = program->next;
    int status = RP_OK;
    if (!program) {
        char *kept = rp_strdup(text.data);
        status = kept
                     ? make(device, config, kept, &program, err)
                     : rp_error_set(err, RP_STATUS_NO_MEMORY, "cuda: no memory for a mask program");
        if (status != RP_OK)
            rp_free(kept);
    }
    rp_buffer_deinit(&text);
    if (status == RP_OK)
        *out = program->kernels;
    return status;
}

int rp_cuda_mask_class(struct rp_device *device, struct rp_attention_cuda_config *config,
                       const struct rp_op *op, struct rp_error *err) {
    const struct rp_mask *mask = op->u.attention.mask;
    uint32_t class = config->window_count;
    if (rp_attention_cuda_class(config, mask, op->u.attention.window) >= 0)
        return RP_OK;
    if (class == RP_ATTENTION_CLASSES_MAX)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "%s: more than %u different windows and mask programs in one model",
                            op->name, RP_ATTENTION_CLASSES_MAX);
    config->windows[class] = mask ? 0 : op->u.attention.window;
    config->masks[class] = mask;
    config->window_count++;
    return mask ? find_or_make(device, config, mask, op->u.attention.first_head, op->name,
                               &config->programs[class], err)
                : RP_OK;
}

void rp_cuda_mask_programs_close(struct rp_device *device) {
    while (device->mask_programs) {
        struct rp_cuda_mask_program *program = device->mask_programs;
        device->mask_programs = program->next;
        rp_attention_program_close(program->kernels);
        rp_free(program->text);
        rp_free(program);
    }
    rp_nvrtc_close(device->nvrtc);
    device->nvrtc = NULL;
}
