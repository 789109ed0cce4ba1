#!/usr/bin/env python3
"""Writes expert_goldens.h: what transformers' mixture-of-experts blocks compute.

    python3 tests/device/make_expert_goldens.py

Weights and inputs are a formula of their index (value below, and in test_experts.c), so that the file holds only the
choices, their weights, and the blocks' outputs. Needs torch and transformers; the file was made with 5.24.
"""
import os

import numpy as np
import torch
import transformers
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeMoE
from transformers.models.granitemoe.modeling_granitemoe import GraniteMoeMoE
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

HIDDEN, INNER, TOKENS = 16, 16, 6
ROUTER, GATE_UP, DOWN, SHARED_GATE_UP, SHARED_DOWN, SHARED_GATE, BIAS, INPUT = range(1, 9)
SCALE = {ROUTER: 4.0, BIAS: 0.5, INPUT: 2.0}
SIZES = {"hidden_size": HIDDEN, "intermediate_size": INNER, "moe_intermediate_size": INNER, "hidden_act": "silu"}
GLM = {"n_routed_experts": 12, "num_experts_per_tok": 3, "routed_scaling_factor": 1.5, "n_shared_experts": 2}
# name, configuration, block, keys, fields of struct golden
CASES = [
    ("mixtral", "Mixtral", MixtralSparseMoeBlock, {"num_local_experts": 5, "num_experts_per_tok": 2},
     ".score = RP_ROUTE_SOFTMAX, .renormalize = true"),
    ("qwen2_moe", "Qwen2Moe", Qwen2MoeSparseMoeBlock,
     {"num_experts": 7, "num_experts_per_tok": 3, "shared_expert_intermediate_size": 24},
     ".score = RP_ROUTE_SOFTMAX, .shared = 24, .gated = true"),
    ("qwen3_moe", "Qwen3Moe", Qwen3MoeSparseMoeBlock, {"num_experts": 9, "num_experts_per_tok": 4, "norm_topk_prob": True},
     ".score = RP_ROUTE_SOFTMAX, .renormalize = true"),
    ("olmoe", "Olmoe", OlmoeSparseMoeBlock, {"num_experts": 8, "num_experts_per_tok": 8}, ".score = RP_ROUTE_SOFTMAX"),
    ("granitemoe", "GraniteMoe", GraniteMoeMoE, {"num_local_experts": 6, "num_experts_per_tok": 2},
     ".score = RP_ROUTE_SOFTMAX_CHOSEN"),
    ("glm4_moe", "Glm4Moe", Glm4MoeMoE, GLM, ".score = RP_ROUTE_SIGMOID, .renormalize = true, .bias = true, .shared = 32"),
    ("glm4_moe_groups", "Glm4Moe", Glm4MoeMoE, {**GLM, "n_group": 4, "topk_group": 2, "norm_topk_prob": False},
     ".score = RP_ROUTE_SIGMOID, .bias = true, .shared = 32, .groups = 4, .groups_used = 2"),
]


def values(kind, *shape):
    """The upper 16 bits of a hash of the index, as multiples of 2^-16 from -1/2 to 1/2, times SCALE."""
    x = np.arange(int(np.prod(shape)), dtype=np.uint32) + np.uint32((kind * 0x9E3779B9) & 0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    x = (x >> np.uint32(16)).astype(np.float32) / np.float32(65536) - np.float32(0.5)
    return torch.from_numpy((x * np.float32(SCALE.get(kind, 1.0))).reshape(shape))


def fill(block, count, shared):
    router = block.router if hasattr(block, "router") else block.gate
    router.weight.copy_(values(ROUTER, count, HIDDEN))
    block.experts.gate_up_proj.copy_(values(GATE_UP, count, 2 * INNER, HIDDEN))
    block.experts.down_proj.copy_(values(DOWN, count, HIDDEN, INNER))
    if hasattr(router, "e_score_correction_bias"):
        router.e_score_correction_bias.copy_(values(BIAS, count))
    if hasattr(block, "shared_expert_gate"):
        block.shared_expert_gate.weight.copy_(values(SHARED_GATE, 1, HIDDEN))
    mlp = getattr(block, "shared_expert", getattr(block, "shared_experts", None))
    if mlp is not None:
        gate_up = values(SHARED_GATE_UP, 2 * shared, HIDDEN)
        mlp.gate_proj.weight.copy_(gate_up[:shared])
        mlp.up_proj.weight.copy_(gate_up[shared:])
        mlp.down_proj.weight.copy_(values(SHARED_DOWN, HIDDEN, shared))
    return router


def rows(array, form):
    return ", ".join(form(x) for x in array.reshape(-1).tolist())


def main():
    out = ["/* Made by make_expert_goldens.py: choices and outputs of transformers' blocks. */",
           "/* clang-format off */", "static const struct golden goldens[] = {"]
    for name, family, block_class, keys, fields in CASES:
        config = getattr(transformers, family + "Config")(**{**SIZES, **keys})
        config._experts_implementation = "eager"
        count = keys.get("num_local_experts") or keys.get("num_experts") or keys["n_routed_experts"]
        shared = int(fields.split(".shared = ")[1].split(",")[0]) if ".shared" in fields else 0
        with torch.no_grad():
            block = block_class(config).float().eval()
            router = fill(block, count, shared)
            x = values(INPUT, TOKENS, HIDDEN)
            first, weights, ids = router(x)
            if weights.shape != ids.shape:
                raise SystemExit(f"{name}: the router returns other things than expected")
            output = block(x.reshape(1, TOKENS, HIDDEN)).reshape(TOKENS, HIDDEN)
        order = torch.argsort(weights, dim=-1, descending=True) if "bias" not in fields else None
        if order is not None:
            weights, ids = weights.gather(-1, order), ids.gather(-1, order)
        factor = keys.get("routed_scaling_factor", 1.0)
        out += [f'    {{.name = "{name}", .count = {count}, .used = {ids.shape[1]}, .factor = {factor}f, {fields},',
                f"     .ids = {{{rows(ids, str)}}},", f"     .weights = {{{rows(weights, lambda v: f'{v:.8e}f')}}},",
                f"     .output = {{{rows(output, lambda v: f'{v:.8e}f')}}}}},"]
    out += ["};", "/* clang-format on */", ""]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "expert_goldens.h")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out))


if __name__ == "__main__":
    main()
