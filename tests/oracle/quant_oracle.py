#!/usr/bin/env python3
"""Checkpoints with 8-bit weights, written by the `safetensors` package, are in memory what numpy makes of them.

Each scheme's random model is written with its quantization_config; what the loader has is dumped twice, as codes times
scales and with --dtype float32, and both must be numpy's float32 products, bit for bit, so that the orientation of the
scales and the rows of fused matrices are right. Then files and configurations are damaged: each must be refused by
name. At last `reprise run` answers with every scheme, twice the same.
"""
import copy
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
try:
    import numpy as np
    import safetensors
    from random_models import encoded, write_json, write_model
    from safetensors_dump import parse_dump
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

SOURCE = os.environ.get("REPRISE_SOURCE_DIR", ".")
BIN = os.environ.get("REPRISE_BIN", os.path.join(SOURCE, "build", "release", "reprise"))
DUMP = os.path.join(os.path.dirname(BIN), "tests", "test_model_weights")
SIZES = {"hidden_size": 160, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 64, "num_hidden_layers": 2}
passed = 0


def e4m3_values():
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    values = np.where(exponent, (1 + mantissa / 8) * 2.0 ** (exponent - 7), mantissa / 8 * 2.0 ** -6)
    values = np.where((codes & 0x7F) == 0x7F, np.nan, values) * np.where(codes & 0x80, -1, 1)
    return values.astype(np.float32)


FP8 = e4m3_values()


def tensors_config(kind, strategy, activations="token", ignore=("lm_head",), targets=("Linear",)):
    one = {"num_bits": 8, "type": kind, "symmetric": True, "dynamic": False, "strategy": strategy}
    if strategy == "block":
        one["block_structure"] = [128, 128]
    inputs = {"num_bits": 8, "type": kind, "symmetric": True, "dynamic": activations != "static",
              "strategy": "tensor" if activations == "static" else "token"} if activations else None
    return {"quant_method": "compressed-tensors", "format": f"{kind}-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": list(targets), "weights": one, "input_activations": inputs,
                                          "output_activations": None}},
            "ignore": list(ignore), "kv_cache_scheme": None}


# name -> (configuration, INT8 or FP8, scales, static inputs, what the module's name must hold to be left out)
SCHEMES = {
    "ct fp8 channel": (tensors_config("float", "channel"), "fp8", "channel", False, ()),
    "ct fp8 tensor static": (tensors_config("float", "tensor", "static"), "fp8", "tensor", True, ()),
    "ct fp8 block": (tensors_config("float", "block"), "fp8", "block", False, ()),
    "ct int8 channel": (tensors_config("int", "channel"), "int8", "channel", False, ()),
    "ct int8 tensor": (tensors_config("int", "tensor"), "int8", "tensor", False, ()),
    "ct int8 weights alone": (tensors_config("int", "channel", None), "int8", "channel", False, ()),
    "ct ignore": (tensors_config("float", "channel", ignore=("lm_head", r"re:.*layers\.0\.mlp\..*", "model.layers.1.self_attn.o_proj")),
                  "fp8", "channel", False, ("layers.0.mlp.", "layers.1.self_attn.o_proj")),
    "ct targets": (tensors_config("float", "channel", targets=(r"re:.*self_attn.*",)), "fp8", "channel", False, (".mlp.",)),
    "ct head": (tensors_config("int", "channel", ignore=()), "int8", "channel", False, None),
    "fp8 block": ({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
                   "modules_to_not_convert": ["lm_head", "model.layers.0.mlp"]}, "fp8", "inv", False, ("layers.0.mlp.",)),
    "fp8 tensor": ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, "fp8", "scalar", True, ()),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "*.1.mlp.*"]}, "fp8", "scalar", True,
                 ("layers.1.mlp.",)),
    "modelopt file": ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8",
                                                                         "exclude_modules": ["lm_head"]}}, "fp8", "scalar", True, ()),
}


def spec(name, array):
    return safetensors.TensorSpec(dtype=name, shape=list(array.shape), data_ptr=array.ctypes.data, data_len=array.nbytes)


def write_file(folder, arrays):
    """arrays: name -> (type of the package, numpy array)"""
    arrays = {name: (kind, np.ascontiguousarray(array).reshape(array.shape)) for name, (kind, array) in arrays.items()}
    safetensors.serialize_file({name: spec(*one) for name, one in arrays.items()},
                               os.path.join(folder, "model.safetensors"), {"format": "pt"})


def quantized(name, left_out):
    if name == "lm_head.weight":
        return left_out is None
    return name.endswith("_proj.weight") and not any(part in name for part in left_out or ())


def make(folder, scheme, seed=1):
    """Writes the model; returns its arrays and the float32 values of every tensor."""
    config, kind, scales, static, left_out = SCHEMES[scheme]
    model = write_model(folder, "llama", dtype="bf16", tied=False, seed=seed, **SIZES)
    random = np.random.default_rng(seed)
    arrays, values = {}, {}
    for name, full in model.tensors.items():
        if not quantized(name, left_out):
            arrays[name], values[name] = ("bfloat16", encoded(full, "bf16").reshape(full.shape)), full
            continue
        rows, cols = full.shape
        if kind == "fp8":
            codes = random.integers(0, 256, (rows, cols), np.uint8)
            codes[(codes & 0x7F) == 0x7F] = 0x7E
            decoded = FP8[codes]
        else:
            codes = random.integers(-127, 128, (rows, cols)).astype(np.int8)
            decoded = codes.astype(np.float32)
        shape = {"channel": (rows, 1), "tensor": (1,), "scalar": (),
                 "block": (-(-rows // 128), -(-cols // 128)), "inv": (-(-rows // 128), -(-cols // 128))}[scales]
        scale = (random.uniform(0.5, 1.5, shape) * (0.1 / np.abs(decoded).max())).astype(np.float32)
        scale_type, stored = "float32", scale
        if scheme == "ct fp8 channel":  # which that writer keeps in the model's type
            stored = encoded(scale, "bf16").reshape(scale.shape)
            scale, scale_type = (stored.astype(np.uint32) << 16).view(np.float32), "bfloat16"
        full_scale = scale if scales in ("channel", "tensor", "scalar") else \
            np.repeat(np.repeat(scale, 128, 0)[:rows], 128, 1)[:, :cols]
        stem = name[:-len("weight")]
        arrays[name] = ("float8_e4m3fn" if kind == "fp8" else "int8", codes)
        arrays[stem + ("weight_scale_inv" if scales == "inv" else "weight_scale")] = (scale_type, np.asarray(stored))
        if static:
            arrays[stem + "input_scale"] = ("float32", np.full(shape, 0.01, np.float32))
        values[name] = decoded * full_scale
    for layer in range(SIZES["num_hidden_layers"] if "modelopt" in scheme else 0):
        arrays[f"model.layers.{layer}.self_attn.k_proj.k_scale"] = ("float32", np.asarray(np.float32(1)))
    write_file(folder, arrays)
    where = ("hf_quant_config.json", config) if "quantization" in config else \
        ("config.json", {**model.config, "quantization_config": config})
    write_json(folder, *where)
    return model.config, arrays, values


def in_memory(values):
    memory = {"embed": values["model.embed_tokens.weight"], "lm_head": values["lm_head.weight"]}
    for layer in range(SIZES["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, parts in {"qkv": [f"self_attn.{x}_proj" for x in "qkv"], "o": ["self_attn.o_proj"],
                            "gate_up": ["mlp.gate_proj", "mlp.up_proj"], "down": ["mlp.down_proj"]}.items():
            memory[f"{layer}.{name}"] = np.concatenate([values[at + part + ".weight"] for part in parts])
    return memory


def check_scheme(folder, scheme):
    global passed
    _, _, values = make(folder, scheme)
    for dtype in ("auto", "f32"):
        out = os.path.join(folder, "dump")
        done = subprocess.run([DUMP, "--dump", folder, out, dtype], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (scheme, done.stderr)
        got = parse_dump(out)
        assert f"dtype.{'bf16' if dtype == 'auto' else 'f32'}" in got, (scheme, list(got)[:1])
        for name, expected in in_memory(values).items():
            same = got[name].shape == expected.shape and np.array_equal(got[name].view(np.uint32), expected.view(np.uint32))
            assert same or np.array_equal(got[name], expected), (scheme, dtype, name)
            passed += 1


def complete(folder, *flags):
    return subprocess.run([BIN, "run", folder, "Hello", "--device", "cpu", "--max-tokens", "12", "--temperature", "0",
                           "--ignore-eos", *flags], capture_output=True, timeout=120)


def check_run(folder, scheme):
    global passed
    make(folder, scheme)
    for flags in ((), ("--dtype", "float32")):
        first, second = (complete(folder, *flags) for _ in range(2))
        assert first.returncode == 0, (scheme, first.stderr)
        assert first.stdout and first.stdout == second.stdout, scheme
        passed += 1


def refused(folder, scheme, message, change=None, config=None):
    """`change` edits the arrays in place, `config` the configuration."""
    global passed
    model_config, arrays, _ = make(folder, scheme)
    if change:
        change(arrays)
        write_file(folder, arrays)
    if config:
        quant = copy.deepcopy(SCHEMES[scheme][0])
        config(quant)
        write_json(folder, "config.json", {**model_config, "quantization_config": quant})
    done = complete(folder)
    assert done.returncode == 3 and message in done.stderr.decode(), (message, done.returncode, done.stderr)
    passed += 1


def check_refusals(folder):
    o_proj = "model.layers.1.self_attn.o_proj."

    def put(suffix, index, value):
        return lambda arrays: arrays[o_proj + suffix][1].reshape(-1).__setitem__(index, value)

    def shape(suffix, array):
        return lambda arrays: arrays.__setitem__(o_proj + suffix, ("float32", array.astype(np.float32)))

    def weights(**changes):
        return lambda quant: quant["config_groups"]["group_0"]["weights"].update(changes)

    refused(folder, "ct fp8 block", o_proj + "weight element 5 is not a number", put("weight", 5, 0xFF))
    for value in (0.0, -1.0, np.nan, np.inf):
        refused(folder, "ct int8 channel", o_proj + "weight_scale holds the scale", put("weight_scale", 3, value))
    refused(folder, "ct fp8 tensor static", o_proj + "input_scale holds the scale", put("input_scale", 0, np.nan))
    refused(folder, "ct int8 channel", o_proj + "weight_scale has shape [1, 160], must have [160, 1]",
            shape("weight_scale", np.ones((1, 160))))
    refused(folder, "fp8 block", o_proj + "weight_scale_inv has shape [1, 2], must have [2, 2]",
            shape("weight_scale_inv", np.ones((1, 2))))
    refused(folder, "fp8 tensor", o_proj + "weight_scale has shape [2], must have one number", shape("weight_scale", np.ones(2)))
    refused(folder, "ct int8 channel", o_proj + "weight_scale is missing", lambda arrays: arrays.pop(o_proj + "weight_scale"))
    refused(folder, "modelopt", o_proj + "input_scale is missing", lambda arrays: arrays.pop(o_proj + "input_scale"))
    refused(folder, "ct int8 channel", "zero_point", shape("weight_zero_point", np.zeros(160)))
    refused(folder, "ct int8 weights alone", "is of type I8, quantization_config says F8_E4M3", config=weights(type="float"))
    refused(folder, "ct int8 channel", "the type of the weights", config=weights(type="float"))
    refused(folder, "ct ignore", "is of type BF16, quantization_config says", config=lambda q: q.update(ignore=["lm_head"]))
    refused(folder, "ct int8 channel", "is of type I8, supported: F32", config=lambda q: q.update(ignore=["re:.*"]))
    refused(folder, "ct int8 channel", "weights of 3 bits", config=weights(num_bits=3))
    refused(folder, "ct int8 channel", "asymmetric", config=weights(symmetric=False))
    refused(folder, "ct int8 channel", "scales per group", config=weights(strategy="group", group_size=128))
    refused(folder, "ct int8 channel", "one matrix here", config=lambda q: q.update(ignore=["q_proj"]))
    refused(folder, "ct int8 channel", "no pattern", config=lambda q: q.update(ignore=["re:("]))
    refused(folder, "ct int8 channel", "no pattern", config=lambda q: q.update(ignore=["re:(.*)*(.*)*(.*)*(.*)*[!?]"]))
    for name in ("pack-quantized", "nvfp4-pack-quantized", "marlin-24"):
        refused(folder, "ct int8 channel", f'format "{name}" is not supported', config=lambda q, name=name: q.update(format=name))
    for name, why in (("bitsandbytes", "is not supported"), ("mxfp4", "is gpt-oss's alone"), ("fbgemm_fp8", "is not supported")):
        refused(folder, "ct int8 channel", f'quant_method "{name}" {why}',
                config=lambda q, name=name: q.update(quant_method=name))
    refused(folder, "modelopt", 'quant_algo "W4A8_AWQ" is not supported', config=lambda q: q.update(quant_algo="W4A8_AWQ"))
    refused(folder, "fp8 block", "weight_block_size must be [128, 128]", config=lambda q: q.update(weight_block_size=[64, 64]))


def main():
    if not os.path.exists(DUMP):
        print(f"SKIP: no {DUMP}")
        sys.exit(77)
    for scheme in SCHEMES:
        with tempfile.TemporaryDirectory() as folder:
            check_scheme(folder, scheme)
    with tempfile.TemporaryDirectory() as folder:
        check_refusals(folder)
    for scheme in ("ct fp8 channel", "ct int8 channel", "ct int8 weights alone", "fp8 block"):
        with tempfile.TemporaryDirectory() as folder:
            check_run(folder, scheme)
    print(f"{passed} passed, 0 failed")


main()
