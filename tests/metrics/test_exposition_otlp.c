/* Goal: the registry's OTLP text is what the specification wants, byte for byte. In the expected
 * texts ' stands for ". */
#include "metrics/exposition.h"
#include "metrics/exposition_otlp.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct rp_registry registry;
static const struct rp_otlp_resource resource = {
    .name = "service", .version = "1.2", .instance = "i-1", .start_unix_ns = 1000};

#define HEAD                                                                                       \
    "{'resourceMetrics':[{'resource':{'attributes':["                                              \
    "{'key':'service.name','value':{'stringValue':'service'}},"                                    \
    "{'key':'service.version','value':{'stringValue':'1.2'}},"                                     \
    "{'key':'service.instance.id','value':{'stringValue':'i-1'}}]},"                               \
    "'scopeMetrics':[{'scope':{'name':'reprise.metrics','version':'1.2'},'metrics':["
#define TAIL "]}]}]}"

static int set_up(void **state) {
    (void)state;
    memset(&registry, 0, sizeof registry);
    return 0;
}

static void check(unsigned sets, const char *expected) {
    struct rp_buffer text = {.data = NULL};
    rp_exposition_otlp(&registry, sets, &resource, 2000, &text);
    rp_buffer_append(&text, "", 1);
    assert_false(text.failed);
    for (char *at = text.data; *at; at++)
        *at = *at == '"' ? '\'' : *at;
    assert_string_equal(text.data, expected);
    rp_buffer_deinit(&text);
}

static void test_counters_are_sums_of_their_series(void **state) {
    static const struct rp_metric_family bytes = {"x_bytes_total", "bytes", "Sent.",
                                                  RP_METRIC_COUNTER, 0};
    struct rp_counter in = {7}, out = {9007199254740993u};
    (void)state;
    rp_registry_add(&registry, &bytes, "direction=\"in\"", &in);
    rp_registry_add(&registry, &bytes, "direction=\"out\",to=\"a\\\\b\\\"c\\nd\"", &out);
    check(RP_METRICS_OWN, HEAD
          "{'name':'x_bytes_total','description':'Sent.','unit':'By','sum':{"
          "'aggregationTemporality':2,'isMonotonic':true,'dataPoints':["
          "{'attributes':[{'key':'direction','value':{'stringValue':'in'}}],"
          "'startTimeUnixNano':'1000','timeUnixNano':'2000','asDouble':7},"
          "{'attributes':[{'key':'direction','value':{'stringValue':'out'}},"
          "{'key':'to','value':{'stringValue':'a\\\\b\\'c\\nd'}}],"
          "'startTimeUnixNano':'1000','timeUnixNano':'2000','asDouble':9007199254740992}]}}" TAIL);
}

static void test_histograms_have_the_buckets_that_are_shown(void **state) {
    static const struct rp_metric_family time = {"x_seconds", "seconds", "Time.",
                                                 RP_METRIC_HISTOGRAM, 0};
    static const double bounds[] = {0.5, 1, 2}, shown[] = {1};
    struct rp_histogram histogram;
    (void)state;
    rp_histogram_init(&histogram, bounds, 3);
    for (int i = 0; i < 9; i++)
        rp_histogram_observe(&histogram, i * 0.25);
    rp_registry_add_projected(&registry, &time, NULL, &histogram, shown, 1);
    check(RP_METRICS_OWN,
          HEAD "{'name':'x_seconds','description':'Time.','unit':'s','histogram':{"
               "'aggregationTemporality':2,'dataPoints':[{'attributes':[],"
               "'startTimeUnixNano':'1000','timeUnixNano':'2000','count':'9','sum':9,"
               "'bucketCounts':['5','4'],'explicitBounds':[1]}]}}" TAIL);
}

static void put_numbers(void *ctx, struct rp_metric_out *out) {
    const double *values = ctx;
    rp_metric_put(out, "i=\"0\"", values[0]);
    rp_metric_put(out, "i=\"1\"", values[1]);
}

static void
test_values_that_json_cannot_say_and_families_without_points_are_left_out(void **state) {
    static const struct rp_metric_family ratio = {"x_ratio", "ratio", "R.", RP_METRIC_GAUGE, 0},
                                         none = {"y_watts", "watts", "W.", RP_METRIC_GAUGE, 0},
                                         info = {"z_info", NULL, "I.", RP_METRIC_INFO, 0},
                                         other = {"o", NULL, "O.", RP_METRIC_GAUGE,
                                                  RP_METRICS_VLLM};
    double some[] = {NAN, 0.25}, nothing[] = {NAN, INFINITY};
    struct rp_gauge gauge = {-3};
    (void)state;
    rp_registry_add_collected(&registry, &ratio, put_numbers, some);
    rp_registry_add_collected(&registry, &none, put_numbers, nothing);
    rp_registry_add(&registry, &info, "version=\"1\"", NULL);
    rp_registry_add(&registry, &other, NULL, &gauge);
    check(RP_METRICS_OWN,
          HEAD "{'name':'x_ratio','description':'R.','unit':'1','gauge':{'dataPoints':["
               "{'attributes':[{'key':'i','value':{'stringValue':'1'}}],"
               "'timeUnixNano':'2000','asDouble':0.25}]}},"
               "{'name':'z_info','description':'I.','unit':'','gauge':{'dataPoints':["
               "{'attributes':[{'key':'version','value':{'stringValue':'1'}}],"
               "'timeUnixNano':'2000','asDouble':1}]}}" TAIL);
    check(RP_METRICS_VLLM, HEAD "{'name':'o','description':'O.','unit':'','gauge':{'dataPoints':["
                                "{'attributes':[],'timeUnixNano':'2000','asDouble':-3}]}}" TAIL);
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup(name, set_up)
    const struct CMUnitTest tests[] = {
        CASE(test_counters_are_sums_of_their_series),
        CASE(test_histograms_have_the_buckets_that_are_shown),
        CASE(test_values_that_json_cannot_say_and_families_without_points_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
