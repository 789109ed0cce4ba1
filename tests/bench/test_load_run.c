/* Goal: the outcome of a request is right for any behavior of a server, also hostile. Times are
 * checked in test_load_times.c. */
#include "base/memory.h"
#include "tests/support/scripted_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static int set_up(void **state) {
    *state = scripted_fixture_start();
    return *state ? 0 : -1;
}

static int tear_down(void **state) {
    scripted_fixture_free(*state);
    return 0;
}

static const struct rp_load_record *run_one(struct scripted_fixture *f, uint32_t tokens,
                                            const char *script) {
    f->plan.count = 0;
    scripted_fixture_add(f, 0, tokens, "%s", script);
    assert_int_equal(scripted_fixture_run(f), RP_OK);
    assert_int_equal(f->records.count, 1);
    return &f->records.records[0];
}

static void a_request_is_recorded_with_its_chunks_and_its_usage(void **state) {
    struct scripted_fixture *f = *state;
    const struct rp_load_record *record = run_one(f, 5, "ttft=1 itl=1 cached=2");
    assert_int_equal(record->outcome, RP_LOAD_OK);
    assert_int_equal(record->status, 200);
    assert_int_equal(record->chunk_count, 5);
    assert_int_equal(f->records.chunk_total, 5);
    assert_true(record->usage_seen);
    assert_int_equal(record->input_tokens, 7);
    assert_int_equal(record->output_tokens, 5);
    assert_int_equal(record->cached_tokens, 2);
    assert_string_equal(record->error, "");
    const uint64_t *chunk_ns = f->records.chunk_ns + record->chunks;
    assert_true(record->intended_ns <= record->sent_ns && record->sent_ns < record->first_ns);
    assert_int_equal(record->first_ns, chunk_ns[0]);
    assert_int_equal(record->last_ns, chunk_ns[4]);
    for (int i = 1; i < 5; i++)
        assert_true(chunk_ns[i - 1] <= chunk_ns[i]);
    assert_true(record->last_ns <= record->end_ns && record->end_ns <= f->records.end_ns);
    assert_int_equal(f->records.connections, 1);
    assert_int_equal(f->records.max_in_flight, 1);
    assert_true(f->records.lag_count >= 1);
}

static void every_framing_of_a_stream_gives_the_same_text(void **state) {
    static const char *const scripts[] = {"body=chunked",
                                          "body=length",
                                          "body=eof",
                                          "split=1",
                                          "split=7",
                                          "crlf=1 split=3",
                                          "comments=1",
                                          "comments=1 crlf=1",
                                          "interim=1",
                                          "joined=1",
                                          "empty=1",
                                          "nousage=1",
                                          "nodone=1",
                                          "body=eof nodone=1 split=5",
                                          "head=1 slow=0.1 ttft=20"};
    struct scripted_fixture *f = *state;
    uint64_t hash = run_one(f, 6, "ttft=1")->text_hash;
    for (size_t i = 0; i < RP_ARRAY_COUNT(scripts); i++) {
        const struct rp_load_record *record = run_one(f, 6, scripts[i]);
        if (record->outcome != RP_LOAD_OK)
            fail_msg("%s: %s", scripts[i], record->error);
        assert_int_equal(record->chunk_count, 6);
        assert_int_equal(record->output_tokens, 6);
        assert_int_equal(record->text_hash, hash);
        assert_int_equal(record->usage_seen, strstr(scripts[i], "nousage") == NULL);
    }
    assert_int_not_equal(run_one(f, 7, "ttft=1")->text_hash, hash);
}

static void chat_counts_content_and_reasoning_and_not_the_role(void **state) {
    struct scripted_fixture *f = *state;
    f->options.target.api = RP_LOAD_CHAT;
    uint64_t hash = run_one(f, 6, "ttft=1")->text_hash;
    assert_int_equal(f->records.records[0].outcome, RP_LOAD_OK);
    assert_int_equal(f->records.records[0].chunk_count, 6);
    assert_int_equal(run_one(f, 6, "reasoning=1")->text_hash, hash);
    assert_int_equal(f->records.records[0].chunk_count, 6);
}

static void an_empty_chunk_counts_where_usage_shows_it_to_be_a_token(void **state) {
    struct scripted_fixture *f = *state;
    assert_int_equal(run_one(f, 6, "blank=2")->chunk_count, 6);
    assert_int_equal(run_one(f, 6, "blank=2 nousage=1")->chunk_count, 3);
    /* One chunk more than tokens: which one is unknown. */
    assert_int_equal(run_one(f, 6, "blank=2 empty=1")->chunk_count, 3);
    assert_int_equal(f->records.records[0].outcome, RP_LOAD_OK);
    assert_true(f->records.records[0].first_ns < f->records.end_ns);
    f->options.target.api = RP_LOAD_CHAT;
    assert_int_equal(run_one(f, 6, "blank=2")->chunk_count, 6);
}

static void each_failure_is_an_outcome_of_its_own(void **state) {
    static const struct {
        const char *script;
        enum rp_load_outcome outcome;
        uint32_t status, chunks;
        const char *error;
    } cases[] = {
        {"status=429 message=queue-is-full", RP_LOAD_STATUS, 429, 0, "queue-is-full"},
        {"raw=html", RP_LOAD_STATUS, 502, 0, "<html> [2Jupstream is gone</html>"},
        {"reset=2", RP_LOAD_RESET, 200, 2, "connection"},
        {"close=2", RP_LOAD_RESET, 200, 2, "the connection closed in the middle of the answer"},
        {"close=0 body=eof", RP_LOAD_BAD_ANSWER, 200, 0, "without [DONE]"},
        {"close=2 body=eof", RP_LOAD_BAD_ANSWER, 200, 2, "without [DONE]"},
        {"error=2 message=device-lost", RP_LOAD_SERVER_ERROR, 200, 2, "device-lost"},
        {"error=0", RP_LOAD_SERVER_ERROR, 200, 0, "scripted"},
        {"garbage=1", RP_LOAD_BAD_ANSWER, 200, 1, "invalid JSON in an event"},
        {"long=1", RP_LOAD_BAD_ANSWER, 200, 1, "an event is too long"},
        {"raw=http", RP_LOAD_BAD_ANSWER, 0, 0, "invalid HTTP"},
        {"raw=chunk", RP_LOAD_BAD_ANSWER, 200, 0, "invalid HTTP"},
        {"raw=headers", RP_LOAD_BAD_ANSWER, 0, 0, "the header is too long"},
        {"raw=extensions", RP_LOAD_BAD_ANSWER, 200, 0,
         "the chunk headers or trailers are too long"},
        {"raw=type", RP_LOAD_BAD_ANSWER, 200, 0, "no stream here"},
        {"raw=nothing", RP_LOAD_BAD_ANSWER, 200, 0, "without [DONE]"},
        {"tokens=3", RP_LOAD_SHORT, 200, 3, "3 tokens of 4"},
        {"tokens=3 nousage=1 stop=1", RP_LOAD_SHORT, 200, 3, "3 tokens of 4"},
        {"drop=1", RP_LOAD_OK, 200, 4, ""},
    };
    struct scripted_fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        const struct rp_load_record *record = run_one(f, 4, cases[i].script);
        if (record->outcome != cases[i].outcome || record->status != cases[i].status ||
            record->chunk_count != cases[i].chunks || !strstr(record->error, cases[i].error))
            fail_msg("%s: outcome %d status %u chunks %u %s", cases[i].script, record->outcome,
                     record->status, record->chunk_count, record->error);
        /* The server continues. */
        assert_int_equal(run_one(f, 2, "")->outcome, RP_LOAD_OK);
    }
}

static void answers_with_bytes_changed_end_in_a_counted_outcome(void **state) {
    enum { ANSWERS = 1500 };
    struct scripted_fixture *f = *state;
    uint32_t counts[RP_LOAD_OUTCOMES] = {0}, total = 0;
    for (int i = 0; i < ANSWERS; i++)
        scripted_fixture_add(f, 0, 6, "fuzz=%d comments=%d body=%s", i + 1, i % 2,
                             i % 3 ? "chunked" : "eof");
    f->options.closed = true;
    f->options.max_concurrency = 16;
    f->options.timeout_s = 20;
    assert_int_equal(scripted_fixture_run(f), RP_OK);
    for (int i = 0; i < ANSWERS; i++)
        counts[f->records.records[i].outcome]++;
    for (int i = 0; i < RP_LOAD_OUTCOMES; i++)
        total += counts[i];
    assert_int_equal(total, ANSWERS);
    /* The connection ends after each: nothing has to wait. */
    assert_int_equal(counts[RP_LOAD_TIMEOUT] + counts[RP_LOAD_NOT_SENT] + counts[RP_LOAD_CONNECT],
                     0);
    assert_true(counts[RP_LOAD_OK] > 50 && counts[RP_LOAD_BAD_ANSWER] > 50);
}

static void a_free_length_is_not_short(void **state) {
    struct scripted_fixture *f = *state;
    f->options.target.no_ignore_eos = true;
    assert_int_equal(run_one(f, 4, "tokens=3 stop=1")->outcome, RP_LOAD_OK);
    assert_int_equal(f->records.records[0].output_tokens, 3);
}

static void silence_ends_by_the_timeout(void **state) {
    static const struct {
        const char *script, *error;
        uint32_t chunks;
    } cases[] = {{"hang=2", "the answer stopped coming", 2},
                 {"ttft=100000", "no answer", 0},
                 {"head=0 slow=1000", "no answer", 0}};
    struct scripted_fixture *f = *state;
    f->options.timeout_s = 0.2;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        const struct rp_load_record *record = run_one(f, 4, cases[i].script);
        assert_int_equal(record->outcome, RP_LOAD_TIMEOUT);
        assert_int_equal(record->chunk_count, cases[i].chunks);
        assert_string_equal(record->error, cases[i].error);
    }
}

static void a_server_that_is_not_there_is_a_connect_failure(void **state) {
    struct scripted_fixture *f = *state;
    scripted_stop(&f->server);
    f->plan.count = 0;
    for (int i = 0; i < 100; i++)
        scripted_fixture_add(f, 0, 4, "ttft=1");
    assert_int_equal(scripted_fixture_run(f), RP_OK);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(f->records.records[i].outcome, RP_LOAD_CONNECT);
        assert_int_equal(f->records.records[i].sent_ns, 0);
        assert_string_equal(f->records.records[i].error, "connection refused");
    }
    assert_int_equal(f->records.connections, 0);
}

static void a_name_with_an_address_that_nobody_serves_is_tried_at_the_next(void **state) {
    struct scripted_fixture *f = *state;
    char url[64];
    /* Usually ::1 and 127.0.0.1; the server listens on the latter only. */
    snprintf(url, sizeof url, "http://localhost:%u/v1", (unsigned)f->server.port);
    f->options.target.base_url = url;
    assert_int_equal(run_one(f, 4, "ttft=1")->outcome, RP_LOAD_OK);
}

static void connections_are_kept_and_used_again(void **state) {
    struct scripted_fixture *f = *state;
    for (int i = 0; i < 40; i++)
        scripted_fixture_add(f, 0, 3, "ttft=1");
    f->options.closed = true;
    f->options.max_concurrency = 4;
    assert_int_equal(scripted_fixture_run(f), RP_OK);
    for (int i = 0; i < 40; i++)
        assert_int_equal(f->records.records[i].outcome, RP_LOAD_OK);
    assert_int_equal(f->records.connections, 4);
    assert_int_equal(f->records.max_in_flight, 4);
    scripted_stop(&f->server);
    assert_int_equal(f->server.shared->connections, 4);
}

static void a_kept_connection_that_the_server_has_closed_is_replaced_once(void **state) {
    struct scripted_fixture *f = *state;
    for (int i = 0; i < 10; i++)
        scripted_fixture_add(f, 0, 3, "drop=1");
    scripted_fixture_add(f, 0, 3, "ttft=0");
    scripted_fixture_add(f, 0, 3, "reset=0"); /* has begun: a request is not repeated */
    f->options.closed = true;
    f->options.max_concurrency = 1;
    assert_int_equal(scripted_fixture_run(f), RP_OK);
    for (int i = 0; i < 11; i++)
        assert_int_equal(f->records.records[i].outcome, RP_LOAD_OK);
    assert_int_equal(f->records.records[11].outcome, RP_LOAD_RESET);
    scripted_stop(&f->server);
    for (int i = 1; i < 10; i++)
        assert_int_equal(f->server.shared->stamps[i].times_seen, 2);
    assert_int_equal(f->server.shared->stamps[11].times_seen, 1);
}

static void a_large_prompt_is_sent_whole(void **state) {
    enum { IDS = 600000 };
    struct scripted_fixture *f = *state;
    int32_t *ids = test_malloc(IDS * sizeof *ids);
    for (int i = 0; i < IDS; i++)
        ids[i] = i * 7;
    scripted_fixture_add(f, 0, 3, "ttft=1");
    f->requests[0].ids = ids;
    f->requests[0].input_tokens = IDS;
    f->options.target.model = "script: cached=5";
    assert_int_equal(scripted_fixture_run(f), RP_OK);
    assert_int_equal(f->records.records[0].outcome, RP_LOAD_OK);
    assert_int_equal(f->records.records[0].cached_tokens,
                     5); /* the model's name was received as valid JSON */
    test_free(ids);
}

static volatile bool stop_now;

static void count_progress(void *context, const struct rp_load_progress *now) {
    uint32_t *calls = context;
    (*calls)++;
    if (now->done >= 2)
        stop_now = true;
}

static void a_run_that_is_stopped_reports_what_was(void **state) {
    struct scripted_fixture *f = *state;
    uint32_t calls = 0;
    for (int i = 0; i < 6; i++)
        scripted_fixture_add(f, 0, 3, i < 2 ? "ttft=1" : "ttft=100000");
    scripted_fixture_add(f, 100000, 3, "ttft=1");
    f->options.stop = &stop_now;
    f->options.progress = count_progress;
    f->options.context = &calls;
    stop_now = false;
    assert_int_equal(scripted_fixture_run(f), RP_OK);
    assert_true(calls >= 2);
    for (int i = 0; i < 7; i++)
        assert_int_equal(f->records.records[i].outcome, i < 2 ? RP_LOAD_OK : RP_LOAD_NOT_SENT);
    assert_int_not_equal(f->records.records[3].sent_ns, 0);
    assert_int_equal(f->records.records[6].sent_ns, 0);
}

/* Waits for an answer that has ended, one that has begun, and one that has not. */
static bool give_up_when_all_are_seen(void *context, const struct rp_load_records *records,
                                      uint64_t now_ns) {
    const struct rp_load_record *record = records->records;
    bool seen = record[0].outcome == RP_LOAD_OK && record[1].first_ns > 0;
    if (!seen)
        return false;
    assert_int_equal(record[1].outcome, RP_LOAD_NOT_SENT);
    assert_int_equal(record[2].outcome, RP_LOAD_NOT_SENT);
    assert_true(record[1].first_ns >= record[1].intended_ns && record[1].first_ns <= now_ns);
    assert_int_equal(record[2].first_ns, 0);
    assert_int_equal(record[3].intended_ns, 100000000000u);
    *(uint64_t *)context = now_ns;
    return true;
}

static void a_run_that_is_given_up_sees_requests_in_flight_and_ends(void **state) {
    struct scripted_fixture *f = *state;
    uint64_t given_up_ns = 0;
    scripted_fixture_add(f, 0, 3, "ttft=1 itl=1");
    scripted_fixture_add(f, 0, 3, "ttft=1 itl=100000");
    scripted_fixture_add(f, 0, 3, "ttft=100000");
    scripted_fixture_add(f, 100000, 3, "ttft=1");
    f->options.give_up = give_up_when_all_are_seen;
    f->options.give_up_context = &given_up_ns;
    assert_int_equal(scripted_fixture_run(f), RP_OK);
    assert_true(given_up_ns > 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(f->records.records[i].outcome, i == 0 ? RP_LOAD_OK : RP_LOAD_NOT_SENT);
    assert_true(f->records.records[1].first_ns > 0 && f->records.records[3].sent_ns == 0);
}

static void a_run_of_limited_time_sends_no_more_and_waits_for_the_rest(void **state) {
    struct scripted_fixture *f = *state;
    scripted_fixture_add(f, 0, 3, "ttft=300");
    scripted_fixture_add(f, 10000, 3, "ttft=1");
    f->options.max_seconds = 0.1;
    assert_int_equal(scripted_fixture_run(f), RP_OK);
    assert_int_equal(f->records.records[0].outcome, RP_LOAD_OK);
    assert_int_equal(f->records.records[1].outcome, RP_LOAD_NOT_SENT);
}

static void what_cannot_be_run_is_refused(void **state) {
    struct scripted_fixture *f = *state;
    static const int32_t ids[3] = {1, 2, 3};
    struct rp_load_run_options fine = f->options;
    assert_int_equal(scripted_fixture_run(f), RP_STATUS_INVALID); /* an empty plan */
    scripted_fixture_add(f, 0, 3, "ttft=1");
    f->options.target.base_url = "https://127.0.0.1:8000";
    assert_int_equal(scripted_fixture_run(f), RP_STATUS_UNSUPPORTED);
    f->options = fine;
    f->options.target.model = NULL;
    assert_int_equal(scripted_fixture_run(f), RP_STATUS_INVALID);
    f->options = fine;
    f->options.closed = true;
    assert_int_equal(scripted_fixture_run(f), RP_STATUS_INVALID);
    f->options = fine;
    f->options.target.api_key = "a\r\nX: y";
    assert_int_equal(scripted_fixture_run(f), RP_STATUS_INVALID);
    f->options = fine;
    f->options.target.base_url = "http://no-such-host.invalid";
    assert_int_equal(scripted_fixture_run(f), RP_STATUS_NOT_FOUND);
    f->options = fine;
    f->options.target.api = RP_LOAD_CHAT;
    f->requests[0].ids = ids;
    f->requests[0].text = NULL;
    assert_int_equal(scripted_fixture_run(f), RP_STATUS_INVALID);
}

static void memory_that_is_out_ends_the_run_and_leaks_nothing(void **state) {
    struct scripted_fixture *f = *state;
    for (int i = 0; i < 8; i++)
        scripted_fixture_add(f, 0, 3, "ttft=1");
    for (uint64_t n = 1; n < 60; n++) {
        rp_alloc_fail_at(n);
        int status = scripted_fixture_run(f);
        rp_alloc_fail_at(0);
        if (status != RP_OK)
            assert_int_equal(status, RP_STATUS_NO_MEMORY);
    }
    assert_int_equal(scripted_fixture_run(f), RP_OK);
}

static void the_server_is_asked_what_it_serves(void **state) {
    struct scripted_fixture *f = *state;
    struct rp_load_target target = {.base_url = f->server.url};
    struct rp_load_server server;
    assert_int_equal(rp_load_probe(&target, &server, &f->err), RP_OK);
    assert_string_equal(server.model, "scripted");
    assert_string_equal(server.version, "of the script");
    assert_int_equal(server.max_model_len, 100000);
    assert_int_equal(server.vocab, 0);
    assert_int_equal(server.page_tokens, 0);
    assert_null(rp_load_get(&target, "/nowhere", &f->err));
    assert_int_equal(f->err.status, RP_STATUS_NOT_FOUND);
    char *body = rp_load_get(&target, "/version", &f->err);
    assert_string_equal(body, "{\"version\":\"of the script\"}");
    rp_free(body);
    target.model = "another";
    assert_int_equal(rp_load_probe(&target, &server, &f->err), RP_OK);
    assert_string_equal(server.model, "another");
    scripted_stop(&f->server);
    assert_int_equal(rp_load_probe(&target, &server, &f->err), RP_STATUS_IO);
    assert_non_null(strstr(f->err.text, "connection refused"));
}

static void the_limit_of_open_files_is_raised_or_named(void **state) {
    struct scripted_fixture *f = *state;
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = before;
    limit.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(rp_load_check_files(20, &f->err), RP_OK);
    assert_int_equal(rp_load_check_files(200, &f->err), RP_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(limit.rlim_cur >= 200);
    if (before.rlim_max < 4000000000u) {
        assert_int_equal(rp_load_check_files(4000000000u, &f->err), RP_STATUS_RANGE);
        assert_non_null(strstr(f->err.hint, "--max-concurrency"));
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

int main(void) {
#define RUN_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        RUN_TEST(a_request_is_recorded_with_its_chunks_and_its_usage),
        RUN_TEST(every_framing_of_a_stream_gives_the_same_text),
        RUN_TEST(chat_counts_content_and_reasoning_and_not_the_role),
        RUN_TEST(an_empty_chunk_counts_where_usage_shows_it_to_be_a_token),
        RUN_TEST(each_failure_is_an_outcome_of_its_own),
        RUN_TEST(answers_with_bytes_changed_end_in_a_counted_outcome),
        RUN_TEST(a_free_length_is_not_short),
        RUN_TEST(silence_ends_by_the_timeout),
        RUN_TEST(a_server_that_is_not_there_is_a_connect_failure),
        RUN_TEST(a_name_with_an_address_that_nobody_serves_is_tried_at_the_next),
        RUN_TEST(connections_are_kept_and_used_again),
        RUN_TEST(a_kept_connection_that_the_server_has_closed_is_replaced_once),
        RUN_TEST(a_large_prompt_is_sent_whole),
        RUN_TEST(a_run_that_is_stopped_reports_what_was),
        RUN_TEST(a_run_that_is_given_up_sees_requests_in_flight_and_ends),
        RUN_TEST(a_run_of_limited_time_sends_no_more_and_waits_for_the_rest),
        RUN_TEST(what_cannot_be_run_is_refused),
        RUN_TEST(memory_that_is_out_ends_the_run_and_leaks_nothing),
        RUN_TEST(the_server_is_asked_what_it_serves),
        RUN_TEST(the_limit_of_open_files_is_raised_or_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
