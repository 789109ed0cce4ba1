/* kernels_step.c - the step state that operators read, computed on the host and copied to the
 * device. */
#include "base/memory.h"
#include "bench/kernels_internal.h"
#include "device/step_cpu.h"

#include <string.h>

static uint32_t largest(const uint32_t *values, uint32_t count, uint32_t max) {
    uint32_t result = 1;
    for (uint32_t i = 0; i < count; i++)
        if (values[i] <= max)
            result = RP_MAX(result, values[i]);
    return result;
}

int rp_kernels_step_open(struct kernels_bench *bench, struct rp_error *err) {
    const struct rp_bench_kernels_config *config = bench->config;
    uint32_t rows = largest(config->rows, config->row_count, KERNELS_DECODE_ROWS_MAX);
    uint32_t tokens = largest(config->rows, config->row_count, UINT32_MAX);
    uint32_t context = largest(config->contexts, config->context_count, UINT32_MAX);
    struct rp_step_config step = {
        .slot_count = rows,
        .pages_per_slot = RP_CEIL_DIV(RP_MAX(context, tokens) + 1, bench->info.page_tokens),
        .row_capacity = rows,
        .token_capacity = tokens,
        .logit_row_capacity = rows,
        .edit_capacity = 1,
        .prompt_ring_capacity = 1};
    while (step.prompt_ring_capacity < tokens)
        step.prompt_ring_capacity *= 2;
    bench->state_bytes = rp_step_state_carve(&step, NULL, &bench->host);
    size_t ring_bytes = rp_step_rings_carve(&step, NULL, &bench->host);
    bench->host_state = rp_alloc_aligned(bench->state_bytes, RP_CACHE_LINE);
    bench->device_state =
        bench->backend->alloc(bench->device, bench->state_bytes, RP_MEMORY_DEVICE);
    bench->rings = bench->backend->alloc(bench->device, ring_bytes, RP_MEMORY_HOST);
    if (!bench->host_state || !bench->device_state || !bench->rings)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for the step state");
    memset(bench->rings, 0, ring_bytes);
    rp_step_state_carve(&step, bench->host_state, &bench->host);
    rp_step_rings_carve(&step, bench->rings, &bench->host);
    rp_step_state_carve(&step, bench->device_state, &bench->view);
    rp_step_rings_carve(&step, bench->rings, &bench->view);
    return RP_OK;
}

void rp_kernels_step_close(struct kernels_bench *bench) {
    rp_free_aligned(bench->host_state);
    if (bench->device_state)
        bench->backend->free(bench->device, bench->device_state, RP_MEMORY_DEVICE);
    if (bench->rings)
        bench->backend->free(bench->device, bench->rings, RP_MEMORY_HOST);
}

static uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The pages of a sequence are scattered, as in a pool that has been in use. */
static void fill_slot(struct kernels_bench *bench, const struct kernels_case *op_case,
                      uint32_t index, uint32_t slots, uint32_t pages) {
    uint32_t *slot = bench->host.slots + (size_t)index * bench->host.slot_words;
    slot[RP_SLOT_LENGTH] = op_case->rows > KERNELS_DECODE_ROWS_MAX ? 0 : op_case->context;
    slot[RP_SLOT_LAST_TOKEN] = index * 7919u % bench->shape.vocab;
    slot[RP_SLOT_TOP_P] = float_bits(1.0f);
    slot[RP_SLOT_SEED_LOW] = index + 1;
    if (op_case->kind == KERNELS_SAMPLE_TOP) {
        slot[RP_SLOT_TEMPERATURE] = float_bits(0.8f);
        slot[RP_SLOT_TOP_K] = 50;
        slot[RP_SLOT_TOP_P] = float_bits(0.95f);
    }
    for (uint32_t page = 0; page < pages; page++)
        slot[RP_SLOT_PAGES + page] = 1 + page * slots + (index + page * 3) % slots;
}

int rp_kernels_step_set(struct kernels_bench *bench, const struct kernels_case *op_case) {
    struct rp_cpu_worker worker = {.index = 0, .count = 1};
    bool prompt = op_case->rows > KERNELS_DECODE_ROWS_MAX;
    uint32_t rows = prompt ? 1 : op_case->rows;
    uint32_t tokens = prompt ? op_case->rows : op_case->context + 1;
    unsigned char *packet = bench->rings + bench->host.packet_bytes; /* entry 1 belongs to step 1 */
    struct rp_packet_header header = {
        .step = 1, .row_count = rows, .token_count = op_case->rows, .logit_row_count = rows};
    memset(bench->host_state, 0, bench->state_bytes);
    for (uint32_t i = 0; i < rows; i++) {
        fill_slot(bench, op_case, i, rows, RP_CEIL_DIV(tokens, bench->info.page_tokens));
        rp_packet_rows(packet)[i] =
            (struct rp_step_row){.slot = i,
                                 .token_count = prompt ? op_case->rows : 1,
                                 .flags = RP_ROW_SAMPLE | (prompt ? 0 : RP_ROW_DECODE)};
    }
    memcpy(packet, &header, sizeof header);
    rp_step_begin_cpu(&(struct rp_step_begin_args){.step = bench->host}, &worker);
    RP_ASSERT(bench->host.counts->error == 0);
    int status = bench->backend->copy(bench->device, bench->device_state, bench->host_state,
                                      bench->state_bytes);
    return status == RP_OK ? bench->backend->synchronize(bench->device) : status;
}
