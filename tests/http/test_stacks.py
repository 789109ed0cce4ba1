"""Goal: GET /debug/profile/stacks shows where a server at work spends its processor time, as folded text and as a flame graph
that a browser can read, while answers stay the same; one at a time, and within its limits."""
import re
import threading
import xml.etree.ElementTree as ElementTree

from reprise_server import DEMO, TSAN, Server

BODY = {"prompt": "Once upon a time", "max_tokens": 100, "ignore_eos": True, "seed": 1}


def load(server, stop, answers):
    while not stop.is_set():
        status, body = server.post("/v1/completions", BODY)[:2]
        answers.append(body["choices"][0]["text"] if status == 200 else status)


def text_of(body):
    return body.decode() if isinstance(body, bytes) else body


def fold(server, query):
    status, body = server.get("/debug/profile/stacks?" + query)[:2]
    assert status == 200, body
    lines = [line.rsplit(" ", 1) for line in text_of(body).splitlines()]
    return [(frames.split(";"), int(count)) for frames, count in lines]


def check_work(server):
    seconds, found = 0.5, []
    while seconds < 60:  # how many samples come depends on the machine's load
        found = fold(server, f"seconds={seconds}&hz=250")
        if sum(count for frames, count in found if frames[0].startswith("rp-cpu")) >= 20:
            break
        seconds *= 2
    total = sum(count for _, count in found)
    # The engine's thread takes part in a step while it waits for it, so a step is told by its job, not by its thread.
    computing = sum(count for frames, count in found if "replay_job" in frames)
    # The thread sanitizer delivers signals late, so that its own functions are on top of what was interrupted.
    assert computing > total / 2 or TSAN, found
    names = {name for frames, _ in found for name in frames}
    assert not any("on_profile" in name or "backtrace" in name for name in names), names
    assert found == sorted(found, key=lambda line: line[0]), found


def check_picture(server):
    status, body = server.get("/debug/profile/stacks?seconds=0.5&hz=250&format=svg")[:2]
    assert status == 200
    root = ElementTree.fromstring(text_of(body))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "script" not in text_of(body)
    assert re.search(r"\d+ threads, .* s, \d+ samples", "".join(root.itertext()))


def check_limits(server):
    for query in ("seconds=31", "seconds=0", "hz=0", "hz=251", "format=png", "depth=3"):
        assert server.get("/debug/profile/stacks?" + query)[0] == 400, query
    states = []
    threads = [threading.Thread(target=lambda: states.append(server.get("/debug/profile/stacks?seconds=1")[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert states.count(200) >= 1 and set(states) <= {200, 409, 429} and len(set(states)) > 1, states


with Server(DEMO, "--threads", "2") as server:
    stop, answers = threading.Event(), []
    expected = server.post("/v1/completions", BODY)[1]["choices"][0]["text"]
    worker = threading.Thread(target=load, args=(server, stop, answers))
    worker.start()
    try:
        check_work(server)
        check_picture(server)
        check_limits(server)
    finally:
        stop.set()
        worker.join()
    assert set(answers) == {expected}, answers  # signals do not change an answer
print("3 passed, 0 failed")
