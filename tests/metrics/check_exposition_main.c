/* check_exposition_main.c - `check_exposition prometheus|openmetrics|lint <TEXT`: a line per fault, then one of counts.
 * Exits with 1 when there are faults. */
#include "base/buffer.h"
#include "tests/support/exposition_check.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    struct rp_buffer text = {.data = NULL};
    struct rp_exposition_report report;
    char bytes[65536];
    size_t n;
    const char *what = argc == 2 ? argv[1] : "";
    if (strcmp(what, "prometheus") != 0 && strcmp(what, "openmetrics") != 0 &&
        strcmp(what, "lint") != 0) {
        fprintf(stderr, "check_exposition: prometheus, openmetrics or lint\n");
        return 2;
    }
    while ((n = fread(bytes, 1, sizeof bytes, stdin)) > 0)
        rp_buffer_append(&text, bytes, n);
    const char *at = text.data ? text.data : "";
    if (strcmp(what, "lint") == 0)
        rp_exposition_lint(at, text.len, &report);
    else
        rp_exposition_check(what[0] == 'o' ? RP_EXPOSITION_OPENMETRICS : RP_EXPOSITION_PROMETHEUS,
                            at, text.len, &report);
    for (uint32_t i = 0; i < RP_MIN(report.fault_count, (uint32_t)RP_EXPOSITION_FAULTS_MAX); i++)
        printf("line %u: %s\n", report.faults[i].line, report.faults[i].text);
    printf("faults=%u families=%u samples=%u exemplars=%u\n", report.fault_count, report.families,
           report.samples, report.exemplars);
    rp_buffer_deinit(&text);
    return report.fault_count ? 1 : 0;
}
