#include "kvcache/kv_geometry.h"

#include "base/checked.h"

#include <string.h>

/* Layers of one window and page format. */
struct layer_class {
    uint32_t window, kv_heads, head_dim;
    bool latent;
    uint32_t layers;
    size_t layer_bytes; /* of one layer in a page */
    /* With the chosen page: layers to a page; the group that is being filled, and its layers. */
    uint32_t places, group, filled;
};

struct classes {
    struct layer_class list[RP_KV_GROUPS_MAX];
    uint32_t count;
    bool unbounded; /* some class has no window */
};

/* Pages of layers without a window grow with the context, the others do not: bytes that a page
 * wastes weigh more there. */
#define UNBOUNDED_WEIGHT 4u
/* What a group costs beside its bytes, as a share of all of them: page tables, edits, and one more
 * page that is not full. */
#define GROUP_SHARE 64u

/* The layer's own window, or a larger one of a layer that reads its K and V; 0: none. */
static uint32_t window_of(const struct rp_kv_layer *layers, uint32_t layer_count, uint32_t layer) {
    uint32_t window = layers[layer].window;
    for (uint32_t i = 0; i < layer_count && window; i++)
        if (layers[i].kv_heads && layers[i].source == layer)
            window = layers[i].window ? RP_MAX(window, layers[i].window) : 0;
    return window;
}

/* The class of a layer, or NULL where it would be one too many. */
static struct layer_class *class_of(struct classes *classes, const struct rp_kv_layer *layer,
                                    uint32_t window) {
    for (uint32_t i = 0; i < classes->count; i++) {
        struct layer_class *at = &classes->list[i];
        if (at->window == window && at->kv_heads == layer->kv_heads &&
            at->head_dim == layer->head_dim && at->latent == layer->latent)
            return at;
    }
    if (classes->count == RP_KV_GROUPS_MAX)
        return NULL;
    struct layer_class *added = &classes->list[classes->count++];
    *added = (struct layer_class){.window = window,
                                  .kv_heads = layer->kv_heads,
                                  .head_dim = layer->head_dim,
                                  .latent = layer->latent};
    classes->unbounded |= window == 0;
    return added;
}

static bool init_layout(struct rp_kv_layout *out, uint32_t layers, const struct layer_class *class,
                        uint32_t page_tokens, enum rp_dtype dtype) {
    return class->latent
               ? rp_kv_layout_init_latent(out, layers, class->head_dim, page_tokens, dtype)
               : rp_kv_layout_init(out, layers, class->kv_heads, class->head_dim, page_tokens,
                                   dtype);
}

static bool owns_pages(const struct rp_kv_layer *layers, uint32_t layer) {
    return layers[layer].kv_heads != 0 && layers[layer].source == layer;
}

static bool find_classes(struct classes *classes, const struct rp_kv_layer *layers,
                         uint32_t layer_count, uint32_t page_tokens, enum rp_dtype dtype) {
    memset(classes, 0, sizeof *classes);
    for (uint32_t i = 0; i < layer_count; i++) {
        struct rp_kv_layout one;
        if (!owns_pages(layers, i))
            continue;
        struct layer_class *class =
            class_of(classes, &layers[i], window_of(layers, layer_count, i));
        if (!class || !init_layout(&one, 1, class, page_tokens, dtype))
            return false;
        class->layer_bytes = one.page_stride;
        class->layers++;
    }
    return true;
}

/* Groups of a class with pages of so many bytes; 0: not one of its layers fits. */
static uint32_t groups_of(const struct layer_class *class, size_t page_bytes) {
    size_t places = RP_MIN(page_bytes / class->layer_bytes, class->layers);
    return places ? (uint32_t)RP_CEIL_DIV(class->layers, places) : 0;
}

/* What pages of so many bytes cost, to compare sizes; SIZE_MAX: they cannot be used. */
static size_t cost_of(const struct classes *classes, size_t page_bytes) {
    size_t bytes = 0, groups = 0, term, cost;
    for (uint32_t i = 0; i < classes->count; i++) {
        const struct layer_class *class = &classes->list[i];
        size_t weight = classes->unbounded && class->window == 0 ? UNBOUNDED_WEIGHT : 1;
        size_t count = groups_of(class, page_bytes);
        if (count == 0 || rp_mul_overflow(page_bytes, count * weight, &term) ||
            rp_add_overflow(bytes, term, &bytes))
            return SIZE_MAX;
        groups += count;
    }
    if (groups > RP_KV_GROUPS_MAX || rp_mul_overflow(bytes, GROUP_SHARE + groups, &cost))
        return SIZE_MAX;
    return cost;
}

/* Whole layers of one class: any other size wastes bytes in all. 0: none can be used. */
static size_t choose_page_bytes(const struct classes *classes) {
    size_t least = SIZE_MAX;
    size_t chosen = 0, page_bytes;
    for (uint32_t i = 0; i < classes->count; i++) {
        for (uint32_t layers = classes->list[i].layers; layers > 0; layers--) {
            if (rp_mul_overflow(classes->list[i].layer_bytes, layers, &page_bytes))
                return 0;
            size_t cost = cost_of(classes, page_bytes);
            if (cost < least) {
                least = cost;
                chosen = page_bytes;
            }
        }
    }
    return chosen;
}

static bool open_group(struct rp_kv_geometry *out, struct layer_class *class, size_t page_bytes,
                       uint32_t page_tokens, enum rp_dtype dtype) {
    uint32_t group = out->groups.count++;
    class->group = group;
    class->filled = 0;
    class->places = (uint32_t)RP_MIN(page_bytes / class->layer_bytes, class->layers);
    out->groups.window[group] = class->window;
    if (!init_layout(&out->layouts[group], class->places, class, page_tokens, dtype))
        return false;
    out->layouts[group].page_stride = page_bytes;
    return true;
}

bool rp_kv_geometry_make(struct rp_kv_geometry *out, const struct rp_kv_layer *layers,
                         uint32_t layer_count, uint32_t page_tokens, enum rp_dtype dtype) {
    struct classes classes;
    memset(out, 0, sizeof *out);
    RP_ASSERT_CMP(layer_count, <=, RP_KV_LAYERS_MAX);
    out->layer_count = layer_count;
    if (!find_classes(&classes, layers, layer_count, page_tokens, dtype))
        return false;
    size_t page_bytes = choose_page_bytes(&classes);
    if (page_bytes == 0)
        return false;
    for (uint32_t i = 0; i < layer_count; i++) {
        if (layers[i].kv_heads == 0) {
            out->places[i].group = RP_KV_NO_GROUP;
        } else if (owns_pages(layers, i)) {
            struct layer_class *class =
                class_of(&classes, &layers[i], window_of(layers, layer_count, i));
            if (class->filled == class->places &&
                !open_group(out, class, page_bytes, page_tokens, dtype))
                return false;
            out->places[i] =
                (struct rp_kv_place){(uint8_t) class->group, (uint16_t) class->filled++};
            out->layers_in[class->group]++;
        } else {
            RP_ASSERT_CMP(layers[i].source, <, i);
            out->places[i] = out->places[layers[i].source];
        }
    }
    return true;
}
