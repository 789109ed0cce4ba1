"""Random models for GGUF files of every type of tensor that the server reads. Needs what random_models.py needs."""
from random_models import write_model

KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
         "MXFP4")


def write_random(directory):
    """A Llama whose rows are whole blocks of 256 values; heads that tensor cores take."""
    write_model(directory, "llama", dtype="bf16", seed=4, hidden_size=256, intermediate_size=512, num_attention_heads=4,
                num_key_value_heads=2, head_dim=64, num_hidden_layers=2)
