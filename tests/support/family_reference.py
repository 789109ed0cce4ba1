"""The logits of every model family in numpy, for the models of random_models.py.

    from family_reference import forward
    logits = forward(model, ids, "bf16")

Written from the published architectures; shares no code with the program. In bf16 it rounds where the program is documented
to: the inputs of GEMMs, and stored K and V. Needs numpy and safetensors.
"""
import numpy as np

from random_models import (DELTA_FAMILIES, LAYER_NORMS, SHARED_GATES, experts_of, gemma4_heads, has_experts, has_state,
                           head_dim_of, renamed, rounded)

# model_type's defaults where they are not Llama's.
THETA = {"gemma3": 1e6, "olmo3": 500000.0, "smollm3": 2e6, "cohere": 500000.0, "lfm2": 1e6}
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
    head_dim = config["qk_rope_head_dim"] if family.startswith("deepseek") else head_dim_of(config)
    dim, kind = int(head_dim * part), scaling.get("rope_type", scaling.get("type"))
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


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def causal(x, weight):
    """The convolution of each column over the tokens; weight: (columns, 1, width)."""
    width = weight.shape[-1]
    padded = np.concatenate([np.zeros((width - 1, x.shape[1])), x])
    return sum(padded[j:j + len(x)] * weight[:, 0, j] for j in range(width))


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
    every = {"gpt_oss": 2, "gemma2": 2, "gemma3": config.get("sliding_window_pattern", 6), "olmo3": 4,
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
        self.eps = self.config["layer_norm_eps" if self.family in LAYER_NORMS else
                               "norm_eps" if self.family == "lfm2" else "rms_norm_eps"]
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
        return norm(x, weight, self.eps, 1.0 if self.family in ("gemma2", "gemma3", *DELTA_FAMILIES) else 0.0)

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

    def latent_attention(self, h, layer):
        """q, the stored row, and what each head makes of it, rounded where the program rounds."""
        config, at, heads, position = self.config, f"model.layers.{layer}.self_attn.", self.heads, np.arange(len(h))
        nope, rope, value, rank = (config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
        if config["q_lora_rank"]:
            low = norm(self.linear(h, at + "q_a_proj"), self.tensor(at + "q_a_layernorm.weight"), 1e-6)
            q = self.linear(low, at + "q_b_proj")
        else:
            q = self.linear(h, at + "q_proj")
        row = self.linear(h, at + "kv_a_proj_with_mqa")
        inv, factor = frequencies(config, self.family, False)
        angles = position[:, None] * inv[None, :]
        q = q.reshape(len(h), heads, nope + rope)
        q_n, q_r = q[..., :nope], rotate(q[..., nope:], angles, factor, True)
        c = self.cut(norm(row[:, :rank], self.tensor(at + "kv_a_layernorm.weight"), 1e-6))
        k_r = self.cut(rotate(row[:, None, rank:], angles, factor, True)[:, 0])
        kv_b = self.tensor(at + "kv_b_proj.weight").reshape(heads, nope + value, rank)
        scaling = config.get("rope_scaling") or {}
        m = 1.0
        if scaling.get("rope_type") == "yarn" and scaling.get("mscale_all_dim"):
            m = 0.1 * scaling["mscale_all_dim"] * np.log(scaling["factor"]) + 1
        out = np.empty((len(h), heads, value))
        for head in range(heads):
            q_c = self.cut(q_n[:, head]) @ kv_b[head, :nope]
            scores = (q_c @ c.T + q_r[:, head] @ k_r.T) * m * m / np.sqrt(nope + rope)
            scores = np.where(position[:, None] >= position[None, :], scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            seen = self.cut(weights @ c / weights.sum(axis=-1, keepdims=True))
            out[:, head] = seen @ kv_b[head, nope:].T
        return self.linear(out.reshape(len(h), -1), at + "o_proj")

    def attention(self, h, layer, tensor_cores):
        if self.family.startswith("deepseek"):
            return self.latent_attention(h, layer)
        config, family, at = self.config, self.family, f"model.layers.{layer}."
        position, sliding = np.arange(len(h)), is_sliding(self.config, self.family, layer)
        q, k, v = self.qkv(h, at)
        if family in DELTA_FAMILIES:
            q, gate = np.split(q.reshape(len(h), self.heads, 2 * self.dim), 2, axis=-1)
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
            sinks = self.tensor(at + "self_attn.sinks")
            most = scores.max(axis=-1, keepdims=True)
            most = most if sinks is None else np.maximum(most, sinks[head])
            weights = np.exp(scores - most)
            total = weights.sum(axis=-1, keepdims=True) + (0 if sinks is None else np.exp(sinks[head] - most))
            if tensor_cores:
                weights = self.cut(weights)
            out[:, head] = weights @ v[:, kv] / total
        if family in DELTA_FAMILIES:
            out = out * sigmoid(gate)
        return self.linear(out.reshape(len(h), -1), at + "self_attn.o_proj")

    def short_conv(self, h, at):
        before, after, x = np.split(self.linear(h, at + "conv.in_proj"), 3, axis=-1)
        return self.linear(after * causal(before * x, self.tensor(at + "conv.conv.weight")), at + "conv.out_proj")

    def delta_inputs(self, h, at):
        """q, k, v, z, b, a: (tokens, heads, columns)"""
        config, count, keys = self.config, len(h), self.config["linear_num_key_heads"]
        widths = [config["linear_key_head_dim"]] * 2 + [config["linear_value_head_dim"]] * 2
        each = config["linear_num_value_heads"] // keys
        if self.family == "qwen3_next":
            rows = self.linear(h, at + "linear_attn.in_proj_qkvz").reshape(count, keys, -1)
            q, k, v, z = np.split(rows, np.cumsum([widths[0], widths[1], each * widths[2]]), axis=-1)
            b, a = np.split(self.linear(h, at + "linear_attn.in_proj_ba").reshape(count, keys, -1), 2, axis=-1)
            q, k, v = (x.reshape(count, -1) for x in (q, k, v))
        else:
            rows = self.linear(h, at + "linear_attn.in_proj_qkv")
            q, k, v = np.split(rows, [keys * widths[0], 2 * keys * widths[0]], axis=-1)
            z, b, a = (self.linear(h, f"{at}linear_attn.in_proj_{x}") for x in "zba")
        mixed = causal(np.concatenate([q, k, v], axis=-1), self.tensor(at + "linear_attn.conv1d.weight"))
        mixed = mixed * sigmoid(mixed)
        q, k, v = np.split(mixed, [q.shape[-1], 2 * q.shape[-1]], axis=-1)
        return [x.reshape(count, -1, width) for x, width in zip((q, k, v, z, b, a), [*widths, 1, 1])]

    def delta_rule(self, h, at):
        q, k, v, z, b, a = self.delta_inputs(h, at)
        each = v.shape[1] // q.shape[1]
        q, k = (np.repeat(x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6), each, axis=1) for x in (q, k))
        q = q * q.shape[-1] ** -0.5
        rate = np.log1p(np.exp(a + self.tensor(at + "linear_attn.dt_bias")[:, None]))
        decay, beta = np.exp(-np.exp(self.tensor(at + "linear_attn.A_log"))[:, None] * rate), sigmoid(b)
        state, out = np.zeros((v.shape[1], k.shape[-1], v.shape[-1])), np.empty(v.shape)
        for t in range(len(h)):
            state = state * decay[t, :, :, None]
            change = beta[t] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state = state + k[t][:, :, None] * change[:, None, :]
            out[t] = np.einsum("hkv,hk->hv", state, q[t])
        out = norm(out, self.tensor(at + "linear_attn.norm.weight"), self.eps) * z * sigmoid(z)
        return self.linear(out.reshape(len(h), -1), at + "linear_attn.out_proj")

    def mixer(self, h, layer, tensor_cores):
        if not has_state(self.config, self.family, layer):
            return self.attention(h, layer, tensor_cores)
        at = f"model.layers.{layer}."
        return self.short_conv(h, at) if self.family == "lfm2" else self.delta_rule(h, at)

    def route(self, h, at):
        """The weight of each expert for each row; 0: not chosen."""
        config, (count, _) = self.config, experts_of(self.config, self.family)
        used, rows = config["num_experts_per_tok"], np.arange(len(h))[:, None]
        block = "block_sparse_moe." if self.family in ("mixtral", "granite_moe") else "mlp."
        router = {"granite_moe": "router.layer.weight", "gpt_oss": "router.weight"}.get(self.family, "gate.weight")
        logits = self.cut(h) @ self.tensor(at + block + router).T
        if self.family == "gpt_oss":
            logits = logits + self.tensor(at + "mlp.router.bias")
        soft = np.exp(logits - logits.max(axis=-1, keepdims=True))
        scores = soft / soft.sum(axis=-1, keepdims=True)
        choice = scores
        sigmoid = self.family in ("glm4_moe", "deepseek_v3")
        if sigmoid:
            scores = 1 / (1 + np.exp(-logits))
            choice = scores + self.tensor(at + "mlp.gate.e_score_correction_bias")
        if sigmoid or config.get("topk_method") == "group_limited_greedy":
            groups = choice.reshape(len(h), config["n_group"], -1)
            best = np.sort(groups, axis=-1)[..., -2 if sigmoid else -1:].sum(axis=-1).argsort(axis=-1)[:, -config["topk_group"]:]
            kept = np.zeros(groups.shape[:2], bool)
            kept[rows, best] = True
            choice = np.where(np.repeat(kept, count // config["n_group"], axis=-1), choice, -np.inf)
        chosen = (-choice).argsort(axis=-1, kind="stable")[:, :used]
        weights = scores[rows, chosen]
        if self.family in ("mixtral", "granite_moe", "qwen3_5_moe", "gpt_oss") or config.get("norm_topk_prob", sigmoid):
            weights = weights / weights.sum(axis=-1, keepdims=True)
        out = np.zeros((len(h), count))
        out[rows, chosen] = weights * config.get("routed_scaling_factor", 1.0)
        return out

    def act(self, gate):
        if self.family != "lfm2" and self.config.get("hidden_activation" if self.family.startswith("gemma") else "hidden_act") == "gelu_pytorch_tanh":
            return gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate ** 3)))
        return gate / (1 + np.exp(-gate))

    def expert(self, h, at, i):
        if self.family == "granite_moe":
            gate, up = np.split(self.cut(h) @ self.tensor(at + "block_sparse_moe.input_linear.weight")[i].T, 2, axis=-1)
            down = self.tensor(at + "block_sparse_moe.output_linear.weight")[i]
            return self.cut(self.cut(self.act(gate) * up) @ down.T)
        if self.family == "gpt_oss":
            both = self.cut(h) @ self.tensor(at + "mlp.experts.gate_up_proj")[i] + self.tensor(at + "mlp.experts.gate_up_proj_bias")[i]
            gate, up = np.minimum(both[:, ::2], 7), np.clip(both[:, 1::2], -7, 7)
            act = self.cut((up + 1) * gate / (1 + np.exp(-1.702 * gate)))
            return self.cut(act @ self.tensor(at + "mlp.experts.down_proj")[i] + self.tensor(at + "mlp.experts.down_proj_bias")[i])
        block, names = (("block_sparse_moe.", ("w1", "w3", "w2")) if self.family == "mixtral" else
                        ("mlp.", ("gate_proj", "up_proj", "down_proj")))
        return self.cut(self.gated(h, f"{at}{block}experts.{i}.", names))

    def gated(self, h, at, names=("gate_proj", "up_proj", "down_proj")):
        gate, up = self.linear(h, at + names[0]), self.linear(h, at + names[1])
        return self.linear(self.act(gate) * up, at + names[2])

    def experts(self, h, at):
        weights = self.route(h, at)
        out = sum(weights[:, i:i + 1] * self.expert(h, at, i) for i in range(weights.shape[1]))
        if self.family in SHARED_GATES:
            gate = self.linear(h, at + "mlp.shared_expert_gate")
            return out + self.gated(h, at + "mlp.shared_expert.") / (1 + np.exp(-gate))
        if self.config.get("n_shared_experts"):
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

    def attention4(self, h, layer, stored):
        """Gemma 4's. stored: K and V of the layers before, by type of layer."""
        config, at = self.config, f"model.layers.{layer}."
        dim, kv_heads, shared, k_is_v = gemma4_heads(config, layer)
        kind, position, count = config["layer_types"][layer], np.arange(len(h)), len(h)
        rope = config["rope_parameters"][kind]
        live = int(rope.get("partial_rotary_factor", 1) * dim) // 2 if rope.get("rope_type") == "proportional" else dim // 2
        inv = np.where(np.arange(dim // 2) < live, rope["rope_theta"] ** -(np.arange(0, dim, 2) / dim), 0)
        angles = position[:, None] * inv[None, :]
        q = self.linear(h, at + "self_attn.q_proj").reshape(count, -1, dim)
        q = rotate(self.norm(q, at + "self_attn.q_norm"), angles, 1.0, False)
        if not shared:
            k = self.linear(h, at + "self_attn.k_proj").reshape(count, -1, dim)
            v = k if k_is_v else self.linear(h, at + "self_attn.v_proj").reshape(count, -1, dim)
            k = rotate(self.norm(k, at + "self_attn.k_norm"), angles, 1.0, False)
            stored[kind] = self.cut(k), self.cut(norm(v, 1.0, self.eps))
        k, v = stored[kind]
        distance = position[:, None] - position[None, :]
        visible = (distance >= 0) & ((distance < config["sliding_window"]) if kind == "sliding_attention" else True)
        out = np.empty(q.shape)
        for head in range(self.heads):
            kv = head // (self.heads // kv_heads)
            scores = np.where(visible, q[:, head] @ k[:, kv].T, -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[:, head] = weights @ v[:, kv] / weights.sum(axis=-1, keepdims=True)
        return self.linear(out.reshape(count, -1), at + "self_attn.o_proj")

    def experts4(self, x, at):
        config, rows = self.config, np.arange(len(x))[:, None]
        h = norm(x, self.tensor(at + "router.scale"), self.eps) * config["hidden_size"] ** -0.5
        logits = self.linear(h, at + "router.proj")
        soft = np.exp(logits - logits.max(axis=-1, keepdims=True))
        scores = soft / soft.sum(axis=-1, keepdims=True)
        chosen = (-scores).argsort(axis=-1, kind="stable")[:, :config["top_k_experts"]]
        weights = np.zeros(scores.shape)
        weights[rows, chosen] = scores[rows, chosen] / scores[rows, chosen].sum(axis=-1, keepdims=True)
        weights = weights * self.tensor(at + "router.per_expert_scale")
        h, out = self.norm(x, at + "pre_feedforward_layernorm_2"), 0
        for i in range(config["num_experts"]):
            gate, up = np.split(self.cut(h) @ self.tensor(at + "experts.gate_up_proj")[i].T, 2, axis=-1)
            out = out + weights[:, i:i + 1] * self.cut(self.cut(self.act(gate) * up) @ self.tensor(at + "experts.down_proj")[i].T)
        return self.norm(out, at + "post_feedforward_layernorm_2")

    def layer4(self, x, layer, stored, embeds):
        at = f"model.layers.{layer}."
        out = self.attention4(self.norm(x, at + "input_layernorm"), layer, stored)
        x = x + self.norm(out, at + "post_attention_layernorm")
        out = self.gated(self.norm(x, at + "pre_feedforward_layernorm"), at + "mlp.")
        if self.config["enable_moe_block"]:
            out = self.norm(out, at + "post_feedforward_layernorm_1") + self.experts4(x, at)
        x = x + self.norm(out, at + "post_feedforward_layernorm")
        if embeds is not None:
            gate = self.act(self.linear(x, at + "per_layer_input_gate")) * embeds[:, layer]
            x = x + self.norm(self.linear(gate, at + "per_layer_projection"), at + "post_per_layer_input_norm")
        return x * self.tensor(at + "layer_scalar")

    def layers4(self, x, ids):
        config, width, embeds, stored = self.config, self.config["hidden_size_per_layer_input"], None, {}
        if width:
            proj = (self.linear(x, "model.per_layer_model_projection") * config["hidden_size"] ** -0.5).reshape(len(x), -1, width)
            rows = self.tensor("model.embed_tokens_per_layer.weight")[ids].reshape(proj.shape) * self.cut(np.float32(width ** 0.5))
            embeds = (self.norm(proj, "model.per_layer_projection_norm") + rows) * 2 ** -0.5
        for layer in range(config["num_hidden_layers"]):
            x = self.layer4(x, layer, stored, embeds)
        return x

    def layer(self, x, layer, tensor_cores):
        family, at = self.family, f"model.layers.{layer}."
        factor = self.config.get("residual_multiplier", 1.0) if family.startswith("granite") else 1.0
        pre, pre_mlp, post, post_mlp = {
            "gemma": ("input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"),
            "olmo": (None, None, "post_attention_layernorm", "post_feedforward_layernorm"),
            "glm4": ("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"),
        }.get(family if family == "glm4" else family.rstrip("23"), ("input_layernorm", "post_attention_layernorm", None, None))
        h = self.norm(x, at + pre) if pre else x
        out = self.mixer(h, layer, tensor_cores)
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
    if family == "gemma4":
        x = layers.layers4(x, ids)
    for layer in range(config["num_hidden_layers"] if family != "gemma4" else 0):
        x = layers.layer(x, layer, tensor_cores)
    head = layers.tensor("lm_head.weight")
    logits = cut(layers.norm(x, "model.norm")) @ (layers.tensor("model.embed_tokens.weight") if head is None else head).T
    if family.startswith("granite"):
        logits = logits / config.get("logits_scaling", 1.0)
    if family.startswith("cohere"):
        logits = logits * config.get("logit_scale", 0.0625)
    return cap(logits, config.get("final_logit_softcapping") if family.startswith("gemma") else None)
