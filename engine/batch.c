#include "engine/batch.h"

#include <string.h>

/* The scheduler must not see device headers and has its own names for these. */
_Static_assert((int)RP_SCHED_RESULT_STOPPED == (int)RP_RESULT_STOPPED &&
                   (int)RP_SCHED_RESULT_NAN == (int)RP_RESULT_NAN &&
                   (int)RP_SCHED_RESULT_SKIPPED == (int)RP_RESULT_SKIPPED,
               "result flags of scheduler.h and step.h differ");

static uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

struct edit_writer {
    struct rp_slot_edit *edits;
    uint32_t count, capacity;
};

static void edit(struct edit_writer *writer, uint32_t slot, uint32_t field, uint32_t index,
                 uint32_t value) {
    RP_ASSERT_CMP(writer->count, <, writer->capacity);
    writer->edits[writer->count++] = (struct rp_slot_edit){slot, field, index, value};
}

static void encode_join(struct edit_writer *writer, const struct rp_sched_join *join) {
    const struct rp_request *request = join->request;
    const struct rp_sampling *sampling = &request->sampling;
    uint32_t slot = join->slot;
    edit(writer, slot, RP_SLOT_LENGTH, 0, join->length);
    edit(writer, slot, RP_SLOT_LAST_TOKEN, 0, 0);
    edit(writer, slot, RP_SLOT_OUTPUT_COUNT, 0, 0);
    edit(writer, slot, RP_SLOT_FINISHED, 0, 0);
    edit(writer, slot, RP_SLOT_TEMPERATURE, 0, float_bits(sampling->temperature));
    edit(writer, slot, RP_SLOT_TOP_K, 0, sampling->top_k);
    edit(writer, slot, RP_SLOT_TOP_P, 0, float_bits(sampling->top_p));
    edit(writer, slot, RP_SLOT_MIN_P, 0, float_bits(sampling->min_p));
    edit(writer, slot, RP_SLOT_SEED_LOW, 0, (uint32_t)sampling->seed);
    edit(writer, slot, RP_SLOT_SEED_HIGH, 0, (uint32_t)(sampling->seed >> 32));
    edit(writer, slot, RP_SLOT_MIN_TOKENS, 0, request->min_tokens);
    edit(writer, slot, RP_SLOT_STOP_COUNT, 0, request->stop_count);
    for (uint32_t i = 0; i < request->stop_count; i++)
        edit(writer, slot, RP_SLOT_STOP_IDS, i, (uint32_t)request->stop_ids[i]);
}

/* Copies a chunk of the prompt into the staging ring; returns its offset. */
static uint32_t stage_prompt(struct rp_batch *batch, const struct rp_sched_row *row) {
    uint32_t mask = batch->view.config.prompt_ring_capacity - 1, offset = batch->prompt_cursor;
    int32_t *ring = (int32_t *)batch->view.prompt_ring;
    for (uint32_t i = 0; i < row->count; i++)
        ring[(offset + i) & mask] = row->request->prompt[row->start + i];
    batch->prompt_cursor += row->count;
    return offset & mask;
}

uint32_t rp_batch_encode(struct rp_batch *batch, const struct rp_sched_step *step,
                         uint64_t device_step) {
    const struct rp_step_config *config = &batch->view.config;
    unsigned char *packet = (unsigned char *)batch->view.packets +
                            (device_step % RP_STEP_RING_ENTRIES) * batch->view.packet_bytes;
    struct rp_packet_header *header = (struct rp_packet_header *)(void *)packet;
    struct edit_writer writer = {rp_packet_edits(packet, config), 0, config->edit_capacity};
    struct rp_step_row *rows = rp_packet_rows(packet);
    RP_ASSERT_CMP(step->row_count, <=, config->row_capacity);
    for (uint32_t i = 0; i < step->join_count; i++)
        encode_join(&writer, &step->joins[i]);
    for (uint32_t i = 0; i < step->page_count; i++)
        edit(&writer, step->pages[i].slot, RP_SLOT_PAGES, step->pages[i].index,
             step->pages[i].page);
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct rp_sched_row *row = &step->rows[i];
        rows[i] = (struct rp_step_row){.slot = row->slot,
                                       .token_count = row->count,
                                       .prompt_offset = row->decode ? 0 : stage_prompt(batch, row),
                                       .flags = (row->decode ? RP_ROW_DECODE : 0u) |
                                                (row->samples ? RP_ROW_SAMPLE : 0u)};
    }
    *header = (struct rp_packet_header){.step = device_step,
                                        .row_count = step->row_count,
                                        .token_count = step->token_count,
                                        .logit_row_count = step->sample_count,
                                        .edit_count = writer.count};
    return (uint32_t)(sizeof *header + step->row_count * sizeof *rows +
                      writer.count * sizeof *writer.edits);
}

bool rp_batch_decode(struct rp_batch *batch, uint64_t device_step, uint32_t row_count) {
    unsigned char *entry =
        batch->view.results + (device_step % RP_STEP_RING_ENTRIES) * batch->view.result_bytes;
    const struct rp_result_header *header = (const struct rp_result_header *)(const void *)entry;
    const struct rp_row_result *rows = rp_result_rows(entry);
    if (header->error || header->row_count != row_count)
        return false;
    batch->begin_ns = header->begin_ns;
    batch->end_ns = header->end_ns;
    for (uint32_t i = 0; i < row_count; i++)
        batch->results[i] = (struct rp_sched_result){rows[i].token, rows[i].logprob, rows[i].flags};
    return true;
}
