/* Goal: STEP_BEGIN on CUDA produces the state of step_cpu.c, and an invalid packet stops the device
 * without a write outside the slots. */
#include "base/memory.h"
#include "device/ops_cuda.h"
#include "device/step_cpu.h"
#include "tests/support/gpu_test.h"

#include <stdio.h>
#include <string.h>

#define SLOTS 700u

static const struct rp_step_config config = {.slot_count = SLOTS,
                                             .pages_per_slot = 37,
                                             .row_capacity = 700,
                                             .token_capacity = 5000,
                                             .logit_row_capacity = 640,
                                             .edit_capacity = 1500,
                                             .prompt_ring_capacity = 8192,
                                             .state_places = 1000, /* any word of a slot is one */
                                             .state_stride = 64};

static struct rp_gpu_step step;
static struct rp_step_view expected; /* the CPU's state */
static unsigned char *expected_state;
static uint32_t slot_order[SLOTS];
static uint64_t random_state;

static uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static int set_up(void **state) {
    (void)state;
    random_state = 11;
    rp_gpu_step_open(&step, &config);
    expected_state = rp_alloc_aligned(step.state_bytes, RP_CACHE_LINE);
    expected = step.host;
    rp_step_state_carve(&config, expected_state, &expected);
    memset(step.host_state, 0xFF, step.state_bytes); /* old contents must not matter */
    *step.host.counts = (struct rp_live_counts){.step = 40};
    for (uint32_t i = 0; i < config.slot_count * step.host.slot_words; i++)
        step.host.slots[i] = random_below(1000);
    for (uint32_t i = 0; i < config.slot_count; i++) {
        step.host.slots[i * step.host.slot_words + RP_SLOT_FINISHED] = random_below(5) == 0;
        slot_order[i] = i;
    }
    for (uint32_t i = 0; i < config.prompt_ring_capacity; i++)
        ((int32_t *)(uintptr_t)step.host.prompt_ring)[i] = (int32_t)random_below(128256);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    rp_gpu_step_close(&step);
    rp_free_aligned(expected_state);
    return 0;
}

static struct rp_packet_header *packet_begin(void) {
    uint64_t number = step.host.counts->step + 1;
    unsigned char *packet = (unsigned char *)(uintptr_t)step.host.packets +
                            number % RP_STEP_RING_ENTRIES * step.host.packet_bytes;
    struct rp_packet_header *header = (struct rp_packet_header *)(void *)packet;
    memset(packet, 0xFF, step.host.packet_bytes);
    *header = (struct rp_packet_header){.step = number};
    return header;
}

static void add_row(struct rp_packet_header *header, uint32_t slot, uint32_t tokens,
                    uint32_t flags) {
    rp_packet_rows(header)[header->row_count++] =
        (struct rp_step_row){.slot = slot,
                             .token_count = tokens,
                             .prompt_offset = random_below(1u << 30),
                             .flags = flags};
    header->token_count += tokens;
    header->logit_row_count += flags & RP_ROW_SCORE ? tokens : flags & RP_ROW_SAMPLE ? 1 : 0;
}

static void add_edit(struct rp_packet_header *header, uint32_t slot, uint32_t field, uint32_t index,
                     uint32_t value) {
    rp_packet_edits(header, &config)[header->edit_count++] =
        (struct rp_slot_edit){slot, field, index, value};
}

static void shuffle_slots(void) {
    for (uint32_t i = config.slot_count - 1; i > 0; i--) {
        uint32_t j = random_below(i + 1), swap = slot_order[i];
        slot_order[i] = slot_order[j];
        slot_order[j] = swap;
    }
}

/* The step on the GPU (result in step.host) and on the CPU (in expected). */
static void run_both(void) {
    struct rp_step_begin_args host = {.step = expected};
    struct rp_step_begin_cuda args = {.step = step.device};
    struct rp_cpu_worker worker = {.index = 0, .count = 1};
    memcpy(expected_state, step.host_state, step.state_bytes);
    rp_gpu_step_upload(&step);
    assert_int_equal(rp_step_begin_cuda_run(&args, NULL), 0);
    rp_gpu_step_download(&step);
    rp_step_begin_cpu(&host, &worker);
}

/* Each side has its own clock. */
static void assert_equal_counts(void) {
    assert_memory_equal(step.host.counts, expected.counts,
                        offsetof(struct rp_live_counts, begin_ns));
}

static void assert_equal_state(void) {
    const struct rp_live_counts *counts = expected.counts;
    const struct rp_step_view *seen = &step.host;
    assert_equal_counts();
    assert_memory_equal(seen->slots, expected.slots,
                        (size_t)config.slot_count * expected.slot_words * 4);
    assert_memory_equal(seen->rows, expected.rows, counts->row_count * sizeof *seen->rows);
    assert_memory_equal(seen->token_ids, expected.token_ids, counts->token_count * 4ull);
    assert_memory_equal(seen->positions, expected.positions, counts->token_count * 4ull);
    assert_memory_equal(seen->token_rows, expected.token_rows, counts->token_count * 4ull);
    assert_memory_equal(seen->logit_tokens, expected.logit_tokens, counts->logit_row_count * 4ull);
    assert_memory_equal(seen->logit_rows, expected.logit_rows, counts->logit_row_count * 4ull);
    assert_memory_equal(seen->logit_targets, expected.logit_targets,
                        counts->logit_row_count * 4ull);
    for (uint32_t i = counts->token_count; i < config.token_capacity; i++)
        assert_true(seen->token_ids[i] == 0 && seen->positions[i] == 0 &&
                    seen->token_rows[i] == RP_ROW_NONE);
    for (uint32_t i = counts->logit_row_count; i < config.logit_row_capacity; i++)
        assert_true(seen->logit_tokens[i] == 0 && seen->logit_rows[i] == RP_ROW_NONE &&
                    seen->logit_targets[i] == RP_NO_TARGET);
}

static void test_decode_steps_of_any_size_expand_as_on_the_cpu(void **state) {
    (void)state;
    static const uint32_t sizes[] = {0, 1, 2, 31, 128, 255, 256, 257, 511, 512, 513, 640};
    for (size_t s = 0; s < RP_ARRAY_COUNT(sizes); s++) {
        struct rp_packet_header *header = packet_begin();
        shuffle_slots();
        for (uint32_t i = 0; i < sizes[s]; i++)
            add_row(header, slot_order[i], 1, RP_ROW_DECODE | RP_ROW_SAMPLE);
        run_both();
        assert_int_equal(step.host.counts->error, 0);
        assert_int_equal(step.host.counts->row_count, sizes[s]);
        assert_equal_state();
        step.host.counts->step++;
    }
}

static void test_mixed_steps_read_prompts_from_the_ring(void **state) {
    (void)state;
    for (uint32_t round = 0; round < 60; round++) {
        struct rp_packet_header *header = packet_begin();
        uint32_t rows = 1 + random_below(round % 3 ? 40 : 600), longest = 1 + random_below(300);
        shuffle_slots();
        for (uint32_t i = 0; i < rows; i++) {
            uint32_t wanted = 1 + random_below(longest);
            bool decode = random_below(2);
            uint32_t left = config.token_capacity - header->token_count - (rows - i - 1);
            uint32_t tokens = decode ? 1 : RP_MIN(left, wanted);
            uint32_t room = config.logit_row_capacity - header->logit_row_count - (rows - i - 1);
            bool score = !decode && random_below(3) == 0 && tokens <= room;
            add_row(header, slot_order[i], tokens,
                    (decode ? RP_ROW_DECODE : 0) | (score ? RP_ROW_SCORE : 0) |
                        (random_below(2) ? RP_ROW_SAMPLE : 0));
        }
        run_both();
        assert_int_equal(step.host.counts->error, 0);
        assert_equal_state();
        step.host.counts->step++;
    }
}

static void test_one_long_prompt_fills_the_step(void **state) {
    (void)state;
    struct rp_packet_header *header = packet_begin();
    add_row(header, 3, config.token_capacity, RP_ROW_SAMPLE);
    run_both();
    assert_int_equal(step.host.counts->token_count, config.token_capacity);
    assert_equal_state();
}

static void test_edits_are_applied_before_the_rows_are_read(void **state) {
    (void)state;
    static const uint32_t counts[] = {1, 255, 256, 257, 767, 768, 769, 1500};
    for (size_t c = 0; c < RP_ARRAY_COUNT(counts); c++) {
        struct rp_packet_header *header = packet_begin();
        uint32_t words = step.host.slot_words;
        /* Distinct words: a walk whose stride is coprime to their number. */
        uint64_t all = (uint64_t)config.slot_count * words, at = random_below((uint32_t)all);
        for (uint32_t i = 0; i < counts[c]; i++, at = (at + 7919) % all) {
            uint32_t word = (uint32_t)(at % words);
            uint32_t field = word < RP_SLOT_PAGES ? word : RP_SLOT_PAGES;
            add_edit(header, (uint32_t)(at / words), field, word - field, random_below(1000));
        }
        /* Rows of edited slots. None has two, which would clear its state at the same time. */
        bool has_row[SLOTS] = {false};
        for (uint32_t i = 0; i < counts[c] && header->row_count < 100; i++) {
            uint32_t slot = rp_packet_edits(header, &config)[i].slot;
            if (!has_row[slot])
                add_row(header, slot, 1, RP_ROW_DECODE | RP_ROW_SAMPLE);
            has_row[slot] = true;
        }
        run_both();
        assert_int_equal(step.host.counts->error, 0);
        assert_equal_state();
        step.host.counts->step++;
    }
}

static void test_rows_begin_with_a_place_and_store_their_state_where_their_slots_say(void **state) {
    (void)state;
    uint32_t zero = 0, restored = 0, stored = 0;
    for (uint32_t round = 0; round < 20; round++) {
        struct rp_packet_header *header = packet_begin();
        shuffle_slots();
        for (uint32_t i = 0; i < 60; i++) {
            uint32_t slot = slot_order[i], begin = random_below(4) * random_below(100);
            uint32_t tokens = 1 + random_below(40);
            add_edit(header, slot, RP_SLOT_LENGTH, 0, begin);
            add_edit(header, slot, RP_SLOT_STATE, 0, random_below(2) * random_below(1001));
            add_edit(header, slot, RP_SLOT_SAVE_AT, 0,
                     random_below(3) ? begin + random_below(tokens + 2) : 0);
            add_edit(header, slot, RP_SLOT_SAVE_TO, 0, random_below(1000));
            add_row(header, slot, tokens, 0);
        }
        run_both();
        assert_int_equal(step.host.counts->error, 0);
        assert_equal_state();
        for (uint32_t i = 0; i < 60; i++) {
            const struct rp_live_row *row = &step.host.rows[i];
            zero += row->state_from == RP_STATE_ZERO;
            restored += row->state_from != RP_STATE_ZERO && row->state_from != row->slot;
            stored += row->save_at != 0;
            assert_true(row->save_at <= row->token_count);
        }
        step.host.counts->step++;
    }
    assert_true(zero > 0 && restored > 0 && stored > 0);
}

static void test_a_place_that_does_not_exist_is_a_sticky_error(void **state) {
    static const struct {
        uint32_t field, value;
    } bad[] = {{RP_SLOT_STATE, 1001}, {RP_SLOT_STATE, 0xFFFFFFFFu}, {RP_SLOT_SAVE_TO, 1000}};
    (void)state;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(bad); i++) {
        *step.host.counts = (struct rp_live_counts){.step = 40 + i};
        struct rp_packet_header *header = packet_begin();
        add_edit(header, 5, bad[i].field, 0, bad[i].value);
        add_row(header, 3, 2, 0);
        add_row(header, 5, 1, RP_ROW_SAMPLE);
        run_both();
        assert_int_equal(step.host.counts->error, 1);
        assert_int_equal(expected.counts->error, 1);
        assert_equal_counts();
        step.host.slots[5 * step.host.slot_words + RP_SLOT_SAVE_TO] = 0;
    }
}

static void good_packet(struct rp_packet_header *header) {
    for (uint32_t i = 0; i < 5; i++)
        add_row(header, i, 1 + i, RP_ROW_SAMPLE);
}

static void lie(struct rp_packet_header *header, uint32_t how) {
    struct rp_step_row *rows = rp_packet_rows(header);
    switch (how) {
    case 0:
        header->step++;
        break;
    case 1:
        header->row_count = config.row_capacity + 1;
        break;
    case 2:
        header->row_count = 0xFFFFFFFFu;
        break;
    case 3:
        header->edit_count = config.edit_capacity + 1;
        break;
    case 4:
        rows[2].slot = config.slot_count;
        break;
    case 5:
        rows[0].slot = 0xFFFFFFFFu;
        break;
    case 6:
        rows[4].token_count = 0;
        break;
    case 7:
        rows[4].token_count = config.token_capacity;
        break;
    case 8:
        rows[1].token_count = 0xFFFFFFFFu;
        break;
    case 9:
        add_edit(header, config.slot_count, 0, 0, 7);
        break;
    case 10:
        add_edit(header, 0, 0, step.host.slot_words, 7);
        break;
    case 11:
        add_edit(header, 1, 0xFFFFFFFFu, 1, 7);
        break;
    case 12:
        add_edit(header, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 7);
        break;
    case 13: /* one logit row too many */
        for (uint32_t i = 0; i < config.logit_row_capacity - 4; i++)
            add_row(header, 10 + i, 1, RP_ROW_SAMPLE);
        break;
    case 14: /* one scored token too many */
        add_row(header, 10, config.logit_row_capacity - 4, RP_ROW_SCORE);
        break;
    case 15:
        add_row(header, 10, 0xFFFFFFFFu, RP_ROW_SCORE | RP_ROW_SAMPLE);
        break;
    default: /* many edits, all beyond the last slot */
        for (uint32_t i = 0; i < 1400; i++)
            add_edit(header, config.slot_count + i, 0, 0, 7);
    }
}

static void test_a_lying_packet_is_a_sticky_error_and_writes_nothing_outside(void **state) {
    (void)state;
    size_t slot_bytes = (size_t)config.slot_count * step.host.slot_words * 4;
    unsigned char *before = rp_alloc_aligned(RP_ALIGN_UP(slot_bytes, RP_CACHE_LINE), RP_CACHE_LINE);
    for (uint32_t i = 0; i < config.slot_count; i++) { /* rows clear these words */
        uint32_t *slot = &step.host.slots[i * step.host.slot_words];
        slot[RP_SLOT_STATE] = slot[RP_SLOT_SAVE_AT] = 0;
    }
    memcpy(before, step.host.slots, slot_bytes);
    for (uint32_t how = 0; how <= 16; how++) {
        *step.host.counts = (struct rp_live_counts){.step = 40 + how};
        struct rp_packet_header *header = packet_begin();
        good_packet(header);
        lie(header, how);
        run_both();
        assert_int_equal(step.host.counts->error, 1);
        assert_int_equal(expected.counts->error, 1);
        assert_equal_counts();
        assert_memory_equal(step.host.slots, before, slot_bytes);
        /* A valid packet after it has no effect either. */
        step.host.counts->step++;
        good_packet(packet_begin());
        run_both();
        assert_int_equal(step.host.counts->error, 1);
        assert_int_equal(step.host.counts->row_count, 0);
        assert_equal_counts();
    }
    rp_free_aligned(before);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

RP_GPU_TEST_MAIN(NULL, NULL, TEST(test_decode_steps_of_any_size_expand_as_on_the_cpu),
                 TEST(test_mixed_steps_read_prompts_from_the_ring),
                 TEST(test_one_long_prompt_fills_the_step),
                 TEST(test_edits_are_applied_before_the_rows_are_read),
                 TEST(test_rows_begin_with_a_place_and_store_their_state_where_their_slots_say),
                 TEST(test_a_place_that_does_not_exist_is_a_sticky_error),
                 TEST(test_a_lying_packet_is_a_sticky_error_and_writes_nothing_outside))
