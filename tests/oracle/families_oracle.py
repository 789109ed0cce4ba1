#!/usr/bin/env python3
"""The model families have the logits of a numpy transformer.

    python3 tests/oracle/families_oracle.py

The reference below is written from the published architectures and shares no code with the program. Random models
of every family and variant (tied and not, biases, q/k norm, sliding window, llama3 and linear RoPE scaling, explicit
head_dim, one KV head, no grouping) are written by the safetensors package. The same ids run through both, in chunks
and one at a time, and every row of logits is compared. In bf16 the reference rounds where the program is documented to:
the inputs of GEMMs, and stored K and V. Needs numpy and safetensors; exits with 77 without them.
"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
try:
    import numpy as np
    from random_models import rounded, write_model
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

TOKENS = 70
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
VARIANTS = [
    ("llama", {}),
    ("llama", {"tied": False, "num_key_value_heads": 6}),
    ("llama", {"rope_scaling": LLAMA3, "rope_theta": 500000.0, "num_key_value_heads": 1}),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("mistral", {"sliding_window": 9, "head_dim": 16}),
    ("mistral", {"sliding_window": None, "tied": False}),
    ("qwen2", {}),
    ("qwen2", {"tied": False, "use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1}),
    ("qwen3", {}),
    ("qwen3", {"tied": False, "head_dim": 24, "hidden_size": 56}),
    ("gemma2", {}),
    ("gemma2", {"tied": False, "attn_logit_softcapping": None, "num_key_value_heads": 6, "query_pre_attn_scalar": 8}),
    ("gemma2", {"final_logit_softcapping": None, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
]


def frequencies(config):
    """Angle per position of each pair, as transformers' ROPE_INIT_FUNCTIONS define it."""
    dim = config["head_dim"]
    inv = config["rope_theta"] ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "linear":
        return inv / scaling["factor"]
    if scaling.get("rope_type") != "llama3":
        return inv
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    old = scaling["original_max_position_embeddings"]
    wavelength = 2 * np.pi / inv
    smooth = (old / wavelength - low) / (high - low)
    blended = (1 - smooth) * inv / scaling["factor"] + smooth * inv
    return np.where(wavelength > old / low, inv / scaling["factor"], np.where(wavelength < old / high, inv, blended))


def norm(x, weight, eps, offset=0.0):
    weight = weight + offset
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotate(x, angles):
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def cap(x, limit):
    return limit * np.tanh(x / limit) if limit else x


def window_of(config, family, layer):
    if family == "gemma2":
        types = config.get("layer_types")
        sliding = types[layer] == "sliding_attention" if types else layer % 2 == 0
        return config["sliding_window"] if sliding else 0
    if family == "mistral":
        return config.get("sliding_window") or 0
    if family.startswith("qwen") and config.get("use_sliding_window") and layer >= config["max_window_layers"]:
        return config["sliding_window"]
    return 0


def forward(model, ids, dtype, tensor_cores=False, activations=None):
    """Logits (tokens, vocab) in f64, rounded to `dtype` where the program rounds. tensor_cores: attention takes q and
    the weights of the softmax in the pages' type too, as the kernels of a GPU do for head dims that fit their tiles.
    activations: their type, where it is not that of the weights."""
    config, tensors = model.config, {k: rounded(v, dtype).astype(np.float64) if v.ndim == 2 else v.astype(np.float64)
                                     for k, v in model.tensors.items()}

    def cut(x):
        return rounded(x, activations or dtype).astype(np.float64)

    def linear(x, name):
        bias = tensors.get(name + ".bias")
        out = cut(x) @ tensors[name + ".weight"].T
        return out if bias is None else out + bias

    gemma = model.family == "gemma2"
    offset = 1.0 if gemma else 0.0

    def normed(x, name):
        return norm(x, tensors[name + ".weight"], eps, offset)

    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    count, eps = len(ids), config["rms_norm_eps"]
    angles = np.arange(count)[:, None] * frequencies(config)[None, :]
    distance = np.arange(count)[:, None] - np.arange(count)[None, :]
    x = tensors["model.embed_tokens.weight"][ids]
    if gemma:
        x = x * cut(np.float32(np.sqrt(config["hidden_size"])))
    scale = config.get("query_pre_attn_scalar", dim) ** -0.5
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        h = normed(x, at + "input_layernorm")
        q = linear(h, at + "self_attn.q_proj").reshape(count, heads, dim)
        k = linear(h, at + "self_attn.k_proj").reshape(count, kv_heads, dim)
        v = cut(linear(h, at + "self_attn.v_proj").reshape(count, kv_heads, dim))
        if model.family == "qwen3":
            q = norm(q, tensors[at + "self_attn.q_norm.weight"], eps)
            k = norm(k, tensors[at + "self_attn.k_norm.weight"], eps)
        q, k = rotate(q, angles), cut(rotate(k, angles))
        if tensor_cores:
            q = cut(q)
        window = window_of(config, model.family, layer)
        visible = (distance >= 0) & ((distance < window) if window else True)
        out = np.empty((count, heads, dim))
        for head in range(heads):
            kv = head // (heads // kv_heads)
            scores = cap(q[:, head] @ k[:, kv].T * scale, config.get("attn_logit_softcapping"))
            scores = np.where(visible, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            total = weights.sum(axis=-1, keepdims=True)
            if tensor_cores:
                weights = cut(weights)
            out[:, head] = weights @ v[:, kv] / total
        out = linear(out.reshape(count, heads * dim), at + "self_attn.o_proj")
        x = x + (normed(out, at + "post_attention_layernorm") if gemma else out)
        h = normed(x, at + ("pre_feedforward_layernorm" if gemma else "post_attention_layernorm"))
        gate = linear(h, at + "mlp.gate_proj")
        act = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate ** 3))) if gemma else gate / (1 + np.exp(-gate))
        out = linear(act * linear(h, at + "mlp.up_proj"), at + "mlp.down_proj")
        x = x + (normed(out, at + "post_feedforward_layernorm") if gemma else out)
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    return cap(cut(normed(x, "model.norm")) @ head.T, config.get("final_logit_softcapping"))


def program():
    build = os.path.dirname(os.environ.get("REPRISE_BIN", "build/release/reprise"))
    path = os.path.join(build, "tests", "test_model_stories260k")
    if not os.path.exists(path):
        print("SKIP: the test programs are not built")
        sys.exit(77)
    return path


def distance(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def compare(binary, variants, chunks, tensor_core_dims=()):
    """Logits of every variant in f32 and bf16, fed in chunks (0: decode rows), against the reference.

    In bf16, heads of tensor_core_dims use tensor cores. There q and the softmax's weights are rounded too, the latter
    relative to the largest score of a unit of keys, which depends on the kernel; such a model amplifies a change of 1e-7
    to 1e-3 to 4e-3 of its logits. So these are compared with the model without any rounding of activations: the distance
    may exceed the rounded reference's own (5.5e-3 to 7.3e-3) by at most a quarter."""
    ids = np.random.default_rng(3).integers(0, 256, TOKENS)
    worst = {"f32": 0.0, "bf16": 0.0}
    with tempfile.TemporaryDirectory() as parent:
        for i, (family, overrides) in enumerate(variants):
            for dtype in ("f32", "bf16"):
                directory = os.path.join(parent, f"{i}-{dtype}")
                model = write_model(directory, family, dtype=dtype, seed=i, **overrides)
                cores = dtype == "bf16" and model.config["head_dim"] in tensor_core_dims
                want = forward(model, ids, dtype, cores)
                unrounded = forward(model, ids, dtype, activations="f32") if cores else None
                for chunk in chunks:
                    out = os.path.join(parent, "logits")
                    subprocess.run([binary, "--logits", directory, out, dtype, str(chunk), *map(str, ids)], check=True)
                    got = np.fromfile(out, np.float32).reshape(-1, model.config["vocab_size"])
                    rows = [min(at + max(chunk, 1), TOKENS) - 1 for at in range(0, TOKENS, max(chunk, 1))]
                    if cores:
                        truth = unrounded[rows]
                        error, limit = distance(got, truth), 1.25 * distance(want[rows], truth)
                    else:
                        error, limit = distance(got, want[rows]), 4e-3 if dtype == "bf16" else 1e-5
                    worst[dtype] = max(worst[dtype], error)
                    assert error <= limit, (family, overrides, dtype, chunk, error, limit)
    print(f"{len(variants)} variants, relative error at most {worst['f32']:.1e} in f32, {worst['bf16']:.1e} in bf16")
    print("1 passed, 0 failed")


if __name__ == "__main__":
    compare(program(), VARIANTS, (0, 1, 7, 64))
