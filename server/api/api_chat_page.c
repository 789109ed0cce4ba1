/* api_chat_page.c - GET /: the page to chat on, for browsers. Others get 404, as for any path that
 * is no route: programs that probe / must not take a page for an answer. */
#include "server/api/chat_page.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/router.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* sha256-BASE64 of what is between two marks of the page. */
struct source_hash {
    char text[64];
};

static struct source_hash hash_between(const char *open, const char *close) {
    struct source_hash hash = {"sha256-"};
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int len = 0;
    const char *page = (const char *)rp_chat_page, *end = page + rp_chat_page_len;
    const char *from = memmem(page, rp_chat_page_len, open, strlen(open));
    RP_ASSERT(from);
    from += strlen(open);
    const char *to = memmem(from, (size_t)(end - from), close, strlen(close));
    RP_ASSERT(to);
    RP_ASSERT(EVP_Digest(from, (size_t)(to - from), digest, &len, EVP_sha256(), NULL) == 1);
    EVP_EncodeBlock((unsigned char *)hash.text + strlen(hash.text), digest, (int)len);
    return hash;
}

/* Only the page's own script and style run, whatever a model or a file contains; nothing is loaded
 * from elsewhere, no text becomes HTML, and no other page may frame it. */
static const char *page_header(void) {
    static char header[768]; /* made once; thread: loop */
    if (header[0] == '\0') {
        struct source_hash script = hash_between("<script>", "</script>");
        struct source_hash style = hash_between("<style>", "</style>");
        int len = snprintf(header, sizeof header,
                           "Content-Security-Policy: default-src 'none'; script-src '%s'; "
                           "style-src '%s'; connect-src 'self'; img-src data:; "
                           "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
                           "require-trusted-types-for 'script'; trusted-types 'none'\r\n"
                           "X-Content-Type-Options: nosniff\r\n"
                           "Referrer-Policy: no-referrer\r\n"
                           "Cache-Control: no-cache\r\nVary: Accept\r\n",
                           script.text, style.text);
        RP_ASSERT(len > 0 && (size_t)len < sizeof header);
    }
    return header;
}

void rp_api_chat_page(struct rp_conn *conn) {
    const char *accept = rp_http_head_find(&conn->head, "Accept", NULL);
    if (!accept || !strcasestr(accept, "text/html"))
        rp_conn_fail(conn, 404, "not_found",
                     "no such route: / is a page for browsers; the API is under /v1");
    else
        rp_conn_reply(conn, 200, "text/html; charset=utf-8", page_header(),
                      (const char *)rp_chat_page, rp_chat_page_len);
}
