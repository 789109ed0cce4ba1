/* Goal: an exchange between GPUs takes the way that moves the fewest bytes, and has room for it. */
#include "device/exchange_cuda.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct rp_cuda_exchange chosen(uint32_t ranks, enum rp_dtype payload, uint32_t rows,
                                      uint32_t cols) {
    struct rp_cuda_exchange exchange = {
        .ranks = ranks, .resident = 132, .payload = payload, .bytes = (size_t)256 << 20};
    rp_exchange_choose(&exchange, rows, cols);
    return exchange;
}

static void test_up_to_2_mb_to_all_peers_go_as_packets(void **state) {
    (void)state;
    for (uint32_t ranks = 2; ranks <= 8; ranks *= 2) {
        uint32_t rows = 128 / (ranks - 1); /* of 16 KB */
        enum rp_exchange_way more = ranks == 2 ? RP_EXCHANGE_ONE_SHOT : RP_EXCHANGE_TWO_SHOT;
        assert_int_equal(chosen(ranks, RP_DTYPE_BF16, rows, 8192).way, RP_EXCHANGE_PACKETS);
        assert_int_equal(chosen(ranks, RP_DTYPE_F32, rows, 4096).way, RP_EXCHANGE_PACKETS);
        assert_int_equal(chosen(ranks, RP_DTYPE_BF16, rows + 1, 8192).way, more);
        assert_int_equal(chosen(ranks, RP_DTYPE_F32, rows + 1, 4096).way, more);
        /* each row begins with a packet of its own */
        assert_int_equal(chosen(ranks, RP_DTYPE_BF16, rows, 8189).way, RP_EXCHANGE_PACKETS);
        assert_int_equal(chosen(ranks, RP_DTYPE_BF16, rows + 1, 8189).way, more);
        assert_true((size_t)rows * 16384 <= rp_exchange_packet_room(ranks));
        /* a thread block for each row, all of which wait */
        assert_int_equal(chosen(ranks, RP_DTYPE_BF16, 132, 64).way, RP_EXCHANGE_PACKETS);
        assert_int_equal(chosen(ranks, RP_DTYPE_BF16, 133, 64).way, RP_EXCHANGE_ONE_SHOT);
    }
}

static void test_two_shots_are_taken_where_they_move_fewer_bytes(void **state) {
    (void)state;
    assert_int_equal(chosen(2, RP_DTYPE_BF16, 4096, 4096).way, RP_EXCHANGE_ONE_SHOT);
    assert_int_equal(chosen(2, RP_DTYPE_F32, 4096, 4096).way, RP_EXCHANGE_ONE_SHOT);
    for (uint32_t ranks = 4; ranks <= 8; ranks *= 2) {
        assert_int_equal(chosen(ranks, RP_DTYPE_BF16, 133, 512).way, RP_EXCHANGE_ONE_SHOT);
        assert_int_equal(chosen(ranks, RP_DTYPE_BF16, 256, 512).way, RP_EXCHANGE_ONE_SHOT);
        assert_int_equal(chosen(ranks, RP_DTYPE_BF16, 257, 512).way, RP_EXCHANGE_TWO_SHOT);
        assert_int_equal(chosen(ranks, RP_DTYPE_F32, 133, 512).way, RP_EXCHANGE_TWO_SHOT);
    }
}

static void test_sums_have_a_place_behind_the_payload(void **state) {
    (void)state;
    struct rp_cuda_exchange exchange = chosen(4, RP_DTYPE_BF16, 101, 4096);
    assert_true(exchange.sums_at >= (size_t)101 * 4096 * 2);
    assert_int_equal(exchange.sums_at % 16, 0);
    exchange.bytes = exchange.sums_at + (size_t)26 * 4096 * 4; /* a rank owns at most 26 rows */
    rp_exchange_choose(&exchange, 101, 4096);
    assert_int_equal(exchange.way, RP_EXCHANGE_TWO_SHOT);
    exchange.bytes--;
    rp_exchange_choose(&exchange, 101, 4096);
    assert_int_equal(exchange.way, RP_EXCHANGE_ONE_SHOT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_up_to_2_mb_to_all_peers_go_as_packets),
        cmocka_unit_test(test_two_shots_are_taken_where_they_move_fewer_bytes),
        cmocka_unit_test(test_sums_have_a_place_behind_the_payload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
