"""The demo model from GGUF files: the tokens, answers and probabilities of its safetensors file.

With --dtype float32 a file of blocks gives the probabilities of a safetensors file of the values that the `gguf` package
reads from it, bit for bit. Files that are damaged or made for something else are refused by name.
"""
import json
import os
import random
import shutil
import subprocess
import tempfile

from reprise_server import BIN, DEMO, Server, skip

try:
    import gguf
    import numpy as np
    from gguf_files import stored_values, write_gguf
    from safetensors.numpy import save_file
except ImportError as error:
    skip(str(error))

PROMPT = "<|im_start|>user\nWhat is 123 - 456?<|im_end|>\n<|im_start|>assistant\n"


def complete(server, prompt, tokens=8, **more):
    status, answer = server.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": tokens, **more})
    assert status == 200, answer
    return answer["choices"][0]


def scores(server):
    """Log-probabilities of a given text, and those of the answer's likeliest tokens."""
    echo = complete(server, "Reverse the word: planet. 12 + 34 = 46, 7 - 9 = -2", 0, echo=True, logprobs=5)["logprobs"]
    return echo["token_logprobs"], echo["top_logprobs"], complete(server, PROMPT, 12, logprobs=5)["logprobs"]


def sums(count):
    chosen = random.Random(5)
    for _ in range(count):
        a, b = chosen.randrange(1000), chosen.randrange(1000)
        yield (f"{a} + {b} =", a + b) if chosen.random() < 0.5 else (f"{a} - {b} =", a - b)


def right(server, count):
    return sum(complete(server, prompt)["text"].strip() == str(value) for prompt, value in sums(count))


def check_same_values(folder):
    """Blocks with f32 inputs against a safetensors file of the same values."""
    plain = os.path.join(folder, "values")
    shutil.copytree(DEMO, plain, ignore=shutil.ignore_patterns("*.safetensors"))
    for kind in ("Q4_K_M", "F16"):
        save_file(stored_values(DEMO, kind), os.path.join(plain, "model.safetensors"))
        path = write_gguf(DEMO, os.path.join(folder, "exact.gguf"), kind)
        with Server(plain, "--dtype", "float32") as server:
            want = scores(server)
        with Server(path, "--dtype", "float32") as server:
            assert scores(server) == want, kind


def check_answers(folder):
    text = "Hello, it's <|im_end|> 12 + 34  =\n\n日本 é!"
    with Server(DEMO) as server:
        tokens = server.post("/tokenize", {"prompt": text})[1]["tokens"]
        chat = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "12 + 34"}], "temperature": 0})[1]
    for kind, options in (("BF16", {}), ("Q8_0", {"split_max_tensors": 30})):
        path = write_gguf(DEMO, os.path.join(folder, f"{kind}.gguf"), kind, **options)
        if options:
            path = os.path.join(folder, f"{kind}-00001-of-00003.gguf")
            assert os.path.exists(path), os.listdir(folder)
        with Server(path) as server:
            assert server.post("/tokenize", {"prompt": text})[1]["tokens"] == tokens
            assert right(server, 40) == 40, kind
            answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "12 + 34"}], "temperature": 0})[1]
            assert answer["choices"] == chat["choices"], answer


def inspect(path, *flags):
    return subprocess.run([BIN, "inspect", path, "--device", "cpu", *flags], capture_output=True, text=True, timeout=60)


def check_inspect(folder):
    path = write_gguf(DEMO, os.path.join(folder, "K.gguf"), "Q4_K_M")
    model = json.loads(inspect(path, "--json").stdout)["model"]
    assert model["block_memory_bytes"] <= 1.03 * model["block_file_bytes"], model
    assert model["block_file_bytes"] < os.path.getsize(path)
    text = inspect(path).stdout
    assert "Q4_K" in text and "Q6_K" in text and "bits per weight in memory" in text, text
    return path


def check_refusals(folder, good):
    def refused(path, *words, flags=()):
        done = subprocess.run([BIN, "run", path, "x", "--max-tokens", "1", "--device", "cpu", *flags], capture_output=True,
                              text=True, timeout=60)
        message = done.stderr
        assert done.returncode not in (0, 1) and done.returncode > 0, (words, done.returncode, message)
        assert all(word in message for word in words), f"{words}: {message}"

    def edited(name, edit=None, arch="llama", **more):
        return write_gguf(DEMO, os.path.join(folder, name), "Q8_0", arch=arch, edit=edit, **more)

    with open(good, "rb") as file:
        content = file.read()
    short = os.path.join(folder, "short.gguf")
    for size in (0, 3, 20, 5000, len(content) - 100):
        with open(short, "wb") as file:
            file.write(content[:size])
        refused(short, "short.gguf")
    refused(edited("rwkv.gguf", arch="rwkv6"), "rwkv.gguf", "general.architecture", "rwkv6", "llama, ")
    refused(edited("moe.gguf", lambda w: w.add_expert_count(8)), "moe.gguf", "llama.expert_count")
    refused(edited("scale.gguf", lambda w: w.add_logit_scale(2.0)), "scale.gguf", "llama.logit_scale", "not supported")
    refused(edited("longrope.gguf", lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)), "longrope.gguf", "llama.rope.scaling.type", "none, linear or yarn")
    refused(good, "GGUF", "--quantization", flags=("--quantization", "int8"))
    values = stored_values(DEMO, "F32")
    missing = {name: value for name, value in values.items() if "layers.3.mlp.up" not in name}
    refused(edited("missing.gguf", tensors=missing), "missing.gguf", "blk.3.ffn_up.weight", "missing")
    values["model.layers.2.self_attn.o_proj.weight"] = np.full((256, 256), np.inf, np.float32)
    refused(edited("infinite.gguf", tensors=values), "infinite.gguf", "blk.2.attn_output.weight", "not finite")
    refused(os.path.join(folder, "Q8_0-00002-of-00003.gguf"), "00002-of-00003", "first file")
    os.remove(os.path.join(folder, "Q8_0-00003-of-00003.gguf"))
    refused(os.path.join(folder, "Q8_0-00001-of-00003.gguf"), "Q8_0-00003-of-00003.gguf")
    refused(folder, "directory with GGUF files")


def bench(kind, path, name):
    done = subprocess.run([BIN, "bench", kind, "--model", path, "--device", "cpu", "--threads", "1", "--batch", "1", "--context",
                           "16", *(("--tokens", "16", "--rounds", "1") if kind == "decode" else ()), "--json"],
                          capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    return (result["cases"] if kind == "step" else result)[0][name]


def check_bytes_of_a_step(folder):
    """Blocks count with their own bytes, and an embedding that has a head beside it does not count, whatever its type."""
    tensors = stored_values(DEMO, "F32")
    norms = sum(values.size * 4 for values in tensors.values() if values.ndim == 1)
    whole = sum(values.size for values in tensors.values() if values.ndim == 2) // 32 * 34
    path = write_gguf(DEMO, os.path.join(folder, "tied.gguf"), "Q8_0")
    assert bench("step", path, "weight_bytes") == whole, (bench("step", path, "weight_bytes"), whole)
    assert bench("decode", path, "weight_bytes") == whole + norms
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    path = write_gguf(DEMO, os.path.join(folder, "untied.gguf"), "Q8_0", tensors=tensors)
    assert bench("step", path, "weight_bytes") == whole
    assert bench("decode", path, "weight_bytes") == whole + norms


def main():
    with np.errstate(all="ignore"), tempfile.TemporaryDirectory() as folder:
        check_same_values(folder)
        check_answers(folder)
        check_refusals(folder, check_inspect(folder))
        check_bytes_of_a_step(folder)
    print("the demo model answers from GGUF files as from safetensors")


if __name__ == "__main__":
    main()
