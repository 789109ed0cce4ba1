/* stop_match.h - finds stop strings in a text that arrives in pieces, byte for byte.
 *
 * The text ends where the first stop string to be complete begins (of those complete at the same
 * byte, the longest). What may still become one is held back: the longest end of the text that is
 * the beginning of a stop string. Since text and stop strings are whole characters, so is what is
 * passed on. One rp_stop_set serves many streams; each has an rp_stop_match.
 * Thread: one owner. Memory: the set 8 KiB or less on the heap; the match none. */
#ifndef RP_SERVER_STOP_MATCH_H
#define RP_SERVER_STOP_MATCH_H

#include "base/buffer.h"
#include "base/status.h"

#define RP_STOP_STRINGS_MAX 16
#define RP_STOP_BYTES_MAX   256

struct rp_stop_set {
    uint32_t count;
    struct rp_stop_string {
        uint16_t len;
        char *bytes;
        /* (len) longest proper border of the first i + 1 bytes (Knuth, Morris, Pratt) */
        uint16_t *fail;
    } strings[RP_STOP_STRINGS_MAX];
};

struct rp_stop_match {
    const struct rp_stop_set *set;
    uint16_t matched[RP_STOP_STRINGS_MAX]; /* bytes of each string that the text ends with */
    uint16_t held_len;
    int16_t found; /* index of the string that ended the text; -1: none yet */
    char held[RP_STOP_BYTES_MAX];
};

/* Adds a copy; RANGE when it is empty, too long or one too many. A zeroed set is valid and
 * empty. */
int rp_stop_set_add(struct rp_stop_set *set, const char *bytes, size_t len) RP_MUST_USE;
void rp_stop_set_deinit(struct rp_stop_set *set);

/* set is borrowed; NULL or empty: everything passes. */
void rp_stop_match_init(struct rp_stop_match *match, const struct rp_stop_set *set);
/* Appends to *out what is certain to be text. True when a stop string is complete: the text has
 * ended, match->found says by which, and further pushes are a mistake. */
bool rp_stop_match_push(struct rp_stop_match *match, const char *bytes, size_t len,
                        struct rp_buffer *out);
/* The end of the stream: what was held back is text after all. */
void rp_stop_match_finish(struct rp_stop_match *match, struct rp_buffer *out);

#endif
