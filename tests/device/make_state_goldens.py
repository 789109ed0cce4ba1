#!/usr/bin/env python3
"""Writes state_goldens.h: what transformers' layers with recurrent state compute.

    python3 tests/device/make_state_goldens.py

Inputs and weights are a formula of their index (values below, and in test_recurrent.c), so that the file holds only the
outputs: LFM2's convolution with its gates, Qwen3-Next's with SiLU, and the gated delta rule token by token. Needs torch
and transformers; the file was made with 5.24.
"""
import os

import numpy as np
import torch
import torch.nn.functional as F
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

TOKENS, COLS = 7, 6
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 3, 2
IN, BEFORE, AFTER, CONV, QKV, BA, A_LOG, DT_BIAS = range(1, 9)


def values(kind, *shape):
    """The upper 16 bits of a hash of the index, as multiples of 2^-16 from -1/2 to 1/2, times 4."""
    x = np.arange(int(np.prod(shape)), dtype=np.uint32) + np.uint32((kind * 0x9E3779B9) & 0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    x = (x >> np.uint32(16)).astype(np.float32) / np.float32(65536) - np.float32(0.5)
    return torch.from_numpy((x * np.float32(4)).reshape(shape))


def conv(x, width):
    """The causal convolution of each column alone, as nn.Conv1d with padding on the left computes it."""
    weight = values(CONV, COLS, width)[:, None]
    return F.conv1d(F.pad(x.T[None], (width - 1, 0)), weight, groups=COLS)[0].T


def delta():
    keys, count = KEY_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM
    qkv, ba = values(QKV, TOKENS, 2 * keys + count), values(BA, TOKENS, 2 * VALUE_HEADS)
    q, k, v = qkv.split([keys, keys, count], dim=-1)
    b, a = ba.split([VALUE_HEADS, VALUE_HEADS], dim=-1)
    g = -values(A_LOG, VALUE_HEADS).exp() * F.softplus(a + values(DT_BIAS, VALUE_HEADS))
    out, _ = torch_recurrent_gated_delta_rule(
        q.reshape(1, TOKENS, KEY_HEADS, KEY_DIM), k.reshape(1, TOKENS, KEY_HEADS, KEY_DIM),
        v.reshape(1, TOKENS, VALUE_HEADS, VALUE_DIM), g=g[None], beta=b.sigmoid()[None], use_qk_l2norm_in_kernel=True)
    return out.reshape(TOKENS, count)


def array(name, x):
    numbers = [f"{float(v):.9g}f" if "." in f"{float(v):.9g}" or "e" in f"{float(v):.9g}" else f"{float(v):.9g}.0f"
               for v in x.reshape(-1)]
    lines = [", ".join(numbers[i:i + 6]) for i in range(0, len(numbers), 6)]
    return f"static const float {name}[] = {{\n    " + ",\n    ".join(lines) + "};\n"


def main():
    with torch.no_grad():
        x, before, after = (values(kind, TOKENS, COLS) for kind in (IN, BEFORE, AFTER))
        parts = [array("golden_gated_conv", after * conv(before * x, 3)), array("golden_silu_conv", F.silu(conv(x, 4))),
                 array("golden_delta", delta())]
    path = os.path.join(os.path.dirname(__file__), "state_goldens.h")
    with open(path, "w", encoding="utf-8") as out:
        out.write("/* Made by make_state_goldens.py: outputs of transformers. */\n/* clang-format off */\n" + "".join(parts))


if __name__ == "__main__":
    main()
