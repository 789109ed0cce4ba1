#!/usr/bin/env python3
"""The model families have the logits of a numpy transformer.

    python3 tests/oracle/families_oracle.py

Random models of every family and variant (family_variants.py) are written by the safetensors package. The same ids run
through the program and the reference (family_reference.py), in chunks and one at a time, and every row of logits is compared.
Needs numpy and safetensors; exits with 77 without them.
"""
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
try:
    import numpy as np
    from family_reference import forward
    from random_models import head_dim_of, write_model
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)
from family_variants import EXPERT_VARIANTS, STATE_VARIANTS, VARIANTS

TOKENS = 70


def program():
    build = os.path.dirname(os.environ.get("REPRISE_BIN", "build/release/reprise"))
    path = os.path.join(build, "tests", "test_model_stories260k")
    if not os.path.exists(path):
        print("SKIP: the test programs are not built")
        sys.exit(77)
    return path


def distance(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def error_of(binary, ids, chunks, tensor_core_dims, directory, seed, family, dtype, overrides):
    """The largest error of one variant over the chunks, each below its limit (compare)."""
    model = write_model(directory, family, dtype=dtype, seed=seed, **overrides)
    cores = dtype == "bf16" and head_dim_of(model.config) in tensor_core_dims
    want = forward(model, ids, dtype, cores)
    unrounded = forward(model, ids, dtype, activations="f32") if cores else None
    worst = 0.0
    for chunk in chunks:
        out = os.path.join(directory, "logits")
        subprocess.run([binary, "--logits", directory, out, dtype, str(chunk), *map(str, ids)], check=True)
        got = np.fromfile(out, np.float32).reshape(-1, model.config["vocab_size"])
        rows = [min(at + max(chunk, 1), TOKENS) - 1 for at in range(0, TOKENS, max(chunk, 1))]
        if cores:
            truth = unrounded[rows]
            error, limit = distance(got, truth), 1.25 * distance(want[rows], truth)
        else:
            error, limit = distance(got, want[rows]), 1e-5
            if dtype == "bf16":  # Gemma 4 rounds more often, and its scores are not scaled down
                limit = 1.5e-2 if family == "gemma4" else 4e-3
        assert error <= limit, (family, overrides, dtype, chunk, error, limit)
        worst = max(worst, error)
    return worst


def compare(binary, variants, chunks, tensor_core_dims=()):
    """Logits of every variant in f32 and bf16, fed in chunks (0: decode rows), against the reference.

    In bf16, heads of tensor_core_dims use tensor cores. There q and the softmax's weights are rounded too, the latter
    relative to the largest score of a unit of keys, which depends on the kernel; such a model amplifies a change of 1e-7
    to 1e-3 to 4e-3 of its logits. So these are compared with the model without any rounding of activations: the distance
    may exceed the rounded reference's own (5.5e-3 to 7.3e-3) by at most a quarter."""
    ids = np.random.default_rng(3).integers(0, 256, TOKENS)
    with tempfile.TemporaryDirectory() as parent, ThreadPoolExecutor(min(os.cpu_count(), 8)) as pool:
        cases = [(os.path.join(parent, f"{i}-{dtype}"), i, family, dtype, overrides)
                 for i, (family, overrides) in enumerate(variants) for dtype in ("f32", "bf16")]
        errors = list(pool.map(lambda case: (case[3], error_of(binary, ids, chunks, tensor_core_dims, *case)), cases))
    worst = {dtype: max(error for of, error in errors if of == dtype) for dtype in ("f32", "bf16")}
    print(f"{len(variants)} variants, relative error at most {worst['f32']:.1e} in f32, {worst['bf16']:.1e} in bf16")
    print("1 passed, 0 failed")


if __name__ == "__main__":
    compare(program(), VARIANTS + EXPERT_VARIANTS + STATE_VARIANTS, (0, 1, 7, 64))
