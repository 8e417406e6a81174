"""LangChain against a running server: python langchain_client.py BASE_URL"""

import sys

import openai
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

from check import check, refused, served_model


def main(base_url):
    model = served_model(base_url)
    common = dict(base_url=base_url, api_key="none", temperature=0, max_retries=0, max_tokens=16)
    chat = ChatOpenAI(model=model, seed=1, stream_usage=True, **common)
    messages = [SystemMessage("Be brief."), HumanMessage("My dear sister")]
    answer = chat.invoke(messages)
    check(answer.content and answer.usage_metadata["output_tokens"] <= 16, "a chat is answered, with usage")
    chunks = list(chat.stream(messages))
    check("".join(chunk.content for chunk in chunks) == answer.content, "the pieces of a stream are the whole")
    usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    check(sum(one["total_tokens"] for one in usage) == answer.usage_metadata["total_tokens"], "with the same usage")
    more = chat.invoke([*messages, answer, HumanMessage("And then?")])
    check(more.usage_metadata["input_tokens"] > answer.usage_metadata["input_tokens"], "its message goes back as history")
    answers = chat.batch([messages, messages, messages])
    check(all(one.content == answer.content for one in answers), "a batch is answered alike")
    chain = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "{who}")]) | chat | StrOutputParser()
    check(chain.invoke({"who": "My dear sister"}) == answer.content, "a chain is answered alike")
    check(bool(OpenAI(model=model, **common).invoke("It is a truth")), "a text is continued")
    refused("another model", openai.NotFoundError, lambda: ChatOpenAI(model="gpt-5", **common).invoke(messages), "gpt-5")
    print("all as the client expects")


if __name__ == "__main__":
    main(sys.argv[1])
