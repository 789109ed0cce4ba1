#include "server/http/tls.h"

#include "base/memory.h"

#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct rp_tls {
    SSL_CTX *context;
    char *cert_path, *key_path;
};

struct rp_tls_conn {
    SSL *ssl;
    BIO *received, *to_send; /* owned by ssl */
};

/* --- Certificates ---------------------------------------------------------------------------- */

/* Fills *err with OpenSSL's reason, and clears its queue. */
static int fail(struct rp_error *err, const char *path, const char *what) {
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return rp_error_set(err, RP_STATUS_FORMAT, "%s: %s%s%s", path, what, reason ? ": " : "",
                        reason ? reason : "");
}

static int check_file(const char *path, bool is_secret, struct rp_error *err) {
    struct stat info;
    if (stat(path, &info) != 0)
        return rp_error_set(err, RP_STATUS_NOT_FOUND, "%s: %s", path, strerror(errno));
    if (is_secret && (info.st_mode & (S_IRWXG | S_IRWXO))) {
        int status = rp_error_set(err, RP_STATUS_INVALID,
                                  "%s: group or others can read the private key", path);
        rp_error_hint(err, "chmod 600 %s", path);
        return status;
    }
    return RP_OK;
}

/* A client that offers protocols must offer http/1.1. */
static int select_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                           const unsigned char *offered, unsigned offered_len, void *ctx) {
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *found;
    (void)ssl;
    (void)ctx;
    if (SSL_select_next_proto(&found, out_len, ours, sizeof ours - 1, offered, offered_len) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = found;
    return SSL_TLSEXT_ERR_OK;
}

static int make_context(const struct rp_tls *tls, SSL_CTX **out, struct rp_error *err) {
    int status = check_file(tls->cert_path, false, err);
    if (status == RP_OK)
        status = check_file(tls->key_path, true, err);
    if (status != RP_OK)
        return status;
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (!context)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for TLS");
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                     SSL_OP_CIPHER_SERVER_PREFERENCE);
    /* Forward secrecy and authenticated encryption only; TLS 1.3 has nothing else. */
    SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20");
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF); /* tickets only */
    SSL_CTX_set_alpn_select_cb(context, select_protocol, NULL);
    if (SSL_CTX_use_certificate_chain_file(context, tls->cert_path) != 1)
        status = fail(err, tls->cert_path, "no certificate in PEM format");
    else if (SSL_CTX_use_PrivateKey_file(context, tls->key_path, SSL_FILETYPE_PEM) != 1)
        status = fail(err, tls->key_path, "no private key of this certificate in PEM format");
    else if (SSL_CTX_check_private_key(context) != 1)
        status = fail(err, tls->key_path, "the private key does not belong to the certificate");
    if (status != RP_OK) {
        SSL_CTX_free(context);
        return status;
    }
    *out = context;
    return RP_OK;
}

static char *copy_text(const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = rp_alloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

int rp_tls_open(const char *cert_path, const char *key_path, struct rp_tls **out,
                struct rp_error *err) {
    struct rp_tls *tls = rp_calloc(1, sizeof *tls);
    *out = NULL;
    if (tls) {
        tls->cert_path = copy_text(cert_path);
        tls->key_path = copy_text(key_path);
    }
    int status = tls && tls->cert_path && tls->key_path
                     ? make_context(tls, &tls->context, err)
                     : rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for TLS");
    if (status != RP_OK) {
        rp_tls_close(tls);
        return status;
    }
    *out = tls;
    return RP_OK;
}

int rp_tls_reload(struct rp_tls *tls, struct rp_error *err) {
    SSL_CTX *fresh;
    int status = make_context(tls, &fresh, err);
    if (status != RP_OK)
        return status;
    SSL_CTX_free(tls->context); /* connections keep a reference to theirs */
    tls->context = fresh;
    return RP_OK;
}

void rp_tls_close(struct rp_tls *tls) {
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    rp_free(tls->cert_path);
    rp_free(tls->key_path);
    rp_free(tls);
}

/* --- Connections ----------------------------------------------------------------------------- */

struct rp_tls_conn *rp_tls_conn_create(struct rp_tls *tls) {
    struct rp_tls_conn *conn = rp_calloc(1, sizeof *conn);
    if (!conn)
        return NULL;
    conn->ssl = SSL_new(tls->context);
    conn->received = BIO_new(BIO_s_mem());
    conn->to_send = BIO_new(BIO_s_mem());
    if (!conn->ssl || !conn->received || !conn->to_send) {
        BIO_free(conn->received);
        BIO_free(conn->to_send);
        SSL_free(conn->ssl);
        rp_free(conn);
        ERR_clear_error();
        return NULL;
    }
    SSL_set_bio(conn->ssl, conn->received, conn->to_send);
    SSL_set_accept_state(conn->ssl);
    return conn;
}

void rp_tls_conn_destroy(struct rp_tls_conn *conn) {
    if (!conn)
        return;
    SSL_free(conn->ssl);
    rp_free(conn);
}

enum rp_tls_result rp_tls_conn_receive(struct rp_tls_conn *conn, const char *bytes, size_t len,
                                       struct rp_buffer *plain) {
    char part[16384]; /* the largest record */
    if (len > INT_MAX || BIO_write(conn->received, bytes, (int)len) != (int)len)
        return RP_TLS_FAILED;
    for (;;) {
        int n = SSL_read(conn->ssl, part, sizeof part); /* does the handshake first */
        if (n > 0) {
            rp_buffer_append(plain, part, (size_t)n);
            continue;
        }
        int error = SSL_get_error(conn->ssl, n);
        ERR_clear_error();
        if (error == SSL_ERROR_WANT_READ)
            return RP_TLS_OK;
        return error == SSL_ERROR_ZERO_RETURN ? RP_TLS_ENDED : RP_TLS_FAILED;
    }
}

static void take_bytes_to_send(struct rp_tls_conn *conn, struct rp_buffer *out) {
    char *bytes;
    long len = BIO_get_mem_data(conn->to_send, &bytes);
    if (len > 0)
        rp_buffer_append(out, bytes, (size_t)len);
    (void)BIO_reset(conn->to_send);
}

bool rp_tls_conn_seal(struct rp_tls_conn *conn, struct rp_buffer *out) {
    bool good = true;
    for (size_t at = 0; at < out->len && good;) {
        int part = (int)RP_MIN(out->len - at, (size_t)1 << 30);
        int n = SSL_write(conn->ssl, out->data + at, part);
        good = n > 0;
        at += good ? (size_t)n : 0;
    }
    ERR_clear_error();
    rp_buffer_clear(out);
    take_bytes_to_send(conn, out);
    return good && !out->failed;
}

void rp_tls_conn_finish(struct rp_tls_conn *conn, struct rp_buffer *out) {
    if (SSL_is_init_finished(conn->ssl))
        (void)SSL_shutdown(conn->ssl);
    ERR_clear_error();
    take_bytes_to_send(conn, out);
}
