"""Does serve-bench measure what an independent client measures?

Starts a server on the mock device, whose step times do not depend on the machine, and sends it the same load with
serve-bench and with GuideLLM (PyPI), in turns. The server must have finished as many answers for one as for the
other, serve-bench must count exactly these, and medians must be within 3%. Exits with 1 otherwise.

    python3 -m venv agreement && agreement/bin/pip install guidellm==0.8.1
    python3 xtask/agreement.py --guidellm agreement/bin/guidellm

The binaries are those of `cargo build --release --workspace --bin serve --bin serve-bench`.

GuideLLM's words: its "inter-token latency" of a request is (last - first token) / (tokens - 1), which is our TPOT; its
times count from the actual send. It asks for a running token count, which not every server gives, so that part of its
body is taken out; its tokens are then the chunks that it read.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

TOLERANCE = 0.03
OUTPUT_TOKENS = 32
VOID = 3  # the exit code of a run whose client was late: on a busy machine the other client is as well
WORDS = "the of and to in is it you that he was for on are with as his they be at one have this from or had by".split()


def prompts(path, count, words):
    draw = random.Random(1)
    with open(path, "w") as out:
        for _ in range(count):
            out.write(json.dumps({"prompt": " ".join(draw.choice(WORDS) for _ in range(words))}) + "\n")


def start(serve):
    command = [serve, "--backend", "mock", "--port", "0", "--prefix-cache=false", "--log", "off"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in server.stdout:
        found = re.search(r"http://[0-9.]+:\d+", line)
        if found:
            return server, found.group(0)
    sys.exit(f"{' '.join(command)} printed no address")


def finished(url):
    """How many answers the server says that it has finished."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        found = re.search(r'serve_requests_ended_total\{end="finished"\} (\d+)', answer.read().decode())
    return int(found.group(1))


def counted(url, run):
    """A run, and how many answers the server finished meanwhile."""
    before = finished(url)
    ended = run()
    ended["served"] = finished(url) - before
    return ended


def ours(bench, url, load, folder):
    command = [bench, "run", "--url", url, "--arrivals", "constant", "--rate", str(load.rate), "--requests",
               str(load.requests), "--max-tokens", str(OUTPUT_TOKENS), "--prompts", str(load.prompts), "--dir", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode not in (0, VOID):
        sys.exit(f"{ended.stdout}{ended.stderr}serve-bench ended with {ended.returncode}")
    rows = [json.loads(line) for line in open(folder / "rows.jsonl")][1:]
    answers = [row for row in rows if row["outcome"] == "ok"]
    first = lambda row: row["chunks"][0][0]
    return {
        "void": ended.returncode == VOID,
        "answers": len(answers),
        "tokens": [row["output_tokens"] for row in answers],
        "TTFT": [(first(row) - row["sent_ns"]) / 1e6 for row in answers],
        "TPOT": [(row["chunks"][-1][0] - first(row)) / (row["output_tokens"] - 1) / 1e6 for row in answers],
        "E2E": [(row["end_ns"] - row["sent_ns"]) / 1e6 for row in answers],
    }


def theirs(guidellm, url, load, file):
    body = {"stream_options": None, "temperature": 0}
    backend = {"kind": "openai_http", "target": url, "model": "mock", "max_tokens": OUTPUT_TOKENS, "extras": {"body": body}}
    command = [guidellm, "run", "--backend", json.dumps(backend), "--profile", f"kind=constant,rate={load.rate}",
               "--constraint", f"kind=max_requests,count={load.requests}", "--data", f"kind=json_file,path={load.prompts}",
               "--output", f"kind=json,path={file}", "--disable-console"]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"{ended.stdout}{ended.stderr}guidellm ended with {ended.returncode}")
    requests = json.load(open(file))["benchmarks"][0]["requests"]
    for request in requests["errored"] + requests["incomplete"]:
        info = request["info"]
        print(f"guidellm counts a request as {info['status']}: {info['error']} {info['timings']}", file=sys.stderr)
    answers = requests["successful"]
    return {
        "answers": len(answers),
        "tokens": [answer["output_tokens"] for answer in answers],
        "TTFT": [answer["time_to_first_token_ms"] for answer in answers],
        "TPOT": [answer["inter_token_latency_ms"] for answer in answers],
        "E2E": [answer["request_latency"] * 1e3 for answer in answers],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", default="target/release/serve")
    parser.add_argument("--bench", default="target/release/serve-bench")
    parser.add_argument("--guidellm", default="guidellm")
    parser.add_argument("--rate", type=float, default=1.25, help="requests a second, evenly spaced")
    parser.add_argument("--requests", type=int, default=40, help="in each run")
    parser.add_argument("--words", type=int, default=300, help="in each prompt")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each client")
    load = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        load.prompts = folder / "prompts.jsonl"
        prompts(load.prompts, 2 * load.requests, load.words)
        server, url = start(load.serve)
        try:
            runs = [(counted(url, lambda: ours(load.bench, url, load, folder / f"ours-{pair}")),
                     counted(url, lambda: theirs(load.guidellm, url, load, folder / f"theirs-{pair}.json")))
                    for pair in range(load.pairs)]
        finally:
            server.terminate()
            server.wait()
    agree = True
    print(f"{load.pairs} runs of each client in turns, {load.requests} requests at {load.rate}/s, "
          f"{load.words} words in, {OUTPUT_TOKENS} tokens out\n")
    print(f"{'':16}{'serve-bench':>12}{'guidellm':>12}  difference")
    answers, served = [[sum(run[name] for run in side) for side in zip(*runs)] for name in ("answers", "served")]
    tokens = [sorted({count for run in side for count in run["tokens"]}) for side in zip(*runs)]
    # GuideLLM 0.8.1 often leaves the last answer of a run out of its report, so the server is the judge of counts.
    agree &= answers[0] == served[0] == served[1] and tokens[0] == tokens[1]
    for name, counts in (("answers", answers), ("server's count", served), ("tokens in each", tokens)):
        print(f"{name:16}{str(counts[0]):>12}{str(counts[1]):>12}")
    for name in ("TTFT", "TPOT", "E2E"):
        medians = [statistics.median(value for run in side for value in run[name]) for side in zip(*runs)]
        difference = medians[0] / medians[1] - 1
        agree &= abs(difference) <= TOLERANCE
        print(f"{name + ' p50, ms':16}{medians[0]:>12.2f}{medians[1]:>12.2f}  {difference:+.2%}")
    void = sum(run["void"] for run, _ in runs)
    if void:
        print(f"\n{void} of {load.pairs} runs of serve-bench were void: this machine is busy, and so was the other client")
    print("\nagreed" if agree else f"\nNOT agreed: counts must be those of the server and medians within {TOLERANCE:.0%}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
