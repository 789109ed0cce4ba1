/* Goal: every nanosecond of a step is charged to a request, to padding or to a wasted row, by cost,
 * and the parts add up; between two tokens of a request every nanosecond has a cause. */
#include "engine/engine_internal.h"
#include "quant/matrix.h"
#include "tests/engine/engine_fixture.h"

#include <math.h>
#include <stdlib.h>

static struct rp_program program;
static struct rp_account account;
static struct rp_request requests[8];
static uint32_t power_mw;
static bool keep_streaks; /* else stats are complete after each step */

/* One GEMM over tokens of 1,000 x 100 f32 (400,000 bytes), attention with 2 heads of 64, a head
 * of 500 x 100. */
static const struct rp_matrix layer_matrix = {.rows = 1000, .cols = 100, .dtype = RP_DTYPE_F32};
static const struct rp_matrix head_matrix = {.rows = 500, .cols = 100, .dtype = RP_DTYPE_F32};

static void add(enum rp_op_kind kind, enum rp_rows rows, const struct rp_matrix *weight,
                uint32_t window) {
    struct rp_op op = {.kind = kind, .rows = rows, .weight = weight, .out = {RP_NO_TENSOR, 0, 0}};
    if (kind == RP_OP_ATTENTION) {
        op.u.attention.heads = 2;
        op.u.attention.kv_heads = 2;
        op.u.attention.head_dim = 64;
        op.u.attention.window = window;
    }
    assert_true(rp_program_add_op(&program, &op) >= 0);
}

static void open_account(bool padding_costs, uint32_t window, double balance) {
    rp_program_init(&program);
    add(RP_OP_LINEAR, RP_ROWS_TOKEN, &layer_matrix, 0);
    add(RP_OP_ATTENTION, RP_ROWS_TOKEN, NULL, window);
    add(RP_OP_LINEAR, RP_ROWS_LOGIT, &head_matrix, 0);
    program.sample_begin = program.op_count;
    const struct rp_account_config config = {.program = &program,
                                             .kv_dtype = RP_DTYPE_F32,
                                             .graph_count = 20,
                                             .slot_count = 8,
                                             .row_capacity = 8,
                                             .padding_costs = padding_costs,
                                             .balance = balance};
    assert_true(rp_account_init(&account, &config));
    rp_program_deinit(&program); /* read at init only */
    memset(requests, 0, sizeof requests);
    keep_streaks = false;
}

static int close_account(void **state) {
    (void)state;
    rp_account_deinit(&account);
    return 0;
}

static struct rp_account_row decode_row(struct rp_request *request, uint32_t start) {
    return (struct rp_account_row){.request = request,
                                   .slot = request ? (uint32_t)(request - requests) : 7,
                                   .start = start,
                                   .count = 1,
                                   .pages = 1 + start / 16,
                                   .decode = true,
                                   .samples = true,
                                   .sampled = true};
}

/* A step of 100,000 ns that was read at read_ns. */
static struct rp_account_totals step_at(uint64_t read_ns, uint64_t device_ns, uint32_t graph,
                                        const struct rp_account_row *rows, uint32_t count,
                                        uint32_t bucket) {
    struct rp_account_totals totals;
    struct rp_account_step step = {
        .step = account.steps + 1,
        .swaps = true,
        .graph = graph,
        .bucket = {.tokens = bucket, .rows = bucket, .logit_rows = bucket},
        .device_ns = device_ns,
        .power_mw = power_mw,
        .begin_ns = read_ns - device_ns,
        .end_ns = read_ns,
        .read_ns = read_ns};
    for (uint32_t i = 0; i < count; i++) {
        step.token_count += rows[i].count;
        step.sample_count += rows[i].samples;
    }
    rp_account_step(&account, &step, rows, count, &totals);
    assert_true(totals.device_ns == device_ns);
    assert_true(totals.attributed_ns + totals.padding_ns + totals.unused_ns == device_ns);
    for (size_t i = 0; i < RP_ARRAY_COUNT(requests) && !keep_streaks; i++)
        rp_account_close(&account, &requests[i]);
    return totals;
}

static void test_the_fixed_part_is_split_by_tokens_and_padding_pays_its_own(void **state) {
    (void)state;
    open_account(true, 0, 1e9); /* only bytes count */
    struct rp_account_row rows[] = {decode_row(&requests[0], 0), decode_row(&requests[1], 0),
                                    decode_row(NULL, 0)};
    struct rp_account_totals totals = step_at(1000000, 800000, 0, rows, 3, 8);
    /* Eight rows, three of them used; attention over one key each is negligible. */
    assert_true(requests[0].stats.device_ns > 99000 && requests[0].stats.device_ns < 101000);
    assert_true(requests[0].stats.device_ns >= requests[1].stats.device_ns - 1 &&
                requests[0].stats.device_ns <= requests[1].stats.device_ns + 1);
    assert_true(totals.unused_ns > 99000 && totals.unused_ns < 101000);
    assert_true(totals.padding_ns > 495000 && totals.padding_ns < 500001);
    assert_int_equal(requests[0].stats.padded_tokens, 5);
    assert_int_equal(requests[0].stats.bucket_tokens, 8);
}

static void test_padding_is_free_where_it_is_not_computed(void **state) {
    (void)state;
    open_account(false, 0, 1e9);
    struct rp_account_row rows[] = {decode_row(&requests[0], 0)};
    struct rp_account_totals totals = step_at(1000000, 800000, 0, rows, 1, 8);
    assert_int_equal(totals.padding_ns, 0);
    assert_int_equal(requests[0].stats.device_ns, 800000);
}

static void test_attention_is_split_by_the_keys_that_were_read(void **state) {
    (void)state;
    open_account(false, 0, 1e9);
    /* 1,024 bytes per key: 4 MB and 1 MB against 300 KB of weights each. */
    struct rp_account_row rows[] = {decode_row(&requests[0], 4095), decode_row(&requests[1], 1023)};
    step_at(1000000, 1000000, 0, rows, 2, 2);
    double long_one = 4096 * 1024.0 + 300000, short_one = 1024 * 1024.0 + 300000;
    double expected = 1e6 * long_one / (long_one + short_one);
    assert_true(fabs((double)requests[0].stats.device_ns - expected) < 100);
    /* Bytes are exact: half of both matrices, and its keys. */
    assert_int_equal(requests[0].stats.bytes, 4096 * 1024 + 300000);
    assert_int_equal(requests[1].stats.bytes, 1024 * 1024 + 300000);
    assert_int_equal(requests[0].stats.flops, 2 * 100000 + 2 * 50000 + 4 * 4096 * 2 * 64);
    assert_true(account.totals.bytes == requests[0].stats.bytes + requests[1].stats.bytes);
    assert_true(account.totals.flops == requests[0].stats.flops + requests[1].stats.flops);
}

/* Keys by counting them one by one. */
static uint64_t slow_keys(uint32_t start, uint32_t count, uint32_t window) {
    uint64_t keys = 0;
    for (uint32_t i = 0; i < count; i++)
        keys += window && start + i + 1 > window ? window : start + i + 1;
    return keys;
}

static void test_windows_bound_what_is_read(void **state) {
    static const struct {
        uint32_t start, count, window;
    } cases[] = {{0, 1, 4}, {0, 4, 4}, {0, 9, 4}, {3, 1, 4}, {4, 1, 4},   {2, 5, 4},
                 {9, 7, 4}, {5, 3, 0}, {0, 8, 0}, {7, 1, 8}, {0, 100, 1}, {99, 1, 200}};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        uint32_t start = cases[i].start, count = cases[i].count, window = cases[i].window;
        open_account(false, window, 1e9);
        struct rp_account_row row = decode_row(&requests[0], start);
        row.count = count;
        row.decode = row.samples = row.sampled = false;
        step_at(1000000, 1000, 0, &row, 1, count);
        uint64_t flops =
            (uint64_t)count * 2 * 100000 + slow_keys(start, count, window) * 4 * 2 * 64;
        uint64_t reach = start + count;
        reach = window ? RP_MIN(reach, (uint64_t)window + count - 1) : reach;
        assert_int_equal(requests[0].stats.flops, flops);
        assert_int_equal(requests[0].stats.bytes, 400000 + reach * 1024);
        rp_account_deinit(&account);
    }
}

static void measure(uint32_t graph, const struct rp_account_row *rows, uint32_t count,
                    uint64_t tokens, uint64_t samples, uint64_t attention) {
    const uint64_t parts_ns[RP_PART_COUNT] = {tokens, samples, attention};
    const struct rp_account_step step = {
        .graph = graph, .bucket = {.tokens = count}, .token_count = count, .sample_count = count};
    rp_account_measure(&account, &step, rows, count, parts_ns);
}

static void test_measured_parts_correct_the_model(void **state) {
    (void)state;
    open_account(false, 0, 1e9);
    struct rp_account_row rows[] = {decode_row(&requests[0], 29), decode_row(&requests[1], 9)};
    measure(1, rows, 2, 500, 100, 400);
    step_at(1000000, 1000000, 1, rows, 2, 2);
    /* 0.6 in halves, and 0.4 in proportion to 30 and 10 keys. */
    assert_in_range(requests[0].stats.device_ns, 599990, 600010);
    assert_in_range(requests[1].stats.device_ns, 399990, 400010);
    /* Ten times the keys take ten times as long: 4.0 in proportion to 300 and 100. */
    rows[0].start = 299, rows[1].start = 99;
    uint64_t before = requests[0].stats.device_ns;
    step_at(2000000, 4600000, 1, rows, 2, 2);
    assert_in_range(requests[0].stats.device_ns - before, 3299900, 3300100);
    before = requests[0].stats.device_ns; /* another bucket has not been measured */
    step_at(3000000, 1000000, 2, rows, 2, 2);
    assert_in_range(requests[0].stats.device_ns - before, 500000, 640000);
    /* The estimate follows changing measurements; a part without measurements keeps its value. */
    rows[0].start = 29, rows[1].start = 9;
    for (int i = 0; i < 100; i++)
        measure(1, rows, 2, 900, 0, 0);
    before = requests[0].stats.device_ns;
    step_at(4000000, 1400000, 1, rows, 2, 2); /* 900 + 100 + 400 */
    assert_in_range(requests[0].stats.device_ns - before, 799990, 800010);
}

static void test_any_step_adds_up(void **state) {
    uint64_t seed = 12345, sum = 0, unused = 0, padding = 0, device = 0, given_pj, energy_pj;
    (void)state;
    for (int costs = 0; costs < 2; costs++) {
        sum = unused = padding = device = given_pj = energy_pj = 0;
        open_account(costs, 3, 0.5);
        keep_streaks = true;
        for (int round = 0; round < 20000; round++) {
            struct rp_account_row rows[8];
            uint32_t count = 1 + (uint32_t)(seed >> 33) % 8, tokens = 0;
            for (uint32_t i = 0; i < count; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                uint32_t pick = (uint32_t)(seed >> 40);
                rows[i] = decode_row(pick % 5 ? &requests[i] : NULL, pick % 3000);
                rows[i].slot = i;
                if (pick % 3 == 0) {
                    rows[i].decode = rows[i].samples = rows[i].sampled = false;
                    rows[i].count = 1 + pick % 90;
                }
                tokens += rows[i].count;
            }
            uint64_t ns = (seed >> 20) % (round % 7 ? 5000000 : 3);
            power_mw = round < 90 ? 0 : 50000 + (uint32_t)round / 90 % 4 * 77777;
            energy_pj += ns * power_mw;
            struct rp_account_totals totals =
                step_at((uint64_t)(round + 1) * 6000000, ns, 0, rows, count, tokens + round % 5);
            unused += totals.unused_ns;
            padding += totals.padding_ns;
            device += ns;
        }
        for (size_t i = 0; i < RP_ARRAY_COUNT(requests); i++) {
            rp_account_close(&account, &requests[i]);
            sum += requests[i].stats.device_ns;
            given_pj += requests[i].stats.energy_pj;
        }
        power_mw = 0;
        const struct rp_account_totals *totals = &account.totals;
        assert_true(given_pj == totals->attributed_uj * 1000000 + account.rests_pj[0]);
        assert_true(given_pj + (totals->padding_uj + totals->unused_uj) * 1000000 +
                        account.rests_pj[1] + account.rests_pj[2] ==
                    energy_pj);
        assert_int_equal(totals->padding_uj == 0, !costs);
        assert_true(sum + unused + padding == device);
        assert_true(account.totals.device_ns == device && account.totals.attributed_ns == sum);
        assert_int_equal(padding == 0, !costs);
        rp_account_deinit(&account);
    }
}

static void test_the_time_between_tokens_has_causes(void **state) {
    struct rp_request *one = &requests[0];
    const uint64_t *gap = one->stats.gap_ns;
    (void)state;
    open_account(false, 0, 1e9);
    one->scheduled_ns = 1000;
    struct rp_account_row row = decode_row(one, 0);
    step_at(10000, 5000, 0, &row, 1, 1);
    assert_int_equal(one->stats.worst_gap_ns, 0); /* nothing before the first token */
    /* The device works on it for 700 of 1,000 ns. */
    step_at(11000, 700, 0, &row, 1, 1);
    assert_int_equal(gap[RP_GAP_STEP], 700);
    assert_int_equal(gap[RP_GAP_HOST], 300);
    assert_int_equal(one->stats.worst_gap_cause, RP_GAP_STEP);
    /* A prompt of another request in the same step. */
    struct rp_account_row rows[] = {row, decode_row(&requests[1], 0)};
    rows[1].count = 99;
    rows[1].decode = rows[1].samples = rows[1].sampled = false;
    step_at(21000, 10000, 0, rows, 2, 100);
    assert_true(gap[RP_GAP_PREFILL] > 7000);
    assert_int_equal(one->stats.worst_gap_cause, RP_GAP_PREFILL);
    assert_int_equal(one->stats.worst_gap_step, 3);
    assert_int_equal(one->stats.worst_gap_token, 2);
    assert_int_equal(requests[1].stats.chunk_count, 1);
    /* A step without it, then swapped out, then a full event ring. */
    step_at(121000, 50000, 0, &rows[1], 1, 100);
    step_at(141000, 1000, 0, &row, 1, 1);
    assert_int_equal(gap[RP_GAP_PAGES], 120000 - 1000);
    one->swap_count++;
    step_at(441000, 1000, 0, &row, 1, 1);
    assert_int_equal(gap[RP_GAP_SWAP], 299000);
    assert_int_equal(one->stats.worst_gap_cause, RP_GAP_SWAP);
    account.squeezed_ns = 500000;
    step_at(941000, 1000, 0, &row, 1, 1);
    assert_int_equal(gap[RP_GAP_CLIENT], 499000);
    assert_int_equal(one->stats.worst_gap_cause, RP_GAP_CLIENT);
    uint64_t sum = 0;
    for (int i = 0; i < RP_GAP_CAUSE_COUNT; i++)
        sum += gap[i];
    assert_int_equal(sum, 941000 - 10000);
    assert_int_equal(one->stats.tokens, 6);
}

static void test_chunks_buckets_and_pages_are_noted(void **state) {
    struct rp_request_stats *stats = &requests[0].stats;
    (void)state;
    open_account(false, 0, 1e9);
    requests[0].scheduled_ns = 500;
    for (uint32_t i = 0; i < RP_STATS_CHUNKS + 3; i++) {
        struct rp_account_row row = {
            .request = &requests[0], .slot = 0, .start = 10 * i, .count = 10, .pages = i + 1};
        step_at(1000 * (i + 1), 400, i % 3, &row, 1, 16);
    }
    assert_int_equal(stats->chunk_count, RP_STATS_CHUNKS + 3);
    assert_int_equal(stats->chunks[0].begin_ns, 600);
    assert_int_equal(stats->chunks[0].end_ns, 1000);
    assert_int_equal(stats->chunks[RP_STATS_CHUNKS - 1].tokens, 40);
    assert_int_equal(stats->chunks[RP_STATS_CHUNKS - 1].end_ns, 1000 * (RP_STATS_CHUNKS + 3));
    assert_int_equal(stats->bucket_count, 3);
    assert_int_equal(stats->buckets[0].steps + stats->buckets[1].steps + stats->buckets[2].steps,
                     RP_STATS_CHUNKS + 3);
    assert_int_equal(stats->pages_peak, RP_STATS_CHUNKS + 3);
    /* One page from scheduling to the first step, then one more every 1,000 ns. */
    assert_int_equal(stats->page_ns, 500 + 1000 * (10 * 11 / 2));
    assert_int_equal(stats->prefill_device_ns, stats->device_ns);
    assert_int_equal(stats->first_step, 1);
    assert_int_equal(stats->last_step, RP_STATS_CHUNKS + 3);
}

/* --- Streaks ---------------------------------------------------------------------------------- */

static uint64_t streak_seed;

static uint32_t draw(uint32_t below) {
    streak_seed = streak_seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(streak_seed >> 33) % below;
}

/* A sequence of the load: chunks of a prompt, then one token per step, with all possible
 * interruptions. */
struct sequence {
    struct rp_request *request;         /* NULL: ended */
    uint32_t position, prompt, closing; /* steps until its end is delivered; 0: it has not ended */
    bool out;                           /* swapped */
};

static bool next_row(struct sequence *sequence, uint32_t slot, bool *out_swaps,
                     struct rp_account_row *row) {
    if (sequence->out && draw(3) == 0)
        sequence->out = false, *out_swaps = true;
    else if (!sequence->out && draw(40) == 0)
        sequence->out = true, *out_swaps = true, sequence->request->swap_count++;
    else if (!sequence->out && draw(60) == 0) /* swapped out and in without a step in between */
        *out_swaps = true, sequence->request->swap_count++;
    if (sequence->out || draw(25) == 0)
        return false;
    bool prompt = sequence->position < sequence->prompt;
    *row = decode_row(sequence->request, sequence->position);
    row->slot = slot;
    row->decode = !prompt;
    row->count = prompt ? RP_MIN(sequence->prompt - sequence->position, 1 + draw(60)) : 1;
    sequence->position += row->count;
    row->samples = sequence->position >= sequence->prompt;
    row->sampled = row->samples && draw(50) != 0;
    row->pages = 1 + sequence->position / 16;
    return true;
}

/* Its end is known but delivered some steps later; rows of it may still be read. */
static void end_sequence(struct sequence *sequence, struct rp_request_stats *out) {
    if (sequence->closing == 0 && draw(60) == 0)
        sequence->closing = 1 + draw(3);
    else if (sequence->closing > 0 && --sequence->closing == 0) {
        rp_account_close(&account, sequence->request);
        *out = sequence->request->stats;
        memset(sequence, 0, sizeof *sequence);
    }
}

enum { STREAK_STEPS = 3000, STREAK_ENDED = 4096 };

/* Returns how many ended; the stats of each in order. The slot of an ended one is reused
 * immediately. */
static uint32_t run_streaks(bool keep, bool padding, uint32_t window,
                            struct rp_request_stats ended[STREAK_ENDED]) {
    static struct rp_request pool[STREAK_ENDED];
    struct sequence all[16] = {{.request = NULL}}; /* two in one slot: one ends, one runs */
    uint64_t now = 1000000;
    uint32_t count = 0, made = 0;
    open_account(padding, window, 3);
    memset(pool, 0, sizeof pool);
    streak_seed = 99;
    for (uint32_t n = 0; n < STREAK_STEPS; n++) {
        struct rp_account_row rows[8];
        struct rp_account_totals totals;
        struct rp_account_step step = {.step = n + 1, .graph = draw(4) ? 5 : draw(20)};
        uint32_t row_count = 0;
        for (uint32_t slot = 0; slot < 8; slot++) {
            struct sequence *one = &all[2 * slot + (all[2 * slot].closing > 0)];
            if (!one->request && made < STREAK_ENDED) {
                *one = (struct sequence){.request = &pool[made++], .prompt = 1 + draw(200)};
                one->request->scheduled_ns = now;
            }
            /* One that has ended with a step in flight: its row is wasted. */
            struct sequence *gone = &all[2 * slot + (one == &all[2 * slot])];
            if (gone->closing > 1 && draw(2)) {
                rows[row_count] = decode_row(NULL, gone->position);
                rows[row_count++].slot = slot;
            } else if (one->closing == 0 && next_row(one, slot, &step.swaps, &rows[row_count])) {
                row_count++;
            }
        }
        now += 900000 + draw(200000) * (1 + draw(20) / 19 * 30);
        if (draw(30) == 0)
            account.squeezed_ns = now - draw(2000000);
        for (uint32_t i = 0; i < row_count; i++) {
            step.token_count += rows[i].count;
            step.sample_count += rows[i].samples;
        }
        step.bucket.tokens = step.token_count + draw(9);
        step.bucket.logit_rows = 8;
        step.read_ns = now;
        step.device_ns = draw(900000);
        step.power_mw = now / 50000000 % 3 * 100000; /* every 50 ms another one, and unknown */
        step.end_ns = now - draw(9000);
        step.begin_ns = step.end_ns - step.device_ns;
        if (row_count)
            rp_account_step(&account, &step, rows, row_count, &totals);
        for (uint32_t i = 0; i < 16; i++) {
            if (all[i].request && !keep)
                rp_account_close(&account, all[i].request);
            if (all[i].request && count < STREAK_ENDED) {
                end_sequence(&all[i], &ended[count]);
                count += all[i].request == NULL;
            }
        }
    }
    rp_account_deinit(&account);
    return count;
}

static int by_graph(const void *a, const void *b) {
    const struct rp_stats_bucket *left = a, *right = b;
    return (int)left->graph - (int)right->graph;
}

/* Buckets are in the order of their first use. */
static void sort_buckets(struct rp_request_stats *stats) {
    qsort(stats->buckets, stats->bucket_count, sizeof stats->buckets[0], by_graph);
    stats->last_bucket = 0;
}

static void test_streaks_equal_single_steps(void **state) {
    static struct rp_request_stats single[STREAK_ENDED], streaks[STREAK_ENDED];
    (void)state;
    for (int way = 0; way < 4; way++) {
        uint32_t worst = 0, tokens = 0, swapped = 0, other = 0;
        uint32_t count = run_streaks(false, way & 1, way & 2 ? 40 : 0, single);
        assert_int_equal(run_streaks(true, way & 1, way & 2 ? 40 : 0, streaks), count);
        assert_true(count > 150);
        for (uint32_t i = 0; i < count; i++) {
            bool crowded = single[i].other_steps || streaks[i].other_steps;
            sort_buckets(&single[i]);
            sort_buckets(&streaks[i]);
            if (crowded) { /* different ones may have been recorded */
                memset(single[i].buckets, 0, sizeof single[i].buckets);
                memset(streaks[i].buckets, 0, sizeof streaks[i].buckets);
                streaks[i].other_steps = single[i].other_steps;
            }
            assert_memory_equal(&single[i], &streaks[i], sizeof single[i]);
            worst += single[i].worst_gap_ns > 0;
            tokens += single[i].tokens;
            swapped += single[i].gap_ns[RP_GAP_SWAP] > 0;
            other += crowded;
        }
        assert_true(worst > 100 && tokens > 5000 && swapped > 50 && other > 0);
    }
}

/* --- In an engine ----------------------------------------------------------------------------- */

static void check_engine(const struct rp_backend *backend, uint32_t profile_every) {
    struct rp_engine_config config = fixture_config(backend);
    uint64_t sum = 0;
    config.profile_every = profile_every;
    config.page_tokens = 4;
    config.page_count_override = 90; /* some are swapped out */
    config.max_model_len = 200;
    fixture_create(&config);
    rp_engine_set_power(fixture_engine, 30000);
    fixture_submit_all();
    fixture_start();
    atomic_store(&fixture_requests[3].cancelled, true);
    fixture_drain(FIXTURE_REQUESTS);
    rp_engine_stop(fixture_engine);
    const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        const struct rp_request *request = &fixture_requests[i];
        const struct rp_request_stats *stats = &request->stats;
        uint64_t gaps = 0, chunk_tokens = 0;
        sum += stats->device_ns;
        if (i == 3)
            continue;
        for (uint32_t g = 0; g < RP_GAP_CAUSE_COUNT; g++)
            gaps += stats->gap_ns[g];
        for (uint32_t c = 0; c < RP_MIN(stats->chunk_count, (uint32_t)RP_STATS_CHUNKS); c++)
            chunk_tokens += stats->chunks[c].tokens;
        assert_true(gaps == request->closed_ns - request->first_token_ns);
        assert_int_equal(chunk_tokens, request->prompt_count - request->cached_tokens);
        assert_int_equal(stats->tokens, FIXTURE_OUTPUT);
        assert_int_equal(stats->decode_steps, FIXTURE_OUTPUT - 1);
        assert_true(stats->device_ns > 0 && stats->bytes > 0 && stats->flops > 0);
        assert_true(stats->pages_peak * 4 >= request->prompt_count);
        assert_true(stats->chunks[0].begin_ns >= request->scheduled_ns);
        assert_true((stats->gap_ns[RP_GAP_SWAP] > 0) <= (request->swap_count > 0));
    }
    assert_true(rp_counter_read(&metrics->preemptions) > 0);
    assert_true(rp_counter_read(&metrics->attributed_ns) == sum);
    uint64_t uj = rp_counter_read(&metrics->attributed_uj), expected_uj = sum * 30000 / 1000000;
    assert_int_equal(uj, expected_uj);
    assert_true(fixture_requests[0].stats.energy_pj == fixture_requests[0].stats.device_ns * 30000);
    assert_true(rp_counter_read(&metrics->device_busy_ns) ==
                sum + rp_counter_read(&metrics->padding_ns) + rp_counter_read(&metrics->unused_ns));
    assert_true(rp_counter_read(&metrics->device_busy_ns) > 0);
    uint32_t measured = 0;
    for (uint32_t i = 0; i < rp_engine_graph_count(fixture_engine); i++)
        measured += fixture_engine->observer.account.rates[i][RP_PART_TOKENS] > 0 &&
                    fixture_engine->observer.account.rates[i][RP_PART_ATTENTION] > 0;
    assert_int_equal(measured > 0, config.profile_every > 0);
}

static void test_an_engine_on_the_cpu_attributes_all_of_its_time(void **state) {
    (void)state;
    check_engine(NULL, 0);
}

static void test_stamped_steps_measure_the_time_of_parts(void **state) {
    (void)state;
    check_engine(NULL, 2);
}

static void test_an_engine_on_a_gpu_attributes_all_of_its_time(void **state) {
    (void)state;
    check_engine(fake_backend(), 0);
    assert_true(rp_counter_read(&rp_engine_metrics(fixture_engine)->padding_ns) > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_the_fixed_part_is_split_by_tokens_and_padding_pays_its_own,
                                  close_account),
        cmocka_unit_test_teardown(test_padding_is_free_where_it_is_not_computed, close_account),
        cmocka_unit_test_teardown(test_attention_is_split_by_the_keys_that_were_read,
                                  close_account),
        cmocka_unit_test_teardown(test_windows_bound_what_is_read, close_account),
        cmocka_unit_test_teardown(test_measured_parts_correct_the_model, close_account),
        cmocka_unit_test_teardown(test_any_step_adds_up, close_account),
        cmocka_unit_test_teardown(test_the_time_between_tokens_has_causes, close_account),
        cmocka_unit_test_teardown(test_chunks_buckets_and_pages_are_noted, close_account),
        cmocka_unit_test(test_streaks_equal_single_steps),
        cmocka_unit_test_setup_teardown(test_an_engine_on_the_cpu_attributes_all_of_its_time,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_stamped_steps_measure_the_time_of_parts, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(test_an_engine_on_a_gpu_attributes_all_of_its_time,
                                        fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
