"""`reprise bench compare`: two result files in, a verdict for each metric out; invalid files are refused."""
import json
import os
import random
import subprocess
import tempfile

from reprise_server import BIN


def result(slower, details=True, seed=1, **more):
    """As written by `vllm bench serve --save-result [--save-detailed]`."""
    random.seed(seed)
    count = 200
    outputs = [random.randint(5, 30) for _ in range(count)]
    ttfts = [0.05 * slower * random.lognormvariate(0, 0.3) for _ in range(count)]
    itls = [[0.02 * slower * random.lognormvariate(0, 0.2) for _ in range(n - 1)] for n in outputs]
    e2els = [first + sum(gaps) for first, gaps in zip(ttfts, itls)]
    tpots = [sum(gaps) / (n - 1) for gaps, n in zip(itls, outputs)]

    def stats(name, values):
        values = sorted(values)
        return {f"mean_{name}_ms": sum(values) / len(values) * 1e3,
                f"median_{name}_ms": (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2 * 1e3}

    out = {"date": "20261121-155100", "backend": "vllm", "model_id": "m", "num_prompts": count, "request_rate": "inf",
           "max_concurrency": None, "duration": 10.0 * slower, "completed": count,
           "request_throughput": 20 / slower, "request_goodput": None, "output_throughput": 350 / slower,
           **stats("ttft", ttfts), **stats("tpot", tpots), **stats("e2el", e2els)}
    if details:
        out.update(input_lens=[10] * count, output_lens=outputs, ttfts=ttfts, itls=itls, errors=[""] * count)
    out.update(more)
    return out


def run(a, b, *flags):
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, content in (("a.json", a), ("b.json", b)):
            paths.append(os.path.join(folder, name))
            if content is not None:
                with open(paths[-1], "w") as file:
                    file.write(content if isinstance(content, str) else json.dumps(content))
        done = subprocess.run([BIN, "bench", "compare", *paths, *flags], stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def rows(a, b, *flags):
    code, out, errors = run(a, b, "--json", *flags)
    assert code == 0, errors
    parsed = json.loads(out)
    return {row["metric"]: row for row in parsed["metrics"]}, parsed["warnings"]


def check_a_planted_slowdown_is_found():
    found, warnings = rows(result(1), result(1.1, seed=2))
    for metric in ("mean_tpot_ms", "median_tpot_ms", "mean_itl_ms", "p99_itl_ms"):
        assert found[metric]["verdict"] == "slower", found[metric]
    row = found["mean_tpot_ms"]
    assert row["low"] < 1.1 < row["high"] and row["high"] - row["low"] < 0.06, row
    assert "request_goodput" not in found and warnings == "", (found, warnings)
    assert found["output_throughput"]["verdict"] == "no interval", found


def check_a_against_a_is_no_difference():
    found, _ = rows(result(1), result(1))
    assert all(row["verdict"] in ("no difference", "no interval") for row in found.values()), found
    code, out, _ = run(result(1), result(1))
    assert code == 0 and "no difference" in out and "no interval: only totals" in out, out


def check_metrics_by_name_and_the_margin():
    found, _ = rows(result(1), result(1.1), "--metric", "p95_ttft_ms,output_throughput")
    assert list(found) == ["p95_ttft_ms", "output_throughput"], found
    assert found["p95_ttft_ms"]["verdict"] == "slower" and found["p95_ttft_ms"]["paired"], found
    found, _ = rows(result(1), result(1.1), "--metric", "p95_ttft_ms", "--margin", "12")
    assert found["p95_ttft_ms"]["verdict"] == "no difference", found


def check_files_without_details():
    found, _ = rows(result(1, details=False), result(2, details=False))
    assert found["mean_ttft_ms"]["verdict"] == "no interval" and found["mean_ttft_ms"]["low"] is None, found
    assert abs(found["mean_ttft_ms"]["ratio"] - 2) < 1e-9, found


def check_warnings():
    _, warnings = rows(result(1), result(1, num_prompts=3, reliable=False, why_not="5 samples"))
    assert warnings == "B is unreliable: 5 samples\nA and B differ in num_prompts\n", warnings


def check_an_unreliable_file_gives_no_verdict():
    good, bad = result(1), result(1.3, reliable=False, why_not="the client was late")
    for a, b in ((good, bad), (bad, good)):
        found, _ = rows(a, b)
        assert {row["verdict"] for row in found.values()} == {"unreliable"}, found
        code, out, _ = run(a, b)
        assert code == 0 and "no verdict" in out and "faster" not in out and "slower" not in out, out
        assert "the client was late" in out, out


def check_what_is_refused():
    good = result(1)
    for a, b, flags, code, text in ((good, None, (), 1, "cannot be opened"), (good, "{", (), 1, "not valid JSON"),
                                    (good, "[]", (), 1, "not a load test result"),
                                    (good, good, ("--metric", "nothing"), 2, "unknown metric"),
                                    (good, good, ("--metric", ","), 2, "not a list"),
                                    (good, good, ("--metric", "request_goodput"), 1, "no request_goodput"),
                                    (good, {"duration": 1}, (), 1, "share no metric"),
                                    (good, good, ("--margin", "-1"), 2, "margin")):
        got, out, errors = run(a, b, *flags)
        assert got == code and text in errors and out == "", (flags, got, out, errors)


def main():
    checks = [check_a_planted_slowdown_is_found, check_a_against_a_is_no_difference,
              check_metrics_by_name_and_the_margin, check_files_without_details, check_warnings,
              check_an_unreliable_file_gives_no_verdict,
              check_what_is_refused]
    for check in checks:
        check()
        print("ok", check.__name__)
    print(f"{len(checks)} passed, 0 failed")


main()
