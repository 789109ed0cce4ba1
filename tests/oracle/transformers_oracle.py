#!/usr/bin/env python3
"""Small random models that the transformers package makes have its logits and its greedy text here.

    python3 tests/oracle/transformers_oracle.py [FAMILY...]

Every family and variant below is a configuration class of transformers with small, odd sizes: its model gets
random weights (norms and biases too), is saved by the package, and is read here from the files. Prompts
are longer than every window and every original length of RoPE. Rows of logits are compared as
log-probabilities, after prompts in one chunk, in chunks of 7 and token by token; then 16 tokens are chosen greedily.
Needs torch and transformers, which the other tests do not; exits with 77 without them.
"""
import json
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import numpy as np
    import safetensors.torch
    import torch
    import transformers
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

TOKENS, GREEDY, LIMIT = 70, 16, 1e-4
SIZES = {"vocab_size": 260, "hidden_size": 48, "intermediate_size": 52, "num_hidden_layers": 4, "num_attention_heads": 6,
         "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
ROPE = {"rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.0, 2.5, 6.0]}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32, "rope_theta": 500000.0}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
MINISTRAL3 = {**YARN, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0}
# Widths of experts are multiples of 16.
EXPERTS = {"num_experts": 7, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {"num_key_value_heads": 6, "kv_lora_rank": 32, "q_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6,
          "v_head_dim": 16, "n_routed_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 16,
          "routed_scaling_factor": 1.5, "first_k_dense_replace": 2}
MSCALE = {"mscale": 0.9, "mscale_all_dim": 0.7}
GLM_EXPERTS = {"n_routed_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "routed_scaling_factor": 1.5, "first_k_dense_replace": 2}
OSS = {"intermediate_size": 16, "sliding_window": 9, "rope_parameters": {
    "rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "rope_theta": 10000.0,
    "original_max_position_embeddings": 32}}
GEMMA4 = {"head_dim": 8, "global_head_dim": 20, "sliding_window": 9, "layer_types": LAYERS, "hidden_size_per_layer_input": 0,
          "vocab_size_per_layer_input": 270}
CONV_LAYERS = ["conv", "full_attention", "conv", "conv"]
DELTA = {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 20}
QUARTER = {**ROPE, "partial_rotary_factor": 0.25}

VARIANTS = [
    ("Llama", {"rope_parameters": LLAMA3}),
    ("Llama", {"rope_parameters": YARN}),
    ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}),
    ("Phi3", {"rope_parameters": ROPE}),
    ("Phi3", {"rope_parameters": {**LONG, "partial_rotary_factor": 0.75}, "original_max_position_embeddings": 32,
              "tie_word_embeddings": True}),
    ("Phi3", {"rope_parameters": {**LONG, "short_factor": [1.0, 1.1, 1.3, 2.0], "long_factor": [1.0, 2.5, 6.0, 8.0]},
              "original_max_position_embeddings": 32, "sliding_window": 19}),
    ("Gemma3Text", {"head_dim": 12, "query_pre_attn_scalar": 10, "sliding_window": 9, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}, "layer_types": LAYERS}),
    ("Gemma3Text", {"head_dim": 8, "num_hidden_layers": 6, "sliding_window": 5, "final_logit_softcapping": 3.0}),
    ("Granite", {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.2,
                 "logits_scaling": 0.3, "rope_parameters": ROPE}),
    ("Granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "rope_parameters": ROPE}),
    ("GraniteMoeHybrid", {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 44,
                          "position_embedding_type": "rope", "layer_types": ["full_attention"] * 4, "mamba_n_heads": 12,
                          "residual_multiplier": 0.5, "attention_multiplier": 0.25, "rope_parameters": ROPE}),
    ("GraniteMoeHybrid", {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 44,
                          "layer_types": ["full_attention"] * 4, "mamba_n_heads": 12, "attention_multiplier": 0.25}),
    ("Olmo2", {"rope_parameters": ROPE}),
    ("Olmo2", {"attention_bias": True, "num_key_value_heads": 6, "rope_parameters": ROPE}),
    ("Olmo3", {"sliding_window": 11, "rope_parameters": {
        "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}),
    ("SmolLM3", {"rope_parameters": ROPE}),
    ("SmolLM3", {"no_rope_layers": [1, 0, 0, 1], "use_sliding_window": True, "sliding_window": 13, "rope_parameters": ROPE}),
    ("Mistral", {"head_dim": 12, "sliding_window": None, "rope_parameters": YARN}),
    ("Ministral", {"head_dim": 12, "sliding_window": 9, "layer_types": LAYERS, "rope_parameters": ROPE}),
    ("Ministral3", {"head_dim": 12, "rope_parameters": MINISTRAL3}),
    ("StableLm", {"use_qkv_bias": True, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.25}}),
    ("StableLm", {"use_parallel_residual": True, "qk_layernorm": True, "rope_parameters": {
        **ROPE, "partial_rotary_factor": 0.5}}),
    ("Glm", {"head_dim": 12, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}),
    ("Glm4", {"head_dim": 8, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}),
    ("Glm4", {"head_dim": 16, "attention_bias": False, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.25}}),
    ("Cohere", {"logit_scale": 0.25, "rope_parameters": ROPE}),
    ("Cohere", {"use_qk_norm": True, "logit_scale": 1.5, "attention_bias": True, "rope_parameters": ROPE}),
    ("Cohere2", {"logit_scale": 1.5, "sliding_window": 9, "rope_parameters": ROPE}),
    ("Cohere2", {"logit_scale": 1.5, "sliding_window": 9, "layer_types": LAYERS, "rope_parameters": {
        "rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    ("Mixtral", {"intermediate_size": 32, "num_local_experts": 5, "rope_parameters": ROPE}),
    ("Mixtral", {"intermediate_size": 16, "num_local_experts": 3, "num_experts_per_tok": 3, "sliding_window": 9,
                 "rope_parameters": ROPE}),
    ("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 40, "rope_parameters": ROPE}),
    ("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 20, "norm_topk_prob": True, "decoder_sparse_step": 2,
                  "rope_parameters": ROPE}),
    ("Qwen3Moe", {**EXPERTS, "norm_topk_prob": True, "head_dim": 12, "rope_parameters": ROPE}),
    ("Qwen3Moe", {**EXPERTS, "num_experts": 33, "num_experts_per_tok": 8, "mlp_only_layers": [1], "rope_parameters": ROPE}),
    ("Olmoe", {**EXPERTS, "intermediate_size": 16, "rope_parameters": ROPE}),
    ("Olmoe", {**EXPERTS, "intermediate_size": 16, "norm_topk_prob": True, "num_key_value_heads": 6, "rope_parameters": ROPE}),
    ("GraniteMoe", {"intermediate_size": 32, "num_local_experts": 6, "embedding_multiplier": 12.0,
                    "residual_multiplier": 0.22, "attention_multiplier": 0.2, "logits_scaling": 0.3, "rope_parameters": ROPE}),
    ("Glm4Moe", {**GLM_EXPERTS, "head_dim": 8, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}),
    ("DeepseekV2", {**LATENT, "q_lora_rank": None, "topk_method": "greedy", "rope_parameters": {**YARN, **MSCALE}}),
    ("DeepseekV2", {**LATENT, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "qk_nope_head_dim": 8,
                    "qk_rope_head_dim": 16, "rope_parameters": ROPE}),
    ("DeepseekV3", {**LATENT, "n_group": 4, "topk_group": 2, "rms_norm_eps": 0.3, "rope_parameters": {**YARN, **MSCALE}}),
    ("DeepseekV3", {**LATENT, "n_group": 1, "topk_group": 1, "q_lora_rank": None, "v_head_dim": 48, "norm_topk_prob": False,
                    "n_shared_experts": 2, "first_k_dense_replace": 0, "tie_word_embeddings": True,
                    "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    ("DeepseekV3", {**LATENT, "n_group": 3, "topk_group": 1, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    ("Glm4Moe", {**GLM_EXPERTS, "n_group": 4, "topk_group": 2, "use_qk_norm": True, "attention_bias": True,
                 "norm_topk_prob": False, "n_shared_experts": 2, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}),
    ("GptOss", {**OSS, "num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 8}),
    ("GptOss", {**OSS, "num_local_experts": 33, "num_experts_per_tok": 4, "head_dim": 12, "sliding_window": 16,
                "layer_types": LAYERS[::-1], "num_key_value_heads": 6}),
    ("GptOss", {**OSS, "num_local_experts": 3, "num_experts_per_tok": 3, "head_dim": 8, "num_hidden_layers": 3,
                "attention_bias": False, "tie_word_embeddings": True}),
    ("GptOss", {**OSS, "num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 8, "hidden_size": 64,
                "intermediate_size": 32, "mxfp4": True}),
    ("Gemma4Text", {**GEMMA4}),
    ("Gemma4Text", {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "final_logit_softcapping": 3.0}),
    ("Gemma4Text", {**GEMMA4, "num_hidden_layers": 7, "layer_types": LAYERS + LAYERS[1:], "num_kv_shared_layers": 3,
                    "use_double_wide_mlp": True, "hidden_size_per_layer_input": 10}),
    ("Gemma4Text", {**GEMMA4, "enable_moe_block": True, "num_experts": 7, "top_k_experts": 3, "moe_intermediate_size": 16,
                    "attention_k_eq_v": True, "num_global_key_value_heads": 3, "global_head_dim": 8}),
    ("Gemma4Text", {**GEMMA4, "num_hidden_layers": 6, "layer_types": None, "attention_bias": True, "attention_k_eq_v": True,
                    "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 4, "published": True}),
    ("Lfm2", {"layer_types": CONV_LAYERS, "block_auto_adjust_ff_dim": False, "rope_parameters": ROPE}),
    ("Lfm2", {"layer_types": CONV_LAYERS[1:] + CONV_LAYERS[:1], "conv_L_cache": 5, "block_multiple_of": 20, "hidden_size": 72,
              "block_ffn_dim_multiplier": 1.5, "tie_word_embeddings": False, "rope_parameters": ROPE}),
    ("Qwen3_5Text", {**DELTA, "rope_parameters": QUARTER}),
    ("Qwen3_5Text", {**DELTA, "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_conv_kernel_dim": 3,
                     "attention_bias": True, "layer_types": ["full_attention", "linear_attention"] * 2,
                     "rope_parameters": {**QUARTER, "partial_rotary_factor": 0.5}}),
    ("Qwen3_5MoeText", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 24, "rope_parameters": QUARTER}),
    ("Qwen3Next", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 20, "decoder_sparse_step": 2, "rope_parameters": QUARTER}),
    ("Qwen3Next", {**DELTA, **EXPERTS, "linear_num_value_heads": 6, "linear_value_head_dim": 6, "norm_topk_prob": False,
                   "shared_expert_intermediate_size": 36, "mlp_only_layers": [0], "rope_parameters": QUARTER}),
]


def pack_mxfp4(directory, model, random):
    """Gives the experts random MXFP4 weights, by the package's own decoder, in the published files' tensors."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    path = os.path.join(directory, "model.safetensors")
    tensors = safetensors.torch.load_file(path)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        count, columns, rows = tensors.pop(name).shape
        blocks = torch.from_numpy(random.integers(0, 256, (count, rows, columns // 32, 16), np.uint8))
        scales = torch.from_numpy(random.integers(119, 124, (count, rows, columns // 32), np.uint8))
        tensors.update({name + "_blocks": blocks, name + "_scales": scales})
        with torch.no_grad():
            model.get_parameter(name).copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    path = os.path.join(directory, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)


def make(directory, family, overrides, seed):
    """The package's model with random weights, saved by the package."""
    overrides = dict(overrides)
    mxfp4, published = overrides.pop("mxfp4", False), overrides.pop("published", False)
    config = getattr(transformers, family + "Config")(**{**SIZES, **overrides})
    config._attn_implementation = "eager"
    name = family.removesuffix("Text") + "ForCausalLM"
    model = getattr(transformers, name)(config).eval()
    random = np.random.default_rng(seed)  # the same weights with every version of torch

    def normal(values):
        return torch.from_numpy(random.standard_normal(tuple(values.shape), np.float32))

    with torch.no_grad():
        for key, values in sorted(model.named_parameters()):
            scale = 1.5 if key.endswith("sinks") else 0.1 if values.ndim == 1 else 0.15
            values.copy_(normal(values) * scale)
            offset = family.startswith(("Gemma3", "Qwen3_5", "Qwen3Next")) and "linear_attn.norm" not in key
            if ("norm" in key and key.endswith("weight") or "scale" in key) and not offset:
                values.add_(1)
        for key, values in sorted(model.named_buffers()):
            if key.endswith("e_score_correction_bias"):
                values.copy_(normal(values) * 0.2)
            if key.endswith("layer_scalar"):
                values.copy_(1 + normal(values) * 0.2)
    model.save_pretrained(directory)
    if published:  # the keys of the makers' files, where the package has per_layer_config
        path = os.path.join(directory, "config.json")
        with open(path, encoding="utf-8") as file:
            saved = json.load(file)
        saved.pop("per_layer_config")
        saved.update({"global_head_dim": overrides["global_head_dim"], "num_global_key_value_heads": None})
        with open(path, "w", encoding="utf-8") as file:
            json.dump(saved, file)
    if mxfp4:
        pack_mxfp4(directory, model, random)
    return model


def log_probs(logits):
    logits = logits.astype(np.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def program():
    build = os.path.dirname(os.environ.get("REPRISE_BIN", "build/release/reprise"))
    path = os.path.join(build, "tests", "test_model_stories260k")
    if not os.path.exists(path):
        print("SKIP: the test programs are not built")
        sys.exit(77)
    return path


def ours(binary, directory, ids, chunk, vocab, dtype="f32"):
    out = os.path.join(directory, "logits")
    done = subprocess.run([binary, "--logits", directory, out, dtype, str(chunk), *map(str, ids)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return np.fromfile(out, np.float32).reshape(-1, vocab)


def theirs(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def check_wrong_is_seen(model, ids, got):
    """A network without one of gpt-oss's additions is far from ours."""
    for part in ("self_attn.sinks", "mlp.router.bias", "mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj_bias"):
        values = model.get_parameter("model.layers.1." + part)
        kept = values.detach().clone()
        with torch.no_grad():
            values.zero_()
        error = np.abs(log_probs(theirs(model, ids))[-1] - got[-1]).max()
        with torch.no_grad():
            values.copy_(kept)
        assert error > 5 * LIMIT, f"without {part} log-probabilities differ by {error:.2e} only"


def check(binary, directory, family, overrides, seed):
    ids = np.random.default_rng(seed).integers(3, 260, TOKENS).tolist()
    model = make(directory, family, overrides, seed)
    want, worst = log_probs(theirs(model, ids)), 0.0
    for chunk in (0, 7, TOKENS):
        got = log_probs(ours(binary, directory, ids, chunk, 260))
        rows = [min(at + max(chunk, 1), TOKENS) - 1 for at in range(0, TOKENS, max(chunk, 1))]
        worst = max(worst, np.abs(got - want[rows]).max())
    if family == "GptOss":
        check_wrong_is_seen(model, ids, got)
    if "mxfp4" in overrides:  # from the four bits, with rows rounded to bf16
        error = np.abs(log_probs(ours(binary, directory, ids, TOKENS, 260, "bf16")) - want[-1:]).max()
        assert error <= 0.15, f"in bf16 log-probabilities differ by {error:.2e}"
    spread = want.max(axis=-1).mean() - want.min(axis=-1).mean()
    assert worst <= LIMIT, f"log-probabilities differ by {worst:.2e}"
    text = list(ids)
    for _ in range(GREEDY):
        text.append(int(theirs(model, text)[-1].argmax()))
    decoded = ours(binary, directory, text, 0, 260)[TOKENS - 1:-1].argmax(axis=-1).tolist()
    assert decoded == text[TOKENS:], (decoded, text[TOKENS:])
    return worst, spread


def main():
    binary, failed, wanted = program(), 0, [name.lower() for name in sys.argv[1:]]
    transformers.logging.set_verbosity_error()
    for seed, (family, overrides) in enumerate(VARIANTS):
        if wanted and family.lower() not in wanted:
            continue
        with tempfile.TemporaryDirectory() as directory:
            try:
                worst, spread = check(binary, directory, family, overrides, seed)
                print(f"{family} {seed}: log-probabilities within {worst:.1e} (spread {spread:.1f})", flush=True)
            except AssertionError as error:
                failed += 1
                print(f"FAILED {family} {json.dumps(overrides)}: {error}", flush=True)
    print(f"{'1 passed, 0' if not failed else '0 passed, 1'} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
