"""`reprise bench pair`: steps that take twice as long are found; the list; engines, children and servers as sides; refusals.

Where small differences begin to be found is tested with made-up samples (bench.pair). Here a step of B spins for as long as
it took, measured as CPU time on one core, because on a shared machine the wall clock measures the others."""
import json
import os
import subprocess
import sys

from reprise_server import BIN, DEMO, Server

SANITIZED = any(name in os.path.basename(os.path.dirname(BIN)) for name in ("asan", "tsan"))
ONE_CORE = min(os.sched_getaffinity(0))
SHORT = ["--blocks", "2", "--input", "8", "--output", "4", "--a", "--threads 1 --max-num-seqs 2",
         "--b", "--threads 1 --max-num-seqs 2"]


def run(*arguments, code=0, one_core=False):
    pin = (lambda: os.sched_setaffinity(0, {ONE_CORE})) if one_core else None
    done = subprocess.run([BIN, "bench", "pair", "--model", DEMO, "--device", "cpu", *arguments], preexec_fn=pin,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=600)
    out, errors = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == code, (arguments, done.returncode, out, errors)
    return errors if code else out


def check_a_planted_slowdown_is_found():
    result = json.loads(run("same", "--json", "--clock", "cpu", "--blocks", "12", "--input", "8", "--output", "32",
                            "--a", "--threads 1", "--b", "--threads 1 --debug-plant slow:1", one_core=True))
    assert result["verdict"] == "slower" and 1 < result["ratio_low"] <= result["ratio"], result


def check_the_list():
    pairs = json.loads(run("--list", "--json"))
    names = [pair["name"] for pair in pairs]
    assert len(names) >= 10 and len(set(names)) == len(names), names
    for name in ("graph", "batching", "prefix-cache", "run-ahead", "fusion", "dependent-launch", "numerics", "dtype",
                 "threads", "chunk", "swap"):
        assert name in names, names
    text = run("--list")
    assert all(f"\n{name}\n" in "\n" + text for name in names), text


def check_every_pair_of_a_cpu_runs():
    for pair in json.loads(run("--list", "--json")):
        if pair["name"] in ("numerics", "dependent-launch"):
            assert "requires a GPU" in run(pair["name"], "--blocks", "2", code=3), pair
            continue
        if SANITIZED and pair["name"] not in ("graph", "batching", "threads"):
            continue
        result = json.loads(run(pair["name"], "--json", "--blocks", "2", "--output", "16", "--shape", "stories260k",
                                "--input", "490" if pair["name"] == "prefix-cache" else "40"))
        assert result["name"] == pair["name"] and result["measure"] == pair["measure"], result
        assert result["a"] > 0 and result["b"] > 0 and len(result["blocks"]) == 2, result
        assert all(len(block) == 4 and min(block) > 0 for block in result["blocks"]), result
        assert result["ratio_low"] <= result["ratio"] <= result["ratio_high"], result


def check_texts_and_kept_engines():
    lines = run("same", *SHORT, "--keep").splitlines()
    assert lines[0].startswith("A: --threads 1") and "wall time" in lines[2] and "block   1 " in lines[3], lines
    assert lines[-2].startswith("same: A ") and lines[-1], lines
    result = json.loads(run(*SHORT, "--json", "--measure", "output", "--sequences", "3", "--shape", "stories260k"))
    assert result["measure"] == "output tokens/s" and result["model"] == "stories260k" and result["name"] == "", result


def check_servers():
    for measure_name in ("step",) if SANITIZED else ("step", "output", "prompt"):
        result = json.loads(run("--http", "--json", *SHORT, "--output", "32", "--sequences", "2", "--measure", measure_name,
                                "--keep"))
        assert len(result["blocks"]) == 2 and result["a"] > 0, result
    with Server(DEMO, "--threads", "1") as a, Server(DEMO, "--threads", "1") as b:
        urls = [f"http://127.0.0.1:{server.port}" for server in (a, b)]
        result = json.loads(run("--json", "--blocks", "2", "--input", "8", "--output", "32", "--sequences", "2",
                                "--a-url", urls[0], "--b-url", urls[1]))
        assert [result["a_flags"], result["b_flags"]] == urls and result["b"] > 0, result
    assert "exit code 3" in run("--http", "--model", "/nowhere", code=4)


def check_errors():
    for text, arguments in (("--list", ["no-such-pair"]), ("--a-url", ["--a-url", "http://127.0.0.1:1"]),
                            ("--clock", ["--http", "--clock", "cpu"]), ("--nonsense", ["--a", "--nonsense"]),
                            ("--blocks", ["--blocks", "1"]), ("--shape", ["--http", "--shape", "demo"]),
                            ("--debug-plant", ["--b", "--debug-plant fast"]),
                            ("--a", ["--a", "--threads 1", "--a-url", "http://x", "--b-url", "http://y"])):
        assert text in run(*arguments, code=2), arguments
    assert "fit" in run("--input", "4000", "--blocks", "2", code=4)
    assert "plant" not in run("--help")
    done = run("--a-url", "http://127.0.0.1:1", "--b-url", "http://127.0.0.1:1", "--blocks", "2", code=3)
    assert "127.0.0.1" in done, done


def main():
    checks = [check_a_planted_slowdown_is_found, check_the_list, check_every_pair_of_a_cpu_runs,
              check_texts_and_kept_engines, check_servers, check_errors]
    for check in checks:
        check()
        print("ok", check.__name__)
        sys.stdout.flush()
    print(f"{len(checks)} passed, 0 failed")


main()
