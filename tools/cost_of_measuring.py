#!/usr/bin/env python3
"""Measures the cost of always-on recording in instructions, by cause (bench/results/cost_of_measuring.md).

    tools/cost_of_measuring.py [--build build/release] [--rows 1,8,32] [--no-demo] [--out FILE]

Runs under valgrind's callgrind, which counts the inclusive instructions of every function:

- the engine, with a small random model on the CPU backend with one worker, N and 2 N tokens of several concurrent
  sequences (`bench check --counted-load`): tier A, then A and the nodes of every step (B; one step in 64 is stamped by
  default). The difference of the two lengths excludes startup.
- a server with an engine that computes nothing (fake_reprise), for the loop thread's cost per token and per request.
- steps of models/demo, for comparison; with vectors of 256 bits, the widest that valgrind supports.

Instruction counts of the engine's own code depend on the compiler, not on the machine. Events at fixed intervals (LOAD,
PAGES and RATE, slices of windows) are more frequent per step here, because valgrind is slow.
Takes about ten minutes, most of them for the demo model. Needs valgrind; standard library only."""
import argparse
import collections
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STEPS = 16
DEMO_STEPS = 1
STAMP_EVERY = 64
STREAMS, STREAM_TOKENS = 16, 48

# A cause: (name, functions to add, functions to subtract), inclusive costs; all on the engine thread, per step.
CAUSES = [
    ("spans of the thread, their events and clock reads", ["rp_step_trace_span"],
     ["rp_idle_timeline_add", "rp_idle_timeline_split"]),
    ("events of tokens, joins, swaps, load", ["rp_step_trace_launch", "rp_step_trace_event", "rp_step_trace_counters"], []),
    ("idle timeline", ["rp_idle_timeline_add", "rp_idle_timeline_split"], []),
    ("step record, its device times and events", ["rp_step_trace_read"], ["rp_latency_record", "rp_idle_timeline_split"]),
    # Slices of windows advance every two seconds.
    ("histograms and windows", ["rp_latency_record", "rp_histogram_observe"], ["turn_slices"]),
    ("attribution to requests", ["rp_engine_account_step", "rp_account_close"], []),
    ("choice of the stamped steps", ["rp_step_profile_launch"], []),
]

# Other work of the thread: instructions_*.host_per_token of bench/expectations_counts.json.
WORK = ["rp_scheduler_plan", "rp_scheduler_commit", "rp_scheduler_next_event", "rp_batch_encode", "rp_batch_decode",
        "rp_graph_set_pick", "rp_engine_note_step", "rp_engine_note_turn", "rp_engine_update_gauges"]

LOOP_TOKEN = [
    ("windows and histogram, with the trace as exemplar", "rp_server_metrics_token"),
    ("request record", "rp_record_token"),
    ("event", "rp_server_trace_written"),
]
LOOP_REQUEST = [
    ("beginning its record", "rp_completion_record_begin"),
    ("events", "rp_server_trace_queued"),
    ("histograms and windows", "rp_server_metrics_closed"),
    ("closing and logging its record, checking objectives", "rp_completion_log"),
]


class Counts:
    """A callgrind file: inclusive instructions and number of calls of each function."""

    def __init__(self, path):
        self.cost, self.calls = collections.Counter(), collections.Counter()
        names, function, callee, count = {}, "", "", 0

        def name_of(text):
            match = re.match(r"\((\d+)\)(?: (.*))?$", text)
            if match.group(2):
                names[match.group(1)] = re.sub(r"'\d+$", "", match.group(2))
            return names[match.group(1)]

        with open(path) as file:
            for line in file:
                key, _, value = line.rstrip("\n").partition("=")
                if key == "fn":
                    function = name_of(value)
                elif key == "cfn":
                    callee = name_of(value)
                elif key == "calls":
                    count = int(value.split()[0])
                elif count and line[0] in "+-*0123456789":
                    if function != callee:  # count recursion once
                        self.cost[callee] += int(line.split()[1])
                        self.calls[callee] += count
                    count = 0

    def __sub__(self, other):
        out = object.__new__(Counts)
        out.cost, out.calls = collections.Counter(self.cost), collections.Counter(self.calls)
        out.cost.subtract(other.cost)
        out.calls.subtract(other.calls)
        return out


def callgrind(folder, command, environment=None):
    """Starts the process; it writes its counts to folder/out at exit."""
    return subprocess.Popen(["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", *command], cwd=ROOT,
                            env=dict(os.environ, **(environment or {})), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def count_load(binary, tokens, rows, *flags):
    with tempfile.TemporaryDirectory() as folder:
        process = callgrind(folder, [binary, "bench", "check", "--counted-load", str(tokens), "--counted-rows",
                                     str(rows), *flags])
        _, errors = process.communicate()
        if process.returncode:
            sys.exit(errors.decode())
        return Counts(os.path.join(folder, "out"))


def per_step(binary, steps, rows, *flags):
    """Counts of `steps` steps: all rows begin together, so 2 N tokens are N steps more than N."""
    return count_load(binary, 2 * steps, rows, *flags) - count_load(binary, steps, rows, *flags)


def cause_cost(counts, functions, without):
    return sum(counts.cost[name] for name in functions) - sum(counts.cost[name] for name in without)


def measure_engine(binary, rows):
    tier_a = per_step(binary, STEPS, rows)
    tier_b = per_step(binary, STEPS, rows, "--counted-every", "1")
    causes = [(name, cause_cost(tier_a, functions, without) / STEPS) for name, functions, without in CAUSES]
    # read: on the engine thread; taken: by the device's nodes.
    read = sum(tier_b.cost[name] - tier_a.cost[name] for name in
               ("rp_step_profile_launch", "rp_step_profile_read", "rp_engine_account_step")) / STEPS
    taken = (tier_b.cost["replay_job"] - tier_a.cost["replay_job"]) / STEPS
    return {"causes": causes, "read": read, "taken": taken, "work": cause_cost(tier_a, WORK, []) / STEPS}


def measure_demo(binary, rows, *flags):
    counts = per_step(binary, DEMO_STEPS, rows, "--counted-demo", *flags)
    return counts.cost["replay_job"] / DEMO_STEPS


def stream(port):
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": STREAM_TOKENS, "stream": True, "ignore_eos": True,
                       "temperature": 0})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    connection.close()


def measure_loop(build):
    """Counts of STREAMS answers; None: fake_reprise is not built."""
    binary = os.path.join(build, "fake_reprise")
    if not os.path.exists(binary):
        return None
    return count_streams(binary, 2 * STREAMS) - count_streams(binary, STREAMS)


def count_streams(binary, count):
    with tempfile.TemporaryDirectory() as folder:
        process = callgrind(folder, [binary, os.path.join(ROOT, "models", "demo"), "--host", "127.0.0.1", "--port", "0",
                                     "--slo-ttft-ms", "1000", "--slo-tpot-ms", "100", "--sandbox", "off"],
                            {"FAKE_STEP_US": "1000"})
        port = int(re.search(rb"port=(\d+)", process.stdout.readline()).group(1))
        threads = [threading.Thread(target=stream, args=(port,)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        process.send_signal(signal.SIGTERM)
        process.communicate()
        return Counts(os.path.join(folder, "out"))


def number(value):
    return f"{value:,.0f}" if abs(value) >= 10 or value == 0 else f"{value:,.1f}"


def share(part, whole):
    return f"{100 * part / whole:.4f} %" if part / whole < 0.001 else f"{100 * part / whole:.3f} %"


def table(out, head, rows):
    out.append("| " + " | ".join(head) + " |")
    out.append("|" + "---|" * len(head))
    for row in rows:
        out.append("| " + " | ".join(row) + " |")
    out.append("")


def write_engine(out, sizes, engine):
    head = ["on the engine thread, tier A"] + [f"{n} row{'s' * (n > 1)}" for n in sizes] + [f"per token of {n}" for n in sizes]
    rows, totals = [], {n: 0 for n in sizes}
    for i, (name, _) in enumerate(engine[sizes[0]]["causes"]):
        cost = {n: engine[n]["causes"][i][1] for n in sizes}
        for n in sizes:
            totals[n] += cost[n]
        rows.append([name] + [number(cost[n]) for n in sizes] + [number(cost[n] / n) for n in sizes])
    rows.append(["**tier A**"] + [f"**{number(totals[n])}**" for n in sizes] + [number(totals[n] / n) for n in sizes])
    for name, key in (("stamps of one step in 64: taken by nodes", "taken"), ("read", "read")):
        cost = {n: engine[n][key] / STAMP_EVERY for n in sizes}
        for n in sizes:
            totals[n] += cost[n]
        rows.append([name] + [number(cost[n]) for n in sizes] + [number(cost[n] / n) for n in sizes])
    rows.append(["**tiers A and B**"] + [f"**{number(totals[n])}**" for n in sizes] + [number(totals[n] / n) for n in sizes])
    rows.append(["for comparison: plan, commit, packet, gauges"] + [number(engine[n]["work"]) for n in sizes] +
                [number(engine[n]["work"] / n) for n in sizes])
    table(out, head, rows)
    return totals


def write_loop(out, loop):
    if not loop:
        out.append("The loop thread was not measured: fake_reprise is missing (it is built with the tests).\n")
        return 0
    tokens = loop.calls["rp_server_metrics_token"]
    requests = loop.calls["rp_server_metrics_closed"]
    rows, total = [], 0
    for name, function in LOOP_TOKEN:
        total += loop.cost[function] / tokens
        rows.append([name, number(loop.cost[function] / tokens), ""])
    for name, function in LOOP_REQUEST:
        rows.append([name, "", number(loop.cost[function] / requests)])
    rows.append(["**total**", f"**{number(total)}**",
                 f"**{number(sum(loop.cost[function] for _, function in LOOP_REQUEST) / requests)}**"])
    rows.append(["all processing of the engine's events: text, JSON, SSE, writing",
                 number(loop.cost["rp_completion_event"] / tokens), ""])
    table(out, ["on the loop thread", "per token", "per request"], rows)
    return total


# 8.03e9 weights without the embedding (0.53e9), of which a step reads only one row per token.
WEIGHTS_8B = 7.50e9
DEMO_WEIGHTS = 8 * (256 * (256 + 2 * 128) + 256 * 256 + 3 * 256 * 768) + 4096 * 256


def write_shares(out, sizes, totals, loop_token, demo):
    rows = []
    measuring = {n: totals[n] + n * loop_token for n in sizes}
    rows.append(["measuring, both threads"] + [number(measuring[n]) for n in sizes])
    for name, weights in (("a step of models/demo", DEMO_WEIGHTS), ("a step of an 8B model, extrapolated", WEIGHTS_8B)):
        scale = weights / DEMO_WEIGHTS
        rows.append([name] + [number(demo[n] * scale) for n in sizes])
        rows.append(["share of it"] + [share(measuring[n], demo[n] * scale) for n in sizes])
    table(out, ["instructions per step"] + [f"{n} row{'s' * (n > 1)}" for n in sizes], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--no-demo", action="store_true")
    parser.add_argument("--out")
    options = parser.parse_args()
    binary = os.path.join(options.build, "reprise")
    sizes = [int(n) for n in options.rows.split(",")]
    out = []
    engine = {n: measure_engine(binary, n) for n in sizes}
    totals = write_engine(out, sizes, engine)
    loop_token = write_loop(out, measure_loop(options.build))
    if not options.no_demo:
        write_shares(out, sizes, totals, loop_token, {n: measure_demo(binary, n) for n in sizes})
    text = "\n".join(out)
    print(text)
    if options.out:
        with open(options.out, "w") as file:
            file.write(text)


if __name__ == "__main__":
    main()
