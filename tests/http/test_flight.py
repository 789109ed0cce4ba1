"""Goal: a server with --trace-dir writes a valid trace with its reason on SIGUSR2, when an objective is missed, when
pages run out, and when a signal kills it, within its rate limit, and GET /debug/flight lists them.
"""
import json
import os
import signal
import subprocess
import tempfile
import threading
import time

import trace_check
from reprise_server import BIN, DEMO, Server


def wait_for(what, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("did not come in time")


def files(folder, end):
    return sorted(name for name in os.listdir(folder) if name.endswith(end) and not name.startswith("."))


def reasons(folder):
    out = []
    for name in files(folder, ".json"):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            out.append(json.load(file))
    return out


def check_trace(folder, reason):
    with open(os.path.join(folder, reason["trace"]), "rb") as file:
        body = file.read()
    assert len(body) == reason["trace_bytes"]
    _, events = trace_check.perfetto(body)
    about = next(e for e in events if e.name == "trace")
    assert about.args["reason"] == reason["text"] and about.args["model"] == "demo", about
    return events


def load(server, streams, max_tokens, prompt="Once upon a time "):
    threads = [threading.Thread(target=server.stream, args=({"prompt": prompt * (1 + i % 3), "ignore_eos": True,
                                                             "max_tokens": max_tokens},)) for i in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def flight(server):
    return json.loads(server.get("/debug/flight")[1])


def check_a_signal():
    with tempfile.TemporaryDirectory() as folder:
        with Server(DEMO, "--trace-dir", folder, "--slow-step-factor", "0") as server:
            load(server, 4, 8)
            server.process.send_signal(signal.SIGUSR2)
            reason = wait_for(lambda: reasons(folder))[0]
            assert reason["trigger"] == "signal" and reason["whole"] is True, reason
            assert reason["state"]["steps"] > 0 and reason["suppressed"] == {}, reason
            tokens = [e for e in check_trace(folder, reason) if e.name == "token"]
            assert len(tokens) == 4 * 8, len(tokens)
            listed = flight(server)
            assert listed["enabled"] and listed["failures"] == 0 and listed["dir"] == folder, listed
            assert [d["trigger"] for d in listed["dumps"]] == ["signal"], listed
            assert listed["dumps"][0]["name"] + ".pftrace.gz" == reason["trace"] and listed["dumps"][0]["reason"]
            metrics = server.metrics()
            assert metrics['reprise_flight_dumps_total{trigger="signal"}'] == 1
            assert len(files(folder, ".raw")) == 1  # armed
            server.process.send_signal(signal.SIGUSR2)  # again immediately: too soon
            if len(reasons(folder)) == 1:
                time.sleep(1.2)
                server.process.send_signal(signal.SIGUSR2)
            wait_for(lambda: len(reasons(folder)) == 2)
        assert files(folder, ".raw") == []  # an orderly end
        assert len(files(folder, ".json")) == len(files(folder, ".pftrace.gz")) == 2


def check_a_signal_without_a_directory():
    with Server(DEMO) as server:
        server.process.send_signal(signal.SIGUSR2)
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
        assert flight(server) == {"enabled": False}
        wait_for(lambda: "no --trace-dir" in server.output())


def check_an_objective_that_is_missed():
    with tempfile.TemporaryDirectory() as folder:
        with Server(DEMO, "--trace-dir", folder, "--slow-step-factor", "0", "--slo-ttft-ms", "0.001",
                    "--slo-e2e-ms", "0.001") as server:
            load(server, 24, 4)
            # Two objectives, each with its own interval.
            wait_for(lambda: len(reasons(folder)) == 2)
            assert {r["trigger"] for r in reasons(folder)} == {"slo_ttft", "slo_e2e"}, reasons(folder)
            for reason in reasons(folder):
                assert reason["value"] > reason["limit"], reason
                check_trace(folder, reason)


def check_pages_that_run_out():
    with tempfile.TemporaryDirectory() as folder:
        with Server(DEMO, "--trace-dir", folder, "--slow-step-factor", "0", "--num-gpu-blocks-override", "40", "--trace-preemptions", "2",
                    "--max-model-len", "256", "--swap-space", "1") as server:
            load(server, 32, 200)
            swapped = server.metrics()['reprise_preemptions_total{cause="pages",phase="decode"}']
            assert swapped >= 2, swapped
            reason = wait_for(lambda: reasons(folder))[0]
            assert reason["trigger"] == "pages_out" and reason["value"] >= 2, reason
            names = {e.name for e in check_trace(folder, reason)}
            assert "swapped" in names, names


def check_a_crash():
    with tempfile.TemporaryDirectory() as folder:
        with Server(DEMO, "--trace-dir", folder, "--slow-step-factor", "0", exit_code=-signal.SIGSEGV) as server:
            load(server, 8, 16)
            raw = os.path.join(folder, files(folder, ".raw")[0])
            refused = subprocess.run([BIN, "trace", raw], capture_output=True, timeout=60)
            assert refused.returncode == 1 and b"did not crash" in refused.stderr, refused
            server.process.send_signal(signal.SIGSEGV)
            server.process.wait(60)
        done = subprocess.run([BIN, "trace", raw, "--format", "json"], capture_output=True, timeout=60)
        assert done.returncode == 0 and b"signal 11" in done.stderr, done.stderr
        events = trace_check.chrome(done.stdout)
        assert len([e for e in events if e["ph"] == "n" and e["name"] == "token"]) == 8 * 16
        assert any(e["name"].startswith("decode ") and e["pid"] == 4 for e in events)  # it includes the names
        out = os.path.join(folder, "out.pftrace.gz")
        subprocess.run([BIN, "trace", raw, "--gzip", "--output", out, "--seconds", "5"], check=True,
                       capture_output=True, timeout=60)
        with open(out, "rb") as file:
            trace_check.perfetto(file.read())
        # The next process lists it.
        with Server(DEMO, "--trace-dir", folder) as server:
            assert [(d["trigger"], d["trace"]) for d in flight(server)["dumps"]] == [("crash", "raw")]


def check_refusals():
    for arguments, code in ((["--trace-dir", "/proc/none/here"], 1), (["--trace-interval", "0"], 2),
                            (["--trace-dir", "/tmp", "--trace-seconds", "0"], 2)):
        done = subprocess.run([BIN, "serve", DEMO, *arguments], capture_output=True, timeout=60)
        assert done.returncode == code, (arguments, done)
    for name in (__file__, "/nowhere", "/dev/null", "/"):
        done = subprocess.run([BIN, "trace", name], capture_output=True, timeout=60)
        assert done.returncode == 1 and done.stderr.startswith(b"error: ") and not done.stdout, (name, done)


def main():
    for name in ("ASAN_OPTIONS", "TSAN_OPTIONS"):  # a sanitizer turns a crash into an exit status
        os.environ[name] = os.environ.get(name, "") + ":handle_segv=0"
    checks = [check_a_signal, check_a_signal_without_a_directory, check_an_objective_that_is_missed,
              check_pages_that_run_out, check_a_crash, check_refusals]
    for check in checks:
        check()
        print("ok", check.__name__)
    print(f"{len(checks)} passed, 0 failed")


main()
