"""langchain, unmodified, over each API: text, streams, calls and their results, structured output, log-probabilities."""
from clients import OSLO, ROME, needs, run_tests, scripted

needs("langchain_openai", "langchain_anthropic")
import pydantic  # noqa: E402
from langchain_anthropic import ChatAnthropic  # noqa: E402
from langchain_core.messages import HumanMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402


class Weather(pydantic.BaseModel):
    """The weather of a city."""
    city: str
    days: int


@tool
def weather(city: str, days: int) -> str:
    """The weather of a city."""
    return "sunny"


def models(base):
    openai = {"model": "fake", "base_url": base + "/v1", "api_key": "none", "max_retries": 0}
    yield "chat", ChatOpenAI(**openai, stream_usage=True)
    yield "responses", ChatOpenAI(**openai, use_responses_api=True)
    yield "messages", ChatAnthropic(model="fake", base_url=base, api_key="none", max_retries=0, max_tokens=900)


def gathered(pieces):
    whole = None
    for piece in pieces:
        whole = piece if whole is None else whole + piece
    return whole


def test_text(_, base):
    for name, model in models(base):
        assert model.invoke("hello").text == "Hello there.", name
        assert gathered(model.stream("hello")).text == "Hello there.", name


def test_calls(_, base):
    for name, model in models(base):
        bound = model.bind_tools([weather])
        for message in (bound.invoke("two"), gathered(bound.stream("two"))):
            assert [one["args"] for one in message.tool_calls] == [ROME, OSLO], (name, message)
            assert message.text.strip() == "Both." and message.usage_metadata["output_tokens"] > 20, (name, message)
        first = bound.invoke("one")
        result = ToolMessage("sunny", tool_call_id=first.tool_calls[0]["id"])
        assert bound.invoke([HumanMessage("one"), first, result]).text == "Sunny.", name


def test_structured_output(_, base):
    for name, model in models(base):
        for method in ("json_schema", "function_calling"):
            got = model.with_structured_output(Weather, method=method).invoke("model" if method == "function_calling" else "json")
            assert got == Weather(**ROME), (name, method, got)


def test_log_probabilities(_, base):
    model = ChatOpenAI(model="fake", base_url=base + "/v1", api_key="none", max_retries=0, logprobs=True, top_logprobs=2)
    entries = model.invoke("hello").response_metadata["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "Hello there." and len(entries[0]["top_logprobs"]) == 2, entries


with scripted() as (server, url):
    run_tests(dict(globals()), server, url)
