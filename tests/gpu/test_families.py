"""The families on a GPU have the logits of a numpy transformer: the variants of family_variants.py, and head dims that use
tensor cores."""
import os
import sys

from gpu import gpu_program, require_gpu

require_gpu()
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle"))
import families_oracle  # ends the test as skipped where numpy or safetensors are missing
from family_variants import LLAMA3, STATE_VARIANTS, VARIANTS

WIDE = {"hidden_size": 256, "intermediate_size": 448, "num_attention_heads": 4, "num_key_value_heads": 2}
WIDE_VARIANTS = [
    ("llama", {**WIDE, "head_dim": 64}),
    ("llama", {**WIDE, "head_dim": 128, "tied": False, "rope_scaling": LLAMA3}),
    ("mistral", {**WIDE, "head_dim": 128, "sliding_window": 17}),
    ("qwen2", {**WIDE, "head_dim": 64}),
    ("qwen3", {**WIDE, "head_dim": 128}),
    ("gemma2", {**WIDE, "head_dim": 256, "sliding_window": 17, "query_pre_attn_scalar": 224}),
]
DENSE_STATE_VARIANTS = [variant for variant in STATE_VARIANTS if variant[0] in ("lfm2", "qwen3_5")]
families_oracle.compare(gpu_program("test_gpu_stories_cuda"), VARIANTS + WIDE_VARIANTS + DENSE_STATE_VARIANTS, (0, 1, 7, 64),
                        tensor_core_dims=(64, 96, 128, 256))
