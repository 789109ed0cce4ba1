"""Writes GGUF files of a safetensors model with the `gguf` package, or gguf_small.py in its place: what llama.cpp's converter
does for LlamaForCausalLM, and quantizers of the block types that the package only reads.

    gguf_files.py MODEL_DIR OUT.gguf TYPE     TYPE: F32 F16 BF16 Q8_0 Q4_0 .. Q4_K Q6_K .. or Q4_K_M
"""
import json
import os
import struct
import sys

import numpy as np

try:
    import gguf
except ImportError:
    import gguf_small as gguf
T = gguf.GGMLQuantizationType

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def read_safetensors(directory):
    """name -> float32 array"""
    with open(os.path.join(directory, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    values = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        raw = data[slice(*entry["data_offsets"])]
        if entry["dtype"] == "BF16":
            array = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[entry["dtype"]]).astype(np.float32)
        values[name] = array.reshape(entry["shape"])
    return values


def half(values):
    return values.astype(np.float16)


def divide(values, by):
    return np.divide(values, by, out=np.zeros_like(values), where=by != 0)


def pack_6(scales, minima):
    """Eight 6-bit scales and minima of each block in 12 bytes."""
    low = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    middle = minima[:, :4] | (minima[:, 4:] >> 4) << 6
    return np.concatenate([low, middle, (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4], 1).astype(np.uint8)


def with_minima(x, top, sub_top, groups):
    """codes, sub-scales, sub-minima, d, dmin of x = d * scale * code - dmin * minimum."""
    x = x.reshape(-1, groups, 256 // groups)
    minimum = np.maximum(-x.min(2), 0)
    step = (np.maximum(x.max(2), 0) + minimum) / top
    d, dmin = half(step.max(1) / sub_top), half(minimum.max(1) / sub_top)
    d32, dmin32 = d.astype(np.float32)[:, None], dmin.astype(np.float32)[:, None]
    scales = np.clip(np.rint(divide(step, d32)), 0, sub_top)
    minima = np.clip(np.rint(divide(minimum, dmin32)), 0, sub_top)
    codes = np.rint(divide(x + (dmin32 * minima)[..., None], (d32 * scales)[..., None]))
    return (np.clip(codes, 0, top).astype(np.uint8).reshape(-1, 256), scales.astype(np.uint8), minima.astype(np.uint8),
            d.view(np.uint8).reshape(-1, 2), dmin.view(np.uint8).reshape(-1, 2))


def symmetric(x, limit, sub_limit):
    """codes, signed sub-scales of 16 values, d."""
    x = x.reshape(-1, 16, 16)
    step = np.abs(x).max(2) / limit
    d = half(step.max(1) / sub_limit)
    d32 = d.astype(np.float32)[:, None]
    scales = np.clip(np.rint(divide(step, d32)), -sub_limit, sub_limit)
    codes = np.rint(divide(x, (d32 * scales)[..., None]))
    return np.clip(codes, -limit, limit).astype(np.int8).reshape(-1, 256), scales.astype(np.int8), d.view(np.uint8).reshape(-1, 2)


def q4_k(x):
    codes, scales, minima, d, dmin = with_minima(x, 15, 63, 8)
    pairs = codes.reshape(-1, 4, 2, 32)
    return np.concatenate([d, dmin, pack_6(scales, minima), (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)], 1)


def q5_k(x):
    codes, scales, minima, d, dmin = with_minima(x, 31, 63, 8)
    pairs = (codes & 15).reshape(-1, 4, 2, 32)
    bits = np.zeros((len(codes), 32), np.uint8)
    for group in range(8):
        bits |= (codes[:, 32 * group:32 * group + 32] >> 4) << group
    return np.concatenate([d, dmin, pack_6(scales, minima), bits, (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)], 1)


def q2_k(x):
    codes, scales, minima, d, dmin = with_minima(x, 3, 15, 16)
    quads = codes.reshape(-1, 2, 4, 32)
    packed = quads[:, :, 0] | quads[:, :, 1] << 2 | quads[:, :, 2] << 4 | quads[:, :, 3] << 6
    return np.concatenate([scales | minima << 4, packed.reshape(-1, 64), d, dmin], 1)


def q3_k(x):
    codes, scales, d = symmetric(x, 3, 31)
    codes, scales = (codes + 4).astype(np.uint8), (scales + 32).astype(np.uint8)
    quads = (codes & 3).reshape(-1, 2, 4, 32)
    packed = quads[:, :, 0] | quads[:, :, 1] << 2 | quads[:, :, 2] << 4 | quads[:, :, 3] << 6
    mask = np.zeros((len(codes), 32), np.uint8)
    for group in range(8):
        mask |= (codes[:, 32 * group:32 * group + 32] >> 2) << group
    low = (scales[:, :8] & 15) | (scales[:, 8:] & 15) << 4
    high = sum((scales[:, 4 * i:4 * i + 4] >> 4) << 2 * i for i in range(4))
    return np.concatenate([mask, packed.reshape(-1, 64), low, high.astype(np.uint8), d], 1)


def q6_k(x):
    codes, scales, d = symmetric(x, 31, 127)
    codes = (codes + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate([(codes[:, :, 0] & 15) | (codes[:, :, 2] & 15) << 4, (codes[:, :, 1] & 15) | (codes[:, :, 3] & 15) << 4], 2)
    high = sum((codes[:, :, i] >> 4) << 2 * i for i in range(4))
    return np.concatenate([low.reshape(-1, 128), high.astype(np.uint8).reshape(-1, 64), scales.view(np.uint8), d], 1)


def nearest_iq4(x, scale):
    return np.abs(divide(x, np.broadcast_to(scale, x.shape).copy())[..., None] - IQ4).argmin(-1).astype(np.uint8)


def iq4_nl(x):
    x = x.reshape(-1, 32)
    d = half(np.abs(x).max(1) / 120)
    codes = nearest_iq4(x, d.astype(np.float32)[:, None])
    return np.concatenate([d.view(np.uint8).reshape(-1, 2), codes[:, :16] | codes[:, 16:] << 4], 1)


def iq4_xs(x):
    x = x.reshape(-1, 8, 32)
    step = np.abs(x).max(2) / 120
    d = half(step.max(1) / 31)
    d32 = d.astype(np.float32)[:, None]
    scales = np.clip(np.rint(divide(step, d32)), -32, 31)
    codes = nearest_iq4(x, (d32 * scales)[..., None])
    scales = (scales + 32).astype(np.uint16)
    high = sum((scales[:, g] >> 4) << 2 * g for g in range(8)).astype(np.uint16)
    low = ((scales[:, 0::2] & 15) | (scales[:, 1::2] & 15) << 4).astype(np.uint8)
    return np.concatenate([d.view(np.uint8).reshape(-1, 2), high.view(np.uint8).reshape(-1, 2), low,
                           (codes[:, :, :16] | codes[:, :, 16:] << 4).reshape(-1, 128)], 1)


OWN = {T.Q2_K: q2_k, T.Q3_K: q3_k, T.Q4_K: q4_k, T.Q5_K: q5_k, T.Q6_K: q6_k, T.IQ4_NL: iq4_nl, T.IQ4_XS: iq4_xs}


def quantize(values, kind):
    """float32 (rows, columns) -> bytes (rows, row bytes)"""
    values = np.ascontiguousarray(values, np.float32)
    if kind not in OWN:
        return gguf.quants.quantize(values, kind)
    return OWN[kind](values).astype(np.uint8).reshape(values.shape[0], -1)


def permute(weights, heads):
    """Rows of q and k from halves of a head to pairs."""
    return weights.reshape(heads, 2, weights.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weights.shape)


NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}


def gguf_name(name):
    outside = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
               "lm_head.weight": "output.weight"}
    if name in outside:
        return outside[name]
    _, _, layer, rest = name.split(".", 3)
    module, suffix = rest.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[module]}.{suffix}"


def kind_of(name, kind, layers, columns=0):
    """Of a matrix; Q4_K_M has more bits where llama.cpp gives them. Columns that are no whole blocks: F16."""
    if kind != "Q4_K_M":
        return T.F16 if columns % gguf.GGML_QUANT_SIZES[T[kind]][0] else T[kind]
    layer = int(name.split(".")[1]) if name.startswith("blk.") else -1
    many = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    if name in ("token_embd.weight", "output.weight") or (many and ("attn_v" in name or "ffn_down" in name)):
        return T.Q6_K
    return T.Q4_K


def add_sentencepiece(writer, tokenizer):
    """BPE with byte fallback: scores are the order of merges, as in SentencePiece's own file."""
    vocab = sorted(tokenizer["model"]["vocab"].items(), key=lambda pair: pair[1])
    special = {added["content"] for added in tokenizer["added_tokens"] if added["special"]}
    merges = [m.split(" ") if isinstance(m, str) else m for m in tokenizer["model"]["merges"]]
    order = {left + right: -float(i) for i, (left, right) in reversed(list(enumerate(merges)))}
    kinds = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in vocab])
    writer.add_token_scores([order.get(text, -1e6) for text, _ in vocab])
    writer.add_token_types([kinds.UNKNOWN if text == "<unk>" else kinds.CONTROL if text in special else
                            kinds.BYTE if len(text) == 6 and text.startswith("<0x") else kinds.NORMAL for text, _ in vocab])
    writer.add_unk_token_id(tokenizer["model"]["vocab"]["<unk>"])
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)


def add_tokenizer(writer, directory, vocabulary):
    with open(os.path.join(directory, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    if tokenizer["model"].get("byte_fallback"):
        add_sentencepiece(writer, tokenizer)
        return
    writer.add_add_bos_token(False)
    tokens, types = [f"<unused{i}>" for i in range(vocabulary)], [gguf.TokenType.UNUSED] * vocabulary
    for text, number in tokenizer["model"]["vocab"].items():
        tokens[number], types[number] = text, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    template = os.path.join(directory, "chat_template.jinja")
    if os.path.exists(template):
        with open(template, encoding="utf-8") as file:
            writer.add_chat_template(file.read())


def write_gguf(directory, path, kind, arch="llama", tensors=None, edit=None, tokenizer=None, **options):
    """`tensors`: name -> values in place of the file's; `edit(writer)` adds keys; options of GGUFWriter."""
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    writer = gguf.GGUFWriter(path, arch, **options)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    head = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_vocab_size(config["vocab_size"])
    if config.get("bos_token_id") is not None:
        writer.add_bos_token_id(config["bos_token_id"])
    if config.get("eos_token_id") is not None:
        writer.add_eos_token_id(config["eos_token_id"])
    add_tokenizer(writer, tokenizer or directory, config["vocab_size"])
    if edit:
        edit(writer)
    for name, values in (tensors or read_safetensors(directory)).items():
        new = gguf_name(name)
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            values = permute(values, heads if "q_proj" in name else kv_heads)
        if values.ndim == 1:
            writer.add_tensor(new, values)
            continue
        of = kind_of(new, kind, config["num_hidden_layers"], values.shape[1])
        writer.add_tensor(new, quantize(values, of), raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored_values(directory, kind, permuted=True):
    """name -> float32 values that a file of this type holds, by the package's dequantize."""
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    values = {}
    for name, array in read_safetensors(directory).items():
        if array.ndim == 2:
            of = kind_of(gguf_name(name), kind, config["num_hidden_layers"], array.shape[1])
            array = np.asarray(gguf.quants.dequantize(quantize(array, of), of), np.float32).reshape(array.shape)
        values[name] = array
    return values


if __name__ == "__main__":
    write_gguf(*sys.argv[1:4])
