/* Goal: also on a GPU a step whose rows wait for the host delays only its own sample launch, and
 * the other rows' answers do not change. Method: the cases of the fake GPU on a real one. */
#include "tests/engine/sample_hold_cases.h"
#include "tests/support/gpu_test.h"

int main(int argc, char **argv) {
    if (rp_gpu_test_skips(argc, argv))
        return 77;
    hold_backend = rp_backend_cuda_table();
    return cmocka_run_group_tests(hold_tests, NULL, NULL);
}
