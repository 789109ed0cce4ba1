"""A model with experts is served, inspected and measured: rows per expert and imbalance in /metrics and /debug/profile, experts
and active parameters in `reprise inspect`. A quantized checkpoint of it is refused, and says what to do instead."""
import json
import os
import subprocess
import tempfile

from reprise_server import BIN, Server, skip

try:
    from random_models import expert_shapes, write_model
except ImportError as error:
    skip(str(error))

TOKENS, LAYERS, USED, EXPERTS = 12, 3, 2, 5


def check_inspect(directory, config):
    shown = json.loads(subprocess.run([BIN, "inspect", directory, "--device", "cpu", "--json"], capture_output=True, check=True).stdout)
    model = shown["model"]
    experts = sum(a * b for name, (a, b) in expert_shapes(config, "mixtral").items() if "experts." in name) * LAYERS
    assert (model["experts"], model["experts_per_token"], model["expert_intermediate_size"]) == (EXPERTS, USED, 32), model
    assert model["parameters"] - model["active_parameters"] == experts * (EXPERTS - USED) // EXPERTS, model
    text = subprocess.run([BIN, "inspect", directory, "--device", "cpu"], capture_output=True, check=True, text=True).stdout
    assert f"experts        {USED} of {EXPERTS} a token in {LAYERS} layers, intermediate 32\n" in text, text
    assert "M parameters" in text and "of weights a token alone" in text, text


def check_counts(server, tokens):
    """Every row of every step has USED experts in each layer. Steps that run ahead of a request's end may add rows."""
    metrics = server.metrics()
    rows, touched = metrics["reprise_expert_rows_sum"], metrics["reprise_expert_rows_count"]
    layers, ratio = metrics["reprise_expert_imbalance_ratio_count"], metrics["reprise_expert_imbalance_ratio_sum"]
    assert rows >= tokens * LAYERS * USED and rows % USED == 0, (rows, tokens)
    assert layers % LAYERS == 0 and layers * USED <= touched <= layers * EXPERTS, (layers, touched)
    assert layers <= ratio <= layers * EXPERTS, (layers, ratio)
    profile = json.loads(server.get("/debug/profile?format=json")[1])["experts"]
    assert set(profile) == {"rows_mean", "touched_mean", "imbalance_mean"}, profile
    assert USED <= profile["touched_mean"] <= EXPERTS and 1 <= profile["imbalance_mean"] <= EXPERTS, profile
    assert "experts since start: " in server.get("/debug/profile")[1]


def check_quantize(directory):
    done = subprocess.run([BIN, "quantize", directory, os.path.join(directory, "out")], capture_output=True, text=True)
    assert done.returncode == 3 and "models with experts are not written with 8 bits" in done.stderr, (done.returncode, done.stderr)
    assert "--quantization fp8" in done.stderr, done.stderr


with tempfile.TemporaryDirectory() as parent:
    folder = os.path.join(parent, "model")
    config = write_model(folder, "mixtral", dtype="bf16", seed=2).config
    check_inspect(folder, config)
    check_quantize(folder)
    with Server(folder, "--device", "cpu", "--max-num-seqs", "2", "--max-num-batched-tokens", "16") as server:
        body = {"prompt": "0123456789", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        first = server.post("/v1/completions", body)
        assert first[0] == 200 and first[1]["usage"]["completion_tokens"] == TOKENS, first
        check_counts(server, 10 + TOKENS - 1)
    with Server(folder, "--device", "cpu", "--quantization", "int8", "--max-num-seqs", "2") as server:
        assert server.post("/v1/completions", body)[0] == 200
        check_counts(server, 10 + TOKENS - 1)
print("1 passed, 0 failed")
