#!/usr/bin/env python3
"""Attention with every kind of mask agrees with numpy in f64 on the same numbers.

    python3 tests/oracle/attention_oracle.py

`reprise bench attention --dump` writes q, K, V and the output of a shape, whose pages are not adjacent. The independent
tools/mask_python.py determines the visible pairs and their scores. Needs numpy; exits with 77 without it.
"""
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.environ.get("REPRISE_SOURCE_DIR", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tools"))
try:
    import numpy as np
    import mask_python
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

BIN = os.environ.get("REPRISE_BIN", os.path.join(ROOT, "build/release/reprise"))
MASKS = [
    "causal", "sliding_window(33) && causal", "causal; soft_cap(2)", "causal && sliding_window(20); soft_cap(1.5)",
    "causal && (sliding_window(10) || sink(4))", "prefix_lm(40)", "causal && chunked(32)", "causal && document(30, 77, 100)",
    "causal && dilated(3)", "causal; alibi", "causal && sliding_window(50); alibi; soft_cap(3)",
    "causal && (h % 2 == 0 ? q - kv < 9 : kv >= max(0, q - 90) && !(kv % 5 == 1))",
    "causal && (abs(q - kv - 20) < 7 || kv == q); score = score > 1 ? min(score, 2.0) : score * 0.5 - 0.001 * (q - kv)",
    "param w = 17 in 1..64; param s = 2 in 0..8; causal && (q - kv < w || kv < s)",
    "causal && (q + kv) % 7 != 3 || kv == q",
]
CPU_SHAPES = [
    ["--kind", "decode", "--batch", "3", "--length", "1,130", "--heads", "4", "--kv-heads", "2", "--head-dim", "32"],
    ["--kind", "prefill", "--batch", "2", "--length", "131", "--heads", "6", "--kv-heads", "3", "--head-dim", "24", "--page", "32"],
]


def read(base, suffix, dtype, shape):
    raw = np.fromfile(base + suffix, np.float32 if dtype == "f32" else np.uint16)
    if dtype == "bf16":
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.reshape(shape).astype(np.float64)


def attention(case, q, k, v):
    """(batch, queries, heads, head_dim) of a dump's inputs."""
    program, env = mask_python.parse(case["mask"], heads=case["heads"]), mask_python.numpy_env()
    length, rows, group = case["length"], q.shape[1], case["heads"] // case["kv_heads"]
    at = np.arange(length - rows, length)[:, None]
    kv = np.arange(length)[None, :]
    out = np.empty(q.shape)
    for h in range(case["heads"]):
        seen = np.broadcast_to(program.function("sees", env)(at, kv, h, 0), (rows, length))
        for b in range(case["batch"]):
            scores = case["scale"] * q[b, :, h] @ k[b, h // group].T
            if program.score:
                scores = program.function("score", env)(scores, at, kv, h, 0)
            scores = np.where(seen, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[b, :, h] = weights @ v[b, h // group] / weights.sum(axis=-1, keepdims=True)
    return out


def dump(parent, masks, shapes, device, extra=()):
    """Files of every mask and shape, in folders of `parent`; their descriptions' paths."""
    paths = []
    for i, mask in enumerate(masks):
        for j, shape in enumerate(shapes):
            directory = os.path.join(parent, f"{i}-{j}")
            os.mkdir(directory)
            subprocess.run([BIN, "bench", "attention", "--device", device, "--mask", mask, "--dump", directory, *shape,
                            *(extra[(i + j) % len(extra)] if extra else [])], check=True, stdout=subprocess.DEVNULL, timeout=120)
            paths += [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.endswith(".json")]
    return paths


def check(path):
    with open(path) as file:
        case = json.load(file)
    base, dtype = path[:-len("json")], case["dtype"]
    rows = case["length"] if case["kind"] == "prefill" else 1
    heads = (case["batch"], rows, case["heads"], case["head_dim"])
    q, out = read(base, "q", "f32", heads), read(base, "out", dtype, heads)
    k, v = (read(base, kv, dtype, (case["batch"], case["kv_heads"], case["length"], case["head_dim"])) for kv in "kv")
    want = attention(case, q, k, v)
    error = np.linalg.norm(out - want) / np.linalg.norm(want)
    assert error <= (1e-6 if dtype == "f32" else 4e-3), (case, error)
    return dtype, error


def main():
    worst = {"f32": 0.0, "bf16": 0.0}
    types = [["--threads", "2", "--dtype", dtype] for dtype in ("bfloat16", "float32", "float32")]
    with tempfile.TemporaryDirectory() as parent:
        paths = dump(parent, MASKS, CPU_SHAPES, "cpu", types)
        assert len(paths) == len(MASKS) * 3, paths
        for path in paths:
            dtype, error = check(path)
            worst[dtype] = max(worst[dtype], error)
    print(f"{len(paths)} cases, relative error at most {worst['f32']:.1e} in f32, {worst['bf16']:.1e} in bf16")
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
