#!/usr/bin/env python3
"""The model families have the logits of a numpy transformer.

    python3 tests/oracle/families_oracle.py

The reference below is written from the published architectures and shares no code with the program. Random models
of every family and variant (tied and not, biases, norms of q and k, windows, every kind of RoPE scaling, explicit head_dim,
one KV head, no grouping) are written by the safetensors package. The same ids run through both, in chunks
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
    from random_models import LAYER_NORMS, experts_of, has_experts, head_dim_of, renamed, rounded, write_model
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

TOKENS = 70
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
LONG = {"type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.0, 2.5, 6.0]}
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
    ("llama", {"rope_scaling": YARN}),
    ("llama", {"rope_scaling": {**YARN, "truncate": False, "attention_factor": 1.5, "beta_fast": 8}}),
    ("phi3", {"sliding_window": 19}),
    ("phi3", {"original_max_position_embeddings": 32, "rope_scaling": LONG, "partial_rotary_factor": 0.75, "tied": False}),
    ("phi3", {"original_max_position_embeddings": 300, "rope_scaling": {**LONG, "type": "su"}, "partial_rotary_factor": 0.75}),
    ("gemma3", {}),
    ("gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "final_logit_softcapping": 3.0, "attention_bias": True}),
    ("gemma3", {"wrapper": "gemma3"}),
    ("ministral3", {"wrapper": "mistral3", "tied": False}),
    ("granite", {}),
    ("granite", {"attention_bias": True, "mlp_bias": True, "tied": False}),
    ("granite_hybrid", {}),
    ("granite_hybrid", {"position_embedding_type": None, "embedding_multiplier": 3.0, "residual_multiplier": 0.5}),
    ("olmo2", {"attention_bias": True}),
    ("olmo3", {"tied": False}),
    ("olmo3", {"rope_theta": None, "rope_parameters": {
        "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}}}),
    ("smollm3", {}),
    ("smollm3", {"no_rope_layers": [0, 1, 0], "use_sliding_window": True, "sliding_window": 13}),
    ("ministral", {"head_dim": 12}),
    ("ministral3", {"tied": False}),
    ("internlm2", {}),
    ("internlm2", {"bias": True, "num_key_value_heads": 3, "tied": False}),
    ("internlm3", {"bias": True, "qkv_bias": True, "head_dim": 12}),
    ("stablelm", {}),
    ("stablelm", {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": False, "partial_rotary_factor": 0.5}),
    ("glm", {}),
    ("glm4", {"attention_bias": False, "head_dim": 12, "partial_rotary_factor": 0.34}),
    ("cohere", {"use_qk_norm": True, "attention_bias": True}),
    ("cohere", {"tied": False}),
    ("cohere2", {}),
    ("cohere2", {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
                 "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
]
# On the CPU alone.
EXPERT_VARIANTS = [
    ("mixtral", {}),
    ("mixtral", {"sliding_window": 9, "num_experts_per_tok": 5, "tied": False}),
    ("qwen2_moe", {}),
    ("qwen2_moe", {"norm_topk_prob": True, "decoder_sparse_step": 2}),
    ("qwen3_moe", {}),
    ("qwen3_moe", {"norm_topk_prob": False, "mlp_only_layers": [], "num_experts": 33, "num_experts_per_tok": 8}),
    ("olmoe", {}),
    ("granite_moe", {}),
    ("glm4_moe", {}),
    ("glm4_moe", {"use_qk_norm": True, "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "n_shared_experts": 1,
                  "first_k_dense_replace": 0}),
]
# model_type's defaults where they are not Llama's.
THETA = {"gemma3": 1e6, "olmo3": 500000.0, "smollm3": 2e6, "cohere": 500000.0}
PARTIAL = {"stablelm": 0.25, "glm": 0.5, "glm4": 0.5, "glm4_moe": 0.5}


def yarn(config, scaling, dim, base, inv):
    """Frequencies and attention factor."""
    old = scaling.get("original_max_position_embeddings", config["max_position_embeddings"])
    factor = scaling.get("factor") or config["max_position_embeddings"] / old

    def pair(turns):
        return dim * np.log(old / (turns * 2 * np.pi)) / (2 * np.log(base))

    low, high = pair(scaling.get("beta_fast", 32)), pair(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low if high != low else 0.001), 0, 1)

    def scale(weight):
        return 0.1 * weight * np.log(factor) + 1 if factor > 1 else 1.0

    both = scaling.get("mscale") and scaling.get("mscale_all_dim")
    implied = scale(scaling["mscale"]) / scale(scaling["mscale_all_dim"]) if both else scale(1)
    return inv * (1 - ramp) + inv / factor * ramp, scaling.get("attention_factor", implied)


def frequencies(config, family, sliding):
    """Angle per position of each pair, as transformers' ROPE_INIT_FUNCTIONS define it, and the factor of cos and sin."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = config.get("rope_theta", THETA.get(family, 10000.0))
    if "full_attention" in scaling:
        scaling = scaling["sliding_attention" if sliding else "full_attention"]
    elif sliding and family in ("gemma3", "olmo3"):
        scaling, base = {}, config.get("rope_local_base_freq", 10000.0) if family == "gemma3" else 500000.0
    base = scaling.get("rope_theta", base)
    part = scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", PARTIAL.get(family, 1)))
    dim, kind = int(head_dim_of(config) * part), scaling.get("rope_type", scaling.get("type"))
    inv = base ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    if kind == "linear":
        return inv / scaling["factor"], 1.0
    if kind in ("longrope", "su"):
        old = config.get("original_max_position_embeddings", scaling.get("original_max_position_embeddings"))
        longer = scaling.get("factor", config["max_position_embeddings"] / old)
        divisors = scaling["long_factor" if config["max_position_embeddings"] > old else "short_factor"]
        implied = np.sqrt(1 + np.log(longer) / np.log(old)) if longer > 1 else 1.0
        return inv / np.asarray(divisors, np.float32), scaling.get("attention_factor", implied)
    if kind == "yarn":
        return yarn(config, scaling, dim, base, inv)
    if kind != "llama3":
        return inv, 1.0  # dynamic: so up to max_position_embeddings
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    old = scaling["original_max_position_embeddings"]
    wavelength = 2 * np.pi / inv
    smooth = (old / wavelength - low) / (high - low)
    blended = (1 - smooth) * inv / scaling["factor"] + smooth * inv
    inv = np.where(wavelength > old / low, inv / scaling["factor"], np.where(wavelength < old / high, inv, blended))
    return inv, 1.0


def norm(x, weight, eps, offset=0.0):
    weight = weight + offset
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def layer_norm(x, weight, bias, eps):
    x = x - np.mean(x, axis=-1, keepdims=True)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight + bias


def rotate(x, angles, factor, neighbors):
    """The first columns of each head: halves, or neighboring pairs."""
    half = angles.shape[-1]
    cos, sin = factor * np.cos(angles)[:, None, :], factor * np.sin(angles)[:, None, :]
    out = x.copy()
    low, high = (np.s_[..., 0:2 * half:2], np.s_[..., 1:2 * half:2]) if neighbors else (np.s_[..., :half], np.s_[..., half:2 * half])
    out[low], out[high] = x[low] * cos - x[high] * sin, x[high] * cos + x[low] * sin
    return out


def cap(x, limit):
    return limit * np.tanh(x / limit) if limit else x


def is_sliding(config, family, layer):
    """Whether the layer is one of those that have the window, if the model has one."""
    types = config.get("layer_types")
    if types:
        return types[layer] == "sliding_attention"
    if family == "qwen3_moe":
        return bool(config.get("use_sliding_window"))
    if family.startswith("qwen"):
        return bool(config.get("use_sliding_window")) and layer >= config["max_window_layers"]
    if family == "smollm3":
        return bool(config.get("use_sliding_window")) and not has_rope(config, family, layer)
    every = {"gemma2": 2, "gemma3": config.get("sliding_window_pattern", 6), "olmo3": 4,
             "cohere2": config.get("sliding_window_pattern", 4)}.get(family)
    if every:
        return (layer + 1) % every != 0
    return family in ("mistral", "ministral", "ministral3", "phi3", "mixtral")


def has_rope(config, family, layer):
    if family == "smollm3":
        layers = config.get("no_rope_layers")
        return bool(layers[layer]) if layers else (layer + 1) % config.get("no_rope_layer_interval", 4) != 0
    if family == "cohere2":
        return is_sliding(config, family, layer)
    return family != "granite_hybrid" or config.get("position_embedding_type") == "rope"


class Layers:
    """The formulas. cut: rounds what GEMMs read and what is stored in pages."""

    def __init__(self, model, dtype, cut):
        self.config, self.family, self.cut = model.config, model.family, cut
        self.tensors = {name: (rounded(values, dtype) if values.ndim >= 2 else values).astype(np.float64)
                        for name, values in model.tensors.items()}
        self.eps = self.config["layer_norm_eps" if self.family in LAYER_NORMS else "rms_norm_eps"]
        self.heads, self.kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.dim = head_dim_of(self.config)

    def tensor(self, name):
        return self.tensors.get(renamed(name, self.family))

    def linear(self, x, name):
        bias = self.tensor(name + ".bias")
        out = self.cut(x) @ self.tensor(name + ".weight").T
        return out if bias is None else out + bias

    def norm(self, x, name):
        weight = self.tensor(name + ".weight")
        if self.family in LAYER_NORMS:
            bias = self.tensor(name + ".bias")
            return layer_norm(x, weight, 0 if bias is None else bias, self.eps)
        return norm(x, weight, self.eps, 1.0 if self.family.startswith("gemma") else 0.0)

    def head_norm(self, x, at, which):
        """x: (tokens, heads, dim)"""
        name = f"{at}self_attn.{which}_norm"
        weight = self.tensor(name + ".weight")
        if self.family == "stablelm" and self.config["qk_layernorm"]:
            name = f"{at}self_attn.{which}_layernorm.norms."
            weight = np.stack([self.tensor(f"{name}{head}.weight") for head in range(x.shape[1])])
        if weight is None:
            return x
        if self.family in LAYER_NORMS:
            return layer_norm(x, weight, 0, self.eps)
        if self.family.startswith("olmo"):
            return norm(x.reshape(len(x), -1), weight, self.eps).reshape(x.shape)
        return self.norm(x, name)

    def qkv(self, h, at):
        count, heads, kv_heads, dim = len(h), self.heads, self.kv_heads, self.dim
        if self.family == "internlm2":
            group = heads // kv_heads
            both = self.linear(h, at + "self_attn.qkv_proj").reshape(count, kv_heads, group + 2, dim)
            return both[:, :, :group].reshape(count, heads, dim), both[:, :, group], both[:, :, group + 1]
        if self.family == "phi3":
            both = self.linear(h, at + "self_attn.qkv_proj").reshape(count, heads + 2 * kv_heads, dim)
            return both[:, :heads], both[:, heads:heads + kv_heads], both[:, heads + kv_heads:]
        return [self.linear(h, f"{at}self_attn.{x}_proj").reshape(count, -1, dim) for x in "qkv"]

    def scale(self):
        if self.family.startswith("granite"):
            return self.config.get("attention_multiplier", 1.0)
        if self.family.startswith("gemma"):
            return self.config.get("query_pre_attn_scalar", 256) ** -0.5
        return self.dim ** -0.5

    def attention(self, h, layer, tensor_cores):
        config, family, at = self.config, self.family, f"model.layers.{layer}."
        position, sliding = np.arange(len(h)), is_sliding(self.config, self.family, layer)
        q, k, v = self.qkv(h, at)
        q, k = self.head_norm(q, at, "q"), self.head_norm(k, at, "k")
        if has_rope(config, family, layer):
            inv, factor = frequencies(config, family, sliding)
            neighbors = family in ("glm", "glm4", "cohere", "cohere2")
            q, k = (rotate(x, position[:, None] * inv[None, :], factor, neighbors) for x in (q, k))
        if family == "ministral3":
            rope = config["rope_parameters"]
            q = q * (1 + rope["llama_4_scaling_beta"] * np.log(1 + position // rope["original_max_position_embeddings"]))[:, None, None]
        k, v = self.cut(k), self.cut(v)
        if tensor_cores:
            q = self.cut(q)
        distance = position[:, None] - position[None, :]
        window = (config.get("sliding_window") or 0) if sliding else 0
        visible = (distance >= 0) & ((distance < window) if window else True)
        out = np.empty(q.shape)
        for head in range(self.heads):
            kv = head // (self.heads // self.kv_heads)
            limit = config.get("attn_logit_softcapping") if family == "gemma2" else None
            scores = cap(q[:, head] @ k[:, kv].T * self.scale(), limit)
            scores = np.where(visible, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            total = weights.sum(axis=-1, keepdims=True)
            if tensor_cores:
                weights = self.cut(weights)
            out[:, head] = weights @ v[:, kv] / total
        return self.linear(out.reshape(len(h), -1), at + "self_attn.o_proj")

    def route(self, h, at):
        """The weight of each expert for each row; 0: not chosen."""
        config, (count, _) = self.config, experts_of(self.config, self.family)
        used, rows = config["num_experts_per_tok"], np.arange(len(h))[:, None]
        block = "block_sparse_moe." if self.family in ("mixtral", "granite_moe") else "mlp."
        logits = self.cut(h) @ self.tensor(at + block + ("router.layer.weight" if self.family == "granite_moe" else "gate.weight")).T
        soft = np.exp(logits - logits.max(axis=-1, keepdims=True))
        scores = soft / soft.sum(axis=-1, keepdims=True)
        choice = scores
        if self.family == "glm4_moe":
            scores = 1 / (1 + np.exp(-logits))
            choice = scores + self.tensor(at + "mlp.gate.e_score_correction_bias")
            groups = choice.reshape(len(h), config["n_group"], -1)
            best = np.sort(groups, axis=-1)[..., -2:].sum(axis=-1).argsort(axis=-1)[:, -config["topk_group"]:]
            kept = np.zeros(groups.shape[:2], bool)
            kept[rows, best] = True
            choice = np.where(np.repeat(kept, count // config["n_group"], axis=-1), choice, -np.inf)
        chosen = (-choice).argsort(axis=-1, kind="stable")[:, :used]
        weights = scores[rows, chosen]
        if self.family in ("mixtral", "granite_moe") or config.get("norm_topk_prob", self.family == "glm4_moe"):
            weights = weights / weights.sum(axis=-1, keepdims=True)
        out = np.zeros((len(h), count))
        out[rows, chosen] = weights * config.get("routed_scaling_factor", 1.0)
        return out

    def act(self, gate):
        if self.config.get("hidden_activation" if self.family.startswith("gemma") else "hidden_act") == "gelu_pytorch_tanh":
            return gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate ** 3)))
        return gate / (1 + np.exp(-gate))

    def expert(self, h, at, i):
        if self.family == "granite_moe":
            gate, up = np.split(self.cut(h) @ self.tensor(at + "block_sparse_moe.input_linear.weight")[i].T, 2, axis=-1)
            down = self.tensor(at + "block_sparse_moe.output_linear.weight")[i]
            return self.cut(self.cut(self.act(gate) * up) @ down.T)
        block, names = (("block_sparse_moe.", ("w1", "w3", "w2")) if self.family == "mixtral" else
                        ("mlp.", ("gate_proj", "up_proj", "down_proj")))
        return self.cut(self.gated(h, f"{at}{block}experts.{i}.", names))

    def gated(self, h, at, names=("gate_proj", "up_proj", "down_proj")):
        gate, up = self.linear(h, at + names[0]), self.linear(h, at + names[1])
        return self.linear(self.act(gate) * up, at + names[2])

    def experts(self, h, at):
        weights = self.route(h, at)
        out = sum(weights[:, i:i + 1] * self.expert(h, at, i) for i in range(weights.shape[1]))
        if self.family == "qwen2_moe":
            gate = self.linear(h, at + "mlp.shared_expert_gate")
            return out + self.gated(h, at + "mlp.shared_expert.") / (1 + np.exp(-gate))
        if self.family == "glm4_moe" and self.config["n_shared_experts"]:
            return out + self.gated(h, at + "mlp.shared_experts.")
        return out

    def mlp(self, h, at):
        if has_experts(self.config, self.family, int(at.split(".")[2])):
            return self.experts(h, at)
        if self.family in ("phi3", "glm", "glm4", "granite_hybrid"):
            name = "shared_mlp.input_linear" if self.family == "granite_hybrid" else "mlp.gate_up_proj"
            gate, up = np.split(self.linear(h, at + name), 2, axis=-1)
        else:
            gate, up = self.linear(h, at + "mlp.gate_proj"), self.linear(h, at + "mlp.up_proj")
        return self.linear(self.act(gate) * up, at + ("shared_mlp.output_linear" if self.family == "granite_hybrid" else "mlp.down_proj"))

    def layer(self, x, layer, tensor_cores):
        family, at = self.family, f"model.layers.{layer}."
        factor = self.config.get("residual_multiplier", 1.0) if family.startswith("granite") else 1.0
        pre, pre_mlp, post, post_mlp = {
            "gemma": ("input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"),
            "olmo": (None, None, "post_attention_layernorm", "post_feedforward_layernorm"),
            "glm4": ("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"),
        }.get(family if family == "glm4" else family.rstrip("23"), ("input_layernorm", "post_attention_layernorm", None, None))
        h = self.norm(x, at + pre) if pre else x
        out = self.attention(h, layer, tensor_cores)
        parallel = family.startswith("cohere") or (family == "stablelm" and self.config["use_parallel_residual"])
        if parallel:
            return x + out + self.mlp(h, at)
        x = x + factor * (self.norm(out, at + post) if post else out)
        out = self.mlp(self.norm(x, at + pre_mlp) if pre_mlp else x, at)
        return x + factor * (self.norm(out, at + post_mlp) if post_mlp else out)


def forward(model, ids, dtype, tensor_cores=False, activations=None):
    """Logits (tokens, vocab) in f64, rounded to `dtype` where the program rounds. tensor_cores: attention takes q and
    the weights of the softmax in the pages' type too, as the kernels of a GPU do for head dims that fit their tiles.
    activations: their type, where it is not that of the weights."""
    def cut(x):
        return rounded(x, activations or dtype).astype(np.float64)

    config, family, layers = model.config, model.family, Layers(model, dtype, cut)
    x = layers.tensor("model.embed_tokens.weight")[ids]
    if family.startswith("gemma"):
        x = x * cut(np.float32(np.sqrt(config["hidden_size"])))
    if family.startswith("granite"):
        x = x * config.get("embedding_multiplier", 1.0)
    for layer in range(config["num_hidden_layers"]):
        x = layers.layer(x, layer, tensor_cores)
    head = layers.tensor("lm_head.weight")
    logits = cut(layers.norm(x, "model.norm")) @ (layers.tensor("model.embed_tokens.weight") if head is None else head).T
    if family.startswith("granite"):
        logits = logits / config.get("logits_scaling", 1.0)
    if family.startswith("cohere"):
        logits = logits * config.get("logit_scale", 0.0625)
    return cap(logits, config.get("final_logit_softcapping") if family.startswith("gemma") else None)


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
                cores = dtype == "bf16" and head_dim_of(model.config) in tensor_core_dims
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
    compare(program(), VARIANTS + EXPERT_VARIANTS, (0, 1, 7, 64))
