"""tools/bench_peers: figures are read out of its programs' outputs, and the table names what is missing."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

from reprise_server import SOURCE

TOOLS = os.path.join(SOURCE, "tools")
sys.dont_write_bytecode = True
sys.path.insert(0, TOOLS)

import peer_table


def step(name, device="H200, GPU-1", **figures):
    return {"step": name, "device": device, "figures": {key.replace("_", "-"): value for key, value in figures.items()}}


def offline_lines(kind):
    """What offline.py prints."""
    return "".join([f"RESULT {kind} decode batch={batch} context=464..592 tpot_ms=8.050 min_ms=8.000 tok_per_s=15900\n"
                    for batch in (1, 8, 32, 128)] +
                   [f"RESULT {kind} prefill prompts={tokens // 2048} tokens={tokens} ms={tokens / 40.96:.2f} "
                    f"min_ms={tokens / 51.2:.2f} tok_per_s=40960\n" for tokens in (2048, 8192, 32768)])


MOE_LINES = """RESULT start 61 s
(EngineCore pid=7) INFO between the results
RESULT moe bf16 decode batch=1 tpot_ms=3.250 tok/s=308
RESULT moe bf16 decode batch=8 tpot_ms=7.000 tok/s=1143
RESULT moe bf16 decode batch=32 tpot_ms=11.000 tok/s=2909
RESULT moe bf16 decode batch=128 tpot_ms=20.000 tok/s=6400
RESULT moe bf16 prefill 2048 ms=40.0 tok/s=51200
RESULT moe bf16 prefill 8192 ms=100.0 tok/s=81920
"""

# A peer's folder: unpack.sh leaves moe.py behind, as the real one does, and moe.py a process that holds its stdout.
PEER = {
    "unpack.sh": 'mkdir -p "$PEER" && cd "$(dirname "$0")" && cp env.sh offline.py serve.sh stop.sh server.py "$PEER"',
    "env.sh": 'export PEER PY=${PY:-python3} FROM_ENV_SH=1',
    "offline.py": f"""import os, sys
assert os.environ["FROM_ENV_SH"]
print({offline_lines("KIND")!r}.replace("KIND", sys.argv[1]))
""",
    "moe.py": f"""import os, subprocess
process = subprocess.Popen(["sleep", "1000"])
with open(os.environ["PEER"] + "/left", "w") as file: file.write(str(process.pid))
print({MOE_LINES!r}, flush=True)
os._exit(0)
""",
    "serve.sh": """setsid "$PY" "$PEER/server.py" --port "$PORT" >"$PEER/serve.log" 2>&1 </dev/null &
echo $! >"$PEER/serve.pid"
echo "$KIND $*" >>"$PEER/served"
until "$PY" -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$PORT/health')" 2>/dev/null; do sleep 0.05; done
""",
    "stop.sh": 'kill -9 -- -"$(cat "$PEER/serve.pid")"',
    "server.py": """import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, value):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())
    def do_GET(self):
        self.answer({})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer({"usage": {"completion_tokens": len(body["prompt"]) * body["max_tokens"]}})
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
""",
}
# A package's folder; its reprise needs the folder lib.
REPRISE = """#!/bin/sh
case $LD_LIBRARY_PATH in */package/lib*) ;; *) echo "no libraries" >&2; exit 1 ;; esac
case "$1 $2" in
"serve "*) exec PYTHON STATE/peer/server.py "$@" ;;
"bench serve")
    for last; do :; done
    echo '{"failed": 0, "output_throughput": 16000, "start_times": [1, 2], "ttfts": [0.5, 0.7]}' >"$last" ;;
"bench attention") echo '{"cases": [{"us_min": 100, "us_p50": 200, "bytes": 4e8, "flops": 6e10}]}' ;;
"bench step")
    printf '{"bench": "step", "cases": [{"batch": 1, "ms_p50": 2}, {"batch": 8, "ms_p50": 4}, '
    echo '{"batch": 32, "ms_p50": 8}, {"batch": 128, "ms_p50": 16}]}' ;;
"bench prefill")
    printf '{"bench": "prefill", "cases": [{"batch": 1, "context": 2048, "tokens_per_second": 60000}, '
    echo '{"batch": 4, "context": 2048, "tokens_per_second": 70000}]}' ;;
*) exit 2 ;;
esac
"""
NVIDIA_SMI = """#!/bin/sh
case "$*" in *memory.used*) cat USED ;; *) echo "NVIDIA H200, GPU-1" ;; esac
"""


def runs(pid):
    """Whether the process is there, and not only its exit code."""
    try:
        with open(f"/proc/{pid.strip()}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Figures(unittest.TestCase):
    def test_lines_of_vllm_are_read_for_one_type_of_weights(self):
        figures = peer_table.offline_figures(offline_lines("bf16") + offline_lines("fp8"), "bf16")
        self.assertEqual(figures["bf16-decode-128"], [8.0, 8.05, 8.05])
        self.assertEqual(figures["bf16-prefill-8192"], [40960.0, 40960.0, 51200.0])
        self.assertEqual(len(figures), 7)

    def test_a_figure_that_vllm_did_not_give_is_an_error(self):
        cut_off = offline_lines("bf16").split("RESULT bf16 prefill", maxsplit=1)[0]
        for text in ("RESULT bf16 FAILED TO START", cut_off):
            with self.assertRaises(SystemExit) as error:
                peer_table.offline_figures(text, "bf16")
            self.assertIn(text, str(error.exception))
        with self.assertRaises(SystemExit) as error:
            peer_table.moe_figures(MOE_LINES.replace("batch=32", "batch=33"))
        self.assertIn("no result for moe-decode-32:", str(error.exception))

    def test_experts_have_the_same_rows_on_both_sides(self):
        theirs = peer_table.moe_figures(MOE_LINES)
        self.assertEqual(theirs, {"moe-decode-1": [3.25], "moe-decode-8": [7.0], "moe-decode-32": [11.0], "moe-decode-128": [20.0],
                                  "moe-prefill-2048": [51200.0], "moe-prefill-8192": [81920.0]})
        cases = [{"batch": batch, "context": 512, "ms_p50": batch / 4, "tokens_per_second": 4000.0} for batch in (1, 8, 32, 128)]
        ours = peer_table.step_figures({"bench": "step", "cases": cases})
        self.assertEqual(ours["moe-decode-8"], [2.0])
        prompts = [{"batch": batch, "context": 2048, "ms_p50": 1.0, "tokens_per_second": 100.0 * batch} for batch in (1, 4)]
        ours.update(peer_table.step_figures({"bench": "prefill", "cases": prompts}))
        self.assertEqual(ours["moe-prefill-8192"], [400.0])
        self.assertEqual(set(ours), set(theirs))
        with self.assertRaises(SystemExit):  # a case for which the memory was too small
            peer_table.step_figures({"bench": "step", "cases": cases[:3]})

    def test_first_tokens_of_the_last_512_are_by_time_of_sending(self):
        starts = list(range(1024))[::-1]
        result = {"failed": 0, "output_throughput": 16000.0, "start_times": starts, "ttfts": [start / 1024 for start in starts]}
        figures = peer_table.saturated_figures(result)
        self.assertAlmostEqual(figures["saturated-ttft-p50-late"][0], (767 + 768) / 2 / 1024)
        self.assertAlmostEqual(figures["saturated-ttft-mean"][0], 1023 / 2 / 1024)
        with self.assertRaises(SystemExit):
            peer_table.saturated_figures({**result, "failed": 1})

    def test_attention_is_in_the_unit_of_its_row(self):
        result = {"cases": [{"us_min": 100.0, "us_p50": 200.0, "bytes": 4e8, "flops": 6e10}]}
        for row, expected in (("attention-decode-32x4k", [4.0, 2.0]), ("attention-prefill-8k", [600.0, 300.0]),
                              ("attention-window-16k", [100.0, 200.0])):
            for value, want in zip(peer_table.attention_figure(row, result), expected):
                self.assertAlmostEqual(value, want)


class Table(unittest.TestCase):
    def line(self, steps, title):
        return next(line for line in peer_table.render(steps).splitlines() if line.startswith(f"| {title} |"))

    def test_a_ratio_above_one_is_faster_in_both_directions_of_better(self):
        steps = [step("vllm-offline-bf16", bf16_decode_128=[8, 8], bf16_prefill_2048=[40000]),
                 step("reprise-bf16", bf16_decode_128=[4, 5, 6.4], bf16_prefill_2048=[60000])]
        self.assertTrue(self.line(steps, "decode, 128 sequences, bf16").endswith("| 5 (4 to 6.4) | 8 (8 to 8) | 1.60 (1.25 to 2.00) |"))
        self.assertTrue(self.line(steps, "prompt of 2,048, bf16").endswith("| 60,000 | 40,000 | 1.50 (1.50 to 1.50) |"))

    def test_figures_of_two_gpus_are_not_compared(self):
        steps = [step("vllm-offline-bf16", bf16_decode_128=[8]), step("reprise-bf16", "H100, GPU-2", bf16_decode_128=[4])]
        self.assertIn("measured on different devices", self.line(steps, "decode, 128 sequences, bf16"))

    def test_a_step_that_was_repeated_counts_once(self):
        steps = [step("reprise-bf16", bf16_decode_128=[9]), step("reprise-bf16", bf16_decode_128=[4])]
        self.assertIn("| 4 |", self.line(steps, "decode, 128 sequences, bf16"))

    def test_missing_rows_are_named(self):
        text = peer_table.render([step("reprise-bf16", bf16_decode_128=[4])])
        self.assertIn("- decode, 128 sequences, bf16: vllm\n", text)
        self.assertNotIn("- decode, 128 sequences, bf16: reprise", text)
        self.assertIn("- CPU, 1B bf16, decode: llama\n", text)
        self.assertNotIn("attention, decode, 32 x 4,096: vllm", text)


class Program(unittest.TestCase):
    def run_stage(self, folder, *words):
        return subprocess.run([sys.executable, os.path.join(TOOLS, "bench_peers"), *words, "--state", folder], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

    def test_a_step_that_was_measured_is_not_repeated_and_a_torn_line_is(self):
        with tempfile.TemporaryDirectory() as folder:
            done = {"step": "llama-bf16", "device": "CPU", "time": "", "command": "", "figures": {"cpu-bf16-decode-1": [10]}}
            with open(os.path.join(folder, "results.jsonl"), "w", encoding="utf-8") as file:
                file.write(json.dumps(done) + "\n" + json.dumps({**done, "step": "llama-int8"})[:40])
            run = self.run_stage(folder, "llama", "--llama-bench", "/nowhere", "--gguf-bf16", "x", "--gguf-q8", "x")
            self.assertIn("llama-bf16: measured before", run.stdout)
            self.assertNotIn("llama-int8: measured before", run.stdout)
            self.assertNotEqual(run.returncode, 0)
            run = self.run_stage(folder, "table")
            self.assertEqual(run.returncode, 0, run.stdout)
            self.assertIn("| CPU, 1B bf16, decode | tok/s | - | 10 | - |", run.stdout)

    def test_a_stage_says_what_it_needs(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.run_stage(folder, "llama")
            self.assertEqual(run.returncode, 2)
            self.assertIn("llama needs --llama-bench", run.stdout)


class Flow(unittest.TestCase):
    """The stages on a GPU, with programs that only print what the real ones do."""

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        for name, text in PEER.items():
            self.write("vllm/" + name, text)
        self.write("package/bin/reprise", REPRISE.replace("PYTHON", sys.executable).replace("STATE", self.folder + "/state"))
        self.write("package/lib/libnothing.so", "")
        self.write("bin/nvidia-smi", NVIDIA_SMI.replace("USED", self.folder + "/used"))
        self.write("used", "12\n")
        self.write("state/llama-3.1-8b/config.json", "{}")

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def read(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as file:
            return file.read()

    def stage(self, *words):
        environment = dict(os.environ, PATH=f"{self.folder}/bin:{os.environ['PATH']}")
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        return subprocess.run([sys.executable, os.path.join(TOOLS, "bench_peers"), *words, "--state", "state", "--reprise",
                               "package/bin/reprise"], cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              check=False, env=environment)

    def test_all_stages_give_the_rows_of_a_gpu(self):
        for words in (["unpack", "--peer", "vllm"], ["vllm-offline"], ["vllm-serve"], ["vllm-moe"], ["reprise"], ["reprise-moe"]):
            run = self.stage(*words)
            self.assertEqual(run.returncode, 0, run.stdout)
            again = self.stage(*words)
            self.assertEqual(again.returncode, 0, again.stdout)
            self.assertRegex(again.stdout, r"\A(\S+: measured before\n)+\Z")
        self.assertEqual(self.read("state/peer/served"), "fp8 \nbf16 --max-model-len 17408\n")
        self.assertFalse(runs(self.read("state/peer/left")))
        text = self.stage("table").stdout
        self.assertIn("| 30B-A3B bf16, decode, 8 sequences | ms | 4 | 7 | 1.75 (1.75 to 1.75) |", text)
        self.assertIn("| 30B-A3B bf16, 4 prompts of 2,048 | tok/s | 70,000 | 81,920 | 0.85 (0.85 to 0.85) |", text)
        self.assertIn("Devices: NVIDIA H200, GPU-1.\n", text)
        missing = text.split("Missing:\n")[1].splitlines()
        self.assertEqual(len(missing), 8)
        self.assertEqual([line for line in missing if not line.startswith("- CPU, ")], [])

    def test_the_experts_of_vllm_need_the_stage_unpack(self):
        run = self.stage("vllm-moe")
        self.assertEqual(run.returncode, 1)
        self.assertIn("peer/moe.py: run the stage unpack", run.stdout)

    def test_a_step_that_fails_leaves_no_server_and_says_what_was_printed(self):
        self.stage("unpack", "--peer", "vllm")
        self.write("state/peer/serve.sh", PEER["serve.sh"] + "echo not ready; exit 1\n")
        run = self.stage("vllm-serve")
        self.assertEqual(run.returncode, 1)
        self.assertIn("exit code 1\nnot ready", run.stdout)
        self.assertFalse(runs(self.read("state/peer/serve.pid")))

    def test_two_gpus_are_not_measured(self):
        self.write("used", "12\n12\n")
        run = self.stage("reprise-moe")
        self.assertEqual(run.returncode, 1)
        self.assertIn("2 GPUs are visible", run.stdout)


if __name__ == "__main__":
    unittest.main()
