"""The command line `llm` against a running server: python llm_client.py BASE_URL"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from check import check, served_model


def main(base_url):
    model = served_model(base_url)
    with tempfile.TemporaryDirectory() as folder:
        lines = [f"- model_id: {name}\n  model_name: {called}\n  api_base: {json.dumps(base_url)}\n"
                 for name, called in [("here", model), ("elsewhere", "gpt-5")]]
        Path(folder, "extra-openai-models.yaml").write_text("".join(lines))
        environment = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}

        def llm(*args):
            command = [str(Path(sys.executable).parent / "llm"), *args]
            return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

        asked = ["-m", "here", "-s", "Be brief.", "-o", "max_tokens", "16", "-o", "temperature", "0", "-o", "seed", "1"]
        streamed = llm(*asked, "My dear sister")
        check(streamed.returncode == 0 and streamed.stdout.strip(), "a chat is answered")
        whole = llm(*asked, "--no-stream", "My dear sister")
        check(whole.stdout == streamed.stdout, "and the same without a stream")
        more = llm("-c", "-o", "max_tokens", "16", "And then?")
        check(more.returncode == 0 and more.stdout.strip(), "a conversation goes on")
        wrong = llm("-m", "elsewhere", "My dear sister")
        check(wrong.returncode != 0 and "gpt-5" in wrong.stderr, "another model is refused by name")
    print("all as the client expects")


if __name__ == "__main__":
    main(sys.argv[1])
