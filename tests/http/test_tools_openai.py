"""The `openai` package, unmodified, with tools and reasoning against a scripted model: calls, streams and their helper,
parse(), a loop of an agent."""
import json

from fake_server import skip

try:
    import openai
    import pydantic
except ImportError as missing:
    skip(f"a package is not installed: {missing.name}")

from scripted_chat import ScriptedChat


class Weather(pydantic.BaseModel):
    """The weather of a city."""
    city: str
    days: int


def call(name, **arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


ANSWERS = {"one": call("Weather", city="Rome", days=2), "two": "Both. " + call("Weather", city="Rome", days=1) + "\n" +
           call("Weather", city="Oslo", days=3), "sunny": "<think>\nRome is sunny.\n</think>\n\nSunny.",
           "json": '{"city": "Rome", "days": 5}'}


def ask(text):
    return [{"role": "user", "content": text}]


def test_calls(client, tool):
    answer = client.chat.completions.create(model="fake", messages=ask("one"), tools=[tool])
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls" and message.content is None
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Rome", "days": 2}
    forced = client.chat.completions.create(model="fake", messages=ask("one"), tools=[tool],
                                            tool_choice={"type": "function", "function": {"name": "Weather"}})
    assert forced.choices[0].finish_reason == "stop" and len(forced.choices[0].message.tool_calls) == 1


def test_the_streaming_helper(client, tool):
    with client.chat.completions.stream(model="fake", messages=ask("two"), tools=[tool]) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    assert kinds.count("tool_calls.function.arguments.done") == 2 and "content.delta" in kinds, set(kinds)
    assert message.content.strip() == "Both."
    assert [one.function.parsed_arguments.city for one in message.tool_calls] == ["Rome", "Oslo"]


def test_parse(client, tool):
    message = client.chat.completions.parse(model="fake", messages=ask("one"), tools=[tool]).choices[0].message
    assert message.tool_calls[0].function.parsed_arguments == Weather(city="Rome", days=2)
    parsed = client.chat.completions.parse(model="fake", messages=ask("json"), response_format=Weather)
    assert parsed.choices[0].message.parsed == Weather(city="Rome", days=5)


def test_a_loop_of_an_agent(client, tool):
    messages = ask("one")
    message = client.chat.completions.create(model="fake", messages=messages, tools=[tool]).choices[0].message
    messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}]
    answer = client.chat.completions.create(model="fake", messages=messages, tools=[tool])
    assert answer.choices[0].message.content == "Sunny." and answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.model_extra["reasoning_content"] == "Rome is sunny."
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    messages += [answer.choices[0].message, *ask("sunny")]
    chunks = list(client.chat.completions.create(model="fake", messages=messages, tools=[tool], stream=True))
    reasoning = "".join(chunk.choices[0].delta.model_extra.get("reasoning", "") for chunk in chunks)
    assert reasoning == "Rome is sunny." and "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Sunny."


def main():
    tool = openai.pydantic_function_tool(Weather)
    with ScriptedChat(ANSWERS, "--tool-call-parser", "hermes") as chat:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{chat.server.port}/v1", api_key="none", max_retries=0)
        for name, test in list(globals().items()):
            if name.startswith("test_"):
                test(client, tool)
                print(f"{name[5:].replace('_', ' ')}: ok")


if __name__ == "__main__":
    main()
