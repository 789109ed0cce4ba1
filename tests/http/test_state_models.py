"""Models with recurrent state are served, inspected and measured: bytes of state in `reprise inspect` and /debug/memory,
snapshots in /metrics. A prompt that begins with a snapshot gets the same text. What cannot run them says so."""
import json
import os
import subprocess
import tempfile

from reprise_server import BIN, Server, skip

try:
    from random_models import write_model
except ImportError as error:
    skip(str(error))

SLOTS, SNAPSHOTS = 2, 3
FLAGS = ("--device", "cpu", "--max-num-seqs", str(SLOTS), "--max-num-batched-tokens", "48")


def align(count):
    return -(-count // 64) * 64


def state_bytes(config, family):
    """f32, each operator's part in multiples of 64 bytes."""
    if family == "lfm2":
        return 2 * align(4 * (config["conv_L_cache"] - 1) * config["hidden_size"])
    heads, keys = config["linear_num_value_heads"], config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = heads * config["linear_value_head_dim"]
    conv = align(4 * (config["linear_conv_kernel_dim"] - 1) * (2 * keys + values))
    return 2 * (conv + align(4 * heads * config["linear_key_head_dim"] * config["linear_value_head_dim"]))


def run(*arguments):
    return subprocess.run([BIN, *arguments], capture_output=True, text=True)


def check_inspect(folder, each):
    shown = json.loads(run("inspect", folder, *FLAGS, "--json").stdout)
    assert shown["state_bytes_per_sequence"] == each and shown["memory"]["state"] == SLOTS * each, (shown, each)
    assert f"recurrent: {each} bytes for each of {SLOTS} sequences" in run("inspect", folder, *FLAGS).stdout


def check_refusals(folder):
    done = run("quantize", folder, os.path.join(folder, "out"))
    assert done.returncode == 3 and "are not written with 8 bits" in done.stderr, done
    done = run("serve", folder, "--device", "cpu", "--tensor-parallel-size", "2", "--port", "0")
    assert done.returncode == 3 and "not divided yet" in done.stderr and "omit --tensor-parallel-size" in done.stderr, done
    done = run("serve", folder, "--device", "cpu", "--port", "0", "--state-snapshot-memory-bytes", "900T")
    assert done.returncode != 0 and "--state-snapshot-memory-bytes" in done.stderr, done


def check_bench(folder):
    done = run("bench", "prefill", "--model", folder, "--device", "cpu", "--context", "16", "--steps", "2", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["cases"][0]["product_tflops"] > 0, done


def check_server(folder, each, *flags):
    with Server(folder, *FLAGS, "--state-snapshot-memory-bytes", str(SNAPSHOTS * each), "--state-snapshot-interval", "64",
                *flags) as server:
        body = {"prompt": "0123456789" * 14, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 1}
        first, second = (server.post("/v1/completions", body)[1] for _ in range(2))
        assert first["choices"] == second["choices"], (first, second)
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 128, second["usage"]
        values = server.metrics()
        assert values["reprise_state_snapshot_hits_total"] == 1 and values["reprise_state_snapshots_kept"] == 2, values
        assert values["reprise_state_snapshots_capacity"] == SNAPSHOTS, values
        owners = {o["name"]: o["bytes"] for o in json.loads(server.get("/debug/memory")[1])["device"]["owners"]}
        assert owners["state"] == SLOTS * each and owners["snapshots"] == SNAPSHOTS * each, owners


with tempfile.TemporaryDirectory() as parent:
    for family in ("lfm2", "qwen3_5"):
        folder = os.path.join(parent, family)
        config = write_model(folder, family, dtype="bf16", seed=2).config
        each = state_bytes(config, family)
        check_inspect(folder, each)
        check_server(folder, each)
    check_server(folder, each, "--quantization", "int8")
    check_bench(folder)
    check_refusals(folder)
print("1 passed, 0 failed")
