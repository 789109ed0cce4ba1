#include "tests/support/model_files.h"

#include "base/bf16.h"
#include "base/buffer.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void must(bool ok, const char *what) {
    if (!ok) {
        perror(what);
        abort();
    }
}

static void join(char out[512], const struct rp_test_dir *dir, const char *name) {
    must(snprintf(out, 512, "%s/%s", dir->path, name) < 512, name);
}

void rp_test_dir_create(struct rp_test_dir *dir) {
    const char *base = getenv("TMPDIR");
    snprintf(dir->path, sizeof dir->path, "%s/reprise-test-XXXXXX", base && *base ? base : "/tmp");
    must(mkdtemp(dir->path) != NULL, dir->path);
}

void rp_test_dir_remove(struct rp_test_dir *dir) {
    char path[512];
    if (dir->path[0] == '\0')
        return;
    DIR *listing = opendir(dir->path);
    must(listing != NULL, dir->path);
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        join(path, dir, entry->d_name);
        must(unlink(path) == 0, path);
    }
    closedir(listing);
    must(rmdir(dir->path) == 0, dir->path);
    dir->path[0] = '\0';
}

int rp_test_fixture_create(void **state, void *fixture, size_t size, struct rp_test_dir *dir) {
    memset(fixture, 0, size);
    rp_test_dir_create(dir);
    *state = fixture;
    return 0;
}

void rp_test_file_write(const struct rp_test_dir *dir, const char *name, const void *bytes,
                        size_t len) {
    char path[512];
    join(path, dir, name);
    FILE *file = fopen(path, "wb");
    must(file != NULL, path);
    must(len == 0 || fwrite(bytes, 1, len, file) == len, path);
    must(fclose(file) == 0, path);
}

void rp_test_file_text(const struct rp_test_dir *dir, const char *name, const char *text) {
    rp_test_file_write(dir, name, text, strlen(text));
}

void rp_test_file_link(const struct rp_test_dir *dir, const char *name, const char *target) {
    char path[512];
    join(path, dir, name);
    must(symlink(target, path) == 0, path);
}

void rp_test_file_truncate(const struct rp_test_dir *dir, const char *name, size_t len) {
    char path[512];
    join(path, dir, name);
    must(truncate(path, (off_t)len) == 0, path);
}

void rp_test_file_delete(const struct rp_test_dir *dir, const char *name) {
    char path[512];
    join(path, dir, name);
    must(unlink(path) == 0, path);
}

static void append_length(struct rp_buffer *file, uint64_t len) {
    for (int i = 0; i < 8; i++) {
        char byte = (char)(len >> (8 * i) & 0xFF);
        rp_buffer_append(file, &byte, 1);
    }
}

void rp_test_safetensors_write(const struct rp_test_dir *dir, const char *name, const char *header,
                               const void *data, size_t data_len) {
    struct rp_buffer file;
    rp_buffer_init(&file, 0);
    append_length(&file, strlen(header));
    rp_buffer_puts(&file, header);
    if (data)
        rp_buffer_append(&file, data, data_len);
    for (size_t i = 0; !data && i < data_len; i++) {
        char byte = (char)(i % 251);
        rp_buffer_append(&file, &byte, 1);
    }
    must(!file.failed, name);
    rp_test_file_write(dir, name, file.data, file.len);
    rp_buffer_deinit(&file);
}

/* Exact for normal numbers and zero, the only values in tests. */
static uint16_t f16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    int exponent = (int)(bits >> 23 & 0xFF) - 127 + 15;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    if (exponent <= 0)
        return sign;
    if (exponent >= 31)
        return (uint16_t)(sign | 0x7C00u);
    return (uint16_t)(sign | exponent << 10 | (bits >> 13 & 0x3FF));
}

static uint64_t element_count(const struct rp_test_tensor *tensor) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < tensor->rank; i++)
        count *= tensor->shape[i];
    return count;
}

static void append_values(struct rp_buffer *data, const struct rp_test_tensor *tensor) {
    uint64_t count = element_count(tensor);
    for (uint64_t i = 0; i < count; i++) {
        float value = tensor->value ? tensor->value(i) : 0.001f * (float)(i % 1000);
        uint16_t half = strcmp(tensor->dtype, "BF16") == 0 ? rp_f32_to_bf16(value) : f16_of(value);
        unsigned char code = (unsigned char)(value >= 0 && value < 256 ? value : 0);
        if (strcmp(tensor->dtype, "F8_E4M3") == 0 || strcmp(tensor->dtype, "U8") == 0)
            rp_buffer_append(data, &code, 1);
        else if (strcmp(tensor->dtype, "F32") == 0)
            rp_buffer_append(data, &value, sizeof value);
        else
            rp_buffer_append(data, &half, sizeof half);
    }
}

void rp_test_checkpoint_write(const struct rp_test_dir *dir, const char *file_name,
                              const struct rp_test_tensor *tensors, size_t count) {
    struct rp_buffer header, data;
    rp_buffer_init(&header, 0);
    rp_buffer_init(&data, 0);
    rp_buffer_puts(&header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < count; i++) {
        size_t begin = data.len;
        append_values(&data, &tensors[i]);
        rp_buffer_printf(&header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", tensors[i].name,
                         tensors[i].dtype);
        for (uint32_t d = 0; d < tensors[i].rank; d++)
            rp_buffer_printf(&header, "%s%u", d ? "," : "", tensors[i].shape[d]);
        rp_buffer_printf(&header, "],\"data_offsets\":[%zu,%zu]}", begin, data.len);
    }
    rp_buffer_append(&header, "}", 2); /* with its NUL */
    must(!header.failed && !data.failed, file_name);
    rp_test_safetensors_write(dir, file_name, header.data, data.data ? data.data : "", data.len);
    rp_buffer_deinit(&header);
    rp_buffer_deinit(&data);
}
