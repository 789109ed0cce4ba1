/* custom_input.h - the text of a custom tool's input from the JSON of its arguments,
 * {"input": "..."}, which arrives in pieces: the first string value, unescaped.
 * Thread: one owner. A zeroed struct is valid. */
#ifndef RP_SERVER_CUSTOM_INPUT_H
#define RP_SERVER_CUSTOM_INPUT_H

#include "base/buffer.h"

struct rp_custom_input {
    uint8_t state;
    uint8_t digits; /* of \uXXXX so far */
    uint16_t unit;  /* their value */
    uint16_t high;  /* the first half of a surrogate pair; 0: none */
};

/* Appends the text that the bytes complete. */
void rp_custom_input_push(struct rp_custom_input *input, const char *bytes, size_t len,
                          struct rp_buffer *out);

#endif
