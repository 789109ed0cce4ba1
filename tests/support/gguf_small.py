"""The part of the package `gguf` that gguf_files.py needs, for machines without it: a writer of one file, and the quantizers of
blocks that the package has. The files are the same, byte for byte (tests/oracle/gguf_small_oracle.py). Needs numpy."""
import enum
import struct
from types import SimpleNamespace

import numpy as np

GGMLQuantizationType = enum.IntEnum("GGMLQuantizationType", {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13,
    "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30, "MXFP4": 39})
T = GGMLQuantizationType
GGML_QUANT_SIZES = {  # values and bytes of a block
    T.F32: (1, 4), T.F16: (1, 2), T.BF16: (1, 2), T.Q4_0: (32, 18), T.Q4_1: (32, 20), T.Q5_0: (32, 22), T.Q5_1: (32, 24),
    T.Q8_0: (32, 34), T.Q2_K: (256, 84), T.Q3_K: (256, 110), T.Q4_K: (256, 144), T.Q5_K: (256, 176), T.Q6_K: (256, 210),
    T.IQ4_NL: (32, 18), T.IQ4_XS: (256, 136), T.MXFP4: (32, 17)}
TokenType = enum.IntEnum("TokenType", "NORMAL UNKNOWN CONTROL USER_DEFINED UNUSED BYTE")
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
FORMATS = {UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "?"}
ALIGNMENT = 32


def half(values):
    return values.astype(np.float16).view(np.uint8)


def inverse(values):
    with np.errstate(divide="ignore"):
        return np.where(values == 0, 0, 1 / values)


def nibbles(codes):
    """The first half of a block in the lower bits, the second in the upper ones."""
    codes = codes.reshape(len(codes), 2, -1)
    return (codes[:, 0] & np.uint8(15)) | codes[:, 1] << np.uint8(4)


def fifth_bits(codes):
    return np.packbits(codes >> np.uint8(4), axis=-1, bitorder="little")


def signed_blocks(x, top):
    """Scale and codes of Q4_0 and Q5_0: the value of the largest size becomes -top."""
    scale = np.take_along_axis(x, abs(x).argmax(axis=-1, keepdims=True), axis=-1) / -top
    codes = np.trunc(x * inverse(scale) + np.float32(top + 0.5), dtype=np.float32).astype(np.uint8).clip(0, 2 * top - 1)
    return half(scale), codes


def affine_blocks(x, top):
    """Scale, minimum and codes of Q4_1 and Q5_1."""
    least = x.min(axis=-1, keepdims=True)
    scale = (x.max(axis=-1, keepdims=True) - least) / top
    codes = np.trunc((x - least) * inverse(scale) + np.float32(0.5), dtype=np.float32).astype(np.uint8).clip(0, top)
    return half(scale), half(least), codes


def q4_0(x):
    scale, codes = signed_blocks(x, 8)
    return scale, nibbles(codes)


def q4_1(x):
    scale, least, codes = affine_blocks(x, 15)
    return scale, least, nibbles(codes)


def q5_0(x):
    scale, codes = signed_blocks(x, 16)
    return scale, fifth_bits(codes), nibbles(codes)


def q5_1(x):
    scale, least, codes = affine_blocks(x, 31)
    return scale, least, fifth_bits(codes), nibbles(codes)


def q8_0(x):
    scale = abs(x).max(axis=1, keepdims=True) / 127
    scaled = x * inverse(scale)
    size = abs(scaled)
    whole = np.floor(size)
    rounded = np.sign(scaled) * (whole + np.floor(2 * (size - whole)))  # halves away from zero
    return half(scale), rounded.astype(np.int8).view(np.uint8)


def mxfp4(x):
    largest = abs(x).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        exponent = np.where(largest > 0, np.floor(np.log2(largest)) - 2 + 127, 0).astype(np.uint8)
    bits = np.where(exponent < 2, np.uint32(0x200000) << np.uint32(exponent), np.uint32(exponent - 1) << np.uint32(23))
    values = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
    errors = abs(bits.view(np.float32)[..., None] * values - x[..., None])
    return exponent, nibbles(errors.argmin(axis=-1).astype(np.uint8))


BLOCKS = {T.Q4_0: q4_0, T.Q4_1: q4_1, T.Q5_0: q5_0, T.Q5_1: q5_1, T.Q8_0: q8_0, T.MXFP4: mxfp4}


def quantize(values, kind):
    """float32 (rows, columns) -> the values, or bytes (rows, row bytes)"""
    if kind in (T.F32, T.F16):
        return values.astype(np.float32 if kind == T.F32 else np.float16)
    if kind == T.BF16:
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.uint8)
    parts = BLOCKS[kind](values.reshape(-1, GGML_QUANT_SIZES[kind][0]))
    return np.concatenate(parts, axis=-1).reshape(values.shape[0], -1)


quants = SimpleNamespace(quantize=quantize)


def text_bytes(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value_bytes(kind, value):
    if kind == STRING:
        return text_bytes(value)
    return struct.pack(FORMATS[kind], value)


class GGUFWriter:
    def __init__(self, path, arch):
        self.path, self.arch, self.keys, self.tensors = path, arch, {}, {}
        self.add("general.architecture", STRING, arch)

    def add(self, key, kind, value):
        self.keys[key] = struct.pack("<I", kind) + value_bytes(kind, value)

    def add_array(self, key, kind, values):
        if not values:
            return  # as the package
        self.keys[key] = struct.pack("<IIQ", ARRAY, kind, len(values)) + b"".join(value_bytes(kind, value) for value in values)

    def add_tensor(self, name, values, raw_dtype=None):
        """values: of f32 and f16 as they are, else rows of blocks' bytes"""
        kind = T(raw_dtype) if raw_dtype is not None else T.F32
        block, size = GGML_QUANT_SIZES[kind]
        shape = list(values.shape)
        if values.dtype == np.uint8:
            shape[-1] = shape[-1] // size * block
        self.tensors[name] = kind, shape, np.ascontiguousarray(values)

    def write_header_to_file(self):
        pass  # all is written at once

    write_kv_data_to_file = close = write_header_to_file

    def write_tensors_to_file(self):
        head = struct.pack("<IIQQ", 0x46554747, 3, len(self.tensors), len(self.keys))
        head += b"".join(text_bytes(key) + value for key, value in self.keys.items())
        at = 0
        for name, (kind, shape, values) in self.tensors.items():
            head += text_bytes(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, at)
            at += values.nbytes + -values.nbytes % ALIGNMENT
        with open(self.path, "wb") as file:
            file.write(head + bytes(-len(head) % ALIGNMENT))
            for _, _, values in self.tensors.values():
                file.write(values.tobytes() + bytes(-values.nbytes % ALIGNMENT))


def key_writer(key, kind, array=False):
    def method(self, value):
        name = key.replace("ARCH", self.arch)
        if array:
            self.add_array(name, kind, value)
        else:
            self.add(name, kind, value)
    return method


# add_NAME of the package: key, type, whether it is an array.
for method_name, method_key, *of_kind in (
        ("context_length", "ARCH.context_length", UINT32), ("embedding_length", "ARCH.embedding_length", UINT32),
        ("block_count", "ARCH.block_count", UINT32), ("feed_forward_length", "ARCH.feed_forward_length", UINT32),
        ("head_count", "ARCH.attention.head_count", UINT32), ("head_count_kv", "ARCH.attention.head_count_kv", UINT32),
        ("layer_norm_rms_eps", "ARCH.attention.layer_norm_rms_epsilon", FLOAT32),
        ("rope_freq_base", "ARCH.rope.freq_base", FLOAT32), ("key_length", "ARCH.attention.key_length", UINT32),
        ("value_length", "ARCH.attention.value_length", UINT32),
        ("rope_dimension_count", "ARCH.rope.dimension_count", UINT32), ("vocab_size", "ARCH.vocab_size", UINT32),
        ("bos_token_id", "tokenizer.ggml.bos_token_id", UINT32), ("eos_token_id", "tokenizer.ggml.eos_token_id", UINT32),
        ("add_bos_token", "tokenizer.ggml.add_bos_token", BOOL), ("tokenizer_model", "tokenizer.ggml.model", STRING),
        ("tokenizer_pre", "tokenizer.ggml.pre", STRING), ("chat_template", "tokenizer.chat_template", STRING),
        ("token_list", "tokenizer.ggml.tokens", STRING, True), ("token_types", "tokenizer.ggml.token_type", INT32, True),
        ("token_merges", "tokenizer.ggml.merges", STRING, True)):
    setattr(GGUFWriter, "add_" + method_name, key_writer(method_key, *of_kind))
