"""The side of llama.cpp in `cargo xtask speed peers`: the same steps as `speed decode --samples` takes,
through the low-level interface of llama-cpp-python, so that Python adds microseconds to a step of
milliseconds. Prints one JSON object a line.
"""

import argparse
import json
import pathlib
import statistics
import time

import llama_cpp as llama
import numpy

# Of each sequence: the prompt and the steps after it.
CONTEXT_MAX = 256


class Engine:
    """A model, and one context at a time for some number of sequences."""

    def __init__(self, path, threads):
        @llama.llama_log_callback
        def log(level, text, _):
            # 4 is an error; the rest of the log is of no use beside a table.
            if level == 4:
                print(text.decode(), end="")

        self.log = log
        llama.llama_log_set(log, None)
        llama.llama_backend_init()
        self.threads = threads
        params = llama.llama_model_default_params()
        self.model = llama.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"error: llama.cpp cannot load {path}")
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.context = None
        self.batch = llama.llama_batch_init(CONTEXT_MAX, 0, 1)

    def start(self, sequences):
        """Begins with no tokens in any sequence."""
        if self.context:
            llama.llama_free(self.context)
        params = llama.llama_context_default_params()
        params.n_ctx = CONTEXT_MAX * sequences
        params.n_seq_max = sequences
        params.n_threads = self.threads
        params.n_threads_batch = self.threads
        self.context = llama.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("error: llama.cpp cannot make a context")

    def clear(self):
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)

    def step(self, tokens):
        """Runs (token, position, sequence, whether its logits are wanted); the logits, a row for each
        that was wanted, valid until the next step."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        wanted = []
        for i, (token, position, sequence, last) in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = last
            if last:
                wanted.append(i)
        status = llama.llama_decode(self.context, batch)
        if status != 0:
            raise SystemExit(f"error: llama_decode answered {status}")
        rows = [llama.llama_get_logits_ith(self.context, i) for i in wanted]
        return [numpy.ctypeslib.as_array(row, shape=(self.vocabulary,)) for row in rows]

    def prompt(self, prompt, sequence):
        last = len(prompt) - 1
        return self.step([(token, i, sequence, i == last) for i, token in enumerate(prompt)])


def likeliest(rows):
    return [int(row.argmax()) for row in rows]


def timed(function, *arguments):
    begin = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - begin


def line(**row):
    print(json.dumps(row), flush=True)


def measured(name, tokens, times):
    seconds = statistics.median(times)
    line(name=name, value=tokens / seconds, unit="tokens/s", step_ms=seconds * 1e3)


def deviation(engine, folder):
    """How far the logits of the golden prompt are from the reference: the root mean square of the
    differences, over that of the reference."""
    case = json.loads((folder / "golden.json").read_text())["cases"][0]
    engine.start(1)
    logits = engine.prompt(case["ids"], 0)[0].astype(numpy.float64)
    reference = numpy.array(case["last_logits"])
    return float(numpy.sqrt(((logits - reference) ** 2).sum() / (reference**2).sum()))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--weights", choices=["bf16", "q8", "q4"], required=True)
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    engine = Engine(options.folder / f"{options.weights}.gguf", options.threads)
    # As in "CPU : AVX = 1 | AVX2 = 1 | ".
    features = llama.llama_print_system_info().decode().partition(":")[2].split("|")
    features = " ".join(part.split("=")[0].strip() for part in features if "= 1" in part)
    line(
        name="weights",
        value=llama.llama_model_size(engine.model) / 1e6,
        unit="MB",
        version=f"llama-cpp-python {llama.__version__}, {features}",
    )
    line(name="deviation", value=deviation(engine, options.folder), unit="of the reference")
    random = numpy.random.default_rng(1)
    context = options.context

    def prompt(sequence):
        tokens = random.integers(0, 100_000, context).tolist()
        return timed(lambda: likeliest(engine.prompt(tokens, sequence))[0])

    engine.start(1)
    times = []
    for _ in range(options.samples):
        engine.clear()
        times.append(prompt(0)[1])
    measured(f"prefill_{context}", context, times)
    for batch in map(int, options.batches.split(",")):
        engine.start(batch)
        tokens = [prompt(sequence)[0] for sequence in range(batch)]
        times = []
        for position in range(context, context + options.samples + 1):
            step = [(token, position, i, True) for i, token in enumerate(tokens)]
            tokens, seconds = timed(lambda: likeliest(engine.step(step)))
            times.append(seconds)
        # The first meets cold buffers.
        measured(f"decode_{batch}", batch, times[1:])


if __name__ == "__main__":
    main()
