/* api_ui.c - GET /debug/ui: one page that displays the answers of the other /debug routes. */
#include "server/http/http_conn.h"
#include "server/http/http_query.h"
#include "server/http/router.h"
#include "server/observe/ui_page.h"

void rp_api_debug_ui(struct rp_conn *conn) {
    /* Loads nothing external and cannot be framed; request and model names are never interpreted as
     * HTML. */
    static const char extra[] =
        "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
        "form-action 'none'\r\n"
        "Cache-Control: no-cache\r\n";
    if (rp_query_read_conn(conn, NULL, 0))
        rp_conn_reply(conn, 200, "text/html; charset=utf-8", extra, (const char *)rp_ui_page,
                      rp_ui_page_len);
}
