/* tls.h - TLS 1.2 and 1.3 by OpenSSL, over memory buffers: the connection moves the bytes.
 * Thread: loop. Memory: OpenSSL's, up to about 50 KiB per connection. */
#ifndef RP_SERVER_TLS_H
#define RP_SERVER_TLS_H

#include "base/buffer.h"
#include "base/status.h"

struct rp_tls;      /* certificate and key in force */
struct rp_tls_conn; /* one connection */

/* PEM files: the certificate with its chain, and its private key, which group and others must not
 * be able to read. NOT_FOUND, FORMAT or INVALID, with the file in *err. */
int rp_tls_open(const char *cert_path, const char *key_path, struct rp_tls **out,
                struct rp_error *err) RP_MUST_USE;
/* Reads both files again, for connections from now on. On failure the old pair stays in force. */
int rp_tls_reload(struct rp_tls *tls, struct rp_error *err) RP_MUST_USE;
void rp_tls_close(struct rp_tls *tls); /* NULL is allowed */

/* NULL: no memory. */
struct rp_tls_conn *rp_tls_conn_create(struct rp_tls *tls) RP_MUST_USE;
void rp_tls_conn_destroy(struct rp_tls_conn *conn); /* NULL is allowed */

enum rp_tls_result { RP_TLS_OK, RP_TLS_ENDED /* the client has closed its side */, RP_TLS_FAILED };
/* Decrypts received bytes and appends them to *plain. What must be sent in return (handshake,
 * alerts), also after a failure, is given by the next rp_tls_conn_seal. */
enum rp_tls_result rp_tls_conn_receive(struct rp_tls_conn *conn, const char *bytes, size_t len,
                                       struct rp_buffer *plain);
/* Replaces the contents of *out (may be empty) by the bytes to send for them. False: it failed. */
bool rp_tls_conn_seal(struct rp_tls_conn *conn, struct rp_buffer *out);
/* Writes the closing alert into *out. */
void rp_tls_conn_finish(struct rp_tls_conn *conn, struct rp_buffer *out);

#endif
