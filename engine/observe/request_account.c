#include "engine/observe/request_account.h"

#include "attention/mask/mask_reach.h"
#include "backend/op_cost.h"
#include "base/memory.h"

#include <string.h>

/* --- Cost of a step --------------------------------------------------------------------------- */

/* Costs are linear in rows and keys: what zero of them and one of them cost says all. */
static struct rp_cost cost_of(const struct rp_account_config *config, const struct rp_op *op,
                              uint32_t rows, uint32_t keys) {
    const struct rp_bucket bucket = {
        .tokens = rows, .rows = rows, .logit_rows = rows, .decode = true};
    return rp_op_cost(config->program, op, &bucket, config->kv_dtype, keys);
}

static uint64_t bytes_of(const struct rp_cost *cost) {
    return cost->bytes_read + cost->bytes_written;
}

static void add_keys(struct rp_account *account, uint32_t window, uint64_t bytes, uint64_t flops) {
    uint32_t i = 0;
    while (i < account->window_count && account->windows[i].window != window)
        i++;
    /* More kinds of layers than places: the last place counts the rest. */
    if (i == RP_ACCOUNT_WINDOWS)
        i--;
    else if (i == account->window_count)
        account->windows[account->window_count++].window = window;
    account->windows[i].key_bytes += bytes;
    account->windows[i].key_flops += flops;
}

/* The same of layers with a mask program; more programs than places: the last one stands for the
 * rest. */
static void add_program(struct rp_account *account, const struct rp_op *op, uint64_t bytes,
                        uint64_t flops) {
    uint32_t i = 0;
    while (i < account->program_count &&
           strcmp(account->programs[i].text, op->u.attention.mask_text) != 0)
        i++;
    if (i == RP_ACCOUNT_PROGRAMS) {
        i--;
    } else if (i == account->program_count) {
        account->programs[i].mask = op->u.attention.mask;
        account->programs[i].text = op->u.attention.mask_text;
        account->programs[i].layer = op->layer;
        account->program_count++;
    }
    account->heads = op->u.attention.heads;
    account->programs[i].key_bytes += bytes;
    account->programs[i].key_flops += flops;
}

static void add_op(struct rp_account *account, const struct rp_account_config *config,
                   const struct rp_op *op, bool in_sample) {
    uint32_t part = in_sample || config->program->domains[op->rows].kind == RP_ROWS_LOGIT
                        ? RP_PART_SAMPLES
                        : RP_PART_TOKENS;
    struct rp_cost none = cost_of(config, op, 0, 0), row = cost_of(config, op, 1, 0);
    account->linear[part].fixed_bytes += bytes_of(&none);
    account->linear[part].row_bytes += bytes_of(&row) - bytes_of(&none);
    account->linear[part].row_flops += row.flops - none.flops;
    if (op->kind != RP_OP_ATTENTION)
        return;
    struct rp_cost key = cost_of(config, op, 1, 1);
    uint64_t bytes = bytes_of(&key) - bytes_of(&row), flops = key.flops - row.flops;
    if (op->u.attention.mask)
        add_program(account, op, bytes, flops);
    else
        add_keys(account, op->u.attention.window, bytes, flops);
}

static double cost(const struct rp_account *account, uint64_t bytes, uint64_t flops) {
    /* Signed: there is an instruction for that. */
    return RP_MAX((double)(int64_t)bytes, (double)(int64_t)flops * account->byte_per_flop);
}

bool rp_account_init(struct rp_account *account, const struct rp_account_config *config) {
    memset(account, 0, sizeof *account);
    account->padding_costs = config->padding_costs;
    account->byte_per_flop = 1 / config->balance;
    account->graph_count = config->graph_count;
    account->row_capacity = config->row_capacity;
    account->mask_defaults = config->mask_defaults;
    for (uint32_t i = 0; i < config->program->op_count; i++)
        add_op(account, config, &config->program->ops[i], i >= config->program->sample_begin);
    if (account->window_count == 1 && account->windows[0].window == 0 && !account->program_count)
        account->key_cost =
            cost(account, account->windows[0].key_bytes, account->windows[0].key_flops);
    account->rates = rp_calloc(config->graph_count, sizeof *account->rates);
    account->rows = rp_calloc(config->row_capacity, sizeof *account->rows);
    account->costs = rp_calloc(config->row_capacity, sizeof *account->costs);
    if (account->program_count)
        account->reaches =
            rp_calloc((size_t)config->slot_count * RP_ACCOUNT_PROGRAMS, sizeof *account->reaches);
    bool streaks = rp_streaks_init(&account->streaks, config->slot_count, config->graph_count);
    if (account->rates && account->rows && account->costs && streaks &&
        (account->reaches || !account->program_count))
        return true;
    rp_account_deinit(account);
    return false;
}

void rp_account_deinit(struct rp_account *account) {
    rp_free(account->rates);
    rp_free(account->rows);
    rp_free(account->costs);
    rp_free(account->reaches);
    rp_streaks_deinit(&account->streaks);
    account->rates = NULL;
    account->rows = NULL;
    account->costs = NULL;
    account->reaches = NULL;
}

/* Keys that the tokens at positions start .. start + count - 1 attend to, all together. */
static uint64_t visible_keys(uint64_t start, uint64_t count, uint64_t window) {
    /* The first `ramp` of them see everything before them. */
    uint64_t ramp = window == 0 ? count : window > start ? RP_MIN(count, window - start) : 0;
    return ramp * start + ramp * (ramp + 1) / 2 + (count - ramp) * window;
}

/* Keys that a row reads with program `index`. For decode rows the program is evaluated only now and
 * then; the number grows slowly in between. */
static struct rp_mask_reach row_reach(const struct rp_account *account,
                                      const struct rp_account_row *row, uint32_t index) {
    const struct rp_request *request = row->request;
    struct rp_account_reach *kept = &account->reaches[row->slot * RP_ACCOUNT_PROGRAMS + index];
    struct rp_mask_reach reach = {kept->keys, kept->keys};
    if (row->count == 1 && (!request || kept->request == request->id + 1) &&
        row->start - kept->from < RP_ACCOUNT_REACH_STEPS)
        return reach;
    bool given = request && request->mask_param_count;
    const struct rp_mask_reach_args args = {.mask = account->programs[index].mask,
                                            .params = given ? request->mask_params
                                                            : account->mask_defaults,
                                            .layer = account->programs[index].layer,
                                            .heads = account->heads,
                                            .start = row->start,
                                            .count = row->count,
                                            .end = row->start + row->count};
    rp_mask_reach(&args, &reach);
    if (row->count == 1)
        *kept = (struct rp_account_reach){request ? request->id + 1 : 0, row->start, reach.keys};
    return reach;
}

/* K and V that a row reads, and what it does with them. */
static void add_attention(const struct rp_account *account, const struct rp_account_row *row,
                          struct rp_account_cost *out) {
    uint64_t end = (uint64_t)row->start + row->count;
    for (uint32_t i = 0; i < account->window_count; i++) {
        uint64_t window = account->windows[i].window, reach = end, keys = end;
        if (window)
            reach = RP_MIN(end, window + row->count - 1);
        if (row->count > 1)
            keys = visible_keys(row->start, row->count, window);
        else if (window)
            keys = reach;
        out->bytes += reach * account->windows[i].key_bytes; /* a chunk shares its pages */
        out->flops += keys * account->windows[i].key_flops;
    }
    for (uint32_t i = 0; i < account->program_count; i++) {
        struct rp_mask_reach reach = row_reach(account, row, i);
        out->bytes += reach.keys * account->programs[i].key_bytes;
        out->flops += reach.pairs * account->programs[i].key_flops;
    }
}

/* Returns the cost of its attention. */
static double row_cost(const struct rp_account *account, const struct rp_account_row *row,
                       struct rp_account_cost *out) {
    double attention;
    if (RP_LIKELY(row->count == 1 && account->key_cost > 0)) {
        uint64_t keys = (uint64_t)row->start + 1;
        out->bytes = keys * account->windows[0].key_bytes;
        out->flops = keys * account->windows[0].key_flops;
        attention = (double)(int64_t)keys * account->key_cost;
    } else {
        out->bytes = out->flops = 0;
        add_attention(account, row, out);
        attention = cost(account, out->bytes, out->flops);
    }
    out->bytes += row->count * account->linear[RP_PART_TOKENS].row_bytes;
    out->flops += row->count * account->linear[RP_PART_TOKENS].row_flops;
    if (row->samples) {
        out->bytes += account->linear[RP_PART_SAMPLES].row_bytes;
        out->flops += account->linear[RP_PART_SAMPLES].row_flops;
    }
    return attention;
}

/* --- Splitting -------------------------------------------------------------------------------- */

struct split {
    uint32_t slots[2],
        padding[2];             /* rows of the two linear parts, padding included when that costs */
    double unit[RP_PART_COUNT]; /* weight of a token, of a sampled row, of a byte of attention */
};

/* The modelled cost of the two linear parts. */
static void find_parts(const struct rp_account *account, const struct rp_account_step *step,
                       struct split *split, double parts[2]) {
    const uint32_t live[2] = {step->token_count, step->sample_count};
    const uint32_t full[2] = {step->bucket.tokens, step->bucket.logit_rows};
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t n = split->slots[i] = account->padding_costs ? full[i] : live[i];
        uint64_t bytes = account->linear[i].fixed_bytes + n * account->linear[i].row_bytes;
        split->padding[i] = split->slots[i] - live[i];
        parts[i] = n ? cost(account, bytes, n * account->linear[i].row_flops) : 0;
    }
}

/* What the parts weigh: their modelled cost, times what a unit of it was measured to take. */
static void begin_split(const struct rp_account *account, const struct rp_account_step *step,
                        struct split *split) {
    const float *rates = account->rates[step->graph];
    double parts[2], other = rates[RP_PART_TOKENS] > 0 ? (double)rates[0] : 1;
    find_parts(account, step, split, parts);
    for (uint32_t i = 0; i < 2; i++) {
        double rate = rates[i] > 0 ? (double)rates[i] : other;
        split->unit[i] = split->slots[i] ? parts[i] * rate / split->slots[i] : 0;
    }
    split->unit[RP_PART_ATTENTION] =
        rates[RP_PART_ATTENTION] > 0 ? (double)rates[RP_PART_ATTENTION] : other;
}

/* Weight of a new measurement; the first one counts whole. */
static const float measure_weight = 0.125f;

void rp_account_measure(struct rp_account *account, const struct rp_account_step *step,
                        const struct rp_account_row *rows, uint32_t row_count,
                        const uint64_t parts_ns[RP_PART_COUNT]) {
    float *rates = account->rates[step->graph];
    double parts[RP_PART_COUNT];
    struct split split;
    find_parts(account, step, &split, parts);
    parts[RP_PART_ATTENTION] = 0;
    for (uint32_t i = 0; i < row_count; i++)
        parts[RP_PART_ATTENTION] += row_cost(account, &rows[i], &account->costs[i]);
    for (uint32_t i = 0; i < RP_PART_COUNT; i++) {
        /* A part without cost, or one that no stamp was taken of, says nothing. */
        if (parts[i] <= 0 || parts_ns[i] == 0)
            continue;
        float rate = (float)((double)parts_ns[i] / parts[i]);
        rates[i] = rates[i] > 0 ? rates[i] + (rate - rates[i]) * measure_weight : rate;
    }
}

/* Integer shares of `total`: each is the rounded running sum less the one before. */
struct dealer {
    uint64_t total, dealt;
    double scale, running; /* total by weight */
};

static uint64_t deal(struct dealer *dealer, double weight_of_one) {
    dealer->running += weight_of_one;
    uint64_t until = (uint64_t)(int64_t)(dealer->running * dealer->scale);
    until = RP_MIN(until, dealer->total); /* not below what was dealt: the sum does not fall */
    uint64_t part = until - dealer->dealt;
    dealer->dealt = until;
    return part;
}

/* The same for equal weights, `count` of `of` at a time. */
struct even_dealer {
    uint64_t base, rest, carry, of;
};

static struct even_dealer even_begin(uint64_t total, uint64_t of) {
    return of ? (struct even_dealer){.base = total / of, .rest = total % of, .of = of}
              : (struct even_dealer){.of = 1};
}

static uint64_t even_deal(struct even_dealer *dealer, uint64_t count) {
    uint64_t part = dealer->base * count;
    dealer->carry += dealer->rest * count;
    if (dealer->carry >= dealer->of) {
        /* One at a time there is no more than one to carry. */
        uint64_t whole = dealer->carry < 2 * dealer->of ? 1 : dealer->carry / dealer->of;
        part += whole;
        dealer->carry -= whole * dealer->of;
    }
    return part;
}

/* --- A step ----------------------------------------------------------------------------------- */

/* Cost and weight of each row. Bytes and operations: each row's own; the bytes of the model's
 * weights are split over the rows that they were read for. Returns the sum of the weights. */
static double weigh_rows(struct rp_account *account, const struct split *split,
                         const struct rp_account_row *rows, uint32_t row_count,
                         struct rp_account_totals *out) {
    struct even_dealer fixed[2];
    uint64_t bytes = 0, flops = 0;
    double sum = 0;
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t total = split->slots[i] ? account->linear[i].fixed_bytes : 0;
        fixed[i] = even_begin(total, split->slots[i]);
        bytes += total + split->padding[i] * account->linear[i].row_bytes;
        flops += split->padding[i] * account->linear[i].row_flops;
    }
    for (uint32_t i = 0; i < row_count; i++) {
        const struct rp_account_row *row = &rows[i];
        struct rp_account_cost own;
        own.weight = row_cost(account, row, &own) * split->unit[RP_PART_ATTENTION] +
                     row->count * split->unit[RP_PART_TOKENS];
        bytes += own.bytes;
        flops += own.flops;
        own.bytes += even_deal(&fixed[RP_PART_TOKENS], row->count);
        if (row->samples) {
            own.weight += split->unit[RP_PART_SAMPLES];
            own.bytes += even_deal(&fixed[RP_PART_SAMPLES], 1);
        }
        account->costs[i].bytes = own.bytes;
        account->costs[i].flops = own.flops;
        account->costs[i].weight = own.weight;
        sum += own.weight;
    }
    out->bytes = bytes;
    out->flops = flops;
    return sum;
}

/* Splits the step's time: padding first, then the rows; the rounding error goes to the last one.
 * Returns the share of prompt rows. */
static uint64_t deal_time(struct rp_account *account, const struct split *split, double row_weights,
                          const struct rp_account_row *rows, uint32_t row_count,
                          struct rp_account_totals *out) {
    double padding = split->padding[0] * split->unit[RP_PART_TOKENS] +
                     split->padding[1] * split->unit[RP_PART_SAMPLES];
    double sum = padding + row_weights;
    uint64_t prefill_ns = 0;
    struct dealer time = {.total = out->device_ns,
                          .scale = sum > 0 ? (double)out->device_ns / sum : 0};
    out->padding_ns = deal(&time, padding);
    for (uint32_t i = 0; i < row_count; i++) {
        uint64_t ns = deal(&time, account->costs[i].weight);
        if (i + 1 == row_count)
            ns += time.total - time.dealt;
        account->costs[i].ns = ns;
        if (!rows[i].request)
            out->unused_ns += ns;
        if (!rows[i].decode)
            prefill_ns += ns;
    }
    out->attributed_ns = out->device_ns - out->padding_ns - out->unused_ns;
    return prefill_ns;
}

static void give(struct rp_account *account, const struct rp_account_step *step,
                 const struct rp_account_row *row, const struct rp_account_cost *own,
                 uint64_t step_prefill_ns) {
    struct rp_request_stats *stats = &row->request->stats;
    stats->device_ns += own->ns;
    stats->prefill_device_ns += row->decode ? 0 : own->ns;
    stats->energy_pj += own->ns * step->power_mw;
    stats->bytes += own->bytes;
    stats->flops += own->flops;
    rp_note_row(account, step, row, step_prefill_ns);
}

/* Microjoules of ns at so much power; what is less is kept for the next step. */
static uint64_t to_uj(uint64_t ns, uint32_t power_mw, uint64_t *rest_pj) {
    uint64_t pj = ns * power_mw + *rest_pj;
    *rest_pj = pj % 1000000;
    return pj / 1000000;
}

static void add_energy(struct rp_account *account, uint32_t power_mw,
                       struct rp_account_totals *totals) {
    totals->attributed_uj = to_uj(totals->attributed_ns, power_mw, &account->rests_pj[0]);
    totals->padding_uj = to_uj(totals->padding_ns, power_mw, &account->rests_pj[1]);
    totals->unused_uj = to_uj(totals->unused_ns, power_mw, &account->rests_pj[2]);
    account->totals.attributed_uj += totals->attributed_uj;
    account->totals.padding_uj += totals->padding_uj;
    account->totals.unused_uj += totals->unused_uj;
}

void rp_account_step(struct rp_account *account, const struct rp_account_step *step,
                     const struct rp_account_row *rows, uint32_t row_count,
                     struct rp_account_totals *out) {
    struct rp_account_totals totals = {.device_ns = step->device_ns};
    struct split split;
    RP_ASSERT_CMP(row_count, >, 0);
    RP_ASSERT_CMP(row_count, <=, account->row_capacity);
    RP_ASSERT_CMP(step->graph, <, account->graph_count);
    if (step->power_mw != account->power_mw)
        rp_streaks_settle_energy(account, step->power_mw);
    begin_split(account, step, &split);
    rp_streaks_find(account, step, rows, row_count);
    double weights = weigh_rows(account, &split, rows, row_count, &totals);
    uint64_t prefill_ns = deal_time(account, &split, weights, rows, row_count, &totals);
    account->totals.device_ns += totals.device_ns;
    account->totals.attributed_ns += totals.attributed_ns;
    account->totals.padding_ns += totals.padding_ns;
    account->totals.unused_ns += totals.unused_ns;
    add_energy(account, step->power_mw, &totals);
    account->totals.bytes += totals.bytes;
    account->totals.flops += totals.flops;
    account->prefill_ns += prefill_ns;
    account->steps++;
    rp_streaks_step(account, step, prefill_ns);
    if (rp_streaks_add(account, step, rows, row_count) < row_count)
        for (uint32_t i = 0; i < row_count; i++)
            if (rows[i].request && !account->costs[i].goes_on)
                give(account, step, &rows[i], &account->costs[i], prefill_ns);
    if (out)
        *out = totals;
}

void rp_account_close(struct rp_account *account, struct rp_request *request) {
    if (request->stats.streak)
        rp_streak_end(account, request->stats.streak - 1);
}
