/* Goal: with a mask program every kernel computes softmax over the keys that are visible to a row,
 * reads no other key, and gives equal bits in every chunk, batch and team. Method: a brute-force
 * reference in f64 that evaluates each pair; keys that no row sees are NaN, and pages without a
 * visible key are in inaccessible memory. */
#include "attention/cpu/attention_blocks.h"
#include "attention/mask/mask_reach.h"
#include "tests/attention/attention_cpu_fixture.h"

#include <sys/mman.h>

#define LENGTH    150u /* of every sequence: three blocks, the last one partial */
#define NO_KEYS   (LENGTH / 2)
#define HOST_PAGE 4096u

/* The thread sanitizer needs no more than a few programs on each kernel to see its team at work. */
#if defined(__SANITIZE_THREAD__)
#define STRIDE 7
#else
#define STRIDE 1
#endif

struct masked {
    struct fixture base;
    struct rp_mask *all, *mask; /* of all layers, of LAYER */
    unsigned char *map;
    size_t map_bytes;
    uint32_t forbidden; /* a page that must not be read */
    double *k, *v;      /* (LENGTH, kv_heads, head_dim) of one slot */
    uint64_t random;
};

static int setup_masked(void **state) {
    *state = rp_calloc(1, sizeof(struct masked));
    return *state ? 0 : -1;
}

static void drop_masked(struct masked *m) {
    if (m->map) {
        munmap(m->map, m->map_bytes);
        m->base.args.kv.base = NULL;
    }
    rp_mask_free(m->all);
    rp_mask_free(m->mask);
    rp_free(m->k);
    rp_free(m->v);
    drop(&m->base);
    memset(m, 0, offsetof(struct masked, random));
}

static int teardown_masked(void **state) {
    drop_masked(*state);
    rp_free(*state);
    return 0;
}

static void set_mask(struct masked *m, const char *text) {
    struct rp_error err = {0};
    const struct rp_mask_limits limits = {1u << 20, m->base.args.heads, LAYERS};
    rp_mask_free(m->all);
    rp_mask_free(m->mask);
    m->all = m->mask = NULL;
    if (rp_mask_parse(text, strlen(text), &limits, &m->all, &err) != RP_OK)
        fail_msg("%s: %s", text, err.text);
    assert_int_equal(rp_mask_at_layer(m->all, LAYER, &m->mask, &err), RP_OK);
    m->base.args.mask = m->mask;
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t i = 0; i < rp_mask_param_count(m->all); i++) {
            const struct rp_mask_param *param = rp_mask_param(m->all, i);
            int32_t value = RP_MIN(param->value + 7 * (int32_t)slot, param->max);
            m->base.args.step.slots[slot * m->base.args.step.slot_words + RP_SLOT_MASK_PARAMS + i] =
                (uint32_t)value;
        }
}

static const int32_t *params_of(const struct masked *m, uint32_t slot) {
    return (const int32_t *)(m->base.args.step.slots + (size_t)slot * m->base.args.step.slot_words +
                             RP_SLOT_MASK_PARAMS);
}

/* Pages of the fixture with `shape` in a map whose end must not be read. */
static void make_masked(struct masked *m, const uint32_t shape[4], enum rp_dtype dtype,
                        const char *text) {
    drop_masked(m);
    make(&m->base, shape[0], shape[1], shape[2], shape[3], dtype, LENGTH);
    struct rp_kv_layout *kv = &m->base.args.kv;
    size_t pages = RP_ALIGN_UP(kv->page_stride * m->base.page_count, HOST_PAGE);
    m->map_bytes = pages + RP_ALIGN_UP(2 * kv->page_stride, HOST_PAGE);
    m->map = mmap(NULL, m->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(m->map != MAP_FAILED);
    memset(m->map, 0xFF, pages);
    assert_int_equal(mprotect(m->map + pages, m->map_bytes - pages, PROT_NONE), 0);
    m->forbidden = (uint32_t)RP_CEIL_DIV(pages, kv->page_stride);
    rp_free_aligned(kv->base);
    kv->base = m->map;
    m->k = rp_alloc((size_t)LENGTH * shape[1] * shape[2] * sizeof *m->k);
    m->v = rp_alloc((size_t)LENGTH * shape[1] * shape[2] * sizeof *m->v);
    assert_true(m->k && m->v);
    set_mask(m, text);
}

/* Keys that a token of the row may see at all. */
static uint32_t end_of(const struct masked *m, const struct rp_live_row *row, uint32_t position) {
    return rp_mask_is_causal(m->mask) ? position + 1 : row->kv_begin + row->token_count;
}

static bool pair_meets(const struct masked *m, uint32_t slot, uint32_t q, uint32_t kv,
                       uint32_t head) {
    const struct rp_mask_pair pair = {(int32_t)q, (int32_t)kv, (int32_t)head, LAYER};
    return rp_mask_sees(m->mask, &pair, params_of(m, slot));
}

static void store_one(struct fixture *f, uint32_t slot, uint32_t position, uint32_t kv_head) {
    for (uint32_t kv = 0; kv < 2; kv++)
        store_row(f, kv, slot, position, kv_head);
}

/* Stores the keys that are visible to the step's rows, and unmaps pages without a visible key;
 * returns how many are left. */
static uint32_t store_what_is_seen(struct masked *m) {
    struct fixture *f = &m->base;
    uint32_t group = f->args.heads / f->args.kv_heads, pages = 0;
    for (uint32_t r = 0; r < f->counts.row_count; r++) {
        const struct rp_live_row *row = &f->rows[r];
        uint32_t *table =
            f->args.step.slots + (size_t)row->slot * f->args.step.slot_words + RP_SLOT_PAGES;
        bool used[LENGTH] = {false};
        for (uint32_t kv = 0; kv < LENGTH; kv++)
            for (uint32_t kv_head = 0; kv_head < f->args.kv_heads; kv_head++) {
                bool seen = false;
                for (uint32_t i = 0; i < row->token_count && !seen; i++)
                    for (uint32_t g = 0; g < group && !seen; g++)
                        seen = kv < end_of(m, row, row->kv_begin + i) &&
                               pair_meets(m, row->slot, row->kv_begin + i, kv, kv_head * group + g);
                if (seen)
                    store_one(f, row->slot, kv, kv_head);
                used[kv / f->args.kv.page_tokens] |= seen;
            }
        for (uint32_t i = 0; i < f->args.step.config.pages_per_slot; i++) {
            table[i] = used[i] ? table[i] : m->forbidden;
            pages += used[i];
        }
    }
    return pages;
}

/* --- Against the formula --- */

typedef double (*rule_fn)(double score, uint32_t q, uint32_t kv, uint32_t h, uint32_t heads);

static double rule_cap(double score, uint32_t q, uint32_t kv, uint32_t h, uint32_t heads) {
    (void)q, (void)kv, (void)h, (void)heads;
    return 2.0 * tanh(score / 2.0);
}

/* Slopes of n heads, a power of two, then every other one of 2n. */
static double rule_alibi(double score, uint32_t q, uint32_t kv, uint32_t h, uint32_t heads) {
    uint32_t n = 1;
    while (2 * n <= heads)
        n *= 2;
    double exponent = h < n ? -8.0 * (h + 1) / n : -4.0 * (2 * (h - n) + 1) / n;
    return score - exp2(exponent) * ((double)q - kv);
}

static double rule_mixed(double score, uint32_t q, uint32_t kv, uint32_t h, uint32_t heads) {
    (void)h, (void)heads;
    return (score * 0.5 + 0.125 * (kv % 3)) - 0.0625 * ((double)q - kv);
}

static double rule_even(double score, uint32_t q, uint32_t kv, uint32_t h, uint32_t heads) {
    (void)q, (void)h, (void)heads;
    return kv % 2 ? -HUGE_VAL : score;
}

static void load_values(struct masked *m, uint32_t slot) {
    const struct rp_attention_args *args = &m->base.args;
    size_t at = 0;
    for (uint32_t j = 0; j < LENGTH; j++)
        for (uint32_t h = 0; h < args->kv_heads; h++)
            for (uint32_t d = 0; d < args->head_dim; d++, at++) {
                m->k[at] = (double)kv_value(&m->base, 0, slot, j, h, d);
                m->v[at] = (double)kv_value(&m->base, 1, slot, j, h, d);
            }
}

/* One (token, head): zeros where it sees nothing. */
static void reference_of(const struct masked *m, const struct rp_live_row *row, uint32_t token,
                         uint32_t head, rule_fn rule, double *out) {
    const struct rp_attention_args *args = &m->base.args;
    uint32_t kv_head = head / (args->heads / args->kv_heads), q = m->base.positions[token];
    const float *from = args->q + token * args->q_stride + (size_t)head * args->head_dim;
    double scores[LENGTH], max = -HUGE_VAL, total = 0;
    uint32_t end = end_of(m, row, q);
    for (uint32_t j = 0; j < end; j++) {
        scores[j] = -HUGE_VAL;
        if (!pair_meets(m, row->slot, q, j, head))
            continue;
        double sum = 0;
        for (uint32_t d = 0; d < args->head_dim; d++)
            sum +=
                (double)from[d] * m->k[((size_t)j * args->kv_heads + kv_head) * args->head_dim + d];
        sum *= (double)args->scale;
        scores[j] = rule ? rule(sum, q, j, head, args->heads) : sum;
        max = RP_MAX(max, scores[j]);
    }
    memset(out, 0, args->head_dim * sizeof *out);
    for (uint32_t j = 0; j < end && max > -HUGE_VAL; j++) {
        double weight = exp(scores[j] - max);
        total += weight;
        for (uint32_t d = 0; d < args->head_dim && weight > 0; d++)
            out[d] += weight * m->v[((size_t)j * args->kv_heads + kv_head) * args->head_dim + d];
    }
    for (uint32_t d = 0; d < args->head_dim && total > 0; d++)
        out[d] /= total;
}

static void check_rows(struct masked *m, rule_fn rule, const char *what, enum rp_cpu_isa isa) {
    const struct fixture *f = &m->base;
    double error = 0, norm = 0, want[RP_ATTENTION_HEAD_DIM_MAX];
    uint32_t loaded = SLOTS;
    for (uint32_t t = 0; t < f->counts.token_count; t++) {
        const float *out = f->out + t * f->args.out_stride;
        if (f->token_rows[t] == RP_ROW_NONE) {
            assert_true(is_untouched(out, f->args.heads * f->args.head_dim));
            continue;
        }
        const struct rp_live_row *row = &f->rows[f->token_rows[t]];
        if (loaded != row->slot)
            load_values(m, row->slot);
        loaded = row->slot;
        for (uint32_t head = 0; head < f->args.heads; head++) {
            reference_of(m, row, t, head, rule, want);
            for (uint32_t d = 0; d < f->args.head_dim; d++) {
                double got = (double)out[head * f->args.head_dim + d];
                if (!(fabs(got - want[d]) <= 2e-5))
                    fail_msg("%s, %s: position %u head %u [%u] is %g, not %g", what,
                             rp_cpu_isa_name(isa), f->positions[t], head, d, got, want[d]);
                error += (got - want[d]) * (got - want[d]);
                norm += want[d] * want[d];
            }
        }
    }
    if (!(error <= 9e-12 * norm))
        fail_msg("%s, %s: error %g", what, rp_cpu_isa_name(isa), sqrt(error / norm));
}

/* A batch of all kinds of rows: a whole prompt, a decode row and, for a causal program, a chunk. */
static void add_batch(struct masked *m) {
    struct fixture *f = &m->base;
    begin_step(f);
    add_row(f, 1, LENGTH - 1, 1, RP_ROW_DECODE);
    add_row(f, 0, 0, LENGTH, RP_ROW_SAMPLE);
    add_padding(f, 3);
    if (rp_mask_is_causal(m->mask))
        add_row(f, 2, 61, 47, 0);
    else
        add_row(f, 2, 0, 47, 0);
    add_row(f, 3, 66, 1, RP_ROW_DECODE);
}

static void check_program(struct masked *m, const uint32_t shape[4], enum rp_dtype dtype,
                          const char *text, rule_fn rule) {
    make_masked(m, shape, dtype, text);
    add_batch(m);
    store_what_is_seen(m);
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        run(&m->base, rp_attention_select((enum rp_cpu_isa)isa, &m->base.args.kv), 2);
        check_rows(m, rule, text, (enum rp_cpu_isa)isa);
    }
}

static const struct {
    const char *text;
    rule_fn rule;
} programs[] = {
    {"causal", NULL},
    {"causal && sliding_window(20)", NULL},
    {"param w = 9 in 1..300; causal && (sliding_window(w) || sink(4))", NULL},
    {"param p = 40 in 0..64; prefix_lm(p)", NULL},
    {"causal && chunked(50)", NULL},
    {"document(30, 31, 64)", NULL},
    {"causal && dilated(3)", NULL},
    {"causal; alibi", rule_alibi},
    {"param w = 70 in 1..99; causal && sliding_window(w); soft_cap(2)", rule_cap},
    {"causal && (h % 2 == 0 || q - kv < 10)", NULL},
    {"causal && kv % 64 < 3 && q - kv > 20", NULL}, /* the first rows see nothing */
    {"causal && layer != 1", NULL},                 /* and here no row sees anything */
    {"kv > q && (h == 1 || kv % 5 == q % 5)", NULL},
    {"causal; score = score * 0.5 + 0.125 * (kv % 3); score = score - 0.0625 * (q - kv)",
     rule_mixed},
    {"causal && sliding_window(40); score = kv % 2 == 0 ? score : -exp(1000)", rule_even},
};

static const uint32_t shapes[][4] = {/* heads, kv_heads, head_dim, page_tokens */
                                     {4, 2, 64, 16},  {6, 1, 96, 32}, {4, 4, 128, 64},
                                     {2, 1, 256, 16}, {9, 3, 33, 32}, {12, 1, 20, 16}};

static void test_every_kernel_is_the_formula_and_reads_no_page_that_nobody_sees(void **state) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(programs); i += STRIDE)
        for (size_t s = 0; s < RP_ARRAY_COUNT(shapes); s++)
            if ((i + s) % 3 == 0)
                check_program(*state, shapes[s], kv_dtypes[(i / 3 + s) % 4], programs[i].text,
                              programs[i].rule);
}

static uint32_t draw(struct masked *m, uint32_t below) {
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(m->random >> 33) % below;
}

static void random_condition(struct masked *m, uint32_t depth, struct rp_buffer *out) {
    static const char *const names[] = {"q", "kv", "h", "(q - kv)", "(kv + 2 * h)", "abs(q - kv)"};
    static const char *const tests[] = {"<", "<=", ">", ">=", "==", "!="};
    if (depth > 0 && draw(m, 4) > 0) {
        rp_buffer_puts(out, draw(m, 5) == 0 ? "!(" : "(");
        random_condition(m, depth - 1, out);
        rp_buffer_puts(out, draw(m, 2) ? " && " : " || ");
        random_condition(m, depth - 1, out);
        rp_buffer_puts(out, ")");
        return;
    }
    const char *name = names[draw(m, RP_ARRAY_COUNT(names))], *test = tests[draw(m, 6)];
    if (draw(m, 3) == 0)
        rp_buffer_printf(out, "%s %% %u %s %u", name, 2 + draw(m, 70), tests[draw(m, 4)],
                         draw(m, 40));
    else if (draw(m, 3) == 0)
        rp_buffer_printf(out, "%s %s p", name, test);
    else
        rp_buffer_printf(out, "%s %s %u", name, test, draw(m, LENGTH));
}

static void test_random_programs_agree_with_the_formula_in_every_kernel(void **state) {
    struct masked *m = *state;
    m->random = 7;
    for (uint32_t i = 0; i < 30; i += STRIDE) {
        struct rp_buffer text;
        char kept[RP_MASK_TEXT_MAX];
        rp_buffer_init(&text, 0);
        rp_buffer_puts(&text, "param p = 60 in 0..100; ");
        if (draw(m, 3))
            rp_buffer_puts(&text, "causal && ");
        random_condition(m, 3, &text);
        snprintf(kept, sizeof kept, "%.*s", (int)text.len, text.data);
        rp_buffer_deinit(&text);
        check_program(m, shapes[draw(m, RP_ARRAY_COUNT(shapes))], kv_dtypes[draw(m, 4)], kept,
                      NULL);
    }
}

/* --- Caps without a program --- */

static void test_scores_are_capped_without_a_program_too(void **state) {
    struct masked *m = *state;
    for (size_t s = 0; s < RP_ARRAY_COUNT(shapes); s++) {
        make_masked(m, shapes[s], s % 2 ? RP_DTYPE_BF16 : RP_DTYPE_F32, "causal");
        m->base.args.scale = 1.5f; /* many scores far beyond the cap */
        m->base.args.soft_cap = 2.0f;
        m->base.args.mask = NULL;
        add_batch(m);
        store_what_is_seen(m);
        for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
            run(&m->base, rp_attention_select((enum rp_cpu_isa)isa, &m->base.args.kv), 2);
            check_rows(m, rule_cap, "soft_cap", (enum rp_cpu_isa)isa);
        }
    }
}

/* --- Bits --- */

static void keep(struct masked *m, uint32_t slot) {
    struct fixture *f = &m->base;
    size_t count = (size_t)f->args.heads * f->args.head_dim;
    for (uint32_t t = 0; t < f->counts.token_count; t++)
        memcpy(f->expect + ((size_t)slot * LENGTH + f->positions[t]) * count,
               f->out + t * f->args.out_stride, count * sizeof(float));
}

static void assert_kept(struct masked *m, const char *text, const char *what) {
    struct fixture *f = &m->base;
    size_t count = (size_t)f->args.heads * f->args.head_dim;
    for (uint32_t t = 0; t < f->counts.token_count; t++) {
        if (f->token_rows[t] == RP_ROW_NONE)
            continue;
        uint32_t slot = f->rows[f->token_rows[t]].slot;
        if (memcmp(f->out + t * f->args.out_stride,
                   f->expect + ((size_t)slot * LENGTH + f->positions[t]) * count,
                   count * sizeof(float)) != 0)
            fail_msg("%s: %s changes the bits of slot %u position %u", text, what, slot,
                     f->positions[t]);
    }
}

static void check_bits(struct masked *m, const char *text, rp_attention_fn fn) {
    struct fixture *f = &m->base;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        begin_step(f);
        add_row(f, slot, 0, LENGTH, 0);
        run(f, fn, 1);
        keep(m, slot);
    }
    for (uint32_t workers = 2; workers <= 5; workers += 3) {
        begin_step(f);
        add_row(f, 3, 0, LENGTH, 0);
        add_padding(f, 2);
        add_row(f, 1, 0, LENGTH, 0);
        run(f, fn, workers);
        assert_kept(m, text, "a batch");
    }
    if (!rp_mask_is_causal(m->mask))
        return;
    for (uint32_t begin = 0; begin < LENGTH; begin += 37) {
        begin_step(f);
        add_row(f, 2, begin, RP_MIN(37, LENGTH - begin), 0);
        add_row(f, 0, begin, 1, RP_ROW_DECODE);
        run(f, fn, 2);
        assert_kept(m, text, "a chunk");
    }
    for (uint32_t position = 0; position < LENGTH; position += STRIDE) {
        begin_step(f);
        add_row(f, 3, position, 1, RP_ROW_DECODE);
        run(f, fn, 2);
        assert_kept(m, text, "decoding");
    }
}

static void test_bits_depend_on_position_program_and_parameters_alone(void **state) {
    static const uint32_t small[][4] = {{5, 1, 32, 16}, {4, 2, 24, 16}};
    struct masked *m = *state;
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(programs); i += STRIDE) {
            make_masked(m, small[i % 2], kv_dtypes[i % 4], programs[i].text);
            for (uint32_t slot = 0; slot < SLOTS; slot++)
                store_kv(&m->base, slot, 0, LENGTH);
            check_bits(m, programs[i].text,
                       rp_attention_select((enum rp_cpu_isa)isa, &m->base.args.kv));
        }
}

/* Programs equivalent to built-in masks, written so that they are not recognized. */
static void test_a_program_gives_the_bits_of_the_window_that_it_says(void **state) {
    static const struct {
        const char *text;
        uint32_t window;
    } pairs[] = {{"causal", 0}, {"causal && sliding_window(1)", 1}, {"causal && q - kv < 70", 70}};
    struct masked *m = *state;
    for (size_t s = 0; s < RP_ARRAY_COUNT(shapes); s++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(pairs); i++) {
            make_masked(m, shapes[s], kv_dtypes[s % 4], pairs[i].text);
            store_kv(&m->base, 0, 0, LENGTH);
            for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
                rp_attention_fn fn = rp_attention_select((enum rp_cpu_isa)isa, &m->base.args.kv);
                begin_step(&m->base);
                add_row(&m->base, 0, 0, LENGTH, 0);
                m->base.args.mask = NULL;
                m->base.args.window = pairs[i].window;
                run(&m->base, fn, 2);
                keep(m, 0);
                m->base.args.mask = m->mask;
                m->base.args.window = 3; /* not read */
                run(&m->base, fn, 2);
                assert_kept(m, pairs[i].text, "saying it as a program");
            }
        }
}

/* --- Masked keys --- */

static void test_rows_that_see_nothing_are_zeros(void **state) {
    struct masked *m = *state;
    for (int type = 0; type < 2; type++)
        for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
            make_masked(m, shapes[0], RP_DTYPE_BF16, "causal && kv > 70");
            m->base.args.out_dtype = type ? RP_DTYPE_BF16 : RP_DTYPE_F32;
            begin_step(&m->base);
            add_row(&m->base, 0, 30, 41, 0);
            assert_int_equal(store_what_is_seen(m), 0); /* no page may be read */
            run(&m->base, rp_attention_select((enum rp_cpu_isa)isa, &m->base.args.kv), 2);
            size_t bytes = (size_t)m->base.args.heads * m->base.args.head_dim * (type ? 2 : 4);
            for (uint32_t t = 0; t < 41; t++) {
                const unsigned char *row = (const unsigned char *)m->base.out +
                                           t * m->base.args.out_stride * (type ? 2 : 4);
                for (size_t i = 0; i < bytes; i++)
                    assert_int_equal(row[i], 0);
            }
        }
}

static void test_nan_in_a_key_that_one_head_sees_stays_with_that_head(void **state) {
    struct masked *m = *state;
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++)
        for (uint32_t count = 1; count <= 16; count += 15) {
            make_masked(m, shapes[0], RP_DTYPE_F32, "causal && (h == 0 || kv != 70)");
            store_kv(&m->base, 0, 0, LENGTH);
            memset(kv_at(&m->base, 1, 0, 70, 0), 0xFF, 4);
            begin_step(&m->base);
            add_row(&m->base, 0, LENGTH - count, count, 0);
            run(&m->base, rp_attention_select((enum rp_cpu_isa)isa, &m->base.args.kv), 1);
            for (uint32_t t = 0; t < count; t++)
                for (uint32_t i = 0; i < 4 * 64; i++)
                    assert_int_equal(isnan(m->base.out[t * m->base.args.out_stride + i]) != 0,
                                     i == 0);
        }
}

/* A window far into a sequence: only 17 of its 6,250 pages exist. */
static void test_a_window_on_a_long_context_reads_only_its_pages(void **state) {
    enum { POSITION = 99999, WINDOW = 256 };
    struct masked *m = *state;
    make_masked(m, shapes[0], RP_DTYPE_BF16,
                "param w = 256 in 1..8192; causal && (sliding_window(w) || sink(4))");
    struct rp_step_view *step = &m->base.args.step;
    uint32_t page_tokens = m->base.args.kv.page_tokens, pages = 1 + POSITION / page_tokens;
    rp_free(step->slots);
    step->slot_words = (uint32_t)RP_SLOT_PAGES + pages;
    step->slots = rp_calloc(step->slot_words, sizeof *step->slots);
    assert_non_null(step->slots);
    step->slots[RP_SLOT_MASK_PARAMS] = WINDOW;
    uint32_t next = 1;
    for (uint32_t i = 0; i < pages; i++) {
        bool seen = i == 0 || (i + 1) * page_tokens > POSITION + 1 - WINDOW;
        step->slots[RP_SLOT_PAGES + i] = seen ? next++ : m->forbidden;
    }
    assert_int_equal(next - 1, 1 + WINDOW / page_tokens);
    memset(m->map, 0, next * m->base.args.kv.page_stride);
    begin_step(&m->base);
    add_row(&m->base, 0, POSITION, 1, RP_ROW_DECODE);
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        run(&m->base, rp_attention_select((enum rp_cpu_isa)isa, &m->base.args.kv), 2);
        for (uint32_t i = 0; i < 4 * 64; i++)
            assert_true(m->base.out[i] == 0.0f);
    }
    /* The count agrees: blocks of 64 keys, the sink's and the window's. */
    const struct rp_mask_reach_args args = {m->mask, params_of(m, 0), LAYER, 4, POSITION,
                                            1,       POSITION + 1};
    struct rp_mask_reach reach;
    rp_mask_reach(&args, &reach);
    assert_in_range(reach.keys, WINDOW + 4, WINDOW + 4 + 2 * 64);
    assert_int_equal(reach.pairs, reach.keys);
}

/* --- Counting --- */

static void test_reach_is_never_less_than_what_is_seen_and_near_it(void **state) {
    struct masked *m = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(programs); i += STRIDE) {
        make_masked(m, shapes[0], RP_DTYPE_F32, programs[i].text);
        for (uint32_t start = 0; start < LENGTH; start += 29) {
            uint32_t count = RP_MIN(start % 2 ? 1 : 40, LENGTH - start), end = start + count;
            const struct rp_mask_reach_args args = {m->mask, params_of(m, 0), LAYER, 4,
                                                    start,   count,           end};
            struct rp_mask_reach reach;
            uint64_t seen = 0, blocks = 0, last = NO_KEYS;
            rp_mask_reach(&args, &reach);
            for (uint32_t kv = 0; kv < end; kv++) {
                bool any = false;
                for (uint32_t q = start; q < end && !any; q++)
                    for (uint32_t h = 0; h < 4 && !any; h++)
                        any = pair_meets(m, 0, q, kv, h);
                seen += any;
                blocks += any && kv / 64 != last;
                last = any ? kv / 64 : last;
            }
            assert_true(reach.keys >= seen);
            assert_true(reach.keys <= 64 * (blocks + 2) && reach.keys <= end);
            assert_true(reach.pairs <= reach.keys * count);
        }
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_masked, teardown_masked)
    const struct CMUnitTest tests[] = {
        TEST(test_every_kernel_is_the_formula_and_reads_no_page_that_nobody_sees),
        TEST(test_random_programs_agree_with_the_formula_in_every_kernel),
        TEST(test_scores_are_capped_without_a_program_too),
        TEST(test_bits_depend_on_position_program_and_parameters_alone),
        TEST(test_a_program_gives_the_bits_of_the_window_that_it_says),
        TEST(test_rows_that_see_nothing_are_zeros),
        TEST(test_nan_in_a_key_that_one_head_sees_stays_with_that_head),
        TEST(test_a_window_on_a_long_context_reads_only_its_pages),
        TEST(test_reach_is_never_less_than_what_is_seen_and_near_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
