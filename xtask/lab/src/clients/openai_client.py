"""The official OpenAI client against a running server: python openai_client.py BASE_URL [MODEL]

BASE_URL is the one that the client is given, such as http://127.0.0.1:8000/v1. The same prompt must
get the same answer at temperature 0, which every real model does and the mock does not. Exits with 1
at the first thing that is not as the client expects.
"""

import sys

import openai

from check import check, refused


def main(base_url, model=None):
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60)

    models = list(client.models.list())
    check(len(models) == 1 and models[0].object == "model", "one model is listed")
    model = model or models[0].id
    check(models[0].id == model, f"it is {model}")
    check(client.models.retrieve(model).id == model, "it can be retrieved by name")

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "My dear sister"}]
    asked = dict(model=model, messages=messages, max_tokens=16, temperature=0, seed=1)
    answer = client.chat.completions.create(**asked)
    text = answer.choices[0].message.content
    check(answer.object == "chat.completion" and answer.choices[0].message.role == "assistant", "a chat is answered")
    check(text and answer.choices[0].finish_reason in ("stop", "length"), "with text and a finish reason")
    check(answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens, "and usage")
    check(0 < answer.usage.completion_tokens <= 16, "of at most max_tokens")

    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    check(chunks[0].choices[0].delta.role == "assistant", "the first chunk of a streamed chat names the role")
    check(bool(chunks[0].choices[0].delta.content), "and holds the first text")
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    check("".join(pieces) == text, "the pieces are the whole")
    check(chunks[-2].choices[0].finish_reason == answer.choices[0].finish_reason, "the finish reason is the same")
    check(chunks[-1].usage.total_tokens == answer.usage.total_tokens, "the last chunk holds the usage")
    # Neither takes an answer that ran into its limit.
    ending = {**asked, "max_tokens": 200, "stop": text[-1]}
    ended = client.chat.completions.create(**ending).choices[0].message.content
    with client.chat.completions.stream(**ending) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        last = stream.get_final_completion().choices[0].message
    check("".join(deltas) == last.content == ended, "stream() tells its content, and its final message")
    parsed = client.chat.completions.parse(**ending).choices[0].message
    check(parsed.content == ended, "parse() reads the same")
    for name, message in [("stream()", last), ("parse()", parsed), ("model_dump()", answer.choices[0].message.model_dump())]:
        history = [*messages, message, {"role": "user", "content": "And then?"}]
        more = client.chat.completions.create(**{**asked, "messages": history})
        check(more.usage.prompt_tokens > answer.usage.prompt_tokens, f"the message of {name} goes back as history")
    plain = list(client.chat.completions.create(**asked, stream=True))
    check(all(chunk.usage is None for chunk in plain), "no usage where nobody asked for it")

    asked = dict(model=model, prompt="It is a truth", max_tokens=12, temperature=0)
    answer = client.completions.create(**asked)
    text = answer.choices[0].text
    check(answer.object == "text_completion" and text, "a text is continued")
    check(answer.usage.completion_tokens <= 12, "by at most max_tokens")
    pieces = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
    check("".join(pieces) == text, "and the same when streamed")

    stop = text[len(text) // 2:][:3]
    answer = client.completions.create(**asked, stop=[stop, "never said"])
    check(answer.choices[0].text == text[:text.index(stop)], f"a stop string ({stop!r}) ends it")
    check(answer.choices[0].finish_reason == "stop", "and says so")
    answer = client.completions.create(**asked, extra_body={"ignore_eos": True, "top_k": 5, "min_p": 0.1})
    check(answer.usage.completion_tokens == 12, "extra parameters are taken")

    chat = dict(model=model, messages=messages, max_tokens=12, temperature=0, logprobs=True, top_logprobs=3)
    answer = client.chat.completions.create(**chat)
    tokens = answer.choices[0].logprobs.content
    told = b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace")
    check(told == answer.choices[0].message.content, "the tokens of a chat's log-probabilities are its text")
    check(all(len(token.top_logprobs) == 3 for token in tokens), "with as many alternatives as were asked for")
    check(all(token.top_logprobs[0].token == token.token and token.logprob <= 0 for token in tokens),
          "of which a greedy token is the most likely")
    check(all(a.logprob >= b.logprob for token in tokens for a, b in zip(token.top_logprobs, token.top_logprobs[1:])),
          "and they are in order")
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**chat, stream=True)]
    streamed = [token for choice in chunks if choice.logprobs for token in choice.logprobs.content]
    check([token.logprob for token in streamed] == [token.logprob for token in tokens], "the same when streamed")
    answer = client.completions.create(**asked, logprobs=2)
    told = answer.choices[0].logprobs
    check("".join(told.tokens) == answer.choices[0].text == text, "a completion tells its tokens")
    check(all(text[at:].startswith(token) for at, token in zip(told.text_offset, told.tokens)), "and where they begin")
    check(all(top[token] == own and len(top) == 2 for token, own, top in
              zip(told.tokens, told.token_logprobs, told.top_logprobs)), "with their alternatives")
    plain = client.completions.create(**asked, extra_body={"repetition_penalty": 1.0}, presence_penalty=0)
    check(plain.choices[0].text == text, "penalties that change nothing change nothing")
    longer = {**asked, "max_tokens": 60}
    repeated = client.completions.create(**longer, frequency_penalty=-2, presence_penalty=-2).choices[0].text.split()
    varied = client.completions.create(**longer, frequency_penalty=2, presence_penalty=2).choices[0].text.split()
    check(len(set(varied)) > len(set(repeated)), f"penalties make words differ ({len(set(repeated))}, {len(set(varied))})")
    once = client.completions.create(**longer, extra_body={"repetition_penalty": 1.5}).choices[0].text
    check(once != client.completions.create(**longer).choices[0].text, "a repetition penalty is applied")
    with client.chat.completions.create(model=model, messages=messages, stream=True) as stream:
        next(iter(stream))
    check(True, "a stream can be left in the middle")

    create = client.chat.completions.create
    refused("another model", openai.NotFoundError, lambda: create(model="gpt-5", messages=messages), "gpt-5", model)
    refused("no messages", openai.BadRequestError, lambda: create(model=model, messages=[]), "messages")
    refused("temperature -1", openai.BadRequestError, lambda: create(model=model, messages=messages, temperature=-1),
           "temperature")
    refused("alternatives without log-probabilities", openai.BadRequestError,
           lambda: create(model=model, messages=messages, top_logprobs=2), "top_logprobs", "logprobs is true")
    refused("presence_penalty 3", openai.BadRequestError,
           lambda: create(model=model, messages=messages, presence_penalty=3), "presence_penalty", "-2 to 2")
    refused("two answers", openai.BadRequestError, lambda: create(model=model, messages=messages, n=2), "n is not")
    refused("an unknown parameter", openai.BadRequestError,
           lambda: create(model=model, messages=messages, extra_body={"max_token": 3}), "max_token")
    refused("a prompt that does not fit", openai.BadRequestError,
           lambda: client.completions.create(model=model, prompt="word " * 100_000), "maximum context length", "in all")
    refused("an endpoint that is not there", openai.NotFoundError,
           lambda: client.embeddings.create(model=model, input="x"), "/v1/embeddings")
    print("all as the client expects")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
