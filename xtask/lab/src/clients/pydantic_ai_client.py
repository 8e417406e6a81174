"""Pydantic AI against a running server: python pydantic_ai_client.py BASE_URL"""

import asyncio
import sys

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from check import check, served_model


async def main(base_url):
    client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
    settings = {"max_tokens": 16, "temperature": 0.0, "seed": 1}

    def agent(model):
        model = OpenAIChatModel(model, provider=OpenAIProvider(openai_client=client))
        return Agent(model, instructions="Be brief.", model_settings=settings)

    here = agent(served_model(base_url))
    answer = await here.run("My dear sister")
    check(answer.output and answer.usage.output_tokens <= 16, "a chat is answered, with usage")
    async with here.run_stream("My dear sister") as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    check("".join(pieces) == answer.output, "the pieces of a stream are the whole")
    more = await here.run("And then?", message_history=answer.all_messages())
    check(more.usage.input_tokens > answer.usage.input_tokens, "its messages go back as history")
    try:
        await agent("gpt-5").run("My dear sister")
        check(False, "another model is refused")
    except ModelHTTPError as error:
        check("gpt-5" in str(error), "another model is refused by name")
    print("all as the client expects")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
