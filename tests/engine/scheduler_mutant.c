/* Goal: the simulator finds bugs. Method: linked with a copy of the scheduler that has one bug
 * (scheduler_mutants.py), this program must find it within 2,000 seeds; with the unchanged copy it
 * must find nothing. Exit status 0: passed. The simulation is a child process, because a bug may
 * also cause an assertion or an invalid access. */
#include "tests/support/sched_sim.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SEEDS_MAX 2000

extern const char rp_mutant_text[];
extern const int rp_mutant_has_bug;

struct outcome {
    uint64_t seed; /* the one being run */
    char text[200];
};

static void simulate(struct outcome *outcome) {
    struct sched_sim_report report = {0};
    /* Output of assertions and sanitizers is expected. */
    if (rp_mutant_has_bug && !freopen("/dev/null", "w", stderr))
        _exit(2);
    for (outcome->seed = 1; outcome->seed <= SEEDS_MAX; outcome->seed++)
        if (!sched_sim_run(outcome->seed, &report)) {
            snprintf(outcome->text, sizeof outcome->text, "%.199s", report.text);
            _exit(1);
        }
    _exit(0);
}

int main(void) {
    struct outcome *outcome =
        mmap(NULL, sizeof *outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (outcome == MAP_FAILED)
        return 2;
    pid_t child = fork();
    if (child == 0)
        simulate(outcome);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child ||
        (WIFEXITED(status) && WEXITSTATUS(status) > 1))
        return 2;
    int found = !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (found)
        printf("%s: seed %llu: %s\n", rp_mutant_text, (unsigned long long)outcome->seed,
               outcome->text[0] ? outcome->text : "an assertion, or a fault in memory");
    else
        printf("%s: nothing found in %d seeds\n", rp_mutant_text, SEEDS_MAX);
    return found == rp_mutant_has_bug ? 0 : 1;
}
