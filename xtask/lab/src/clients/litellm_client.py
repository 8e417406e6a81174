"""LiteLLM against a running server: python litellm_client.py BASE_URL"""

import os
import sys

# Prices are not asked for on the net.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm  # noqa: E402

from check import check, refused, served_model  # noqa: E402


def main(base_url):
    model = served_model(base_url)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "My dear sister"}]
    asked = dict(model=f"hosted_vllm/{model}", api_base=base_url, api_key="none", messages=messages, max_tokens=16,
                 temperature=0, seed=1, num_retries=0)
    answer = litellm.completion(**asked)
    text = answer.choices[0].message.content
    check(text and answer.usage.completion_tokens <= 16, "a chat is answered, with usage")
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    check("".join(pieces) == text, "the pieces of a stream are the whole")
    whole = litellm.stream_chunk_builder(chunks, messages=messages)
    check(whole.usage.total_tokens == answer.usage.total_tokens, "with the same usage")
    history = [*messages, answer.choices[0].message.model_dump(), {"role": "user", "content": "And then?"}]
    more = litellm.completion(**{**asked, "messages": history})
    check(more.usage.prompt_tokens > answer.usage.prompt_tokens, "its message goes back as history")
    text = litellm.text_completion(model=f"text-completion-openai/{model}", api_base=base_url, api_key="none",
                                   prompt="It is a truth", max_tokens=12, temperature=0)
    check(bool(text.choices[0].text), "a text is continued")
    refused("another model", litellm.NotFoundError,
            lambda: litellm.completion(**{**asked, "model": "hosted_vllm/gpt-5"}), "gpt-5")
    refused("a prompt that does not fit", litellm.ContextWindowExceededError, lambda: litellm.completion(
        **{**asked, "messages": [{"role": "user", "content": "word " * 100_000}]}), "in all")
    print("all as the client expects")


if __name__ == "__main__":
    main(sys.argv[1])
