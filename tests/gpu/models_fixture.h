/* models_fixture.h - small random models of every family on a GPU, and the expected result of
 * each row.
 *
 * SEQUENCES sequences with prompts of many lengths and a few tokens after each, all teacher
 * forced. A step reads any piece of any of them: its slot's length is set to the beginning of the
 * piece, and earlier steps have written the pages before it. Recurrent state is that of the tokens
 * that a slot ran last, or is restored: each prompt stores it at its end. The reference is the
 * simplest way to run them: one at a time, the prompt in one piece, lowered operator by operator,
 * no graph.
 * Included once per test program, which has defined model_cases. */
#ifndef RP_TESTS_GPU_MODELS_FIXTURE_H
#define RP_TESTS_GPU_MODELS_FIXTURE_H

#include "base/memory.h"
#include "engine/buckets.h"
#include "model/quant_config.h"
#include "tests/gpu/model_case.h"
#include "tests/support/driver.h"
#include "tests/support/family_configs.h"
#include "tests/support/gpu_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEQUENCES = 64,
    FORCED = 3, /* decode steps after each prompt */
    LENGTH_MAX = 300,
    VOCAB_MAX = 512,
    PAGE_TOKENS = 64,
    POSITIONS = 320,
    STEP_TOKENS = 512
};

/* A piece of a sequence as one row of a step. */
struct piece {
    uint32_t sequence, begin, count;
    bool decode, sample;
};

static struct rp_model model; /* these are freed in teardown */
static struct rp_driver driver;
static struct rp_bucket_list *bucket_list;
static float (*truth)[1 + FORCED][VOCAB_MAX]; /* (SEQUENCES): after the prompt, then each decode */
static const struct model_case *current;
static void (*program_edit)(struct rp_program *program); /* every way's: rp_driver_config */
/* The current model's rows are not quantized, and its pages have its own type. */
static bool plain_rows;
static uint32_t slots[SEQUENCES]; /* of each sequence */
/* Tokens that the state in a sequence's slot is of; NOWHERE: it has none yet. */
static uint32_t state_at[SEQUENCES];
#define NOWHERE 0xFFFFFFFFu
static uint64_t random_state;

static uint32_t draw(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

/* Only a few models and buckets, for tools that make a program a hundred times slower. */
static bool is_tiny(void) { return getenv("REPRISE_TEST_TINY") != NULL; }

/* REPRISE_TEST_MODELS: only those whose names contain it. */
static bool is_left_out(const struct model_case *wanted) {
    const char *only = getenv("REPRISE_TEST_MODELS");
    if (only && !strstr(wanted->name, only))
        return true;
    return !only && is_tiny() && wanted > &model_cases[1] && wanted->scheme != RP_QUANT_FP8;
}
static uint32_t sequence_count(void) { return is_tiny() ? 8 : SEQUENCES; }

static uint32_t prompt_length(uint32_t sequence) {
    static const uint32_t first[] = {LENGTH_MAX, 1, 17, 64, 131};
    uint32_t length =
        sequence < RP_ARRAY_COUNT(first) ? first[sequence] : 2 + sequence * 2654435761u % 199;
    return is_tiny() ? RP_MIN(length, 24u) : length;
}

static int32_t token_of(uint32_t sequence, uint32_t position) {
    uint64_t mixed = (sequence * 1009ull + position + 1) * 0x9E3779B97F4A7C15ull;
    return (int32_t)((mixed >> 40) % current->vocab);
}

static int setup(void **state) {
    (void)state;
    bucket_list = rp_calloc(1, sizeof *bucket_list);
    truth = rp_calloc(SEQUENCES, sizeof *truth);
    random_state = 12345;
    if (!bucket_list || !truth)
        return -1;
    uint32_t rows = sequence_count();
    return rp_buckets_plan(rows, is_tiny() ? 32 : STEP_TOKENS, bucket_list, NULL);
}

static int teardown(void **state) {
    (void)state;
    program_edit = NULL;
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    rp_free(bucket_list);
    rp_free(truth);
    return 0;
}

/* Keeps the quantized values and replaces their scales by one per block; any scales will do,
 * because all kernels use the same. */
static void make_blocks(struct rp_matrix *matrix) {
    matrix->scale_kind = RP_SCALE_BLOCK_128;
    size_t count = rp_matrix_scale_count(matrix);
    float first = matrix->scales[0];
    float *scales = rp_alloc_aligned(count * sizeof *scales, RP_CACHE_LINE);
    assert_non_null(scales);
    for (size_t i = 0; i < count; i++)
        scales[i] = first * (0.5f + (float)(i * 37 % 64) / 64);
    rp_free_aligned((void *)(uintptr_t)matrix->scales);
    matrix->scales = scales;
}

static void take_plain_rows(void) {
    for (uint32_t i = 0; i < model.weights.count; i++)
        model.weights.entries[i].matrix.input = RP_INPUT_PLAIN;
}

/* FP8 blocks in every matrix of the layers. */
static void make_layer_blocks(void) {
    for (uint32_t i = 0; i < model.weights.count; i++) {
        struct rp_weight *weight = &model.weights.entries[i];
        if (rp_weight_is_matrix(weight) && weight->layer != RP_LAYER_NONE)
            make_blocks(&weight->matrix);
    }
}

/* Another order of columns for every matrix of 4 bits; q, k and v share one. */
static void make_orders(void) {
    for (uint32_t i = 0; i < model.weights.count; i++) {
        struct rp_matrix *matrix = &model.weights.entries[i].matrix;
        if (!rp_weight_is_matrix(&model.weights.entries[i]) || matrix->dtype != RP_DTYPE_BLOCKS)
            continue;
        uint32_t *order = rp_calloc(matrix->cols, sizeof *order);
        assert_non_null(order);
        for (uint32_t k = 0; k < matrix->cols; k++)
            order[k] = (k * 5 + 7 + i) % matrix->cols; /* no size here is a multiple of 5 */
        for (uint32_t part = 0; part < matrix->part_count; part++)
            matrix->parts[part].columns = order;
    }
}

static void make_model(const struct model_case *wanted) {
    struct rp_model_config config = {.family = wanted->family,
                                     .hidden = wanted->hidden,
                                     .intermediate = wanted->intermediate,
                                     .layers = wanted->layers,
                                     .heads = wanted->heads,
                                     .kv_heads = wanted->kv_heads,
                                     .head_dim = wanted->head_dim,
                                     .vocab = wanted->vocab,
                                     .window = wanted->window,
                                     .tied = wanted->tied,
                                     .max_position = POSITIONS,
                                     .norm_eps = 1e-5f,
                                     .rope = {.theta = 10000.0},
                                     .bos_id = RP_ID_NONE,
                                     .attention_sinks = wanted->sinks,
                                     .quantization = wanted->scheme,
                                     .quantize_head = wanted->head};
    rp_test_set_family(&config);
    if (wanted->wide) {
        config.latent.rank = 512;
        config.latent.rope_dim = config.rope.rotary_dim = 64;
        config.latent.nope_dim = config.head_dim - 64;
        config.latent.q_rank = config.latent.q_rank ? 64 : 0;
    }
    if (wanted->mxfp4) {
        rp_quant_set_mxfp4_experts(&config);
        for (uint32_t layer = 0; layer < config.layers; layer++)
            config.quant.modules[layer] = RP_MXFP4_MODULES;
    }
    if (wanted->family == RP_FAMILY_GEMMA4) {
        if (!wanted->parallel)
            config.experts = (struct rp_model_experts){0};
        config.full_head_dim = 2 * config.head_dim;
        config.attention_scale = 0.0625; /* random q and k are large after their norms */
    }
    current = wanted;
    assert_int_equal(rp_model_random(&config, wanted->dtype, 5, POSITIONS, &model, NULL), RP_OK);
    if (wanted->blocks)
        make_layer_blocks();
    rp_test_set_vectors(&model);
    if (wanted->order)
        make_orders();
    if (plain_rows)
        take_plain_rows();
}

static struct rp_driver_config way_default(void) {
    return (struct rp_driver_config){.backend = rp_backend_cuda_table(),
                                     .slots = sequence_count(),
                                     .pages_per_slot = POSITIONS / PAGE_TOKENS,
                                     .page_tokens = PAGE_TOKENS,
                                     .groups = true,
                                     .edit = program_edit,
                                     .buckets = bucket_list->buckets,
                                     .bucket_count = bucket_list->count,
                                     .kv_dtype = current->pages && !plain_rows ? current->pages
                                                                               : current->dtype};
}

/* Opens the current model again (prepared weights are not copied back from a GPU), with sequences
 * in random slots. */
static void open_way(const struct rp_driver_config *way) {
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    make_model(current);
    rp_driver_open(&driver, &model, way);
    assert_int_equal(rp_graph_set_failed(driver.graphs), 0);
    memset(state_at, 0xFF, sizeof state_at);
    for (uint32_t i = 0; i < way->slots; i++)
        slots[i] = i;
    for (uint32_t i = way->slots; i-- > 1;) {
        uint32_t other = draw(i + 1), slot = slots[i];
        slots[i] = slots[other];
        slots[other] = slot;
    }
}

static void close_way(void) {
    rp_driver_close(&driver);
    rp_model_deinit(&model);
}

static bool has_state(void) { return model.config.state.conv_width != 0; }

/* Restores the state after a prompt, unless the slot's is of the tokens before the piece; stores it
 * where the prompt ends. */
static void put_state(const struct piece *piece) {
    uint32_t s = piece->sequence, length = prompt_length(s), end = piece->begin + piece->count;
    uint32_t place = driver.config.slots + slots[s];
    if (piece->begin && state_at[s] != piece->begin) {
        assert_int_equal(piece->begin, length);
        rp_driver_edit(&driver, slots[s], RP_SLOT_STATE, 0, 1 + place);
    }
    if (piece->begin < length && end >= length) {
        rp_driver_edit(&driver, slots[s], RP_SLOT_SAVE_AT, 0, length);
        rp_driver_edit(&driver, slots[s], RP_SLOT_SAVE_TO, 0, place);
    }
    state_at[s] = end;
}

/* Where the sequence may go on, near `wanted`: where its state is, or can be restored. */
static uint32_t begin_with_state(uint32_t sequence, uint32_t wanted) {
    uint32_t length = prompt_length(sequence), at = state_at[sequence];
    if (wanted < length)
        return at < length && draw(2) ? at : 0;
    return at > length && at < length + FORCED && draw(2) ? at : length;
}

static void put(const struct piece *piece) {
    uint32_t slot = slots[piece->sequence];
    int32_t tokens[POSITIONS];
    for (uint32_t i = 0; i < piece->count; i++)
        tokens[i] = token_of(piece->sequence, piece->begin + i);
    if (has_state())
        put_state(piece);
    rp_driver_edit(&driver, slot, RP_SLOT_LENGTH, 0, piece->begin);
    if (piece->decode)
        rp_driver_edit(&driver, slot, RP_SLOT_LAST_TOKEN, 0, (uint32_t)tokens[0]);
    rp_driver_row(&driver, slot, piece->decode ? NULL : tokens, piece->count, piece->sample);
}

/* The piece with the logits truth[sequence][index]. */
static struct piece whole_piece(uint32_t sequence, uint32_t index) {
    uint32_t length = prompt_length(sequence);
    return index == 0 ? (struct piece){sequence, 0, length, false, true}
                      : (struct piece){sequence, length + index - 1, 1, true, true};
}

static uint32_t argmax(const float *logits) {
    uint32_t best = 0;
    for (uint32_t v = 1; v < current->vocab; v++)
        if (logits[v] > logits[best])
            best = v;
    return best;
}

/* Runs the first `count` sequences in the simplest way into `out`. */
static void run_one_at_a_time(uint32_t count, float (*out)[1 + FORCED][VOCAB_MAX]) {
    for (uint32_t s = 0; s < count; s++)
        for (uint32_t index = 0; index <= FORCED; index++) {
            struct piece piece = whole_piece(s, index);
            put(&piece);
            rp_driver_run(&driver, NULL);
            memcpy(out[s][index], rp_driver_logits(&driver, 0), current->vocab * sizeof(float));
            for (uint32_t v = 0; v < current->vocab; v++)
                if (isnan(out[s][index][v]))
                    fail_msg("%s: sequence %u, %u tokens, logits %u: number %u is NaN",
                             current->name, s, prompt_length(s), index, v);
            assert_int_equal(rp_driver_result(&driver, 0)->token, argmax(out[s][index]));
        }
}

static void make_truth(const struct model_case *wanted) {
    current = wanted;
    struct rp_driver_config way = way_default();
    way.no_fusion = way.eager = way.no_dependent_launch = true;
    way.groups = false;
    open_way(&way);
    run_one_at_a_time(sequence_count(), truth);
}

/* Compares the step's results for its pieces, bit for bit. */
static void check_step(const struct piece *pieces, uint32_t count) {
    uint32_t logit_row = 0;
    for (uint32_t row = 0; row < count; row++) {
        const struct piece *piece = &pieces[row];
        const struct rp_row_result *result = rp_driver_result(&driver, row);
        assert_int_equal(result->length, piece->begin + piece->count);
        assert_int_equal(result->flags, 0);
        if (!piece->sample)
            continue;
        uint32_t index = piece->begin + piece->count - prompt_length(piece->sequence);
        const float *want = truth[piece->sequence][index];
        const float *got = rp_driver_logits(&driver, logit_row++);
        if (memcmp(got, want, current->vocab * sizeof *want) != 0) {
            uint32_t v = 0;
            while (memcmp(&got[v], &want[v], sizeof *got) == 0)
                v++;
            const struct rp_bucket *bucket = &driver.entry->bucket;
            fail_msg(
                "%s: sequence %u, %s [%u, %u), row %u of %u, bucket %u tokens, %u logit rows%s: "
                "logit %u is %.9g, alone %.9g",
                current->name, piece->sequence, piece->decode ? "decode" : "prompt", piece->begin,
                piece->begin + piece->count, row, count, bucket->tokens, bucket->logit_rows,
                bucket->decode ? ", decode" : "", v, got[v], want[v]);
        }
        assert_int_equal(result->token, argmax(want));
    }
}

/* The remaining room of a step. */
struct room {
    uint32_t tokens, rows, logit_rows;
    bool decode_only;
};

static struct room room_of(const struct rp_bucket *bucket) {
    return (struct room){bucket->tokens, RP_MIN(bucket->rows, sequence_count()), bucket->logit_rows,
                         bucket->decode};
}

/* A piece that begins at `begin` and fits; count 0: none does. */
static struct piece fit_piece(const struct room *room, uint32_t sequence, uint32_t begin) {
    uint32_t length = prompt_length(sequence), left = begin < length ? length - begin : 1;
    struct piece piece = {sequence, begin, 0, begin >= length, true};
    if (room->rows == 0 || room->tokens == 0 || (room->decode_only && !piece.decode))
        return piece;
    uint32_t most = RP_MIN(left, room->tokens);
    uint32_t count = draw(3) == 0 ? most : 1 + draw(most);
    piece.sample = begin + count >= length;
    if (piece.sample && room->logit_rows == 0) {
        piece.sample = false;
        count = piece.decode || count == 1 ? 0 : count - 1;
    }
    piece.count = count;
    return piece;
}

/* Runs one step of random pieces that fits the room; progress: where each sequence continues
 * (updated), or NULL: anywhere. Returns the number of rows. */
static uint32_t run_random_step(struct room room, uint32_t *progress,
                                struct rp_graph_entry *entry) {
    struct piece pieces[SEQUENCES];
    uint32_t count = 0, total = sequence_count(), first = draw(total), stride = 1 + 2 * draw(4);
    for (uint32_t i = 0; i < total; i++) {
        uint32_t s = (first + i * stride) % total, length = prompt_length(s);
        uint32_t begin = room.decode_only || draw(2) ? length + draw(FORCED) : draw(length);
        if (progress)
            begin = progress[s];
        else if (has_state())
            begin = begin_with_state(s, begin);
        struct piece piece = {0};
        if (begin < length + FORCED)
            piece = fit_piece(&room, s, begin);
        if (piece.count == 0)
            continue;
        put(&piece);
        pieces[count++] = piece;
        room.tokens -= piece.count;
        room.rows--;
        room.logit_rows -= piece.sample;
        if (progress)
            progress[s] += piece.count;
    }
    if (count == 0)
        return 0;
    rp_driver_run(&driver, entry);
    check_step(pieces, count);
    return count;
}

/* All prompts and their tokens in random batches and the buckets that fit; afterwards every piece
 * of every sequence may be run again. */
static void run_everything(void) {
    uint32_t progress[SEQUENCES] = {0};
    const struct rp_bucket *largest = &bucket_list->buckets[bucket_list->count - 1];
    for (;;) {
        struct room room = room_of(largest);
        room.tokens = 1 + draw(room.tokens);
        room.rows = 1 + draw(room.rows);
        bool done = true;
        for (uint32_t s = 0; s < sequence_count(); s++)
            done = done && progress[s] == prompt_length(s) + FORCED;
        if (done)
            return;
        run_random_step(room, progress, NULL);
    }
}

/* Every bucket: full, and with fewer rows and tokens than it has. */
static void run_every_bucket(void) {
    for (uint32_t i = 0; i < rp_graph_set_count(driver.graphs); i++) {
        struct rp_graph_entry *entry = rp_graph_set_entry(driver.graphs, i);
        for (uint32_t round = 0; round < (is_tiny() ? 1u : 3u); round++) {
            struct room room = room_of(&entry->bucket);
            if (round > 0) {
                room.tokens = 1 + draw(room.tokens);
                room.rows = 1 + draw(room.rows);
            }
            assert_true(run_random_step(room, NULL, entry) > 0);
        }
    }
}

#endif
