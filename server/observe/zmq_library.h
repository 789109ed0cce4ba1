/* zmq_library.h - libzmq, opened at run time: what the publisher calls of it, with the values of
 * zmq.h (ABI 5: libzmq 4). Building needs no header, and a server without --kv-events-config no
 * library.
 * Thread: open from one thread; libzmq's sockets belong to one thread at a time. */
#ifndef RP_SERVER_ZMQ_LIBRARY_H
#define RP_SERVER_ZMQ_LIBRARY_H

#include "base/status.h"

enum rp_zmq_socket_type { RP_ZMQ_PUB = 1, RP_ZMQ_ROUTER = 6 };
enum rp_zmq_option {
    RP_ZMQ_RCVMORE = 13,
    RP_ZMQ_LINGER = 17,
    RP_ZMQ_MAXMSGSIZE = 22, /* int64_t; the others int */
    RP_ZMQ_SNDHWM = 23,
    RP_ZMQ_RCVHWM = 24,
    RP_ZMQ_TCP_KEEPALIVE = 34,
    RP_ZMQ_TCP_KEEPALIVE_IDLE = 36,
    RP_ZMQ_IPV6 = 42
};
enum rp_zmq_flags { RP_ZMQ_DONTWAIT = 1, RP_ZMQ_SNDMORE = 2, RP_ZMQ_POLLIN = 1 };

struct rp_zmq_message { /* zmq_msg_t */
    _Alignas(void *) unsigned char bytes[64];
};
struct rp_zmq_poll_item { /* zmq_pollitem_t */
    void *socket;
    int fd;
    short events, revents;
};

struct rp_zmq {
    void *(*ctx_new)(void);
    int (*ctx_term)(void *context);
    void *(*socket)(void *context, int type);
    int (*close)(void *socket);
    int (*setsockopt)(void *socket, int option, const void *value, size_t size);
    int (*getsockopt)(void *socket, int option, void *value, size_t *size);
    int (*bind)(void *socket, const char *endpoint);
    int (*connect)(void *socket, const char *endpoint);
    int (*send)(void *socket, const void *data, size_t len, int flags);
    int (*recv)(void *socket, void *data, size_t len, int flags); /* the length before truncation */
    int (*msg_init_data)(struct rp_zmq_message *message, void *data, size_t len,
                         void (*release)(void *data, void *hint), void *hint);
    int (*msg_send)(struct rp_zmq_message *message, void *socket, int flags);
    int (*msg_close)(struct rp_zmq_message *message);
    int (*poll)(struct rp_zmq_poll_item *items, int count, long timeout_ms);
    int (*error)(void);
    const char *(*strerror)(int number);
};

/* Opens the library on the first call. UNSUPPORTED: it cannot be loaded. */
int rp_zmq_open(const struct rp_zmq **out, struct rp_error *err) RP_MUST_USE;

#endif
