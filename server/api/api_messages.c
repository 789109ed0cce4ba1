/* api_messages.c - Anthropic's API: POST /v1/messages and /v1/messages/count_tokens. */
#include "server/api/answer.h"
#include "server/api/api_start.h"
#include "server/api/messages_request.h"
#include "server/api/tokenize_chat.h"
#include "server/http/api_reply.h"
#include "server/http/json_work.h"
#include "server/http/router.h"

/* Takes root over. NULL when an error response has been sent. */
static json_t *convert(struct rp_conn *conn, json_t *root, bool counting) {
    struct rp_http_error error = {.status = 0};
    json_t *chat = NULL;
    bool good = rp_params_check_model(root, &conn->server->serving, &error) &&
                rp_messages_to_chat(root, conn->server->late_system, counting, &chat, &error);
    json_decref(root);
    if (!good)
        rp_conn_reply_error(conn, &error);
    return chat;
}

static void on_messages(struct rp_conn *conn, json_t *root) {
    json_t *chat = convert(conn, root, false);
    /* Clients ask for more tokens than a small context has; the answer then ends with it. */
    if (chat)
        rp_api_start(conn, chat,
                     &(struct rp_api_start){.api = RP_API_CHAT,
                                            .answers = &rp_answer_messages,
                                            .limit_to_context = true});
}

static void write_count(struct rp_conn *conn, const struct rp_token_ids *ids) {
    struct rp_buffer body = {.data = NULL};
    rp_buffer_printf(&body, "{\"input_tokens\":%zu}", ids->count);
    rp_api_reply_json(conn, 200, &body);
}

static void on_count(struct rp_conn *conn, json_t *root) {
    json_t *chat = convert(conn, root, true);
    if (chat)
        rp_tokenize_chat(conn, chat, write_count);
}

void rp_api_messages(struct rp_conn *conn) { rp_api_take_body(conn, on_messages); }

void rp_api_count_tokens(struct rp_conn *conn) { rp_json_work_start(conn, on_count); }
