"""The peer: Hugging Face transformers on the same GPU, shape and request as ours.

Random weights of the shape in CONFIG (a config.json), bf16. Static batches: `clients` prompts run together and
each batch ends when all have. Continuous batching: all requests are handed to transformers' own scheduler.
Prints one JSON object a line. Exits with 5 when torch, transformers or a GPU is absent.
"""

import argparse
import json
import statistics
import sys
import time


def absent(cause):
    print(f"the peer is absent: {cause}", file=sys.stderr)
    sys.exit(5)


def row(name, value, unit, **more):
    print(json.dumps({"name": name, "value": value, "unit": unit, **more}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError as error:
        absent(error)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        absent("torch sees no GPU")
    with open(arguments.config) as file:
        config = transformers.AutoConfig.for_model(**json.load(file))
    config.dtype = torch.bfloat16
    torch.manual_seed(0)
    with torch.device(arguments.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}

    def synchronise():
        if arguments.device == "cuda":
            torch.cuda.synchronize()

    def prompts(count):
        shape = (count, arguments.prompt_tokens)
        return torch.randint(0, config.vocab_size, shape, device=arguments.device)

    exact = {"max_new_tokens": arguments.output_tokens, "min_new_tokens": arguments.output_tokens}
    for clients in arguments.clients:
        seconds = []
        for _ in range(arguments.repeats + 1):
            ids = prompts(clients)
            synchronise()
            begin = time.perf_counter()
            with torch.inference_mode():
                out = model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **exact
                )
            synchronise()
            seconds.append(time.perf_counter() - begin)
            assert out.shape[1] == arguments.prompt_tokens + arguments.output_tokens
        # The first one compiles and allocates.
        median = statistics.median(seconds[1:])
        tokens = clients * arguments.output_tokens / median
        row(f"peer_static_{clients}", tokens, "tokens/s", **versions)
        row(f"peer_static_{clients}_batch", median * 1e3, "ms", **versions)

    if not hasattr(model, "generate_batch"):
        print("this transformers has no continuous batching", file=sys.stderr)
        return
    for clients in arguments.clients:
        settings = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, **exact)
        seconds = []
        try:
            for _ in range(arguments.repeats + 1):
                ids = prompts(clients).tolist()
                begin = time.perf_counter()
                outputs = model.generate_batch(inputs=ids, generation_config=settings, progress_bar=False)
                seconds.append(time.perf_counter() - begin)
                made = sum(len(output.generated_tokens) for output in outputs.values())
                assert made == clients * arguments.output_tokens, made
        except Exception as error:  # The interface is young; static batches stand without it.
            print(f"continuous batching failed: {error!r}", file=sys.stderr)
            return
        tokens = clients * arguments.output_tokens / statistics.median(seconds[1:])
        row(f"peer_continuous_{clients}", tokens, "tokens/s", **versions)


main()
