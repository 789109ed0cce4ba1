"""Goal: --cpu-affinity and --numa hold for every thread, /debug/env shows what the kernel knows of each, and anything that
is no processor or node of this process is refused with the reason."""
import json
import os
import subprocess
import tempfile

from reprise_server import BIN, DEMO, TSAN, Server

ALLOWED = sorted(os.sched_getaffinity(0))
NODE = "/sys/devices/system/node"


def environment(server):
    return json.loads(server.get("/debug/env")[1])


def check_threads():
    with tempfile.TemporaryDirectory() as folder, \
            Server(DEMO, "--max-num-seqs", "2", "--threads", "2", "--trace-dir", folder) as server:
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 8, "ignore_eos": True})[0] == 200
        threads = environment(server)["process"]["threads"]
        names = [t["name"] for t in threads]
        for name in ("rp-engine", "rp-cpu-0", "rp-cpu-1", "rp-flight"):
            assert names.count(name) == 1, names
        # The thread sanitizer has a thread of its own, with the name of the thread that started it.
        assert names.count("rp-worker") in ((4, 5) if TSAN else (4,)), names
        assert {t["name"] for t in threads if t["computes_steps"]} == {"rp-engine", "rp-cpu-0", "rp-cpu-1"}, threads
        tasks = sorted(int(tid) for tid in os.listdir(f"/proc/{server.process.pid}/task"))
        assert [t["tid"] for t in threads] == tasks
        main = next(t for t in threads if t["tid"] == server.process.pid)  # not the first one where TIDs have wrapped
        assert not main["name"].startswith("rp-"), main
        for thread in threads:
            assert thread["processor"] in ALLOWED, thread
            with open(f"/proc/{server.process.pid}/task/{thread['tid']}/status", encoding="ascii") as file:
                status = dict(line.split(":", 1) for line in file)
            assert thread["affinity"] == status["Cpus_allowed_list"].strip(), thread
            assert 0 < thread["run_seconds"] < 100 and thread["run_queue_seconds"] >= 0, thread
            for key, kind in (("voluntary_switches", "voluntary_ctxt_switches"),
                              ("involuntary_switches", "nonvoluntary_ctxt_switches")):
                assert 0 <= thread[key] <= int(status[kind]), thread
            if os.path.isdir(f"/sys/devices/system/cpu/cpu{thread['processor']}/node0"):
                assert thread["numa_node"] == 0, thread
            if os.path.exists(f"/proc/self/task/{os.getpid()}/sched"):
                assert thread["migrations"] >= 0, thread


def check_affinity():
    one = str(ALLOWED[-1])
    for flags in ([], ["--numa", "0"] if os.path.isdir(f"{NODE}/node0") else []):
        with Server(DEMO, "--max-num-seqs", "2", "--cpu-affinity", one, *flags) as server:
            process = environment(server)["process"]
            assert {t["affinity"] for t in process["threads"]} == {one}, process
            assert {t["processor"] for t in process["threads"]} == {int(one)}, process
            assert [t["name"] for t in process["threads"]].count("rp-cpu-1") == 0  # one processor, one worker


def refuse(flags, *parts):
    done = subprocess.run([BIN, "serve", DEMO, "--port", "0", *flags], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, (flags, done)
    for part in parts:
        assert part in done.stderr, (flags, part, done.stderr)


def check_refusals():
    refuse(["--cpu-affinity", "0,,1"], "--cpu-affinity", "at byte 2", "an example: 0-3,8")
    refuse(["--cpu-affinity", "3-1"], "--cpu-affinity", "runs backwards")
    refuse(["--cpu-affinity", "all"], "--cpu-affinity", "at byte 0")
    refuse(["--cpu-affinity", "1023"], "--cpu-affinity", "may not use processor 1023", "it may use")
    refuse(["--numa", "one"], "--numa", 'no node "one"')
    refuse(["--numa", "-1"], "--numa", 'no node "-1"')
    refuse(["--numa", "900"], "--numa", 'no node "900"')


check_threads()
check_affinity()
check_refusals()
print("3 passed, 0 failed")
