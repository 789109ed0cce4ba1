#!/usr/bin/env python3
"""Models written by the `safetensors` package load bit for bit, and files that it refuses are refused.

    python3 tests/oracle/safetensors_oracle.py [--bin build/release/reprise] [--count 400] [--seed 1]

Needs numpy and safetensors; without them, or without the test programs of the build, it prints why and
exits with 77. First random models of several families, types, shards and heads are written and loaded,
and compared with numpy's values. Then valid files are damaged at random, and the verdicts of both
readers are compared; where ours is stricter on purpose the reason must be listed.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
try:
    import numpy as np
    import safetensors
    from random_models import rounded, write_model
    from safetensors_dump import parse_dump
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

# What we refuse and the package accepts, by a piece of our message.
STRICTER = ("more than 8 dimensions", "duplicate object key", "at most 65536", "too many values",
            # jansson reads no NUL in a string, and integers up to 2^63 - 1 only.
            "\\u0000 is not allowed", "too big integer", "__metadata__ must hold strings only")


# Families whose rows are neither fused nor reordered in the file (families_oracle.py has the others).
PLAIN = ("llama", "mistral", "qwen2", "qwen3", "gemma2")


def expected_memory(model, dtype):
    """What the loader must have in memory: rows joined, matrices in `dtype`, vectors in f32."""
    tensors = model.tensors

    def matrix(*names):
        return rounded(np.concatenate([tensors[name] for name in names]), dtype)

    memory = {f"dtype.{dtype}": np.zeros(0), "embed": matrix("model.embed_tokens.weight"),
              "final_norm": tensors["model.norm.weight"]}
    memory["lm_head"] = matrix("lm_head.weight") if "lm_head.weight" in tensors else memory["embed"]
    for layer in range(model.config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        groups = {"qkv": [f"self_attn.{x}_proj" for x in "qkv"], "o": ["self_attn.o_proj"],
                  "gate_up": ["mlp.gate_proj", "mlp.up_proj"], "down": ["mlp.down_proj"]}
        for name, parts in groups.items():
            memory[f"{layer}.{name}"] = matrix(*[at + part + ".weight" for part in parts])
            if at + parts[0] + ".bias" in tensors:
                memory[f"{layer}.{name}_bias"] = np.concatenate(
                    [tensors[at + part + ".bias"] for part in parts])
        norms = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
                 "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
        if model.family == "gemma2":
            norms.update({"mlp_norm": "pre_feedforward_layernorm", "attn_post_norm": "post_attention_layernorm",
                          "mlp_post_norm": "post_feedforward_layernorm"})
        for name, tensor in norms.items():
            if at + tensor + ".weight" in tensors:
                memory[f"{layer}.{name}"] = tensors[at + tensor + ".weight"]
    return memory


def check_model(program, directory, model, wanted):
    """wanted: auto, f32 or bf16. Returns an error text or None."""
    dtype = wanted if wanted != "auto" else "bf16" if model.dtype == "bf16" else "f32"
    out = os.path.join(directory, "dump")
    done = subprocess.run([program, "--dump", directory, out, wanted], capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip()
    got, expected = parse_dump(out), expected_memory(model, dtype)
    if set(got) != set(expected):
        return f"names differ: {sorted(set(got) ^ set(expected))}"
    for name, values in expected.items():
        if not np.array_equal(got[name].reshape(-1).view(np.uint32),
                              np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)):
            return f"{name} differs"
    return None


def compare_models(program, seed):
    cases, failures = 0, 0
    for family in PLAIN:
        for dtype in ("f32", "f16", "bf16"):
            for shards, tied in ((1, True), (1, False), (3, True), (3, False)):
                with tempfile.TemporaryDirectory() as directory:
                    overrides = {}
                    if family in ("llama", "qwen3") and not tied:
                        overrides["attention_bias"] = True
                    if family == "llama" and shards == 3:
                        overrides["mlp_bias"] = True
                    model = write_model(directory, family, dtype, shards, tied, seed + cases, **overrides)
                    for wanted in ("auto", "f32", "bf16"):
                        cases += 1
                        error = check_model(program, directory, model, wanted)
                        if error:
                            failures += 1
                            print(f"FAIL {family} {dtype} shards={shards} tied={tied} as {wanted}: {error}")
    print(f"models: {cases} loads, {failures} differ")
    return failures


def damaged(rng, header, data):
    """Damages a valid file in one place; returns its bytes."""
    text = json.dumps(header, separators=(",", ":"))
    names = [name for name in header if name != "__metadata__"]
    kind = rng.randrange(10)
    if kind < 4:  # an entry
        entry = header[rng.choice(names)]
        field = rng.choice(["dtype", "shape", "data_offsets", "data_offsets"])
        if field == "dtype":
            entry["dtype"] = rng.choice(["F16", "F32", "I64", "BOOL", "F8_E4M3", "F4", "X", 1, None])
        elif field == "shape":
            entry["shape"] = rng.choice([[], [0], entry["shape"][::-1], entry["shape"] + [1],
                                         [2**32, 2**32], [-1], [1.0], "x", [2**63 - 1, 2], [1] * 9])
        else:
            offsets = entry["data_offsets"]
            offsets[rng.randrange(2)] += rng.choice([-8, -1, 1, 4, 2**40])
        text = json.dumps(header, separators=(",", ":"))
    elif kind == 4:  # a character
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice('{}[]",:0 9x\\') + text[at + 1:]
    elif kind == 5:  # an entry twice, or gone
        name = rng.choice(names)
        if rng.randrange(2):
            text = text[:-1] + f',"{name}":{json.dumps(header[name])}}}'
        else:
            del header[name]
            text = json.dumps(header)
    elif kind == 6:  # white space, which is allowed
        text = rng.choice([" ", "\n", ""]) + text + " " * rng.randrange(9)
    elif kind == 7:
        data = data + b"\0" * rng.randrange(3) if rng.randrange(2) else data[:len(data) - rng.randrange(5)]
    encoded = text.encode()
    length = len(encoded)
    if kind == 8:
        length += rng.choice([-1, 1, -8, 2**20, 2**40, 2**63 - length])
    content = length.to_bytes(8, "little") + encoded + data
    return content[:rng.randrange(len(content))] if kind == 9 else content


def good_parts(rng):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for i in range(rng.randrange(1, 5)):
        dtype, size = rng.choice([("F32", 4), ("BF16", 2), ("U8", 1), ("I64", 8)])
        shape = [rng.randrange(0, 5) for _ in range(rng.randrange(0, 4))]
        count = int(np.prod(shape)) if shape else 1
        header[f"t{i}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + count * size]}
        at += count * size
    return header, bytes(at)


def package_verdict(content):
    try:
        safetensors.deserialize(content)
        return None
    except Exception as error:  # whatever it raises is a refusal
        return str(error) or type(error).__name__


def compare_verdicts(program, count, seed):
    rng = random.Random(seed)
    accepted = failures = 0
    with tempfile.TemporaryDirectory() as top:
        directories, verdicts, contents = [], [], []
        for i in range(count):
            content = damaged(rng, *good_parts(rng))
            directory = os.path.join(top, str(i))
            os.mkdir(directory)
            with open(os.path.join(directory, "model.safetensors"), "wb") as file:
                file.write(content)
            directories.append(directory)
            contents.append(content)
            verdicts.append(package_verdict(content))
        done = subprocess.run([program, "--verdict", *directories], capture_output=True, text=True, check=True)
        ours = done.stdout.splitlines()
        assert len(ours) == count, done.stderr
        for our, theirs, content in zip(ours, verdicts, contents):
            accepted += our == "ok"
            if (our == "ok") == (theirs is None):
                continue
            if theirs is None and any(reason in our for reason in STRICTER):
                continue
            failures += 1
            print(f"FAIL ours: {our}; the package: {theirs or 'ok'}; file {content[:300]!r}")
    print(f"verdicts: {count} files, {accepted} accepted, {failures} differ")
    return failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=os.environ.get("REPRISE_BIN", "build/release/reprise"))
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    programs = [os.path.join(os.path.dirname(args.bin), "tests", name)
                for name in ("test_model_weights", "test_model_safetensors")]
    for program in programs:
        if not os.path.exists(program):
            print(f"SKIP: {program} is not built")
            sys.exit(77)
    failures = compare_models(programs[0], args.seed)
    failures += compare_verdicts(programs[1], args.count, args.seed)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
