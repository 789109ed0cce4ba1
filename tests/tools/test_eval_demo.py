#!/usr/bin/env python3
"""tools/eval_demo against a server with correct answers, and one with some wrong ones.

    python3 tests/tools/test_eval_demo.py
"""

import json
import os
import random
import re
import subprocess
import sys
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools")
sys.dont_write_bytecode = True
sys.path.insert(0, TOOLS)

import demo_chats
import demo_json
import demo_tasks as tasks
import demo_tools

ANSWERS = {prompt: answer for _, prompt, answer in
           tasks.evaluation_sums(200) + tasks.evaluation_words() + tasks.evaluation_long(10)}
STORY = tasks.tell(random.Random(1))[0]


def key(messages, tools=None):
    return json.dumps([messages, tools])


CHATS = {key(demo_chats.template_messages(c["messages"]), c["tools"]): c for c in demo_chats.evaluation_tools()}
OBJECTS = {key([{"role": "user", "content": question}]): value for _, question, value in demo_json.evaluation_json()}


def right_message(body):
    """The answer to a chat of the evaluation."""
    asked = key(body["messages"], body.get("tools"))
    if asked in OBJECTS:
        return {"content": json.dumps(OBJECTS[asked])}
    case = CHATS[asked]
    if "answer" in case:
        return {"content": case["answer"]}
    return {"content": None, "tool_calls": [{"function": {"name": name, "arguments": json.dumps(arguments)}}
                                            for name, arguments in case["calls"]]}


def spoiled(message):
    if message["content"] is not None:
        return {"content": message["content"] + "0"}
    calls = message["tool_calls"]
    return {"content": None, "tool_calls": calls + calls}


class Oracle(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # header and body are two writes
    wrong_every = 0
    busy_first = 0
    asked = 0
    lock = threading.Lock()

    def log_message(self, *args):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            type(self).asked += 1
            number = self.asked
        if number <= self.busy_first:
            return self.reply(429, {"error": {"message": "busy"}})
        wrong = self.wrong_every and number % self.wrong_every == 0
        if self.path == "/v1/chat/completions":
            message = right_message(body)
            return self.reply(200, {"choices": [{"message": spoiled(message) if wrong else message}]})
        text = ANSWERS.get(body["prompt"], STORY) + ("0" if wrong else "")
        return self.reply(200, {"choices": [{"text": " " + text}]})

    def reply(self, status, payload):
        data = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def run(*arguments, **settings):
    handler = type("Handler", (Oracle,), settings)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        return subprocess.run([os.path.join(TOOLS, "eval_demo"), "--base-url", f"http://127.0.0.1:{server.server_port}",
                               "--sums", "200", "--long", "10", "--words", "40", "--stories", "4", "--concurrency", "4",
                               "--tools", "50", "--objects", "20",
                               *arguments], capture_output=True, text=True, timeout=60)
    finally:
        server.shutdown()
        server.server_close()


class EvalDemo(unittest.TestCase):
    def test_right_answers_pass(self):
        done = run("--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual(result["sums"], {"right": 200, "total": 200, "share": 1.0})
        self.assertEqual({g["share"] for g in result["groups"].values()}, {1.0})
        self.assertLess({"call: weather", "call: unseen tools", "answer from a result", "no call", "JSON by schema"},
                        set(result["groups"]))
        self.assertEqual(result["story_word_share"], 1.0)

    def test_groups_of_none_are_left_out(self):
        self.assertEqual(tasks.evaluation_long(0), [])
        self.assertEqual(len(tasks.evaluation_long(3)), 3)

    def test_wrong_answers_fail(self):
        done = run(wrong_every=10)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("all sums", done.stdout)

    def test_wrong_calls_and_json_are_counted(self):
        result = json.loads(run("--json", "--sums", "0", "--long", "0", "--words", "0", "--stories", "0",
                                wrong_every=1).stdout)
        self.assertEqual({g["right"] for g in result["groups"].values()}, {0})
        self.assertGreater(len(result["groups"]), 6)

    def test_a_busy_server_is_asked_again(self):
        self.assertEqual(run(busy_first=3).returncode, 0)

    def test_no_server_is_an_error_of_its_own(self):
        done = subprocess.run([os.path.join(TOOLS, "eval_demo"), "--base-url", "http://127.0.0.1:1"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)

    def test_held_out_cases_are_never_trained_on(self):
        rng = random.Random(3)
        for _ in range(20000):
            a, b, op = tasks.operands(rng)
            self.assertFalse(tasks.sum_held_out(b, a, op))
        for task, held_out in (("reverse", tasks.HELD_OUT_REVERSE), ("letters", tasks.HELD_OUT_LETTERS)):
            self.assertFalse(held_out & {tasks.letters_word(rng, task) for _ in range(20000)})

    def test_evaluation_asks_only_for_held_out_cases(self):
        self.assertEqual(tasks.evaluation_sums(100), tasks.evaluation_sums(100))
        for _, _, answer in tasks.evaluation_words():
            if ", " in answer:
                self.assertTrue(tasks.set_held_out(answer.split(", ")))
        for case in demo_chats.evaluation_tools():
            for name, arguments in case.get("calls", ()):
                if case["group"] == "call: unseen tools":
                    self.assertTrue(any(demo_tools.name_held_out("tool", w) for w in re.findall("[a-z]+", json.dumps(case["tools"]))))

    def test_tools_of_the_evaluation_are_never_trained_on(self):
        rng = random.Random(4)
        for _ in range(3000):
            specs, messages = demo_chats.chat(rng)
            for m in messages:
                for name, arguments in m.get("calls", ()):
                    for value in arguments.values():
                        self.assertFalse(value in demo_tools.CITIES and demo_tools.name_held_out("city", value), (name, value))


if __name__ == "__main__":
    unittest.main()
