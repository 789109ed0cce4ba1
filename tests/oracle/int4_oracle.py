#!/usr/bin/env python3
"""Checkpoints with 4-bit weights, in every format that is read, are in memory what numpy makes of their specification.

A random model is written in each format by the `safetensors` package. What the loader has is dumped twice, as blocks
and with --dtype float32, and both must be numpy's float32 products, bit for bit: so nibbles, scales, zero points, the
order of columns and the rows of fused matrices are right. `reprise run` answers as a float32 model of the same values
does. Then files and configurations are damaged: each must be refused by name.
"""
import copy
import json
import os
import shutil
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
SIZES = {"hidden_size": 192, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 64, "num_hidden_layers": 2}
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
passed = 0


def e4m3(codes):
    exponent, mantissa = codes >> 3 & 15, codes & 7
    values = np.where(exponent, (1 + mantissa / 8) * 2.0 ** (exponent.astype(int) - 7), mantissa / 8 * 2.0 ** -6)
    return values.astype(np.float32)


def bf16(values):
    """Its bits, and the values that they are."""
    bits = encoded(values, "bf16").reshape(values.shape)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def words(nibbles):
    """int32 out of eight nibbles, the first in the lowest bits, along the last axis; padded with zeros."""
    pad = -nibbles.shape[-1] % 8
    nibbles = np.pad(nibbles.astype(np.uint32), [(0, 0)] * (nibbles.ndim - 1) + [(0, pad)])
    nibbles = nibbles.reshape(*nibbles.shape[:-1], -1, 8)
    return np.ascontiguousarray((nibbles << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32).view(np.int32))


def pairs(nibbles):
    return (nibbles[:, ::2] | nibbles[:, 1::2] << 4).astype(np.uint8)


def group_of(cols, group, order):
    """The group of each column; `order`: a random one, in which every group has its columns."""
    groups = np.arange(cols) // (group or cols)
    return order.permutation(groups) if order else groups


def integers(stem, full, random, group, zeros, scale_type, order=False):
    """Codes (N, K), zero points and scales (N, G), the scales' type and bits, and the values."""
    rows, cols = full.shape
    index = group_of(cols, group, random if order else None)
    count = index.max() + 1
    codes = random.integers(0, 16, (rows, cols), np.uint8)
    zero = random.integers(0, 16, (rows, count), np.uint8) if zeros else np.full((rows, count), 8, np.uint8)
    scale = (random.uniform(0.2, 1, (rows, count)) / 128).astype(np.float32)
    if scale_type == "bfloat16":
        stored, scale = bf16(scale)
    elif scale_type == "float16":
        stored = scale.astype(np.float16)
        scale = stored.astype(np.float32)
    else:
        stored = scale
    values = (codes.astype(np.float32) - zero[:, index]) * scale[:, index]
    return codes, zero, stored, index, values


def packed(stem, full, random, group, zeros=False, scale_type="bfloat16", order=False):
    codes, zero, scale, index, values = integers(stem, full, random, group, zeros, scale_type, order)
    arrays = {stem + "weight_packed": ("int32", words(codes)), stem + "weight_scale": (scale_type, scale),
              stem + "weight_shape": ("int64", np.array(full.shape, np.int64))}
    if zeros:
        arrays[stem + "weight_zero_point"] = ("int32", np.ascontiguousarray(words(zero.T).T))
    if order:
        arrays[stem + "weight_g_idx"] = ("int32", index.astype(np.int32))
    return arrays, values


def awq(stem, full, random, group):
    codes, zero, scale, _, values = integers(stem, full, random, group, True, "float16")
    def interleaved(array):  # (.., N): nibble i of a word is output AWQ_ORDER[i]
        return words(array.reshape(array.shape[0], -1, 8)[:, :, AWQ_ORDER].reshape(array.shape))
    return {stem + "qweight": ("int32", interleaved(codes.T)), stem + "qzeros": ("int32", interleaved(zero.T)),
            stem + "scales": ("float16", np.ascontiguousarray(scale.T))}, values


def gptq(stem, full, random, group, less_one=True, order=False):
    codes, zero, scale, index, values = integers(stem, full, random, group, True, "float16", order)
    if less_one:  # a stored 15 is a zero point of 16
        values = (codes.astype(np.float32) - (zero.astype(np.float32) + 1)[:, index]) * scale.astype(np.float32)[:, index]
    return {stem + "qweight": ("int32", np.ascontiguousarray(words(codes).T)), stem + "qzeros": ("int32", words(zero.T)),
            stem + "scales": ("float16", np.ascontiguousarray(scale.T)), stem + "g_idx": ("int32", index.astype(np.int32)),
            stem + "bias": ("float16", np.zeros(full.shape[0], np.float16))}, values


def fp4(stem, full, random, kind):
    rows, cols = full.shape
    codes = random.integers(0, 16, (rows, cols), np.uint8)
    arrays = {stem + ("weight" if kind == "modelopt" else "weight_packed"): ("uint8", pairs(codes))}
    if kind == "mxfp4":
        exponents = random.integers(115, 122, (rows, cols // 32), np.uint8)
        arrays[stem + "weight_scale"] = ("uint8", exponents)
        return arrays, E2M1[codes] * np.repeat(2.0 ** (exponents.astype(np.float32) - 127), 32, 1).astype(np.float32)
    scale = random.integers(1, 127, (rows, cols // 16), np.uint8)
    arrays[stem + "weight_scale"] = ("float8_e4m3fn", scale)
    if kind == "modelopt":
        whole = np.float32(random.uniform(1e-5, 2e-4))
        arrays |= {stem + "weight_scale_2": ("float32", whole), stem + "input_scale": ("float32", np.float32(0.01))}
        scale = e4m3(scale) * whole
    else:
        whole = np.float32(random.uniform(5e3, 9e4))
        arrays |= {stem + "weight_global_scale": ("float32", whole.reshape(1)),
                   stem + "input_global_scale": ("float32", np.float32([300]))}
        scale = e4m3(scale) / whole
    return arrays, E2M1[codes] * np.repeat(scale, 16, 1)


def ct(kind="int", strategy="group", group=128, symmetric=True, form="pack-quantized", **more):
    weights = {"num_bits": 4, "type": kind, "symmetric": symmetric, "dynamic": False, "strategy": strategy,
               "group_size": group, **more}
    inputs = {"num_bits": 4, "type": "float", "dynamic": "local"} if strategy == "tensor_group" else None
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}

# name -> (configuration, how a module is made)
FORMATS = {
    "ct g128": (ct(), lambda *a: packed(*a, 128)),
    "ct g32 asymmetric": (ct(group=32, symmetric=False), lambda *a: packed(*a, 32, zeros=True)),
    "ct g64 f16": (ct(group=64), lambda *a: packed(*a, 64, scale_type="float16")),
    "ct g256 f32 asymmetric": (ct(group=256, symmetric=False), lambda *a: packed(*a, 256, zeros=True, scale_type="float32")),
    "ct channel": (ct(strategy="channel", group=None), lambda *a: packed(*a, None)),
    "ct actorder": (ct(group=64, actorder="group"), lambda *a: packed(*a, 64, order=True)),
    "ct nvfp4": (ct("float", "tensor_group", 16, form="nvfp4-pack-quantized"), lambda *a: fp4(*a, "nvfp4")),
    "ct mxfp4": (ct("float", "group", 32, form="mxfp4-pack-quantized"), lambda *a: fp4(*a, "mxfp4")),
    "modelopt nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]},
                       lambda *a: fp4(*a, "modelopt")),
    "awq g64": (AWQ, lambda *a: awq(*a, 64)),
    "awq g128": ({**AWQ, "group_size": 128, "version": "GEMM"}, lambda *a: awq(*a, 128)),
    "awq channel": ({**AWQ, "group_size": -1}, lambda *a: awq(*a, None)),
    "gptq": (GPTQ, lambda *a: gptq(*a, 32)),
    "gptq v2": ({**GPTQ, "checkpoint_format": "gptq_v2", "group_size": 128}, lambda *a: gptq(*a, 128, less_one=False)),
    "gptq act-order": ({**GPTQ, "desc_act": True, "group_size": 64}, lambda *a: gptq(*a, 64, order=True)),
    "gptq channel": ({**GPTQ, "group_size": -1}, lambda *a: gptq(*a, None)),
}


def write_file(folder, arrays):
    arrays = {name: (kind, np.ascontiguousarray(array).reshape(np.shape(array))) for name, (kind, array) in arrays.items()}
    safetensors.serialize_file({name: safetensors.TensorSpec(dtype=kind, shape=list(array.shape), data_ptr=array.ctypes.data,
                                                             data_len=array.nbytes) for name, (kind, array) in arrays.items()},
                               os.path.join(folder, "model.safetensors"), {"format": "pt"})


def make(folder, name, family="llama", **sizes):
    """Writes the model; returns config.json, its arrays, and the values of all tensors."""
    config, module = copy.deepcopy(FORMATS[name][0]), FORMATS[name][1]
    model = write_model(folder, family, dtype="bf16", tied=False, seed=3, **{**SIZES, **sizes})
    random = np.random.default_rng(7)
    arrays, values = {}, {}
    for tensor, full in model.tensors.items():
        if tensor.endswith("_proj.weight"):
            more, values[tensor] = module(tensor[:-len("weight")], full, random)
            arrays |= more
        else:
            arrays[tensor], values[tensor] = ("bfloat16", encoded(full, "bf16").reshape(full.shape)), full
    write_file(folder, arrays)
    config = {**model.config, "quantization_config": config}
    write_json(folder, "config.json", config)
    return config, arrays, values


def write_values(folder, source, values):
    """A float32 model of the same values beside it."""
    config = {key: value for key, value in source.items() if key != "quantization_config"}
    config["torch_dtype"] = "float32"
    write_json(folder, "config.json", config)
    write_file(folder, {name: ("float32", value.astype(np.float32)) for name, value in values.items()})


def check_values(folder, name):
    global passed
    _, _, values = make(folder, name)
    for dtype in ("auto", "f32"):
        out = os.path.join(folder, "dump")
        done = subprocess.run([DUMP, "--dump", folder, out, dtype], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (name, done.stderr)
        got = parse_dump(out)
        for layer in range(SIZES["num_hidden_layers"]):
            for role, parts in {"qkv": [f"self_attn.{x}_proj" for x in "qkv"], "o": ["self_attn.o_proj"],
                                "gate_up": ["mlp.gate_proj", "mlp.up_proj"], "down": ["mlp.down_proj"]}.items():
                want = np.concatenate([values[f"model.layers.{layer}.{part}.weight"] for part in parts])
                assert np.array_equal(got[f"{layer}.{role}"], want), (name, dtype, layer, role)
                passed += 1


def run(folder, *flags):
    return subprocess.run([BIN, "run", folder, "Hello", "--device", "cpu", "--max-tokens", "12", "--temperature", "0",
                           "--ignore-eos", *flags], capture_output=True, timeout=120)


def check_answers(folder, name):
    """The text is that of a float32 model of the same values, and so are the logits but for the rounding of bf16 inputs."""
    global passed
    model, plain = os.path.join(folder, "model"), os.path.join(folder, "plain")
    config, _, values = make(model, name)
    shutil.copytree(model, plain)
    write_values(plain, config, values)
    first, exact = run(model), run(model, "--dtype", "float32")
    assert first.returncode == 0 and first.stdout, (name, first.stderr)
    assert exact.stdout == run(plain).stdout, (name, exact.stdout)
    done = subprocess.run([BIN, "eval", "ppl", os.path.abspath(__file__), "--model", model, "--against", plain, "--tokens",
                           "128", "--device", "cpu", "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lost = json.loads(done.stdout)["against"]
    assert lost["kl_mean"] < 5e-5 and lost["cosine_min"] > 0.999 and lost["logit_difference_mean"] < 0.01, (name, lost)
    passed += 1


def check_family(folder, family, name):
    """One tensor that several modules share; rows that are brought into another order."""
    global passed
    config, _, values = make(folder, name, family, hidden_size=192, num_attention_heads=3, num_key_value_heads=3)
    first, exact = run(folder), run(folder, "--dtype", "float32")
    assert first.returncode == 0 and first.stdout, (family, name, first.stderr)
    write_values(folder, config, values)
    assert exact.stdout == run(folder).stdout, (family, name)
    passed += 1


def dump_of(folder, dtype):
    out = os.path.join(folder, "dump")
    done = subprocess.run([DUMP, "--dump", folder, out, dtype], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return parse_dump(out)


def quantize(*args, code=0):
    done = subprocess.run([BIN, "quantize", *args], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done
    return done.stdout + done.stderr


def read_file(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        return dict(safetensors.deserialize(file.read()))


def check_written(parent, *flags, group):
    """What `reprise quantize --scheme int4` writes is standard, near the weights, and read back as numpy reads it."""
    global passed
    folder, out = os.path.join(parent, "model"), os.path.join(parent, f"out{group}{len(flags)}")
    model = write_model(folder, "llama", dtype="bf16", tied=False, seed=3, **SIZES)
    said = quantize(folder, out, "--scheme", "int4", "--group", str(group), *flags)
    tensors = read_file(out)
    with open(os.path.join(out, "config.json"), encoding="utf-8") as file:
        quant = json.load(file)["quantization_config"]
    assert quant["format"] == "pack-quantized" and quant["quant_method"] == "compressed-tensors", quant
    weights = quant["config_groups"]["group_0"]["weights"]
    assert (weights["num_bits"], weights["type"], weights["strategy"], weights["group_size"], weights["symmetric"]) == \
        (4, "int", "group", group, True), weights
    assert quant["config_groups"]["group_0"]["input_activations"] is None
    got, left = dump_of(out, "f32"), ["lm_head"]
    for name, full in model.tensors.items():
        if not name.endswith("_proj.weight") or full.shape[1] % group:
            assert name in tensors and name + "_packed" not in tensors, name
            left += [name[:-len(".weight")]] if name.endswith("_proj.weight") else []
            continue
        codes, scales = tensors[name + "_packed"], tensors[name + "_scale"]
        shape = tensors[name + "_shape"]
        assert (codes["dtype"], codes["shape"]) == ("I32", [full.shape[0], full.shape[1] // 8]), name
        assert (scales["dtype"], scales["shape"]) == ("BF16", [full.shape[0], full.shape[1] // group]), name
        assert np.frombuffer(shape["data"], np.int64).tolist() == list(full.shape), name
        bytes_ = np.frombuffer(codes["data"], np.uint8).reshape(full.shape[0], -1)
        nibbles = np.stack([bytes_ & 15, bytes_ >> 4], -1).reshape(full.shape).astype(np.float32) - 8
        scale = (np.frombuffer(scales["data"], np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(full.shape[0], -1)
        wide = np.repeat(scale, group, 1)
        values, lost = nibbles * wide, np.abs(nibbles * wide - full)
        role = name[:-len(".weight")].rsplit(".", 1)[1]
        if role in ("o_proj", "down_proj"):
            assert np.array_equal(got[f"{name.split('.')[2]}.{role[:-5]}"], values), name
        inside = (nibbles > -8) & (nibbles < 7)
        if not flags:
            assert (lost[inside] <= wide[inside] * 0.5001).all(), name
        assert (lost ** 2).sum() < 0.02 * (full ** 2).sum(), (name, (lost ** 2).sum() / (full ** 2).sum())
    assert quant["ignore"] == left or sorted(quant["ignore"]) == sorted(left), (quant["ignore"], left)
    assert len(left) == 1 or f"no multiple of a group of {group}: it stays as it is" in said, said
    done = run(out)
    assert done.returncode == 0 and done.stdout, done.stderr
    passed += 1
    return said, got


def read_fp4(tensors, name, shape, scheme):
    """Values of a module that was written, as its format is specified."""
    group = 16 if scheme == "nvfp4" else 32
    codes, scales = tensors[name + "_packed"], tensors[name + "_scale"]
    assert (codes["dtype"], codes["shape"]) == ("U8", [shape[0], shape[1] // 2]), name
    assert (scales["dtype"], scales["shape"]) == ("F8_E4M3" if group == 16 else "U8", [shape[0], shape[1] // group]), name
    bytes_ = np.frombuffer(codes["data"], np.uint8).reshape(shape[0], -1)
    scale = np.frombuffer(scales["data"], np.uint8).reshape(shape[0], -1)
    if group == 16:
        whole = tensors[name + "_global_scale"]
        assert (whole["dtype"], whole["shape"]) == ("F32", [1]), name
        scale = e4m3(scale) / np.frombuffer(whole["data"], np.float32)[0]
    else:
        scale = np.exp2(scale.astype(np.float32) - 127)
    values = E2M1[np.stack([bytes_ & 15, bytes_ >> 4], -1).reshape(shape)]
    return values * np.repeat(scale, group, 1), np.repeat(scale, group, 1)


def check_written_fp4(parent, scheme, *flags):
    """`--scheme nvfp4|mxfp4`: near the weights, the loader has the values, and q, k, v and gate, up share a global scale."""
    global passed
    folder, out = os.path.join(parent, "model"), os.path.join(parent, f"{scheme}{len(flags)}")
    model = write_model(folder, "llama", dtype="bf16", tied=False, seed=3, **{**SIZES, "intermediate_size": 200})
    said = quantize(folder, out, "--scheme", scheme, *flags)
    tensors, got, wholes = read_file(out), dump_of(out, "f32"), {}
    with open(os.path.join(out, "config.json"), encoding="utf-8") as file:
        quant = json.load(file)["quantization_config"]
    weights = quant["config_groups"]["group_0"]["weights"]
    group = 16 if scheme == "nvfp4" else 32
    assert quant["format"] == scheme + "-pack-quantized" and quant["config_groups"]["group_0"]["input_activations"] is None
    assert weights == {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False, "group_size": group,
                       "strategy": "tensor_group" if group == 16 else "group",
                       "scale_dtype": "torch.float8_e4m3fn" if group == 16 else "torch.uint8"}, weights
    for name, full in model.tensors.items():
        if not name.endswith("_proj.weight") or full.shape[1] % group:  # the down projections have 200 columns
            assert name in tensors and name + "_packed" not in tensors, name
            assert not name.endswith("_proj.weight") or name[:-7] in quant["ignore"] and f"{name[:-7]} has 200 columns" in said
            continue
        values, scale = read_fp4(tensors, name, full.shape, scheme)
        lost = np.abs(values - full)
        role = name[:-len(".weight")].rsplit(".", 1)[1]
        if role == "o_proj":
            assert np.array_equal(got[f"{name.split('.')[2]}.o"], values), name
        if not flags:
            nearest = np.abs(np.abs(full)[..., None] - E2M1[:8] * scale[..., None]).min(-1)
            assert (lost <= nearest * 1.0001 + 1e-12).all(), name
        assert (lost ** 2).sum() < (0.03 if flags else 0.02) * (full ** 2).sum(), (name, (lost ** 2).sum() / (full ** 2).sum())
        if group == 16:
            whole = np.frombuffer(tensors[name + "_global_scale"]["data"], np.float32)[0]
            site = (name.split(".")[2], {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "mlp", "up_proj": "mlp"}.get(role, role))
            assert np.log2(whole) == np.rint(np.log2(whole)) and wholes.setdefault(site, whole) == whole, name
    done = run(out)
    assert done.returncode == 0 and done.stdout, done.stderr
    if "--report" in flags:
        lines = [line.split() for line in said.splitlines() if "outputs" in line]
        assert len(lines) == 12, said
        for words_ in lines:
            assert float(words_[words_.index("outputs") + 1]) > float(words_[words_.index("nearest") + 1]), words_
    passed += 1


def check_gptq(parent):
    global passed
    said, _ = check_written(parent, "--calibrate", os.path.abspath(__file__), "--calibrate-tokens", "300", "--report", group=32)
    lines = [line for line in said.splitlines() if "outputs" in line]
    assert len(lines) == 14, said
    for line in lines:
        words_ = line.split()
        better, nearest = float(words_[words_.index("outputs") + 1]), float(words_[words_.index("nearest") + 1])
        assert better > nearest, line
    folder = os.path.join(parent, "model")
    assert "--group: requires --scheme int4" in quantize(folder, folder + "x", "--group", "64", code=2)
    assert "quantized weights already" in quantize(os.path.join(parent, "out325"), folder + "x", "--scheme", "int4", code=3)
    passed += 1


def check_at_load(folder):
    """--quantization int4, nvfp4, mxfp4, also of rows that are no multiple of a group, answers the same twice and not as bf16 does."""
    global passed
    write_model(folder, "llama", dtype="bf16", tied=False, seed=3, **SIZES)
    for scheme, name in (("int4", "INT4_128"), ("nvfp4", "NVFP4"), ("mxfp4", "MXFP4")):
        first, second = run(folder, "--quantization", scheme), run(folder, "--quantization", scheme, "--threads", "1")
        assert first.returncode == 0 and first.stdout == second.stdout, first
        inspected = subprocess.run([BIN, "inspect", folder, "--quantization", scheme, "--device", "cpu"], capture_output=True, text=True, timeout=60)
        assert f"{name} 100.0 %" in inspected.stdout and "inputs of bf16" in inspected.stdout, inspected
    done = run(folder, "--quantization", "int4", "--dtype", "float32")
    assert done.returncode == 2 and b"quantized weights require bf16" in done.stderr, done
    passed += 1


def check_not_yet(folder):
    """Experts are refused by name."""
    global passed
    experts = os.path.join(folder, "experts")
    config = write_model(experts, "qwen3_moe", dtype="bf16").config
    for scheme in ("int4", "nvfp4", "mxfp4"):
        done = run(experts, "--quantization", scheme)
        assert done.returncode == 3 and "4-bit weights of experts are not supported" in done.stderr.decode(), done
        passed += 1
    write_json(experts, "config.json", {**config, "quantization_config": ct()})
    done = run(experts)
    assert done.returncode == 3 and b"4-bit weights of experts are not supported" in done.stderr, done
    passed += 1


def refused(folder, name, message, arrays=None, config=None):
    """`arrays` and `config` edit the model in place."""
    global passed
    made_config, made_arrays, _ = make(folder, name)
    if arrays:
        arrays(made_arrays)
        write_file(folder, made_arrays)
    if config:
        config(made_config["quantization_config"])
        write_json(folder, "config.json", made_config)
    done = run(folder)
    assert done.returncode == 3 and message in done.stderr.decode(), (name, message, done.returncode, done.stderr)
    passed += 1


def check_refusals(folder):
    o = "model.layers.1.self_attn.o_proj."

    def put(suffix, value):
        return lambda arrays: arrays[o + suffix][1].reshape(-1).__setitem__(5, value)

    def replace(suffix, kind, array):
        return lambda arrays: arrays.__setitem__(o + suffix, (kind, array))

    def drop(suffix):
        return lambda arrays: arrays.pop(o + suffix)

    refused(folder, "ct g128", f"tensor {o}weight_scale is missing", drop("weight_scale"))
    refused(folder, "ct g128", f"tensor {o}weight_packed is missing", drop("weight_packed"))
    refused(folder, "ct g128", "has shape [192, 3], must have [192, 2]", replace("weight_scale", "bfloat16", np.zeros((192, 3), np.uint16)))
    refused(folder, "ct g128", "is of type I8, must be I32", replace("weight_packed", "int8", np.zeros((192, 32), np.int8)))
    refused(folder, "ct g128", f"{o}weight_scale holds a scale that is not finite", put("weight_scale", 0x7F80))
    refused(folder, "ct g128", f"{o}weight_zero_point is there, but quantization_config says symmetric",
            replace("weight_zero_point", "int32", np.zeros((24, 2), np.int32)))
    refused(folder, "ct g32 asymmetric", f"tensor {o}weight_zero_point is missing", drop("weight_zero_point"))
    refused(folder, "ct actorder", f"{o}weight_g_idx puts column 5 into group 4: there is no such group", put("weight_g_idx", 4))
    refused(folder, "ct actorder", "it is full", replace("weight_g_idx", "int32", np.zeros(256, np.int32)))
    refused(folder, "ct actorder", "must have one number a column", replace("weight_g_idx", "int32", np.zeros(255, np.int32)))
    refused(folder, "ct nvfp4", "weight_global_scale holds 0: it must be finite and above 0",
            replace("weight_global_scale", "float32", np.zeros(1, np.float32)))
    refused(folder, "ct nvfp4", f"{o}weight_scale holds a scale that is not finite", put("weight_scale", 0x7F))
    refused(folder, "ct mxfp4", f"{o}weight_scale holds a scale that is not finite, or too large", put("weight_scale", 255))
    refused(folder, "gptq", "has shape [7, 192], must have [8, 192]", replace("scales", "float16", np.zeros((7, 192), np.float16)))
    refused(folder, "awq g64", f"tensor {o}qzeros is missing", drop("qzeros"))
    refused(folder, "gptq", "tensor model.layers.1.self_attn.o_proj.bias is there, but config.json says",
            lambda arrays: arrays[o + "bias"][1].__setitem__(3, 1))

    def key(name, value):
        return lambda config: config.__setitem__(name, value)

    def weights(**keys):
        return lambda config: config["config_groups"]["group_0"]["weights"].update(keys)

    refused(folder, "ct g128", "groups are multiples of 32 columns", config=weights(group_size=48))
    refused(folder, "ct g128", "scales per tensor are not supported", config=weights(strategy="tensor"))
    refused(folder, "ct g128", "weights of 3 bits are not supported, 8 and 4 are", config=weights(num_bits=3))
    refused(folder, "ct g128", "dynamic weights are not supported", config=weights(dynamic=True))
    refused(folder, "ct g128", '.format "int-quantized" is not supported for weights of this type', config=key("format", "int-quantized"))
    refused(folder, "ct g128", '.format "marlin-24" is not supported', config=key("format", "marlin-24"))
    refused(folder, "ct nvfp4", "with weights.group_size 16 (nvfp4) or 32 (mxfp4)", config=weights(group_size=64))
    refused(folder, "awq g64", '.version "gemv" is not supported', config=key("version", "gemv"))
    refused(folder, "awq g64", ".bits: weights of 8 bits are not supported, 4 are", config=key("bits", 8))
    refused(folder, "awq g64", ".zero_point false is not supported", config=key("zero_point", False))
    refused(folder, "gptq", ".bits: weights of 3 bits are not supported, 4 are", config=key("bits", 3))
    refused(folder, "gptq", '.checkpoint_format "marlin" is not supported', config=key("checkpoint_format", "marlin"))
    refused(folder, "gptq", ".dynamic: modules with settings of their own", config=key("dynamic", {"+:.*": {"bits": 8}}))
    refused(folder, "gptq", ".group_size 24 is not supported", config=key("group_size", 24))
    refused(folder, "modelopt nvfp4", ".group_size must be 16", config=key("group_size", 32))


def main():
    for name in FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            check_values(folder, name)
            check_answers(folder, name)
    for family, name in (("phi3", "ct g32 asymmetric"), ("phi3", "gptq act-order"), ("glm", "awq g64"), ("cohere", "ct nvfp4")):
        with tempfile.TemporaryDirectory() as folder:
            check_family(folder, family, name)
    with tempfile.TemporaryDirectory() as parent:
        for group in (32, 64, 128):
            check_written(parent, group=group)
        check_gptq(parent)
        for scheme in ("nvfp4", "mxfp4"):
            check_written_fp4(parent, scheme)
            check_written_fp4(parent, scheme, "--calibrate", os.path.abspath(__file__), "--calibrate-tokens", "300", "--report")
        check_at_load(os.path.join(parent, "load"))
    with tempfile.TemporaryDirectory() as folder:
        check_not_yet(folder)
    with tempfile.TemporaryDirectory() as folder:
        check_refusals(folder)
    print(f"{passed} checks passed")


main()
