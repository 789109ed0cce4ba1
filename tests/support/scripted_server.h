/* scripted_server.h - an OpenAI-compatible server that computes nothing: each request contains the
 * script of its answer and times.
 *
 * A script is a line of words `name=value` after "script:" in the prompt, or in the model's name
 * if prompts are ids:
 *
 *   n=I            the request's number: its stamps are in shared->stamps[I]
 *   ttft=MS itl=MS from the arrival to the first token; between two tokens. Absolute times: nothing adds up
 *   tokens=N       instead of max_tokens          cached=N       prompt tokens that were cached
 *   head=MS        delay of the header; its bytes one by one, slow=MS apart
 *   status=S       an error instead of a stream   message=TEXT   of an error, without blanks
 *   reset=N close=N hang=N error=N garbage=N long=N
 *                  after N tokens: RST; FIN; silence; an error event; a broken event; an event that never ends
 *   stall=MS       the whole server stalls when this arrives
 *   drop=1         closed without an answer, unless it is the connection's first request
 *   body=chunked|length|eof    split=N  bytes in each write    crlf=1    comments=1    interim=1    joined=1
 *   nousage=1 nodone=1 stop=1 role=1 empty=1 (a chunk without content before the first)  reasoning=1
 *   fuzz=SEED      an answer with some of its bytes changed
 *   blank=K        every K-th token has an empty text
 *   raw=NAME       http, type, html, headers, chunk, extensions, nothing: an invalid answer
 *
 * Chats are answered with chat chunks. GET /v1/models and /version exist. It runs in a separate
 * process with one thread. */
#ifndef RP_TESTS_SCRIPTED_SERVER_H
#define RP_TESTS_SCRIPTED_SERVER_H

#include "base/base.h"

#include <sys/types.h>

#define SCRIPTED_REQUESTS 4096u
#define SCRIPTED_TOKENS   128u /* stamped tokens of a request */

/* CLOCK_MONOTONIC, nanoseconds. */
struct scripted_stamp {
    uint64_t arrived_ns;                /* its last byte was read */
    uint64_t token_ns[SCRIPTED_TOKENS]; /* right before the write */
    uint32_t tokens, connection, times_seen;
};

struct scripted_shared {
    uint16_t port;
    uint32_t connections, most_open;
    struct scripted_stamp stamps[SCRIPTED_REQUESTS];
};

struct scripted_server {
    pid_t pid;
    uint16_t port;
    struct scripted_shared *shared; /* to be read after stop */
    char url[64];
};

/* Forks; false when that fails. Before any thread is made. */
bool scripted_start(struct scripted_server *server);
/* Ends the process; the stamps stay until free. */
void scripted_stop(struct scripted_server *server);
void scripted_free(struct scripted_server *server);

/* Runs the server until SIGTERM and calls ready once it listens. port 0: any. Returns the exit
 * code. */
int scripted_serve(uint16_t port, struct scripted_shared *shared, void (*ready)(void *context),
                   void *context);

#endif
