"""Small random models in Hugging Face's file formats, for tests of loading and serving.

    from random_models import write_model
    model = write_model(directory, "qwen3", dtype="bf16", shards=2, tied=False, seed=3)
    model.config            the contents of config.json
    model.tensors[name]     the exact f32 values of the file, as numpy arrays

Needs numpy and safetensors, which writes the files; the index of the shards is written here. The
tokenizer is one token per byte (ids 0 to 255), then "<|end|>" (256): enough to serve with.
"""
import json
import os
from types import SimpleNamespace

import numpy as np
import safetensors

FAMILIES = {
    "llama": ("LlamaForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {"sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "gemma2": ("Gemma2ForCausalLM", {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 12, "sliding_window": 9,
                                     "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": None, "head_dim": None, "hidden_size": 48, "num_attention_heads": 6}),
    "gemma3": ("Gemma3ForCausalLM", {"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
                                     "query_pre_attn_scalar": 10, "sliding_window": 9, "sliding_window_pattern": 3,
                                     "rope_theta": 1e6, "rope_local_base_freq": 1e4, "final_logit_softcapping": None}),
    "granite": ("GraniteForCausalLM", {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.3,
                                       "logits_scaling": 0.3}),
    "granite_hybrid": ("GraniteMoeHybridForCausalLM", {
        "model_type": "granitemoehybrid", "num_local_experts": 0, "shared_intermediate_size": 44, "logits_scaling": 0.5,
        "position_embedding_type": "rope", "layer_types": ["attention"] * 3, "attention_multiplier": 0.3}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "olmo3": ("Olmo3ForCausalLM", {"sliding_window": 9, "rope_theta": 500000.0, "num_hidden_layers": 4}),
    "smollm3": ("SmolLM3ForCausalLM", {"no_rope_layer_interval": 2}),
    "ministral": ("MinistralForCausalLM", {"sliding_window": 9, "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention"]}),
    "ministral3": ("Ministral3ForCausalLM", {"sliding_window": None, "rope_theta": None, "rope_parameters": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0,
        "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    "internlm2": ("InternLM2ForCausalLM", {"bias": False, "rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "internlm3": ("InternLM3ForCausalLM", {"bias": False, "qkv_bias": False}),
    "stablelm": ("StableLmForCausalLM", {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25, "use_qkv_bias": True,
                                         "use_parallel_residual": False, "qk_layernorm": False, "hidden_size": 48}),
    "glm": ("GlmForCausalLM", {"partial_rotary_factor": 0.5, "attention_bias": True}),
    "glm4": ("Glm4ForCausalLM", {"partial_rotary_factor": 0.5, "attention_bias": True}),
    "cohere": ("CohereForCausalLM", {"layer_norm_eps": 1e-5, "logit_scale": 1.5, "use_qk_norm": False}),
    "cohere2": ("Cohere2ForCausalLM", {"layer_norm_eps": 1e-5, "logit_scale": 1.5, "sliding_window": 9,
                                       "sliding_window_pattern": 2, "hidden_size": 48}),
}
# With experts; widths are multiples of 16.
EXPERTS = {"hidden_size": 48, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES.update({
    "mixtral": ("MixtralForCausalLM", {"hidden_size": 48, "intermediate_size": 32, "sliding_window": None,
                                       "num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {**EXPERTS, "num_experts": 7, "norm_topk_prob": False,
                                          "shared_expert_intermediate_size": 20, "decoder_sparse_step": 1}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**EXPERTS, "num_experts": 6, "norm_topk_prob": True, "mlp_only_layers": [1]}),
    "olmoe": ("OlmoeForCausalLM", {"hidden_size": 48, "intermediate_size": 16, "num_experts": 9, "num_experts_per_tok": 3,
                                   "norm_topk_prob": False}),
    "granite_moe": ("GraniteMoeForCausalLM", {
        "model_type": "granitemoe", "hidden_size": 48, "intermediate_size": 32, "num_local_experts": 6,
        "num_experts_per_tok": 2, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.3,
        "logits_scaling": 0.3}),
    "glm4_moe": ("Glm4MoeForCausalLM", {
        **EXPERTS, "num_experts_per_tok": 3, "n_routed_experts": 12, "n_group": 4, "topk_group": 2, "n_shared_experts": 2,
        "routed_scaling_factor": 1.5, "first_k_dense_replace": 1, "norm_topk_prob": True, "use_qk_norm": False,
        "attention_bias": True, "partial_rotary_factor": 0.5}),
    "gpt_oss": ("GptOssForCausalLM", {
        "hidden_size": 48, "intermediate_size": 32, "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 9,
        "attention_bias": True, "swiglu_limit": 7.0, "rope_theta": 150000.0, "rope_scaling": {
            "rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 0.1, "truncate": False,
            "original_max_position_embeddings": 32}}),
})
# With latents: kv_lora_rank and v_head_dim are multiples of 16, too.
LATENT = {**EXPERTS, "head_dim": None, "num_key_value_heads": 6, "kv_lora_rank": 32, "q_lora_rank": 20, "qk_nope_head_dim": 10,
          "qk_rope_head_dim": 6, "v_head_dim": 16, "num_experts_per_tok": 3, "n_routed_experts": 12, "n_group": 4,
          "topk_group": 2, "n_shared_experts": 2, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1,
          "attention_bias": False, "moe_layer_freq": 1}
FAMILIES.update({
    "deepseek_v2": ("DeepseekV2ForCausalLM", {**LATENT, "q_lora_rank": None, "topk_method": "group_limited_greedy",
                                              "norm_topk_prob": False, "scoring_func": "softmax"}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {**LATENT, "topk_method": "noaux_tc", "norm_topk_prob": True,
                                              "scoring_func": "sigmoid", "rope_interleave": True}),
})
GEMMA4_LAYERS = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]
FAMILIES["gemma4"] = ("Gemma4ForCausalLM", {
    "model_type": "gemma4_text", "hidden_size": 48, "hidden_activation": "gelu_pytorch_tanh", "global_head_dim": 12,
    "num_global_key_value_heads": 1, "attention_k_eq_v": True, "sliding_window": 9, "num_hidden_layers": 5,
    "layer_types": GEMMA4_LAYERS, "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 270, "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2,
    "moe_intermediate_size": 16, "final_logit_softcapping": 3.0, "rope_theta": None, "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}})
# With recurrent state.
DELTA = {"head_dim": 8, "partial_rotary_factor": 0.5, "full_attention_interval": 2, "linear_conv_kernel_dim": 4,
         "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 10}
SHARED = {"num_experts": 6, "shared_expert_intermediate_size": 20}
FAMILIES.update({
    "lfm2": ("Lfm2ForCausalLM", {
        "head_dim": None, "hidden_size": 48, "rms_norm_eps": None, "hidden_act": None, "norm_eps": 1e-5, "conv_L_cache": 3,
        "conv_bias": False, "layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": True,
        "block_multiple_of": 4, "block_ffn_dim_multiplier": 1.0}),
    "qwen3_next": ("Qwen3NextForCausalLM", {**EXPERTS, **DELTA, **SHARED, "norm_topk_prob": True, "decoder_sparse_step": 1,
                                            "mlp_only_layers": []}),
    "qwen3_5": ("Qwen3_5ForCausalLM", {**DELTA, "model_type": "qwen3_5_text", "full_attention_interval": None,
                                       "layer_types": ["linear_attention", "linear_attention", "full_attention"]}),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", {**EXPERTS, **DELTA, **SHARED, "model_type": "qwen3_5_moe_text"}),
})
DELTA_FAMILIES = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
SHARED_GATES = ("qwen2_moe", "qwen3_next", "qwen3_5_moe")
LAYER_NORMS = ("stablelm", "cohere", "cohere2")
# InternLM2's names of Llama's tensors.
INTERNLM2 = {"model.embed_tokens": "model.tok_embeddings", "lm_head": "output", "self_attn.o_proj": "attention.wo",
             "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "feed_forward.w1",
             "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2", "self_attn.qkv_proj": "attention.wqkv"}
# LFM2's.
LFM2 = {"model.norm": "model.embedding_norm", "self_attn.o_proj": "self_attn.out_proj", "self_attn.q_norm": "self_attn.q_layernorm",
        "self_attn.k_norm": "self_attn.k_layernorm", "input_layernorm": "operator_norm", "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2"}
# Our name -> the name in config.json and in safetensors.
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
BYTE_TOKENS = 256
END_ID = 256


def to_bf16_bits(values):
    """f32 -> the upper 16 bits, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16_bits(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values, dtype):
    """`values` rounded to `dtype`, as f32."""
    values = np.asarray(values, np.float32)
    if dtype == "bf16":
        return from_bf16_bits(to_bf16_bits(values)).reshape(values.shape)
    if dtype == "f16":
        return values.astype(np.float16).astype(np.float32)
    return values


def encoded(values, dtype):
    """`values` as an array of a file's elements of `dtype`."""
    if dtype == "bf16":
        return to_bf16_bits(values)
    return np.ascontiguousarray(values, np.float16 if dtype == "f16" else np.float32)


def has_bias(config, family, part):
    """Whether the linear `part` (q, o or mlp) has a bias."""
    if family in ("qwen2", "qwen2_moe"):
        return part == "q"
    if family == "stablelm":
        return part == "q" and config["use_qkv_bias"]
    if family in ("internlm2", "internlm3"):
        return config["bias"] and (part != "mlp" or family == "internlm3")
    if part == "mlp":
        return config.get("mlp_bias", False)
    return config.get("attention_bias", False) and (part == "q" or not family.startswith("glm"))


def head_dim_of(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def norms_of(config, family):
    """Norms of a layer over hidden_size."""
    if family in ("olmo2", "olmo3"):
        return ["post_attention_layernorm", "post_feedforward_layernorm"]
    if family.startswith("cohere") or (family == "stablelm" and config["use_parallel_residual"]):
        return ["input_layernorm"]
    extra = {"gemma2": ["pre_feedforward_layernorm", "post_feedforward_layernorm"],
             "gemma3": ["pre_feedforward_layernorm", "post_feedforward_layernorm"],
             "glm4": ["post_self_attn_layernorm", "post_mlp_layernorm"]}
    return ["input_layernorm", "post_attention_layernorm", *extra.get(family, [])]


def head_norm_shapes(config, family):
    """Names and shapes of the norms of q and k."""
    dim, heads = head_dim_of(config), {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    if family in ("qwen3", "gemma3", "qwen3_moe", "lfm2", *DELTA_FAMILIES) or (family == "glm4_moe" and config["use_qk_norm"]):
        return {f"self_attn.{x}_norm.weight": (dim,) for x in heads}
    if family.startswith("deepseek"):
        ranks = {"kv_a_layernorm": config["kv_lora_rank"], "q_a_layernorm": config["q_lora_rank"]}
        return {f"self_attn.{name}.weight": (rank,) for name, rank in ranks.items() if rank}
    if family.startswith("olmo"):
        return {f"self_attn.{x}_norm.weight": (n * dim,) for x, n in heads.items()}
    if family == "cohere" and config["use_qk_norm"]:
        return {f"self_attn.{x}_norm.weight": (n, dim) for x, n in heads.items()}
    if family == "stablelm" and config["qk_layernorm"]:
        return {f"self_attn.{x}_layernorm.norms.{i}.weight": (dim,) for x, n in heads.items() for i in range(n)}
    return {}


def has_state(config, family, layer):
    """Whether the layer has a recurrent state in place of attention."""
    types = config.get("layer_types")
    if family == "lfm2":
        return types[layer] == "conv"
    if family not in DELTA_FAMILIES:
        return False
    return types[layer] == "linear_attention" if types else (layer + 1) % config["full_attention_interval"] != 0


def state_shapes(config, family):
    """Tensors of such a layer: name -> shape."""
    hidden = config["hidden_size"]
    if family == "lfm2":
        return {"conv.in_proj.weight": (3 * hidden, hidden), "conv.conv.weight": (hidden, 1, config["conv_L_cache"]),
                "conv.out_proj.weight": (hidden, hidden)}
    heads = config["linear_num_value_heads"]
    keys, values = config["linear_num_key_heads"] * config["linear_key_head_dim"], heads * config["linear_value_head_dim"]
    inputs = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * heads} if family == "qwen3_next" else {
        "in_proj_qkv": 2 * keys + values, "in_proj_z": values, "in_proj_b": heads, "in_proj_a": heads}
    return {**{f"linear_attn.{name}.weight": (rows, hidden) for name, rows in inputs.items()},
            "linear_attn.conv1d.weight": (2 * keys + values, 1, config["linear_conv_kernel_dim"]),
            "linear_attn.A_log": (heads,), "linear_attn.dt_bias": (heads,),
            "linear_attn.norm.weight": (config["linear_value_head_dim"],), "linear_attn.out_proj.weight": (hidden, values)}


def lfm2_width(config):
    """The width of LFM2's MLP."""
    if not config["block_auto_adjust_ff_dim"]:
        return config["intermediate_size"]
    width = int(config["block_ffn_dim_multiplier"] * int(2 * config["intermediate_size"] / 3))
    return -(-width // config["block_multiple_of"]) * config["block_multiple_of"]


def experts_of(config, family):
    """The number of experts of a layer that has any, and the width of one; (0, 0): no such family."""
    count = config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts") or 0
    return (count, config.get("moe_intermediate_size", config["intermediate_size"])) if family != "granite_hybrid" else (0, 0)


def has_experts(config, family, layer):
    if not experts_of(config, family)[0] or layer in config.get("mlp_only_layers", []):
        return False
    return (layer + 1) % config.get("decoder_sparse_step", 1) == 0 and layer >= config.get("first_k_dense_replace", 0)


def expert_shapes(config, family):
    """Tensors of a mixture of experts: name -> shape."""
    hidden, (count, inner) = config["hidden_size"], experts_of(config, family)
    if family == "granite_moe":
        return {"block_sparse_moe.router.layer.weight": (count, hidden),
                "block_sparse_moe.input_linear.weight": (count, 2 * inner, hidden),
                "block_sparse_moe.output_linear.weight": (count, hidden, inner)}
    if family == "gpt_oss":
        return {"mlp.router.weight": (count, hidden), "mlp.router.bias": (count,), "self_attn.sinks": (config["num_attention_heads"],),
                "mlp.experts.gate_up_proj": (count, hidden, 2 * inner), "mlp.experts.gate_up_proj_bias": (count, 2 * inner),
                "mlp.experts.down_proj": (count, inner, hidden), "mlp.experts.down_proj_bias": (count, hidden)}
    names = ("w1", "w3", "w2") if family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    block = "block_sparse_moe." if family == "mixtral" else "mlp."
    shapes = {block + "gate.weight": (count, hidden)}
    for i in range(count):
        shapes.update({f"{block}experts.{i}.{name}.weight": (hidden, inner) if name == names[2] else (inner, hidden)
                       for name in names})
    shared = config.get("shared_expert_intermediate_size", config.get("n_shared_experts", 0) * inner)
    if shared:
        at = "mlp.shared_expert." if family in SHARED_GATES else "mlp.shared_experts."
        shapes.update({at + "gate_proj.weight": (shared, hidden), at + "up_proj.weight": (shared, hidden),
                       at + "down_proj.weight": (hidden, shared)})
    if family in SHARED_GATES:
        shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
    if family in ("glm4_moe", "deepseek_v3"):
        shapes["mlp.gate.e_score_correction_bias"] = (count,)
    return shapes


def linears_of(config, family):
    """Linears of a layer: name -> (rows, columns, which bias they have)."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], head_dim_of(config)
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    inner = lfm2_width(config) if family == "lfm2" else inner
    q_rows = 2 * q if family in DELTA_FAMILIES else q  # and the gate of the output
    linears = {"self_attn.q_proj": (q_rows, hidden, "q"), "self_attn.k_proj": (kv, hidden, "q"), "self_attn.v_proj": (kv, hidden, "q")}
    if family.startswith("deepseek"):
        heads, rope, rank, q_rank = (config[key] for key in (
            "num_attention_heads", "qk_rope_head_dim", "kv_lora_rank", "q_lora_rank"))
        nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
        linears = {"self_attn.q_a_proj": (q_rank, hidden, ""), "self_attn.q_b_proj": (heads * (nope + rope), q_rank, "")} \
            if q_rank else {"self_attn.q_proj": (heads * (nope + rope), hidden, "")}
        linears.update({"self_attn.kv_a_proj_with_mqa": (rank + rope, hidden, ""),
                        "self_attn.kv_b_proj": (heads * (nope + value), rank, "")})
        q = heads * value
    if family in ("phi3", "internlm2"):
        linears = {"self_attn.qkv_proj": (q + 2 * kv, hidden, "q")}
    linears["self_attn.o_proj"] = (hidden, q, "o")
    if family == "granite_hybrid":
        inner = config["shared_intermediate_size"]
        linears.update({"shared_mlp.input_linear": (2 * inner, hidden, ""), "shared_mlp.output_linear": (hidden, inner, "")})
        return linears
    if family in ("phi3", "glm", "glm4"):
        linears["mlp.gate_up_proj"] = (2 * inner, hidden, "mlp")
    else:
        linears.update({"mlp.gate_proj": (inner, hidden, "mlp"), "mlp.up_proj": (inner, hidden, "mlp")})
    linears["mlp.down_proj"] = (hidden, inner, "mlp")
    return linears


def renamed(name, family):
    if family in ("internlm2", "lfm2"):
        for ours, theirs in (INTERNLM2 if family == "internlm2" else LFM2).items():
            name = name.replace(ours, theirs)
    return name


def gemma4_heads(config, layer):
    """Head size, KV heads, whether K and V are another layer's, whether V is K."""
    full = config["layer_types"][layer] == "full_attention"
    shared = layer >= config["num_hidden_layers"] - config["num_kv_shared_layers"]
    k_is_v = full and config["attention_k_eq_v"]
    return (config["global_head_dim"] if full else config["head_dim"],
            config["num_global_key_value_heads"] if k_is_v else config["num_key_value_heads"], shared, k_is_v)


def gemma4_shapes(config):
    hidden, width, layers = config["hidden_size"], config["hidden_size_per_layer_input"], config["num_hidden_layers"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if width:
        shapes.update({"model.embed_tokens_per_layer.weight": (config["vocab_size_per_layer_input"], layers * width),
                       "model.per_layer_model_projection.weight": (layers * width, hidden),
                       "model.per_layer_projection_norm.weight": (width,)})
    for layer in range(layers):
        dim, kv_heads, shared, k_is_v = gemma4_heads(config, layer)
        inner = config["intermediate_size"] * (2 if shared and config["use_double_wide_mlp"] else 1)
        q, kv = config["num_attention_heads"] * dim, kv_heads * dim
        own = {"self_attn.q_proj": (q, hidden), "self_attn.q_norm": (dim,), "self_attn.o_proj": (hidden, q),
               "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
        own.update({name + "_layernorm": (hidden,) for name in ("input", "post_attention", "pre_feedforward", "post_feedforward")})
        if not shared:
            own.update({"self_attn.k_proj": (kv, hidden), "self_attn.k_norm": (dim,)})
        if not shared and not k_is_v:
            own["self_attn.v_proj"] = (kv, hidden)
        if width:
            own.update({"per_layer_input_gate": (width, hidden), "per_layer_projection": (hidden, width),
                        "post_per_layer_input_norm": (hidden,)})
        at = f"model.layers.{layer}."
        shapes[at + "layer_scalar"] = (1,)
        if config["enable_moe_block"]:
            count, expert = config["num_experts"], config["moe_intermediate_size"]
            own.update({"post_feedforward_layernorm_1": (hidden,), "pre_feedforward_layernorm_2": (hidden,),
                        "post_feedforward_layernorm_2": (hidden,), "router.proj": (count, hidden)})
            shapes.update({at + "router.scale": (hidden,), at + "router.per_expert_scale": (count,),
                           at + "experts.gate_up_proj": (count, 2 * expert, hidden),
                           at + "experts.down_proj": (count, hidden, expert)})
        shapes.update({at + name + ".weight": shape for name, shape in own.items()})
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def shapes_of(config, family):
    """Name -> shape of every tensor of a checkpoint."""
    if family == "gemma4":
        return gemma4_shapes(config)
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    biased_norms = family == "stablelm"
    if biased_norms:
        shapes["model.norm.bias"] = (hidden,)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name in norms_of(config, family):
            shapes[at + name + ".weight"] = (hidden,)
            if biased_norms:
                shapes[at + name + ".bias"] = (hidden,)
        experts, state = has_experts(config, family, layer), has_state(config, family, layer)
        shapes.update({at + name: shape for name, shape in expert_shapes(config, family).items()} if experts else {})
        for name, (rows, columns, part) in linears_of(config, family).items():
            if (experts and name.startswith("mlp.")) or (state and name.startswith("self_attn.")):
                continue
            shapes[at + name + ".weight"] = (rows, columns)
            if part and has_bias(config, family, part):
                shapes[at + name + ".bias"] = (rows,)
        for name, shape in (state_shapes if state else head_norm_shapes)(config, family).items():
            shapes[at + name] = shape
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return {renamed(name, family): shape for name, shape in shapes.items()}


def write_json(directory, name, value):
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)


def write_tensors(path, tensors, dtype):
    arrays = {name: encoded(values, dtype) for name, values in tensors.items()}  # alive until written
    if hasattr(safetensors, "TensorSpec"):
        entries = {name: safetensors.TensorSpec(dtype=DTYPES[dtype], shape=list(array.shape),
                                                data_ptr=array.ctypes.data, data_len=array.nbytes)
                   for name, array in arrays.items()}
    else:  # before 0.8
        entries = {name: {"dtype": DTYPES[dtype], "shape": list(array.shape), "data": array.tobytes()}
                   for name, array in arrays.items()}
    safetensors.serialize_file(entries, path, {"format": "pt"})


def byte_tokenizer():
    """The byte-level alphabet of GPT-2 in the order of the bytes, and no merges."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters.update({byte: chr(256 + i) for i, byte in enumerate(others)})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": END_ID, "content": "<|end|>", "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}],
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": False, "vocab": {letters[byte]: byte for byte in range(256)},
                  "merges": []},
    }


# A model with images, of which the text model is a part: the two spellings of its tensors' names.
WRAPPERS = {"gemma3": ("Gemma3ForConditionalGeneration", lambda name: "language_model." + name),
            "mistral3": ("Mistral3ForConditionalGeneration", lambda name: name.replace("model.", "model.language_model.")),
            "qwen3_5": ("Qwen3_5ForConditionalGeneration", lambda name: name.replace("model.", "model.language_model."))}


def wrapped(config, wrapper):
    """The config.json of the whole model."""
    outside = ("architectures", "tie_word_embeddings", "torch_dtype", "eos_token_id", "bos_token_id")
    text = {key: value for key, value in config.items() if key not in outside}
    return {**{key: config[key] for key in outside}, "architectures": [WRAPPERS[wrapper][0]], "model_type": wrapper,
            "text_config": text, "vision_config": {"hidden_size": 8}}


def write_model(directory, family, dtype="f32", shards=1, tied=True, seed=0, wrapper=None, **overrides):
    """Writes config.json, generation_config.json, the weights and a tokenizer. `overrides` are keys of
    config.json; `wrapper`: as the text part of a model with images. Heads and sizes are odd on purpose, so that no size matches another by chance."""
    architecture, extra = FAMILIES[family]
    config = {
        "architectures": [architecture], "model_type": family, "hidden_size": 40,
        "intermediate_size": 52, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 260, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": tied, "torch_dtype": DTYPES[dtype], "bos_token_id": None,
        "eos_token_id": END_ID, **extra, **overrides,
    }
    if family in LAYER_NORMS:
        del config["rms_norm_eps"]
    for key in ("head_dim", "rope_theta", "rms_norm_eps", "hidden_act", "full_attention_interval"):  # None: not in the file
        if key in config and config[key] is None:
            del config[key]
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes_of(config, family).items():
        # Routers choose clearly, so that rounding changes no choice.
        scale = 0.5 if "gate.weight" in name or "router" in name or "sinks" in name else 0.05
        if "router.proj" in name:  # it reads inputs divided by sqrt(hidden_size)
            scale = 4.0
        values = random.standard_normal(shape, np.float32) * scale
        # Some families add the one themselves.
        plain = not family.startswith("gemma") or family == "gemma4"
        plain = plain and (family not in DELTA_FAMILIES or "linear_attn.norm" in name)
        around_one = plain and ("norm" in name and name.endswith("weight") or "scal" in name)
        # Gemma 4 does not scale scores: smaller ones, so that rounding stays small.
        one = 0.5 if family == "gemma4" and ("q_norm" in name or "k_norm" in name) else 1
        tensors[name] = rounded(values + one if around_one else values, dtype)
    os.makedirs(directory, exist_ok=True)
    write_json(directory, "config.json", wrapped(config, wrapper) if wrapper else config)
    write_json(directory, "generation_config.json", {"eos_token_id": [END_ID]})
    write_json(directory, "tokenizer.json", byte_tokenizer())
    names = list(tensors)
    if wrapper:
        in_file = {WRAPPERS[wrapper][1](name): values for name, values in tensors.items()}
        write_tensors(os.path.join(directory, "model.safetensors"), in_file, dtype)
    elif shards == 1:
        write_tensors(os.path.join(directory, "model.safetensors"), tensors, dtype)
    else:
        weight_map = {}
        for shard in range(shards):
            file_name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            part = {name: tensors[name] for name in names[shard::shards]}
            write_tensors(os.path.join(directory, file_name), part, dtype)
            weight_map.update(dict.fromkeys(part, file_name))
        size = sum(values.size for values in tensors.values()) * (4 if dtype == "f32" else 2)
        write_json(directory, "model.safetensors.index.json",
                   {"metadata": {"total_size": size}, "weight_map": weight_map})
    return SimpleNamespace(config=config, tensors=tensors, family=family, dtype=dtype)
