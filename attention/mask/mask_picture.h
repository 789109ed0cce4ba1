/* mask_picture.h - renders a mask, as classes of tiles and pairs, as text and as SVG. Errors:
 * out->failed. */
#ifndef RP_ATTENTION_MASK_PICTURE_H
#define RP_ATTENTION_MASK_PICTURE_H

#include "attention/mask/mask.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The range to draw. Positions are below the bound that the program was proved for. */
struct rp_mask_view {
    int32_t q_begin, q_end, kv_begin, kv_end; /* [begin, end), not empty */
    int32_t h, layer;
    int32_t tile, page;    /* queries and keys of a tile; tiles begin at multiples */
    const int32_t *params; /* as for rp_mask_sees */
};

/* Tiles of each class, enum rp_mask_class. */
void rp_mask_count_tiles(const struct rp_mask *mask, const struct rp_mask_view *view,
                         uint64_t counts[3]);

/* Lines of tiles, `#` full, `+` partial, `.` skip; and, when the view has at most
 * RP_MASK_PICTURE_MAX keys and queries, lines of pairs: `#` visible. Indented by two. */
#define RP_MASK_PICTURE_MAX 128
void rp_mask_picture_text(const struct rp_mask *mask, const struct rp_mask_view *view,
                          struct rp_buffer *out);

/* An SVG for light and dark pages. Pairs of partial tiles are drawn up to RP_MASK_SVG_MAX keys and
 * queries. */
#define RP_MASK_SVG_MAX 512
void rp_mask_picture_svg(const struct rp_mask *mask, const struct rp_mask_view *view,
                         struct rp_buffer *out);

#ifdef __cplusplus
}
#endif
#endif
