#include "server/observe/trace_context.h"

#include <stdio.h>
#include <string.h>

static const uint8_t known_flags = RP_TRACE_SAMPLED | RP_TRACE_RANDOM;

/* Lower-case hex digits only, as the specification requires. */
static bool read_hex(const char *text, uint32_t digits, uint64_t *out) {
    *out = 0;
    for (uint32_t i = 0; i < digits; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            return false;
        *out = *out << 4 | (uint64_t)digit;
    }
    return true;
}

bool rp_trace_context_parse(const char *text, struct rp_trace_context *out) {
    uint64_t version, high, low, parent, flags;
    size_t len = text ? strlen(text) : 0;
    if (len < RP_TRACEPARENT_LENGTH || text[2] != '-' || text[35] != '-' || text[52] != '-')
        return false;
    if (!read_hex(text, 2, &version) || !read_hex(text + 3, 16, &high) ||
        !read_hex(text + 19, 16, &low) || !read_hex(text + 36, 16, &parent) ||
        !read_hex(text + 53, 2, &flags))
        return false;
    if (version == 0xff || (high | low) == 0 || parent == 0)
        return false;
    /* Later versions may append fields; version 00 has none. */
    if (len > RP_TRACEPARENT_LENGTH && (version == 0 || text[RP_TRACEPARENT_LENGTH] != '-'))
        return false;
    *out = (struct rp_trace_context){.trace_high = high,
                                     .trace_low = low,
                                     .parent = parent,
                                     .flags = (uint8_t)flags & known_flags};
    return true;
}

void rp_trace_context_begin(struct rp_trace_context *out, uint64_t random_high,
                            uint64_t random_low) {
    *out = (struct rp_trace_context){.trace_high = random_high,
                                     .trace_low = random_low ? random_low : 1,
                                     .flags = RP_TRACE_SAMPLED | RP_TRACE_RANDOM};
}

/* 16 digits, without a NUL. Called once per token, for exemplars. */
static void write_hex(uint64_t number, char *out) {
    for (int i = 15; i >= 0; i--, number >>= 4)
        out[i] = "0123456789abcdef"[number & 15];
}

void rp_trace_id_text(const struct rp_trace_context *context, char out[RP_TRACE_ID_HEX + 1]) {
    write_hex(context->trace_high, out);
    write_hex(context->trace_low, out + 16);
    out[RP_TRACE_ID_HEX] = '\0';
}

void rp_span_id_text(uint64_t span, char out[RP_SPAN_ID_HEX + 1]) {
    write_hex(span, out);
    out[RP_SPAN_ID_HEX] = '\0';
}

void rp_trace_context_header(const struct rp_trace_context *context,
                             char out[RP_TRACEPARENT_LENGTH + 1]) {
    char trace[RP_TRACE_ID_HEX + 1], span[RP_SPAN_ID_HEX + 1];
    rp_trace_id_text(context, trace);
    rp_span_id_text(context->span, span);
    snprintf(out, RP_TRACEPARENT_LENGTH + 1, "00-%s-%s-%02x", trace, span, context->flags);
}
