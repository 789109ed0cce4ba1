"""Fails when a file includes what its folder must not know (the table of ARCHITECTURE.md).

  check_layers.py [ROOT]       every #include of the tree; prints file:line and the rule that it breaks
  check_layers.py --self-test  plants violations in temporary trees and expects each to be found
"""
import os
import re
import sys

import c_source

# What a folder may include besides itself: whole folders, or single headers of one. The order is that
# of the ranks: nothing lists a folder below itself.
MAY_INCLUDE = {
    "base": [],
    "metrics": ["base"],
    "text": ["base"],
    "device": ["base"],
    "quant": ["base", "device"],
    "kvcache": ["base", "device"],
    "graphs": ["base", "device", "metrics"],
    "attention": ["base", "device", "kvcache/kv_layout.h"],
    "backend": ["base", "metrics", "device", "quant", "kvcache", "graphs", "attention"],
    "model": ["base", "text", "device", "quant", "attention", "kvcache/kv_layout.h"],
    "engine": ["base", "metrics", "text", "device", "quant", "kvcache", "graphs", "attention", "backend", "model"],
    # The language of masks is the one thing of attention/ that a client can name.
    "server": ["engine", "metrics", "base", "text", "attention/mask/mask.h"],
}
# Rooms with an order of their own: what a room includes of its folder besides itself and the files at the folder's
# root. A folder whose rooms are not listed here has no order among them.
ROOMS = {
    "server/http": [],
    "server/observe": ["server/http", "server/api/params.h", "server/api/completion_internal.h", "server/api/server_keys.h"],
    "server/api": ["server/http", "server/observe"],
    "server/cli": ["server/http", "server/observe", "server/api"],
    "attention/mask": [],
    "text/dialect": ["text/tokenizer"],
}
# May include any folder, and so may one file for each command: server/cli/cmd_<name>.c.
MAY_INCLUDE_ANY = ("tests", "tools", "bench")
COMMAND_SOURCE = re.compile(r"server/cli/cmd_\w+\.[ch]$")
# Only server/cli/main.c includes these (and, being the same program's, the commands themselves).
COMMAND_HEADER = re.compile(r"(server/cli/cmd(_\w+)?\.h|bench/.*)$")

# Libraries that are seen in few places: header, folders, the rule.
LIBRARIES = [
    (re.compile(r"uv(\.h|/.*)$"), ("server", "bench", "tests", "tools"), "only server/ and bench/ see libuv"),
    (re.compile(r"llhttp\.h$"), ("server", "bench", "tests", "tools"), "only server/ and bench/ see llhttp"),
    (re.compile(r"jansson(_config)?\.h$"), ("server", "bench", "text", "model", "tests", "tools"),
     "only server/, bench/, text/ and the loaders in model/ see jansson"),
]

# A simulator runs these without any device: nothing that they include, however far down, may be a
# header of the folder named.
WITHOUT = {"engine/scheduler.c": "device"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.M)


def includes(root, path):
    """Yields (line, quote, name) for each #include outside comments."""
    text = c_source.without_comments(c_source.read(root, path), keep_strings=True)
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start(2)) + 1, match.group(1), match.group(2)


def folder_of(path):
    return path.split("/", 1)[0] if "/" in path else ""


def room_of(path):
    return path.rsplit("/", 1)[0]


def is_ours(name):
    return folder_of(name) in MAY_INCLUDE or folder_of(name) in MAY_INCLUDE_ANY


def broken_room_rule(path, name):
    """The rule between rooms of one folder that path breaks by including name, or None."""
    room, target = room_of(path), room_of(name)
    if room not in ROOMS or target in (room, folder_of(path)):
        return None
    allowed = ROOMS[room]
    if target in allowed or name in allowed:
        return None
    return f"{room}/ must not know {target}/ (of its folder it may include: {', '.join(allowed) or 'the root alone'})"


def broken_rule(path, quote, name):
    """The rule that path breaks by including name, or None."""
    folder, target = folder_of(path), folder_of(name)
    if not is_ours(name):
        if quote == '"':
            return "a quoted #include names one of our folders and a file in it: \"folder/file.h\""
        for header, folders, rule in LIBRARIES:
            if header.match(name) and folder not in folders:
                return rule
        return None
    if name.endswith((".c", ".cu")) and target != folder and folder not in MAY_INCLUDE_ANY:
        return "only headers are included from another folder"
    if folder in MAY_INCLUDE_ANY:
        return None
    if COMMAND_HEADER.match(name):
        if path == "server/cli/main.c" or COMMAND_SOURCE.match(path):
            return None
        if COMMAND_HEADER.match(path) and target == "server":
            return None
        return "only server/cli/main.c includes a command or bench/"
    if COMMAND_SOURCE.match(path):
        return None
    if target == folder:
        return broken_room_rule(path, name)
    allowed = MAY_INCLUDE[folder]
    if target in allowed or name in allowed:
        return None
    single = [entry for entry in allowed if folder_of(entry) == target]
    if single:
        return f"{folder}/ may include of {target}/ only " + ", ".join(single)
    return f"{folder}/ must not know {target}/ (it may include: {', '.join(allowed) or 'nothing of ours'})"


def reaches(root, path, forbidden, graph):
    """The first chain of includes from path to a header of the forbidden folder, with its line."""
    seen, waiting = {path}, [(path, [], 0)]
    while waiting:
        current, chain, first_line = waiting.pop(0)
        for line, _, name in graph.get(current, []):
            at = first_line or line
            if folder_of(name) == forbidden:
                return at, chain + [name]
            if is_ours(name) and name not in seen:
                seen.add(name)
                waiting.append((name, chain + [name], at))
    return None


def check(root):
    """Returns [(path, line, message)]."""
    problems, graph = [], {}
    for path in c_source.files(root, c_source.C_SUFFIXES):
        folder = folder_of(path)
        if folder not in MAY_INCLUDE and folder not in MAY_INCLUDE_ANY:
            problems.append((path, 1, "this folder is not in the table of check_layers.py"))
            continue
        graph[path] = list(includes(root, path))
        for line, quote, name in graph[path]:
            rule = broken_rule(path, quote, name)
            if rule:
                problems.append((path, line, f'"{name}": {rule}'))
    for path, forbidden in WITHOUT.items():
        found = reaches(root, path, forbidden, graph)
        if found:
            problems.append((path, found[0], f"reaches {' -> '.join(found[1])}: it must be built without {forbidden}/"))
    return problems


CASES = [
    ("what the table allows passes", {
        "base/a.h": '#include <stdint.h>\n',
        "text/tokenizer/tokenizer.h": '#include "base/a.h"\n',
        "model/load.c": '#include "text/tokenizer/tokenizer.h"\n#include <jansson.h>\n#include "kvcache/kv_layout.h"\n',
        "backend/b.cu": '#include "graphs/g.h"\n#include "kvcache/kv_pool.h"\n#include <cuda_runtime.h>\n',
        "engine/scheduler.c": '#include "engine/sequence.h"\n#include "base/a.h"\n',
        "engine/sequence.h": '#include "metrics/m.h"\n',
        "server/http.c": '#include <uv.h>\n#include <llhttp.h>\n#include "text/tokenizer/tokenizer.h"\n',
        "bench/cli/cmd_bench.c": '#include "server/cli/cmd_bench.h"\n#include "bench/load/load.h"\n#include "device/d.h"\n',
        "server/cli/main.c": '#include "server/cli/cmd_bench.h"\n#include "bench/load/load.h"\n',
        "tests/device/test_d.c": '#include "device/d.c"\n#include "server/http.h"\n#include <uv.h>\n',
        "build/x.c": '#include "nowhere.h"\n'}, []),
    ("a higher rank", {"base/a.c": '#include "metrics/m.h"\n'}, [("base/a.c", 1, "base/ must not know metrics/")]),
    ("the same rank", {"device/a.c": '\n\n#include "metrics/m.h"\n'}, [("device/a.c", 3, "must not know metrics/")]),
    ("device knows nothing above", {"device/a.cuh": '#include "model/model.h"\n#include "quant/q.h"\n'},
     [("device/a.cuh", 1, "must not know model/"), ("device/a.cuh", 2, "must not know quant/")]),
    ("attention sees of kvcache the layout only",
     {"attention/a.cu": '#include "kvcache/kv_layout.h"\n#  include "kvcache/kv_pool.h"\n'},
     [("attention/a.cu", 2, "only kvcache/kv_layout.h")]),
    ("model sees of kvcache the layout only", {"model/m.c": '#include "kvcache/kv_pool.h"\n'},
     [("model/m.c", 1, "only kvcache/kv_layout.h")]),
    ("server sees neither device nor pages nor weights",
     {"server/api.c": '#include "device/device.h"\n#include "kvcache/kv_pool.h"\n#include "model/weights.h"\n'},
     [("server/api.c", 1, "must not know device/"), ("server/api.c", 2, "must not know kvcache/"),
      ("server/api.c", 3, "must not know model/")]),
    ("a room below another", {"server/http/sse.c": '#include "server/api/params.h"\n#include "server/http_server.h"\n',
                              "attention/mask/m.c": '#include "attention/cpu/a.h"\n'},
     [("server/http/sse.c", 1, "server/http/ must not know server/api/"),
      ("attention/mask/m.c", 1, "attention/mask/ must not know")]),
    ("main.c is held to server's rules otherwise", {"server/cli/main.c": '#include "device/device.h"\n'},
     [("server/cli/main.c", 1, "must not know device/")]),
    ("libuv in the engine", {"engine/engine.c": '#include <uv.h>\n'}, [("engine/engine.c", 1, "libuv")]),
    ("llhttp in metrics", {"metrics/m.c": '#include <llhttp.h>\n'}, [("metrics/m.c", 1, "llhttp")]),
    ("jansson in the engine", {"engine/engine.c": '#include <jansson.h>\n'}, [("engine/engine.c", 1, "jansson")]),
    ("a command included by a route", {"server/api.c": '#include "server/cli/cmd_run.h"\n'},
     [("server/api.c", 1, "only server/cli/main.c")]),
    ("bench included by the engine and by a route",
     {"engine/engine.c": '#include "bench/load/load.h"\n', "server/api.c": '#include "bench/load/load.h"\n'},
     [("engine/engine.c", 1, "only server/cli/main.c"), ("server/api.c", 1, "only server/cli/main.c")]),
    ("tests included by the product", {"engine/engine.c": '#include "tests/support/fake.h"\n'},
     [("engine/engine.c", 1, "must not know tests/")]),
    ("the scheduler reaches a device header", {
        "engine/scheduler.c": '#include "base/a.h"\n#include "engine/sequence.h"\n',
        "engine/sequence.h": '#include "kvcache/kv_pool.h"\n',
        "kvcache/kv_pool.h": '#include "device/device.h"\n',
        "base/a.h": ""},
     [("engine/scheduler.c", 2, "engine/sequence.h -> kvcache/kv_pool.h -> device/device.h")]),
    ("quotes without a folder, and a way around by ..",
     {"base/a.c": '#include "a.h"\n#include "../metrics/m.h"\n'},
     [("base/a.c", 1, "a quoted #include"), ("base/a.c", 2, "a quoted #include")]),
    ("angles do not hide one of ours", {"base/a.c": '#include <engine/engine.h>\n'},
     [("base/a.c", 1, "must not know engine/")]),
    ("another folder's source", {"engine/engine.c": '#include "base/log.c"\n'},
     [("engine/engine.c", 1, "only headers")]),
    ("comments and strings are not code",
     {"base/a.c": '/*\n#include "engine/e.h"\n*/\n// #include "engine/e.h"\nconst char *s = "/*";\n'
                  '#include "engine/e.h"\n'}, [("base/a.c", 6, "must not know engine/")]),
    ("a folder without a place", {"util/a.c": ""}, [("util/a.c", 1, "not in the table")]),
]


def main(arguments):
    if arguments == ["--self-test"]:
        return 1 if c_source.self_test(check, CASES) else 0
    root = arguments[0] if arguments else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    return c_source.report("check_layers", check(root), len(c_source.files(root, c_source.C_SUFFIXES)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
