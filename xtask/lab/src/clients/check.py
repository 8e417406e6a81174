"""What the scripts of clients for Python say of what they see."""

import json
import sys
import urllib.request


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")
    print(f"ok: {what}")


def refused(what, kind, call, *says):
    try:
        call()
    except kind as error:
        told = str(error)
        check(all(text in told for text in says), f"{what}: {type(error).__name__}, naming {', '.join(says)}")
    else:
        sys.exit(f"FAILED: {what}: no {kind.__name__}")


def served_model(base_url):
    """The name of the model that the server has."""
    with urllib.request.urlopen(f"{base_url}/models") as answer:
        return json.load(answer)["data"][0]["id"]
