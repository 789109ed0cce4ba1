#!/usr/bin/env python3
"""Each key of each family's config.json changes the logits as the reference does, is refused by name, or is listed
here as one that changes nothing.

    python3 tests/oracle/config_keys_oracle.py

A small random model of each family is written with every key that its class reads. Each key is changed alone,
beside the same weights: the program then either gives other logits, which are those of the numpy reference (family_reference.py,
which transformers_oracle.py compares with transformers), or refuses the configuration with a message that names the key or
the tensor whose shape it contradicts. A key that does neither must be in IRRELEVANT. Needs numpy and safetensors;
exits with 77 without them.
"""
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import families_oracle  # ends the test as skipped where numpy or safetensors are missing
import numpy as np
from family_reference import forward
from family_variants import LLAMA3, LONG, MSCALE, YARN
from random_models import FAMILIES, write_model

TOKENS = 48
# What classes read beside the keys of random_models.py.
FULL = {
    "llama": {"rope_scaling": LLAMA3, "attention_bias": False, "mlp_bias": False},
    "mistral": {"sliding_window": 9},
    "qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "qwen3": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1, "attention_bias": False},
    "gemma2": {"attention_bias": False},
    "phi3": {"sliding_window": 19, "original_max_position_embeddings": 32, "partial_rotary_factor": 0.75,
             "rope_scaling": LONG},
    "gemma3": {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "final_logit_softcapping": 3.0, "attention_bias": False},
    "granite": {"attention_bias": False, "mlp_bias": False},
    "granite_hybrid": {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "attention_bias": False},
    "olmo2": {"attention_bias": False},
    "olmo3": {"rope_theta": None, "attention_bias": False, "rope_parameters": {
        "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}}},
    "smollm3": {"use_sliding_window": True, "sliding_window": 9, "attention_bias": False, "mlp_bias": False},
    "stablelm": {"partial_rotary_factor": 0.5},
    "internlm3": {"mlp_bias": False, "attention_bias": False},
    "cohere": {"attention_bias": False},
    "cohere2": {"attention_bias": False},
    "deepseek_v2": {"rope_scaling": MSCALE, "mlp_bias": False},
    "deepseek_v3": {"rope_scaling": MSCALE},
    "gpt_oss": {"swiglu_alpha": 1.702, "experts_per_token": 3},
    "gemma4": {"attention_bias": False, "use_bidirectional_attention": None, "per_layer_config": None},
}
# Key -> the values that it is changed to. A value that the model has already is left out.
CHANGES = {
    "architectures": [["MambaForCausalLM"], ["LlamaForCausalLM"]], "model_type": ["mamba", "llama"], "hidden_size": [96],
    "intermediate_size": [60], "num_hidden_layers": [2, 6], "num_attention_heads": [12], "num_key_value_heads": [1],
    "head_dim": [16], "vocab_size": [300], "max_position_embeddings": [64], "rms_norm_eps": [0.1], "layer_norm_eps": [0.1],
    "rope_theta": [77.0], "rope_local_base_freq": [77.0], "hidden_act": ["gelu_pytorch_tanh", "relu"],
    "hidden_activation": ["silu", "relu"], "tie_word_embeddings": [False], "torch_dtype": ["bfloat16"], "bos_token_id": [3],
    "eos_token_id": [3], "sliding_window": [5, None], "use_sliding_window": [False], "max_window_layers": [2],
    "sliding_window_pattern": [1], "layer_types": [
        ["full_attention", "full_attention", "sliding_attention"],
        ["sliding_attention", "sliding_attention", "full_attention", "full_attention", "sliding_attention"]],
    "attention_bias": [True, False], "mlp_bias": [True], "bias": [True], "qkv_bias": [True], "use_qkv_bias": [False],
    "query_pre_attn_scalar": [3], "attn_logit_softcapping": [0.5, None], "final_logit_softcapping": [1.0, None],
    "partial_rotary_factor": [0.25, 1.0], "original_max_position_embeddings": [64, 300], "embedding_multiplier": [5.0],
    "residual_multiplier": [0.9], "attention_multiplier": [1.5], "logits_scaling": [2.0], "num_local_experts": [4],
    "shared_intermediate_size": [60], "position_embedding_type": [None, "alibi"], "no_rope_layer_interval": [3],
    "num_experts": [4], "n_routed_experts": [8], "num_experts_per_tok": [1], "moe_intermediate_size": [32],
    "norm_topk_prob": [True, False], "shared_expert_intermediate_size": [24], "decoder_sparse_step": [2],
    "mlp_only_layers": [[0]], "n_group": [3], "topk_group": [1], "n_shared_experts": [1], "routed_scaling_factor": [0.7],
    "swiglu_limit": [5.0], "swiglu_alpha": [1.5], "experts_per_token": [2], "first_k_dense_replace": [2], "use_parallel_residual": [True], "qk_layernorm": [True], "logit_scale": [0.5], "use_qk_norm": [True],
    "kv_lora_rank": [48], "q_lora_rank": [None, 16], "qk_nope_head_dim": [8], "qk_rope_head_dim": [8], "v_head_dim": [32],
    "topk_method": ["greedy", "noaux_tc", "group_limited_greedy"], "scoring_func": ["softmax", "sigmoid"],
    "moe_layer_freq": [2], "rope_interleave": [False],
    "norm_eps": [0.1], "conv_L_cache": [4], "conv_bias": [True], "block_auto_adjust_ff_dim": [False], "block_multiple_of": [5],
    "block_ffn_dim_multiplier": [1.5], "full_attention_interval": [3], "linear_conv_kernel_dim": [3], "linear_num_key_heads": [1, 3],
    "linear_num_value_heads": [6], "linear_key_head_dim": [5], "linear_value_head_dim": [12],
    "rope_scaling": [{"rope_type": "linear", "factor": 4.0}, YARN, {"rope_type": "dynamic", "factor": 3.0}, None,
                     {"rope_type": "proportional", "factor": 2.0}, {**YARN, "new_key": 1}],
    "global_head_dim": [16], "num_global_key_value_heads": [2], "attention_k_eq_v": [False], "num_kv_shared_layers": [0, 1, 4],
    "use_double_wide_mlp": [False], "hidden_size_per_layer_input": [0, 16], "vocab_size_per_layer_input": [300, 200],
    "enable_moe_block": [False], "top_k_experts": [1], "use_bidirectional_attention": ["all"], "per_layer_config": [
        {"1": {"head_dim": 16}}, {"0": {"head_dim": 16}}, {"1": {"sliding_window": 3}}],
    "rope_parameters": [{"full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
                         "sliding_attention": {"rope_theta": 1e4}}, {"full_attention": {"rope_theta": 300.0}, "sliding_attention": {"rope_theta": 50.0}},
                        {**YARN, "rope_theta": 300.0, "llama_4_scaling_beta": 0.3}],
}
# Keys of any class that must not be dropped silently.
FOREIGN = {"logits_scaling": 3.0, "attn_logit_softcapping": 1.0, "use_alibi": True, "rope_interleave": True, "norm_after": True,
           "clip_qkv": 4.0, "is_causal": False}
# Of ids and files; how long a sequence may be; the type that the test asks for.
IRRELEVANT = {"bos_token_id", "eos_token_id", "torch_dtype", "max_position_embeddings"}
# Not read by the class: gemma's has another key; the dense model's MLP has another; types given one by one; a theta that
# no layer or only rope_parameters uses.
UNREAD = {("gemma4", "hidden_act"), ("qwen2_moe", "intermediate_size"), ("qwen3_next", "intermediate_size"), ("qwen3_5_moe", "intermediate_size"), ("gemma2", "hidden_act"), ("gemma3", "hidden_act"), ("granite_hybrid", "intermediate_size")}
# What else the message may name: the key that the changed one contradicts.
NAMED_AS = {"architectures": "model_type", "hidden_size": "rope_scaling", "num_attention_heads": "rope_scaling",
            "partial_rotary_factor": "rope_scaling", "sliding_window": "gives no window"}
# No effect up to max_position_embeddings.
SAME = {("internlm2", "rope_scaling", "dynamic"), ("internlm2", "rope_scaling", "None")}


def changes_of(config):
    for key, old in config.items():
        assert key in CHANGES, f"no change is listed for {key}"
        for value in CHANGES[key]:
            if value != old:
                yield key, value
    for key, value in FOREIGN.items():
        if key not in config:
            yield key, value


class Case:
    def __init__(self, parent, family, binary):
        self.family, self.binary, self.directory = family, binary, os.path.join(parent, family)
        overrides = {key: value for key, value in FULL.get(family, {}).items()}
        self.model = write_model(self.directory, family, seed=5, **overrides)
        self.ids = np.random.default_rng(7).integers(0, 256, TOKENS).tolist()
        self.base = self.reference(self.model.config)

    def reference(self, config):
        model = SimpleNamespace(config=config, tensors=self.model.tensors, family=self.family)
        return forward(model, self.ids, "f32")[-1]

    def run(self, config, number):
        """The last row of logits, or the message of a refusal."""
        place = f"{self.directory}-{number}"
        os.makedirs(place)
        os.symlink(os.path.join(self.directory, "model.safetensors"), os.path.join(place, "model.safetensors"))
        with open(os.path.join(place, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        out = os.path.join(place, "logits")
        done = subprocess.run([self.binary, "--logits", place, out, "f32", str(TOKENS), *map(str, self.ids)],
                              capture_output=True, text=True)
        assert done.returncode in (0, 1), (self.family, config, done.stderr)
        return np.fromfile(out, np.float32) if done.returncode == 0 else done.stderr

    def check(self, key, value, number):
        got = self.run({**self.model.config, key: value}, number)
        what = f"{self.family}: {key} = {json.dumps(value)}"
        if isinstance(got, str):
            named = key in got or "config.json implies" in got or "tensor" in got or NAMED_AS.get(key, key) in got
            return None if named else f"{what}: refused without its name: {got}"
        want = self.reference({**self.model.config, key: value})
        error = families_oracle.distance(got, want) if got.shape == want.shape else np.inf
        if not error <= 2e-5:
            return f"{what}: differs from the reference by {error:.1e}"
        kind = value.get("rope_type", "") if isinstance(value, dict) else str(value)
        silent = key in IRRELEVANT or (self.family, key) in UNREAD or (self.family, key, kind) in SAME
        changed = families_oracle.distance(want, self.base) > 1e-5
        if changed == silent and key != "max_position_embeddings":
            return f"{what}: {'changes' if changed else 'does not change'} the logits"
        return None


def main():
    binary, failures, count = families_oracle.program(), [], 0
    with tempfile.TemporaryDirectory() as parent, ThreadPoolExecutor(2) as pool:
        for family in FAMILIES:
            case = Case(parent, family, binary)
            changes = list(changes_of(case.model.config))
            count += len(changes)
            failures += [text for text in pool.map(lambda at: case.check(*changes[at], at), range(len(changes))) if text]
    for text in failures:
        print(text)
    print(f"{count} changes of {len(FAMILIES)} families")
    print(f"{'0 passed, 1' if failures else '1 passed, 0'} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
