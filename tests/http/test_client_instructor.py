"""instructor, unmodified: its ways to get an object of a pydantic class, over each API."""
from typing import Iterable

from clients import ROME, needs, run_tests, scripted, user

needs("instructor", "anthropic")
import anthropic  # noqa: E402
import instructor  # noqa: E402
import openai  # noqa: E402
import pydantic  # noqa: E402


class Weather(pydantic.BaseModel):
    """The weather of a city."""
    city: str
    days: int


def test_modes(_, base):
    client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
    for mode in ("TOOLS", "TOOLS_STRICT", "FUNCTIONS", "RESPONSES_TOOLS", "JSON", "JSON_SCHEMA"):
        wrapped = instructor.from_openai(client, mode=instructor.Mode[mode])
        got = wrapped.chat.completions.create(model="fake", messages=user("json" if "JSON" in mode else "model"),
                                              response_model=Weather, max_retries=0)
        assert got.model_dump() == ROME, (mode, got)
    wrapped = instructor.from_openai(client, mode=instructor.Mode.PARALLEL_TOOLS)
    got = wrapped.chat.completions.create(model="fake", messages=user("model"), response_model=Iterable[Weather], max_retries=0)
    assert [one.model_dump() for one in got] == [ROME]


def test_partial_objects(_, base):
    client = instructor.from_openai(openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0))
    seen = list(client.chat.completions.create_partial(model="fake", messages=user("partial"), response_model=Weather))
    assert len(seen) > 2 and seen[0].city is None and seen[-1].model_dump() == ROME, seen


def test_anthropic(_, base):
    client = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0)
    for mode, text in (("ANTHROPIC_TOOLS", "model"), ("ANTHROPIC_JSON", "json")):
        wrapped = instructor.from_anthropic(client, mode=instructor.Mode[mode])
        got = wrapped.chat.completions.create(model="fake", max_tokens=900, messages=user(text), response_model=Weather, max_retries=0)
        assert got.model_dump() == ROME, (mode, got)


with scripted() as (server, url):
    run_tests(dict(globals()), server, url)
