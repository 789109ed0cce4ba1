/* api_response_items.h - GET /v1/responses/ID/input_items. Thread: loop. */
#ifndef RP_SERVER_API_RESPONSE_ITEMS_H
#define RP_SERVER_API_RESPONSE_ITEMS_H

#include "base/base.h"

struct rp_conn;

void rp_api_response_items(struct rp_conn *conn, const char *id, size_t len);

#endif
