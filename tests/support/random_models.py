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
}
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


def shapes_of(config, family):
    """Name -> shape of every tensor of a checkpoint."""
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q = config["num_attention_heads"] * head_dim
    kv = config["num_key_value_heads"] * head_dim
    qkv_bias = family == "qwen2" or config.get("attention_bias", False)
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes[at + "input_layernorm.weight"] = (hidden,)
        shapes[at + "post_attention_layernorm.weight"] = (hidden,)
        if family == "gemma2":
            shapes[at + "pre_feedforward_layernorm.weight"] = (hidden,)
            shapes[at + "post_feedforward_layernorm.weight"] = (hidden,)
        for name, shape in (("q", (q, hidden)), ("k", (kv, hidden)), ("v", (kv, hidden)), ("o", (hidden, q))):
            shapes[at + f"self_attn.{name}_proj.weight"] = shape
            if qkv_bias and (name != "o" or family != "qwen2"):
                shapes[at + f"self_attn.{name}_proj.bias"] = shape[:1]
        if family == "qwen3":
            shapes[at + "self_attn.q_norm.weight"] = (head_dim,)
            shapes[at + "self_attn.k_norm.weight"] = (head_dim,)
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            shapes[at + f"mlp.{name}_proj.weight"] = shape
            if config.get("mlp_bias"):
                shapes[at + f"mlp.{name}_proj.bias"] = shape[:1]
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


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


def write_model(directory, family, dtype="f32", shards=1, tied=True, seed=0, **overrides):
    """Writes config.json, generation_config.json, the weights and a tokenizer. `overrides` are keys of
    config.json. Heads and sizes are odd on purpose, so that no size matches another by chance."""
    architecture, extra = FAMILIES[family]
    config = {
        "architectures": [architecture], "model_type": family, "hidden_size": 40,
        "intermediate_size": 52, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 260, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": tied, "torch_dtype": DTYPES[dtype], "bos_token_id": None,
        "eos_token_id": END_ID, **extra, **overrides,
    }
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes_of(config, family).items():
        values = random.standard_normal(shape, np.float32) * 0.05
        around_one = "norm" in name and family != "gemma2"  # which adds the one itself
        tensors[name] = rounded(values + 1 if around_one else values, dtype)
    os.makedirs(directory, exist_ok=True)
    write_json(directory, "config.json", config)
    write_json(directory, "generation_config.json", {"eos_token_id": [END_ID]})
    write_json(directory, "tokenizer.json", byte_tokenizer())
    names = list(tensors)
    if shards == 1:
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
