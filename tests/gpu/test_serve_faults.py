"""A GPU that fails or hangs in the middle of a step: requests in flight get an error, /health returns 503, no request is
accepted, and the process exits with 70."""
from gpu import require_gpu
from gpu_faults import check_fault


def main():
    require_gpu()
    for kind in ("illegal_address", "trap", "hang"):
        for run_ahead in ("0", "1"):
            check_fault(kind, "--run-ahead", run_ahead)
    print("1 passed, 0 failed")


main()
