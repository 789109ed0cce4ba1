/* Goal: ranks leave a point only when all have come to it, and see what the others wrote; a broken
 * one holds nobody.
 * Method: threads that count in arrays without atomics (the thread sanitizer sees a missing order),
 * more of them than cores. */
#include "device/cpu_ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { RANKS = 8, ROUNDS = 500 };

struct rank {
    struct rp_cpu_ranks *ranks;
    pthread_t thread;
    uint32_t index, rounds, rounds_max;
    bool agrees;
};

static uint32_t written[2][RANKS];

/* Writes its number, waits, and reads those of all; two arrays in turn, as exchanges do. */
static void *run(void *arg) {
    struct rank *rank = arg;
    rank->agrees = true;
    while (rank->rounds < rank->rounds_max) {
        uint32_t *now = written[rank->rounds % 2];
        now[rank->index] = rank->rounds + 1;
        if (!rp_cpu_ranks_wait(rank->ranks))
            break;
        rank->rounds++;
        for (uint32_t i = 0; i < RANKS; i++)
            rank->agrees = rank->agrees && now[i] == rank->rounds;
    }
    return NULL;
}

/* Rank `last` comes `fewer` times less often. */
static void start(struct rank ranks[RANKS], struct rp_cpu_ranks *point, uint32_t fewer) {
    for (uint32_t i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){
            .ranks = point, .index = i, .rounds_max = i == RANKS - 1 ? ROUNDS - fewer : ROUNDS};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run, &ranks[i]), 0);
    }
}

static void test_everybody_sees_what_all_wrote(void **state) {
    struct rank ranks[RANKS];
    struct rp_cpu_ranks *point = rp_cpu_ranks_create(RANKS);
    (void)state;
    assert_non_null(point);
    start(ranks, point, 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        pthread_join(ranks[i].thread, NULL);
        assert_true(ranks[i].agrees);
        assert_int_equal(ranks[i].rounds, ROUNDS);
    }
    rp_cpu_ranks_destroy(point);
}

static void test_a_rank_that_does_not_come_holds_nobody_once_it_breaks(void **state) {
    struct rank ranks[RANKS];
    struct rp_cpu_ranks *point = rp_cpu_ranks_create(RANKS);
    (void)state;
    assert_non_null(point);
    start(ranks, point, 7);
    pthread_join(ranks[RANKS - 1].thread, NULL); /* the others wait, or soon will */
    assert_int_equal(ranks[RANKS - 1].rounds, ROUNDS - 7);
    rp_cpu_ranks_break(point);
    for (uint32_t i = 0; i < RANKS - 1; i++) {
        pthread_join(ranks[i].thread, NULL);
        assert_true(ranks[i].agrees);
        assert_true(ranks[i].rounds <= ROUNDS - 7);
    }
    assert_false(rp_cpu_ranks_wait(point));
    rp_cpu_ranks_destroy(point);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everybody_sees_what_all_wrote),
        cmocka_unit_test(test_a_rank_that_does_not_come_holds_nobody_once_it_breaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
