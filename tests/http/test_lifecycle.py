"""Clients that disconnect, do not read, or pipeline; a full queue; draining; a device that fails."""
import signal
import socket
import time

from fake_server import Server, parse_events

SLOW = {"FAKE_STEP_US": "2000"}
ENDLESS = {"max_tokens": 4000, "ignore_eos": True}


def open_stream(server, **fields):
    """A connection whose stream has begun."""
    connection = server.connect()
    connection.send("POST", "/v1/completions", {"prompt": "abc", "stream": True, **{**ENDLESS, **fields}})
    status, _ = connection.head()
    assert status == 200, status
    connection.chunk()
    return connection


def rest_of_stream(connection):
    body, part = b"", connection.chunk()
    while part:
        body, part = body + part, connection.chunk()
    return parse_events(body)


def cancelled(server):
    return server.metric('reprise_requests_total{finish_reason="cancelled"}')


def test_clients_that_leave_cancel_their_requests():
    with Server(env=SLOW) as server:
        for number, leave in enumerate(("reset", "close"), 1):
            connection = open_stream(server)
            getattr(connection, leave)()
            server.until(lambda n=number: cancelled(server) == n, "a stream is cancelled")
        # Also without a stream, with several prompts, and with a half-closed connection.
        connection = server.connect()
        connection.send("POST", "/v1/completions", {"prompt": ["ab", "cd", "ef"], **ENDLESS})
        server.until(lambda: server.metric("reprise_requests_running") == 3, "they run")
        connection.close()
        server.until(lambda: cancelled(server) == 5, "all three are cancelled")
        connection = open_stream(server)
        connection.socket.shutdown(socket.SHUT_WR)
        server.until(lambda: cancelled(server) == 6, "half closed is left")
        # With further requests in the pipe, which the server has stopped reading.
        connection = open_stream(server)
        connection.raw(b"x" * 200000)
        connection.close()
        server.until(lambda: cancelled(server) == 7, "left with unread requests")
        server.until(lambda: server.metric("reprise_completions_open") == 0, "all are freed")


def test_a_slow_reader_is_cut_off_and_disturbs_nobody():
    with Server("--max-model-len", "200000", env={"FAKE_STREAM_BYTES": "65536", "FAKE_STEP_US": "20"}) as server:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        body = b'{"prompt":"abc","stream":true,"max_tokens":190000,"ignore_eos":true}'
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
                     + body)
        answers = []
        while server.metric("reprise_http_slow_readers_total") == 0:
            answers.append(server.complete("hello", max_tokens=3).text)
        assert set(answers) == {"hellohellohello"}
        server.until(lambda: cancelled(server) == 1, "it is cancelled")
        slow.close()


def test_pipelined_requests_are_answered_in_order():
    with Server() as server, server.connect() as connection:
        count = 100
        requests = b""
        for i in range(count):
            body = b'{"prompt":"%d.","max_tokens":%d,"stream":%s}' % (i, len(str(i)), b"true" if i % 3 == 0 else b"false")
            requests += (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: r%d\r\n"
                         b"Content-Length: %d\r\n\r\n" % (i, len(body))) + body
            requests += b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n" if i % 10 == 0 else b""
        connection.raw(requests)
        for i in range(count):
            response = connection.response()
            assert response.headers["x-request-id"] == f"r{i}" and response.status == 200
            text = response.text if i % 3 else "".join(e["choices"][0]["text"] for e in response.events()[:-1])
            assert text == str(i), (i, text)
            if i % 10 == 0:
                assert "version" in connection.response().json()


def test_bytes_in_any_pieces_give_the_same_answers():
    body = b'{"prompt":"abc","max_tokens":3}'
    plain = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    chunked = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
               + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\nTrailer: x\r\n\r\n")
    with Server() as server, server.connect() as connection:
        for request in (plain, chunked):
            for size in (1, 2, 3, 7, 64):
                for at in range(0, len(request), size):
                    connection.raw(request[at:at + size])
                assert connection.response().text == "abc"


def test_a_full_queue_is_429_at_once_and_loses_nobody():
    with Server("--max-num-seqs", "2", "--max-num-queued-reqs", "3", env=SLOW) as server:
        running = [open_stream(server) for _ in range(2)]
        waiting = []
        for _ in range(3):
            connection = server.connect()
            connection.send("POST", "/v1/completions", {"prompt": "xyz", "max_tokens": 3})
            waiting.append(connection)
        server.until(lambda: server.metric("reprise_requests_waiting") == 3, "the queue is full")
        for _ in range(20):
            response = server.complete("abc", max_tokens=1)
            assert response.status == 429 and int(response.headers["retry-after"]) >= 1
            assert response.error["code"] == "queue_full" and response.error["type"] == "rate_limit_error"
        assert server.complete(["a", "b", "c"]).status == 429  # all or nothing
        assert server.complete(["a", "b", "c", "d"]).status == 400  # never: a retry cannot succeed
        assert server.metric('reprise_requests_rejected_total{reason="queue_full"}') == 21
        for connection in running:
            connection.close()
        assert [connection.response().text for connection in waiting] == ["xyz"] * 3


def test_sigterm_drains():
    with Server(env=SLOW) as server:
        streams = [open_stream(server, max_tokens=400) for _ in range(8)]
        kept = server.connect()
        kept.send("GET", "/health/ready")
        assert kept.response().status == 200
        server.signal()
        server.until(lambda: "draining" in server.log(), "it drains")
        kept.send("GET", "/health/ready")
        response = kept.response()
        assert response.status == 503 and response.headers["connection"] == "close"
        assert server.get("/health/live").status == 200
        response = server.complete("abc")
        assert response.status == 503 and response.error["code"] == "shutting_down" and response.headers["retry-after"]
        for stream in streams:
            events = rest_of_stream(stream)
            assert events[-1] == "[DONE]" and len(events) == 400
            stream.close()
        kept.close()
        assert server.wait() == 0


def test_with_a_drain_delay_it_is_not_ready_and_still_serves():
    with Server("--drain-delay", "3600") as server:
        server.signal()
        server.until(lambda: "leaving" in server.log(), "it leaves")
        response = server.get("/health/ready")
        assert response.status == 503 and response.headers["connection"] == "close"
        assert server.get("/health/live").status == 200 and server.complete("abc", max_tokens=3).text == "abc"
        server.signal()
        assert server.wait() == 0 and "draining" not in server.log()
    with Server("--drain-delay", "0.2", env=SLOW) as server:
        stream = open_stream(server, max_tokens=400)
        server.signal()
        server.until(lambda: "draining" in server.log(), "it drains")
        events = rest_of_stream(stream)
        assert events[-1] == "[DONE]" and len(events) == 400
        stream.close()
        assert server.wait() == 0


def test_draining_ends_in_time():
    with Server("--shutdown-timeout", "0.3", env=SLOW) as server:
        stream = open_stream(server)
        server.signal()
        events = rest_of_stream(stream)
        assert events[-1]["error"]["code"] == "shutting_down" and "[DONE]" not in events
        stream.close()
        assert server.wait() == 0


def test_a_second_sigterm_is_now():
    with Server(env=SLOW) as server:
        streams = [open_stream(server), open_stream(server)]
        waiting = server.connect()
        waiting.send("POST", "/v1/completions", {"prompt": "abc", **ENDLESS})
        server.until(lambda: server.metric("reprise_requests_running") == 3, "it runs")
        server.signal()
        server.signal(signal.SIGINT)
        for stream in streams:
            assert rest_of_stream(stream)[-1]["error"]["code"] == "shutting_down"
        response = waiting.response()
        assert response.status == 503 and response.error["code"] == "shutting_down"
        assert server.wait() == 0


def test_a_device_failure_answers_everybody_and_leaves_with_70():
    server = Server(env=SLOW)
    stream = open_stream(server)
    whole = server.connect()
    whole.send("POST", "/v1/completions", {"prompt": "abc", **ENDLESS})
    server.until(lambda: server.metric("reprise_requests_running") == 2, "both run")
    bad = server.connect()
    bad.send("POST", "/v1/completions", {"prompt": "abcdef", "seed": 9002, "max_tokens": 9})
    assert rest_of_stream(stream)[-1]["error"]["code"] == "engine_failed"
    assert whole.response().status == 500 and bad.response().status == 500
    for connection in (stream, whole, bad):
        connection.close()
    assert server.wait() == 70, server.log()
    server.process.stdout.close()


def test_a_step_that_never_ends_shows_in_health():
    with Server("--max-num-seqs", "1", env={"FAKE_STUCK_MS": "200"}) as server:
        stuck = server.connect()
        stuck.send("POST", "/v1/completions", {"prompt": "abc", "seed": 9003})
        server.until(lambda: server.metric("reprise_requests_running") == 1, "it runs")
        waiting = server.connect()
        waiting.send("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 3})
        server.until(lambda: server.get("/health/ready").status == 503, "not ready")
        assert server.get("/health").status == 503 and server.get("/health/live").status == 200
        stuck.close()
        assert waiting.response().text == "abc"
        server.until(lambda: server.get("/health").status == 200, "ready again")
        waiting.close()


def test_a_step_that_never_ends_shows_when_nobody_else_waits():
    with Server(env={"FAKE_STUCK_MS": "200"}) as server:
        stuck = server.connect()
        stuck.send("POST", "/v1/completions", {"prompt": "abc", "seed": 9003})
        server.until(lambda: server.get("/health/ready").status == 503, "not ready")
        stuck.close()
        server.until(lambda: server.get("/health/ready").status == 200, "ready again")


def test_a_step_that_never_ends_is_given_up_by_the_watchdog():
    """The engine hangs: the loop thread detects it, answers, and exits."""
    server = Server("--watchdog-timeout", "0.5")
    stuck = server.connect()
    stuck.send("POST", "/v1/completions", {"prompt": "abc", "seed": 9003})
    response = stuck.response()
    assert response.status == 500 and response.error["code"] == "engine_failed", response.body
    assert "makes no progress" in response.error["message"]
    stuck.close()
    assert server.wait() == 70, server.log()
    server.process.stdout.close()


def test_a_broken_invariant_shows_in_health():
    with Server(env={"FAKE_STEP_US": "2000"}) as server:
        assert server.get("/health/ready").status == 200
        broken = server.connect()
        broken.send("POST", "/v1/completions", {"prompt": "abc", "seed": 9005, "max_tokens": 4000})
        server.until(lambda: server.get("/health/ready").status == 503, "not ready")
        assert "invariant" in server.get("/health").error["message"] and server.get("/health/live").status == 200
        assert server.complete("abc", max_tokens=3).text == "abc", "requests are served nevertheless"
        broken.close()
        server.until(lambda: server.get("/health/ready").status == 200, "ready again")


def test_phases_have_deadlines():
    with Server(env={"FAKE_TIMEOUT_MS": "400"}) as server:
        for beginning in (b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\n"):
            with server.connect() as connection:
                connection.raw(beginning)
                response = connection.response()
                assert response.status == 408 and response.headers["connection"] == "close"
                assert connection.at_end()
        with server.connect() as connection:  # slow bytes do not extend a phase
            connection.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
            begin = time.monotonic()
            while time.monotonic() < begin + 30 and not connection.buffer:
                connection.raw(b" ")
                connection.socket.settimeout(0.05)
                try:
                    connection.more()
                except TimeoutError:
                    pass
            connection.socket.settimeout(30)
            assert connection.response().status == 408
        with server.connect() as connection:  # idle: closed silently
            assert connection.at_end()
        with server.connect() as connection:
            connection.send("GET", "/health")
            assert connection.response().status == 200 and connection.at_end()


def test_too_many_connections_are_refused_and_counted():
    with Server("--max-connections", "3") as server:
        connections = [server.connect() for _ in range(3)]
        for connection in connections:
            connection.send("GET", "/version")
            connection.response()
        with server.connect() as connection:
            answer = connection.response()
            assert answer.status == 503 and answer.error["code"] == "too_many_connections" and connection.at_end()
            assert int(answer.headers["retry-after"]) > 0
        for connection in connections:
            connection.close()
        server.until(lambda: refused(server) >= 1, "there is room again, and it is counted")


def refused(server):
    """Number of refused connections; 0 if this one is refused too."""
    return server.metric("reprise_http_connections_refused_total") if server.accepts() else 0


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name, flush=True)


main()
