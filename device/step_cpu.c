#include "device/step_cpu.h"

#include "base/clock.h"
#include "device/experts.h"

#include <string.h>

static void fail_step(struct rp_live_counts *counts) {
    counts->error = 1;
    counts->row_count = counts->token_count = counts->logit_row_count = counts->flags = 0;
    counts->scored = 0;
}

/* The tokens [first, end) of the step get logits; false: too many. */
static bool add_logit_rows(const struct rp_step_view *view, uint32_t row, uint32_t first,
                           uint32_t end) {
    struct rp_live_counts *counts = view->counts;
    if (end - first > view->config.logit_row_capacity - counts->logit_row_count)
        return false;
    for (uint32_t token = first; token < end; token++) {
        uint32_t logit_row = counts->logit_row_count++;
        view->logit_tokens[logit_row] = token;
        view->logit_rows[logit_row] = row;
        view->logit_targets[logit_row] = RP_NO_TARGET;
    }
    return true;
}

/* Which tokens the row's logits are to be scored for: the one after each of its own. */
static void add_targets(const struct rp_step_view *view, const struct rp_step_row *row) {
    struct rp_live_counts *counts = view->counts;
    uint32_t count = row->token_count - ((row->flags & RP_ROW_SAMPLE) ? 1 : 0);
    uint32_t first = counts->logit_row_count - row->token_count;
    for (uint32_t i = 0; i < count; i++)
        view->logit_targets[first + i] = view->prompt_ring[(row->prompt_offset + i + 1) &
                                                           (view->config.prompt_ring_capacity - 1)];
    counts->scored = 1;
}

/* Where the row's recurrent state comes from, and where and when it is saved; false: the packet
 * lies. */
static bool expand_state(const struct rp_step_view *view, uint32_t *slot,
                         struct rp_live_row *live) {
    uint32_t from = slot[RP_SLOT_STATE], save_at = slot[RP_SLOT_SAVE_AT];
    uint32_t places = view->config.state_places;
    if (places == 0)
        return true;
    live->save_to = slot[RP_SLOT_SAVE_TO];
    slot[RP_SLOT_STATE] = slot[RP_SLOT_SAVE_AT] = 0;
    live->state_from = from ? from - 1 : live->kv_begin ? live->slot : RP_STATE_ZERO;
    if (save_at > live->kv_begin && save_at - live->kv_begin <= live->token_count)
        live->save_at = save_at - live->kv_begin;
    return (from == 0 || live->state_from < places) && live->save_to < places;
}

/* Writes what the operators need to know of one row; returns false when the packet lies. */
static bool expand_row(const struct rp_step_view *view, const struct rp_step_row *row,
                       uint32_t index, struct rp_live_counts *counts) {
    const struct rp_step_config *config = &view->config;
    uint32_t *slot = view->slots + (size_t)row->slot * view->slot_words;
    struct rp_live_row *live = &view->rows[index];
    uint32_t begin = counts->token_count, length = slot[RP_SLOT_LENGTH];
    if (row->token_count == 0 || row->token_count > config->token_capacity - begin)
        return false;
    bool finished = slot[RP_SLOT_FINISHED] != 0;
    *live = (struct rp_live_row){.slot = row->slot,
                                 .token_begin = begin,
                                 .token_count = row->token_count,
                                 .kv_begin = length,
                                 .flags = finished ? 0 : row->flags};
    for (uint32_t i = 0; i < row->token_count; i++) {
        uint32_t token = begin + i;
        uint32_t prompt_at = (row->prompt_offset + i) & (config->prompt_ring_capacity - 1);
        view->token_ids[token] = (row->flags & RP_ROW_DECODE) ? (int32_t)slot[RP_SLOT_LAST_TOKEN]
                                                              : view->prompt_ring[prompt_at];
        view->positions[token] = finished ? 0 : length + i;
        /* A finished slot's row computes nothing: its pages may belong to somebody else soon. */
        view->token_rows[token] = finished ? RP_ROW_NONE : index;
    }
    counts->token_count += row->token_count;
    uint32_t end = counts->token_count;
    if (row->flags & RP_ROW_SCORE) {
        if (!add_logit_rows(view, index, begin, end))
            return false;
        add_targets(view, row);
    } else if ((row->flags & RP_ROW_SAMPLE) && !add_logit_rows(view, index, end - 1, end)) {
        return false;
    }
    live->logit_row = (row->flags & RP_ROW_SAMPLE) ? counts->logit_row_count - 1 : 0;
    return expand_state(view, slot, live);
}

/* Whether this step's nodes store their times; when they do, forgets those of the step before, and
 * begins its own. */
static void begin_stamps(const struct rp_step_view *view, uint32_t packet_flags) {
    struct rp_live_counts *counts = view->counts;
    counts->flags =
        view->config.stamp_capacity ? packet_flags : packet_flags & ~(uint32_t)RP_PACKET_STAMP;
    if (!(counts->flags & RP_PACKET_STAMP))
        return;
    for (uint32_t i = 0; i < view->config.stamp_capacity; i++)
        view->stamps[i] = RP_NODE_STAMP_NONE;
    view->stamps[0].begin_ns = counts->begin_ns;
}

void rp_step_publish_stamps(const struct rp_step_view *view, uint64_t step, uint32_t node,
                            uint64_t end_ns) {
    uint32_t capacity = view->config.stamp_capacity;
    view->stamps[node].end_ns = end_ns;
    memcpy(view->stamp_ring + (step % RP_STEP_RING_ENTRIES) * capacity, view->stamps,
           capacity * sizeof *view->stamps);
}

void rp_step_begin_cpu(const void *args_void, const struct rp_cpu_worker *worker) {
    const struct rp_step_begin_args *args = args_void;
    const struct rp_step_view *view = &args->step;
    struct rp_live_counts *counts = view->counts;
    if (worker->index != 0)
        return;
    counts->begin_ns = rp_clock_ns();
    uint64_t step = counts->step + 1;
    unsigned char *packet =
        (unsigned char *)view->packets + (step % RP_STEP_RING_ENTRIES) * view->packet_bytes;
    const struct rp_packet_header *header = (const struct rp_packet_header *)(const void *)packet;
    const struct rp_step_config *config = &view->config;
    counts->row_count = counts->token_count = counts->logit_row_count = counts->flags = 0;
    counts->scored = 0;
    if (counts->error || header->step != step || header->row_count > config->row_capacity ||
        header->edit_count > config->edit_capacity) {
        fail_step(counts);
        return;
    }
    begin_stamps(view, header->flags);
    const struct rp_slot_edit *edits = rp_packet_edits(packet, config);
    for (uint32_t i = 0; i < header->edit_count; i++) {
        size_t word = (size_t)edits[i].field + edits[i].index;
        if (edits[i].slot >= config->slot_count || word >= view->slot_words) {
            fail_step(counts);
            return;
        }
        view->slots[(size_t)edits[i].slot * view->slot_words + word] = edits[i].value;
    }
    const struct rp_step_row *rows = rp_packet_rows(packet);
    for (uint32_t i = 0; i < header->row_count; i++) {
        if (rows[i].slot >= config->slot_count || !expand_row(view, &rows[i], i, counts)) {
            fail_step(counts);
            return;
        }
    }
    counts->row_count = header->row_count;
}

/* Gives the next `bytes` of the block, aligned; base NULL counts only. */
static void *carve(unsigned char *base, size_t *used, size_t bytes) {
    void *at = base ? base + *used : NULL;
    *used += RP_ALIGN_UP(bytes, RP_CACHE_LINE);
    return at;
}

size_t rp_step_state_carve(const struct rp_step_config *config, unsigned char *base,
                           struct rp_step_view *view) {
    size_t used = 0;
    view->config = *config;
    view->slot_words = (uint32_t)RP_SLOT_PAGES + config->pages_per_slot;
    view->slots = carve(base, &used, (size_t)config->slot_count * view->slot_words * 4);
    view->counts = carve(base, &used, sizeof *view->counts);
    view->rows = carve(base, &used, (size_t)config->row_capacity * sizeof *view->rows);
    view->token_ids = carve(base, &used, (size_t)config->token_capacity * 4);
    view->positions = carve(base, &used, (size_t)config->token_capacity * 4);
    view->token_rows = carve(base, &used, (size_t)config->token_capacity * 4);
    view->logit_tokens = carve(base, &used, (size_t)config->logit_row_capacity * 4);
    view->logit_rows = carve(base, &used, (size_t)config->logit_row_capacity * 4);
    view->logit_targets = carve(base, &used, (size_t)config->logit_row_capacity * 4);
    view->stamps = carve(base, &used, config->stamp_capacity * sizeof *view->stamps);
    view->stamp_waits = carve(base, &used, config->stamp_capacity * sizeof *view->stamp_waits);
    /* Penalty counts: two bytes for each id, so 16 words for each word of a mask. */
    view->sample_state_words = config->vocab ? RP_SAMPLING_ALLOWED + 17 * rp_mask_words(config) : 0;
    view->sample_state = carve(base, &used, config->slot_count * view->sample_state_words * 4);
    if (config->late_copies) {
        view->masks = carve(base, &used, config->mask_capacity * rp_mask_words(config) * 4);
        view->late_flags =
            carve(base, &used, (size_t)RP_STEP_RING_ENTRIES * config->row_capacity * 4);
    }
    view->state = carve(base, &used, config->state_places * config->state_stride); /* last */
    return used;
}

size_t rp_step_rings_carve(const struct rp_step_config *config, unsigned char *base,
                           struct rp_step_view *view) {
    size_t used = 0;
    view->packet_bytes = rp_packet_bytes(config);
    view->result_bytes = rp_result_bytes(config);
    view->packets = carve(base, &used, view->packet_bytes * RP_STEP_RING_ENTRIES);
    view->results = carve(base, &used, view->result_bytes * RP_STEP_RING_ENTRIES);
    view->prompt_ring = carve(base, &used, (size_t)config->prompt_ring_capacity * 4);
    view->stamp_ring =
        carve(base, &used,
              (size_t)RP_STEP_RING_ENTRIES * config->stamp_capacity * sizeof *view->stamp_ring);
    view->late_inputs = carve(base, &used, (size_t)RP_STEP_RING_ENTRIES * config->row_capacity * 4);
    view->sample_input_words = config->vocab ? RP_SAMPLING_ALLOWED + 2 * rp_mask_words(config) : 0;
    view->sample_inputs = carve(base, &used, config->slot_count * view->sample_input_words * 4);
    view->mask_inputs = carve(base, &used, config->mask_capacity * rp_mask_words(config) * 4);
    view->expert_stats = carve(base, &used, sizeof *view->expert_stats);
    if (!config->late_copies) {
        view->masks = view->mask_inputs;
        view->late_flags = view->late_inputs;
    }
    return used;
}
