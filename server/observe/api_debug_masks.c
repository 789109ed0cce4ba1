/* api_debug_masks.c - GET /debug/masks: the attention mask in force: the mask program, its effect
 * on each layer, and for ?q= and ?kv= the class of each tile: skipped, full, or partial (evaluated
 * per pair). */
#include "attention/mask/mask.h"
#include "base/json_writer.h"
#include "engine/engine.h"
#include "server/http/api_reply.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/http_query.h"
#include "server/http/router.h"

#include <stdio.h>
#include <string.h>

/* Limits on the positions covered by tiles, and on the side of a tile. */
#define POSITIONS_MAX 8192
#define TILE          64u
#define TILES_MAX     (POSITIONS_MAX / TILE)

enum { JSON, TEXT };

struct asked {
    uint32_t format;
    uint64_t q, kv, layer;
    bool has_q, has_kv;
};

/* --- Tiles ----------------------------------------------------------------------------------- */

/* The class of a tile as a character. A layer without a mask program is causal with its own
 * window. */
static char class_of(const struct rp_engine_layer_mask *layer, const struct rp_mask_tile *tile,
                     const int32_t *params) {
    static const char letters[] = {
        [RP_MASK_SKIP] = '.', [RP_MASK_FULL] = '#', [RP_MASK_PARTIAL] = '+'};
    if (layer->program)
        return letters[rp_mask_classify(layer->program, tile, params)];
    int64_t window = layer->window ? layer->window : INT32_MAX;
    if (tile->kv_begin > tile->q_end - 1 || tile->q_begin - (tile->kv_end - 1) >= window)
        return '.';
    return tile->kv_end - 1 <= tile->q_begin && tile->q_end - 1 - tile->kv_begin < window ? '#'
                                                                                          : '+';
}

static void fill_params(const struct rp_mask *mask, int32_t out[RP_MASK_PARAMS_MAX]) {
    memset(out, 0, RP_MASK_PARAMS_MAX * sizeof *out);
    for (uint32_t i = 0; mask && i < rp_mask_param_count(mask); i++)
        out[i] = rp_mask_param(mask, i)->value;
}

/* The classes of the row of tiles whose queries begin at `q`. */
static void tile_row(const struct asked *asked, const struct rp_engine_layer_mask *layer,
                     const int32_t *params, int32_t heads, uint64_t q, char out[TILES_MAX + 1]) {
    uint32_t count = 0;
    for (uint64_t kv = 0; kv < asked->kv; kv += TILE) {
        const struct rp_mask_tile tile = {.q_begin = (int32_t)q,
                                          .q_end = (int32_t)RP_MIN(q + TILE, asked->q),
                                          .kv_begin = (int32_t)kv,
                                          .kv_end = (int32_t)RP_MIN(kv + TILE, asked->kv),
                                          .h_end = heads,
                                          .layer = (int32_t)asked->layer};
        out[count++] = class_of(layer, &tile, params);
    }
    out[count] = '\0';
}

/* --- The answer ------------------------------------------------------------------------------ */

static void print_tree(const struct rp_mask *mask, struct rp_buffer *out) {
    rp_buffer_init(out, 0);
    rp_mask_print_tree(mask, out);
    out->failed |= !rp_buffer_reserve(out, 1);
}

static void write_program(struct rp_json *json, const struct rp_mask *mask) {
    struct rp_buffer tree;
    print_tree(mask, &tree);
    rp_json_string(json, "program", rp_mask_text(mask));
    rp_json_string_len(json, "tree", tree.failed ? "" : tree.data, tree.failed ? 0 : tree.len);
    rp_buffer_deinit(&tree);
    rp_json_bool(json, "causal", rp_mask_is_causal(mask));
    rp_json_bool(json, "score_rules", rp_mask_has_score(mask));
    rp_json_array_begin(json, "parameters");
    for (uint32_t i = 0; i < rp_mask_param_count(mask); i++) {
        const struct rp_mask_param *param = rp_mask_param(mask, i);
        rp_json_object_begin(json, NULL);
        rp_json_string(json, "name", param->name);
        rp_json_int(json, "default", param->value);
        rp_json_int(json, "min", param->min);
        rp_json_int(json, "max", param->max);
        rp_json_object_end(json);
    }
    rp_json_array_end(json);
}

static void write_layer(struct rp_json *json, uint32_t index,
                        const struct rp_engine_layer_mask *layer) {
    rp_json_object_begin(json, NULL);
    rp_json_uint(json, "layer", index);
    rp_json_string(json, "class", layer->program ? "program" : "plain");
    if (layer->program)
        rp_json_string(json, "program", rp_mask_text(layer->program));
    else
        rp_json_uint(json, "window", layer->window);
    if (!layer->program)
        rp_json_double(json, "soft_cap", (double)layer->soft_cap);
    rp_json_string(json, "kernels", layer->kernels);
    rp_json_object_end(json);
}

static void print_layer(struct rp_buffer *out, uint32_t index,
                        const struct rp_engine_layer_mask *layer) {
    rp_buffer_printf(out, "%5u  %-24s ", index, layer->kernels);
    if (layer->program)
        rp_buffer_printf(out, "%s\n", rp_mask_text(layer->program));
    else if (layer->window)
        rp_buffer_printf(out, "causal, window %u, soft_cap %g\n", layer->window,
                         (double)layer->soft_cap);
    else
        rp_buffer_printf(out, "causal, soft_cap %g\n", (double)layer->soft_cap);
}

static void print_program(struct rp_buffer *out, const struct rp_mask *mask) {
    struct rp_buffer tree;
    if (!mask) {
        rp_buffer_puts(out, "program: none, the model's own mask\n\n");
        return;
    }
    print_tree(mask, &tree);
    rp_buffer_printf(out, "program: %s\n%s\n", rp_mask_text(mask),
                     rp_mask_is_causal(mask) ? "causal"
                                             : "not causal: each prompt is computed in one step");
    for (uint32_t i = 0; i < rp_mask_param_count(mask); i++) {
        const struct rp_mask_param *param = rp_mask_param(mask, i);
        rp_buffer_printf(out, "parameter %s: %d, from %d to %d\n", param->name, param->value,
                         param->min, param->max);
    }
    rp_buffer_puts(out, "\n");
    if (!tree.failed)
        rp_buffer_append(out, tree.data, tree.len);
    rp_buffer_deinit(&tree);
    rp_buffer_puts(out, "\n");
}

static void put_tiles(const struct asked *asked, const struct rp_server *server,
                      struct rp_json *json, struct rp_buffer *out) {
    struct rp_engine_layer_mask layer;
    int32_t params[RP_MASK_PARAMS_MAX];
    char row[TILES_MAX + 1];
    fill_params(server->serving.mask, params);
    rp_engine_layer_mask(server->serving.engine, (uint32_t)asked->layer, &layer);
    if (json) {
        rp_json_object_begin(json, "tiles");
        rp_json_uint(json, "layer", asked->layer);
        rp_json_uint(json, "tile_q", TILE);
        rp_json_uint(json, "tile_kv", TILE);
        rp_json_string(json, "legend", ". skip, # full, + partial");
        rp_json_array_begin(json, "rows");
    } else {
        rp_buffer_printf(out, "\ntiles of %u x %u of layer %llu: . skip, # full, + partial\n", TILE,
                         TILE, (unsigned long long)asked->layer);
    }
    for (uint64_t q = 0; q < asked->q; q += TILE) {
        tile_row(asked, &layer, params, (int32_t)layer.heads, q, row);
        if (json)
            rp_json_string(json, NULL, row);
        else
            rp_buffer_printf(out, "%6llu %s\n", (unsigned long long)q, row);
    }
    if (json) {
        rp_json_array_end(json);
        rp_json_object_end(json);
    }
}

static void reply_text(struct rp_conn *conn, const struct asked *asked) {
    const struct rp_server *server = conn->server;
    struct rp_buffer body = {.data = NULL};
    print_program(&body, server->serving.mask);
    rp_buffer_printf(&body, "layer  %-24s sees\n", "kernels");
    for (uint32_t i = 0; i < rp_engine_layer_count(server->serving.engine); i++) {
        struct rp_engine_layer_mask layer;
        rp_engine_layer_mask(server->serving.engine, i, &layer);
        print_layer(&body, i, &layer);
    }
    if (asked->has_q || asked->has_kv)
        put_tiles(asked, server, NULL, &body);
    rp_api_reply_text(conn, 200, "text/plain; charset=utf-8", &body);
}

static void reply_json(struct rp_conn *conn, const struct asked *asked) {
    const struct rp_server *server = conn->server;
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    if (server->serving.mask)
        write_program(&json, server->serving.mask);
    else
        rp_json_null(&json, "program");
    rp_json_array_begin(&json, "layers");
    for (uint32_t i = 0; i < rp_engine_layer_count(server->serving.engine); i++) {
        struct rp_engine_layer_mask layer;
        rp_engine_layer_mask(server->serving.engine, i, &layer);
        write_layer(&json, i, &layer);
    }
    rp_json_array_end(&json);
    if (asked->has_q || asked->has_kv)
        put_tiles(asked, server, &json, NULL);
    rp_json_object_end(&json);
    rp_api_reply_json(conn, 200, &body);
}

void rp_api_debug_masks(struct rp_conn *conn) {
    struct asked asked = {.format = JSON};
    const struct rp_engine *engine = conn->server->serving.engine;
    uint32_t layers = rp_engine_layer_count(engine);
    /* A mask program is verified for the positions of this model. */
    double longest = RP_MIN((uint32_t)POSITIONS_MAX, rp_engine_max_model_len(engine));
    const struct rp_query_param params[] = {
        {.name = "format", .type = RP_QUERY_CHOICE, .choices = "json|text", .value = &asked.format},
        {.name = "q",
         .type = RP_QUERY_UINT,
         .min = 1,
         .max = longest,
         .value = &asked.q,
         .given = &asked.has_q},
        {.name = "kv",
         .type = RP_QUERY_UINT,
         .min = 1,
         .max = longest,
         .value = &asked.kv,
         .given = &asked.has_kv},
        {.name = "layer", .type = RP_QUERY_UINT, .max = layers - 1, .value = &asked.layer}};
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return;
    if (!asked.has_kv)
        asked.kv = asked.q;
    if (!asked.has_q)
        asked.q = asked.kv;
    if (asked.format == TEXT)
        reply_text(conn, &asked);
    else
        reply_json(conn, &asked);
}
