#!/usr/bin/env python3
"""Writes a checkpoint of a known model's shape with random weights, for load tests and startup times, where the text
does not matter.

    tools/make_random_model.py llama-3.1-8b DIR [--config-only]

DIR gets config.json, model.safetensors (bfloat16, written by hand: 16 GB in about 10 s) and the tokenizer of
models/demo, whose 4,096 ids are part of the vocabulary. Random bytes are drawn once and repeated with a different
offset for each tensor. Needs numpy. With --config-only there are no weights: `reprise serve DIR --load-format dummy` makes
its own."""
import json
import os
import shutil
import struct
import sys

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))

# hidden, layers, heads, kv heads, head dim, intermediate, vocabulary, positions, rope theta
SHAPES = {
    "llama-3.2-1b": ("llama", 2048, 16, 32, 8, 64, 8192, 128256, 131072, 5e5, True),
    "llama-3.1-8b": ("llama", 4096, 32, 32, 8, 128, 14336, 128256, 131072, 5e5, False),
    "llama-3.3-70b": ("llama", 8192, 80, 64, 8, 128, 28672, 128256, 131072, 5e5, False),
    "mistral-7b": ("mistral", 4096, 32, 32, 8, 128, 14336, 32768, 32768, 1e6, False),
    "qwen3-0.6b": ("qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 40960, 1e6, True),
    "qwen3-8b": ("qwen3", 4096, 36, 32, 8, 128, 12288, 151936, 40960, 1e6, False),
}
POOL = 64 << 20  # number of random values, reused by all tensors


def config_of(name):
    family, hidden, layers, heads, kv_heads, head_dim, inner, vocab, positions, theta, tied = SHAPES[name]
    architecture = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen3": "Qwen3ForCausalLM"}[family]
    return family, {
        "architectures": [architecture], "model_type": family, "vocab_size": vocab, "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "intermediate_size": inner, "max_position_embeddings": positions, "rope_theta": theta,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": tied, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 2,
    }


def shapes_of(config, family):
    from random_models import shapes_of as shapes  # needs the safetensors package, which may be missing
    return shapes(config, family)


def write_weights(path, shapes, hidden):
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    values = rng.standard_normal(POOL, np.float32) * np.float32(hidden) ** -0.5
    pool = (values.view(np.uint32) >> 16).astype(np.uint16)
    one = np.full(hidden, 0x3F80, np.uint16)
    with open(path, "wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            left, at = int(np.prod(shape)), int(rng.integers(POOL // 2))
            if len(shape) == 1:
                file.write(np.resize(one, left).tobytes())
                continue
            while left:
                piece = pool[at:at + left]
                file.write(memoryview(piece).cast("B"))
                left, at = left - len(piece), 0


def main():
    config_only = sys.argv[3:] == ["--config-only"]
    if len(sys.argv) != 3 + config_only or sys.argv[1] not in SHAPES:
        sys.exit(f"usage: make_random_model.py {'|'.join(SHAPES)} DIR [--config-only]")
    family, config = config_of(sys.argv[1])
    directory = sys.argv[2]
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(os.path.join(ROOT, "models", "demo", name), directory)
    if not config_only:
        write_weights(os.path.join(directory, "model.safetensors"), shapes_of(config, family), config["hidden_size"])


main()
