#include "engine/batch.h"

#include "engine/rows.h"

#include <string.h>

/* The scheduler must not see device headers and has its own names for these. */
_Static_assert((int)RP_SCHED_RESULT_STOPPED == (int)RP_RESULT_STOPPED &&
                   (int)RP_SCHED_RESULT_NAN == (int)RP_RESULT_NAN &&
                   (int)RP_SCHED_RESULT_SKIPPED == (int)RP_RESULT_SKIPPED &&
                   (int)RP_SCHED_RESULT_WITHHELD == (int)RP_RESULT_WITHHELD,
               "result flags of scheduler.h and step.h differ");

_Static_assert(sizeof(struct rp_sched_scores) == sizeof(struct rp_token_scores) &&
                   offsetof(struct rp_sched_scores, logprob) ==
                       offsetof(struct rp_token_scores, logprob) &&
                   offsetof(struct rp_sched_scores, rank) ==
                       offsetof(struct rp_token_scores, rank) &&
                   offsetof(struct rp_sched_scores, top_count) ==
                       offsetof(struct rp_token_scores, top_count) &&
                   offsetof(struct rp_sched_scores, top) == offsetof(struct rp_token_scores, top) &&
                   offsetof(struct rp_logprob, logprob) == offsetof(struct rp_token_score, logprob),
               "scores of scheduler.h and step.h differ");

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

static uint32_t features_of(const struct rp_request *request) {
    const struct rp_sampling *sampling = &request->sampling;
    bool repeats = sampling->repetition_penalty != 0.0f && sampling->repetition_penalty != 1.0f;
    bool penalties =
        repeats || sampling->presence_penalty != 0.0f || sampling->frequency_penalty != 0.0f;
    bool allowed = request->allowed || (request->hold && request->hold->allowed);
    return (penalties ? RP_FEATURE_PENALTIES : 0u) |
           (request->bias_count ? RP_FEATURE_BIASES : 0u) |
           (request->bad_word_ints ? RP_FEATURE_BAD_WORDS : 0u) |
           (allowed ? RP_FEATURE_ALLOWED : 0u) | (request->logprobs ? RP_FEATURE_LOGPROBS : 0u) |
           (request->prompt_logprobs ? RP_FEATURE_PROMPT_LOGPROBS : 0u);
}

static uint32_t count_bad_words(const struct rp_request *request) {
    uint32_t count = 0;
    for (uint32_t at = 0; at < request->bad_word_ints; at += 1 + (uint32_t)request->bad_words[at])
        count++;
    return count;
}

/* Heads first, so that each word can be checked alone. */
static void write_bad_words(const struct rp_request *request, uint32_t *out) {
    uint32_t word = 0, to = count_bad_words(request);
    for (uint32_t at = 0; at < request->bad_word_ints; word++) {
        uint32_t count = (uint32_t)request->bad_words[at++];
        RP_ASSERT(count >= 1 && count <= RP_BAD_WORD_MAX && count <= request->bad_word_ints - at);
        out[word] = to << 8 | count;
        for (uint32_t i = 0; i < count; i++)
            out[to++] = (uint32_t)request->bad_words[at++];
    }
}

/* The slot's sample inputs. No step in flight names the slot, so nothing reads them meanwhile. */
static void write_inputs(struct rp_batch *batch, const struct rp_sched_join *join,
                         uint32_t features) {
    const struct rp_step_config *config = &batch->view.config;
    const struct rp_request *request = join->request;
    uint32_t *inputs =
        (uint32_t *)batch->view.sample_inputs + join->slot * batch->view.sample_input_words;
    for (uint32_t i = 0; i < request->bias_count; i++) {
        inputs[RP_SAMPLING_BIASES + 2 * i] = (uint32_t)request->biases[i].token;
        inputs[RP_SAMPLING_BIASES + 2 * i + 1] = float_bits(request->biases[i].value);
    }
    write_bad_words(request, inputs + RP_SAMPLING_BAD_WORDS);
    if (request->allowed)
        memcpy(inputs + RP_SAMPLING_ALLOWED, request->allowed, RP_CEIL_DIV(config->vocab, 32) * 4);
    if (!(features & RP_FEATURE_PENALTIES))
        return;
    uint32_t *ids = inputs + RP_SAMPLING_ALLOWED + rp_mask_words(config);
    memset(ids, 0, rp_mask_words(config) * 4);
    /* Presence and frequency are of the answer alone. */
    if (request->sampling.repetition_penalty != 0.0f &&
        request->sampling.repetition_penalty != 1.0f)
        for (uint32_t i = 0; i < request->prompt_count; i++)
            ids[(uint32_t)request->prompt[i] / 32] |= 1u << (uint32_t)request->prompt[i] % 32;
}

static void encode_features(struct rp_batch *batch, struct edit_writer *writer,
                            const struct rp_sched_join *join, uint32_t features) {
    const struct rp_request *request = join->request;
    const struct rp_sampling *sampling = &request->sampling;
    uint32_t slot = join->slot;
    float repetition = sampling->repetition_penalty;
    RP_ASSERT_CMP(batch->view.config.vocab, >, 0);
    RP_ASSERT_CMP(request->bias_count, <=, RP_LOGIT_BIAS_MAX);
    RP_ASSERT_CMP(request->bad_word_ints, <=, 2 * RP_BAD_TOKENS_MAX);
    edit(writer, slot, RP_SLOT_REPETITION, 0, float_bits(repetition != 0.0f ? repetition : 1.0f));
    edit(writer, slot, RP_SLOT_PRESENCE, 0, float_bits(sampling->presence_penalty));
    edit(writer, slot, RP_SLOT_FREQUENCY, 0, float_bits(sampling->frequency_penalty));
    edit(writer, slot, RP_SLOT_BIAS_COUNT, 0, request->bias_count);
    edit(writer, slot, RP_SLOT_BAD_COUNT, 0, count_bad_words(request));
    edit(writer, slot, RP_SLOT_TOP_LOGPROBS, 0, request->top_logprobs);
    edit(writer, slot, RP_SLOT_TOP_PROMPT_LOGPROBS, 0, request->top_prompt_logprobs);
    write_inputs(batch, join, features);
}

static void encode_join(struct rp_batch *batch, struct edit_writer *writer,
                        const struct rp_sched_join *join) {
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
    uint32_t features = features_of(request);
    edit(writer, slot, RP_SLOT_FEATURES, 0, features);
    if (features)
        encode_features(batch, writer, join, features);
    edit(writer, slot, RP_SLOT_STOP_COUNT, 0, request->stop_count);
    for (uint32_t i = 0; i < request->stop_count; i++)
        edit(writer, slot, RP_SLOT_STOP_IDS, i, (uint32_t)request->stop_ids[i]);
    const int32_t *params = rp_batch_mask_params(batch, request);
    for (uint32_t i = 0; i < batch->mask_param_count; i++)
        edit(writer, slot, RP_SLOT_MASK_PARAMS, i, (uint32_t)params[i]);
    const struct rp_step_config *config = &batch->view.config;
    if (config->state_places && join->length)
        edit(writer, slot, RP_SLOT_STATE, 0, 1 + config->slot_count + join->snapshot);
}

/* Copies a chunk of the prompt into the staging ring, and the next token when it is to be
 * scored; returns its offset. */
static uint32_t stage_prompt(struct rp_batch *batch, const struct rp_sched_row *row) {
    uint32_t mask = batch->view.config.prompt_ring_capacity - 1, offset = batch->prompt_cursor;
    int32_t *ring = (int32_t *)batch->view.prompt_ring;
    uint32_t count = rp_row_staged(row);
    for (uint32_t i = 0; i < count; i++)
        ring[(offset + i) & mask] = row->request->prompt[row->start + i];
    batch->prompt_cursor += count;
    return offset & mask;
}

static uint32_t prompt_flags(const struct rp_sched_row *row) {
    return (row->samples ? RP_ROW_SAMPLE : 0u) | (row->scores ? RP_ROW_SCORE : 0u);
}

uint32_t rp_batch_encode(struct rp_batch *batch, const struct rp_sched_step *step,
                         uint64_t device_step, uint32_t flags) {
    const struct rp_step_config *config = &batch->view.config;
    unsigned char *packet = (unsigned char *)batch->view.packets +
                            (device_step % RP_STEP_RING_ENTRIES) * batch->view.packet_bytes;
    struct rp_packet_header *header = (struct rp_packet_header *)(void *)packet;
    struct edit_writer writer = {rp_packet_edits(packet, config), 0, config->edit_capacity};
    struct rp_step_row *rows = rp_packet_rows(packet);
    RP_ASSERT_CMP(step->row_count, <=, config->row_capacity);
    for (uint32_t i = 0; i < step->join_count; i++)
        encode_join(batch, &writer, &step->joins[i]);
    for (uint32_t i = 0; i < step->save_count; i++) {
        const struct rp_sched_save *save = &step->saves[i];
        edit(&writer, save->slot, RP_SLOT_SAVE_AT, 0, save->position);
        edit(&writer, save->slot, RP_SLOT_SAVE_TO, 0, config->slot_count + save->snapshot);
    }
    for (uint32_t i = 0; i < step->page_count; i++)
        edit(&writer, step->pages[i].slot, RP_SLOT_PAGES, step->pages[i].index,
             step->pages[i].page);
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct rp_sched_row *row = &step->rows[i];
        rows[i] = (struct rp_step_row){.slot = row->slot,
                                       .token_count = row->count,
                                       .prompt_offset = row->decode ? 0 : stage_prompt(batch, row),
                                       .flags = row->decode ? RP_ROW_DECODE | RP_ROW_SAMPLE
                                                            : prompt_flags(row)};
    }
    *header = (struct rp_packet_header){.step = device_step,
                                        .row_count = step->row_count,
                                        .token_count = step->token_count,
                                        .logit_row_count = step->sample_count,
                                        .edit_count = writer.count,
                                        .flags = flags | (step->holds ? RP_PACKET_LATE_FLAGS : 0u)};
    return (uint32_t)(sizeof *header + step->row_count * sizeof *rows +
                      writer.count * sizeof *writer.edits);
}

/* Logit rows lie in the order of the step's rows. */
static void attach_scores(struct rp_batch *batch, unsigned char *entry,
                          const struct rp_sched_step *step) {
    const struct rp_sched_scores *scores =
        (const struct rp_sched_scores *)(const void *)rp_result_scores(entry, &batch->view.config);
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct rp_sched_row *row = &step->rows[i];
        batch->results[i].scores = scores;
        scores += rp_row_logits(row);
    }
}

bool rp_batch_decode(struct rp_batch *batch, uint64_t device_step,
                     const struct rp_sched_step *step) {
    unsigned char *entry =
        batch->view.results + (device_step % RP_STEP_RING_ENTRIES) * batch->view.result_bytes;
    const struct rp_result_header *header = (const struct rp_result_header *)(const void *)entry;
    const struct rp_row_result *rows = rp_result_rows(entry);
    if (header->error || header->row_count != step->row_count)
        return false;
    batch->begin_ns = header->begin_ns;
    batch->end_ns = header->end_ns;
    for (uint32_t i = 0; i < step->row_count; i++)
        batch->results[i] =
            (struct rp_sched_result){rows[i].token, rows[i].logprob, rows[i].flags, NULL};
    if (step->scored)
        attach_scores(batch, entry, step);
    return true;
}
