#!/usr/bin/env python3
"""Hashes of what models answer, to show that a change leaves greedy text and logits as they were.

    tools/hash_outputs.py [--bin FILE] [--device cpu|cuda] [--only REGEX] [--parallel N] --out FILE.json
    tools/hash_outputs.py --compare A.json B.json        exit code 1 and the cases that differ

Each case is a model (models/demo, stories260K where the test data has it, small random checkpoints of every family)
with a set of flags. A server answers prompts that are short, longer than a page and longer than a chunk, alone, several at
once, and once more as a prefix hit. The hash covers token ids, the log-probabilities of the 20 likeliest tokens at every
position of prompt and answer with all their digits, and NLL and its error over a text (`reprise eval ppl`), which all
logits take part in.

Needs numpy and safetensors for the random checkpoints; without them those cases are left out by name."""
import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))

FORMATS = {
    "auto": [],
    "f32": ["--dtype", "float32"],
    "bf16": ["--dtype", "bfloat16"],
    "int8": ["--dtype", "bfloat16", "--quantization", "int8", "--quantization-head"],
    "fp8": ["--dtype", "bfloat16", "--quantization", "fp8"],
    "int8-w8a16": ["--dtype", "bfloat16", "--quantization", "int8-w8a16"],
    "fp8-w8a16": ["--dtype", "bfloat16", "--quantization", "fp8-w8a16", "--quantization-head"],
    "fp8-pages": ["--dtype", "bfloat16", "--kv-cache-dtype", "fp8"],
    "int8-pages": ["--dtype", "bfloat16", "--quantization", "int8", "--kv-cache-dtype", "int8"],
    "unfused": ["--dtype", "bfloat16", "--disable-fusion"],
    "mask": ["--dtype", "bfloat16", "--attention-mask", "causal && (sliding_window(24) || sink(4)); soft_cap(30)"],
}
TEXT = ("Once upon a time there was a little cat who lived in a house by the sea. Every day she went to the shore "
        "and counted the boats: 1, 2, 3, 4, 5. One morning 12 + 34 boats came in, and nobody knew why. ")
# Sizes on which the tiled kernels run; and odd ones, which go through the generic kernels.
SIZES = {
    "wide": dict(hidden_size=512, intermediate_size=1536, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
                 num_hidden_layers=2, max_position_embeddings=1024),
    "wide128": dict(hidden_size=512, intermediate_size=1024, num_attention_heads=4, num_key_value_heads=2, head_dim=128,
                    num_hidden_layers=2, max_position_embeddings=1024),
    "odd": {},
}


def cases(folder):
    """(name, directory, format) of every case; writes the random checkpoints."""
    for name in ("auto", "f32", "int8", "fp8", "int8-w8a16", "fp8-w8a16", "fp8-pages", "int8-pages", "unfused", "mask"):
        yield f"demo/{name}", os.path.join(ROOT, "models", "demo"), name
    data = os.environ.get("REPRISE_TEST_DATA") or os.path.join(ROOT, "..", "shared", "data")
    stories = os.path.join(data, "weights", "stories260K", "hf_derived")
    if os.path.isdir(stories):
        for name in ("auto", "bf16", "int8", "fp8"):
            yield f"stories260K/{name}", stories, name
    try:
        from random_models import write_model
    except ImportError as error:
        print(f"left out: random checkpoints ({error})", file=sys.stderr)
        return
    for family in ("llama", "mistral", "qwen2", "qwen3", "gemma2"):
        for size, overrides in SIZES.items():
            extra = dict(overrides)
            if family == "mistral":
                extra["sliding_window"] = 50
            directory = os.path.join(folder, f"{family}-{size}")
            os.makedirs(directory)
            write_model(directory, family, dtype="bf16", tied=size == "odd", seed=7, **extra)
            formats = ("f32", "bf16", "int8", "fp8", "fp8-w8a16", "fp8-pages") if size != "odd" else ("f32", "bf16", "int8")
            for name in formats:
                yield f"{family}-{size}/{name}", directory, name


def answers(server, long_prompts):
    """Everything that decides the hash, as one JSON value."""
    prompts = ["12 + 34 =", TEXT[:60], TEXT[:25] + " What is 7 - 3?", TEXT * (3 if long_prompts else 1)]

    def one(prompt):
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 40, "ignore_eos": True, "logprobs": 20,
                "prompt_logprobs": 20, "return_tokens_as_token_ids": False}
        status, _, reply = server.request("POST", "/v1/completions", body)
        if status != 200:
            raise AssertionError(f"{status}: {reply[:300]!r}")
        choice = json.loads(reply)["choices"][0]
        return [choice.get("text"), choice.get("logprobs"), choice.get("prompt_logprobs")]

    alone = [one(prompt) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(pool.map(one, prompts * 3))
    return [alone, together]


def run_case(case, arguments, folder):
    name, directory, form = case
    from reprise_server import Server
    flags = [*FORMATS[form], "--device", arguments.device, "--log-level", "warn", "--max-num-seqs", "16",
             "--max-num-batched-tokens", "256"]
    if arguments.device == "cuda":
        flags += ["--kv-cache-memory-bytes", "64M"]
    server = Server(directory, *flags)
    server.command[0] = arguments.bin
    config = json.load(open(os.path.join(directory, "config.json"), encoding="utf-8"))
    with server:
        value = answers(server, config.get("max_position_embeddings", 0) >= 1024)
    text = os.path.join(folder, "text.txt")
    ppl = subprocess.run([arguments.bin, "eval", "ppl", text, "--model", directory, "--tokens", "300", "--window", "100", "--json",
                          "--device", arguments.device, *[f for f in FORMATS[form] if form != "mask"]],
                         capture_output=True, text=True)
    if ppl.returncode:
        raise AssertionError(ppl.stderr)
    numbers = {k: v for k, v in json.loads(ppl.stdout).items()
               if k not in ("seconds", "tokens_per_second", "device") and not isinstance(v, str)}
    digest = hashlib.sha256(json.dumps([value, numbers], sort_keys=True).encode()).hexdigest()[:16]
    return name, digest, value[0][0][0]


def compare(first, second):
    a, b = (json.load(open(path, encoding="utf-8")) for path in (first, second))
    different = [f"{name}: {a.get(name)} and {b.get(name)}" for name in sorted(set(a) | set(b)) if a.get(name) != b.get(name)]
    print("\n".join(different + [f"{len(set(a) & set(b)) - sum(1 for n in set(a) & set(b) if a[n] != b[n])} of {len(set(a) | set(b))} equal"]))
    return 1 if different else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "reprise"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--out")
    parser.add_argument("--compare", nargs=2)
    arguments = parser.parse_args()
    if arguments.compare:
        return compare(*arguments.compare)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8") as file:
            file.write(TEXT * 8)
        wanted = [case for case in cases(folder) if re.search(arguments.only, case[0])]
        with concurrent.futures.ThreadPoolExecutor(arguments.parallel) as pool:
            for future in [pool.submit(run_case, case, arguments, folder) for case in wanted]:
                try:
                    name, digest, text = future.result()
                    results[name] = digest
                    print(f"{name:24} {digest} {text[:40]!r}", flush=True)
                except (AssertionError, OSError) as error:
                    print(f"failed: {str(error)[:600]}", flush=True)
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1, sort_keys=True)
    print(f"{len(results)} of {len(wanted)} cases")
    return 0 if len(results) == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
