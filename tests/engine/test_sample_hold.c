/* Goal: a step whose rows wait for the host before sampling delays only its own sample launch, at
 * most until the deadline; the other rows' answers do not change. Method: engines on a fake GPU
 * and on the CPU. */
#include "tests/engine/sample_hold_cases.h"

int main(void) {
    hold_backend = fake_backend();
    return cmocka_run_group_tests(hold_tests, NULL, NULL);
}
