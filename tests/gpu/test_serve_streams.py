"""64 concurrent streams on a GPU, in a pool so small that sequences are swapped, have the texts of the same requests one
at a time. Answers are longer than on the CPU, because pages are larger."""
from gpu import require_gpu
from mixed_streams import check_streams

require_gpu()
check_streams(["--device", "cuda", "--kv-cache-memory-bytes", "1G"], ["--num-gpu-blocks-override", "8", "--max-model-len", "384"], longest=240)
print("1 passed, 0 failed")
