#!/usr/bin/env python3
"""Replicas of the server behind load balancers and gateways, with what happens to a fleet.

Each scenario runs on replicas of the mock that are started for it, behind one front. A client counts an answer as whole
when it is a stream that ends in `[DONE]` with the tokens that were asked for, and remembers its id: no two clients may get
the same one. One JSON object a line; exit code 1 where a promise was broken.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from servers import free_port, get, start, stop, until

TOKENS = 40
# A step of the mock at a fifth of a measured GPU's speed takes some 80 ms, so a stream of 40 tokens takes 3 s.
SPEED = "0.2"


class Replica:
    def __init__(self, serve, settings):
        self.port = free_port()
        command = [serve, "--backend", "mock", "--mock-speed", SPEED, "--port", str(self.port), "--log", "error"]
        self.process = start(command + settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until("a replica is ready", lambda: get(self.port, "/health/ready"))

    def metric(self, name):
        """The sum of a series over the labels that are not named."""
        name, _, label = name.rstrip("}").partition("{")
        samples = (line.rsplit(" ", 1) for line in get(self.port, "/metrics").splitlines() if line.startswith(name))
        values = [float(value) for of, value in samples if of.partition("{")[0] == name and label in of]
        if not values:
            raise KeyError(name)
        return sum(values)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()


class Front:
    """A load balancer: its name, its command, and how long it needs to notice that a replica goes."""

    def __init__(self, name, command, notices_s, config=None):
        self.name, self.command, self.notices_s, self.config = name, command, notices_s, config

    def start(self, folder, port, replicas):
        if self.config:
            path = os.path.join(folder, self.name)
            with open(path, "w") as file:
                file.write(self.config(port, replicas, folder))
        else:
            path = None
        log = open(os.path.join(folder, f"{self.name}.log"), "w")
        process = start(self.command(port, replicas, path), stdout=log, stderr=log, cwd=folder)
        answers = lambda: asyncio.run(stream(port, tokens=1))["outcome"] == "whole"
        until(f"{self.name} answers", answers, 60.0)
        return process


def haproxy(port, replicas, _):
    servers = "\n".join(f"  server s{p} 127.0.0.1:{p} check" for p in replicas)
    return f"""
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  option redispatch
  retry-on conn-failure
frontend in
  bind 127.0.0.1:{port}
  default_backend replicas
backend replicas
  balance leastconn
  option httpchk GET /health/ready
{servers}
"""


def nginx(port, replicas, folder):
    servers = " ".join(f"server 127.0.0.1:{p};" for p in replicas)
    return f"""
daemon off;
pid {folder}/nginx.pid;
error_log stderr error;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream replicas {{ {servers} }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_next_upstream error timeout http_503 non_idempotent;
      proxy_read_timeout 300s;
    }}
  }}
}}
"""


def envoy(port, replicas, _):
    address = lambda p: {"socket_address": {"address": "127.0.0.1", "port_value": p}}
    router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
    manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    route = {
        "cluster": "replicas",
        "timeout": "0s",
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream,retriable-status-codes",
            "retriable_status_codes": [503],
            "num_retries": 2,
            "retry_host_predicate": [{
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }],
            "host_selection_retry_max_attempts": 20,
        },
    }
    http = {
        "@type": manager,
        "stat_prefix": "in",
        "route_config": {"virtual_hosts": [
            {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}
        ]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": router}}],
    }
    endpoints = [{"endpoint": {"address": address(p)}} for p in replicas]
    cluster = {
        "name": "replicas",
        "connect_timeout": "1s",
        "lb_policy": "LEAST_REQUEST",
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "load_assignment": {"cluster_name": "replicas", "endpoints": [{"lb_endpoints": endpoints}]},
        "health_checks": [{
            "timeout": "1s", "interval": "1s", "no_traffic_interval": "1s",
            "unhealthy_threshold": 1, "healthy_threshold": 1,
            "http_health_check": {"path": "/health/ready", "host": "localhost"},
        }],
    }
    listener = {
        "address": address(port),
        "filter_chains": [{"filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": http}
        ]}],
    }
    return json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}})


def urls(replicas):
    return [f"http://127.0.0.1:{p}" for p in replicas]


def fronts():
    """Those that are here, and why the others are not."""
    beside = os.path.dirname(sys.executable)

    def found(name):
        return shutil.which(name, path=os.pathsep.join([beside, os.environ.get("PATH", ""), "/usr/sbin"]))

    known = [
        ("haproxy", 6.0, haproxy, lambda exe: lambda port, replicas, path: [exe, "-db", "-f", path]),
        ("nginx", 0.0, nginx, lambda exe: lambda port, replicas, path: [exe, "-c", path]),
        ("envoy", 2.0, envoy, lambda exe: lambda port, replicas, path: [
            exe, "-c", path, "--base-id", str(port), "--log-level", "error", "--concurrency", "1"]),
        ("smg", 0.0, None, lambda exe: lambda port, replicas, path: [
            exe, "launch", "--worker-urls", *urls(replicas), "--host", "127.0.0.1", "--port", str(port),
            "--prometheus-port", str(free_port())]),
        ("vllm-router", 0.0, None, lambda exe: lambda port, replicas, path: [
            exe, "--worker-urls", *urls(replicas), "--policy", "round_robin", "--host", "127.0.0.1", "--port",
            str(port), "--prometheus-port", str(free_port())]),
    ]
    there, missing = [], []
    for name, notices, config, command in known:
        executable = found(name)
        if executable:
            there.append(Front(name, command(executable), notices, config))
        else:
            missing.append(name)
    return there, missing


async def stream(port, tokens=TOKENS, leave_after=None, pause=0.0):
    """One streamed completion: how it ended, its id, and the status."""
    body = json.dumps({"model": "mock", "prompt": "x", "max_tokens": tokens, "stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    told = {"outcome": "broken", "id": None, "status": 0}
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + body)
        await writer.drain()
        read, text = 0, b""
        while True:
            part = await asyncio.wait_for(reader.read(512 if pause else 65536), 60)
            if not part:
                break
            text += part
            read += 1
            if leave_after is not None and read > leave_after:
                told["outcome"] = "left"
                writer.close()
                return told
            await asyncio.sleep(pause)
        writer.close()
    except (OSError, asyncio.TimeoutError):
        return told
    told["status"] = int(text[9:12] or 0) if text else 0
    if told["status"] != 200:
        told["outcome"] = "refused" if told["status"] in (429, 503) else "broken"
        return told
    events = [line[6:] for line in text.decode(errors="replace").splitlines() if line.startswith("data: ")]
    chunks = [json.loads(event) for event in events if event.startswith("{")]
    finish = [c["choices"][0]["finish_reason"] for c in chunks if c.get("choices")]
    told["id"] = next((c["id"] for c in chunks if "id" in c), None)
    whole = "[DONE]" in events and "length" in finish and not any("error" in c for c in chunks)
    told["outcome"] = "whole" if whole else "cut"
    return told


async def crowd(port, count, per_s, happen=None, **how):
    """`count` clients at a rate; `happen` is called after a second."""

    async def one(index):
        await asyncio.sleep(index / per_s)
        return await stream(port, **how)

    async def later():
        await asyncio.sleep(1.0)
        if happen:
            happen()

    *told, _ = await asyncio.gather(*(one(index) for index in range(count)), later())
    return told


def count(told):
    outcomes = {}
    for one in told:
        outcomes[one["outcome"]] = outcomes.get(one["outcome"], 0) + 1
    return outcomes


def unique(told):
    ids = [one["id"] for one in told if one["outcome"] == "whole"]
    return len(ids) == len(set(ids))


def settle(replicas):
    """Nothing is in flight any more, and each arrival is counted as one end."""
    ends = ["finished", "refused", "cancelled", "failed"]
    for replica in replicas:
        until("a replica settles", lambda: replica.metric("serve_requests_in_flight") == 0, 20.0)
        arrived = replica.metric("serve_requests_arrived_total")
        ended = sum(replica.metric(f'serve_requests_ended_total{{end="{end}"}}') for end in ends)
        if arrived != ended:
            return False
    return True


def all_whole(front, port, replicas):
    """60 of 60 are answered whole, each once, and slow readers too."""
    told = asyncio.run(crowd(port, 60, 20)) + asyncio.run(crowd(port, 10, 20, pause=0.05))
    return count(told).get("whole") == 70 and unique(told) and settle(replicas), count(told)


def one_stops(front, port, replicas):
    """A replica gets SIGTERM and stays a lame duck until its front has noticed: 60 of 60 are whole."""
    told = asyncio.run(crowd(port, 60, 6, lambda: replicas[0].process.terminate()))
    whole = count(told).get("whole") == 60 and unique(told)
    ended = replicas[0].process.wait(60) == 0
    return whole and ended and settle(replicas[1:]), count(told)


def control_without_a_delay(front, port, replicas):
    """No promise: the same without a delay, which shows what it is for."""
    told = asyncio.run(crowd(port, 60, 6, lambda: replicas[0].process.terminate()))
    return True, count(told)


def one_is_killed(front, port, replicas):
    """A replica is killed: only its own clients are cut, no answer comes twice, and once it is noticed 20 of 20 are whole."""
    running = {}

    def kill():
        running["then"] = replicas[0].metric("serve_requests_in_flight")
        replicas[0].process.kill()

    told = asyncio.run(crowd(port, 60, 20, kill))
    cut = len(told) - count(told).get("whole", 0)
    # Those that were on their way to it when it died, too: half a second of arrivals.
    may = running["then"] + 10
    time.sleep(front.notices_s + 2.0)
    after = asyncio.run(crowd(port, 20, 20))
    held = cut <= may and unique(told + after) and count(after).get("whole") == 20 and settle(replicas[1:])
    return held, {**count(told), "ran_on_it": running["then"], "whole_afterwards": count(after).get("whole", 0)}


def one_stalls(front, port, replicas):
    """A replica stands still for 2 s and goes on: nobody is cut."""
    stop = lambda: replicas[0].process.send_signal(signal.SIGSTOP)

    async def run():
        loop = asyncio.get_running_loop()
        loop.call_later(3.0, lambda: replicas[0].process.send_signal(signal.SIGCONT))
        return await crowd(port, 40, 20, stop)

    told = asyncio.run(run())
    return count(told).get("whole") == 40 and unique(told) and settle(replicas), count(told)


def overload(front, port, replicas):
    """Four times what there is room for is refused by 429; when it is over 10 of 10 are answered at once."""
    told = asyncio.run(crowd(port, 120, 50))
    settle(replicas)
    after = asyncio.run(crowd(port, 10, 2))
    held = count(after).get("whole") == 10 and count(told).get("refused", 0) > 0 and unique(told)
    return held and not count(told).get("cut"), {**count(told), "whole_afterwards": count(after).get("whole", 0)}


def clients_leave(front, port, replicas):
    """60 clients leave in mid-stream: nothing of them runs on."""
    told = asyncio.run(crowd(port, 60, 30, leave_after=3))
    return settle(replicas), count(told)


SCENARIOS = [
    (all_whole, []),
    (one_stops, ["--drain-delay", "NOTICES"]),
    (control_without_a_delay, []),
    (one_is_killed, []),
    (one_stalls, []),
    (overload, ["--max-batch", "2", "--queue-cap", "2"]),
    (clients_leave, []),
]


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("serve", help="the server's binary")
    arguments.add_argument("--only", default="", help="fronts, separated by commas")
    arguments.add_argument("--replicas", type=int, nargs="*", default=[2, 3])
    options = arguments.parse_args()
    there, missing = fronts()
    for name in missing:
        print(json.dumps({"front": name, "skipped": "it is not installed"}), flush=True)
    wanted = [name for name in options.only.split(",") if name]
    faults = 0
    for front in there:
        if wanted and front.name not in wanted:
            continue
        for number in options.replicas:
            for scenario, settings in SCENARIOS:
                start = time.time()
                delay = str(front.notices_s + 2.0)
                settings = [delay if word == "NOTICES" else word for word in settings]
                replicas, process = [], None
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        replicas = [Replica(options.serve, settings) for _ in range(number)]
                        port = free_port()
                        process = front.start(folder, port, [replica.port for replica in replicas])
                        held, figures = scenario(front, port, replicas)
                        fault = None
                    except Exception as error:  # A scenario that cannot be played is a fault, and the others go on.
                        held, figures, fault = False, {}, f"{type(error).__name__}: {error}"
                    finally:
                        if process:
                            stop(process)
                        for replica in replicas:
                            replica.stop()
                faults += not held
                row = {"front": front.name, "replicas": number, "scenario": scenario.__name__, "held": bool(held)}
                row |= {"promise": scenario.__doc__, **figures, "seconds": round(time.time() - start, 1)}
                if fault:
                    row["fault"] = fault
                print(json.dumps(row), flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
