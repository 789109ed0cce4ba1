#!/usr/bin/env python3
"""Values of GGUF's blocks equal those of the `gguf` package bit for bit: random blocks of every type, and blocks with the
extremes of their fields. Then files of every type are loaded: each matrix in memory holds the package's values, with the
rows of q and k back in the network's order.
"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
try:
    import gguf
    import numpy as np
    from gguf import GGML_QUANT_SIZES
    from gguf import GGMLQuantizationType as T
    from gguf_files import stored_values, write_gguf
    from safetensors_dump import parse_dump
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

SOURCE = os.environ.get("REPRISE_SOURCE_DIR", ".")
BIN = os.environ.get("REPRISE_BIN", os.path.join(SOURCE, "build", "release", "reprise"))
TESTS = os.path.join(os.path.dirname(BIN), "tests")
DEMO = os.path.join(SOURCE, "models", "demo")
TYPES = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL,
         T.IQ4_XS, T.MXFP4]


def blocks_of(kind, rng):
    """Random bytes, then each byte 0 and 255 in turn, then all of them."""
    size = GGML_QUANT_SIZES[kind][1]
    random = rng.integers(0, 256, (400, size), dtype=np.uint8)
    edges = np.repeat(rng.integers(0, 256, (1, size), dtype=np.uint8), 2 * size, 0)
    edges[np.arange(size), np.arange(size)] = 0
    edges[np.arange(size) + size, np.arange(size)] = 255
    return np.concatenate([random, edges, np.zeros((1, size), np.uint8), np.full((1, size), 255, np.uint8)])


def check_values(folder):
    rng = np.random.default_rng(1)
    for kind in TYPES:
        raw = blocks_of(kind, rng)
        source, out = os.path.join(folder, "blocks"), os.path.join(folder, "values")
        raw.tofile(source)
        subprocess.run([os.path.join(TESTS, "test_quant_matmul_blocks"), "--dequantize", str(int(kind)), source, out], check=True)
        got = np.fromfile(out, np.float32)
        with np.errstate(all="ignore"):
            want = np.asarray(gguf.quants.dequantize(raw, kind), np.float32).reshape(-1)
        assert got.shape == want.shape, kind.name
        equal = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
        assert equal.all(), f"{kind.name}: value {np.flatnonzero(~equal)[0]}: {got[~equal][0]!r} is not {want[~equal][0]!r}"


def fused(values):
    """The matrices as the network has them, by the names of the dump."""
    layers = max(int(n.split(".")[2]) for n in values if n.startswith("model.layers.")) + 1
    out = {"embed": values["model.embed_tokens.weight"], "final_norm": values["model.norm.weight"]}
    parts = {"qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "o": ("self_attn.o_proj",),
             "gate_up": ("mlp.gate_proj", "mlp.up_proj"), "down": ("mlp.down_proj",), "attn_norm": ("input_layernorm",)}
    for layer in range(layers):
        for name, modules in parts.items():
            out[f"{layer}.{name}"] = np.concatenate([values[f"model.layers.{layer}.{m}.weight"] for m in modules])
    return out


def check_files(folder):
    for kind in ["F16", "Q8_0", "Q5_0", "Q4_K_M", "Q3_K", "IQ4_XS", "MXFP4"]:
        path, out = os.path.join(folder, f"{kind}.gguf"), os.path.join(folder, "dump")
        write_gguf(DEMO, path, kind)
        subprocess.run([os.path.join(TESTS, "test_model_weights"), "--dump", path, out, "f32"], check=True, stderr=subprocess.DEVNULL)
        got, want = parse_dump(out), fused(stored_values(DEMO, kind))
        for name, values in want.items():
            assert np.array_equal(got[name].reshape(values.shape).view(np.uint32), values.view(np.uint32)), f"{kind}: {name}"


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_values(folder)
        check_files(folder)
    print(f"values of {len(TYPES)} types and 7 files are those of the package")


if __name__ == "__main__":
    main()
