/* fake_module.c - the fake card as a module that `reprise` opens (REPRISE_CUDA_MODULE), so that the program
 * itself is tested on a card. Environment: FAKE_CARD=abi (another interface), =refuses (no card);
 * FAKE_CARD_MIB the card's memory, FAKE_CARD_FAILS a size whose capture fails. */
#include "tests/support/fake_backend.h"

#include <stdlib.h>
#include <string.h>

static int refuse(const struct rp_device_config *config, struct rp_device **out,
                  struct rp_error *err) {
    (void)config;
    (void)out;
    return rp_error_set(err, RP_STATUS_DEVICE, "fake: no card in this machine");
}

static int describe(char *json, size_t size) {
    static const char text[] =
        "{\"driver\": \"13.0\", \"runtime\": \"13.0\", \"devices\": [{\"name\": \"fake card\", "
        "\"memory_bytes\": 268435456, \"compute_capability\": \"9.0\"}]}";
    if (size < sizeof text)
        return RP_STATUS_RANGE;
    memcpy(json, text, sizeof text);
    return (int)sizeof text - 1;
}

const struct rp_backend *rp_backend_cuda_table(void) {
    static struct rp_backend table;
    const char *kind = getenv("FAKE_CARD"), *mib = getenv("FAKE_CARD_MIB");
    const char *fails = getenv("FAKE_CARD_FAILS");
    fake_backend_reset();
    if (mib)
        fake_backend_config.memory_bytes = strtoull(mib, NULL, 10) << 20;
    if (fails)
        fake_backend_config.failing_tokens = (uint32_t)strtoul(fails, NULL, 10);
    table = *fake_backend();
    table.describe = describe;
    if (kind && strcmp(kind, "abi") == 0)
        table.abi = 1;
    if (kind && strcmp(kind, "refuses") == 0)
        table.open = refuse;
    return &table;
}
