#!/usr/bin/env python3
"""What always-on measuring costs, in instructions, by cause: a table (bench/results/cost_of_measuring.md).

    tools/cost_of_measuring.py [--build build/release] [--rows 1,8,32] [--no-demo] [--out FILE]

Runs under valgrind's callgrind, which counts the instructions of every function with all that it calls:

- the engine, on a small random model on the CPU's backend with one worker, N and 2 N tokens of so many sequences at once
  (`bench check --counted-load`): tier A, then A and the nodes of every step (B; one step in 64 is stamped by default).
  The difference of the two lengths knows nothing of the start.
- a server with an engine that computes nothing (fake_reprise), for the loop thread's part of a token and of a request.
- steps of models/demo, to set that beside; vectors are 256 bits wide there, valgrind knows no wider ones.

Instructions of the engine's own code do not hang on the machine, only on the compiler. What is told by the clock (LOAD,
PAGES and RATE events, slices of windows) is told oftener for each step here, because valgrind is slow.
Some ten minutes, most of them for the demo model. Needs valgrind; standard library only."""
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

# A cause: functions with all they call, less what other causes have of it; all are on the engine thread, per step.
CAUSES = [
    ("spans of the thread, their events and clock reads", ["rp_step_trace_span"],
     ["rp_idle_timeline_add", "rp_idle_timeline_split"]),
    ("events of tokens, joins, swaps, load", ["rp_step_trace_launch", "rp_step_trace_event", "rp_step_trace_counters"], []),
    ("idle timeline", ["rp_idle_timeline_add", "rp_idle_timeline_split"], []),
    ("step record, its device times and events", ["rp_step_trace_read"], ["rp_latency_record", "rp_idle_timeline_split"]),
    # Slices of windows turn with the clock, every two seconds.
    ("histograms and windows", ["rp_latency_record", "rp_histogram_observe"], ["turn_slices"]),
    ("attribution to requests", ["rp_engine_account_step", "rp_account_close"], []),
    ("which steps are stamped", ["rp_step_profile_launch"], []),
]

# What the thread does beside: instructions_*.host_per_token of bench/expectations_counts.json.
WORK = ["rp_scheduler_plan", "rp_scheduler_commit", "rp_scheduler_next_event", "rp_batch_encode", "rp_batch_decode",
        "rp_graph_set_pick", "rp_engine_note_step", "rp_engine_note_turn", "rp_engine_update_gauges"]

LOOP_TOKEN = [
    ("windows and histogram, with the trace as exemplar", "rp_server_metrics_token"),
    ("the request's record", "rp_record_token"),
    ("event", "rp_server_trace_written"),
]
LOOP_REQUEST = [
    ("its record begun", "rp_completion_record_begin"),
    ("events", "rp_server_trace_queued"),
    ("histograms and windows", "rp_server_metrics_closed"),
    ("its record closed, logged, judged by objectives", "rp_completion_log"),
]


class Counts:
    """A file of callgrind's: instructions of each function with what it calls, and how often it was called."""

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
                    if function != callee:  # a recursion counts once
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
    """The process; its counts lie in folder/out when it has ended."""
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
    """Of one step, and how many steps there were: all rows begin together, so 2 N tokens are N steps more than N."""
    return count_load(binary, 2 * steps, rows, *flags) - count_load(binary, steps, rows, *flags)


def cause_cost(counts, functions, without):
    return sum(counts.cost[name] for name in functions) - sum(counts.cost[name] for name in without)


def measure_engine(binary, rows):
    tier_a = per_step(binary, STEPS, rows)
    tier_b = per_step(binary, STEPS, rows, "--counted-every", "1")
    causes = [(name, cause_cost(tier_a, functions, without) / STEPS) for name, functions, without in CAUSES]
    # On the engine thread: reading the stamps; on the device's: taking them. Of one step in 64.
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
    """Of STREAMS answers; None: there is no fake_reprise."""
    binary = os.path.join(build, "fake_reprise")
    if not os.path.exists(binary):
        return None
    return count_streams(binary, 2 * STREAMS) - count_streams(binary, STREAMS)


def count_streams(binary, count):
    with tempfile.TemporaryDirectory() as folder:
        process = callgrind(folder, [binary, os.path.join(ROOT, "models", "demo"), "--host", "127.0.0.1", "--port", "0",
                                     "--slo-ttft-ms", "1000", "--slo-tpot-ms", "100"], {"FAKE_STEP_US": "1000"})
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
    head = ["on the engine thread, tier A"] + [f"{n} row{'s' * (n > 1)}" for n in sizes] + [f"a token of {n}" for n in sizes]
    rows, totals = [], {n: 0 for n in sizes}
    for i, (name, _) in enumerate(engine[sizes[0]]["causes"]):
        cost = {n: engine[n]["causes"][i][1] for n in sizes}
        for n in sizes:
            totals[n] += cost[n]
        rows.append([name] + [number(cost[n]) for n in sizes] + [number(cost[n] / n) for n in sizes])
    rows.append(["**tier A**"] + [f"**{number(totals[n])}**" for n in sizes] + [number(totals[n] / n) for n in sizes])
    for name, key in (("stamps of one step in 64: taken by the nodes", "taken"), ("and read", "read")):
        cost = {n: engine[n][key] / STAMP_EVERY for n in sizes}
        for n in sizes:
            totals[n] += cost[n]
        rows.append([name] + [number(cost[n]) for n in sizes] + [number(cost[n] / n) for n in sizes])
    rows.append(["**tiers A and B**"] + [f"**{number(totals[n])}**" for n in sizes] + [number(totals[n] / n) for n in sizes])
    rows.append(["beside: plan, commit, packet, gauges"] + [number(engine[n]["work"]) for n in sizes] +
                [number(engine[n]["work"] / n) for n in sizes])
    table(out, head, rows)
    return totals


def write_loop(out, loop):
    if not loop:
        out.append("The loop thread was not measured: there is no fake_reprise (it is built with the tests).\n")
        return 0
    tokens = loop.calls["rp_server_metrics_token"]
    requests = loop.calls["rp_server_metrics_closed"]
    rows, total = [], 0
    for name, function in LOOP_TOKEN:
        total += loop.cost[function] / tokens
        rows.append([name, number(loop.cost[function] / tokens), ""])
    for name, function in LOOP_REQUEST:
        rows.append([name, "", number(loop.cost[function] / requests)])
    rows.append(["**together**", f"**{number(total)}**",
                 f"**{number(sum(loop.cost[function] for _, function in LOOP_REQUEST) / requests)}**"])
    rows.append(["all that is done with the engine's events: text, JSON, SSE, writing",
                 number(loop.cost["rp_completion_event"] / tokens), ""])
    table(out, ["on the loop thread", "a token", "a request"], rows)
    return total


# 8.03e9 weights, of which 0.53e9 are the embedding, of which a step reads a row for each token.
WEIGHTS_8B = 7.50e9
DEMO_WEIGHTS = 8 * (256 * (256 + 2 * 128) + 256 * 256 + 3 * 256 * 768) + 4096 * 256


def write_shares(out, sizes, totals, loop_token, demo):
    rows = []
    measuring = {n: totals[n] + n * loop_token for n in sizes}
    rows.append(["measuring, both threads"] + [number(measuring[n]) for n in sizes])
    for name, weights in (("a step of models/demo", DEMO_WEIGHTS), ("a step of an 8B model, computed", WEIGHTS_8B)):
        scale = weights / DEMO_WEIGHTS
        rows.append([name] + [number(demo[n] * scale) for n in sizes])
        rows.append(["share of it"] + [share(measuring[n], demo[n] * scale) for n in sizes])
    table(out, ["instructions a step"] + [f"{n} row{'s' * (n > 1)}" for n in sizes], rows)


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
