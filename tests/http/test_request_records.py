"""Identity, records and timing of requests, on the fake engine: ids in and out on every answer, hostile headers, a record
for every outcome of a request, and no request text in any record."""
import json
import re
import socket

from fake_server import Server, parse_events

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
OURS = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")
SLOW = {"FAKE_STEP_US": "2000"}


def records(server, query="recent=500", **more):
    response = server.get("/debug/requests?" + query, **more)
    assert response.status == 200, response.body
    return response.json()["requests"]


def record(server, request_id, **more):
    response = server.get(f"/debug/requests/{request_id}", **more)
    assert response.status == 200, (request_id, response.body)
    found = response.json()["requests"]
    assert len(found) == 1, found
    return found[0]


def identity(response):
    match = OURS.match(response.headers["traceparent"])
    assert match and int(match[1], 16) and int(match[2], 16), response.headers
    return match.groups()


def test_every_answer_has_an_id_and_a_place_in_a_trace():
    with Server() as server:
        seen = set()
        for method, path, body in (("GET", "/health", None), ("GET", "/nowhere", None), ("PUT", "/version", b"{}"),
                                   ("POST", "/v1/completions", b"{"), ("POST", "/v1/completions", {"prompt": 5}),
                                   ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2}),
                                   ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True}),
                                   ("OPTIONS", "/version", None)):
            response = server.request(method, path, body)
            trace, span, flags = identity(response)
            assert flags == "03" and len(response.headers["x-request-id"]) == 16, response.headers
            seen |= {trace, span, response.headers["x-request-id"]}
            response = server.request(method, path, body, headers=[("traceparent", PARENT), ("X-Request-Id", "a/b+c=")])
            trace, span, flags = identity(response)
            assert (trace, flags) == (TRACE, "01") and span != SPAN, response.headers
            assert response.headers["x-request-id"] == "a/b+c=", response.headers
            seen.add(span)
        assert len(seen) == 8 * 4, "ids repeat"
        for raw in (b"rubbish\r\n\r\n", b"GET / HTTP/1.1\r\n bad\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
            with server.connect() as connection:
                connection.raw(raw)
                response = connection.response()
                assert response.status >= 400
                identity(response)


def test_hostile_headers_begin_a_trace_of_our_own():
    bad = [[("traceparent", value)] for value in (
        "", "00", PARENT + "-", PARENT[:-1], PARENT + "0", "ff" + PARENT[2:], PARENT.upper(), "00-" + "0" * 32 + PARENT[35:],
        PARENT[:36] + "0" * 16 + "-01", "00-" + "z" * 32 + PARENT[35:], PARENT.replace("-", "_"), "x" * 4000, "\x80" * 55,
        PARENT + "," + PARENT, "null", "00-" + "-" * 52)]
    bad.append([("traceparent", PARENT), ("Traceparent", PARENT)])
    with Server() as server, server.connect() as connection:
        for headers in bad:
            connection.send("GET", "/version", headers=headers)
            response = connection.response()
            assert response.status == 200 and identity(response)[0] != TRACE, headers
        for value in ("", "x" * 129, "two words", 'quo"te', "a\tb", "\xe4", "<script>", "a,b", "{}"):
            connection.send("GET", "/version", headers=[("X-Request-Id", value)])
            response = connection.response()
            assert response.status == 200 and re.match("[0-9a-f]{16}$", response.headers["x-request-id"]), value
        for value in ("x" * 128, "A-z_0.9:/+=@~"):
            connection.send("GET", "/version", headers=[("X-Request-Id", value), ("traceparent", PARENT), ("tracestate", "a=1")])
            assert connection.response().headers["x-request-id"] == value
        # Ids do not carry over to the next request.
        connection.send("GET", "/version")
        response = connection.response()
        assert identity(response)[0] != TRACE and len(response.headers["x-request-id"]) == 16


def test_a_record_tells_the_whole_life():
    with Server() as server:
        for stream in (False, True):
            name = f"life-{stream}"
            response = server.post("/v1/completions", {"prompt": "secret words", "max_tokens": 7, "temperature": 0.5,
                                                       "seed": 5, "stream": stream},
                                   headers=[("X-Request-Id", name), ("traceparent", PARENT)])
            assert response.status == 200
            found = record(server, name)
            assert (found["trace_id"], found["parent_span_id"]) == (TRACE, SPAN)
            assert found["span_id"] == identity(response)[1]
            assert found["completion_id"].startswith("cmpl-") and found["completion_id"].encode() in response.body
            assert (found["state"], found["status"], found["finish_reason"]) == ("finished", 200, "length")
            assert found["tokens"] == {"prompt": 13, "cached": 0, "output": 7, "reasoning": 0}, found["tokens"]
            assert (found["params"]["temperature"], found["params"]["seed"], found["params"]["stream"]) == (0.5, 5, stream)
            assert not found["client_left"] and found["error"] is None and found["key_index"] is None
            stamps = list(found["stamps_seconds"].values())
            assert None not in stamps and stamps == sorted(stamps), found["stamps_seconds"]
            assert len(found["token_seconds"]) == 7
            for form in ("json", "otlp", "perfetto"):
                body = server.get(f"/debug/requests/{name}?format={form}").body
                assert b"secret" not in body and b"words" not in body and name.encode() in body, body


def test_several_prompts_have_a_record_each():
    with Server() as server:
        server.post("/v1/completions", {"prompt": ["ab", "c", "def"], "max_tokens": 3}, headers=[("X-Request-Id", "many")])
        found = server.get("/debug/requests/many").json()["requests"]
        assert sorted(r["prompt_index"] for r in found) == [0, 1, 2] and {r["prompt_count"] for r in found} == {3}
        assert len({r["span_id"] for r in found}) == 3 and len({r["trace_id"] for r in found}) == 1
        by_trace = server.get("/debug/requests/" + found[0]["trace_id"]).json()["requests"]
        assert by_trace == found
        spans = server.get("/debug/requests/many?format=otlp").json()["resourceSpans"][0]["scopeSpans"][0]["spans"]
        assert len({s["spanId"] for s in spans}) == len(spans) == 3 * 6, spans


def test_what_ends_otherwise_has_a_record_too():
    with Server("--max-num-seqs", "1", "--max-num-queued-reqs", "1", env=SLOW) as server:
        endless = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True}
        first, second = server.connect(), server.connect()
        first.send("POST", "/v1/completions", {**endless, "stream": True}, [("X-Request-Id", "left")])
        assert first.head()[0] == 200
        second.send("POST", "/v1/completions", endless, [("X-Request-Id", "waiting")])
        server.until(lambda: server.metric("reprise_requests_waiting") == 1, "one waits")
        open_now = {r["id"]: r["state"] for r in records(server, "finish=open")}
        assert open_now == {"left": "decode", "waiting": "queued"}, open_now
        running = record(server, "left")
        assert running["stamps_seconds"]["closed"] is None and running["tokens"]["output"] > 0
        assert server.get("/debug/requests/left?format=otlp").status == 200
        assert server.get("/debug/requests/left?format=perfetto").status == 200
        response = server.post("/v1/completions", endless, headers=[("X-Request-Id", "full")])
        assert response.status == 429
        full = record(server, "full")
        assert (full["status"], full["error"], full["finish_reason"]) == (429, "queue_full", "refused")
        first.reset()
        server.until(lambda: not records(server, "finish=open") or records(server, "finish=open")[0]["id"] != "left", "left")
        left = record(server, "left")
        assert (left["finish_reason"], left["client_left"], left["status"]) == ("cancelled", True, 200), left
        assert left["stamps_seconds"]["written"] is None
        second.close()
        server.until(lambda: not records(server, "finish=open"), "nothing is open")
        waiting = record(server, "waiting")
        assert waiting["finish_reason"] == "cancelled" and waiting["client_left"] and waiting["status"] is None, waiting
        assert [r["id"] for r in records(server, "finish=refused")] == ["full"]
    with Server() as server:
        for name, body, status, error in (("json", b"{", 400, "invalid_json"), ("field", {"prompt": "a", "top_p": 7}, 400, "out_of_range"),
                                          ("model", {"prompt": "a", "model": "b"}, 404, "model_not_found"),
                                          ("long", {"prompt": "a", "max_tokens": 10 ** 6}, 400, "context_length_exceeded"),
                                          ("nan", {"prompt": "abc", "seed": 9001}, 500, "numerical_error"),
                                          ("mask", {"prompt": "abc", "seed": 9004}, 500, "mask_deadline")):
            assert server.post("/v1/completions", body, headers=[("X-Request-Id", name)]).status == status
            found = record(server, name)
            assert (found["status"], found["error"]) == (status, error), found
            assert found["finish_reason"] == {"nan": "numeric", "mask": "mask_deadline"}.get(name, "refused")
        server.complete("ab stop cd", max_tokens=20, stop=["stop"])
        assert records(server, "recent=1")[0]["finish_reason"] == "stop"
        # Other answers than completions have none.
        count = len(records(server))
        server.get("/version")
        server.post("/tokenize", {"prompt": "a"})
        assert len(records(server)) == count


def test_a_client_that_does_not_read_shows_as_a_stall():
    with Server("--max-model-len", "200000", env={"FAKE_STEP_US": "20"}) as server:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        body = b'{"prompt":"abc","stream":true,"max_tokens":190000,"ignore_eos":true}'
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: stalls\r\nContent-Length: %d\r\n\r\n"
                     % len(body) + body)
        server.until(lambda: server.metric("reprise_http_slow_readers_total") == 1, "it is cut off")
        slow.close()
        server.until(lambda: not records(server, "finish=open"), "it has ended")
        found = record(server, "stalls")
        assert found["durations_seconds"]["client_stall"] > 0 and found["client_left"], found["durations_seconds"]


def test_timing_in_the_answer():
    with Server() as server:
        plain = server.complete("abc", max_tokens=3)
        assert "timing" not in plain.json() and "server-timing" not in plain.headers
        assert server.complete("abc", include_timing="yes").error["param"] == "include_timing"
        response = server.complete(["abc", "de"], max_tokens=3, include_timing=True)
        timing = response.json()["timing"]
        assert timing["request_id"] == response.headers["x-request-id"] and len(timing["prompts"]) == 2
        assert timing["total_seconds"] >= timing["time_to_first_token_seconds"] > 0
        parts = dict(part.split(";dur=") for part in response.headers["server-timing"].split(", "))
        assert {"receive", "parse", "tokenize", "queue", "prefill", "ttft", "decode", "total"} >= set(parts) >= {"ttft", "total"}
        assert all(float(value) >= 0 for value in parts.values())
        for usage in (False, True):
            response = server.complete("abc", max_tokens=3, stream=True, include_timing=True,
                                       stream_options={"include_usage": usage})
            events = parse_events(response.body)
            assert events[-1] == "[DONE]" and events[-2]["choices"] == [] and ("usage" in events[-2]) == usage
            assert events[-2]["timing"]["prompts"][0]["index"] == 0
            assert all("timing" not in event for event in events[:-2])
            parts = dict(part.split(";dur=") for part in response.headers["server-timing"].split(", "))
            assert "ttft" in parts and "decode" not in parts, parts


def test_the_list_is_sorted_filtered_and_bounded():
    with Server() as server:
        for i in range(30):
            server.post("/v1/completions", {"prompt": "abc", "max_tokens": 1 + i % 5}, headers=[("X-Request-Id", f"r{i}")])
        assert [r["id"] for r in records(server, "recent=3")] == ["r29", "r28", "r27"]
        for sort, key in (("e2e", "total"), ("ttft", "time_to_first_token"), ("queue", "queue")):
            values = [r["durations_seconds"][key] for r in records(server, f"slowest=7&sort={sort}")]
            assert len(values) == 7 and values == sorted(values, reverse=True), values
        assert len(records(server, "")) == 20
        assert records(server, "finish=cancelled") == [] and records(server, "min_ms=1e9") == []
        assert len(records(server, "finish=length&recent=500&key=0")) == 0
        for query in ("slowest=0", "slowest=501", "recent=-1", "recent=1&slowest=1", "recent=1&sort=e2e", "sort=x", "finish=x",
                      "slowest=1&slowest=2", "min_ms=nan", "x=1", "slowest=1.5", "key=-1"):
            assert server.get("/debug/requests?" + query).status == 400, query
        assert server.get("/debug/requests/r1?format=xml").status == 400
        assert server.get("/debug/requests/r1?format=json&x=1").status == 400
        for path in ("nobody", "", "%00", "%zz", "%", "r1%", "r1/", "x" * 4000, "%20" * 200):
            assert server.get("/debug/requests/" + path).status == 404, path
        assert record(server, "%721")["id"] == "r1"
        assert server.post("/debug/requests", {}).status == 405
        body = server.get("/debug/requests").json()
        assert body["log"]["finished"] == 30 and body["log"]["refused"] == 0 and body["open_completions"] == 0


def test_the_routes_are_for_administrators():
    with Server("--api-key", "one", env={"REPRISE_API_KEY": ""}) as server:
        assert server.get("/debug/requests").status == 401 and server.get("/debug/requests/x").status == 401
        headers = [("Authorization", "Bearer one")]
        server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=[*headers, ("X-Request-Id", "k")])
        response = server.get("/debug/requests/k", headers=headers)
        assert response.json()["requests"][0]["key_index"] == 0 and b"one" not in response.body
    with Server("--host", "0.0.0.0", "--insecure-no-auth") as server:
        assert server.get("/debug/requests").status == 404


def test_objectives_are_counted():
    with Server("--slo-ttft-ms", "100000", "--slo-e2e-ms", "0.001") as server:
        server.complete("abc", max_tokens=4)
        assert server.metric("reprise_goodput_requests_total") == 0
        lines = server.get("/metrics").body.decode().splitlines()
        misses = {line for line in lines if line.startswith("reprise_slo_misses_total{") and not line.endswith(" 0")}
        assert len(misses) == 1 and 'slo="e2e"' in misses.pop()
    with Server("--slo-ttft-ms", "100000") as server:
        server.complete("abc", max_tokens=4)
        assert server.metric("reprise_goodput_requests_total") == 1
        assert server.metric("reprise_goodput_tokens_total") == 4
    with Server() as server:
        assert "goodput" not in server.get("/metrics").body.decode()


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name, flush=True)


main()
