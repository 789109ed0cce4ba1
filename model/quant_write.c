#include "model/quant_write_internal.h"

#include "base/buffer.h"
#include "base/checked.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/memory.h"
#include "model/weights_internal.h"
#include "quant/rounding/fp4.h"
#include "text/json_file.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCALE "_scale" /* appended to "...weight" */

/* The tensors that a matrix becomes, in the order in which a shard has those of all its matrices:
 * what has larger elements comes first, so that all are aligned. */
enum pass {
    PASS_SHAPES,
    PASS_GLOBAL_SCALES,
    PASS_SCALES_FIRST,
    PASS_VALUES,
    PASS_SCALES_LAST,
    PASS_COUNT
};

static bool has_4_bits(const struct rp_quant_writer *w) {
    return rp_quant_scheme_has_blocks(w->options.scheme);
}

/* Whether the pass writes something for a tensor. */
static bool has_pass(const struct rp_quant_writer *w, uint32_t tensor, enum pass pass) {
    if (pass == PASS_VALUES || !w->quantized[tensor])
        return pass == PASS_VALUES;
    switch (pass) {
    case PASS_SHAPES:
        return w->options.scheme == RP_QUANT_INT4;
    case PASS_GLOBAL_SCALES:
        return w->options.scheme == RP_QUANT_NVFP4;
    default:
        return pass == (has_4_bits(w) ? PASS_SCALES_LAST : PASS_SCALES_FIRST);
    }
}

int rp_quant_write_failed(const struct rp_quant_writer *w, const char *name) {
    return rp_error_set(w->err, RP_STATUS_IO, "%s/%s: %s", w->out_dir, name,
                        errno ? strerror(errno) : "cannot be written");
}

int rp_quant_write_no_memory(const struct rp_quant_writer *w) {
    return rp_error_set(w->err, RP_STATUS_NO_MEMORY, "out of memory");
}

static FILE *create(const struct rp_quant_writer *w, const char *name) {
    char path[4096];
    int len = snprintf(path, sizeof path, "%s/%s", w->out_dir, name);
    errno = ENAMETOOLONG;
    return len > 0 && (size_t)len < sizeof path ? fopen(path, "wb") : NULL;
}

/* ---- which tensors -------------------------------------------------------------------------- */

/* How balancing changes a part of a layer (balance.h). */
static struct rp_quant_folding folding_of(const struct rp_quant_writer *w,
                                          const struct rp_weight_part *part) {
    const struct rp_model_config *config = &w->config;
    const struct rp_weight *weight = part->weight;
    enum rp_balance_site own = rp_balance_site_of(weight->role);
    const float *site[RP_BALANCE_SITES];
    for (int i = 0; i < RP_BALANCE_SITES; i++)
        site[i] = rp_balance_at(w->options.balance, weight->layer, (enum rp_balance_site)i)->values;
    struct rp_quant_folding out = {.divided_group = 1, .divided_run = 1};
    bool v = part->row_begin == (config->heads + config->kv_heads) * config->head_dim;
    bool up = part->row_begin == config->intermediate;
    if (own < RP_BALANCE_SITES)
        out.times = site[own];
    else if (weight->role == RP_WEIGHT_ATTN_NORM)
        out.divided = site[RP_BALANCE_QKV];
    else if (weight->role == RP_WEIGHT_MLP_NORM)
        out.divided = site[RP_BALANCE_GATE_UP];
    if (v && (weight->role == RP_WEIGHT_QKV || weight->role == RP_WEIGHT_QKV_BIAS)) {
        out.divided = site[RP_BALANCE_O];
        out.divided_group = config->heads / config->kv_heads;
        out.divided_run = config->head_dim;
    }
    if (up && (weight->role == RP_WEIGHT_GATE_UP || weight->role == RP_WEIGHT_GATE_UP_BIAS))
        out.divided = site[RP_BALANCE_DOWN];
    return out;
}

static void mark_place(struct rp_quant_writer *w, const struct rp_weight_part *part,
                       const struct rp_safetensor *tensor) {
    const struct rp_weight *weight = part->weight;
    size_t at = (size_t)(tensor - w->files.tensors);
    if (weight->layer == RP_LAYER_NONE)
        return;
    if (rp_weight_is_matrix(weight))
        w->places[at] = (struct rp_quant_place){weight->layer, rp_balance_site_of(weight->role)};
    if (w->options.balance)
        w->foldings[at] = folding_of(w, part);
}

/* Groups of a row must be whole. */
static int leave_out(struct rp_quant_writer *w, const struct rp_weight_part *part) {
    char name[128];
    const char *from = strstr(part->name, "model.layers.");
    size_t suffix = strlen(".weight");
    if (!from)
        return rp_error_set(w->err, RP_STATUS_UNSUPPORTED,
                            "tensor %s: %u columns are no multiple of a group of %u", part->name,
                            part->cols, w->options.group);
    snprintf(name, sizeof name, "%.*s", (int)(strlen(from) - suffix), from);
    rp_log(RP_LOG_WARN,
           "quantize: %s has %u columns, no multiple of a group of %u: it stays as it is", name,
           part->cols, w->options.group);
    return json_array_append_new(w->ignored, json_string(name)) == 0 ? RP_OK
                                                                     : rp_quant_write_no_memory(w);
}

/* Every matrix of a layer is quantized; vectors of layers may be scaled by balancing. */
static int mark_part(void *ctx, const struct rp_weight_part *part) {
    struct rp_quant_writer *w = ctx;
    const struct rp_safetensor *tensor = rp_safetensors_find(&w->files, part->name);
    if (!rp_weight_is_matrix(part->weight) || part->weight->layer == RP_LAYER_NONE) {
        if (tensor && !rp_weight_is_matrix(part->weight))
            mark_place(w, part, tensor);
        return RP_OK;
    }
    if (!tensor)
        return rp_error_set(w->err, RP_STATUS_NOT_FOUND, "tensor %s is missing", part->name);
    if (tensor->type > RP_SAFETENSOR_BF16 || tensor->rank != 2 || tensor->shape[0] != part->rows ||
        tensor->shape[1] != part->cols)
        return rp_error_set(
            w->err, RP_STATUS_FORMAT,
            "tensor %s must be F32, F16 or BF16 of the shape that config.json implies", part->name);
    mark_place(w, part, tensor);
    if (has_4_bits(w) && part->cols % w->options.group != 0)
        return leave_out(w, part);
    w->quantized[tensor - w->files.tensors] = true;
    return RP_OK;
}

static int mark_parts(struct rp_quant_writer *w) {
    struct rp_model model;
    int status = rp_weights_describe(&w->config, RP_DTYPE_F32, &model, w->err);
    if (status != RP_OK)
        return status;
    status = rp_weight_parts(&model, mark_part, w);
    rp_model_deinit(&model);
    return status;
}

/* ---- a shard's header ----------------------------------------------------------------------- */

static void write_entry(struct rp_json *json, const char *name, const char *type,
                        const uint64_t *shape, uint32_t rank, uint64_t *at, uint64_t bytes) {
    rp_json_object_begin(json, name);
    rp_json_string(json, "dtype", type);
    rp_json_array_begin(json, "shape");
    for (uint32_t i = 0; i < rank; i++)
        rp_json_uint(json, NULL, shape[i]);
    rp_json_array_end(json);
    rp_json_array_begin(json, "data_offsets");
    rp_json_uint(json, NULL, *at);
    rp_json_uint(json, NULL, *at + bytes);
    rp_json_array_end(json);
    rp_json_object_end(json);
    *at += bytes;
}

static bool take_name(struct rp_quant_writer *w, const char *name, uint32_t shard, uint64_t bytes) {
    w->total_bytes += bytes;
    return json_object_set_new(w->map, name, json_string(w->files.shards[shard].name)) == 0;
}

struct scale_type {
    const char *name;
    uint32_t bytes;
};

static struct scale_type scale_type_of(enum rp_quant_scheme scheme) {
    switch (scheme) {
    case RP_QUANT_INT4:
        return (struct scale_type){"BF16", 2};
    case RP_QUANT_NVFP4:
        return (struct scale_type){"F8_E4M3", 1};
    case RP_QUANT_MXFP4:
        return (struct scale_type){"U8", 1};
    default:
        return (struct scale_type){"F32", 4};
    }
}

/* One tensor of the new file, and its name in the index. */
static bool write_tensor_entry(struct rp_quant_writer *w, struct rp_json *json, uint32_t index,
                               enum pass pass, uint64_t *at) {
    const struct rp_safetensor *tensor = &w->files.tensors[index];
    const uint64_t *shape = tensor->shape;
    enum rp_quant_scheme scheme = w->options.scheme;
    char name[160];
    uint64_t from = *at;
    snprintf(name, sizeof name, "%s", tensor->name);
    if (!w->quantized[index]) {
        bool folded = rp_quant_is_folded(w, tensor);
        const char *type = !folded                              ? tensor->type_name
                           : tensor->type == RP_SAFETENSOR_BF16 ? "BF16"
                                                                : "F32";
        write_entry(json, name, type, shape, tensor->rank, at,
                    folded ? rp_quant_folded_bytes(tensor) : tensor->bytes);
    } else if (pass == PASS_SHAPES) {
        snprintf(name, sizeof name, "%s_shape", tensor->name);
        write_entry(json, name, "I64", (const uint64_t[1]){2}, 1, at, 2 * sizeof(int64_t));
    } else if (pass == PASS_GLOBAL_SCALES) {
        snprintf(name, sizeof name, "%s_global_scale", tensor->name);
        write_entry(json, name, "F32", (const uint64_t[1]){1}, 1, at, sizeof(float));
    } else if (pass == PASS_VALUES && scheme == RP_QUANT_INT4) {
        const uint64_t words[2] = {shape[0], RP_CEIL_DIV(shape[1], 8)};
        snprintf(name, sizeof name, "%s_packed", tensor->name);
        write_entry(json, name, "I32", words, 2, at, words[0] * words[1] * 4);
    } else if (pass == PASS_VALUES && has_4_bits(w)) {
        const uint64_t pairs[2] = {shape[0], shape[1] / 2};
        snprintf(name, sizeof name, "%s_packed", tensor->name);
        write_entry(json, name, "U8", pairs, 2, at, pairs[0] * pairs[1]);
    } else if (pass == PASS_VALUES) {
        write_entry(json, name, scheme == RP_QUANT_INT8 ? "I8" : "F8_E4M3", shape, 2, at,
                    shape[0] * shape[1]);
    } else {
        const struct scale_type type = scale_type_of(scheme);
        const uint64_t scales[2] = {shape[0], has_4_bits(w) ? shape[1] / w->options.group : 1};
        snprintf(name, sizeof name, "%s" SCALE, tensor->name);
        write_entry(json, name, type.name, scales, 2, at, scales[0] * scales[1] * type.bytes);
    }
    return take_name(w, name, tensor->shard, *at - from);
}

static int write_header(struct rp_quant_writer *w, uint32_t shard, FILE *out) {
    struct rp_buffer text;
    struct rp_json json;
    uint64_t at = 0;
    bool ok = true;
    rp_buffer_init(&text, 0);
    rp_json_init(&json, &text);
    rp_json_object_begin(&json, NULL);
    rp_json_object_begin(&json, "__metadata__");
    rp_json_string(&json, "format", "pt");
    rp_json_object_end(&json);
    for (enum pass pass = PASS_SHAPES; pass < PASS_COUNT; pass++)
        for (uint32_t i = 0; i < w->files.count; i++)
            if (w->files.tensors[i].shard == shard && has_pass(w, i, pass))
                ok = write_tensor_entry(w, &json, i, pass, &at) && ok;
    rp_json_object_end(&json);
    while (text.len % 8 != 0 && !text.failed)
        rp_buffer_puts(&text, " ");
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (unsigned char)((uint64_t)text.len >> 8 * i);
    int status = text.failed || !ok ? rp_quant_write_no_memory(w) : RP_OK;
    if (status == RP_OK &&
        (fwrite(prefix, 1, 8, out) != 8 || fwrite(text.data, 1, text.len, out) != text.len))
        status = rp_quant_write_failed(w, w->files.shards[shard].name);
    rp_buffer_deinit(&text);
    return status;
}

/* ---- tensors -------------------------------------------------------------------------------- */

static int copy_tensor(struct rp_quant_writer *w, const struct rp_safetensor *tensor, FILE *out) {
    for (uint64_t at = 0; at < tensor->bytes; at += RP_QUANT_PIECE_BYTES) {
        uint64_t len = RP_MIN(RP_QUANT_PIECE_BYTES, tensor->bytes - at);
        int status = rp_safetensors_read(&w->files, tensor, at, w->piece, len, w->err);
        if (status != RP_OK)
            return status;
        if (fwrite(w->piece, 1, len, out) != len)
            return rp_quant_write_failed(w, w->files.shards[tensor->shard].name);
    }
    return RP_OK;
}

static int write_pass(struct rp_quant_writer *w, uint32_t index, enum pass pass, FILE *out) {
    const struct rp_safetensor *tensor = &w->files.tensors[index];
    if (!w->quantized[index])
        return rp_quant_is_folded(w, tensor) ? rp_quant_write_vector(w, tensor, out)
                                             : copy_tensor(w, tensor, out);
    switch (pass) {
    case PASS_SHAPES:
        return rp_quant_write_shape(w, tensor, out);
    case PASS_GLOBAL_SCALES:
        return rp_quant_write_global_scale(w, tensor, out);
    case PASS_VALUES:
        return rp_quant_write_values(w, tensor, out);
    default:
        return rp_quant_write_scales(w, tensor, out);
    }
}

static int write_shard(struct rp_quant_writer *w, uint32_t shard) {
    const char *name = w->files.shards[shard].name;
    FILE *out = create(w, name);
    if (!out)
        return rp_quant_write_failed(w, name);
    int status = write_header(w, shard, out);
    for (enum pass pass = PASS_SHAPES; pass < PASS_COUNT; pass++)
        for (uint32_t i = 0; i < w->files.count && status == RP_OK; i++)
            if (w->files.tensors[i].shard == shard && has_pass(w, i, pass))
                status = write_pass(w, i, pass, out);
    errno = 0;
    if (fclose(out) != 0 && status == RP_OK)
        status = rp_quant_write_failed(w, name);
    return status;
}

/* ---- JSON and other files ------------------------------------------------------------------- */

static int write_json(struct rp_quant_writer *w, const char *name, const json_t *root) {
    FILE *out = create(w, name);
    if (!out)
        return rp_quant_write_failed(w, name);
    errno = 0;
    bool ok = json_dumpf(root, out, JSON_INDENT(2)) == 0;
    ok = fputc('\n', out) == '\n' && ok;
    return fclose(out) == 0 && ok ? RP_OK : rp_quant_write_failed(w, name);
}

static int write_index(struct rp_quant_writer *w) {
    if (w->files.shard_count == 1 && strcmp(w->files.shards[0].name, RP_SAFETENSORS_FILE) == 0)
        return RP_OK;
    json_t *root = json_pack("{s:{s:I},s:O}", "metadata", "total_size", (json_int_t)w->total_bytes,
                             "weight_map", w->map);
    int status = root ? write_json(w, RP_SAFETENSORS_INDEX, root) : rp_quant_write_no_memory(w);
    json_decref(root);
    return status;
}

/* scale_dtype as compressed-tensors' presets NVFP4A16 and MXFP4A16 have it. */
static json_t *make_config_4(const struct rp_quant_writer *w) {
    bool int4 = w->options.scheme == RP_QUANT_INT4, nvfp4 = w->options.scheme == RP_QUANT_NVFP4;
    const char *format = int4    ? "pack-quantized"
                         : nvfp4 ? "nvfp4-pack-quantized"
                                 : "mxfp4-pack-quantized";
    const char *scale = int4 ? NULL : nvfp4 ? "torch.float8_e4m3fn" : "torch.uint8";
    return json_pack("{s:s,s:s,s:s,s:{s:{s:[s],s:{s:i,s:s,s:b,s:b,s:s,s:i,s:s*},s:n,s:n}},s:O,s:n}",
                     "quant_method", "compressed-tensors", "format", format, "quantization_status",
                     "compressed", "config_groups", "group_0", "targets", "Linear", "weights",
                     "num_bits", 4, "type", int4 ? "int" : "float", "symmetric", 1, "dynamic", 0,
                     "strategy", nvfp4 ? "tensor_group" : "group", "group_size",
                     (int)w->options.group, "scale_dtype", scale, "input_activations",
                     "output_activations", "ignore", w->ignored, "kv_cache_scheme");
}

static json_t *make_config_8(const struct rp_quant_writer *w) {
    bool int8 = w->options.scheme == RP_QUANT_INT8;
    const char *type = int8 ? "int" : "float";
    return json_pack(
        "{s:s,s:s,s:s,s:{s:{s:[s],s:{s:i,s:s,s:b,s:b,s:s},s:{s:i,s:s,s:b,s:b,s:s},s:n}},s:[s],s:n}",
        "quant_method", "compressed-tensors", "format", int8 ? "int-quantized" : "float-quantized",
        "quantization_status", "compressed", "config_groups", "group_0", "targets", "Linear",
        "weights", "num_bits", 8, "type", type, "symmetric", 1, "dynamic", 0, "strategy", "channel",
        "input_activations", "num_bits", 8, "type", type, "symmetric", 1, "dynamic", 1, "strategy",
        "token", "output_activations", "ignore", "lm_head", "kv_cache_scheme");
}

static int write_config(struct rp_quant_writer *w) {
    json_t *root = NULL;
    int status = rp_json_file_load(w->dir, "config.json", &root, w->err);
    if (status != RP_OK)
        return status;
    json_t *quant = has_4_bits(w) ? make_config_4(w) : make_config_8(w);
    status = quant && json_object_set(root, "quantization_config", quant) == 0
                 ? write_json(w, "config.json", root)
                 : rp_quant_write_no_memory(w);
    json_decref(quant);
    json_decref(root);
    return status;
}

static bool is_written_or_weights(const char *name) {
    static const char *const endings[] = {".safetensors", ".safetensors.index.json",
                                          ".bin",         ".bin.index.json",
                                          ".pth",         ".pt",
                                          ".gguf",        ".h5",
                                          ".msgpack",     ".onnx"};
    size_t len = strlen(name);
    for (size_t i = 0; i < RP_ARRAY_COUNT(endings); i++) {
        size_t ending = strlen(endings[i]);
        if (len >= ending && strcmp(name + len - ending, endings[i]) == 0)
            return true;
    }
    return strcmp(name, "config.json") == 0;
}

static int copy_file(struct rp_quant_writer *w, const char *name) {
    int in;
    uint64_t bytes;
    int status = rp_model_file_open(w->dir, name, &in, &bytes, w->err);
    if (status != RP_OK) /* a folder, or what is no file */
        return RP_OK;
    FILE *out = create(w, name);
    if (!out)
        status = rp_quant_write_failed(w, name);
    for (uint64_t at = 0; status == RP_OK && at < bytes; at += RP_QUANT_PIECE_BYTES) {
        uint64_t len = RP_MIN(RP_QUANT_PIECE_BYTES, bytes - at);
        errno = 0;
        if (rp_model_file_read(in, w->piece, len, at) != (int64_t)len ||
            fwrite(w->piece, 1, len, out) != len)
            status = rp_quant_write_failed(w, name);
    }
    close(in);
    if (out && fclose(out) != 0 && status == RP_OK)
        status = rp_quant_write_failed(w, name);
    return status;
}

static int copy_files(struct rp_quant_writer *w) {
    DIR *folder = opendir(w->dir);
    struct dirent *entry;
    int status =
        folder ? RP_OK : rp_error_set(w->err, RP_STATUS_IO, "%s: %s", w->dir, strerror(errno));
    while (status == RP_OK && (entry = readdir(folder)) != NULL)
        if (entry->d_name[0] != '.' && !is_written_or_weights(entry->d_name))
            status = copy_file(w, entry->d_name);
    if (folder)
        closedir(folder);
    return status;
}

static int write_all(struct rp_quant_writer *w) {
    int status = mark_parts(w);
    if (status == RP_OK && mkdir(w->out_dir, 0777) != 0) {
        status = rp_error_set(w->err, RP_STATUS_IO, "%s: %s", w->out_dir, strerror(errno));
        rp_error_hint(w->err, "OUT is made: name a folder that is not there");
    }
    for (uint32_t i = 0; status == RP_OK && w->largest && i < w->files.count; i++)
        if (w->quantized[i])
            status = rp_quant_write_measure(w, &w->files.tensors[i]);
    for (uint32_t i = 0; status == RP_OK && i < w->files.shard_count; i++)
        status = write_shard(w, i);
    if (status == RP_OK)
        status = write_index(w);
    if (status == RP_OK)
        status = copy_files(w);
    return status == RP_OK ? write_config(w) : status;
}

size_t rp_quant_write_bytes(const struct rp_model_config *config, size_t rows) {
    const size_t cols[RP_BALANCE_SITES] = {[RP_BALANCE_QKV] = config->hidden,
                                           [RP_BALANCE_O] =
                                               (size_t)config->heads * config->head_dim,
                                           [RP_BALANCE_GATE_UP] = config->hidden,
                                           [RP_BALANCE_DOWN] = config->intermediate};
    size_t total = 0;
    bool over = false;
    for (int site = 0; site < RP_BALANCE_SITES; site++) {
        size_t factor = rp_gptq_factor_bytes(cols[site]), inputs = 0;
        over = over || factor == SIZE_MAX ||
               rp_mul_overflow(cols[site], sizeof(uint16_t), &inputs) ||
               rp_mul_overflow(inputs, config->layers, &inputs) ||
               rp_mul_overflow(inputs, rows, &inputs) || rp_add_overflow(total, inputs, &total) ||
               rp_add_overflow(total, factor, &total);
    }
    return over ? SIZE_MAX : total;
}

int rp_quant_write_check(const struct rp_model_config *config, const char *dir,
                         struct rp_error *err) {
    bool state = config->state.conv_width != 0;
    if (!config->experts.count && !state)
        return RP_OK;
    int status =
        rp_error_set(err, RP_STATUS_UNSUPPORTED, "%s: models with %s are not written with 8 bits",
                     dir, config->experts.count ? "experts" : "recurrent state");
    rp_error_hint(err, "`reprise serve DIR --quantization fp8` quantizes them while they are read");
    return status;
}

int rp_quant_write(const char *dir, const char *out_dir,
                   const struct rp_quant_write_options *options, struct rp_error *err) {
    struct rp_quant_writer w = {.dir = dir, .out_dir = out_dir, .options = *options, .err = err};
    bool nvfp4 = options->scheme == RP_QUANT_NVFP4;
    RP_ASSERT(options->scheme == RP_QUANT_INT8 || options->scheme == RP_QUANT_FP8 ||
              rp_quant_scheme_has_blocks(options->scheme));
    RP_ASSERT(!options->inputs || options->team);
    if (options->scheme != RP_QUANT_INT4)
        w.options.group = nvfp4 ? RP_NVFP4_GROUP : RP_MXFP4_GROUP;
    int status = rp_model_config_load(dir, &w.config, err);
    if (status == RP_OK && w.config.gguf.present) {
        status = rp_error_set(err, RP_STATUS_UNSUPPORTED, "%s: GGUF files are not quantized", dir);
        rp_error_hint(err, "give the directory of the model's safetensors files");
    }
    if (status == RP_OK)
        status = rp_quant_write_check(&w.config, dir, err);
    if (status == RP_OK && w.config.quant.scales != RP_SCALE_NONE)
        status = rp_error_set(err, RP_STATUS_FORMAT, "%s has quantized weights already", dir);
    if (status == RP_OK)
        status = rp_safetensors_open(&w.files, dir, err);
    if (status != RP_OK)
        return status;
    rp_tensor_choose_prefix(&w.files, &w.config);
    w.quantized = rp_calloc(w.files.count, sizeof *w.quantized);
    w.foldings = rp_calloc(w.files.count, sizeof *w.foldings);
    w.places = rp_calloc(w.files.count, sizeof *w.places);
    w.piece = rp_alloc(RP_QUANT_PIECE_BYTES);
    w.map = json_object();
    w.ignored = json_pack("[s]", "lm_head");
    if (nvfp4)
        w.largest = rp_calloc((size_t)w.config.layers * (RP_BALANCE_SITES + 1), sizeof *w.largest);
    status = w.quantized && w.foldings && w.places && w.piece && w.map && w.ignored &&
                     (w.largest || !nvfp4)
                 ? write_all(&w)
                 : rp_quant_write_no_memory(&w);
    json_decref(w.map);
    json_decref(w.ignored);
    rp_free(w.piece);
    rp_free(w.largest);
    rp_free(w.quantized);
    rp_free(w.foldings);
    rp_free(w.places);
    rp_quant_drop_factors(&w);
    rp_safetensors_close(&w.files);
    return status;
}
