#!/usr/bin/env python3
"""Runs a server under mixed traffic and faults, and checks that it stays as it was.

    ./dev soak [--minutes 10 | --hours 24 | --seconds N] [--workers 6] [--model DIR] [-- flags of reprise serve]

Once per interval (a minute, or less in short runs) the traffic pauses and a sample of the idle server is taken. Passes when
memory, files, threads, pages and requests are flat (the criteria are in soak_judge.py), no request is answered otherwise than it
should be (soak_traffic.py), 5xx come only where a deadline or a bad version asked for them, and the answers to a fixed prompt are the same bytes all
the time, under load and idle. Prints a line per sample and a table; exits with 1 on failure. Standard library only."""
import argparse
import collections
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import soak_judge
import soak_traffic as traffic

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KEY, SECOND_KEY = "soak-key", "soak-second-key"
START_S, IDLE_S, RELOAD_S = 300, 60, 2
PROBLEMS_MAX, FILL_PROMPTS = 20, 40
# glibc keeps freed blocks, up to 32 MiB in each of its arenas: large reports made resident memory jump by 8 MiB up and down. With
# fixed thresholds blocks go back to the system, and what stays is in use.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "2"}


class Soak:
    def __init__(self, options):
        self.options, self.gate, self.stop = options, traffic.Gate(), threading.Event()
        self.lock, self.counts, self.problems = threading.Lock(), collections.Counter(), []
        self.samples, self.deadlines = [], 0

    def add_problem(self, text):
        with self.lock:
            if len(self.problems) < PROBLEMS_MAX and text not in self.problems:
                self.problems.append(text)
                print("problem: " + text, file=sys.stderr, flush=True)

    # --- the server ---

    def start(self, folder):
        options = self.options
        self.keys = os.path.join(folder, "keys")
        self.write_keys(False)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = open(os.path.join(folder, "log"), "w+b")
        # Small pools, so that pages are evicted and swapped, and are all touched within the first minutes.
        flags = ["--api-key-file", self.keys, "--num-gpu-blocks-override", "1024", "--swap-space", "0.05",
                 "--trace-dir", os.path.join(folder, "traces"), "--trace-dir-mib", "16", "--log-level", "warn"]
        os.mkdir(os.path.join(folder, "traces"))
        self.process = subprocess.Popen(
            [options.binary, "serve", options.model, "--port", str(self.port), *flags, *options.flags],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env={**os.environ, **MALLOC})
        self.client = traffic.Client(self.port, KEY, 0)
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                self.client.ask("GET", "/health/ready")
                return
            except (OSError, traffic.Wrong):
                time.sleep(0.05)
        raise SystemExit("the server did not become ready:\n" + self.log_text())

    def log_text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-4000:]

    def write_keys(self, both):
        text = f"{KEY} name=soak\n" + (f"{SECOND_KEY} name=second limit=4\n" if both else "")
        with open(os.open(self.keys + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        os.rename(self.keys + ".new", self.keys)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "no exit within 60 s of SIGTERM"
        if code != 0:
            self.add_problem(f"the server ended with {code}:\n{self.log_text()}")
        self.log.close()

    def fill(self):
        """Prompts until each page of the KV pool has been used, so that it is resident from the begin."""
        for _ in range(FILL_PROMPTS):
            ids = [self.client.random.randrange(10, 4000) for _ in range(900)]
            self.client.ask("POST", "/v1/completions", {"prompt": ids, "max_tokens": 1})
            pages = self.status()["pages"]
            if pages["free"] * 20 < pages["total"]:
                return

    # --- traffic ---

    def reload(self):
        both = False
        while not self.stop.wait(RELOAD_S):
            both = not both
            self.write_keys(both)
            self.process.send_signal(signal.SIGHUP)
            self.counts["reload"] += 1

    def guarded(self, name, action):
        try:
            action()
        except Exception as error:  # whatever a client sees is a finding, and must not end the worker
            if not isinstance(error, traffic.Wrong) and self.process.poll() is not None:
                error = "the server is gone"
                self.stop.set()
            self.add_problem(f"{name}: {error if isinstance(error, (str, traffic.Wrong)) else repr(error)}")

    def work(self, seed):
        client = traffic.Client(self.port, KEY, seed)
        kinds = [kind for kind, weight in traffic.MIX.items() for _ in range(weight)]
        while not self.stop.is_set():
            kind = client.random.choice(kinds + [self.check_fixed])
            with self.gate:
                if self.stop.is_set():
                    return
                with self.lock:
                    self.counts[kind.__name__] += 1
                self.guarded(kind.__name__, lambda: kind(client))

    def check_fixed(self, client):
        for name, function, expected in (("text", traffic.fixed_text, self.text), ("stream", traffic.fixed_stream, self.streamed)):
            answer = function(client)
            if answer != expected:
                raise traffic.Wrong(f"the fixed prompt's {name} was {expected!r} and is now {answer!r}")

    # --- samples ---

    def status(self):
        return json.loads(self.client.ask("GET", "/debug/status"))

    def sample(self):
        """Pauses the traffic, waits until the server is idle, measures it."""
        if not self.gate.close():
            self.add_problem("a client did not end within its time")
        end = time.monotonic() + IDLE_S
        while True:
            status = self.status()
            live = sum(status["requests"][name] for name in ("running", "waiting", "swapped"))
            if time.monotonic() > end or (live == status["pages"]["held"] == 0 and status["connections"] == 1):
                break
            time.sleep(0.02)
        folder = f"/proc/{self.process.pid}"
        with open(folder + "/statm") as file:
            rss = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.samples.append({"t": time.monotonic() - self.began, "rss": rss, "fds": len(os.listdir(folder + "/fd")),
                             "threads": len(os.listdir(folder + "/task")), "held": status["pages"]["held"], "live": live,
                             "connections": status["connections"], "cached": status["pages"]["cached"]})
        self.guarded("idle", lambda: self.check_fixed(self.client))
        self.gate.open()

    def print_sample(self):
        last = self.samples[-1]
        if len(self.samples) == 1:
            print(f"{'minutes':>8} {'rss MiB':>8} {'files':>6} {'threads':>8} {'held':>5} {'live':>5} {'cached':>7} {'requests':>9}")
        print(f"{last['t'] / 60:8.1f} {last['rss'] / 2**20:8.1f} {last['fds']:6} {last['threads']:8} {last['held']:5} "
              f"{last['live']:5} {last['cached']:7} {sum(self.counts.values()):9}", flush=True)

    def server_errors(self):
        """The server's own count of 5xx."""
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.client.ask("GET", "/metrics").decode().splitlines()
                   if line.startswith("reprise_http_requests_total{") and 'code="5xx"' in line)

    def check_server_errors(self):
        """At most one for each request that asks for it, since the server was ready."""
        count = self.server_errors() - self.errors_before
        asked = self.counts["deadline"] + self.counts["bad_version"]
        if count > asked:
            self.add_problem(f"{count:.0f} answers were 5xx, but only {asked} requests ask for one")
        return count

    def run(self):
        options = self.options
        interval = min(60.0, options.duration / (20 if options.duration >= 60 else 8))
        with tempfile.TemporaryDirectory() as folder:
            self.start(folder)
            try:
                self.text, self.streamed = traffic.fixed_text(self.client), traffic.fixed_stream(self.client)
                if options.duration >= 60:
                    self.fill()
                self.errors_before = self.server_errors()
                self.began = time.monotonic()
                threads = [threading.Thread(target=self.work, args=(seed,), daemon=True) for seed in range(1, options.workers + 1)]
                threads.append(threading.Thread(target=self.reload, daemon=True))
                for thread in threads:
                    thread.start()
                while not self.stop.wait(interval):
                    self.sample()
                    self.print_sample()
                    enough = len(self.samples) >= soak_judge.SAMPLES_MIN  # a busy machine takes long to become idle
                    if enough and self.samples[-1]["t"] + interval / 2 > options.duration:
                        break
                self.stop.set()
                self.gate.open()
                for thread in threads:
                    thread.join(traffic.TIMEOUT_S)
                server_errors = self.check_server_errors()
            except (OSError, traffic.Wrong) as error:
                self.add_problem(f"the server does not answer: {error!r}")
                server_errors = 0
            finally:
                self.stop.set()
                self.end()
        for problem in soak_judge.judge(self.samples):
            self.add_problem(problem)
        self.print_table(server_errors)
        return 1 if self.problems else 0

    def print_table(self, server_errors):
        print("\n" + ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items())))
        if len(self.samples) >= soak_judge.SAMPLES_MIN:
            growth, limit, span = soak_judge.rss_growth(self.samples)
            verdict = "" if span >= soak_judge.RSS_SECONDS else ", too short to judge"
            print(f"resident memory {growth / 2**20:+.2f} MiB in the last {span:.0f} s (limit {limit / 2**20:.1f}{verdict}), "
                  f"files {self.samples[0]['fds']} to {self.samples[-1]['fds']}, threads {self.samples[0]['threads']} to "
                  f"{self.samples[-1]['threads']}, KV pages held {max(s['held'] for s in self.samples)}, "
                  f"live requests {max(s['live'] for s in self.samples)}, 5xx {server_errors:.0f} (deadlines, versions)")
        print("failed:\n  " + "\n  ".join(self.problems) if self.problems else "passed")


def main():
    arguments, flags = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, flags = arguments[:at], arguments[at + 1:]
    parser = argparse.ArgumentParser(description="A server under mixed traffic and faults; see the first comment.")
    time_group = parser.add_mutually_exclusive_group()
    for unit, seconds in (("seconds", 1), ("minutes", 60), ("hours", 3600)):
        time_group.add_argument("--" + unit, dest="duration", metavar="N",
                                type=lambda text, factor=seconds: float(text) * factor)
    parser.add_argument("--workers", type=int, default=6, help="clients at the same time")
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "demo"))
    parser.add_argument("--binary", default=os.environ.get("REPRISE_BIN", os.path.join(ROOT, "build", "release", "reprise")))
    options = parser.parse_args(arguments)
    options.duration = options.duration or 600.0
    options.flags = flags
    return Soak(options).run()


if __name__ == "__main__":
    sys.exit(main())
