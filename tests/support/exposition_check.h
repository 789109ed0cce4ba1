/* exposition_check.h - checks metrics texts: Prometheus' format 0.0.4, OpenMetrics 1.0, and the
 * style of names.
 *
 * Grammar and semantics follow the specifications named in metrics/exposition.h, style the rules of
 * `promtool check metrics` (client_golang, prometheus/testutil/promlint). Any bytes are legal
 * input.
 * Memory: freed before it returns. Thread: any. */
#ifndef RP_TESTS_EXPOSITION_CHECK_H
#define RP_TESTS_EXPOSITION_CHECK_H

#include "metrics/exposition.h"

#define RP_EXPOSITION_FAULTS_MAX 64

struct rp_exposition_fault {
    uint32_t line; /* from 1; 0: the whole text */
    char text[160];
};

struct rp_exposition_report {
    struct rp_exposition_fault faults[RP_EXPOSITION_FAULTS_MAX]; /* the first ones */
    uint32_t fault_count;
    uint32_t families, samples, exemplars;
};

/* True if the text has that format and obeys its rules. */
void rp_exposition_check(enum rp_exposition format, const char *text, size_t len,
                         struct rp_exposition_report *out);
/* promlint's rules, for a valid text of Prometheus' format. */
void rp_exposition_lint(const char *text, size_t len, struct rp_exposition_report *out);

#endif
