"""The Azure and Mooncake traces, scaled, against this project's server with the demo model: every request is accounted
for, tokens are exact, prefix hits are those of an unbounded cache, and the client's measurements agree with the
server's. The expected values are computed here, from the trace files alone.

Wall time is compared with wall time only: the client's percentiles with the server's histograms of the same requests.

    python3 tests/cli/test_bench_traces.py --whole    # the whole traces, some 20 minutes: bench/results/load_traces.md
"""
import bisect
import csv
import http.client
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time

from reprise_server import BIN, DEMO, Server, data, skip

PAGE = 16  # tokens of the KV pool's pages on the CPU; Mooncake's blocks are as long here
AZURE = data("traces/AzureLLMInferenceTrace_conv.csv")
MOONCAKE = data("traces/mooncake_synthetic.jsonl")
HISTOGRAMS = {"ttft": "reprise_time_to_first_token_seconds", "itl": "reprise_inter_token_latency_seconds",
              "e2el": "reprise_request_duration_seconds"}
QUANTILES = (("median", 0.5), ("p90", 0.9), ("p99", 0.99))


# --- Expected values of a trace --------------------------------------------------------------------------------------

class Expected:
    """(input, output, block ids) of each of a trace's requests at this scale, in the order of the file."""

    def __init__(self, requests, scale, context):
        known = set()
        self.requests = len(requests)
        self.sent = self.prompt = self.output = self.hits = 0
        for length, output, blocks in requests:
            length, output = (max(1, math.floor(tokens * scale + 0.5)) for tokens in (length, output))
            if length + output > context:
                continue
            self.sent += 1
            self.prompt += length
            self.output += output
            # An id identifies a block and all blocks before it, because ids are a hash chain.
            whole = blocks[:length // PAGE]
            found = next((i for i, block in enumerate(whole) if block not in known), len(whole))
            self.hits += min(found, (length - 1) // PAGE) * PAGE  # the last token is always computed
            known.update(whole)
        self.pages = len(known)
        self.left_out = self.requests - self.sent


def azure_requests(path):
    with open(path, newline="") as file:
        return [(int(row["ContextTokens"]), int(row["GeneratedTokens"]), []) for row in csv.DictReader(file)]


def mooncake_requests(path):
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    assert rows == sorted(rows, key=lambda row: row["timestamp"])
    return [(row["input_length"], row["output_length"], row["hash_ids"]) for row in rows]


# --- A run -----------------------------------------------------------------------------------------------------------

class LoopbackTime(threading.Thread):
    """Round trips of GET /health on one connection during a run: the latency of kernel, server loop and client on this
    machine under this load."""

    def __init__(self, server):
        super().__init__()
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        self.round_trips, self.done = [], False

    def run(self):
        while not self.done:
            begin = time.perf_counter()
            self.connection.request("GET", "/health")
            assert self.connection.getresponse().read() is not None
            self.round_trips.append(time.perf_counter() - begin)
            time.sleep(0.005)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, value, trace):
        self.done = True
        self.join()
        self.connection.close()

    def longest_ms(self):
        return max(self.round_trips) * 1e3

    def median_ms(self):
        return sorted(self.round_trips)[len(self.round_trips) // 2] * 1e3


class Run:
    """One `reprise bench serve`, and the server's counters before and after."""

    def __init__(self, server, *arguments):
        self.command = ["bench", "serve", "--no-warm-up", *arguments]
        url = f"http://127.0.0.1:{server.port}"
        before = server.metrics()
        with LoopbackTime(server) as self.loopback:
            done = subprocess.run([BIN, *self.command, "--base-url", url, "--json"], stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=1200)
        after = server.metrics()
        assert done.returncode == 0, (self.command, done.stdout.decode(), done.stderr.decode())
        self.got = json.loads(done.stdout)
        self.change = {name: value - before.get(name, 0) for name, value in after.items()}
        self.hits = self.got["prefix_cache"]["cached_tokens"]

    def check_counts(self, expected):
        got, change = self.got, self.change
        assert got["outcomes"]["ok"] == got["completed"] == got["num_prompts"] == expected.sent, (expected.sent, got)
        assert got["failed"] == 0 and got["left_out"] == expected.left_out, (expected.left_out, got)
        assert got["total_input_tokens"] == expected.prompt, (expected.prompt, got)
        assert got["total_output_tokens"] == expected.output, (expected.output, got)
        cache = got["prefix_cache"]
        assert cache["prompt_tokens"] == expected.prompt and cache["expected_tokens"] == expected.hits, (
            expected.hits, cache)
        # And by the server's counters.
        assert change['reprise_requests_total{finish_reason="length"}'] == expected.sent, change
        assert change["reprise_request_prompt_tokens_sum"] == expected.prompt, change
        assert change["reprise_request_generation_tokens_sum"] == expected.output, change
        assert change["reprise_generated_tokens_total"] == expected.output, change
        assert change["reprise_cached_prompt_tokens_total"] == (self.hits or 0), (change, cache)
        assert got["samples"] == {"ttft": expected.sent, "e2el": expected.sent, "itl": expected.output - expected.sent,
                                  "tpot": got["samples"]["tpot"]}, (expected.sent, expected.output, got["samples"])

    def buckets(self, name):
        """(upper edge in ms, observations up to it), ascending."""
        head = name + '_bucket{le="'
        return sorted((float(key[len(head):-2].replace("+Inf", "inf")) * 1e3, int(count))
                      for key, count in self.change.items() if key.startswith(head))

    def bounds(self, kind, quantile):
        """The edges in ms between which the server's quantile is (linear between ranks, like the client's)."""
        edges, counts = zip(*self.buckets(HISTOGRAMS[kind]))
        assert counts[-1] == self.got["samples"][kind], (kind, counts, self.got["samples"])
        rank = quantile * (counts[-1] - 1)
        low, high = (bisect.bisect_right(counts, int(r)) for r in (math.floor(rank), math.ceil(rank)))
        return edges[low - 1] if low else 0.0, edges[high]

    def mean(self, kind):
        """The mean of the server's observations in ms; a histogram's sum and count are exact."""
        name = HISTOGRAMS[kind]
        return self.change[name + "_sum"] / self.change[name + "_count"] * 1e3

    def comparison(self):
        """(kind, name, client's ms, lower, upper) of each mean and percentile."""
        service = self.got["service"]
        means = [(kind, "mean", service[f"mean_{kind}_ms"], self.mean(kind), self.mean(kind)) for kind in HISTOGRAMS]
        return means + [(kind, name, service[f"{name}_{kind}_ms"], *self.bounds(kind, quantile))
                        for kind in HISTOGRAMS for name, quantile in QUANTILES]

    def disagreements(self):
        """The client's numbers that differ from the server's bucket or mean by more than the longest round trip of this
        run, in either direction: the server may have read a request before the client's write returned, and the first
        of two tokens may have been the late one."""
        allowed = self.loopback.longest_ms()
        return [row for row in self.comparison() if not row[3] - allowed <= row[2] <= row[4] + allowed]


def run_agreeing(server, expected, *arguments):
    """Counts must be exact in the first run; times may be repeated twice, because the machine is shared."""
    for seed in range(3):
        run = Run(server, *arguments, "--seed", str(seed))
        run.check_counts(expected)
        wrong = run.disagreements()
        if not wrong:
            return run
        print("disagree by more than", run.loopback.longest_ms(), "ms:", wrong)
    raise AssertionError(run.comparison())


# --- The test --------------------------------------------------------------------------------------------------------

def is_sanitized():
    with open(BIN, "rb") as file:
        program = file.read()
    return b"__tsan_init" in program or b"__asan_init" in program


def last_lines(path, count, folder):
    """The part of Mooncake's trace with the most sharing."""
    out = os.path.join(folder, "mooncake.jsonl")
    with open(path) as file, open(out, "w") as part:
        part.writelines(file.readlines()[-count:])
    return out


def check_azure(server, count, context):
    expected = Expected(azure_requests(AZURE)[:count], 1 / 32, context)
    run = run_agreeing(server, expected, "--dataset-name", "azure", "--dataset-path", AZURE, "--num-prompts",
                       str(count), "--length-scale", str(1 / 32), "--time-scale", "0.06" if count >= 300 else "0.5")
    assert not run.hits, run.got["prefix_cache"]  # random prompts have nothing in common


def mooncake_arguments(path):
    return ("--dataset-name", "mooncake", "--dataset-path", path, "--length-scale", str(1 / 64),
            "--block-tokens", str(PAGE))


def check_mooncake(server, path, context):
    expected = Expected(mooncake_requests(path), 1 / 64, context)
    assert expected.hits > expected.prompt / 10 and expected.left_out, vars(expected)
    # One after another, no prefix is requested while it is still being computed, so all hits are found.
    run = run_agreeing(server, expected, *mooncake_arguments(path), "--closed")
    assert run.hits == expected.hits, (run.hits, expected.hits)
    # Together some prompts begin before the one that they share was computed.
    run = Run(server, *mooncake_arguments(path), "--max-concurrency", "32", "--seed", "7", "--time-scale", "0.1")
    run.check_counts(expected)
    assert run.hits <= expected.hits, (run.hits, expected.hits)
    print(f"hits of {expected.prompt} prompt tokens: {expected.hits}, when they overlap {run.hits}")


def check_a_small_pool_shows(path, context):
    expected = Expected(mooncake_requests(path), 1 / 64, context)
    pages = context // PAGE + 16  # one request at its longest fits
    with Server(DEMO, "--max-model-len", str(context), "--num-gpu-blocks-override", str(pages)) as server:
        run = Run(server, *mooncake_arguments(path), "--closed")
        run.check_counts(expected)
    assert run.hits < expected.hits - 0.03 * expected.prompt, (run.hits, expected.hits, expected.prompt)
    print(f"in a pool of {pages} pages: {run.hits}")


def main():
    if not AZURE or not MOONCAKE:
        skip("no traces in REPRISE_TEST_DATA")
    azure, mooncake, context = (40, 60, 304) if is_sanitized() else (300, 150, 1024)
    with tempfile.TemporaryDirectory() as folder:
        path = last_lines(MOONCAKE, mooncake, folder)
        with Server(DEMO, "--max-model-len", str(context), "--num-gpu-blocks-override", "12000") as server:
            check_azure(server, azure, context)
            check_mooncake(server, path, context)
        check_a_small_pool_shows(path, context)
    print("3 passed, 0 failed")


# --- The whole traces, by hand ---------------------------------------------------------------------------------------

WHOLE = (
    # name, trace, scale of lengths, pages, arguments
    ("azure", AZURE, 1 / 32, 49152, ("--time-scale", "0.065")),
    ("mooncake", MOONCAKE, 1 / 32, 49152, ("--block-tokens", "16", "--closed")),
    ("mooncake", MOONCAKE, 1 / 32, 49152, ("--block-tokens", "16", "--time-scale", "0.2")),
    ("mooncake", MOONCAKE, 1 / 32, 4096, ("--block-tokens", "16", "--closed")),
)


def show(run, expected):
    got = run.got
    print(f"sent {expected.sent} of {expected.requests}, left out {got['left_out']}, failed {got['failed']}, "
          f"{got['duration']:.0f} s; input {got['total_input_tokens']}, output {got['total_output_tokens']}, "
          f"{got['total_token_throughput']:.0f} tokens/s; most in flight {got['max_in_flight']}; "
          f"client lag p99 {got['client_lag_ms']['p99']:.1f} ms")
    print(f"prefix hits {100 * (run.hits or 0) / expected.prompt:.2f} % of prompt tokens, unbounded "
          f"{100 * expected.hits / expected.prompt:.2f} %; difference {expected.hits - (run.hits or 0)} tokens; "
          f"pages of the prompts {expected.pages}")
    print(f"GET /health: median {run.loopback.median_ms():.2f} ms, longest {run.loopback.longest_ms():.2f} ms")
    for kind, name, client, low, high in run.comparison():
        print(f"| {kind} | {name} | {client:.2f} | {low:.5g} to {high:.5g} |")


def whole():
    for name, path, scale, pages, arguments in WHOLE:
        expected = Expected((azure_requests if name == "azure" else mooncake_requests)(path), scale, 1024)
        with Server(DEMO, "--num-gpu-blocks-override", str(pages), "--max-num-queued-reqs", "20000") as server:
            run = Run(server, "--dataset-name", name, "--dataset-path", path, "--length-scale", str(scale), *arguments)
        print("\nreprise", " ".join(run.command), f"({pages} pages)", flush=True)
        show(run, expected)
        run.check_counts(expected)
        print("more than the longest loopback time apart:", run.disagreements(), flush=True)


if __name__ == "__main__":
    whole() if "--whole" in sys.argv[1:] else main()
