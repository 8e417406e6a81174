"""What every script here needs that starts servers: a port, a look, patience, and an end for whatever was started."""

import atexit
import signal
import socket
import subprocess
import time
import urllib.request


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def get(port, path, timeout=5.0):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout) as answer:
        return answer.read().decode()


def until(what, true, patience=60.0):
    end = time.time() + patience
    while time.time() < end:
        try:
            if true():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"{what}: not within {patience} s")


def start(command, **how):
    """A process that ends with this one at the latest, also where this one fails before anything stops it."""
    process = subprocess.Popen(command, **how)
    atexit.register(stop, process)
    return process


def stop(process, patience=10.0):
    """SIGTERM, and SIGKILL for one that does not end by that."""
    if process.poll() is None:
        process.terminate()
        # One that stands still hears nothing else.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
