/* data.h - paths of real models and texts, and the message when they are missing. */
#ifndef RP_TESTS_SUPPORT_DATA_H
#define RP_TESTS_SUPPORT_DATA_H

#include "base/base.h"

/* Writes REPRISE_TEST_DATA/relative (default: ../shared/data beside the source tree) into out;
 * false, with a line that names what is missing, when it is not there: the test then calls
 * skip(). */
bool rp_test_data(const char *relative, char *out, size_t size);
/* A path below the source tree. */
void rp_test_source(const char *relative, char *out, size_t size);

#endif
