"""Tools and reasoning of chats, end to end: a scripted model writes calls in the dialects of several families, and every
answer and every chunk is validated against OpenAI's description of its API."""
import json
import os
import tempfile

from fake_server import skip

try:
    import jsonschema  # noqa: F401 (openapi_check needs it)
except ImportError as missing:
    skip(f"a package is not installed: {missing.name}")

from openapi_check import Judge
from scripted_chat import ScriptedChat, compared, joined

JUDGE = Judge()


class JudgedChat(ScriptedChat):
    """Validates every answer, chunk and error."""

    def post(self, messages, **fields):
        answer = super().post(messages, **fields)
        if answer.status >= 400:
            JUDGE.error(answer.json())
        elif not answer.headers["content-type"].startswith("text/event-stream"):
            JUDGE.chat(answer.json())
        else:
            for event in answer.events()[:-1]:
                if "error" in event:
                    JUDGE.error(event)
                elif '"custom"' not in json.dumps(event):  # the description has no custom tools in chunks
                    JUDGE.chat_chunk(event)
        return answer


def function(name, **properties):
    return {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": {
        "type": "object", "properties": properties, "required": list(properties)}}}


WEATHER = function("weather", city={"type": "string"})
ADD = function("add", a={"type": "integer"}, b={"type": "integer"})
PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Applies a patch."}}
TOOLS = [WEATHER, ADD, PATCH]
ROME = {"name": "weather", "arguments": {"city": "Rome"}}
SUM = {"name": "add", "arguments": {"a": 1, "b": -2}}


def hermes(call):
    return "<tool_call>\n" + json.dumps(call) + "\n</tool_call>"


def coder(call):
    return f"<tool_call>\n<function={call['name']}>\n" + "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in call["arguments"].items()) + "</function>\n</tool_call>"


def mistral(call):
    return f"[TOOL_CALLS]{call['name']}[ARGS]{json.dumps(call['arguments'])}"


def kimi(call):
    inner = f"<|tool_call_begin|>functions.{call['name']}:0<|tool_call_argument_begin|>{json.dumps(call['arguments'])}"
    return f"<|tool_calls_section_begin|>{inner}<|tool_call_end|><|tool_calls_section_end|>"


def harmony(call):
    text = json.dumps(call["arguments"])
    return f"<|channel|>commentary to=functions.{call['name']} <|constrain|>json<|message|>{text}"  # the end token follows


# dialect: how a call is written, its special tokens, the prompt's end
DIALECTS = {
    "hermes": (hermes, [], ""),
    "qwen3_coder": (coder, [], ""),
    "mistral_v13": (mistral, ["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"], ""),
    "kimi_k2": (kimi, ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                       "<|tool_call_argument_begin|>", "<|tool_call_end|>"], ""),
    "openai": (harmony, ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|end|>", "<|return|>"],
               "<|start|>assistant"),
}


def both(chat, messages, **fields):
    """The whole answer's choice; the stream must say the same."""
    whole = chat.whole(messages, **fields)
    chunks = chat.chunks(messages, **fields)
    for choice in whole["choices"]:
        message, reason = joined(chunks, choice["index"])
        assert compared(message) == compared(choice["message"]), (message, choice["message"])
        assert reason == choice["finish_reason"]
    return whole["choices"][0]


def calls_of(choice):
    return [{"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
            for call in choice["message"].get("tool_calls", [])]


def test_every_dialect_gives_the_same_calls():
    for name, (write, specials, opener) in DIALECTS.items():
        answers = {"rome": write(ROME), "sum": write(SUM)}
        with JudgedChat(answers, "--tool-call-parser", name, specials=specials, opener=opener) as chat:
            for key, call in (("rome", ROME), ("sum", SUM)):
                choice = both(chat, key, tools=TOOLS)
                assert calls_of(choice) == [call] and choice["message"]["content"] is None, (name, choice)
                assert choice["finish_reason"] == "tool_calls", (name, choice)
            ids = {chat.whole("rome", tools=TOOLS)["choices"][0]["message"]["tool_calls"][0]["id"] for _ in range(2)}
            if name == "kimi_k2":
                assert ids == {"functions.weather:0"}
            else:
                assert len(ids) == 2 and all(len(text) == (9 if "mistral" in name else 29) for text in ids), (name, ids)


def test_text_reasoning_and_calls():
    answers = {"plain": "Hello.", "both": "Let me see.\n" + hermes(ROME) + "\n" + hermes(SUM),
               "think": "<think>\nIt is\neasy.\n</think>\n\nFine.", "think call": "<think>\nhm\n</think>\n\n" + hermes(ROME)}
    with JudgedChat(answers, "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3") as chat:
        assert both(chat, "plain", tools=TOOLS)["message"]["content"] == "Hello."
        choice = both(chat, "both", tools=TOOLS)
        assert calls_of(choice) == [ROME, SUM] and choice["message"]["content"].strip() == "Let me see."
        for tools in ({}, {"tools": TOOLS}):
            choice = both(chat, "think", **tools)
            assert choice["message"]["content"] == "Fine." and choice["finish_reason"] == "stop"
            assert choice["message"]["reasoning"] == choice["message"]["reasoning_content"] == "It is\neasy."
        usage = chat.whole("think")["usage"]
        assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
        assert "completion_tokens_details" not in chat.whole("plain")["usage"]
        choice = both(chat, "think call", tools=TOOLS)
        assert calls_of(choice) == [ROME] and choice["message"]["reasoning"] == "hm" and choice["message"]["content"] is None
        assert "reasoning" not in both(chat, "think", include_reasoning=False)["message"]
        # Without tools a call is text.
        assert both(chat, "both")["message"]["content"].endswith("</tool_call>")
        assert chat.server.metric('reprise_tool_calls_total{state="complete"}') > 0
        assert chat.server.metric("reprise_tool_parse_misses_total") == 0
        records = chat.server.get("/debug/requests").json()["requests"]
        assert any(record["tool_calls"] == 2 for record in records)
        assert any(record["tokens"]["reasoning"] > 0 for record in records)


def test_channels_of_harmony():
    """gpt-oss: analysis is reasoning, final is the text, commentary to a function is a call, other commentary is text."""
    def say(channel, text):
        return f"<|channel|>{channel}<|message|>{text}"

    more = "<|end|><|start|>assistant"
    answers = {"plain": say("final", "Hello."), "think": say("analysis", "It is\neasy.") + more + say("final", "Fine."),
               "call": say("analysis", "hm") + more + harmony(ROME),
               "preamble": say("commentary", "I look. ") + more + harmony(SUM)}
    write, specials, opener = DIALECTS["openai"]
    with JudgedChat(answers, "--tool-call-parser", "openai", specials=specials, opener=opener) as chat:
        for tools in ({}, {"tools": TOOLS}):
            assert both(chat, "plain", **tools)["message"]["content"] == "Hello."
            choice = both(chat, "think", **tools)
            assert choice["message"]["reasoning"] == "It is\neasy." and choice["message"]["content"] == "Fine.", choice
            assert choice["finish_reason"] == "stop"
        choice = both(chat, "call", tools=TOOLS)
        assert calls_of(choice) == [ROME] and choice["message"]["reasoning"] == "hm", choice
        assert choice["message"]["content"] is None and choice["finish_reason"] == "tool_calls"
        choice = both(chat, "preamble", tools=TOOLS)
        assert calls_of(choice) == [SUM] and choice["message"]["content"] == "I look. ", choice
        assert chat.server.metric("reprise_tool_parse_misses_total") == 0


def test_the_prompt_can_open_the_reasoning():
    answers = {"inside": "It is easy.\n</think>\n\nFine."}
    with JudgedChat(answers, "--tool-call-parser", "hermes", opener="<think>\n") as chat:
        message = both(chat, "inside")["message"]
        assert (message["reasoning"], message["content"]) == ("It is easy.", "Fine.")


def test_tool_choice():
    answers = {"call": hermes(ROME), "sum": hermes(SUM), "text": "No."}
    named = {"type": "function", "function": {"name": "weather"}}
    with JudgedChat(answers, "--tool-call-parser", "hermes") as chat:
        for choice in ("required", named, "auto", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}):
            answer = both(chat, "call", tools=TOOLS, tool_choice=choice)
            assert calls_of(answer) == [ROME], (choice, answer)
            assert answer["finish_reason"] == ("stop" if choice == named else "tool_calls")
        # What is not allowed is masked; the scripted model does not look at the mask, so its answer fails.
        for key, choice in (("text", "required"), ("sum", named), ("call", "none"), ("text", named)):
            refused = chat.post(key, tools=TOOLS, tool_choice=choice)
            assert refused.status == 500 and refused.error["code"] == "grammar_dead_end", (key, choice, refused.body)
        assert both(chat, "text", tools=TOOLS, tool_choice="none")["message"]["content"] == "No."


def test_calls_follow_the_schemas_of_their_tools():
    wrong = {"name": "add", "arguments": {"a": "one", "b": 2}}
    odd = function("odd", x={"$ref": "https://example.com/x"})  # cannot be enforced
    answers = {"wrong": hermes(wrong), "odd": hermes({"name": "odd", "arguments": {"x": 7}}), "unknown": hermes(
        {"name": "unknown", "arguments": {}}), "two": hermes(ROME) + "\n" + hermes(SUM)}
    with JudgedChat(answers, "--tool-call-parser", "hermes") as chat:
        for key in ("wrong", "unknown"):
            assert chat.post(key, tools=TOOLS).error["code"] == "grammar_dead_end", key
        assert chat.post("two", tools=TOOLS, parallel_tool_calls=False).status == 200, "ends after the first"
        assert len(calls_of(both(chat, "two", tools=TOOLS, parallel_tool_calls=False))) == 1
        # Keywords that cannot be enforced: refused if the tool is strict, otherwise any object.
        assert calls_of(both(chat, "odd", tools=[odd]))[0]["arguments"] == {"x": 7}
        odd["function"]["strict"] = True
        refused = chat.post("odd", tools=[odd])
        assert refused.status == 400 and refused.error["param"] == "tools", refused.body


def test_without_enforcement_broken_calls_are_text():
    broken = {"cut": '<tool_call>\n{"name": "weather", "arg', "unknown": "<tool_call>\nnothing\n</tool_call> yes"}
    with JudgedChat(broken, "--tool-call-parser", "hermes", "--enforce-tools=false") as chat:
        for key, text in broken.items():
            choice = both(chat, key, tools=TOOLS)
            assert choice["message"]["content"] == text and choice["finish_reason"] == "stop", choice
        assert chat.server.metric("reprise_tool_parse_misses_total") == 4


def test_custom_tools():
    text = 'a "quoted"\n\tline é \U0001f600'
    answers = {"patch": hermes({"name": "patch", "arguments": {"input": text}})}
    with JudgedChat(answers, "--tool-call-parser", "hermes") as chat:
        message = both(chat, "patch", tools=TOOLS)["message"]
        assert message["tool_calls"][0]["type"] == "custom" and message["tool_calls"][0]["custom"] == {"name": "patch", "input": text}


def test_the_lark_grammar_of_a_custom_tool_is_enforced():
    definition = 'start: "*** Begin\\n" line+ "*** End"\nline: "+" /[^\\n]*/ "\\n"\n'
    text = '*** Begin\n+say "x" \\ y\n+é\n*** End'
    formats = {"chat": {"type": "grammar", "grammar": {"syntax": "lark", "definition": definition}},
               "flat": {"type": "grammar", "syntax": "lark", "definition": definition}}

    def tool(form):
        return [{"type": "custom", "custom": {"name": "patch", "format": form}}]

    for dialect, write in (("hermes", hermes), ("qwen3_coder", coder)):
        answers = {"right": write({"name": "patch", "arguments": {"input": text}}),
                   "wrong": write({"name": "patch", "arguments": {"input": "free text"}})}
        with ScriptedChat(answers, "--tool-call-parser", dialect) as chat:
            for form in formats.values():
                message = both(chat, "right", tools=tool(form))["message"]
                assert message["tool_calls"][0]["custom"] == {"name": "patch", "input": text}, message
            # the scripted model does not heed masks: what its grammar refuses ends the answer
            assert chat.post("wrong", tools=tool(formats["chat"])).error["code"] == "grammar_dead_end"
            for form, field in (({"type": "grammar", "grammar": {"syntax": "peg", "definition": ""}}, "syntax"),
                                ({"type": "grammar", "grammar": {"syntax": "lark"}}, "definition"),
                                ({"type": "grammar"}, "syntax")):
                error = chat.post("right", tools=tool(form)).error
                assert error["param"] == f"tools[0].custom.format.grammar.{field}", error
    broken = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: other"}}
    with ScriptedChat({"any": hermes({"name": "patch", "arguments": {"input": "x"}})}, "--tool-call-parser", "hermes") as chat:
        assert chat.post("any", tools=tool(broken)).status == 200, "as with schemas that cannot be enforced"


def test_conversations_with_results():
    """The prompt of the second turn, from an answer that repeats it."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    turns = [{"role": "user", "content": "?"},
             {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
             {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sunny"}]}]
    with JudgedChat({"sunny": "It is sunny."}, "--tool-call-parser", "hermes") as chat:
        assert both(chat, turns, tools=TOOLS)["message"]["content"] == "It is sunny."
        call["function"]["arguments"] = ""
        assert chat.post(turns, tools=TOOLS).status == 200, "no arguments"
        call["function"]["arguments"] = '{"broken'
        assert chat.post(turns, tools=TOOLS).status == 200, "what the model wrote is not refused"
        custom = {"id": "call_1", "type": "custom", "custom": {"name": "patch", "input": "x"}}
        turns[1]["tool_calls"] = [custom]
        assert chat.post(turns, tools=TOOLS).status == 200
        turns[1]["tool_calls"] = [{"id": "1", "type": "function", "function": {"arguments": "{}"}}]
        assert chat.post(turns).error["param"] == "messages[1].tool_calls"


def test_functions_as_before_tools():
    """The older form of the same: functions, function_call, and results in messages of the role function."""
    functions = [WEATHER["function"], ADD["function"]]
    answers = {"rome": "I look. " + hermes(ROME), "two": hermes(ROME) + "\n" + hermes(SUM), "text": "No.", "sunny": "It is sunny."}

    def judged(messages, **fields):
        whole = chat.whole(messages, **fields)
        message = {"function_call": None, "content": None, "role": None}
        chunks = chat.chunks(messages, **fields)
        for chunk in chunks:
            for name, value in chunk["choices"][0]["delta"].items():
                if name == "function_call" and message[name]:
                    assert set(value) == {"arguments"}, "the name comes once"
                    message[name]["arguments"] += value["arguments"]
                elif value is not None:
                    message[name] = (message[name] or "") + value if name == "content" else value
        choice = whole["choices"][0]
        assert message == {**message, **{name: choice["message"].get(name) for name in message}}, (message, choice)
        assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
        return choice["message"], choice["finish_reason"]

    with JudgedChat(answers, "--tool-call-parser", "hermes") as chat:
        message, reason = judged("rome", functions=functions)
        assert message["function_call"] == {"name": "weather", "arguments": json.dumps(ROME["arguments"])}
        assert message["content"].strip() == "I look." and reason == "function_call" and "tool_calls" not in message
        message, reason = judged("two", functions=functions)
        assert message["function_call"]["name"] == "weather" and reason == "function_call", "there is room for one call"
        assert judged("two", functions=functions, function_call={"name": "weather"})[1] == "stop"
        assert judged("text", functions=functions, function_call="none") == ({"role": "assistant", "content": "No.", "refusal": None},
                                                                            "stop")
        assert judged("text", functions=functions, function_call="auto")[1] == "stop"
        assert chat.post("rome", functions=functions, function_call="none").error["code"] == "grammar_dead_end"
        # The call and its result become those of a tool.
        turns = [{"role": "user", "content": "?"}, {**message, "content": None},
                 {"role": "function", "name": "weather", "content": "sunny"}]
        assert judged(turns, functions=functions)[0]["content"] == "It is sunny."
        call = {"id": "call_weather", "type": "function", "function": message["function_call"]}
        same = [turns[0], {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_weather", "name": "weather", "content": "sunny"}]
        prompts = [chat.server.post("/tokenize", {"messages": one}).json()["tokens"] for one in (turns, same)]
        assert prompts[0] == prompts[1]
        tools = [{"type": "function", "function": one} for one in functions]
        for fields, param in [({"functions": 1}, "functions"), ({"functions": [1]}, "functions[0]"),
                              ({"functions": functions * 2}, "functions[2]"), ({"functions": [{"name": "a b"}]}, "functions[0].name"),
                              ({"functions": [{"name": "f", "parameters": []}]}, "functions[0].parameters"),
                              ({"functions": functions, "tools": tools}, "functions"),
                              ({"functions": functions, "function_call": "required"}, "function_call"),
                              ({"functions": functions, "function_call": {"name": "f"}}, "function_call"),
                              ({"functions": functions, "function_call": {}}, "function_call"),
                              ({"function_call": {"name": "weather"}}, "function_call"),
                              ({"functions": [function("f" * 40)["function"]] * 513}, "functions")]:
            refused = chat.post("text", **fields)
            assert refused.status == 400 and refused.error["param"] == param, (fields, refused.body)
        for bad, param in [({"role": "assistant", "function_call": 1}, "messages[0].function_call"),
                           ({"role": "assistant", "function_call": {"name": 1}}, "messages[0].function_call"),
                           ({"role": "assistant", "function_call": {"name": "f"}, "tool_calls": [call]}, "messages[0].function_call"),
                           ({"role": "function", "name": "f"}, "messages[0].content")]:
            assert chat.post([bad]).error["param"] == param, bad
        assert chat.post("text", tools=tools, functions=[], function_call="auto").status == 200, "an empty list is none"
        odd = function("odd", x={"$ref": "https://example.com/x"})["function"]
        assert chat.post("text", functions=[{**odd, "strict": True}]).error["param"] == "functions"
    with JudgedChat(answers, "--tool-call-parser", "none") as chat:
        assert chat.post("text", functions=functions).error["param"] == "functions"


def test_several_answers_stop_strings_and_log_probabilities():
    answers = {"text": "One, two, three.", "call": "One, " + hermes(ROME)}
    with JudgedChat(answers, "--tool-call-parser", "hermes") as chat:
        whole = chat.whole("call", tools=TOOLS, n=3)
        assert [len(calls_of(choice)) for choice in whole["choices"]] == [1, 1, 1]
        assert len({choice["message"]["tool_calls"][0]["id"] for choice in whole["choices"]}) == 3
        chunks = chat.chunks("call", tools=TOOLS, n=3)
        for choice in whole["choices"]:
            assert compared(joined(chunks, choice["index"])[0]) == compared(choice["message"])
        choice = both(chat, "text", tools=TOOLS, stop=[", t"])
        assert choice["message"]["content"] == "One" and choice["stop_reason"] == ", t"
        # A stop string in a call's markup or arguments does not end the answer.
        assert calls_of(both(chat, "call", tools=TOOLS, stop=["Rome", "<tool_call>"])) == [ROME]
        choice = both(chat, "call", tools=TOOLS, logprobs=True, top_logprobs=2)
        tokens = "".join(entry["token"] for entry in choice["logprobs"]["content"])
        assert tokens.startswith(answers["call"]), tokens
        choice = both(chat, "text", tools=TOOLS, logprobs=True, stop=[", t"])
        assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == "One"
        cut = both(chat, "call", tools=TOOLS, max_tokens=40)
        assert cut["finish_reason"] == "length"


def test_usage_and_errors_in_streams():
    answers = {"all": "<think>\nhm\n</think>\n\nSo. " + hermes(ROME), "wrong": "So. " + hermes({"name": "add", "arguments": {"a": "x"}})}
    with JudgedChat(answers, "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3") as chat:
        fields = {"tools": TOOLS, "logprobs": True, "top_logprobs": 3, "n": 2}
        usage = chat.whole("all", **fields)["usage"]
        chunks = chat.chunks("all", **fields, stream_options={"include_usage": True, "continuous_usage_stats": True})
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == usage and usage["completion_tokens_details"]
        assert all(chunk["usage"]["total_tokens"] for chunk in chunks)
        # The model leaves the grammar when the answer has begun.
        events = chat.post("wrong", tools=TOOLS, stream=True).events()
        assert events[0]["choices"][0]["delta"]["role"] == "assistant" and events[-1]["error"]["code"] == "grammar_dead_end", events


def test_a_file_of_dialects(folder):
    path = os.path.join(folder, "own.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"dialects": [{"name": "first", "shape": "json", "call_open": "<first>", "call_close": "</first>"},
                                {"name": "second", "base": "hermes", "call_open": "<second>", "call_close": "</second>"}]}, file)
    for parser, tag in ((path, "first"), (path + ":second", "second")):
        with JudgedChat({"call": f"<{tag}>{json.dumps(ROME)}</{tag}>"}, "--tool-call-parser", parser) as chat:
            assert calls_of(both(chat, "call", tools=TOOLS)) == [ROME], tag
    for parser, words in ((path + ":third", "has no dialect third"), ("frog", "frog is not known"),
                          (os.path.join(folder, "missing.json"), "cannot be opened")):
        try:
            with JudgedChat({"x": "x"}, "--tool-call-parser", parser):
                raise AssertionError(f"{parser} was taken")
        except RuntimeError as refused:
            assert words in str(refused), refused


def test_refusals():
    def error(**fields):
        answer = chat.post("x", **fields)
        assert answer.status == 400, (fields, answer.body)
        return answer.error["param"]

    with JudgedChat({"x": "x"}, "--tool-call-parser", "hermes", "--max-model-len", "131072") as chat:
        assert error(tools={}) == "tools"
        assert error(tools=[WEATHER] * 2) == "tools[1]"
        assert error(tools=[function(f"f{i}") for i in range(513)]) == "tools"
        assert error(tools=[{"type": "web_search"}]) == "tools[0].type"
        assert error(tools=[{"type": "function"}]) == "tools[0].function"
        for bad in ("", "a b", "é", "x" * 129, None, 1):
            assert error(tools=[{"type": "function", "function": {"name": bad}}]) == "tools[0].function.name", bad
        assert error(tools=[{"type": "function", "function": {"name": "f", "parameters": []}}]) == "tools[0].function.parameters"
        large = {"type": "object", "description": "x" * (256 << 10)}
        assert error(tools=[{"type": "function", "function": {"name": "f", "parameters": large}}]) == "tools[0].function.parameters"
        for bad in ("maybe", 1, {"type": "function", "function": {"name": "missing"}}, {"type": "allowed_tools"}, {}):
            assert error(tools=TOOLS, tool_choice=bad) == "tool_choice", bad
        assert error(tool_choice="required") == "tool_choice"
        assert error(parallel_tool_calls=1) == "parallel_tool_calls"
        assert chat.post("x", tools=[function(f"f{i}") for i in range(512)]).status == 200
        assert chat.post("x", tools=[], tool_choice="none").status == 200
    with JudgedChat({"x": "x"}, "--tool-call-parser", "none") as chat:
        assert error(tools=TOOLS) == "tools"
        assert chat.post("x", tools=TOOLS, tool_choice="none").status == 200


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            with tempfile.TemporaryDirectory() as folder:
                test(*[folder] * test.__code__.co_argcount)
            print(f"{name[5:].replace('_', ' ')}: ok")
    assert JUDGE.schemas is None or JUDGE.count > 1000, JUDGE.count
    print(f"{JUDGE.count} bodies judged" if JUDGE.schemas else "OpenAI's description is not there: shapes were not judged")


if __name__ == "__main__":
    main()
