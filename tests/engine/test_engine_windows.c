/* Goal: a model in which some layers have a window answers the same whether those layers keep all
 * pages or give back what their window has passed, and the pool then holds far more tokens.
 * Method: engine_windows_cases.h on the CPU. */
#include "tests/engine/engine_windows_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {WINDOWS_CASES};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
