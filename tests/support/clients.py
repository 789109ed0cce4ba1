"""For tests that run published clients of the APIs, unmodified, against answers by a script.

    needs("litellm")                       before other imports: skips by name if the package is missing
    with scripted() as (server, base):     base: http://127.0.0.1:PORT

The packages are in the interpreter that runs the test, or in .venv-clients (scripts/requirements-clients.txt)."""
import contextlib
import importlib.util
import json
import os
import sys

from fake_server import skip
from scripted_chat import ScriptedChat

SOURCE = os.environ.get("REPRISE_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    other = os.path.join(SOURCE, ".venv-clients", "bin", "python")
    if missing and os.access(other, os.X_OK) and "REPRISE_CLIENTS" not in os.environ:
        os.environ["REPRISE_CLIENTS"] = "1"
        os.execv(other, [other, *sys.argv])
    if missing:
        skip(f"a package is not installed: {missing[0]}")


def call(name, **arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


ROME, OSLO = {"city": "Rome", "days": 2}, {"city": "Oslo", "days": 3}
# The last message of a request is the key. Names of calls that start with a capital are those of pydantic's models.
ANSWERS = {"hello": "Hello there.", "think": "<think>\nIt is easy.\n</think>\n\nFine.", "one": call("weather", **ROME),
           "two": "Both. " + call("weather", **ROME) + "\n" + call("weather", **OSLO), "sunny": "Sunny.", "json": json.dumps(ROME),
           "model": call("Weather", **ROME), "partial": call("PartialWeather", **ROME), "final": call("final_result", **ROME)}
FUNCTION = {"name": "weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"]}}
TOOL = {"type": "function", "function": FUNCTION}


def user(text):
    return [{"role": "user", "content": text}]


@contextlib.contextmanager
def scripted():
    with ScriptedChat(ANSWERS, "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--max-model-len", "16384") as chat:
        yield chat.server, f"http://127.0.0.1:{chat.server.port}"


def run_tests(tests, *arguments):
    """Runs the functions test_* of a module."""
    for name, test in list(tests.items()):
        if name.startswith("test_"):
            test(*arguments)
            print(f"{name[5:].replace('_', ' ')}: ok")
