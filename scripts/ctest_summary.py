"""Reads the JUnit files that ctest writes (./dev test, .ci/run).

  ctest_summary.py --skips FILE...   names each skipped test with its reason
  ctest_summary.py --totals FILE...  one line: N passed, N failed, N skipped
  ctest_summary.py --slowest FILE... the ten tests that took longest, one line each

A test of ctest's is a whole program. A cmocka program that passed may have skipped single tests; those
are named too, but not counted. The reason is the last line printed before the skip.
"""
import re
import sys
import xml.etree.ElementTree as ElementTree

CMOCKA_MARK = re.compile(r"^\[\s+(?:RUN|OK|SKIPPED|PASSED|=+)\s*\]")
CMOCKA_SKIPPED = re.compile(r"^\[\s+SKIPPED\s*\] (\w+)$")


def cases(path):
    """Yields (name, status, output) with status one of run, fail, notrun, disabled."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        yield case.get("name"), case.get("status"), case.findtext("system-out") or ""


def slowest(paths, count=10):
    """(seconds, name) of the longest tests, longest first."""
    times = [(float(case.get("time") or 0), case.get("name")) for path in paths
             for case in ElementTree.parse(path).getroot().iter("testcase")]
    return sorted(times, reverse=True)[:count]


def skips(name, status, output):
    """Yields (name, reason) of what was skipped in one test of ctest's."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if status in ("notrun", "disabled"):
        yield name, lines[-1] if lines else "it did not run"
        return
    seen = set()
    for before, line in zip([""] + lines, lines):
        match = CMOCKA_SKIPPED.match(line)
        # cmocka lists the names once more at the end.
        if match and match.group(1) not in seen:
            seen.add(match.group(1))
            yield f"{name}: {match.group(1)}", "" if CMOCKA_MARK.match(before) else before


def main(arguments):
    if len(arguments) < 2 or arguments[0] not in ("--skips", "--totals", "--slowest"):
        sys.exit(__doc__)
    if arguments[0] == "--slowest":
        for seconds, name in slowest(arguments[1:]):
            print(f"{seconds:8.1f} s  {name}")
        return
    found = [case for path in arguments[1:] for case in cases(path)]
    if arguments[0] == "--skips":
        for case in found:
            for name, reason in skips(*case):
                print(f"skipped: {name}" + (f" ({reason})" if reason else ""))
        return
    states = [status for _, status, _ in found]
    print(f"{states.count('run')} passed, {states.count('fail')} failed,"
          f" {states.count('notrun') + states.count('disabled')} skipped")


main(sys.argv[1:])
