#!/usr/bin/env python3
"""What `reprise quantize` writes is a compressed-tensors checkpoint: the `safetensors` package reads it, its codes and
scales are numpy's (of FP8 none of the scales that may be tried is better), what is left out is as it was to the byte, and the loader has the same weights that numpy makes of it.
With --calibrate factors move from rows into weights where a few elements are large: they are powers of two, what was
divided times what it meets is the model's own, and the logits are nearer to it than without.
GPTQ (--rounding) changes codes alone, to the same ones with any number of workers, and nothing but codes: outputs lose
less by its own account and by numpy's, and so do the logits of models/demo on another text.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
try:
    import numpy as np
    import safetensors
    from random_models import encoded, write_model, write_tensors
    from safetensors_dump import parse_dump
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

SOURCE = os.environ.get("REPRISE_SOURCE_DIR", ".")
BIN = os.environ.get("REPRISE_BIN", os.path.join(SOURCE, "build", "release", "reprise"))
DUMP = os.path.join(os.path.dirname(BIN), "tests", "test_model_weights")
passed = 0


def quantize(*arguments, code=0):
    done = subprocess.run([BIN, "quantize", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    return done.stdout if code == 0 else done.stderr


def read_folder(folder):
    """name -> (type, shape, bytes), and name -> file"""
    tensors, files = {}, {}
    for file_name in sorted(os.listdir(folder)):
        if file_name.endswith(".safetensors"):
            with open(os.path.join(folder, file_name), "rb") as file:
                for name, one in safetensors.deserialize(file.read()):
                    tensors[name] = (one["dtype"], tuple(one["shape"]), bytes(one["data"]))
                    files[name] = file_name
    return tensors, files


def e4m3_positive():
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(exponent, (1 + mantissa / 8) * 2.0 ** (exponent - 7), mantissa / 8 * 2.0 ** -6)


def to_e4m3(values):
    """The nearest codes, ties to the even one."""
    table, size = e4m3_positive(), np.abs(values.astype(np.float64))
    high = np.clip(np.searchsorted(table, size), 1, 126)
    below, above = size - table[high - 1], table[high] - size
    code = np.where((above < below) | ((above == below) & (high % 2 == 0)), high, high - 1)
    return (np.where(size > table[-1], 126, code) | np.where(np.signbit(values), 128, 0)).astype(np.uint8)


def expected(full, scheme):
    most = np.abs(full).max(1, keepdims=True)
    top = np.float32(127 if scheme == "int8" else 448)
    scaled = full * (top / most)
    codes = np.rint(scaled).astype(np.int8) if scheme == "int8" else to_e4m3(scaled)
    return codes, most / top


def check_searched(full, got_codes, got_scales, name):
    """Rows of FP8: the best of 16 scales within a factor of two, and then the one of least squares; or the largest's."""
    wide = full.astype(np.float64)

    def noise(codes, scales):
        return np.sum((wide - decoded(codes, "fp8").astype(np.float64) * scales) ** 2, 1)

    plain_codes, plain_scales = expected(full, "fp8")
    least = np.full(len(full), np.inf)
    for step in range(16):
        scales = plain_scales.astype(np.float64) * 2 ** (step / 16)
        least = np.minimum(least, noise(to_e4m3((wide / scales).astype(np.float32)), scales))
    got, was = noise(got_codes, got_scales.astype(np.float64)), noise(plain_codes, plain_scales.astype(np.float64))
    assert np.all(got <= was) and np.all(got <= least * 1.0001), name
    values = decoded(got_codes, "fp8").astype(np.float64)
    fitted = np.sum(wide * values, 1) / np.sum(values * values, 1)
    plain = got_scales[:, 0] == plain_scales[:, 0]
    assert np.all(plain | (np.abs(got_scales[:, 0] / fitted - 1) < 1e-6)) and plain.mean() < 0.1, name
    assert np.array_equal(got_codes[plain], plain_codes[plain]), name
    nearest = to_e4m3(full / got_scales)  # the fitted scale is off the tried one by a little: so are a few codes
    assert np.mean(nearest == got_codes) > 0.9, name


def decoded(codes, scheme):
    if scheme == "int8":
        return codes.astype(np.float32)
    table = np.append(e4m3_positive(), np.nan)
    return (table[codes & 127] * np.where(codes & 128, -1, 1)).astype(np.float32)


def check(folder, out, scheme, family, dtype, **options):
    global passed
    model = write_model(folder, family, dtype=dtype, **options)
    text = quantize(folder, out, "--scheme", scheme, "--report")
    tensors, files = read_folder(out)
    values, projections = {}, 0
    for name, full in model.tensors.items():
        kind, shape, data = tensors[name]
        assert shape == full.shape, name
        if not name.endswith("_proj.weight"):
            assert data == np.ascontiguousarray(encoded(full, dtype)).tobytes(), name
            values[name] = full
            continue
        projections += 1
        codes, scales = expected(full, scheme)
        scale_kind, scale_shape, scale_data = tensors[name + "_scale"]
        assert (kind, scale_kind, scale_shape) == ("I8" if scheme == "int8" else "F8_E4M3", "F32", (shape[0], 1)), name
        got_codes = np.frombuffer(data, codes.dtype).reshape(shape)
        got_scales = np.frombuffer(scale_data, np.float32).reshape(scale_shape)
        if scheme == "fp8" and shape[1] <= 512:
            check_searched(full, got_codes, got_scales, name)
        else:
            assert np.array_equal(got_scales, scales) and np.array_equal(got_codes, codes), (name, scheme)
        assert name in text, name
        values[name] = decoded(got_codes, scheme) * got_scales
    assert len(tensors) == len(model.tensors) + projections and f"{projections} projections" in text
    with open(os.path.join(out, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    quant = config.pop("quantization_config")
    assert config == model.config and quant["ignore"] == ["lm_head"] and quant["format"].split("-")[0] in ("int", "float")
    if len(set(files.values())) > 1:
        with open(os.path.join(out, "model.safetensors.index.json"), encoding="utf-8") as file:
            assert json.load(file)["weight_map"] == files
    for name in ("tokenizer.json", "generation_config.json"):
        with open(os.path.join(folder, name), "rb") as one, open(os.path.join(out, name), "rb") as other:
            assert one.read() == other.read(), name
    dump = os.path.join(folder, "dump")
    for kind in ("auto", "f32"):
        subprocess.run([DUMP, "--dump", out, dump, kind], check=True, timeout=60)
        got = parse_dump(dump)
        for layer in range(model.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            for name, parts in {"qkv": [f"self_attn.{x}_proj" for x in "qkv"], "o": ["self_attn.o_proj"],
                                "gate_up": ["mlp.gate_proj", "mlp.up_proj"], "down": ["mlp.down_proj"]}.items():
                whole = np.concatenate([values[at + part + ".weight"] for part in parts])
                assert np.array_equal(got[f"{layer}.{name}"], whole), (scheme, kind, layer, name)
                passed += 1


def read_numbers(folder):
    """name -> float32 values; of projections (codes, scales)"""
    tensors, _ = read_folder(folder)
    numbers = {}
    for name, (kind, shape, data) in tensors.items():
        if kind == "I8":
            numbers[name] = (np.frombuffer(data, np.int8).reshape(shape).astype(np.float32),
                             np.frombuffer(tensors[name + "_scale"][2], np.float32).reshape(-1, 1))
        elif kind == "BF16":
            numbers[name] = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
        else:
            numbers[name] = np.frombuffer(data, np.float32 if kind == "F32" else np.float16).astype(np.float32).reshape(shape)
    return numbers


def powers_of_two(values):
    assert np.all(values > 0) and np.array_equal(np.log2(values), np.rint(np.log2(values))), values
    return values


def check_layer(at, old, new, config):
    """Every product's weights times what divides its rows are the old ones, within half a step; returns how many factors."""
    def projection(name, columns, rows):
        codes, scales = new[f"{at}{name}.weight"]
        want = old[f"{at}{name}.weight"] * columns / rows[:, None]
        assert np.all(np.abs(codes * scales - want) <= scales * 0.50001), (at, name)

    def rows_of(name, columns):
        """What the rows of a matrix were divided by, from its scales."""
        _, scales = new[f"{at}{name}.weight"]
        most = np.abs(old[f"{at}{name}.weight"] * columns).max(1)
        return powers_of_two(np.exp2(np.rint(np.log2(most / 127 / scales[:, 0]))))

    def norm(name):
        if config["model_type"] == "gemma2":  # stored less one: left alone
            assert np.array_equal(old[f"{at}{name}.weight"], new[f"{at}{name}.weight"])
            return np.ones_like(old[f"{at}{name}.weight"])
        return powers_of_two(old[f"{at}{name}.weight"] / new[f"{at}{name}.weight"])

    qkv = norm("input_layernorm")
    gate_up = norm("post_attention_layernorm" if config["model_type"] != "gemma2" else "pre_feedforward_layernorm")
    gathered, up = rows_of("self_attn.v_proj", qkv), rows_of("mlp.up_proj", gate_up)
    ones = np.ones(10**4, np.float32)
    for name in "qk":
        projection(f"self_attn.{name}_proj", qkv, ones[:len(old[f"{at}self_attn.{name}_proj.weight"])])
    projection("self_attn.v_proj", qkv, gathered)
    projection("mlp.gate_proj", gate_up, ones[:len(up)])
    projection("mlp.up_proj", gate_up, up)
    # Heads of a group share their KV head's factors.
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    o = np.repeat(gathered.reshape(-1, 1, config["head_dim"]), group, 1).ravel()
    projection("self_attn.o_proj", o, ones[:config["hidden_size"]])
    projection("mlp.down_proj", up, ones[:config["hidden_size"]])
    bias = f"{at}self_attn.v_proj.bias"
    if bias in old:
        assert np.array_equal(old[bias], new[bias] * gathered)
    return [int(np.sum(factors != 1)) for factors in (qkv, o, gate_up, up)]


def check_other_orders(parent, family):
    """Tensors of several projections, and rows that are brought into another order at load: scales go with their rows."""
    global passed
    folder, out, logits = (os.path.join(parent, name) for name in ("model", "out", "logits"))
    model, rows = write_model(folder, family, dtype="bf16", seed=13), []
    for name in [key for key, values in model.tensors.items() if "layers" in key and values.ndim == 2]:
        model.tensors[name][::3] *= 6  # so that neighbors' scales differ
    write_tensors(os.path.join(folder, "model.safetensors"), model.tensors, "bf16")
    quantize(folder, out, "--scheme", "int8")
    for one in (folder, out):
        subprocess.run([os.path.join(os.path.dirname(DUMP), "test_model_stories260k"), "--logits", one, logits, "f32", "7",
                        *map(str, range(40, 75))], check=True, timeout=60)
        rows.append(np.fromfile(logits, np.float32))
    error = np.linalg.norm(rows[0] - rows[1]) / np.linalg.norm(rows[0])
    assert error < 0.06, (family, error)
    passed += 1


def divergence(model, against, text, *flags):
    done = subprocess.run([BIN, "eval", "ppl", text, "--model", model, "--against", against, "--json", "--device", "cpu",
                           *(flags or ("--dtype", "bfloat16"))], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)["against"]["kl_mean"]


def check_balanced(parent, family, dtype):
    global passed
    folder, plain, out, text = (os.path.join(parent, name) for name in ("model", "plain", "out", "text"))
    model = write_model(folder, family, dtype=dtype, seed=9)
    for layer in range(3):  # large elements in each kind of rows
        at = f"model.layers.{layer}."
        for name, elements, size in (("input_layernorm.weight", [3, 17], 64), ("self_attn.v_proj.weight", [2, 9], 40),
                                     ("post_attention_layernorm.weight", [5], 50), ("mlp.up_proj.weight", [7, 30], 40)):
            model.tensors[at + name][elements] *= size
    write_tensors(os.path.join(folder, "model.safetensors"), model.tensors, dtype)
    with open(text, "w", encoding="utf-8") as file:
        file.write("".join(chr(32 + (i * i + 7 * i) % 90) for i in range(3000)))
    quantize(folder, plain, "--scheme", "int8")
    said = quantize(folder, out, "--scheme", "int8", "--calibrate", text, "--calibrate-tokens", "600",
                    "--rounding", "nearest")
    old, new = read_numbers(folder), read_numbers(out)
    factors = np.array([check_layer(f"model.layers.{layer}.", old, new, model.config) for layer in range(3)])
    sites = [1, 3] if family == "gemma2" else [0, 1, 2, 3]
    assert all(factors[:, site].any() for site in sites), (family, factors)
    for site, name in enumerate(("q, k, v", "o ", "gate, up", "down")):
        layers = int(np.sum(factors[:, site] > 0))
        assert any(line.startswith(f"balanced  {name}") and f" in {layers} of 3 layers" in line
                   for line in said.splitlines()), (family, factors, said)
    unchanged = set(new) - {name for name in new if "layers." in name}
    assert all(np.array_equal(old[name], new[name]) for name in unchanged) and len(unchanged) >= 2
    if family != "gemma2":  # whose norms behind the sums hide most of it
        near, far = divergence(out, folder, text), divergence(plain, folder, text)
        assert near < far / 2, (family, near, far)
    passed += 3


def codes_and_others(folder):
    tensors, _ = read_folder(folder)
    codes = {name: one for name, one in tensors.items() if name + "_scale" in tensors}
    return codes, {name: one for name, one in tensors.items() if name not in codes}


def check_gptq(parent, scheme, family, dtype):
    """What is written beside codes is as with nearest rounding, whoever computed it; the report's outputs gain."""
    global passed
    folder, text = os.path.join(parent, "model"), os.path.join(parent, "text")
    model = write_model(folder, family, dtype=dtype, seed=11)
    with open(text, "w", encoding="utf-8") as file:
        file.write("".join(chr(32 + (i * i + 7 * i) % 90) for i in range(3000)))
    said, written = {}, {}
    for name, flags in (("nearest", ("--rounding", "nearest") if scheme == "int8" else None), ("one", ("--threads", "1")),
                        ("three", ("--threads", "3", "--rounding", "gptq"))):
        out = os.path.join(parent, name)
        calibrate = ("--calibrate", text, *flags) if flags else ()
        said[name] = quantize(folder, out, "--scheme", scheme, "--report", *calibrate)
        written[name] = codes_and_others(out)
    assert written["one"] == written["three"] and said["one"].splitlines()[:-1] == said["three"].splitlines()[:-1]
    assert written["one"][1] == written["nearest"][1], (scheme, family)
    assert written["one"][0].keys() == written["nearest"][0].keys()
    differ = [name for name, one in written["one"][0].items() if one != written["nearest"][0][name]]
    lines = {line.split()[0]: line.split("outputs")[1].replace("dB", "").replace(", nearest", "").split()
             for line in said["one"].splitlines() if " outputs " in line}
    assert lines.keys() == written["one"][0].keys() and "outputs" not in said["nearest"]
    for name, (got, nearest) in lines.items():
        assert float(got) >= float(nearest) - (name not in differ) * 0.01, (name, got, nearest)
    assert len(differ) > len(lines) / 2 and len(lines) == 7 * model.config["num_hidden_layers"]
    for data in (one[2] for one in written["one"][0].values()):
        assert not set(data) & ({128} if scheme == "int8" else {127, 255})
    passed += 3


def made_text(path, seed):
    """Sums and simple sentences, what models/demo is about."""
    one = random.Random(seed)
    who, did, what, where = (words.split() for words in ("Tom Anna Lily Ben", "saw found took made", "ball dog cake hat boat bird",
                                                         "garden house park forest"))
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(400):
            left, right = one.randrange(500), one.randrange(500)
            file.write(f"{left} + {right} = {left + right}\n{one.choice(who)} {one.choice(did)} a {one.choice(what)} in the "
                       f"{one.choice(where)}.\n")
    return path


def check_demo(parent, scheme):
    """Weights alone, calibrated on one text and compared on another."""
    global passed
    demo = os.path.join(SOURCE, "models", "demo")
    one, other = (made_text(os.path.join(parent, f"text{seed}"), seed) for seed in (1, 2))
    divergences = []
    for rounding in ("nearest", "gptq"):
        out = os.path.join(parent, rounding)
        text = ("--calibrate", one) if scheme == "int8" or rounding == "gptq" else ()
        quantize(demo, out, "--scheme", scheme, *text, "--rounding", rounding)
        divergences.append(divergence(out, demo, other, "--tokens", "3000", "--dtype", "float32"))
    assert divergences[1] < divergences[0] / 2, (scheme, divergences)
    passed += 1


def main():
    global passed
    if not os.path.exists(DUMP):
        print(f"SKIP: no {DUMP}")
        sys.exit(77)
    for scheme in ("fp8", "int8"):
        for family, dtype, options in (("llama", "bf16", {"tied": False, "shards": 2}), ("qwen2", "f32", {"seed": 4}),
                                       ("gemma2", "f16", {"seed": 5})):
            with tempfile.TemporaryDirectory() as parent:
                check(os.path.join(parent, "model"), os.path.join(parent, "out"), scheme, family, dtype, **options)
    for family, dtype in (("llama", "bf16"), ("qwen2", "f16"), ("gemma2", "f32")):
        with tempfile.TemporaryDirectory() as parent:
            check_balanced(parent, family, dtype)
    for family in ("phi3", "glm", "internlm2"):
        with tempfile.TemporaryDirectory() as parent:
            check_other_orders(parent, family)
    for scheme, family, dtype in (("fp8", "llama", "bf16"), ("int8", "qwen2", "f32"), ("fp8", "gemma2", "f32")):
        with tempfile.TemporaryDirectory() as parent:
            check_gptq(parent, scheme, family, dtype)
    # A build with sanitizers sees the same code with the small models above.
    for scheme in ("fp8", "int8") if os.path.basename(os.path.dirname(BIN)) not in ("asan", "tsan") else ():
        with tempfile.TemporaryDirectory() as parent:
            check_demo(parent, scheme)
    with tempfile.TemporaryDirectory() as parent:
        folder, out = os.path.join(parent, "model"), os.path.join(parent, "out")
        model = write_model(folder, "llama")
        assert "has no effect" in quantize(folder, out, "--calibrate", __file__, "--rounding", "nearest", code=2)
        assert "requires --calibrate FILE" in quantize(folder, out, "--rounding", "gptq", code=2)
        assert "/nowhere" in quantize(folder, out, "--scheme", "int8", "--calibrate", "/nowhere", code=1)
        assert "contains no text" in quantize(folder, out, "--scheme", "int8", "--calibrate", "/dev/null", code=2)
        quantize(folder, out)
        assert "quantized weights already" in quantize(out, out + "2", code=3)
        assert out in quantize(folder, out, code=1)
        name = "model.layers.1.mlp.up_proj.weight"
        model.tensors[name][7, 2] = np.inf
        write_tensors(os.path.join(folder, "model.safetensors"), model.tensors, "f32")
        assert f"tensor {name}: row 7" in quantize(folder, out + "3", code=3)
        assert not os.path.exists(os.path.join(out + "3", "config.json"))
        quantize(folder, code=2)
        quantize(folder, out + "4", "--scheme", "int5", code=2)
        passed += 6
    print(f"{passed} passed, 0 failed")


main()
