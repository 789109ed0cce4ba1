"""safetensors files by their bytes, for types that numpy does not have. Needs numpy."""
import json
import struct

import numpy as np

TYPES = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32, "U8": np.uint8}


def read_tensors(path):
    """name -> (type's name, array of its bits)"""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    return {name: (entry["dtype"], np.frombuffer(data[slice(*entry["data_offsets"])], TYPES[entry["dtype"]]).reshape(entry["shape"]))
            for name, entry in header.items() if name != "__metadata__"}


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (kind, array) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(array.tobytes())
