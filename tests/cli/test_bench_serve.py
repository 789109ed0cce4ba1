"""`reprise bench serve` against this project's server and a scripted one: every request is accounted for, tokens are exact,
results are written to the requested files. Times are not checked (bench.load_times does).
"""
import glob
import json
import os
import signal
import subprocess
import tempfile
import time

from reprise_server import BIN, DEMO, Server

SCRIPTED = os.environ.get("REPRISE_SCRIPTED_BIN", os.path.join(os.path.dirname(BIN), "scripted_server"))
VLLM_KEYS = {"date", "backend", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency", "duration",
             "completed", "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput",
             "output_throughput", "total_token_throughput"} | {
                 f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99")
                 for name in ("ttft", "tpot", "itl", "e2el")}
DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "errors")


def run(url, *arguments, **environment):
    done = subprocess.run([BIN, "bench", "serve", "--base-url", url, *arguments], stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=280, env=dict(os.environ, **environment))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def result(url, *arguments):
    code, out, errors = run(url, *arguments, "--json", "--save-detailed", "--result-filename", "/dev/null")
    assert code == 0, (arguments, out, errors)
    return json.loads(out)


def refused(code, text, url, *arguments):
    got, out, errors = run(url, *arguments)
    assert got == code and text in errors and out == "", (arguments, got, out, errors)


class Scripted:
    def __enter__(self):
        self.process = subprocess.Popen([SCRIPTED], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        return self.process.stdout.readline().decode().strip()

    def __exit__(self, kind, value, trace):
        self.process.terminate()
        code = self.process.wait(60)
        self.process.stdout.close()
        assert kind is not None or code == 0, code


def check_every_token_is_counted(server, url):
    before = server.metrics()
    got = result(url, "--num-prompts", "60", "--request-rate", "100", "--random-input-len", "24",
                 "--random-output-len", "10", "--random-range-ratio", "0.5", "--no-warm-up", "--goodput",
                 "ttft:60000,e2el:60000")
    after = server.metrics()
    assert VLLM_KEYS | set(DETAILS) <= set(got), (VLLM_KEYS | set(DETAILS)) - set(got)
    assert got["model_id"] == "demo" and got["completed"] == got["good_requests"] == 60 and got["failed"] == 0, got
    assert all(len(got[key]) == 60 for key in DETAILS), got
    assert got["total_output_tokens"] == sum(got["output_lens"]), got
    assert got["total_input_tokens"] == sum(got["input_lens"]), got
    assert min(got["output_lens"]) >= 5 and max(got["output_lens"]) <= 15, got["output_lens"]
    # A chunk for every token, also for one that completes no character.
    assert [len(gaps) + 1 for gaps in got["itls"]] == got["output_lens"], got
    name = "reprise_generated_tokens_total"
    assert after[name] - before[name] == got["total_output_tokens"], (before[name], after[name], got)


def check_default_lengths_fit_the_context(url):
    code, out, errors = run(url, "--num-prompts", "3", "--json", "--save-detailed", "--result-filename", "/dev/null")
    assert code == 0 and "lengths: 896 + 128 tokens" in errors, errors
    got = json.loads(out)
    assert got["completed"] == 3 and got["output_lens"] == [128] * 3, got
    assert all(abs(tokens - 896) <= 1 for tokens in got["input_lens"]), got["input_lens"]
    refused(2, "none of 3 requests fits", url, "--num-prompts", "3", "--input-len", "1024")


def check_closed_loops(url):
    for arguments in (["--closed"], ["--request-rate", "inf"]):
        got = result(url, "--num-prompts", "20", "--max-concurrency", "3", "--input-len", "8", "--output-len", "4",
                     *arguments)
        assert got["arrival"] == "closed" and got["completed"] + got["warm_up"]["requests"] >= 20, got
        assert got["max_in_flight"] == 3 and got["connections"] == 3, got
    got = result(url, "--num-prompts", "20", "--input-len", "8", "--output-len", "4")
    assert got["arrival"] == "at_once" and got["max_in_flight"] > 3, got
    got = result(url, "--num-prompts", "8", "--input-len", "8", "--output-len", "4", "--ramp-up-strategy", "linear",
                 "--ramp-up-start-rps", "50", "--ramp-up-end-rps", "200")
    assert got["outcomes"]["ok"] == 8 and got["ramp_up_strategy"] == "linear", got


def check_shared_prefixes_are_hits(url):
    got = result(url, "--num-prompts", "12", "--closed", "--prefix-len", "64", "--input-len", "16", "--output-len", "4",
                 "--seed", "5", "--no-warm-up")
    cache = got["prefix_cache"]
    assert cache["prompt_tokens"] == 12 * 80 and cache["cached_tokens"] == cache["expected_tokens"] == 11 * 64, cache


def check_results_are_kept(url, folder):
    page, named = os.path.join(folder, "page.html"), os.path.join(folder, "named.json")
    short = ["--num-prompts", "4", "--input-len", "8", "--output-len", "2"]
    code, out, errors = run(url, *short, "--save-result", "--result-dir", folder, "--html", page, "--metadata",
                            "commit=abc,tp=1", "--label", "first", "--api-key", "secret")
    assert code == 0 and "Successful requests:" in out and "Mean TTFT (ms):" in out and errors == "", (out, errors)
    saved, = glob.glob(os.path.join(folder, "openai-infqps-demo-*.json"))
    with open(saved) as file:
        got = json.load(file)
    assert got["commit"] == "abc" and got["tp"] == "1" and got["label"] == "first" and "ttfts" not in got, got
    assert "bench serve" in got["command"] and "secret" not in json.dumps(got), got
    with open(page) as file:
        text = file.read()
    assert "<svg" in text and "secret" not in text, text[:500]
    code, out, errors = run(url, *short, "--result-filename", named)
    assert code == 0 and os.path.exists(named), errors
    refused_path = os.path.join(folder, "nowhere", "x.json")
    code, out, errors = run(url, *short, "--result-filename", refused_path)
    assert code == 1 and refused_path in errors, (code, errors)


def check_failures_are_counted(url):
    common = ["--num-prompts", "5", "--input-len", "4", "--output-len", "6", "--seed", "1"]
    for script, outcome in (("status=503 message=busy", "status"), ("reset=2", "reset"), ("tokens=3", "short"),
                            ("error=1", "server_error"), ("raw=http", "bad_answer"), ("hang=1", "timeout")):
        code, out, errors = run(url, *common, "--model", "script: " + script, "--json", "--timeout", "0.3")
        got = json.loads(out)
        assert code == 1 and got["outcomes"][outcome] == got["failed"] == 5 and not got["reliable"], (script, out)
    code, out, errors = run(url, *common, "--model", "script: status=503 message=queue-full")
    assert code == 1 and "queue-full" in out and "UNRELIABLE" in out, out


def interrupt_after(url, seconds):
    process = subprocess.Popen([BIN, "bench", "serve", "--base-url", url, "--model", "script: itl=1", "--num-prompts",
                                "4000", "--request-rate", "200", "--output-len", "2", "--input-len", "4", "--json"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    return process.returncode, json.loads(out) if out else None


def check_an_interrupted_run_reports(url):
    for seconds in (0.5, 4, 12):  # a slow build may not have begun
        code, got = interrupt_after(url, seconds)
        if got and got["outcomes"]["ok"]:
            break
    assert code == 0 and got["outcomes"]["ok"] > 0, (code, got)
    assert got["outcomes"]["not_sent"] > 500 and got["failed"] == 0, got


def check_what_is_refused(url):
    refused(2, "https is not supported", "https://127.0.0.1:1")
    refused(1, "connection refused", "http://127.0.0.1:1")
    refused(2, "--request-rate", url, "--request-rate", "-1")
    refused(2, "--request-rate", url, "--request-rate", "fast")
    refused(2, "alternatives", url, "--request-rate", "5", "--closed")
    refused(2, "--ramp-up-start-rps", url, "--ramp-up-strategy", "linear")
    refused(2, "--api chat", url, "--api", "chat")
    refused(2, "--dataset-path", url, "--dataset-name", "azure")
    refused(2, "goodput", url, "--goodput", "ttft")
    refused(2, "metadata", url, "--metadata", "novalue")


def main():
    with Server(DEMO, "--threads", "1") as server:
        url = f"http://127.0.0.1:{server.port}"
        check_every_token_is_counted(server, url)
        check_default_lengths_fit_the_context(url)
        check_closed_loops(url)
        check_shared_prefixes_are_hits(url)
        with tempfile.TemporaryDirectory() as folder:
            check_results_are_kept(url, folder)
    with Scripted() as url:
        check_failures_are_counted(url)
        check_an_interrupted_run_reports(url)
        check_what_is_refused(url)
    print("7 passed, 0 failed")


main()
