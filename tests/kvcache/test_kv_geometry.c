/* Goal: every layer's K and V have a place of their own, pages of all groups have the same bytes,
 * and the counts of pages and tokens agree. Method: made-up models. */
#include "kvcache/kv_geometry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 64u

static struct rp_kv_geometry geometry;
static struct rp_kv_layer layers[LAYERS];

/* Every n-th layer without a window, from the n-th on; 0: all have it. */
static void alternate(uint32_t count, uint32_t every, uint32_t window) {
    for (uint32_t i = 0; i < count; i++)
        layers[i] = (struct rp_kv_layer){.kv_heads = 2,
                                         .head_dim = 64,
                                         .window = every && (i + 1) % every == 0 ? 0 : window,
                                         .source = i};
}

static bool make(uint32_t count) {
    return rp_kv_geometry_make(&geometry, layers, count, 16, RP_DTYPE_BF16);
}

/* No two layers with pages of their own have the same place, and places lie inside the page. */
static void assert_places(uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_kv_place *a = &geometry.places[i];
        if (layers[i].kv_heads == 0)
            continue;
        const struct rp_kv_layout *kv = &geometry.layouts[a->group];
        assert_true(a->group < geometry.groups.count);
        assert_true((a->at + 1u) * 2 * kv->plane_stride <= kv->page_stride);
        assert_int_equal(kv->page_stride, geometry.layouts[0].page_stride);
        assert_int_equal(kv->head_dim, layers[i].head_dim);
        assert_int_equal(kv->kv_heads, layers[i].kv_heads);
        for (uint32_t k = 0; k < i && layers[i].source == i; k++)
            assert_false(layers[k].kv_heads && geometry.places[k].group == a->group &&
                         geometry.places[k].at == a->at);
    }
}

static void test_one_kind_of_layers_is_one_group_in_their_order(void **state) {
    struct rp_kv_layout plain;
    (void)state;
    for (uint32_t window = 0; window <= 512; window += 512) {
        alternate(11, 0, window);
        assert_true(make(11));
        assert_int_equal(geometry.groups.count, 1);
        assert_int_equal(geometry.groups.window[0], window);
        for (uint32_t i = 0; i < 11; i++)
            assert_int_equal(geometry.places[i].at, i);
        assert_true(rp_kv_layout_init(&plain, 11, 2, 64, 16, RP_DTYPE_BF16));
        assert_memory_equal(&plain, &geometry.layouts[0], sizeof plain);
    }
}

static void test_alternating_layers_share_pages_without_waste(void **state) {
    (void)state;
    alternate(24, 2, 128);
    assert_true(make(24));
    assert_int_equal(geometry.groups.count, 2);
    assert_int_equal(geometry.layers_in[0], 12);
    assert_int_equal(geometry.layers_in[1], 12);
    assert_int_equal(geometry.layouts[0].layers, 12);
    assert_places(24);
}

static void test_many_layers_with_a_window_are_divided_into_groups(void **state) {
    (void)state;
    alternate(26, 6, 512); /* 4 without a window, 22 with it */
    assert_true(make(26));
    uint32_t full = 0, windowed = 0;
    for (uint32_t g = 0; g < geometry.groups.count; g++)
        *(geometry.groups.window[g] ? &windowed : &full) += geometry.layers_in[g];
    assert_int_equal(full, 4);
    assert_int_equal(windowed, 22);
    assert_int_equal(geometry.groups.count, 1 + 6); /* of four layers each */
    assert_places(26);
}

static void test_layers_of_two_formats_share_the_pool(void **state) {
    (void)state;
    alternate(30, 6, 512);
    for (uint32_t i = 5; i < 30; i += 6) { /* as in Gemma 4 */
        layers[i].kv_heads = 1;
        layers[i].head_dim = 512;
    }
    assert_true(make(30));
    assert_places(30);
}

static void test_a_layer_that_shares_has_the_place_of_its_source(void **state) {
    (void)state;
    alternate(8, 4, 128);
    layers[6].source = 2;
    layers[7].source = 3;
    assert_true(make(8));
    assert_memory_equal(&geometry.places[6], &geometry.places[2], sizeof geometry.places[2]);
    assert_memory_equal(&geometry.places[7], &geometry.places[3], sizeof geometry.places[3]);
    uint32_t owners = 0;
    for (uint32_t g = 0; g < geometry.groups.count; g++)
        owners += geometry.layers_in[g];
    assert_int_equal(owners, 6);
    assert_places(8);
    /* A reader that sees more than its source needs the pages for longer. */
    layers[6].window = 0;
    assert_true(make(8));
    assert_int_equal(geometry.groups.window[geometry.places[2].group], 0);
    assert_int_equal(geometry.groups.window[geometry.places[1].group], 128);
}

static void test_a_layer_without_kv_has_no_place(void **state) {
    (void)state;
    alternate(8, 0, 0);
    for (uint32_t i = 0; i < 8; i++)
        layers[i].kv_heads = i % 4 == 3 ? 2 : 0;
    assert_true(make(8));
    assert_int_equal(geometry.groups.count, 1);
    assert_int_equal(geometry.layouts[0].layers, 2);
    assert_int_equal(geometry.places[0].group, RP_KV_NO_GROUP);
    assert_places(8);
}

static void test_too_many_formats_are_refused(void **state) {
    (void)state;
    alternate(RP_KV_GROUPS_MAX + 1, 0, 0);
    for (uint32_t i = 0; i <= RP_KV_GROUPS_MAX; i++)
        layers[i].window = 100 + i;
    assert_false(make(RP_KV_GROUPS_MAX + 1));
    assert_true(make(RP_KV_GROUPS_MAX));
    assert_int_equal(geometry.groups.count, RP_KV_GROUPS_MAX);
    layers[0].head_dim = UINT32_MAX;
    layers[0].kv_heads = UINT32_MAX;
    assert_false(make(1));
}

/* ---- counts ---- */

static void test_the_first_page_is_that_of_the_first_token_in_the_window(void **state) {
    (void)state;
    for (uint32_t window = 1; window < 40; window++)
        for (uint32_t position = 0; position < 100; position++) {
            uint32_t seen = position + 1 > window ? position + 1 - window : 0;
            assert_int_equal(rp_kv_first_page(window, 8, position), seen / 8);
        }
    assert_int_equal(rp_kv_first_page(0, 8, 1000), 0);
}

/* Walks through a sequence in chunks and counts what it holds. */
static void test_no_sequence_holds_more_than_the_most(void **state) {
    (void)state;
    for (uint32_t window = 1; window < 30; window += 4)
        for (uint32_t chunk = 1; chunk < 20; chunk += 3)
            for (uint32_t page = 1; page <= 16; page *= 4) {
                struct rp_kv_groups groups = {.count = 2, .window = {0, window}};
                uint64_t most = 0;
                for (uint32_t at = 0; at + chunk <= 120; at += chunk) {
                    uint32_t end = RP_CEIL_DIV(at + chunk, page);
                    most = RP_MAX(most, end - rp_kv_first_page(window, page, at));
                }
                uint64_t all = rp_kv_pages_max(&groups, page, chunk, 120);
                assert_true(all >= RP_CEIL_DIV(120, page) + most);
                assert_true(all <= RP_CEIL_DIV(120, page) + most + RP_CEIL_DIV(2, page) + 1);
            }
}

static void test_tokens_and_pages_agree(void **state) {
    (void)state;
    struct rp_kv_groups groups = {.count = 3, .window = {0, 20, 20}};
    for (uint64_t pages = 0; pages < 200; pages++) {
        uint64_t tokens = rp_kv_tokens_max(&groups, 4, 8, pages, 1000);
        assert_true(rp_kv_pages_max(&groups, 4, 8, tokens) <= pages);
        assert_true(tokens == 1000 || rp_kv_pages_max(&groups, 4, 8, tokens + 1) > pages);
    }
    groups = (struct rp_kv_groups){.count = 1};
    assert_int_equal(rp_kv_tokens_max(&groups, 16, 8, 10, 1000), 160);
    assert_int_equal(rp_kv_capacity(&groups, 16, 8, 10, 33), 160);
    /* Only windows: the length of a sequence has no limit. */
    groups.window[0] = 32;
    assert_int_equal(rp_kv_tokens_max(&groups, 16, 8, 10, 1000000), 1000000);
}

/* DeepSeek-V2-Lite's pages have 27 rows of 576 a token; beside other layers latents have groups of
 * their own. */
static void test_latents_have_pages_of_half_the_bytes_and_groups_of_their_own(void **state) {
    (void)state;
    alternate(27, 0, 0);
    for (uint32_t i = 0; i < 27; i++) {
        layers[i].kv_heads = 1;
        layers[i].head_dim = 576;
        layers[i].latent = true;
    }
    assert_true(make(27));
    assert_places(27);
    assert_int_equal(geometry.groups.count, 1);
    assert_int_equal(geometry.layouts[0].page_stride, 27 * 576 * 2 * 16);
    layers[3].latent = false; /* a layer with K and V of the same size */
    assert_true(make(27));
    assert_places(27);
    assert_true(geometry.places[3].group != geometry.places[4].group);
    assert_true(geometry.layouts[geometry.places[4].group].latent);
    assert_false(geometry.layouts[geometry.places[3].group].latent);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_latents_have_pages_of_half_the_bytes_and_groups_of_their_own),
        cmocka_unit_test(test_one_kind_of_layers_is_one_group_in_their_order),
        cmocka_unit_test(test_alternating_layers_share_pages_without_waste),
        cmocka_unit_test(test_many_layers_with_a_window_are_divided_into_groups),
        cmocka_unit_test(test_layers_of_two_formats_share_the_pool),
        cmocka_unit_test(test_a_layer_that_shares_has_the_place_of_its_source),
        cmocka_unit_test(test_a_layer_without_kv_has_no_place),
        cmocka_unit_test(test_too_many_formats_are_refused),
        cmocka_unit_test(test_the_first_page_is_that_of_the_first_token_in_the_window),
        cmocka_unit_test(test_no_sequence_holds_more_than_the_most),
        cmocka_unit_test(test_tokens_and_pages_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
