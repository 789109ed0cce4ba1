#include "tests/support/dump_logits.h"

#include "tests/support/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDS_MAX = 1024, CHUNK_MAX = 512, PAGE_TOKENS = 64 };

static void feed(struct rp_driver *driver, const int32_t *ids, uint32_t count, uint32_t chunk,
                 FILE *out) {
    bool decode = chunk == 0;
    uint32_t step = RP_MAX(chunk, 1u);
    for (uint32_t at = 0; at < count; at += step) {
        if (decode)
            rp_driver_edit(driver, 0, RP_SLOT_LAST_TOKEN, 0, (uint32_t)ids[at]);
        rp_driver_row(driver, 0, decode ? NULL : ids + at, RP_MIN(step, count - at), true);
        rp_driver_run(driver, NULL);
        fwrite(rp_driver_logits(driver, 0), sizeof(float), driver->model->config.vocab, out);
    }
}

int rp_dump_logits(const struct rp_backend *backend, int argc, char **argv) {
    struct rp_model model;
    struct rp_driver driver;
    struct rp_error err = {0};
    enum rp_dtype dtype = strcmp(argv[4], "bf16") == 0 ? RP_DTYPE_BF16 : RP_DTYPE_F32;
    uint32_t chunk = (uint32_t)strtoul(argv[5], NULL, 10), count = (uint32_t)argc - 6;
    int32_t ids[IDS_MAX];
    if (count > IDS_MAX || chunk > CHUNK_MAX ||
        rp_model_load(argv[2], dtype, 0, NULL, NULL, &model, &err) != RP_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const struct rp_bucket bucket = {RP_MAX(chunk, 1u), 1, 1, chunk == 0};
    struct rp_driver_config config = {.backend = backend,
                                      .slots = 1,
                                      .pages_per_slot = IDS_MAX / PAGE_TOKENS,
                                      .page_tokens = PAGE_TOKENS,
                                      .threads = 2,
                                      .buckets = &bucket,
                                      .bucket_count = 1,
                                      .kv_dtype = dtype};
    rp_driver_open(&driver, &model, &config);
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (int32_t)strtol(argv[6 + i], NULL, 10);
    FILE *out = fopen(argv[3], "wb");
    if (out)
        feed(&driver, ids, count, chunk, out);
    int failed = !out || fclose(out) != 0;
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    return failed;
}
