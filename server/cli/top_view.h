/* top_view.h - the screen of `reprise top` as text: a pure function of a server's answers.
 * Thread: any. */
#ifndef RP_SERVER_TOP_VIEW_H
#define RP_SERVER_TOP_VIEW_H

#include "base/buffer.h"

#include <jansson.h>

#define RP_TOP_COLUMNS_MIN 40u
#define RP_TOP_COLUMNS_MAX 200u

/* Which window of /debug/latency. */
enum rp_top_window { RP_TOP_10S, RP_TOP_1M, RP_TOP_5M, RP_TOP_TOTAL, RP_TOP_WINDOW_COUNT };

/* Answers at one time; borrowed. NULL if a route did not answer: its part says so or is omitted. */
struct rp_top_answers {
    const json_t *status;   /* /debug/status */
    const json_t *latency;  /* /debug/latency?format=json */
    const json_t *requests; /* /debug/requests?slowest=N */
};

/* Appends at most `rows` lines of at most `columns` characters, each with a newline. before:
 * earlier answers, for rates; NULL: none yet. Non-printable bytes from the server become '?', so
 * that it cannot send terminal escape sequences. */
void rp_top_write(const struct rp_top_answers *now, const struct rp_top_answers *before,
                  enum rp_top_window window, uint32_t columns, uint32_t rows,
                  struct rp_buffer *out);

#endif
