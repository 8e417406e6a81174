#!/usr/bin/env python3
"""A real Prometheus scrapes a real server under the load of serve-bench, and is asked what the dashboard asks.

The queries are those that stand in the dashboard's own JSON, over the time of the run. A query without an answer is a
fault; counts must be those of the load client's rows exactly, and quantiles must lie within a bucket of those of the times
that the rows have. One JSON object a line; exit code 1 where something is wrong.

With `--fault buckets` Prometheus reads through a proxy that shifts the bounds of one histogram by two: the run must fail.
"""

import argparse
import collections
import http.server
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from servers import free_port, get, start, stop, until

# Two bounds of a histogram lie at most so far apart, and a quantile is told within that of its bucket's end.
BUCKET = 1.42

SPEC = """
name = "dashboards"
seed = 5
requests = 400

[arrivals.poisson]
rate_per_s = 20

[request]
endpoint = "token_ids"
vocabulary = { min = 256, max = 1000 }
ignore_eos = true

[[prompts]]
name = "alike"
tokens = { uniform = { min = 20, max = 200 } }
output_tokens = { uniform = { min = 2, max = 80 } }
prefix = { tokens = 64, variants = 2 }

[[classes]]
name = "paid"
share = 1
deadline_ms = 4000

[[classes]]
name = "free"
share = 2
cancel = { probability = 0.1, after_tokens = { fixed = 5 } }

[measure]
warmup_requests = 0
"""


def shifted(text):
    """The counts of `serve_ttft_seconds` under bounds that are two steps too high."""
    lines, held = [], collections.defaultdict(lambda: collections.deque([0, 0]))
    for line in text.splitlines():
        bucket = re.match(r'serve_ttft_seconds_bucket\{class="(\w+)",le="([^+][^"]*)"\} (\d+)', line)
        if bucket:
            name, bound, count = bucket.groups()
            held[name].append(int(count))
            line = f'serve_ttft_seconds_bucket{{class="{name}",le="{bound}"}} {held[name].popleft()}'
        lines.append(line)
    return "\n".join(lines) + "\n"


def proxy(port):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = shifted(get(port, self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


class Prometheus:
    def __init__(self, folder, target):
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w") as file:
            job = {"job_name": "serve", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
            json.dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}, file)
        self.port = free_port()
        self.process = start(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=error"],
        )
        until("Prometheus is ready", lambda: get(self.port, "/-/ready"))

    def query(self, expression):
        path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        result = json.loads(get(self.port, path))["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in result]


def queries(dashboard):
    with open(dashboard) as file:
        panels = json.load(file)["panels"]
    return [(panel["title"], target["legendFormat"], target["expr"])
            for panel in panels for target in panel.get("targets", [])]


def nearest_rank(values, share):
    values = sorted(values)
    return values[max(math.ceil(share * len(values)), 1) - 1]


def rows_of(folder):
    with open(os.path.join(folder, "rows.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    return [line for line in lines if "outcome" in line]


def times(rows):
    """What the rows say of the times that the server measures, in seconds."""
    timed = [row["timings"] for row in rows if row["outcome"] == "ok" and "timings" in row]
    parts = {part: [timing[f"{part}_ms"] / 1e3 for timing in timed] for part in ("queue", "prefill", "decode")}
    whole = list(zip(parts["queue"], parts["prefill"], parts["decode"]))
    return {
        "Time to first token": [queue + prefill for queue, prefill, _ in whole],
        "Whole answers": [sum(parts) for parts in whole],
    }


class Verdict:
    def __init__(self):
        self.faults = 0

    def tell(self, panel, legend, true, **figures):
        self.faults += not true
        print(json.dumps({"panel": panel, "query": legend, "ok": true, **figures}), flush=True)


def compare(verdict, asked, rows):
    ends = collections.Counter()
    for row in rows:
        ends[{"ok": "finished", "failed": "cancelled" if row.get("cause") == "deadline" else "failed"}.get(
            row["outcome"], row["outcome"])] += 1
    codes = collections.Counter(row["error"]["code"] if isinstance(row.get("error"), dict) else row.get("code")
                                for row in rows if row["outcome"] == "refused")
    for metric, value in asked[("Requests since the start", "{{end}}")]:
        end = metric["end"]
        verdict.tell("Requests since the start", end, value == ends[end], dashboard=value, rows=ends[end])
    told = sum(value for _, value in asked.get(("Refusals since the start", "{{code}}"), []))
    verdict.tell("Refusals since the start", "all", told == sum(codes.values()), dashboard=told, rows=sum(codes.values()))
    for panel, values in times(rows).items():
        for share in (0.5, 0.9, 0.99):
            legend = f"p{round(share * 100)}"
            (_, value), = asked[(panel, legend)]
            exact = nearest_rank(values, share)
            near = exact / BUCKET <= value <= exact * BUCKET
            verdict.tell(panel, legend, near, dashboard=round(value, 5), rows=round(exact, 5))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("serve")
    parser.add_argument("serve_bench")
    parser.add_argument("dashboard")
    parser.add_argument("--fault", choices=["buckets"])
    options = parser.parse_args()
    if shutil.which("prometheus") is None:
        print(json.dumps({"skipped": "prometheus is not installed (apt install prometheus)"}))
        return 0
    verdict, started = Verdict(), time.time()
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        server = start([
            options.serve, "--backend", "mock", "--port", str(port), "--log", "error", "--max-batch", "8",
            "--kv-tokens", "1024", "--queue-cap", "12",
        ], stdout=subprocess.DEVNULL)
        children = [server]
        try:
            until("the server is ready", lambda: get(port, "/health/ready"))
            scraped = proxy(port) if options.fault == "buckets" else port
            prometheus = Prometheus(folder, scraped)
            children.append(prometheus.process)
            until("the first scrape", lambda: prometheus.query("serve_build_info"))
            spec, run = os.path.join(folder, "spec.toml"), os.path.join(folder, "run")
            with open(spec, "w") as file:
                file.write(SPEC)
            command = [options.serve_bench, "run", spec, "--dir", run, "--url", f"http://127.0.0.1:{port}"]
            # 3 says that this machine could not send on time, which counts as well as any load.
            done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
            if done.returncode not in (0, 3):
                raise RuntimeError(f"serve-bench ended with {done.returncode}")
            # One more scrape than the last that can have begun before the last request had ended.
            time.sleep(2.5)
            window = f"[{math.ceil(time.time() - started)}s]"
            asked = {}
            for panel, legend, expression in queries(options.dashboard):
                expression = expression.replace("[$__rate_interval]", window).replace("$instance", ".*")
                answer = prometheus.query(expression)
                asked[(panel, legend)] = answer
                told = [value for _, value in answer if not math.isnan(value)]
                verdict.tell(panel, legend, bool(told), series=len(told))
            compare(verdict, asked, rows_of(run))
        finally:
            for child in children:
                stop(child)
    print(json.dumps({"faults": verdict.faults, "seconds": round(time.time() - started, 1)}))
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
