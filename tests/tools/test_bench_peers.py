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


class Figures(unittest.TestCase):
    def test_lines_of_vllm_are_read_for_one_type_of_weights(self):
        text = ("RESULT bf16 decode batch=128 context=464..592 tpot_ms=8.050 min_ms=8.000 tok_per_s=15900\n"
                "RESULT fp8 decode batch=128 context=464..592 tpot_ms=6.450 min_ms=6.400 tok_per_s=19845\n"
                "RESULT bf16 prefill prompts=4 tokens=8192 ms=200.00 min_ms=160.00 tok_per_s=40960\n")
        figures = peer_table.offline_figures(text, "bf16")
        self.assertEqual(figures, {"bf16-decode-128": [8.0, 8.05], "bf16-prefill-8192": [40960.0, 51200.0]})
        with self.assertRaises(SystemExit):
            peer_table.offline_figures("RESULT bf16 FAILED TO START", "bf16")

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


if __name__ == "__main__":
    unittest.main()
