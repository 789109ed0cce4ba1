#!/usr/bin/env python3
"""GGUF files of every architecture give the logits of the safetensors model that they were made from.

    python3 tests/oracle/gguf_families_oracle.py [ARCHITECTURE...]

Small random models are written as safetensors and as GGUF, with the names, orders of rows and keys of llama.cpp's
converter, in F32 and Q8_0 (then the safetensors hold the values of the blocks). Prompts are longer than every window and
every original length of RoPE. Keys that would change the output and are not implemented are refused by name.
"""
import json
import os
import subprocess
import sys
import tempfile

from reprise_server import BIN, skip

try:
    import gguf
    import numpy as np
    from gguf import GGMLQuantizationType as T
    from random_models import head_dim_of, write_model, write_tensors
except ImportError as error:
    skip(str(error))

LOGITS = os.path.join(os.path.dirname(BIN), "tests", "test_model_stories260k")
TOKENS, LIMIT = 70, 1e-5
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 4}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
LONG = {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [1.0, 2.5, 6.0, 7.0]}

# architecture of the file, family, keys of config.json
VARIANTS = [
    ("llama", "llama", {"attention_bias": True}),
    ("llama", "llama", {"rope_scaling": YARN}),
    ("llama", "mistral", {"sliding_window": 9, "tie_word_embeddings": False}),
    ("llama", "mistral", {"rope_scaling": {**YARN, "attention_factor": 1.5, "beta_fast": 16.0, "beta_slow": 2.0}}),
    ("llama", "internlm3", {}),
    ("internlm2", "internlm2", {"rope_scaling": None}),
    ("qwen2", "qwen2", {"rope_scaling": YARN}),
    ("qwen3", "qwen3", {}),
    ("gemma2", "gemma2", {"query_pre_attn_scalar": 16}),
    ("gemma3", "gemma3", {"query_pre_attn_scalar": 16, "sliding_window_pattern": 6, "num_hidden_layers": 7}),
    ("phi3", "phi3", {"sliding_window": 9}),
    ("phi3", "phi3", {"rope_scaling": LONG, "original_max_position_embeddings": 32, "partial_rotary_factor": 0.5}),
    ("granite", "granite", {}),
    ("granite", "granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    ("olmo2", "olmo2", {"tie_word_embeddings": False}),
    ("olmo2", "olmo3", {"tie_word_embeddings": False, "rope_scaling": YARN}),
    ("smollm3", "smollm3", {"no_rope_layer_interval": 4, "num_hidden_layers": 5}),
    ("stablelm", "stablelm", {"tie_word_embeddings": False}),
    ("stablelm", "stablelm", {"use_parallel_residual": True, "use_qkv_bias": False, "partial_rotary_factor": 0.5}),
    ("glm4", "glm4", {"tie_word_embeddings": False}),
    ("glm4", "glm4", {"attention_bias": False, "partial_rotary_factor": 1.0}),
    ("command-r", "cohere", {}),
    ("command-r", "cohere", {"use_qk_norm": True}),
    ("cohere2", "cohere2", {"sliding_window_pattern": 4, "num_hidden_layers": 5}),
]
NAMES = {
    "model.embed_tokens": "token_embd", "model.tok_embeddings": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "output": "output", "input_layernorm": "attn_norm", "attention_norm": "attn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
    "attention.wo": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_self_attn_layernorm": "post_attention_norm", "post_attention_layernorm": "ffn_norm", "pre_feedforward_layernorm": "ffn_norm",
    "ffn_norm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm", "post_mlp_layernorm": "post_ffw_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down",
}
PERMUTED = ("llama", "granite", "smollm3", "internlm2")
NUMBERS = {"attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale",
           "logits_scaling": "logit_scale", "logit_scale": "logit_scale", "layer_norm_eps": "attention.layer_norm_epsilon",
           "rms_norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base",
           "attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
INTEGERS = {"num_hidden_layers": "block_count", "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
            "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
            "max_position_embeddings": "context_length", "sliding_window": "attention.sliding_window"}


def new_name(name, arch):
    if not name.startswith("model.layers."):
        module, suffix = name.rsplit(".", 1)
        return f"{NAMES[module]}.{suffix}"
    _, _, layer, rest = name.split(".", 3)
    module, suffix = rest.rsplit(".", 1)
    after_attention = module == "post_attention_layernorm" and arch in ("gemma2", "gemma3", "olmo2")
    return f"blk.{layer}.{'post_attention_norm' if after_attention else NAMES[module]}.{suffix}"


def permuted(values, heads):
    """Rows of q and k from halves of a head to pairs."""
    return values.reshape(heads, 2, values.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)


def converted(config, tensors, arch):
    """(name in the file, values) of every tensor."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    for name, values in tensors.items():
        if arch.startswith("gemma") and "norm" in name:
            values = values + 1
        if ".attention.wqkv." in name:
            layer, group = name.split(".")[2], heads // kv_heads
            rows = values.reshape(kv_heads, group + 2, -1, values.shape[1])
            for part, chosen, count in (("q", rows[:, :group], heads), ("k", rows[:, group], kv_heads), ("v", rows[:, group + 1], 0)):
                chosen = chosen.reshape(-1, values.shape[1])
                yield f"blk.{layer}.attn_{part}.weight", permuted(chosen, count) if count else chosen
            continue
        if arch in PERMUTED and (".q_proj." in name or ".k_proj." in name):
            values = permuted(values, heads if ".q_proj." in name else kv_heads)
        yield new_name(name, arch), values


def add_rope(writer, config, arch):
    scaling, rotated = config.get("rope_scaling"), head_dim_of(config)
    writer.add_rope_dimension_count(int(rotated * config.get("partial_rotary_factor", 1)))
    if not scaling:
        return
    writer.add_rope_scaling_orig_ctx_len(scaling.get("original_max_position_embeddings") or config["original_max_position_embeddings"])
    if "long_factor" in scaling:
        scale = config["max_position_embeddings"] / config["original_max_position_embeddings"]
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(config["original_max_position_embeddings"]))))
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(scaling[length + "_factor"], np.float32))
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(scaling["factor"])
    for key, add in (("attention_factor", writer.add_rope_scaling_yarn_attn_factor), ("beta_fast", writer.add_rope_scaling_yarn_beta_fast),
                     ("beta_slow", writer.add_rope_scaling_yarn_beta_slow)):
        if key in scaling:
            add(scaling[key])


def write(path, arch, config, tensors, kind, edit=None):
    writer = gguf.GGUFWriter(path, arch)
    for key, name in INTEGERS.items():
        if config.get(key):
            writer.add_uint32(f"{arch}.{name}", config[key])
    for key, name in NUMBERS.items():
        if config.get(key) is not None:
            writer.add_float32(f"{arch}.{name}", config[key])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if "use_parallel_residual" in config:
        writer.add_parallel_residual(config["use_parallel_residual"])
    if config["architectures"] == ["Olmo3ForCausalLM"]:
        writer.add_sliding_window_pattern([(i + 1) % 4 != 0 for i in range(config["num_hidden_layers"])])
    add_rope(writer, config, arch)
    if edit:
        edit(writer)
    for name, values in converted(config, tensors, arch):
        if values.ndim == 1 or "norm" in name or kind == T.F32:
            writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
        else:
            writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values, np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(model, folder, vocabulary):
    out = os.path.join(folder, "logits")
    ids = np.random.default_rng(7).integers(0, vocabulary - 1, TOKENS)
    done = subprocess.run([LOGITS, "--logits", model, out, "f32", "7", *map(str, ids)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return np.fromfile(out, np.float32).reshape(-1, vocabulary)


def check(folder, arch, family, overrides, kind, seed):
    config = {**SIZES, **overrides}
    model = write_model(folder, family, seed=seed, **{"tied": config.pop("tie_word_embeddings", True), **config})
    tensors = {name: (np.asarray(values) * 3).astype(np.float32) if values.ndim == 2 and "norm" not in name else values
               for name, values in model.tensors.items()}
    if kind != T.F32:
        tensors = {name: values if values.ndim == 1 or "norm" in name else
                   gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind).reshape(values.shape).astype(np.float32)
                   for name, values in tensors.items()}
    write_tensors(os.path.join(folder, "model.safetensors"), tensors, "f32")
    path = write(os.path.join(folder, "model.gguf"), arch, model.config, tensors, kind)
    want, got = (logits(place, folder, model.config["vocab_size"]) for place in (folder, path))
    os.remove(path)
    error = float(np.abs(got - want).max())
    assert np.ptp(want) > 0.1 and error < LIMIT, f"{arch} of {family}, {kind.name}: logits differ by {error}"
    return error


def check_refusals(folder):
    model = write_model(folder, "granite", **SIZES)

    def refused(arch, edit, *words):
        path = write(os.path.join(folder, "model.gguf"), arch, model.config, model.tensors, T.F32, edit)
        done = subprocess.run([BIN, "inspect", path, "--device", "cpu"], capture_output=True, text=True, timeout=60)
        assert done.returncode > 0 and all(word in done.stderr for word in words), f"{words}: {done.stderr}"

    refused("granite", lambda w: w.add_bool("granite.rope.scaling.finetuned", False), "granite.rope.scaling.finetuned", "true")
    refused("granite", lambda w: w.add_rope_scaling_yarn_log_mul(0.1), "granite.rope.scaling.yarn_log_multiplier", "not supported")
    refused("granite", lambda w: w.add_rope_scaling_attn_factors(1.5), "granite.rope.scaling.attn_factor")
    refused("granite", lambda w: w.add_sliding_window_pattern([True] * 4), "granite.attention.sliding_window_pattern")
    refused("llama", None, "llama.attention.scale")
    refused("qwen2", lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "qwen2.")
    model.config.update(attention_multiplier=None, embedding_multiplier=None, residual_multiplier=None, logits_scaling=None)
    refused("stablelm", lambda w: w.add_tensor("blk.0.attn_q_norm.weight", np.ones((4, 16), np.float32)), "blk.0.attn_q_norm.weight")
    refused("chatglm", None, "chatglm", "command-r, cohere2")


def main():
    if not os.path.exists(LOGITS):
        skip("the test programs are not built")
    chosen = sys.argv[1:]
    with np.errstate(all="ignore"), tempfile.TemporaryDirectory() as folder:
        worst = [check(folder, arch, family, overrides, kind, seed) for seed, (arch, family, overrides) in enumerate(VARIANTS)
                 if not chosen or arch in chosen for kind in (T.F32, T.Q8_0)]
        check_refusals(folder)
    print(f"{len(worst)} files give the logits of their safetensors models, within {max(worst):.1e}")


if __name__ == "__main__":
    main()
