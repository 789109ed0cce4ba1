"""pydantic-ai, unmodified, over each API: it validates whole answers. Text, reasoning, a loop with a tool, outputs by tool,
schema and prompt, a stream."""
import asyncio

from clients import ROME, needs, run_tests, scripted

needs("pydantic_ai", "anthropic", "openai")
import anthropic  # noqa: E402
import openai  # noqa: E402
import pydantic  # noqa: E402
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput  # noqa: E402
from pydantic_ai.models.anthropic import AnthropicModel  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402


class Weather(pydantic.BaseModel):
    city: str
    days: int


def weather(city: str, days: int) -> str:
    """The weather of a city."""
    return "sunny"


def models(base):
    provider = OpenAIProvider(openai_client=openai.AsyncOpenAI(base_url=base + "/v1", api_key="none", max_retries=0))
    yield OpenAIChatModel("fake", provider=provider)
    yield OpenAIResponsesModel("fake", provider=provider)
    yield AnthropicModel("fake", provider=AnthropicProvider(
        anthropic_client=anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0)))


async def runs(base):
    for model in models(base):
        name = type(model).__name__
        assert (await Agent(model).run("hello")).output == "Hello there.", name
        parts = (await Agent(model).run("think")).all_messages()[-1].parts
        assert [part.part_kind for part in parts] == ["thinking", "text"], (name, parts)
        result = await Agent(model, tools=[weather]).run("one")
        assert result.output == "Sunny." and result.usage.tool_calls == 1 and result.usage.requests == 2, (name, result)
        assert (await Agent(model, output_type=ToolOutput(Weather)).run("final")).output == Weather(**ROME), name
        assert (await Agent(model, output_type=PromptedOutput(Weather)).run("json")).output == Weather(**ROME), name
        if not isinstance(model, AnthropicModel):  # it knows Anthropic's models that have this by name
            assert (await Agent(model, output_type=NativeOutput(Weather)).run("json")).output == Weather(**ROME), name
        async with Agent(model, tools=[weather]).run_stream("one") as stream:
            assert [text async for text in stream.stream_text(delta=True)] == ["Sunny."], name
        print(name, "ok")


def test_agents(_, base):
    asyncio.run(runs(base))


with scripted() as (server, url):
    run_tests(dict(globals()), server, url)
