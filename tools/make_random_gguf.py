#!/usr/bin/env python3
"""Writes a GGUF file of the shape of Llama 3.2 1B with random weights, to measure speed on: the values mean nothing.

    make_random_gguf.py Q4_K_M|Q8_0|.. OUT.gguf [--layers 16]

Needs numpy and the package gguf. The vocabulary has tokens named by their numbers.
"""
import argparse
import os
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "support"))
from gguf_files import kind_of

HIDDEN, INNER, HEADS, KV_HEADS, HEAD, VOCABULARY = 2048, 8192, 32, 8, 64, 128256
# Where a block has its f16 scales.
SCALES = {T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,), T.Q2_K: (80, 82), T.Q3_K: (108,), T.Q4_1: (0, 2), T.Q5_1: (0, 2)}


def random_matrix(random, rows, columns, kind):
    """Random blocks with scales that keep activations finite."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    if kind in (T.F32, T.F16):
        return (random.standard_normal((rows, columns)) * 0.02).astype(np.float32 if kind == T.F32 else np.float16)
    blocks = random.integers(0, 256, (rows, columns // values, size), np.uint8)
    for at in SCALES.get(kind, (0,)):
        blocks[:, :, at:at + 2] = (random.random((rows, columns // values, 1)) * 1e-4 + 1e-4).astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("kind")
    parser.add_argument("path")
    parser.add_argument("--layers", type=int, default=16)
    options = parser.parse_args()
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(options.path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(options.layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([f"t{i}" for i in range(VOCABULARY)])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    shapes = {"token_embd.weight": (VOCABULARY, HIDDEN)}
    for layer in range(options.layers):
        shapes.update({f"blk.{layer}.{name}.weight": shape for name, shape in {
            "attn_q": (HEADS * HEAD, HIDDEN), "attn_k": (KV_HEADS * HEAD, HIDDEN), "attn_v": (KV_HEADS * HEAD, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER)}.items()})
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for name, (rows, columns) in shapes.items():
        kind = kind_of(name, options.kind, options.layers)
        writer.add_tensor(name, random_matrix(random, rows, columns, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
