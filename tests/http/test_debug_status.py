"""/debug/status and /debug/steps: counts agree with /metrics and with one another, steps do not overlap, and busy and idle
time add up to the elapsed time."""
import json
import sys
import threading

from reprise_server import DEMO, Server


def get(server, route):
    status, body, _ = server.get(route)
    assert status == 200, body
    return json.loads(body)


def check_steps(steps):
    for a, b in zip(steps, steps[1:]):
        assert b["step"] == a["step"] + 1 and a["end"] <= b["begin"] + 1e-9, (a, b)
        gap = b["begin"] - a["end"]
        assert abs(sum(b["idle"].values()) - gap) < 2e-6, (gap, b)
    for step in steps:
        assert step["plan"] <= step["planned"] <= step["launch"] <= step["launched"] <= step["read"] <= 0, step
        assert step["begin"] <= step["end"] <= step["read"], step
        assert 0 < step["rows"] <= step["tokens"] and step["decode_rows"] <= step["rows"], step


def main():
    with Server(DEMO, "--max-num-seqs", "4") as server:
        before = get(server, "/debug/status")
        body = {"prompt": "1 2 3", "max_tokens": 30, "ignore_eos": True}
        threads = [threading.Thread(target=server.post, args=("/v1/completions", body)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        metrics, after = server.metrics(), get(server, "/debug/status")
        steps = get(server, "/debug/steps?limit=4096")["steps"]
        assert after["tokens"]["generated"] - before["tokens"]["generated"] == 4 * 30, after
        assert after["tokens"]["generated"] == metrics["reprise_generated_tokens_total"]
        assert after["pages"]["free"] + after["pages"]["held"] + after["pages"]["cached"] == after["pages"]["total"]
        assert after["requests"]["running"] == 0 and after["not_ready"] is None and after["model"] == "demo"
        # A step that ran ahead of the last tokens may have been wasted.
        assert 0 <= after["steps"]["decode"] + after["steps"]["mixed"] - len(steps) <= 1, (after["steps"], len(steps))
        check_steps(steps)
        assert sum(s["samples"] for s in steps) >= 4 * 30
        device = [s["device_seconds"]["busy"] + sum(s["device_seconds"]["idle"].values()) for s in (before, after)]
        passed = after["now_seconds"] - before["now_seconds"]
        assert device[1] - device[0] <= passed + 0.2 and device[1] > device[0], (device, passed)
        assert len(get(server, "/debug/steps?limit=3")["steps"]) == 3
        assert get(server, "/debug/steps?seconds=0")["steps"] == []
        for route in ("/debug/steps?limit=0", "/debug/steps?limit=5000", "/debug/steps?seconds=-1", "/debug/status?x=1"):
            assert server.get(route)[0] == 400, route
    print("ok", len(steps), "steps")


if __name__ == "__main__":
    sys.exit(main())
