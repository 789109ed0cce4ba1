"""Reads the output of `test_model_weights --dump DIR OUT DTYPE`: lines "name rows cols", each followed by its f32 values."""
import numpy as np


def parse_dump(path):
    """name -> array"""
    with open(path, "rb") as file:
        content = file.read()
    at, values = 0, {}
    while at < len(content):
        end = content.index(b"\n", at)
        name, rows, cols = content[at:end].decode().split(" ")
        rows, cols = int(rows), int(cols)
        count = rows * (cols or 1)
        data = np.frombuffer(content, np.float32, count, end + 1)
        values[name] = data.reshape((rows, cols) if cols else (rows,))
        at = end + 1 + 4 * count
    return values
