#!/usr/bin/env python3
"""Writes tests/model/golden_4bit: models of one layer whose 4-bit weights the `compressed-tensors` package packed, and a
hash of the values that its own code makes of them (tests/model/test_weights_4bit.c reads both).

    pip install compressed-tensors==0.20.0 safetensors; python tools/make_4bit_goldens.py

A hash is 64-bit FNV-1a over the float32 values of a module, row by row, in little-endian bytes; -0 counts as 0.
"""
import json
import os
import sys

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from safetensors.torch import save_file

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "model", "golden_4bit")
HIDDEN, INNER, HEAD, VOCAB = 64, 32, 16, 8
SHAPES = {"self_attn.q_proj": (HEAD, HIDDEN), "self_attn.k_proj": (HEAD, HIDDEN), "self_attn.v_proj": (HEAD, HIDDEN),
          "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}

CASES = {
    "int4_group": ("pack-quantized", {"type": "int", "strategy": "group", "group_size": 32, "symmetric": True}),
    "int4_group_zeros": ("pack-quantized", {"type": "int", "strategy": "group", "group_size": 32, "symmetric": False}),
    "int4_channel": ("pack-quantized", {"type": "int", "strategy": "channel", "symmetric": True}),
    "nvfp4": ("nvfp4-pack-quantized", {"type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True,
                                       "scale_dtype": "torch.float8_e4m3fn", "zp_dtype": "torch.float8_e4m3fn"}),
    "mxfp4": ("mxfp4-pack-quantized", {"type": "float", "strategy": "group", "group_size": 32, "symmetric": True,
                                       "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}),
}


def hash_of(values):
    number = 0xcbf29ce484222325
    for byte in (values.float() + 0.0).contiguous().numpy().tobytes():
        number = (number ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{number:016x}"


def parameters(weight, args, form):
    """Scales and zero points of the package's own formulas, and NVFP4's global scale."""
    rows, cols = weight.shape
    groups = weight.reshape(rows, -1, args.group_size or cols)
    whole = None
    if form.startswith("nvfp4"):
        whole = (448.0 * 6.0 / weight.abs().max()).float().reshape(1)
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args, whole)
    return scale, zero, whole


def pack(weight, name, form, args):
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    scale, zero, whole = parameters(weight, args, form)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    if whole is not None:
        state["weight_global_scale"] = whole
    packer = BaseCompressor.load_from_registry(form)
    packed = packer.compress(dict(state), scheme)
    if form == "pack-quantized":
        values = packer.decompress(dict(packed), scheme)["weight"]
        # In float32, where bf16 scales times small integers are exact.
        exact = packer.decompress({**packed, "weight_scale": packed["weight_scale"].float()}, scheme)["weight"]
        assert torch.equal(exact.to(values.dtype), values), name
        values = exact
    else:
        codes = packed["weight_packed"]
        unpacked = unpack_fp4_from_uint8(codes, codes.shape[0], 2 * codes.shape[1], torch.float32)
        scale = packed["weight_scale"]
        scale = decompress_mx_scale(scale).float() if form.startswith("mxfp4") else scale.float()
        values = dequantize(unpacked, scale=scale, args=args, global_scale=whole, dtype=torch.float32)
    return {f"{name}.{key}": value.contiguous() for key, value in packed.items()}, values


def make(case):
    form, weights = CASES[case]
    args = QuantizationArgs(num_bits=4, **weights)
    torch.manual_seed(4)
    tensors, lines = {}, []
    for name, shape in SHAPES.items():
        module = f"model.layers.0.{name}"
        weight = (torch.randn(shape) * 0.05).to(torch.bfloat16)
        more, values = pack(weight, module, form, args)
        tensors |= more
        lines.append(f"{name} {hash_of(values)}\n")
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"model.layers.0.{name}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    tensors["model.layers.0.self_attn.o_proj.weight"] = torch.zeros((HIDDEN, HEAD), dtype=torch.bfloat16)
    tensors["model.norm.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    tensors["model.embed_tokens.weight"] = torch.zeros((VOCAB, HIDDEN), dtype=torch.bfloat16)
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": INNER,
              "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": HEAD,
              "vocab_size": VOCAB, "max_position_embeddings": 16, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
              "quantization_config": {
                  "quant_method": "compressed-tensors", "format": form, "ignore": ["re:.*o_proj", "lm_head"],
                  "config_groups": {"group_0": {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}}}}
    folder = os.path.join(OUT, case)
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)
        file.write("\n")
    with open(os.path.join(folder, "values.txt"), "w", encoding="utf-8") as file:
        file.writelines(lines)


if __name__ == "__main__":
    for one in sys.argv[1:] or CASES:
        make(one)
