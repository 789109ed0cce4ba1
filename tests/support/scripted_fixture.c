#include "tests/support/scripted_fixture.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_up(struct scripted_fixture *fixture) {
    fixture->plan = (struct rp_load_plan){.requests = fixture->requests};
    fixture->options = (struct rp_load_run_options){
        .target = {.base_url = fixture->server.url, .model = "scripted"}, .timeout_s = 60};
}

struct scripted_fixture *scripted_fixture_start(void) {
    struct scripted_fixture *fixture = calloc(1, sizeof *fixture);
    if (!fixture || !scripted_start(&fixture->server)) {
        free(fixture);
        return NULL;
    }
    set_up(fixture);
    return fixture;
}

void scripted_fixture_free(struct scripted_fixture *fixture) {
    if (!fixture)
        return;
    rp_load_records_free(&fixture->records);
    scripted_free(&fixture->server);
    free(fixture);
}

bool scripted_fixture_again(struct scripted_fixture *fixture) {
    rp_load_records_free(&fixture->records);
    scripted_free(&fixture->server);
    bool started = scripted_start(&fixture->server);
    set_up(fixture);
    return started;
}

void scripted_fixture_add(struct scripted_fixture *fixture, double at_ms, uint32_t tokens,
                          const char *script, ...) {
    uint32_t index = fixture->plan.count++;
    char *text = fixture->scripts[index];
    va_list args;
    RP_ASSERT_CMP(index, <, FIXTURE_REQUESTS);
    int used = snprintf(text, sizeof fixture->scripts[0], "script: n=%u ", index);
    va_start(args, script);
    used += vsnprintf(text + used, sizeof fixture->scripts[0] - (size_t)used, script, args);
    va_end(args);
    RP_ASSERT_CMP(used, <, sizeof fixture->scripts[0]);
    fixture->requests[index] = (struct rp_load_request){
        .at_ns = (uint64_t)(at_ms * 1e6), .text = text, .input_tokens = 3, .output_tokens = tokens};
}

int scripted_fixture_run(struct scripted_fixture *fixture) {
    rp_load_records_free(&fixture->records);
    return rp_load_run(&fixture->options, &fixture->plan, &fixture->records, &fixture->err);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double scripted_fixture_percentile(double *values, size_t count, double percent) {
    RP_ASSERT(count > 0);
    qsort(values, count, sizeof *values, compare);
    double at = percent / 100 * (double)(count - 1);
    size_t low = (size_t)at, high = RP_MIN(low + 1, count - 1);
    return values[low] + (at - (double)low) * (values[high] - values[low]);
}
