/* stop_match.h - matches stop strings in a text that arrives incrementally, byte for byte.
 *
 * The text ends at the start of the first stop string to complete (the longest, if several complete
 * at the same byte). A possible beginning of a stop string is held back: the longest suffix of the
 * text that is a prefix of a stop string. Text and stop strings are whole characters, so released
 * text is, too. One rp_stop_set is shared by many streams; each has an rp_stop_match.
 * Thread: one owner. Memory: the set at most 8 KiB on the heap; the match none. */
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
    /* length of each string's prefix that the text ends with */
    uint16_t matched[RP_STOP_STRINGS_MAX];
    uint16_t held_len;
    int16_t found; /* index of the string that ended the text; -1: none yet */
    char held[RP_STOP_BYTES_MAX];
};

/* Adds a copy; RANGE when it is empty, too long, or the set is full. A zeroed set is valid and
 * empty. */
int rp_stop_set_add(struct rp_stop_set *set, const char *bytes, size_t len) RP_MUST_USE;
void rp_stop_set_deinit(struct rp_stop_set *set);

/* set is borrowed; NULL or empty: nothing is matched. */
void rp_stop_match_init(struct rp_stop_match *match, const struct rp_stop_set *set);
/* Appends to *out the text that cannot be part of a stop string. True when a stop string is
 * complete: the text has ended, match->found is its index, and push must not be called again. */
bool rp_stop_match_push(struct rp_stop_match *match, const char *bytes, size_t len,
                        struct rp_buffer *out);
/* The text is interrupted: as finish, and what follows continues no stop string. */
void rp_stop_match_restart(struct rp_stop_match *match, struct rp_buffer *out);
/* End of the stream: appends the text that was held back. */
void rp_stop_match_finish(struct rp_stop_match *match, struct rp_buffer *out);

#endif
