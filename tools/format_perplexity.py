#!/usr/bin/env python3
"""Perplexity of a model in every format that is served, beside bf16: makes each checkpoint and file, runs
`reprise eval ppl --against` on it, and prints a table in Markdown.

    tools/format_perplexity.py MODEL_DIR TEXT [--calibrate TEXT] [--tokens N] [--only NAME,..] [--window N] [--threads N]
    tools/format_perplexity.py --write-demo-text OUT --seed 1

Runs build/release/reprise, or REPRISE_BIN, on the CPU. Needs numpy, safetensors and gguf (.venv). Checkpoints are those of
`reprise quantize`; FP8 with 128 x 128 blocks and GGUF files are written here, GGUF's by the `gguf` package or, for the types
that it only reads, by the simple quantizers of tests/support/gguf_files.py, which search no scales as llama.cpp does.
"""
import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path += [os.path.join(ROOT, "tests", "support"), os.path.dirname(os.path.abspath(__file__))]
BIN = os.environ.get("REPRISE_BIN", os.path.join(ROOT, "build", "release", "reprise"))
GGUF = ["Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K", "Q4_1", "Q4_0", "IQ4_XS", "IQ4_NL", "MXFP4", "Q3_K", "Q2_K"]


def run(*arguments):
    done = subprocess.run([BIN, *arguments], capture_output=True, text=True, timeout=3000)
    if done.returncode != 0:
        raise RuntimeError(f"{arguments}: {done.stderr}")
    return done.stdout


def e4m3(values):
    """The nearest codes of FP8 E4M3."""
    import numpy as np
    codes = np.arange(127)
    table = np.where(codes >> 3, (1 + (codes & 7) / 8) * 2.0 ** ((codes >> 3) - 7.0), (codes & 7) / 8 * 2.0 ** -6)
    between = (table[1:] + table[:-1]) / 2
    return (np.searchsorted(between, np.abs(values)) | np.where(values < 0, 128, 0)).astype(np.uint8)


def write_fp8_blocks(directory, out):
    """A checkpoint of quant_method fp8 with scales for blocks of 128 x 128."""
    import numpy as np
    import safetensors
    from gguf_files import read_safetensors
    from random_models import encoded
    arrays = {}
    for name, full in read_safetensors(directory).items():
        if not name.endswith("_proj.weight"):
            arrays[name] = ("bfloat16", encoded(full, "bf16").reshape(full.shape))
            continue
        scales = np.zeros([-(-size // 128) for size in full.shape], np.float32)
        codes = np.zeros(full.shape, np.uint8)
        for i, j in np.ndindex(scales.shape):
            at = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            scales[i, j] = np.abs(full[at]).max() / 448 or 1
            codes[at] = e4m3(full[at] / scales[i, j])
        arrays[name], arrays[name + "_scale_inv"] = ("float8_e4m3fn", codes), ("float32", scales)
    shutil.copytree(directory, out, ignore=shutil.ignore_patterns("*.safetensors"))
    specs = {name: safetensors.TensorSpec(dtype=kind, shape=list(array.shape), data_ptr=array.ctypes.data, data_len=array.nbytes)
             for name, (kind, array) in arrays.items()}
    safetensors.serialize_file(specs, os.path.join(out, "model.safetensors"), {"format": "pt"})
    with open(os.path.join(out, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    return out


def fits(directory, kind):
    """Whether most matrices have whole blocks of the type."""
    import gguf
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    return config["hidden_size"] % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.replace("_K_M", "_K")]][0] == 0


class Maker:
    """Makes the model in a format, in a folder that is removed after it."""

    def __init__(self, directory, calibrate):
        self.directory, self.calibrate = directory, calibrate

    def formats(self):
        """(name, how: (folder) -> (model, flags))"""
        yield "bf16", lambda folder: (self.directory, [])
        for scheme in ("int8", "fp8", "int8-w8a16", "fp8-w8a16"):
            yield f"{scheme}, at load", self.at_load(scheme)
        yield "fp8, blocks of 128 x 128", lambda folder: (write_fp8_blocks(self.directory, os.path.join(folder, "out")), [])
        for scheme in ("int8", "fp8"):
            yield f"{scheme}, GPTQ", self.written(scheme, True)
        for group in ("128", "64", "32"):
            yield f"int4, group {group}", self.written("int4", False, "--group", group)
            yield f"int4, group {group}, GPTQ", self.written("int4", True, "--group", group)
        for scheme in ("nvfp4", "mxfp4"):
            yield scheme, self.written(scheme, False)
            yield f"{scheme}, GPTQ", self.written(scheme, True)
        for scheme in ("int4", "nvfp4", "mxfp4"):
            yield f"{scheme}, at load", self.at_load(scheme)
        for kind in GGUF:
            if fits(self.directory, kind):
                yield f"GGUF {kind}", self.gguf(kind)

    def at_load(self, scheme):
        return lambda folder: (self.directory, ["--quantization", scheme])

    def written(self, scheme, calibrated, *flags):
        def make(folder):
            out = os.path.join(folder, "out")
            calibrate = ["--calibrate", self.calibrate] if calibrated else []
            said = run("quantize", self.directory, out, "--scheme", scheme, *flags, *calibrate)
            if said.startswith("0 projections"):
                raise RuntimeError("no matrix has whole groups")
            return out, []
        return make

    def gguf(self, kind):
        def make(folder):
            from gguf_files import write_gguf
            return write_gguf(self.directory, os.path.join(folder, "model.gguf"), kind), []
        return make


def weight_bytes(path, flags):
    """In memory, by `reprise inspect`."""
    return json.loads(run("inspect", path, *flags, "--device", "cpu", "--json"))["memory"]["weights"]


def measure(directory, text, calibrate, tokens=0, window=0, threads=0, only=None):
    """Yields a result of each format: name, perplexity and what the comparison with bf16 says. What is refused is left out."""
    for name, make in Maker(directory, calibrate).formats():
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                model, flags = make(folder)
                flags += ["--dtype", "bfloat16"]
                result = json.loads(run("eval", "ppl", text, "--model", model, *flags, "--against", directory, "--tokens",
                                        str(tokens), "--window", str(window), "--threads", str(threads), "--device", "cpu",
                                        "--json"))
            except RuntimeError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            yield {"name": name, "tokens": result["tokens"], "perplexity": result["perplexity"], **result["against"],
                   "bytes": weight_bytes(model, flags)}


def write_demo_text(path, seed):
    """What models/demo is about: stories, and lines of sums."""
    import demo_stories
    import demo_tasks
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(40):
            file.write(demo_stories.tell(rng)[0] + "\n\n")
            for _ in range(8):
                a, b, op = demo_tasks.operands(rng)
                file.write(f"{a} {op} {b} = {demo_tasks.result(a, b, op)}\n")
            file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("text", nargs="?")
    parser.add_argument("--calibrate", help="text for GPTQ; default: TEXT, whose figures then are too good")
    parser.add_argument("--tokens", type=int, default=0)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="CPU workers; the figures do not depend on them")
    parser.add_argument("--only", help="names of formats, separated by semicolons")
    parser.add_argument("--write-demo-text", metavar="OUT")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.write_demo_text:
        write_demo_text(args.write_demo_text, args.seed)
        return
    only = args.only.split(";") if args.only else None
    print("| format | MB in memory | perplexity | NLL difference | KL, mean | top-1 agreement |\n|---|---|---|---|---|---|")
    with contextlib.suppress(BrokenPipeError):
        for r in measure(args.model, args.text, args.calibrate or args.text, args.tokens, args.window, args.threads, only):
            print(f"| {r['name']} | {r['bytes'] / 1e6:.3f} | {r['perplexity']:.3f} | {r['nll_difference']:+.4f} +- "
                  f"{r['nll_difference_standard_error']:.4f} | {r['kl_mean']:.4f} | {100 * r['top1_agreement']:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
