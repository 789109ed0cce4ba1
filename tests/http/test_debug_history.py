"""/debug/history: the samples of a server add up to what its counters say, follow one another without a hole, continue after
`since`, and show seconds without a request as such."""
import json
import sys
import time

from reprise_server import DEMO, Server

TOKENS = 30


def get(server, route):
    status, body, _ = server.get(route)
    assert status == 200, body
    return json.loads(body)


def total(samples, *path):
    result = 0
    for sample in samples:
        for name in path:
            sample = sample[name]
        result += sample
    return result


def until(server, holds):
    """The history once it holds: what is counted now is in the sample of a second from now."""
    for _ in range(100):
        history = get(server, "/debug/history")
        if holds(history["samples"]):
            return history
        time.sleep(0.1)
    raise AssertionError(history)


def main():
    with Server(DEMO, "--max-num-seqs", "4") as server:
        until(server, lambda samples: len(samples) >= 1)
        for _ in range(3):
            assert server.post("/v1/completions", {"prompt": "1 2 3", "max_tokens": TOKENS, "ignore_eos": True})[0] == 200
        history = until(server, lambda samples: total(samples, "tokens", "generated") >= 3 * TOKENS)
        samples, status = history["samples"], get(server, "/debug/status")
        assert total(samples, "tokens", "generated") == status["tokens"]["generated"] == 3 * TOKENS
        assert total(samples, "tokens", "prompt") == status["tokens"]["prompt"]
        assert total(samples, "steps", "decode") == status["steps"]["decode"] > 0
        assert total(samples, "time_to_first_token", "count") == total(samples, "request_duration", "count") == 3
        assert total(samples, "inter_token_latency", "count") == 3 * (TOKENS - 1)
        assert [s["sequence"] for s in samples] == list(range(1, history["sequence"] + 1))
        for a, b in zip(samples, samples[1:]):
            assert abs(b["end_seconds"] - b["seconds"] - a["end_seconds"]) < 1e-6, (a, b)
        for sample in samples:
            for series in ("time_to_first_token", "inter_token_latency", "request_duration"):
                one = sample[series]
                assert (one["count"] == 0) == ("p50" not in one), one
                assert one["count"] == 0 or 0 < one["p50"] <= one["p99"] < 600, one
            assert sum(sample["pages"].values()) == status["pages"]["total"], sample
        last = history["sequence"]
        history = until(server, lambda samples: samples[-1]["sequence"] >= last + 2)
        quiet = history["samples"][last + 1]  # the whole second began after the last token
        assert quiet["tokens"]["generated"] == 0 and quiet["steps"] == {"decode": 0, "mixed": 0}, quiet
        assert quiet["device_seconds"]["busy"] == 0 and quiet["device_seconds"]["idle"]["no_work"] > 0, quiet
        newer = get(server, f"/debug/history?since={last}")["samples"]
        assert newer[:2] == history["samples"][last:last + 2], newer
        assert get(server, f"/debug/history?since={10**12}")["samples"] == []
        owners = {o["name"]: o["bytes"] for o in get(server, "/debug/memory")["host"]["owners"]}
        assert owners["status history"] == history["bytes"] < 300_000 and history["capacity"] == 300
        for query in ("since=-1", "since=x", "limit=3"):
            assert server.get("/debug/history?" + query)[0] == 400, query
    print("ok", len(samples), "samples")


if __name__ == "__main__":
    sys.exit(main())
