"""`reprise bench check`: this build meets its baselines; an extra node, an extra allocation, a missing and an additional
baseline make it fail and are named; --update-expectations writes the measurements; hardware without a file has no
baseline."""
import json
import os
import shutil
import subprocess
import tempfile

from reprise_server import BIN, DEMO, SOURCE

# There only counts of programs and steps: answers take minutes, and test_engine compares them.
SANITIZED = any(name in os.path.basename(os.path.dirname(BIN)) for name in ("asan", "tsan"))
ALL = "programs,steps,instructions" if SANITIZED else "programs,steps,answers,instructions,precision"
COUNTS = os.path.join(SOURCE, "bench", "expectations_counts.json")


def run(*arguments, folder=SOURCE, **environment):
    done = subprocess.run([BIN, "bench", "check", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=1000, cwd=folder, env=dict(os.environ, **environment))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def check_this_build_holds_its_baselines():
    code, out, errors = run("--only", ALL)
    for line in out.splitlines():
        if ": skipped, " in line:
            print(f"skipped: {line}")
    assert code == 0 and errors == "" and " 0 fail" in out.splitlines()[-1], out + errors


def check_other_kernels_hold_them_too():
    code, out, errors = run("--only", "programs" if SANITIZED else "programs,steps,precision",
                            REPRISE_CPU_ISA="scalar")
    assert code == 0, out + errors


def check_a_planted_node_is_named():
    code, out, errors = run("--only", "programs", "--debug-plant", "node")
    assert code == 1 and errors == "", (code, errors)
    for metric in ("nodes.demo.fused.decode.1:", "nodes.demo.unfused.mixed.512.64:", "nodes.qwen3.fused.decode.16:",
                   "fingerprint.demo.fused:"):
        assert f"\n{metric} FAILS: " in "\n" + out, (metric, out)


def check_a_planted_allocation_is_named():
    code, out, errors = run("--only", "steps", "--debug-plant", "allocation")
    assert code == 1 and errors == "", (code, errors)
    failed = [line.split(":")[0] for line in out.splitlines() if "FAILS" in line]
    assert failed == ["allocations.per_token.alone", "allocations.per_token.batched"], out


def check_rows_that_are_gone_or_new(folder):
    path = os.path.join(folder, "expectations_counts.json")
    with open(COUNTS) as file:
        counts = json.load(file)
    rows = counts["expectations"]
    rows[:] = [row for row in rows if row["metric"] != "steps.count.alone"]
    rows.append(dict(rows[0], metric="steps.count.forgotten"))
    with open(path, "w") as file:
        json.dump(counts, file)
    code, out, _ = run("--only", "steps", "--expectations", path)
    assert code == 1, out
    assert "steps.count.alone: no baseline: 64, baseline -" in out, out
    assert "steps.count.forgotten: FAILS: no longer measured: -, baseline 0" in out, out
    # Rows that were not measured stay; the others are updated.
    code, out, errors = run("--only", "steps", "--expectations", path, "--update-expectations")
    assert code == 0, out + errors
    with open(path) as file:
        updated = json.load(file)["expectations"]
    with open(COUNTS) as file:
        original = json.load(file)["expectations"]
    assert [row["metric"] for row in updated] == [row["metric"] for row in original], updated
    assert run("--only", "steps", "--expectations", path)[0] == 0


def check_json():
    code, out, _ = run("--only", "steps", "--json")
    result = json.loads(out)
    assert code == 0 and result["failed"] == 0 and result["held"] == len(result["metrics"]) > 10, result
    assert all(row["measured"] == row["baseline"] for row in result["metrics"]), result
    if not SANITIZED:
        code, out, _ = run("--only", "steps", "--json", "--debug-plant", "allocation")
        failed = [row["metric"] for row in json.loads(out)["metrics"] if row["fails"]]
        assert code == 1 and failed == ["allocations.per_token.alone", "allocations.per_token.batched"], out


def check_unknown_hardware_has_no_baseline(folder):
    if SANITIZED:
        return  # it measures everything
    # Both files in an empty folder: only the counts' file is copied there.
    path = shutil.copy(COUNTS, os.path.join(folder, "expectations_counts.json"))
    code, out, errors = run("--expectations", path, "--device", "cpu")
    assert code == 0 and "no baseline for " in out, out + errors
    assert sorted(os.listdir(folder)) == ["expectations_counts.json"], os.listdir(folder)


def check_a_machine_records_its_timings_and_is_compared_with_them(folder):
    if SANITIZED:
        return
    # The values are replaced by ones far from any measurement: no time is looked at.
    for device, environment in (("cpu", {}), ("cuda", {"REPRISE_CUDA_MODULE": os.environ.get("REPRISE_FAKE_GPU", "")})):
        place = os.path.join(folder, device)
        os.mkdir(place)
        flags = ["--only", "timings", "--device", device, "--timed-shape", "stories260k", "--timed-context", "16", "--expectations",
                 os.path.join(place, "expectations_counts.json")]
        code, out, errors = run(*flags, "--update-expectations", "--repeats", "2" if device == "cpu" else "1",
                                "--commit", "abc", **environment)
        assert code == 0, out + errors
        (name,) = os.listdir(place)
        path = os.path.join(place, name)
        with open(path) as file:
            recorded = json.load(file)
        rows = {row["metric"]: row for row in recorded["expectations"]}
        assert name == f"expectations_{recorded['hardware']}.json", (name, recorded["hardware"])
        decode, prompts = "decode.stories260k.batch_1.context_16.ms_per_step", "prompts.stories260k.batch_8.context_16."
        prompts += "tokens_per_second"
        assert rows[decode]["value"] > 0 and rows[decode]["direction"] == "lower" and rows[decode]["commit"] == "abc", rows
        assert rows[prompts]["value"] > 0 and rows[prompts]["direction"] == "higher", rows
        if device == "cuda":
            assert rows[decode.replace("260k.", "260k.fp8.")]["value"] > 0 and "fingerprint.demo.fused" in rows, list(rows)
        for row in rows.values():
            if row["metric"].startswith(("decode.", "prompts.")):
                row["value"] = 1e9 if row["direction"] == "lower" else 1e-9
        rows[decode]["value"] = 1e-9
        with open(path, "w") as file:
            json.dump(recorded, file)
        code, out, errors = run(*flags, **environment)
        failed = [line.split(":")[0] for line in out.splitlines() if "FAILS" in line]
        assert code == 1 and failed == [decode] and "(from abc)" in out, (out, errors)
        assert " 1 fail, " in out and " 0 better" not in out, (out, errors)


def check_errors(folder):
    for text, arguments in (("--only", ["--only", "programs,nonsense"]), ("--only", ["--only", ","]),
                            ("--debug-plant", ["--debug-plant", "bug"]),
                            ("--debug-plant", ["--debug-plant", "slow:x"])):
        code, out, errors = run(*arguments)
        assert code == 2 and text in errors and out == "", (arguments, code, out, errors)
    code, _, errors = run("--only", "steps", folder=folder)
    assert code == 1 and "bench/expectations_counts.json" in errors and "--update-expectations" in errors, errors
    code, _, errors = run("--only", "steps", "--model", "/nowhere")
    assert code == 1 and "config.json" in errors, errors
    code, out, _ = run("--help")
    assert code == 0 and "plant" not in out and "counted-load" not in out, out


def main():
    checks = [check_this_build_holds_its_baselines, check_other_kernels_hold_them_too, check_a_planted_node_is_named,
              check_a_planted_allocation_is_named, check_rows_that_are_gone_or_new, check_json,
              check_unknown_hardware_has_no_baseline,
              check_a_machine_records_its_timings_and_is_compared_with_them, check_errors]
    assert os.path.isdir(DEMO)
    for check in checks:
        with tempfile.TemporaryDirectory() as folder:
            check(*[folder] * check.__code__.co_argcount)
        print("ok", check.__name__)
    print(f"{len(checks)} passed, 0 failed")


main()
