#!/usr/bin/env python3
"""Computes the error of 8-bit quantization for a Llama with random weights and exact arithmetic otherwise (numpy).

    tools/random_network_8bit.py [--shape 1b|8b|narrow] [--layers N] [--weights bench|normal|scaled] [--few]

Weights `bench` are exactly those of `reprise bench step --shape` on the CPU; `normal` is the initialization of
transformers (deviation 0.02, norms 1); `scaled` the same with o and down divided by sqrt(2 layers), as in GPT-2. 64
random tokens are run through all variants together, layer by layer: only weights quantized, only activations ("rows"),
only the inputs of down, and so on. Prints the cosine of their logits with those of f32 and of bf16 (mean, min), and the
noise of the last residual in dB. Arithmetic is f32 on dequantized values; OMP_NUM_THREADS=1 limits it to one core. 1b
takes 3 to 10 minutes and 4 GB.
"""
import argparse

import numpy as np

F32, U32, U64 = np.float32, np.uint32, np.uint64
TOKENS = 64
SHAPES = {  # hidden, intermediate, layers, heads, KV heads, head_dim, vocabulary, RoPE's factor
    "1b": (2048, 8192, 16, 32, 8, 64, 128256, 32),  # llama-3.2-1b
    "8b": (4096, 14336, 32, 32, 8, 128, 32000, 8),  # llama-3.1-8b, but for the vocabulary
    "narrow": (1024, 3584, 32, 16, 4, 64, 32000, 8),
}

# ---- rounding --------------------------------------------------------------------------------------------------------


def bf16(values):
    bits = np.ascontiguousarray(values, F32).view(U32)
    return ((bits + U32(0x7FFF) + ((bits >> U32(16)) & U32(1))) & U32(0xFFFF0000)).view(F32)


def e4m3(values):
    """Rounds values of at most 448 to the nearest E4M3."""
    bits = np.ascontiguousarray(values, F32).view(U32)
    size = bits & U32(0x7FFFFFFF)
    small = ((size.view(F32) + F32(2**14)) - F32(2**14)).view(U32)
    normal = np.minimum((size + U32(0x7FFFF) + ((size >> U32(20)) & U32(1))) & U32(0xFFF00000), U32(0x43E00000))
    return (np.where(size < U32(0x3C800000), small, normal) | (bits & U32(0x80000000))).view(F32)


def quantized(values, kind, group=0):
    """Quantizes and dequantizes rows with one scale each, or one per `group` columns."""
    if group:
        return quantized(values.reshape(*values.shape[:-1], -1, group), kind).reshape(values.shape)
    top = F32(127 if kind == "int8" else 448)
    most = np.abs(values).max(-1, keepdims=True)
    scale = np.where(most > 0, most / top, F32(1)).astype(F32)
    scaled = values * (F32(1) / scale)
    return (np.clip(np.rint(scaled), -127, 127) if kind == "int8" else e4m3(scaled)) * scale


# ---- weights ---------------------------------------------------------------------------------------------------------


class BenchWeights:
    """As model/weights.c: each word of splitmix64 indexes five values of a table of 4,096; a matrix starts at a new word."""

    def __init__(self, hidden, vocab, _layers):
        self.hidden, self.at = hidden, -(-hidden * vocab // 5)  # after the embedding
        self.table = bf16(((np.arange(4096) + 0.5) / 4096 * 2 - 1) * 0.02 * np.sqrt(3.0))

    def numbers(self, word, count):
        out = np.empty((-(-count // 5), 5), F32)
        for begin in range(0, len(out), 1 << 20):
            end = min(begin + (1 << 20), len(out))
            with np.errstate(over="ignore"):
                z = U64(1) + np.arange(word + begin + 1, word + end + 1, dtype=U64) * U64(0x9E3779B97F4A7C15)
                z = (z ^ (z >> U64(30))) * U64(0xBF58476D1CE4E5B9)
                z = (z ^ (z >> U64(27))) * U64(0x94D049BB133111EB)
            z ^= z >> U64(31)
            for k in range(5):
                out[begin:end, k] = self.table[((z >> U64(12 * k)) & U64(4095)).astype(np.int64)]
        return out.reshape(-1)[:count]

    def embedding(self, row, rows):
        first, skip = divmod(row * self.hidden, 5)
        return self.numbers(first, skip + rows * self.hidden)[skip:].reshape(rows, self.hidden)

    def matrix(self, _name, rows, cols):
        values = self.numbers(self.at, rows * cols)
        self.at += -(-rows * cols // 5)
        return values.reshape(rows, cols)

    def norm(self, count):
        return F32(1) + self.matrix("norm", 1, count)[0]


class NormalWeights:
    def __init__(self, hidden, _vocab, layers, scaled=False):
        self.hidden, self.random = hidden, np.random.Generator(np.random.SFC64(1))
        self.output_deviation = 0.02 / np.sqrt(2 * layers) if scaled else 0.02

    def embedding(self, row, rows):
        blocks = [np.random.Generator(np.random.SFC64([1, 7, block])).standard_normal((256, self.hidden), F32)
                  for block in range(row // 256, -(-(row + rows) // 256))]
        return bf16(np.concatenate(blocks)[row % 256:][:rows] * F32(0.02))

    def matrix(self, name, rows, cols):
        deviation = self.output_deviation if name in ("o", "down") else 0.02
        return bf16(self.random.standard_normal((rows, cols), F32) * F32(deviation))

    def norm(self, count):
        return np.ones(count, F32)


# ---- variants --------------------------------------------------------------------------------------------------------


class Variant:
    """weights, rows (inputs of all GEMMs but down), down (its inputs), head: None, "int8" or "fp8"; rounded: inputs and
    KV pages are rounded to bf16."""

    def __init__(self, name, weights=None, rows=None, down=None, head=None, rounded=False, group=0, noise_db=None):
        self.name, self.weights, self.rows, self.down, self.head = name, weights, rows, down, head
        self.rounded, self.group, self.noise_db = rounded, group, noise_db

    def round(self, values, kind):
        values = bf16(values) if self.rounded else values
        return quantized(values, kind, self.group) if kind else values


def make_variants(few):
    out = [Variant("f32"), Variant("bf16 rows and pages", rounded=True), Variant("noise at the embedding, -40 dB", noise_db=-40)]
    if not few:
        out += [Variant(f"noise at the embedding, {db} dB", noise_db=db) for db in (-60, -80)]
    for kind in ("int8", "fp8"):
        out += [Variant(f"{kind}", kind, kind, kind), Variant(f"{kind}, as the engine: of bf16", kind, kind, kind, rounded=True)]
        if not few:
            out += [Variant(f"{kind} weights", kind), Variant(f"{kind} weights, as the engine (w8a16)", kind, rounded=True),
                    Variant(f"{kind} rows", None, kind, kind), Variant(f"{kind} rows of down", None, None, kind),
                    Variant(f"{kind} rows but down's", None, kind), Variant(f"{kind} but rows of down", kind, kind),
                    Variant(f"{kind}, rows with a scale per 128", kind, kind, kind, group=128),
                    Variant(f"{kind} head alone", head=kind)]
    return out


# ---- the network -----------------------------------------------------------------------------------------------------


class Network:
    def __init__(self, options):
        shape = list(SHAPES[options.shape])
        shape[2] = options.layers or shape[2]
        (self.hidden, self.inner, self.layers, self.heads, self.kv_heads, self.head_dim, self.vocab, self.factor) = shape
        make = BenchWeights if options.weights == "bench" else NormalWeights
        more = {"scaled": True} if options.weights == "scaled" else {}
        self.weights = make(self.hidden, self.vocab, self.layers, **more)
        self.variants = make_variants(options.few)
        pairs = np.arange(self.head_dim // 2)
        frequency = 500000.0 ** (-2 * pairs / self.head_dim)
        fade = np.clip((8192 * frequency / (2 * np.pi) - 1) / 3, 0, 1)
        angle = np.arange(TOKENS)[:, None] * ((1 - fade) * frequency / self.factor + fade * frequency)
        self.cos, self.sin = np.cos(angle).astype(F32)[:, None], np.sin(angle).astype(F32)[:, None]

    def linear(self, rows, name, outputs, inputs):
        """rows: one array per variant; one matmul for all variants with the same weights."""
        matrix = self.weights.matrix(name, outputs, inputs)
        out = [np.empty((TOKENS, outputs), F32) for _ in rows]
        for begin in range(0, outputs, 4096):
            piece = matrix[begin:begin + 4096]
            for kind in (None, "int8", "fp8"):
                mine = [i for i, variant in enumerate(self.variants) if variant.weights == kind]
                made = np.concatenate([rows[i] for i in mine]) @ (quantized(piece, kind) if kind else piece).T
                for n, i in enumerate(mine):
                    out[i][:, begin:begin + 4096] = made[n * TOKENS:(n + 1) * TOKENS]
        return out

    def normed(self, xs, site="rows"):
        weight = self.weights.norm(self.hidden)
        square = [np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5).astype(F32) for x in xs]
        return [v.round(x / s * weight, getattr(v, site)) for v, x, s in zip(self.variants, xs, square)]

    def rotated(self, x):
        low, high = np.split(x, 2, -1)
        return np.concatenate([low * self.cos - high * self.sin, high * self.cos + low * self.sin], -1)

    def attention(self, variant, q, k, v):
        q = self.rotated(q.reshape(TOKENS, self.heads, -1))
        k, v = self.rotated(k.reshape(TOKENS, self.kv_heads, -1)), v.reshape(TOKENS, self.kv_heads, -1)
        k, v = (bf16(k), bf16(v)) if variant.rounded else (k, v)
        k, v = (np.repeat(x, self.heads // self.kv_heads, 1) for x in (k, v))
        scores = np.matmul(q.transpose(1, 0, 2), k.transpose(1, 2, 0)) / F32(np.sqrt(self.head_dim))
        scores += np.triu(np.full((TOKENS, TOKENS), -np.inf, F32), 1)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        heads = np.matmul(share, v.transpose(1, 0, 2)).transpose(1, 0, 2)
        return variant.round(np.ascontiguousarray(heads).reshape(TOKENS, -1), variant.rows)

    def layer(self, xs):
        rows, q_cols, kv_cols = self.normed(xs), self.heads * self.head_dim, self.kv_heads * self.head_dim
        qkv = zip(*(self.linear(rows, name, cols, self.hidden) for name, cols in (("q", q_cols), ("k", kv_cols), ("v", kv_cols))))
        heads = [self.attention(variant, *parts) for variant, parts in zip(self.variants, qkv)]
        xs = [x + o for x, o in zip(xs, self.linear(heads, "o", self.hidden, q_cols))]
        rows = self.normed(xs)
        gate, up = (self.linear(rows, name, self.inner, self.hidden) for name in ("gate", "up"))
        inner = [v.round(g / (1 + np.exp(-g)) * u, v.down) for v, g, u in zip(self.variants, gate, up)]
        return [x + d for x, d in zip(xs, self.linear(inner, "down", self.hidden, self.inner))]

    def embedded(self):
        state, rows = 1, []
        for _ in range(TOKENS):  # bench/quant_error.c
            state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
            rows.append(self.weights.embedding(state * self.vocab >> 32, 1))
        x = np.concatenate(rows)
        noise = np.random.default_rng(5).standard_normal(x.shape).astype(F32) * np.sqrt((x**2).mean())
        return [x if v.noise_db is None else x + noise * F32(10 ** (v.noise_db / 20)) for v in self.variants]

    def cosines(self, xs):
        """(variant, against f32 and bf16, token)"""
        rows = self.normed(xs, "head")
        dots, squares = np.zeros((len(rows), 2, TOKENS)), np.zeros((len(rows), TOKENS))
        for begin in range(0, self.vocab, 4096):
            piece = self.weights.embedding(begin, min(4096, self.vocab - begin))
            logits = [(row @ (quantized(piece, v.head) if v.head else piece).T).astype(np.float64)
                      for v, row in zip(self.variants, rows)]
            for i, mine in enumerate(logits):
                squares[i] += (mine**2).sum(1)
                for against in range(2):
                    dots[i, against] += (mine * logits[against]).sum(1)
        return dots / np.sqrt(squares[:, None] * squares[None, :2])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--weights", choices=("bench", "normal", "scaled"), default="bench")
    parser.add_argument("--few", action="store_true", help="only complete schemes")
    network = Network(parser.parse_args())
    xs = network.embedded()
    for _ in range(network.layers):
        xs = network.layer(xs)
    cosines, signal = network.cosines(xs), (xs[0].astype(np.float64) ** 2).sum()
    print(f"{'':40} {'with f32: mean, min':>24} {'with bf16: mean, min':>24} {'residual, dB':>14}")
    for variant, x, (f32, half) in zip(network.variants, xs, cosines):
        noise = ((x.astype(np.float64) - xs[0]) ** 2).sum()
        db = f"{10 * np.log10(noise / signal):.1f}" if noise else "-"
        print(f"{variant.name:40} {f32.mean():13.5f} {f32.min():10.5f} {half.mean():13.5f} {half.min():10.5f} {db:>14}")


main()
