#include "server/observe/zmq_library.h"

#include "base/library.h"

int rp_zmq_open(const struct rp_zmq **out, struct rp_error *err) {
    static struct rp_zmq lib;
    static const struct rp_library_symbol symbols[] = {{"zmq_ctx_new", &lib.ctx_new},
                                                       {"zmq_ctx_term", &lib.ctx_term},
                                                       {"zmq_socket", &lib.socket},
                                                       {"zmq_close", &lib.close},
                                                       {"zmq_setsockopt", &lib.setsockopt},
                                                       {"zmq_getsockopt", &lib.getsockopt},
                                                       {"zmq_bind", &lib.bind},
                                                       {"zmq_connect", &lib.connect},
                                                       {"zmq_send", &lib.send},
                                                       {"zmq_recv", &lib.recv},
                                                       {"zmq_msg_init_data", &lib.msg_init_data},
                                                       {"zmq_msg_send", &lib.msg_send},
                                                       {"zmq_msg_close", &lib.msg_close},
                                                       {"zmq_poll", &lib.poll},
                                                       {"zmq_errno", &lib.error},
                                                       {"zmq_strerror", &lib.strerror}};
    *out = &lib;
    if (rp_library_load("libzmq.so.5", symbols, RP_ARRAY_COUNT(symbols)))
        return RP_OK;
    int status = rp_error_set(err, RP_STATUS_UNSUPPORTED,
                              "--kv-events-config: libzmq.so.5 cannot be loaded");
    rp_error_hint(err, "install the package libzmq5");
    return status;
}
