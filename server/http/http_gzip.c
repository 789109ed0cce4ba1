#include "server/http/http_gzip.h"

#include "base/checked.h"
#include "base/memory.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>

/* The weight of one element such as "gzip ; q=0.5"; 1 when it has none. */
static double weight_of(const char *parameters, size_t len) {
    for (size_t i = 0; i + 2 <= len; i++)
        if ((parameters[i] == 'q' || parameters[i] == 'Q') && parameters[i + 1] == '=')
            return strtod(parameters + i + 2, NULL);
    return 1;
}

bool rp_http_accepts_gzip(const char *field) {
    double gzip = -1, any = 0;
    while (field && *field) {
        size_t len = strcspn(field, ","), lead = strspn(field, " \t");
        size_t name = strcspn(field, ",; \t");
        if (lead < len)
            name = lead + strcspn(field + lead, ",; \t");
        size_t n = name - RP_MIN(lead, name);
        double weight = weight_of(field + name, len - RP_MIN(name, len));
        if ((n == 4 && strncasecmp(field + lead, "gzip", 4) == 0) ||
            (n == 6 && strncasecmp(field + lead, "x-gzip", 6) == 0))
            gzip = weight;
        else if (n == 1 && field[lead] == '*')
            any = weight;
        field += len + (field[len] == ',');
    }
    return gzip >= 0 ? gzip > 0 : any > 0;
}

static void *take(void *ctx, unsigned count, unsigned size) {
    (void)ctx;
    return rp_calloc(count, size);
}

static void give(void *ctx, void *memory) {
    (void)ctx;
    rp_free(memory);
}

bool rp_http_gzip(const char *bytes, size_t len, int level, struct rp_buffer *out) {
    z_stream stream = {.zalloc = take, .zfree = give};
    if (len > UINT_MAX / 2 ||
        deflateInit2(&stream, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return false;
    size_t most = deflateBound(&stream, len);
    bool done = rp_buffer_reserve(out, most);
    if (done) {
        stream.next_in = (unsigned char *)(uintptr_t)bytes;
        stream.avail_in = (unsigned)len;
        stream.next_out = (unsigned char *)out->data + out->len;
        stream.avail_out = (unsigned)most;
        done = deflate(&stream, Z_FINISH) == Z_STREAM_END;
        out->len += done ? stream.total_out : 0;
    }
    deflateEnd(&stream);
    return done;
}
