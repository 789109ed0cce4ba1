/* kv_geometry.h - in which pages each layer's K and V lie.
 *
 * Layers are put into groups (kv_groups.h): those of one group have the same window, KV heads and
 * head_dim, and store V or not. A page belongs to one group and holds page_tokens positions of its
 * layers. All pages have the same bytes, so that any page can serve any group:
 *
 *   layer     0  1  2  3  4  5  6  7        window of 0, 1, 2, 4, 5, 6: 512; of 3 and 7: none
 *   group     1  1  2  0  2  3  3  0        two layers to a page: groups 1, 2, 3 have the window
 *   place     0  1  0  0  1  0  1  1        its planes in the group's pages
 *
 * A layer may share another's K and V (it writes none), or have none at all.
 *
 * Thread: any; constant once made. Memory: the caller's. */
#ifndef RP_KVCACHE_KV_GEOMETRY_H
#define RP_KVCACHE_KV_GEOMETRY_H

#include "kvcache/kv_groups.h"
#include "kvcache/kv_layout.h"

#define RP_KV_LAYERS_MAX 1024u
#define RP_KV_NO_GROUP   UINT8_MAX

/* What a layer stores. */
struct rp_kv_layer {
    uint32_t kv_heads; /* 0: the layer has no KV */
    uint32_t head_dim;
    uint32_t window; /* tokens; 0: none */
    uint32_t source; /* the layer whose K and V it reads: itself, or an earlier one */
    bool latent;     /* K alone, of one head */
};

struct rp_kv_place {
    uint8_t group; /* RP_KV_NO_GROUP: the layer has no KV */
    uint16_t at;   /* index among the layers of the group's pages */
};

struct rp_kv_geometry {
    struct rp_kv_groups groups;
    /* By group: layers, heads and strides of its pages; base is NULL. All have one page_stride. */
    struct rp_kv_layout layouts[RP_KV_GROUPS_MAX];
    uint32_t layers_in[RP_KV_GROUPS_MAX]; /* layers that the group has; may be fewer than places */
    uint32_t layer_count;
    struct rp_kv_place places[RP_KV_LAYERS_MAX];
};

/* Chooses the page size and groups the layers. One format and one window: one group, in which
 * layer i has place i. False: a size overflows, or so many formats that there is no grouping with
 * RP_KV_GROUPS_MAX groups. */
bool rp_kv_geometry_make(struct rp_kv_geometry *out, const struct rp_kv_layer *layers,
                         uint32_t layer_count, uint32_t page_tokens, enum rp_dtype dtype);

#endif
