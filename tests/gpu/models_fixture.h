/* models_fixture.h - small random models of every family on a GPU, and the expected result of
 * each row.
 *
 * SEQUENCES sequences with prompts of many lengths and a few tokens after each, all teacher
 * forced. A step reads any piece of any of them: its slot's length is set to the beginning of the
 * piece, and earlier steps have written the pages before it. The reference is the simplest way to
 * run them: one at a time, the prompt in one piece, lowered operator by operator, no graph.
 * Included once per test program. */
#ifndef RP_TESTS_GPU_MODELS_FIXTURE_H
#define RP_TESTS_GPU_MODELS_FIXTURE_H

#include "base/memory.h"
#include "engine/buckets.h"
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

struct model_case {
    const char *name;
    enum rp_family family;
    enum rp_dtype dtype;
    uint32_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, window;
    bool tied;
    enum rp_quant_scheme scheme; /* of the projections, or none */
    bool head, blocks;   /* also the output layer; FP8 with a scale per block of 128 x 128 */
    enum rp_dtype pages; /* of 8 bits; 0: the model's own type */
};

static const struct model_case model_cases[] = {
    {"llama bf16 64", RP_FAMILY_LLAMA, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0, .tied = true},
    {"llama f32 8", RP_FAMILY_LLAMA, RP_DTYPE_F32, 40, 88, 2, 5, 1, 8, 97, 0, .tied = false},
    {"llama bf16 128", RP_FAMILY_LLAMA, RP_DTYPE_BF16, 1024, 1408, 2, 8, 2, 128, 512, 0,
     .tied = false},
    {"llama f32 64", RP_FAMILY_LLAMA, RP_DTYPE_F32, 192, 320, 2, 3, 3, 64, 256, 0, .tied = true},
    {"mistral bf16 128", RP_FAMILY_MISTRAL, RP_DTYPE_BF16, 328, 456, 2, 4, 1, 128, 331, 40,
     .tied = false},
    {"mistral f32 40", RP_FAMILY_MISTRAL, RP_DTYPE_F32, 120, 200, 2, 3, 1, 40, 131, 7,
     .tied = true},
    {"qwen2 bf16 64", RP_FAMILY_QWEN2, RP_DTYPE_BF16, 896, 1216, 1, 14, 2, 64, 384, 0,
     .tied = true},
    {"qwen2 bf16 40", RP_FAMILY_QWEN2, RP_DTYPE_BF16, 200, 264, 2, 5, 5, 40, 209, 0, .tied = false},
    {"qwen3 bf16 128", RP_FAMILY_QWEN3, RP_DTYPE_BF16, 256, 768, 2, 8, 2, 128, 320, 0,
     .tied = true},
    {"qwen3 bf16 8", RP_FAMILY_QWEN3, RP_DTYPE_BF16, 72, 104, 2, 6, 2, 8, 97, 33, .tied = false},
    {"qwen3 f32 128", RP_FAMILY_QWEN3, RP_DTYPE_F32, 200, 264, 2, 2, 1, 128, 200, 0, .tied = false},
    {"gemma2 bf16 256", RP_FAMILY_GEMMA2, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 256, 320, 40,
     .tied = true},
    {"gemma2 f32 24", RP_FAMILY_GEMMA2, RP_DTYPE_F32, 120, 200, 3, 3, 1, 24, 131, 7, .tied = true},
    {"granite bf16 64", RP_FAMILY_GRANITE, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0,
     .tied = true},
    {"olmo3 bf16 128", RP_FAMILY_OLMO3, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 128, 320, 40,
     .tied = false},
    {"smollm3 f32 40", RP_FAMILY_SMOLLM3, RP_DTYPE_F32, 120, 200, 2, 3, 1, 40, 131, 0,
     .tied = true},
    {"ministral3 bf16 128", RP_FAMILY_MINISTRAL3, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 128, 320, 0,
     .tied = false},
    {"stablelm bf16 64", RP_FAMILY_STABLELM, RP_DTYPE_BF16, 256, 512, 2, 4, 4, 64, 320, 0,
     .tied = false},
    {"cohere int8 64", RP_FAMILY_COHERE, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0, .tied = true,
     .scheme = RP_QUANT_INT8},
    {"llama int8 64", RP_FAMILY_LLAMA, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0, .tied = true,
     .scheme = RP_QUANT_INT8, .head = true},
    {"llama fp8 128", RP_FAMILY_LLAMA, RP_DTYPE_BF16, 1024, 1408, 2, 8, 2, 128, 512, 0,
     .tied = false, .scheme = RP_QUANT_FP8, .head = true},
    {"mistral fp8 blocks 128", RP_FAMILY_MISTRAL, RP_DTYPE_BF16, 384, 640, 2, 4, 1, 128, 331, 40,
     .tied = false, .scheme = RP_QUANT_FP8, .blocks = true},
    {"qwen2 int8-w8a16 64", RP_FAMILY_QWEN2, RP_DTYPE_BF16, 896, 1216, 1, 14, 2, 64, 384, 0,
     .tied = true, .scheme = RP_QUANT_INT8_W8A16},
    {"qwen3 int8 8", RP_FAMILY_QWEN3, RP_DTYPE_BF16, 72, 104, 2, 6, 2, 8, 97, 33, .tied = false,
     .scheme = RP_QUANT_INT8},
    {"gemma2 fp8-w8a16 64", RP_FAMILY_GEMMA2, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 40,
     .tied = true, .scheme = RP_QUANT_FP8_W8A16, .head = true},
    {"gemma2 int8 256", RP_FAMILY_GEMMA2, RP_DTYPE_BF16, 256, 768, 2, 4, 2, 256, 320, 40,
     .tied = true, .scheme = RP_QUANT_INT8},
    {"llama bf16 128, pages int8", RP_FAMILY_LLAMA, RP_DTYPE_BF16, 512, 704, 2, 4, 2, 128, 320, 0,
     .tied = false, .pages = RP_DTYPE_INT8},
    {"qwen3 bf16 64, pages fp8", RP_FAMILY_QWEN3, RP_DTYPE_BF16, 256, 768, 2, 4, 1, 64, 320, 0,
     .tied = true, .pages = RP_DTYPE_FP8_E4M3},
    {"mistral f32 40, pages fp8", RP_FAMILY_MISTRAL, RP_DTYPE_F32, 120, 200, 2, 3, 1, 40, 131, 7,
     .tied = true, .pages = RP_DTYPE_FP8_E4M3},
    {"llama fp8 128, pages fp8", RP_FAMILY_LLAMA, RP_DTYPE_BF16, 1024, 1408, 2, 8, 2, 128, 512, 0,
     .tied = false, .scheme = RP_QUANT_FP8, .head = true, .pages = RP_DTYPE_FP8_E4M3},
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
/* The current model's rows are not quantized, and its pages have its own type. */
static bool plain_rows;
static uint32_t slots[SEQUENCES]; /* of each sequence */
static uint64_t random_state;

static uint32_t draw(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

/* Only a few models and buckets, for tools that make a program a hundred times slower. */
static bool is_tiny(void) { return getenv("REPRISE_TEST_TINY") != NULL; }

static bool is_left_out(const struct model_case *wanted) {
    return is_tiny() && wanted > &model_cases[1] && wanted->scheme != RP_QUANT_FP8;
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
                                     .quantization = wanted->scheme,
                                     .quantize_head = wanted->head};
    rp_test_set_family(&config);
    current = wanted;
    assert_int_equal(rp_model_random(&config, wanted->dtype, 5, POSITIONS, &model, NULL), RP_OK);
    if (wanted->blocks)
        make_layer_blocks();
    if (plain_rows)
        take_plain_rows();
}

static struct rp_driver_config way_default(void) {
    return (struct rp_driver_config){.backend = rp_backend_cuda_table(),
                                     .slots = sequence_count(),
                                     .pages_per_slot = POSITIONS / PAGE_TOKENS,
                                     .page_tokens = PAGE_TOKENS,
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

static void put(const struct piece *piece) {
    uint32_t slot = slots[piece->sequence];
    int32_t tokens[POSITIONS];
    for (uint32_t i = 0; i < piece->count; i++)
        tokens[i] = token_of(piece->sequence, piece->begin + i);
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
                assert_false(isnan(out[s][index][v]));
            assert_int_equal(rp_driver_result(&driver, 0)->token, argmax(out[s][index]));
        }
}

static void make_truth(const struct model_case *wanted) {
    current = wanted;
    struct rp_driver_config way = way_default();
    way.no_fusion = way.eager = way.no_dependent_launch = true;
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
