"""Validates answers against OpenAI's description of its API (REPRISE_TEST_DATA/openapi)."""
import json

import jsonschema
from reprise_server import data


def relax(node):
    """OpenAPI's `nullable` as JSON Schema."""
    if isinstance(node, list):
        return [relax(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {key: relax(value) for key, value in node.items() if key not in ("nullable", "format")}
    return {"anyOf": [out, {"type": "null"}]} if node.get("nullable") is True else out


class Judge:
    def __init__(self):
        path = data("openapi/openai_openapi.json")
        self.schemas = None
        if path:
            with open(path, encoding="utf-8") as file:
                self.schemas = relax(json.load(file)["components"]["schemas"])
        self.validators = {}
        self.count = 0

    def validator(self, name, changes=None):
        if name not in self.validators:
            schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": self.schemas}}
            self.validators[name] = jsonschema.Draft202012Validator(schema)
        return self.validators[name]

    def check(self, name, value):
        if self.schemas is None:
            return
        errors = sorted(self.validator(name).iter_errors(value), key=str)
        assert not errors, f"{name}: {errors[0].json_path}: {errors[0].message[:300]} in {json.dumps(value)[:600]}"
        self.count += 1

    def completion(self, value, chunk=False):
        """The description uses the schema of a whole answer for a chunk, in which the finish reason and log-probabilities
        are never null. OpenAI sends null for both (the first token of an echo has no log-probability)."""
        value = json.loads(json.dumps(value))
        for choice in value["choices"]:
            if chunk and choice["finish_reason"] is None:
                choice["finish_reason"] = "stop"
            for key in ("token_logprobs", "top_logprobs") if choice["logprobs"] else ():
                if choice["logprobs"][key][:1] == [None]:
                    del choice["logprobs"][key][0]
        if chunk and value.get("usage", 0) is None:
            del value["usage"]  # null until the last chunk, as for a chat
        self.check("CreateCompletionResponse", value)
        assert value["object"] == "text_completion"

    def chat(self, value):
        self.check("CreateChatCompletionResponse", value)

    def chat_chunk(self, value):
        self.check("CreateChatCompletionStreamResponse", value)

    def error(self, value):
        self.check("ErrorResponse", value)
