"""litellm, unmodified: chats, streams, reasoning, calls, structured output, responses and errors, through its providers for
OpenAI, vLLM and Anthropic."""
import json
import os

from clients import FUNCTION, OSLO, ROME, TOOL, needs, run_tests, scripted, user

needs("litellm")
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it asks the network for prices
import litellm  # noqa: E402
import pydantic  # noqa: E402

litellm.suppress_debug_info = True


class Weather(pydantic.BaseModel):
    city: str
    days: int


def chat(base, text, provider="openai", **fields):
    path = "" if provider == "anthropic" else "/v1"
    return litellm.completion(model=f"{provider}/fake", api_base=base + path, api_key="none", messages=user(text), max_retries=0,
                              **fields)


def streamed(base, text, provider="openai", **fields):
    return litellm.stream_chunk_builder(list(chat(base, text, provider, stream=True, **fields)))


def calls_of(message):
    return [json.loads(one.function.arguments) for one in message.tool_calls or []]


def test_text(_, base):
    for provider in ("openai", "hosted_vllm", "anthropic"):
        whole = chat(base, "hello", provider)
        assert whole.choices[0].message.content == "Hello there." and whole.choices[0].finish_reason == "stop", whole
        assert streamed(base, "hello", provider).choices[0].message.content == "Hello there."
    usage = streamed(base, "hello", stream_options={"include_usage": True}).usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 20


def test_reasoning(_, base):
    for provider in ("openai", "hosted_vllm"):
        for message in (chat(base, "think", provider).choices[0].message, streamed(base, "think", provider).choices[0].message):
            assert (message.content, message.reasoning_content) == ("Fine.", "It is easy."), message


def test_calls(_, base):
    for provider in ("openai", "hosted_vllm", "anthropic"):
        for answer in (chat(base, "two", provider, tools=[TOOL]), streamed(base, "two", provider, tools=[TOOL])):
            message = answer.choices[0].message
            assert calls_of(message) == [ROME, OSLO] and message.content.strip() == "Both.", (provider, message)
            assert answer.choices[0].finish_reason == "tool_calls", answer
            assert len({one.id for one in message.tool_calls}) == 2
        first = chat(base, "one", provider, tools=[TOOL]).choices[0].message
        result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"}
        path = "" if provider == "anthropic" else "/v1"
        last = litellm.completion(model=f"{provider}/fake", api_base=base + path, api_key="none", tools=[TOOL], messages=[
            *user("one"), first.model_dump(), result])
        assert last.choices[0].message.content == "Sunny.", (provider, last)


def test_functions(_, base):
    message = chat(base, "one", functions=[FUNCTION]).choices[0].message
    assert json.loads(message.function_call.arguments) == ROME, message


def test_structured_output(_, base):
    assert Weather.model_validate_json(chat(base, "json", response_format=Weather).choices[0].message.content).city == "Rome"


def test_responses(_, base):
    fields = {"model": "openai/fake", "api_base": base + "/v1", "api_key": "none"}
    assert litellm.responses(input="hello", **fields).output[0].content[0].text == "Hello there."
    events = list(litellm.responses(input="two", stream=True, tools=[{"type": "function", **FUNCTION}], **fields))
    done = [json.loads(event.arguments) for event in events if event.type == "response.function_call_arguments.done"]
    assert done == [ROME, OSLO] and events[-1].type == "response.completed", [event.type for event in events]


def test_errors(_, base):
    for text, fields, kind in [("hello " * 9000, {}, litellm.ContextWindowExceededError),
                               ("hello", {"temperature": -1}, litellm.BadRequestError),
                               ("hello", {"model": "openai/other"}, litellm.NotFoundError)]:
        try:
            litellm.completion(**{"model": "openai/fake", "api_base": base + "/v1", "api_key": "none", "messages": user(text),
                                  "max_retries": 0, **fields})
            raise AssertionError(f"{kind} was expected")
        except kind:
            pass


with scripted() as (server, url):
    run_tests(dict(globals()), server, url)
