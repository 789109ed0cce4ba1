"""The GPU's hardware counters while the server answers: numbers, or the reason why there are none; one call at a time;
unchanged answers; the effect of counting on steps."""
import json
import threading
import time

from gpu import require_gpu
from reprise_server import DEMO, Server

STREAMS = 8


def body(i):
    return {"prompt": f"Once upon a time {i}", "max_tokens": 200, "temperature": 0, "ignore_eos": True}


def texts(server):
    out = [None] * STREAMS

    def one(i):
        out[i] = server.post("/v1/completions", body(i))[1]["choices"][0]["text"]
    threads = [threading.Thread(target=one, args=(i,)) for i in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


class Load:
    """Streams continuously; collects `answers`."""

    def __init__(self, server):
        self.server, self.stop, self.answers = server, False, []

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        time.sleep(1.0)  # steps to compare with
        return self

    def run(self):
        while not self.stop:
            self.answers.append(texts(self.server))

    def __exit__(self, *_):
        self.stop = True
        self.thread.join()


def check_counters(server):
    status, answer, _ = server.get("/debug/profile/counters?source=device&seconds=0.5")
    print(status, answer[:20000])
    answer = json.loads(answer)
    if status == 403:
        assert answer["error"]["code"] == "counters_not_available" and answer["error"]["message"], answer
        return False
    assert status == 200, answer
    device = answer["device"]
    assert 450 < device["samples"] < 650 and not device["overflowed"], device
    assert {"sm_active", "dram_read"} <= {c["name"] for c in device["counters"]}, device
    assert all(c["why"] for c in device["left_out"]), device["left_out"]
    for c in device["counters"]:
        if c["samples"]:
            assert c["p50"] <= c["p99"] <= c["max"] and c["mean"] <= c["max"], c
    slowdown = device["cost"]["slowdown"]
    assert slowdown["steps_before"] > 0 and slowdown["during"]["steps"] > 0 and slowdown["after"]["steps"] > 0, slowdown
    return True


def check_one_at_a_time(server):
    first = threading.Thread(target=server.get, args=("/debug/profile/counters?source=device&seconds=1",))
    first.start()
    time.sleep(0.5)
    status, answer, _ = server.get("/debug/profile/counters?source=device&seconds=0.1")
    first.join()
    assert status == 409 and json.loads(answer)["error"]["code"] == "counters_in_use", (status, answer)


def main():
    require_gpu()
    with Server(DEMO, "--device", "cuda", "--max-num-seqs", "16") as server:
        before = texts(server)
        with Load(server) as load:
            counted = check_counters(server)
            if counted:
                print(server.get("/debug/profile/counters?source=all&seconds=1&format=text")[1])
                print(server.get("/debug/profile/counters?source=device&seconds=1&interval_us=100&format=text")[1])
                check_one_at_a_time(server)
        assert all(answer == before for answer in load.answers), "counting changes answers"
        assert len(load.answers) > 1
    print("1 passed, 0 failed" + ("" if counted else "; the driver gives no counters"))


main()
