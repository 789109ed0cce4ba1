#!/usr/bin/env python3
"""Writes latent_goldens.h: logits of one layer with multi-head latent attention, computed by transformers.

    python3 tests/model/make_latent_goldens.py

Weights are a formula of the tensor's number and the index (value below, and in test_latent_models.c), so that the file
holds only configurations and logits. The layer has an MLP in place of experts. Needs torch and transformers; the file
was made with 5.24.
"""
import json
import os

import numpy as np
import torch
import transformers

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 0, 8]
COMMON = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 16, "moe_intermediate_size": 16, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64, "n_routed_experts": 4,
          "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 16,
          "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 32, "rms_norm_eps": 0.01, "tie_word_embeddings": False}
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4, "rope_theta": 100.0, "mscale": 1.0,
        "mscale_all_dim": 1.0}
CASES = [("DeepseekV2", {**COMMON, "q_lora_rank": None, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
         ("DeepseekV3", {**COMMON, "q_lora_rank": 6, "n_group": 1, "topk_group": 1, "rope_parameters": YARN})]
LAYER = "model.layers.0."
TENSORS = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", LAYER + "input_layernorm.weight",
           LAYER + "self_attn.q_proj.weight", LAYER + "self_attn.q_a_proj.weight", LAYER + "self_attn.q_a_layernorm.weight",
           LAYER + "self_attn.q_b_proj.weight", LAYER + "self_attn.kv_a_proj_with_mqa.weight",
           LAYER + "self_attn.kv_a_layernorm.weight", LAYER + "self_attn.kv_b_proj.weight", LAYER + "self_attn.o_proj.weight",
           LAYER + "post_attention_layernorm.weight", LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight",
           LAYER + "mlp.down_proj.weight"]


def values(number, shape):
    """The upper 16 bits of a hash of the index, as multiples of 2^-15 from -1 to 1; of norms, around 1."""
    x = np.arange(int(np.prod(shape)), dtype=np.uint32) + np.uint32((number * 0x9E3779B9) & 0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    x = (x >> np.uint32(16)).astype(np.float32) / np.float32(32768) - np.float32(1)
    return torch.from_numpy((x + np.float32(1) if len(shape) == 1 else x).reshape(shape))


def main():
    out = ["/* Made by make_latent_goldens.py: logits that transformers computes. */", "/* clang-format off */",
           f"static const int32_t golden_ids[] = {{{', '.join(map(str, IDS))}}};", "static const struct golden goldens[] = {"]
    for family, keys in CASES:
        config = getattr(transformers, family + "Config")(**keys)
        config._attn_implementation = "eager"
        model = getattr(transformers, family + "ForCausalLM")(config).float().eval()
        weights = dict(model.named_parameters())
        with torch.no_grad():
            numbered = [name for name in TENSORS if name in weights]
            if set(numbered) != set(weights):
                raise SystemExit(f"{family}: other tensors than expected: {set(numbered) ^ set(weights)}")
            for number, name in enumerate(numbered, 1):
                weights[name].copy_(values(number, weights[name].shape))
            logits = model(torch.tensor([IDS]), use_cache=False).logits[0]
        text = json.dumps({**keys, "architectures": [family + "ForCausalLM"]}).replace('"', '\\"')
        rows = ", ".join(f"{v:.7e}f" for v in logits.reshape(-1).tolist())
        out += [f'    {{.config = "{text}",', f"     .logits = {{{rows}}}}},"]
    out += ["};", "/* clang-format on */", ""]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "latent_goldens.h")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out))


if __name__ == "__main__":
    main()
