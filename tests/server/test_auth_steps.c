/* Goal: how much of a key was guessed, and which key it is, changes nothing that a client could
 * time. Method: a process checks a key and is single-stepped meanwhile (ptrace); the number of
 * instructions must be the same wherever the digests differ. A count is exact where a clock is
 * not. */
#include "server/http/auth.h"

#include <openssl/sha.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define HEADER "Bearer a-key-of-the-usual-length-0123456789abcdef"
enum { KEYS = 4, NOT_TRACED = 77 };

/* The process that is counted: two checks, so that what the first initializes is not counted. */
static _Noreturn void check_twice(const struct rp_auth *auth, int32_t expected) {
    bool good = rp_auth_check(auth, HEADER) == expected;
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(NOT_TRACED);
    raise(SIGSTOP);
    int32_t found = rp_auth_check(auth, HEADER);
    raise(SIGSTOP);
    _exit(good && found == expected ? 0 : 1);
}

/* Instructions between the two stops; -1: this process may not trace. */
static long count_instructions(const struct rp_auth *auth, int32_t expected) {
    long count = 0;
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        check_twice(auth, expected);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_TRACED)
        return -1;
    assert_true(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    do {
        assert_int_equal(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSTOPPED(status));
        count++;
    } while (WSTOPSIG(status) == SIGTRAP);
    assert_int_equal(WSTOPSIG(status), SIGSTOP);
    assert_int_equal(ptrace(PTRACE_CONT, child, NULL, NULL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return count;
}

/* Keys with the digest of HEADER's key, each wrong in its last byte. */
static struct rp_auth wrong_keys(void) {
    static struct rp_auth auth;
    const char *key = strchr(HEADER, ' ') + 1;
    memset(&auth, 0, sizeof auth);
    for (auth.count = 0; auth.count < KEYS; auth.count++) {
        SHA256((const unsigned char *)key, strlen(key), auth.keys[auth.count].digest);
        auth.keys[auth.count].digest[RP_KEY_DIGEST_BYTES - 1] ^= 0xff;
    }
    return auth;
}

static void test_a_wrong_key_takes_the_same_steps_wherever_it_differs(void **state) {
    struct rp_auth auth = wrong_keys();
    long expected = count_instructions(&auth, -1);
    (void)state;
    if (expected < 0) {
        print_message("this process may not trace another\n");
        skip();
    }
    assert_true(expected > 100); /* something was counted */
    for (uint32_t byte = 0; byte < RP_KEY_DIGEST_BYTES; byte++) {
        auth = wrong_keys();
        for (uint32_t k = 0; k < KEYS; k++)
            auth.keys[k].digest[byte] ^= 0x81;
        assert_int_equal(count_instructions(&auth, -1), expected);
    }
    auth = wrong_keys();
    for (uint32_t k = 0; k < KEYS; k++)
        for (uint32_t byte = 0; byte < RP_KEY_DIGEST_BYTES; byte++)
            auth.keys[k].digest[byte] = (unsigned char)~auth.keys[k].digest[byte];
    assert_int_equal(count_instructions(&auth, -1), expected);
}

static void test_every_right_key_takes_the_same_steps(void **state) {
    long expected = 0;
    (void)state;
    for (uint32_t k = 0; k < KEYS; k++) {
        struct rp_auth auth = wrong_keys();
        auth.keys[k].digest[RP_KEY_DIGEST_BYTES - 1] ^= 0xff;
        long count = count_instructions(&auth, (int32_t)k);
        if (count < 0)
            skip();
        if (k == 0)
            expected = count;
        assert_int_equal(count, expected);
    }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

int main(void) {
    if (SANITIZED) {
        puts("skipped: a sanitizer's own instructions depend on addresses and history");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wrong_key_takes_the_same_steps_wherever_it_differs),
        cmocka_unit_test(test_every_right_key_takes_the_same_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
