#include "tests/support/npy.h"

#include "base/bf16.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

static float element(const unsigned char *bytes, const char *kind) {
    if (strstr(kind, "<u2")) {
        uint16_t half;
        memcpy(&half, bytes, sizeof half);
        return rp_bf16_to_f32(half);
    }
    if (strstr(kind, "<i8")) {
        int64_t value;
        memcpy(&value, bytes, sizeof value);
        return (float)value;
    }
    float value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

bool rp_npy_read(const char *path, struct rp_npy *out) {
    unsigned char start[10];
    char header[512];
    FILE *file = fopen(path, "rb");
    memset(out, 0, sizeof *out);
    if (!file)
        return false;
    bool ok = fread(start, 1, sizeof start, file) == sizeof start &&
              memcmp(start, "\x93NUMPY\x01", 7) == 0;
    size_t header_len = ok ? (size_t)(start[8] | start[9] << 8) : 0;
    ok = ok && header_len < sizeof header && fread(header, 1, header_len, file) == header_len;
    header[ok ? header_len : 0] = '\0';
    size_t width = strstr(header, "<f4") ? 4 : strstr(header, "<u2") ? 2 : 8;
    ok = ok && !strstr(header, "'fortran_order': True") &&
         (width != 8 || strstr(header, "<i8") != NULL);
    long begin = ftell(file);
    ok = ok && fseek(file, 0, SEEK_END) == 0;
    size_t count = ok ? (size_t)(ftell(file) - begin) / width : 0;
    unsigned char *bytes = ok ? rp_alloc(count * width) : NULL;
    out->values = ok ? rp_calloc(count, sizeof(float)) : NULL;
    ok = bytes && out->values && fseek(file, begin, SEEK_SET) == 0 &&
         fread(bytes, width, count, file) == count;
    for (size_t i = 0; ok && i < count; i++)
        out->values[i] = element(bytes + i * width, header);
    out->count = ok ? count : 0;
    rp_free(bytes);
    fclose(file);
    return ok;
}
