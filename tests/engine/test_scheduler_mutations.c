/* Goal: the simulator finds bugs. Method: the scheduler is compiled into this program with bugs
 * that can be switched on, and each must be found within 2,000 seeds. A run is a child process,
 * since a bug may also be found by an assertion or by touching foreign memory. */
#define RP_SCHED_MUTATIONS
#include "engine/scheduler.c"
#include "engine/scheduler_admit.c"
#include "engine/scheduler_check.c"
#include "engine/scheduler_commit.c"
#include "engine/scheduler_plan.c"
#include "engine/scheduler_swap.c"

#include "tests/support/sched_sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SEEDS_MAX 2000

enum rp_sched_mutation rp_sched_mutation;

static const char *const names[RP_MUTATION_COUNT] = {
    [RP_MUTATION_NONE] = "none",
    [RP_MUTATION_LEAK_ON_CANCEL] = "a cancelled sequence keeps a page",
    [RP_MUTATION_EARLY_REUSE] = "pages are free before the last planned step is over",
    [RP_MUTATION_BORDER_OFF_BY_ONE] = "a page border is crossed one token late",
    [RP_MUTATION_HASH_WITHOUT_SALT] = "prefixes are shared between salts",
    [RP_MUTATION_TOKEN_LOST_ON_SWAP] = "a result that arrives while swapped out is dropped",
    [RP_MUTATION_NAN_CACHED] = "pages with NaN are cached",
    [RP_MUTATION_CLOSED_TWICE] = "a cancel is answered again after a stop",
    [RP_MUTATION_CHUNK_AFTER_HIT] = "the first chunk starts one token late after a hit",
    [RP_MUTATION_LAST_TOKEN_NOT_RECOMPUTED] = "a prompt may be found whole",
    [RP_MUTATION_PARTIAL_PAGE_NOT_SWAPPED] = "the page being filled is not swapped out",
    [RP_MUTATION_TAIL_TOKEN_WRONG] = "a generated token is hashed in the wrong place",
    [RP_MUTATION_HOST_PAGE_LEAK] = "a sequence that ends while swapped keeps its host pages",
    [RP_MUTATION_NO_ROTATION] = "the oldest decode rows always go first",
    [RP_MUTATION_HIT_NOT_ACQUIRED] = "a page that was found is used without a reference",
    [RP_MUTATION_ONE_TOKEN_TOO_MANY] = "max_tokens is passed by one",
    [RP_MUTATION_EVENT_ROOM_IGNORED] = "rows are planned without room for their events",
    [RP_MUTATION_DIRTY_NOT_ZEROED] = "pages that held NaN are given out as they are",
    [RP_MUTATION_GENERATED_CACHED] = "pages that decode wrote are found by prompts",
};

struct outcome {
    uint64_t seed; /* the seed in work */
    bool reported;
    char text[200];
};

/* Seeds until the mutation is found; 0: it is not. */
static uint64_t find_mutation(enum rp_sched_mutation mutation, struct outcome *outcome) {
    memset(outcome, 0, sizeof *outcome);
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct sched_sim_report report = {0};
        /* What an assertion or a sanitizer prints is expected here. */
        if (mutation != RP_MUTATION_NONE && !freopen("/dev/null", "w", stderr))
            _exit(2);
        rp_sched_mutation = mutation;
        for (outcome->seed = 1; outcome->seed <= SEEDS_MAX; outcome->seed++) {
            if (!sched_sim_run(outcome->seed, &report)) {
                snprintf(outcome->text, sizeof outcome->text, "%.199s", report.text);
                _exit(1);
            }
        }
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (!outcome->text[0])
        snprintf(outcome->text, sizeof outcome->text, "an assertion, or a fault in memory");
    return outcome->seed;
}

static void test_the_simulator_finds_every_planted_bug(void **state) {
    (void)state;
    struct outcome *outcome =
        mmap(NULL, sizeof *outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint32_t missed = 0;
    assert_true(outcome != MAP_FAILED);
    assert_int_equal(find_mutation(RP_MUTATION_NONE, outcome), 0);
    for (uint32_t i = RP_MUTATION_NONE + 1; i < RP_MUTATION_COUNT; i++) {
        uint64_t seeds = find_mutation((enum rp_sched_mutation)i, outcome);
        if (seeds)
            printf("%-58s seed %4llu: %.60s\n", names[i], (unsigned long long)seeds, outcome->text);
        else
            printf("%-58s NOT FOUND\n", names[i]);
        missed += seeds == 0;
    }
    munmap(outcome, sizeof *outcome);
    assert_int_equal(missed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_simulator_finds_every_planted_bug),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
