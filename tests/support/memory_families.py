"""Families whose memory differs, each as a random model, and what the memory plan of each must agree with.

    for kind in KINDS: write(directory, kind, wide=True)

wide: shapes that the GPU's fast kernels take, with weights of some ten megabytes; else the shapes of random_models.py.
Needs what random_models.py needs."""
import json
import os
import re
import subprocess

import numpy as np
from random_models import has_experts, has_state, gemma4_heads, write_model
from reprise_server import BIN
from safetensors_file import read_tensors, write_tensors

LAYERS, POSITIONS, WINDOW = 6, 4096, 128
PAGE = 64 << 10  # more than a page of the small shapes has
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": WINDOW}
WIDE = {"hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128,
        "vocab_size": 8192}
WIDE_EXPERTS = {"moe_intermediate_size": 512, "num_experts": 16, "num_experts_per_tok": 4}
WIDE_DELTA = {"head_dim": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 4,
              "linear_num_value_heads": 8, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
# name: family, keys of both shapes, keys of the wide shape
KINDS = {
    "dense": ("llama", {}, {}),
    "windows": ("gemma3", {"sliding_window": WINDOW}, {"query_pre_attn_scalar": 128}),
    "experts": ("qwen3_moe", {}, WIDE_EXPERTS),
    "experts in every layer": ("mixtral", {}, {"intermediate_size": 512, "num_local_experts": 8}),
    "MXFP4 experts, windows": ("gpt_oss", {"num_hidden_layers": LAYERS, "hidden_size": 64, **ALTERNATING}, {
        "hidden_size": 512, "head_dim": 64, "intermediate_size": 256, "num_local_experts": 16, "num_experts_per_tok": 4}),
    "layers with different K and V": ("gemma4", {
        "num_hidden_layers": LAYERS, "num_kv_shared_layers": 2, **ALTERNATING}, {
        "hidden_size": 512, "global_head_dim": 256, "hidden_size_per_layer_input": 128, "vocab_size_per_layer_input": 8192,
        "num_global_key_value_heads": 2, "num_experts": 8, "moe_intermediate_size": 256}),
    "latents": ("deepseek_v2", {"num_hidden_layers": 4}, {
        "head_dim": None, "num_key_value_heads": 8, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "n_routed_experts": 16, "moe_intermediate_size": 256}),
    "gated delta rule, experts": ("qwen3_next", {"num_hidden_layers": 4}, {
        **WIDE_EXPERTS, **WIDE_DELTA, "num_experts": 8, "shared_expert_intermediate_size": 512}),
    "gated delta rule": ("qwen3_5", {}, WIDE_DELTA),
    "short convolution": ("lfm2", {}, {"head_dim": None, "num_attention_heads": 16, "num_key_value_heads": 4}),
}
STATES = ("gated delta rule, experts", "gated delta rule", "short convolution")
WINDOWS = ("windows", "MXFP4 experts, windows", "layers with different K and V")


def pack_mxfp4(directory):
    """Gives gpt-oss's experts random weights of four bits, in the published files' tensors."""
    path, random = os.path.join(directory, "model.safetensors"), np.random.default_rng(3)
    tensors = read_tensors(path)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        count, columns, rows = tensors.pop(name)[1].shape
        tensors[name + "_blocks"] = "U8", random.integers(0, 256, (count, rows, columns // 32, 16), np.uint8)
        tensors[name + "_scales"] = "U8", random.integers(119, 124, (count, rows, columns // 32), np.uint8)
    write_tensors(path, tensors)
    path = os.path.join(directory, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)


def write(directory, kind, wide):
    """The model's config."""
    family, keys, wide_keys = KINDS[kind]
    keys = {"max_position_embeddings": POSITIONS, **keys, **({**WIDE, **wide_keys} if wide else {})}
    config = write_model(directory, family, dtype="bf16", seed=len(kind), **keys).config
    if family == "gpt_oss":
        pack_mxfp4(directory)
    return config


def kv_bytes(config, kind):
    """What a token takes of the KV pool in bf16."""
    family, total = KINDS[kind][0], 0
    for layer in range(config["num_hidden_layers"]):
        if family == "gemma4":
            dim, heads, shared, _ = gemma4_heads(config, layer)
            total += 0 if shared else 2 * heads * dim
        elif family == "deepseek_v2":
            total += config["kv_lora_rank"] + config["qk_rope_head_dim"]
        elif not has_state(config, family, layer):
            dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
            total += 2 * config["num_key_value_heads"] * dim
    return 2 * total


def expert_layers(config, kind):
    family = KINDS[kind][0]
    if family == "gemma4":
        return config["num_hidden_layers"]
    return sum(has_experts(config, family, layer) for layer in range(config["num_hidden_layers"]))


def inspect(directory, *flags):
    """The JSON of `reprise inspect`."""
    return json.loads(printed(directory, *flags, "--json"))


def printed(directory, *flags):
    done = subprocess.run([BIN, "inspect", directory, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed_kv_bytes(text):
    return int(re.search(r"^KV +(\d+) bytes a token", text, re.M).group(1))


METRICS = {"context": "context", "weights": "weights", "activations": "activations", "workspace": "workspace", "graphs": "graphs",
           "slots": "slots", "KV pool": "kv"}


def owners(server):
    """Device memory by owner. The metrics have the same; on the CPU without rings and swap pool, and with padded weights."""
    answer, metrics = json.loads(server.get("/debug/memory")[1])["device"], server.metrics()
    found = {owner["name"]: owner["bytes"] for owner in answer["owners"]}
    assert sum(found.values()) == answer["owned_bytes"], answer
    for name in found.keys() & METRICS.keys():
        told = metrics[f'reprise_device_memory_bytes{{kind="{METRICS[name]}"}}']
        assert told == found[name] or (name == "weights" and "context" not in found and found[name] <= told), (name, told, found)
    if "state" in found:
        assert metrics['reprise_device_memory_bytes{kind="state"}'] == found["state"] + found["snapshots"], found
    return found


# Uses that the plan knows exactly before anything is loaded. Vectors (norms, biases) count as workspace once they are uploaded.
EXACT = ("activations", "slots", "state", "snapshots")


def check_plan(found, planned, pool_bytes, weights_slack):
    """What a ready server on a GPU owns is what `reprise inspect` had planned."""
    assert found.keys() | {"total"} == planned.keys(), (found, planned)
    for name in EXACT:
        assert found.get(name) == planned.get(name), (name, found, planned)
    assert abs(found["weights"] - planned["weights"]) <= weights_slack, (found, planned)
    assert pool_bytes <= found["KV pool"] <= pool_bytes + (4 << 20), found  # granules, the padding page
    assert found["graphs"] + found["workspace"] <= planned["graphs"] + planned["workspace"], (found, planned)
