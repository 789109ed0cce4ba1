#!/usr/bin/env python3
"""Checkpoints of 4-bit weights that `reprise quantize` writes are read by the `compressed-tensors` package as by our loader.

Its own classes validate quantization_config and decompress every module; the values must be those that our loader has, bit for
bit. Needs compressed-tensors with torch, which the other tests do without:
    python3 -m venv V; V/bin/pip install compressed-tensors==0.20.0 safetensors numpy; V/bin/python THIS_FILE
"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
try:
    import numpy as np
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors.torch import load_file
    from random_models import write_model
    from safetensors_dump import parse_dump
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

SOURCE = os.environ.get("REPRISE_SOURCE_DIR", ".")
BIN = os.environ.get("REPRISE_BIN", os.path.join(SOURCE, "build", "release", "reprise"))
DUMP = os.path.join(os.path.dirname(BIN), "tests", "test_model_weights")
SIZES = {"hidden_size": 192, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 64, "num_hidden_layers": 2}
ROLES = {"qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], "o": ["self_attn.o_proj"],
         "gate_up": ["mlp.gate_proj", "mlp.up_proj"], "down": ["mlp.down_proj"]}
passed = 0


def decompressed(folder):
    """module -> float32 values by the package"""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = QuantizationConfig.model_validate(json.load(file)["quantization_config"])
    (scheme,) = config.config_groups.values()
    packer = BaseCompressor.load_from_registry(config.format)
    names = packer.compression_param_names(scheme)
    modules = {}
    for name, tensor in load_file(os.path.join(folder, "model.safetensors")).items():
        module, key = name.rsplit(".", 1)
        modules.setdefault(module, {})[key] = tensor
    values = {}
    for module, state in modules.items():
        if "weight_packed" not in state:
            continue
        assert set(state) <= {*names, "weight_shape"}, (module, list(state), names)
        if config.format == "pack-quantized":  # in float32, where bf16 scales times small integers are exact
            state = {**state, "weight_scale": state["weight_scale"].float()}
        values[module] = packer.decompress(state, scheme)["weight"].float().numpy()
    return values


def check(parent, scheme, *flags):
    global passed
    folder, out = os.path.join(parent, "model"), os.path.join(parent, "out" + "".join((scheme, *flags)).replace("/", "_")[:40])
    write_model(folder, "llama", dtype="bf16", tied=False, seed=3, **SIZES)
    done = subprocess.run([BIN, "quantize", folder, out, "--scheme", scheme, *flags], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    values, dump = decompressed(out), os.path.join(parent, "dump")
    assert len(values) == 7 * SIZES["num_hidden_layers"], sorted(values)
    for dtype in ("auto", "f32"):
        subprocess.run([DUMP, "--dump", out, dump, dtype], check=True, timeout=60)
        got = parse_dump(dump)
        for layer in range(SIZES["num_hidden_layers"]):
            for role, parts in ROLES.items():
                want = np.concatenate([values[f"model.layers.{layer}.{part}"] for part in parts])
                assert np.array_equal(got[f"{layer}.{role}"], want), (scheme, flags, dtype, layer, role)
                passed += 1


def main():
    torch.set_num_threads(1)
    for scheme, *flags in (("nvfp4",), ("mxfp4",), ("int4", "--group", "64")):
        with tempfile.TemporaryDirectory() as parent:
            check(parent, scheme, *flags)
            check(parent, scheme, *flags, "--calibrate", os.path.abspath(__file__), "--calibrate-tokens", "300")
    print(f"{passed} checks passed")


main()
