"""/debug/latency of the real server under 32 streams: counts agree with the requests, percentiles are in order, text and
gauges agree with the JSON, steps are listed by graph; and all of the device's time is busy, or idle with a cause."""
import json
import sys
import threading

from reprise_server import DEMO, Server

STREAMS, TOKENS, SINGLES = 32, 24, 3
SERIES = ["time_to_first_token", "inter_token_latency", "time_per_output_token", "request_duration", "queue_wait",
          "request_prefill", "request_decode"]
WINDOWS = ["10s", "1m", "5m", "total"]
RANKS = ["p50", "p90", "p95", "p99", "max"]


def latency(server):
    status, body, headers = server.get("/debug/latency")
    assert status == 200 and headers["Content-Type"] == "application/json", body
    return json.loads(body)


def load(server):
    def run(i):
        body = {"prompt": "add 1 and 2 " * (i % 7 + 1), "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0.5,
                "seed": i}
        chunks.append(sum(1 for c in server.stream(body) if c != "[DONE]" and c["choices"]))

    chunks = []
    threads = [threading.Thread(target=run, args=(i,)) for i in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert chunks == [TOKENS] * STREAMS, chunks
    for i in range(SINGLES):  # an answer of one token has no time between tokens
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200


def check_windows(windows, what):
    assert list(windows) == WINDOWS, what
    for name, w in windows.items():
        if w["count"] == 0:
            assert all(w[rank] is None for rank in RANKS + ["mean"]), (what, name, w)
            continue
        values = [w[rank] for rank in RANKS]
        assert values == sorted(values) and 0 < values[0] and 0 < w["mean"] <= w["max"] and w["max"] < 600, (what, name, w)
    counts = [windows[name]["count"] for name in WINDOWS]
    assert max(counts) == counts[-1], (what, counts)


def check_counts(answer, requests):
    series = {s["name"]: s for s in answer["series"]}
    assert list(series) == SERIES and answer["unit"] == "seconds"
    for name, s in series.items():
        assert s["meaning"], name
        check_windows(s["windows"], name)
    total = {name: s["windows"]["total"]["count"] for name, s in series.items()}
    assert total == {"time_to_first_token": requests, "inter_token_latency": STREAMS * (TOKENS - 1),
                     "time_per_output_token": STREAMS, "request_duration": requests, "queue_wait": requests,
                     "request_prefill": requests, "request_decode": requests}, total


def check_text(server):
    """Rows of the text are those of the JSON, in milliseconds. Windows move between two answers: totals do not."""
    answer, (status, text, headers) = latency(server), server.get("/debug/latency?format=text")
    assert status == 200 and headers["Content-Type"].startswith("text/plain"), headers
    lines = text.splitlines()
    assert lines[0].split() == ["milliseconds", "window", "count", "mean", *RANKS], lines[0]
    rows = answer["series"] + answer["steps"]
    assert len(lines) == 1 + len(WINDOWS) * len(rows), text
    for i, row in enumerate(rows):
        name, cells = lines[1 + 4 * i][:32].strip(), lines[4 + 4 * i].split()
        assert name == row.get("name", name) and cells[0] == "total", lines[4 + 4 * i]
        w = row["windows"]["total"]
        assert int(cells[1]) == w["count"], (row, cells)
        for cell, rank in zip(cells[2:], ["mean", *RANKS]):
            assert abs(float(cell) - w[rank] * 1e3) < 0.001, (row, cells)


def check_metrics(server):
    metrics = server.metrics()
    assert 'reprise_time_to_first_token_recent_seconds{window="10s",percentile="99"}' in metrics, metrics
    for name in SERIES:
        assert sum(key.startswith(f"reprise_{name}_recent_seconds{{") for key in metrics) == 5, name
    return metrics


def device_time(metrics):
    prefix = 'reprise_device_idle_seconds_total{cause="'
    idle = {key[len(prefix):-2]: value for key, value in metrics.items() if key.startswith(prefix)}
    return metrics["reprise_device_busy_seconds_total"], idle


def main():
    with Server(DEMO, "--max-num-seqs", "16", "--max-num-batched-tokens", "64") as server:
        before = latency(server)
        assert all(w["count"] == 0 for s in before["series"] for w in s["windows"].values())
        assert before["steps"] == []
        _, idle_before = device_time(server.metrics())
        load(server)
        answer, metrics = latency(server), check_metrics(server)
        check_counts(answer, STREAMS + SINGLES)
        for step in answer["steps"]:
            check_windows(step["windows"], step)
        steps = metrics['reprise_steps_total{kind="decode"}'] + metrics['reprise_steps_total{kind="mixed"}']
        assert sum(step["windows"]["total"]["count"] for step in answer["steps"]) == steps
        check_text(server)
        busy, idle = device_time(metrics)
        during = {cause: idle[cause] - idle_before[cause] for cause in idle}
        assert busy > 0 and min(during.values()) >= 0 and idle["unknown"] <= 0.02 * sum(idle.values()), idle
        later = device_time(server.metrics())
        while later[1]["no_work"] <= idle["no_work"] + 0.15:  # idle time is reported while it lasts
            later = device_time(server.metrics())
        assert later[0] == busy
        for query in ("?format=xml", "?x=1", "?format=json&format=text"):
            assert server.get("/debug/latency" + query)[0] == 400, query
    print("ok", len(answer["steps"]), "graphs, busy", round(busy, 3), {c: round(v, 4) for c, v in during.items()})


if __name__ == "__main__":
    sys.exit(main())
