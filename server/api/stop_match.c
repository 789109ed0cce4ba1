#include "server/api/stop_match.h"

#include "base/memory.h"

#include <string.h>

int rp_stop_set_add(struct rp_stop_set *set, const char *bytes, size_t len) {
    if (set->count == RP_STOP_STRINGS_MAX || len == 0 || len > RP_STOP_BYTES_MAX)
        return RP_STATUS_RANGE;
    struct rp_stop_string *string = &set->strings[set->count];
    string->bytes = rp_alloc(len);
    string->fail = rp_calloc(len, sizeof *string->fail);
    if (!string->bytes || !string->fail) {
        rp_free(string->bytes);
        rp_free(string->fail);
        return RP_STATUS_NO_MEMORY;
    }
    memcpy(string->bytes, bytes, len);
    string->len = (uint16_t)len;
    for (uint16_t i = 1, border = 0; i < len; i++) {
        while (border && bytes[i] != bytes[border])
            border = string->fail[border - 1];
        border = (uint16_t)(border + (bytes[i] == bytes[border]));
        string->fail[i] = border;
    }
    set->count++;
    return RP_OK;
}

void rp_stop_set_deinit(struct rp_stop_set *set) {
    for (uint32_t i = 0; i < set->count; i++) {
        rp_free(set->strings[i].bytes);
        rp_free(set->strings[i].fail);
    }
    memset(set, 0, sizeof *set);
}

void rp_stop_match_init(struct rp_stop_match *match, const struct rp_stop_set *set) {
    memset(match, 0, sizeof *match);
    match->set = set && set->count ? set : NULL;
    match->found = -1;
}

/* Advances by one byte. Returns the length of the longest stop string prefix that the text ends
 * with; sets match->found when one is complete. */
static uint16_t step(struct rp_stop_match *match, char byte) {
    uint16_t longest = 0, complete = 0;
    for (uint32_t s = 0; s < match->set->count; s++) {
        const struct rp_stop_string *string = &match->set->strings[s];
        uint16_t n = match->matched[s];
        while (n && string->bytes[n] != byte)
            n = string->fail[n - 1];
        n = (uint16_t)(n + (string->bytes[n] == byte));
        match->matched[s] = n;
        longest = RP_MAX(longest, n);
        if (n == string->len && n > complete) {
            complete = n;
            match->found = (int16_t)s;
        }
    }
    return match->found >= 0 ? complete : longest;
}

bool rp_stop_match_push(struct rp_stop_match *match, const char *bytes, size_t len,
                        struct rp_buffer *out) {
    if (!match->set) {
        rp_buffer_append(out, bytes, len);
        return false;
    }
    RP_ASSERT(match->found < 0);
    for (size_t i = 0; i < len; i++) {
        uint16_t keep = step(match, bytes[i]);
        /* Keeps the last `keep` of the held bytes and this one. keep is at most held_len +
         * 1. */
        size_t pass = (size_t)match->held_len + 1 - keep;
        if (pass <= match->held_len) {
            rp_buffer_append(out, match->held, pass);
            memmove(match->held, match->held + pass, match->held_len - pass);
            match->held_len = (uint16_t)(match->held_len - pass);
            if (match->found < 0)
                match->held[match->held_len++] = bytes[i];
        } else {
            rp_buffer_append(out, match->held, match->held_len);
            rp_buffer_append(out, &bytes[i], 1);
            match->held_len = 0;
        }
        if (match->found >= 0) {
            match->held_len = 0;
            return true;
        }
    }
    return false;
}

void rp_stop_match_finish(struct rp_stop_match *match, struct rp_buffer *out) {
    rp_buffer_append(out, match->held, match->held_len);
    match->held_len = 0;
}

void rp_stop_match_restart(struct rp_stop_match *match, struct rp_buffer *out) {
    rp_stop_match_finish(match, out);
    memset(match->matched, 0, sizeof match->matched);
}
