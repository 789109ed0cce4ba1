"""The program on a fake GPU (tests/support/fake_module.c, opened like the CUDA module): the choice of the device and its
reason, the memory table, answers equal to the CPU's, no allocation while serving, and models that do not fit."""
import json
import os
import re
import subprocess
import sys
import tempfile
import threading

from reprise_server import BIN, DEMO, Server, skip

GPU = os.environ.get("REPRISE_FAKE_GPU", "")
SMALL = ["--max-num-seqs", "8", "--max-num-batched-tokens", "64"]


def environment(**more):
    for name in ("FAKE_GPU", "FAKE_GPU_MIB", "FAKE_GPU_FAILS"):
        os.environ.pop(name, None)
    os.environ.update(more, REPRISE_CUDA_MODULE=GPU)


def run(*arguments):
    done = subprocess.run([BIN, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def table(text):
    """name -> bytes, from the lines of the memory plan."""
    units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    rows = re.findall(r"^  (\w[\w ]*?) +([\d.]+) (B|KiB|MiB|GiB)  (.*)$", text, re.M)
    return {name: float(number) * units[unit] for name, number, unit, _ in rows}


def check_selection():
    environment(FAKE_GPU="abi")
    code, out, _ = run("inspect", DEMO)
    assert code == 0 and "has interface 1, this program needs" in out and "device         cpu: " in out, out
    code, _, errors = run("run", DEMO, "x", "--device", "cuda")
    assert code == 4 and "has interface 1" in errors and "hint: " in errors, errors
    environment(FAKE_GPU="refuses")
    code, out, _ = run("inspect", DEMO)
    assert code == 0 and "no CUDA: fake: no GPU in this machine" in out, out
    code, _, errors = run("run", DEMO, "x", "--device", "cuda")
    assert code == 4 and "no GPU in this machine" in errors and "reprise doctor" in errors, errors
    environment()
    assert "device         cpu: " in run("inspect", DEMO, "--device", "cpu")[1]
    code, out, _ = run("doctor")
    assert code == 0 and "0: fake GPU, 0.25 GiB, compute capability 9.0" in out and "CUDA was found" in out, out
    print("ok selection")


def check_plan():
    environment()
    code, out, errors = run("inspect", DEMO, *SMALL)
    assert code == 0 and "(CUDA was found)" in out and "(estimated)" in out and "swap pool" in out, (out, errors)
    planned = table(out)
    info = json.loads(run("inspect", DEMO, "--json", *SMALL)[1])
    assert info["memory"]["total"] == sum(v for k, v in info["memory"].items() if k != "total"), info
    assert set(info["host_memory"]) == {"swap pool", "rings"} and info["device_memory"] == 256 << 20, info
    code, out, errors = run("inspect", DEMO, "--program", *SMALL)
    assert code == 0 and "linear" in out, errors
    with Server(DEMO, *SMALL) as server:
        lines = server.output()
        measured = table(lines)
        on_gpu = [v for k, v in measured.items() if k not in ("on the host", "total")]
        assert abs(sum(on_gpu) - measured["total"]) < 0.001 * measured["total"], measured
        assert measured["total"] > 0.91 * (256 << 20), measured
        assert measured["graphs"] < planned["graphs"] and measured["KV pool"] > planned["KV pool"], (planned, measured)
        assert "CUDA was found" in lines and len(lines.splitlines()) <= 15, lines
        before = server.metrics()
        texts = [server.post("/v1/completions", body(i))[1]["choices"][0]["text"] for i in range(6)]
        after = server.metrics()
        assert after["reprise_device_allocations_total"] == before["reprise_device_allocations_total"] > 0
        total = sum(v for k, v in after.items() if k.startswith("reprise_device_memory_bytes{"))
        assert abs(total - measured["total"]) < 0.001 * total, (total, measured)
    with Server(DEMO, "--device", "cpu") as server:
        assert texts == [server.post("/v1/completions", body(i))[1]["choices"][0]["text"] for i in range(6)]
    print("ok plan")


def body(i):
    return {"prompt": f"{i} + {i * 7} = ", "max_tokens": 40, "seed": i, "temperature": i % 2, "ignore_eos": True}


def check_what_does_not_fit():
    environment(FAKE_GPU_MIB="24")
    code, _, errors = run("run", DEMO, "x", *SMALL[2:])
    assert code == 4 and "needed" in errors and "weights 14.0" in errors and "hint: " in errors, errors
    environment(FAKE_GPU_MIB="64")
    code, _, errors = run("run", DEMO, "x", *SMALL[2:], "--gpu-memory-utilization", "0.2")
    hint = re.search(r"hint: try (--gpu-memory-utilization) (\S+)", errors)
    assert code == 4 and hint, errors
    assert run("run", DEMO, "1 + 1 =", *SMALL[2:], "--max-tokens", "2", *hint.groups())[0] == 0
    environment(FAKE_GPU_FAILS="16")
    with Server(DEMO, *SMALL) as server:
        failed = json.loads(server.get("/debug/graphs")[1])["failed"]
        assert failed > 0 and f"graphs: {failed} of " in server.output(), server.output()
        assert server.post("/v1/completions", body(1))[0] == 200
        check_misses(server)
    print("ok what does not fit")


def check_misses(server):
    """Steps that were too small for the size that is left out say so, wherever steps are shown."""
    name = 'reprise_graph_fallbacks_total{reason="capture_failed"}'
    before = server.metrics()[name]
    # A prompt of 9 to 16 tokens would run alone in the size of 16 tokens.
    status, answer = server.post("/v1/completions", {"prompt": [5] * 12, "max_tokens": 2, "ignore_eos": True})
    assert status == 200 and answer["usage"]["prompt_tokens"] == 12, answer
    metrics = server.metrics()
    assert metrics[name] == before + 1 and metrics['reprise_graph_fallbacks_total{reason="enforce_eager"}'] == 0, metrics[name]
    text = server.get("/debug/profile")[1]
    steps = int(sum(value for key, value in metrics.items() if key.startswith("reprise_steps_total")))
    missed = int(metrics[name])
    assert f"graphs      {steps - missed} of {steps} steps replayed those of their size: capture_failed {missed}\n" in text, text
    trace = json.loads(server.get("/debug/trace?seconds=60")[1])["traceEvents"]
    replays = [event for event in trace if event["ph"] == "X" and event["tid"] // 1000 == 2 and event["pid"] == 4]
    told = [event["args"].get("not_replayed") for event in replays]
    assert len(told) == steps and told.count("capture_failed") == missed and told.count(None) == steps - missed, told


def check_copies():
    """Swaps are a lane of the trace, and its report says how much of them ran beside steps: the fake's stream does one
    after the other."""
    environment()
    # Room for less than half of the tokens that eight requests have at their end.
    with Server(DEMO, *SMALL, "--kv-cache-memory-bytes", "3M", "--swap-space", "0.1") as server:
        threads = [threading.Thread(target=server.post, args=("/v1/completions", {
            "prompt": [3 + i] * 40, "max_tokens": 110, "ignore_eos": True})) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        swaps = sum(value for key, value in server.metrics().items() if key.startswith("reprise_preemptions_total"))
        text = server.get("/debug/trace?seconds=60")[1]
    assert swaps > 0, "nothing was swapped"
    trace = json.loads(text)["traceEvents"]
    lanes = {(event["pid"], event["tid"]): event["args"]["name"] for event in trace if event["name"] == "thread_name"}
    copies = [event for event in trace if event["ph"] == "X" and lanes[event["pid"], event["tid"]] == "copies"]
    pages = sum(event["args"]["pages"] for event in trace if event["name"] in ("swap_out", "swap_in") or
                event["name"] == "swapped" and "args" in event and "pages" in event["args"])
    assert copies and {event["name"] for event in copies} <= {"copy in", "copy out", "copy in and out"}, copies
    assert sum(event["args"]["pages"] for event in copies) >= pages > 0, (copies, pages)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(text)
        file.flush()
        code, report, errors = run("trace", "critical-path", file.name)
    assert code == 0, errors
    found = re.search(r"^copies      (\d+), [\d.]+\w+ between host and device; steps ran during 0\.0 % of that time$", report, re.M)
    assert found and int(found.group(1)) == len(copies), report
    assert "page copies" in report, report
    print("ok copies")


def main():
    if not os.path.exists(GPU):
        skip("the fake GPU was not built")
    check_selection()
    check_plan()
    check_what_does_not_fit()
    check_copies()


if __name__ == "__main__":
    sys.exit(main())
