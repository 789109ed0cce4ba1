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
})
LAYER_NORMS = ("stablelm", "cohere", "cohere2")
# InternLM2's names of Llama's tensors.
INTERNLM2 = {"model.embed_tokens": "model.tok_embeddings", "lm_head": "output", "self_attn.o_proj": "attention.wo",
             "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "feed_forward.w1",
             "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2", "self_attn.qkv_proj": "attention.wqkv"}
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
    if family in ("qwen3", "gemma3", "qwen3_moe") or (family == "glm4_moe" and config["use_qk_norm"]):
        return {f"self_attn.{x}_norm.weight": (dim,) for x in heads}
    if family.startswith("olmo"):
        return {f"self_attn.{x}_norm.weight": (n * dim,) for x, n in heads.items()}
    if family == "cohere" and config["use_qk_norm"]:
        return {f"self_attn.{x}_norm.weight": (n, dim) for x, n in heads.items()}
    if family == "stablelm" and config["qk_layernorm"]:
        return {f"self_attn.{x}_layernorm.norms.{i}.weight": (dim,) for x, n in heads.items() for i in range(n)}
    return {}


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
    names = ("w1", "w3", "w2") if family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    block = "block_sparse_moe." if family == "mixtral" else "mlp."
    shapes = {block + "gate.weight": (count, hidden)}
    for i in range(count):
        shapes.update({f"{block}experts.{i}.{name}.weight": (hidden, inner) if name == names[2] else (inner, hidden)
                       for name in names})
    shared = config.get("shared_expert_intermediate_size", config.get("n_shared_experts", 0) * inner)
    if shared:
        at = "mlp.shared_expert." if family == "qwen2_moe" else "mlp.shared_experts."
        shapes.update({at + "gate_proj.weight": (shared, hidden), at + "up_proj.weight": (shared, hidden),
                       at + "down_proj.weight": (hidden, shared)})
    if family == "qwen2_moe":
        shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
    if family == "glm4_moe":
        shapes["mlp.gate.e_score_correction_bias"] = (count,)
    return shapes


def linears_of(config, family):
    """Linears of a layer: name -> (rows, columns, which bias they have)."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], head_dim_of(config)
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    linears = {"self_attn.q_proj": (q, hidden, "q"), "self_attn.k_proj": (kv, hidden, "q"), "self_attn.v_proj": (kv, hidden, "q")}
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
    if family == "internlm2":
        for ours, theirs in INTERNLM2.items():
            name = name.replace(ours, theirs)
    return name


def shapes_of(config, family):
    """Name -> shape of every tensor of a checkpoint."""
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
        experts = has_experts(config, family, layer)
        shapes.update({at + name: shape for name, shape in expert_shapes(config, family).items()} if experts else {})
        for name, (rows, columns, part) in linears_of(config, family).items():
            if experts and name.startswith("mlp."):
                continue
            shapes[at + name + ".weight"] = (rows, columns)
            if part and has_bias(config, family, part):
                shapes[at + name + ".bias"] = (rows,)
        for name, shape in head_norm_shapes(config, family).items():
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
            "mistral3": ("Mistral3ForConditionalGeneration", lambda name: name.replace("model.", "model.language_model."))}


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
    for key in ("head_dim", "rope_theta"):  # None: not in the file
        if config[key] is None:
            del config[key]
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes_of(config, family).items():
        # Routers choose clearly, so that rounding changes no choice.
        values = random.standard_normal(shape, np.float32) * (0.5 if "gate.weight" in name or "router" in name else 0.05)
        # Gemma adds the one itself.
        around_one = "norm" in name and name.endswith("weight") and not family.startswith("gemma")
        tensors[name] = rounded(values + 1 if around_one else values, dtype)
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
