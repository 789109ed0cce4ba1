/* Goal: the filter holds for threads that exist and for new ones, and each need opens what it names
 * and nothing else. Method: a child process enters the sandbox, since nothing leaves it again. */
#include "base/log.h"
#include "server/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER true
#else
#define HAS_SANITIZER false
#endif

static int server_fd;
static uint16_t server_port;

static bool may_execute(void) {
    char *const none[] = {NULL};
    return syscall(SYS_execve, "/nowhere", none, none) != -1 || errno != EPERM;
}

static bool may_fork(void) {
    long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        _exit(0);
    return child > 0;
}

static bool may_create_files(void) {
    char path[] = "/tmp/reprise-test-sandbox-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0)
        return false;
    close(fd);
    return unlink(path) == 0;
}

static bool may_connect(void) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(server_port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (getaddrinfo("localhost", "80", &hints, &found) != 0)
        return false;
    freeaddrinfo(found);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
}

static void *execute_on_a_thread(void *gate) {
    int *held = gate;
    char byte;
    if (held && read(held[0], &byte, 1) != 1)
        return NULL;
    return may_execute() || may_fork() ? NULL : (void *)"refused";
}

/* What is allowed with these needs, as bits in the order of the functions above. */
static int look(uint32_t needs) {
    struct rp_error err;
    pthread_t before, after;
    void *refused = NULL;
    int gate[2];
    if (pipe(gate) != 0 || pthread_create(&before, NULL, execute_on_a_thread, gate) != 0 ||
        rp_sandbox_enter(RP_SANDBOX_ON, needs, &err) != RP_OK || !rp_sandbox_is_on() ||
        write(gate[1], "x", 1) != 1 || pthread_join(before, &refused) != 0 || !refused ||
        pthread_create(&after, NULL, execute_on_a_thread, NULL) != 0 ||
        pthread_join(after, &refused) != 0 || !refused || rp_sandbox_report() != 4)
        return 99;
    return may_execute() | may_fork() << 1 | may_create_files() << 2 | may_connect() << 3;
}

static int look_in_a_child(uint32_t needs) {
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        rp_log_set_level(RP_LOG_ERROR);
        _exit(look(needs));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int setup(void **state) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    (void)state;
    server_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(server_fd, (struct sockaddr *)&address, len) != 0 || listen(server_fd, 8) != 0 ||
        getsockname(server_fd, (struct sockaddr *)&address, &len) != 0)
        return -1;
    server_port = ntohs(address.sin_port);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    return close(server_fd);
}

static void test_each_need_opens_what_it_names(void **state) {
    (void)state;
    if (HAS_SANITIZER) {
        print_message("a build with sanitizers needs more calls\n");
        skip();
    }
    assert_int_equal(look_in_a_child(0), 0);
    assert_int_equal(look_in_a_child(RP_SANDBOX_NOTIFY | RP_SANDBOX_UNLINK), 0);
    assert_int_equal(look_in_a_child(RP_SANDBOX_FILES), 4);
    assert_int_equal(look_in_a_child(RP_SANDBOX_CONNECT), 8);
    assert_int_equal(look_in_a_child(RP_SANDBOX_FILES | RP_SANDBOX_CONNECT), 12);
}

static void test_off_changes_nothing(void **state) {
    struct rp_error err;
    (void)state;
    assert_int_equal(rp_sandbox_enter(RP_SANDBOX_OFF, 0, &err), RP_OK);
    assert_int_equal(rp_sandbox_enter(RP_SANDBOX_AUTO, RP_SANDBOX_DRIVER, &err), RP_OK);
    assert_false(rp_sandbox_is_on());
    assert_true(may_fork() && may_create_files() && may_connect());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_need_opens_what_it_names),
        cmocka_unit_test(test_off_changes_nothing),
    };
    rp_log_set_level(RP_LOG_WARN);
    return cmocka_run_group_tests(tests, setup, teardown);
}
