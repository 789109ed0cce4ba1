"""Measurements agree with each other under 32 streams and afterwards: self times add up to the steps' time in every
grouping, requests and overhead to the busy time, idle time has causes, traces are valid in both formats, the page shows
its routes' numbers, and percentiles are those of the sorted records.

The bounds are those that the server promises: 2 % of the busy time not attributed, 2 % of the idle time without a cause,
3 % between a percentile and the sorted values. In a small pool requests are swapped, so that this time is covered too."""
import collections
import json
import math
import sys
import threading
import time

import trace_check
from debug_page import CHROMIUM, browse, check_numbers
from reprise_server import DEMO, Server

STREAMS, LOOKS, ITL_MS = 32, 6, 30
TURNS = 32  # of a stream at most: the profile and a trace keep the newest steps, and all are compared
GROUPS = ("op", "layer", "node", "bucket", "phase", "request")
FLAGS = ("--profile-every", "1", "--max-num-batched-tokens", "128",
         "--num-gpu-blocks-override", "48", "--max-model-len", "256",
         "--swap-space", "1", "--slo-itl-ms", str(ITL_MS))


def get(server, path):
    status, text, _ = server.get(path)
    assert status == 200, (path, status, text)
    return json.loads(text)


class Load:
    """Streams that send one request after another, of different lengths, for the duration of the block, TURNS at most."""

    def __init__(self, server):
        self.server, self.answers, self.errors, self.enough = server, [], [], threading.Event()
        self.threads = [threading.Thread(target=self.stream, args=(i,)) for i in range(STREAMS)]

    def stream(self, number):
        for turn in range(TURNS):
            if self.enough.is_set():
                return
            try:
                chunks = self.server.stream({"prompt": "Once upon a time " * (1 + (number + turn) % 9), "max_tokens": 30 + number,
                                             "ignore_eos": True, "seed": number, "stream_options": {"include_usage": True}})
                self.answers.append(chunks[-2]["id"])
            except Exception as error:  # raised in the main thread
                self.errors.append(error)
                return

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.enough.set()
        for thread in self.threads:
            thread.join()
        assert not self.errors, self.errors


# --- One answer each, at any time -----------------------------------------------------------------------------

def check_self_times(server, group):
    """Self times are parts of the steps on the device: their sum equals the footer's to the nanosecond."""
    answer = get(server, f"/debug/profile?format=json&row_limit=0&group_by={group}")
    footer, rows = answer["footer"], answer["rows"]
    own = sum(row["self_ns"] for row in rows)
    slack = STREAMS * footer["steps_stamped"] if group == "request" else 0  # shares in whole nanoseconds
    assert len(rows) == footer["row_count"] and abs(own - footer["self_ns"]) <= slack, (group, own, footer)
    assert abs(own + footer["unattributed_ns"] - footer["replay_ns"]) <= slack, (group, own, footer)
    assert footer["unattributed_ns"] <= 0.02 * footer["replay_ns"] and footer["launches_without_times"] == 0, (group, footer)
    return footer


def check_attribution(server):
    """Steps are counted when they are read, and attributed shortly after."""
    before = get(server, "/debug/status")["device_seconds"]["busy"]
    device = get(server, "/debug/requests?recent=1")["device_nanoseconds"]
    after = get(server, "/debug/status")["device_seconds"]["busy"]
    longest = max((s["windows"]["total"]["max"] or 0 for s in get(server, "/debug/latency")["steps"]), default=0)
    assert device["attributed"] + device["padding"] + device["unused_rows"] == device["busy"], device
    assert before - 1.001 * longest <= device["busy"] * 1e-9 <= after + 1e-8, (before, device, after, longest)
    return device


def check_trace(server, seconds):
    """The events of Chrome's format."""
    found = []
    for query, check in (("&format=perfetto", trace_check.perfetto), ("", trace_check.chrome)):
        status, _, body = server.request("GET", f"/debug/trace?seconds={seconds}{query}")
        assert status == 200, body
        found = check(body)
    return found


def check_page(server):
    """The page shows the answers that it fetched under load."""
    if not CHROMIUM:
        print("skipped: check_page: no Chromium")
        return 0
    page = browse(f"http://127.0.0.1:{server.port}/debug/ui")
    return check_numbers(page)


# --- After the load -------------------------------------------------------------------------------------------

def device_time(server):
    seconds = get(server, "/debug/status")["device_seconds"]
    return seconds["busy"], seconds["idle"], time.monotonic()


def check_device_time(before, after, device, footer):
    busy, idle = after[0] - before[0], {cause: after[1][cause] - before[1][cause] for cause in after[1]}
    assert busy > 0.2 and sum(idle.values()) > 0, (busy, idle)
    unattributed = abs(device["busy"] * 1e-9 - after[0])
    assert unattributed <= 0.02 * after[0], (device, after)
    assert footer["whole"] and abs(footer["self_ns"] * 1e-9 - after[0]) <= 0.02 * after[0], (footer, after)
    assert idle["unknown"] <= 0.02 * sum(idle.values()), idle
    # Current activity is reported when it ends, or after a tenth of a second.
    elapsed = after[2] - before[2]
    assert abs(busy + sum(idle.values()) - elapsed) <= 0.02 * elapsed + 0.2, (busy, idle, elapsed)
    return busy, idle


def exact(values, percent):
    """The percentile by rank."""
    return values[max(math.ceil(percent / 100 * len(values)), 1) - 1]


def delays(events):
    """Engine's id -> seconds from the engine's first token to the write of its first byte."""
    token, written = {}, {}
    for event in events:
        if event["ph"] == "n" and event["name"] in ("token", "written"):
            stamps = token if event["name"] == "token" else written
            stamps.setdefault(int(event["id2"]["local"], 16), event["ts"] * 1e-6)
    return {identity: written[identity] - token[identity] for identity in token}


def records_of(server, answers):
    """One by one, because a list has at most 500 and a fast machine answers more."""
    return [get(server, f"/debug/requests/{identity}")["requests"][0] for identity in answers]


def check_percentiles(server, records, events):
    gaps = []
    for record in records:
        times = record["token_seconds"]
        assert len(times) == record["tokens"]["output"], record
        gaps += [after - before for before, after in zip(times, times[1:])]
    spans = {name: [r["durations_seconds"][key] for r in records] for name, key in (
        ("time_to_first_token", "time_to_first_token"), ("time_per_output_token", "time_per_output_token"),
        ("request_duration", "total"), ("queue_wait", "queue"), ("request_prefill", "prefill"), ("request_decode", "decode"))}
    spans["inter_token_latency"] = gaps
    # The loop thread receives a token after the engine and before it is written.
    late = delays(events)
    latest = {"time_to_first_token": sorted(r["durations_seconds"]["time_to_first_token"] + late[r["engine_id"]] for r in records)}
    said = {series["name"]: series["windows"]["total"] for series in get(server, "/debug/latency")["series"]}
    assert set(said) == set(spans), said.keys()
    for name, values in spans.items():
        values.sort()
        window, ends = said[name], latest.get(name, values)
        assert window["count"] == len(values), (name, window, len(values))
        for key, percent, error in (("p50", 50, 0.03), ("p90", 90, 0.03), ("p95", 95, 0.03), ("p99", 99, 0.03), ("max", 100, 0.001)):
            low, high = exact(values, percent), exact(ends, percent)
            # Times of tokens are stored in microseconds; a record ends shortly after its request is counted.
            assert low * (1 - error) - 2e-6 <= window[key] <= high * (1 + error) + 2e-6, (name, key, window, low, high)
    return len(gaps)


def check_objective(server, records):
    """Requests whose longest time between two tokens was too long, by its main cause."""
    worst = [r["inter_token"]["worst"] for r in records]
    missed = collections.Counter(w["cause"] for w in worst if w["seconds"] > ITL_MS * 1e-3)
    metrics = server.metrics()
    for cause, count in missed.items():
        assert metrics[f'reprise_slo_misses_total{{slo="itl",cause="{cause}"}}'] == count, (missed, metrics)
    assert sum(value for key, value in metrics.items() if key.startswith("reprise_slo_misses_total{")) == sum(missed.values())
    assert metrics["reprise_goodput_requests_total"] == len(worst) - sum(missed.values()), (missed, len(worst))


def main():
    with Server(DEMO, *FLAGS) as server:
        before, shown = device_time(server), 0
        with Load(server) as load:
            for look in range(LOOKS):
                check_self_times(server, GROUPS[look % len(GROUPS)])
                check_attribution(server)
                check_trace(server, (0.05, 0.3, 1, 60)[look % 4])
                shown = check_page(server) if look == 1 else shown
        footers = [check_self_times(server, group) for group in GROUPS]
        assert len({footer["replay_ns"] for footer in footers}) == 1, footers
        busy, idle = check_device_time(before, device_time(server), check_attribution(server), footers[0])
        records = records_of(server, load.answers)
        gaps = check_percentiles(server, records, check_trace(server, 600))
        check_objective(server, records)
        metrics = server.metrics()
        swaps = sum(value for key, value in metrics.items() if key.startswith("reprise_preemptions_total{"))
        assert swaps > 0 and metrics['vllm:num_preemptions_total{model_name="demo",engine="0"}'] == swaps, swaps
        check_page(server)
    print(f"ok: {LOOKS} looks under load, {shown} numbers on the page, {gaps} gaps, busy {busy:.2f} s, idle "
          f"{ {cause: round(value, 4) for cause, value in idle.items() if value} }, {swaps:.0f} swaps")


if __name__ == "__main__":
    sys.exit(main())
