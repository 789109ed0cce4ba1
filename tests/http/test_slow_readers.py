"""Goal: a client that stops reading is seen while its output still fits into the kernel's buffers: in the gauges, in its
record, and in the end it is closed; and the time between tokens at the socket is known beside the engine's."""
import json
import socket

from fake_server import Server

SLOW = {"FAKE_STEP_US": "2000"}  # 0.1 MB a second: far below the kernel's send buffer within a test


def open_stream(server, max_tokens, name):
    """A client with a small receive buffer that reads only when it is told to."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    client.settimeout(30)
    body = json.dumps({"prompt": "abc", "stream": True, "max_tokens": max_tokens, "ignore_eos": True}).encode()
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %s\r\nConnection: close\r\n"
                   b"Content-Length: %d\r\n\r\n" % (name.encode(), len(body)) + body)
    return client


def read_all(client):
    out = b""
    while piece := client.recv(65536):
        out += piece
    return out


def record(server, name):
    return server.get(f"/debug/requests/{name}").json()["requests"][0]


def test_a_client_that_stops_reading_is_seen_before_the_buffers_are_full():
    with Server("--max-model-len", "200000", env=SLOW) as server:
        client = open_stream(server, 1500, "pause")
        server.until(lambda: server.metric("reprise_http_streams_stalled") == 1, "it has stalled")
        assert server.metric("reprise_http_stream_unread_bytes") > 4096
        assert server.metric("reprise_http_slow_readers_total") == 0
        assert read_all(client).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        client.close()
        server.until(lambda: server.metric("reprise_http_streams_stalled") == 0, "it goes on")
        server.until(lambda: server.metric("reprise_http_stream_unread_bytes") == 0, "all is read")
        found = record(server, "pause")
        assert found["durations_seconds"]["client_stall"] >= 1 and found["finish_reason"] == "length", found


def test_a_client_that_never_reads_again_is_closed():
    with Server("--max-model-len", "200000", env={**SLOW, "FAKE_TIMEOUT_MS": "1500"}) as server:
        client = open_stream(server, 190000, "gone")
        server.until(lambda: server.metric("reprise_http_slow_readers_total") == 1, "it is closed")
        client.close()
        server.until(lambda: record(server, "gone")["finish_reason"], "its request has ended")
        found = record(server, "gone")
        assert found["client_left"] and found["finish_reason"] == "cancelled", found


def test_the_time_between_tokens_at_the_socket():
    with Server(env=SLOW) as server:
        answer = server.complete("abc", max_tokens=40, ignore_eos=True, stream=True)
        assert len(answer.events()) >= 40
        engine, socket_ = (server.metric(f"reprise_inter_token_{name}_seconds_count") for name in ("latency", "write"))
        assert engine == socket_ == 39, (engine, socket_)
        assert server.metric("reprise_inter_token_write_seconds_sum") > 0
        server.complete("abc", max_tokens=40, ignore_eos=True)  # not a stream
        assert server.metric("reprise_inter_token_write_seconds_count") == 39
        shown = server.get("/debug/requests?recent=2").json()["requests"]
        assert len(shown) == 2
        for found in shown:
            assert (found["inter_token"]["worst_write_seconds"] > 0) == found["params"]["stream"], found


def test_tokens_that_wait_for_the_client_count_when_the_kernel_takes_them():
    with Server("--max-model-len", "200000", env={"FAKE_STEP_US": "20", "FAKE_STREAM_BYTES": "100000000", "FAKE_TIMEOUT_MS": "600000"}) as server:
        client = open_stream(server, 40000, "late")  # more than the kernel buffers
        server.until(lambda: server.metric("reprise_generated_tokens_total") >= 40000, "all were generated")
        before = server.metric("reprise_inter_token_write_seconds_count")
        assert before < 39999, before
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)  # the rest need not be slow
        assert read_all(client).endswith(b"0\r\n\r\n")
        client.close()
        assert record(server, "late")["inter_token"]["worst_write_seconds"] > 0


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("ok", name)
