"""Runs the fuzz targets of tests/fuzz with libFuzzer: ./dev fuzz builds them and calls this.

  fuzz.py BUILD [--minutes N | --hours N | --fixed] [TARGET ...]   one minute each, all targets, as many at a time as cores

--fixed is for CI: a fixed seed and number of inputs, from the committed corpora alone, so that a change is judged by the
same inputs each time. They take about two minutes of two cores; new inputs are searched without it.

Prints inputs and coverage of each target. A finding ends its target: the input is in BUILD/findings, and belongs into
tests/fuzz/corpus/TARGET once its cause is fixed. Inputs that reached new code stay in BUILD/corpus for the next run.
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "tests/fuzz")
MAX_BYTES = 8192
# Inputs of --fixed, by the speed of a target.
FIXED_INPUTS = {"config": 200_000, "dialect": 100_000, "gguf": 2_400_000, "grammar": 20_000, "load": 400_000,
                "params": 200_000, "query": 800_000, "safetensors": 2_400_000, "stop": 200_000, "template": 160_000,
                "tokenizer": 8_000}


def targets():
    return sorted(name[5:-2] for name in os.listdir(FOLDER)
                  if re.fullmatch(r"fuzz_\w+\.c", name) and name != "fuzz_input.c")


def command(build, target, seconds):
    """seconds 0: a fixed number of inputs"""
    corpus, findings = (os.path.join(build, name) for name in (f"{'corpus' if seconds else 'fixed'}/{target}", "findings"))
    if not seconds:
        shutil.rmtree(corpus, ignore_errors=True)
    os.makedirs(corpus, exist_ok=True)
    os.makedirs(findings, exist_ok=True)
    words = [os.path.join(build, f"tests/fuzz_{target}"), f"-max_len={MAX_BYTES}", "-timeout=10", "-rss_limit_mb=2048",
             "-print_final_stats=1", f"-artifact_prefix={findings}/{target}-"]
    words += [f"-max_total_time={seconds}"] if seconds else ["-seed=1", f"-runs={FIXED_INPUTS.get(target, 40_000)}"]
    dictionary = os.path.join(FOLDER, f"dictionaries/{target}.dict")
    if os.path.exists(dictionary):
        words.append(f"-dict={dictionary}")
    return words + [corpus, os.path.join(FOLDER, "corpus", target)]


def fuzz(build, target, seconds):
    """True when nothing was found."""
    environment = dict(os.environ, UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1")
    run = subprocess.run(command(build, target, seconds), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", check=False)
    seen = [int(cov) for cov in re.findall(r" cov: (\d+) ft: ", run.stdout)]
    inputs = re.search(r"stat::number_of_executed_units:\s*(\d+)", run.stdout)
    line = f"{target:12} {int(inputs.group(1)) if inputs else 0:>10,} inputs"
    if seen:
        line += f", coverage {seen[0]:,} -> {seen[-1]:,} edges"
    if run.returncode == 0:
        print(line, flush=True)
        return True
    print(f"{line}  FAILED (exit code {run.returncode})\n{run.stdout[-3000:]}", flush=True)
    return False


def main():
    parser = argparse.ArgumentParser(prog="./dev fuzz")
    parser.add_argument("build", help=argparse.SUPPRESS)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=1, help="of each target (default: 1)")
    length.add_argument("--hours", type=float, help="of each target")
    length.add_argument("--fixed", action="store_true", help="the same inputs in each run, for CI")
    parser.add_argument("target", nargs="*", help=f"default: all of {', '.join(targets())}")
    options = parser.parse_intermixed_args()
    unknown = sorted(set(options.target) - set(targets()))
    if unknown:
        parser.error(f"no target {', '.join(unknown)}: {', '.join(targets())}")
    seconds = 0 if options.fixed else max(1, round((options.hours * 60 if options.hours else options.minutes) * 60))
    chosen = options.target or targets()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        results = list(pool.map(lambda name: fuzz(options.build, name, seconds), chosen))
    failed = [name for name, good in zip(chosen, results) if not good]
    if failed:
        print(f"found by {', '.join(failed)}: the inputs are in {os.path.join(options.build, 'findings')}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
