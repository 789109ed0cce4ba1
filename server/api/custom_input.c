#include "server/api/custom_input.h"

#include "base/utf8.h"

#include <string.h>

enum {
    STATE_KEY,  /* before the colon, outside strings */
    STATE_NAME, /* inside the key */
    STATE_NAME_ESCAPE,
    STATE_VALUE,  /* after the colon */
    STATE_TEXT,   /* inside the string */
    STATE_ESCAPE, /* after a backslash */
    STATE_UNICODE,
    STATE_DONE
};

static void append_code(struct rp_buffer *out, uint32_t code) {
    char bytes[4];
    rp_buffer_append(out, bytes, (size_t)rp_utf8_encode(code, bytes));
}

/* A first half without its second one. */
static void drop_high(struct rp_custom_input *input, struct rp_buffer *out) {
    if (input->high)
        append_code(out, 0xfffd);
    input->high = 0;
}

static void take_unit(struct rp_custom_input *input, struct rp_buffer *out) {
    uint32_t unit = input->unit;
    bool low = unit >= 0xdc00 && unit < 0xe000;
    if (low && input->high) {
        append_code(out, 0x10000 + ((uint32_t)(input->high - 0xd800) << 10) + (unit - 0xdc00));
        input->high = 0;
        return;
    }
    drop_high(input, out);
    if (unit >= 0xd800 && unit < 0xdc00)
        input->high = (uint16_t)unit;
    else
        append_code(out, low ? 0xfffd : unit);
}

static void take_escape(struct rp_custom_input *input, char byte, struct rp_buffer *out) {
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    const char *at = strchr(from, byte);
    if (byte == 'u') {
        input->state = STATE_UNICODE;
        input->digits = 0;
        input->unit = 0;
        return;
    }
    drop_high(input, out);
    if (at && byte)
        byte = to[at - from];
    rp_buffer_append(out, &byte, 1);
    input->state = STATE_TEXT;
}

static void take_digit(struct rp_custom_input *input, char byte, struct rp_buffer *out) {
    unsigned value = byte >= '0' && byte <= '9'   ? (unsigned)(byte - '0')
                     : byte >= 'a' && byte <= 'f' ? (unsigned)(byte - 'a' + 10)
                     : byte >= 'A' && byte <= 'F' ? (unsigned)(byte - 'A' + 10)
                                                  : 0;
    input->unit = (uint16_t)(input->unit << 4 | value);
    if (++input->digits < 4)
        return;
    take_unit(input, out);
    input->state = STATE_TEXT;
}

static void take_outside(struct rp_custom_input *input, char byte) {
    if (input->state == STATE_KEY && byte == '"')
        input->state = STATE_NAME;
    else if (input->state == STATE_KEY && byte == ':')
        input->state = STATE_VALUE;
    else if (input->state == STATE_NAME && byte == '\\')
        input->state = STATE_NAME_ESCAPE;
    else if (input->state == STATE_NAME_ESCAPE)
        input->state = STATE_NAME;
    else if (input->state == STATE_NAME && byte == '"')
        input->state = STATE_KEY;
    else if (input->state == STATE_VALUE && byte == '"')
        input->state = STATE_TEXT;
    else if (input->state == STATE_VALUE && byte == ',')
        input->state = STATE_KEY; /* the value was no string */
}

void rp_custom_input_push(struct rp_custom_input *input, const char *bytes, size_t len,
                          struct rp_buffer *out) {
    for (size_t i = 0; i < len && input->state != STATE_DONE; i++) {
        char byte = bytes[i];
        if (input->state < STATE_TEXT) {
            take_outside(input, byte);
        } else if (input->state == STATE_ESCAPE) {
            take_escape(input, byte, out);
        } else if (input->state == STATE_UNICODE) {
            take_digit(input, byte, out);
        } else if (byte == '\\') {
            input->state = STATE_ESCAPE;
        } else {
            drop_high(input, out);
            if (byte == '"')
                input->state = STATE_DONE;
            else
                rp_buffer_append(out, &byte, 1);
        }
    }
}
