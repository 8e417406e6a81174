#!/usr/bin/env python3
"""Write goldens.json: logits of the fixture tiny-llama with other rotary embeddings.

    python3 make_rope_goldens.py ../../fixtures/tiny-llama goldens.json

Needs numpy. A Llama in float64, written down from its paper; the frequencies are those that transformers computes for
the keys of each case (`_compute_linear_scaling_rope_parameters`, `_compute_dynamic_ntk_parameters`). Each case is
`config`, keys that replace those of the fixture, and the logits of the last token of the first `length` tokens of
`ids`. The logits of the fixture as it is are compared with its own golden.json first, which transformers made.
"""

import json
import struct
import sys

import numpy as np

LINEAR = {"type": "linear", "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
CASES = [
    # What config.json says; theta; what positions are divided by; whether the base grows with the length.
    ({"rope_scaling": LINEAR}, 1e4, 4.0, None),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2.5}, "rope_theta": 5e5}, 5e5, 2.5, None),
    ({"rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 5e5}, "rope_theta": None}, 5e5, 4.0, None),
    ({"rope_scaling": dict(LINEAR, rope_theta=5e5), "rope_theta": None}, 5e5, 4.0, None),
    # The one inside goes first, as rope_scaling goes before rope_parameters.
    ({"rope_scaling": dict(LINEAR, rope_theta=5e5), "rope_parameters": {"rope_theta": 7e5}}, 5e5, 4.0, None),
    ({"rope_scaling": {"rope_theta": 5e5}, "rope_theta": None}, 5e5, 1.0, None),
    ({"rope_parameters": {"rope_theta": 5e5}, "rope_theta": None}, 5e5, 1.0, None),
    ({"rope_scaling": {}, "rope_parameters": LINEAR}, 1e4, 4.0, None),
    # Without a type there is no scaling.
    ({"rope_scaling": {"factor": 4.0}}, 1e4, 1.0, None),
    ({"rope_scaling": DYNAMIC}, 1e4, 1.0, 2.0),
    ({"rope_scaling": {"type": "dynamic", "factor": 8.0}, "max_position_embeddings": 250}, 1e4, 1.0, 8.0),
]
LENGTHS = [1, 7, 240]


def tensors(folder):
    with open(f"{folder}/model.safetensors", "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    header.pop("__metadata__", None)
    read = lambda t: np.frombuffer(data[slice(*t["data_offsets"])], "<f4").astype("f8").reshape(t["shape"])
    return {name: read(tensor) for name, tensor in header.items()}


def frequencies(config, theta, divisor, dynamic, length):
    dim = config["hidden_size"] // config["num_attention_heads"]
    if dynamic is not None:
        positions = config["max_position_embeddings"]
        longest = max(length, positions)
        theta *= ((dynamic * longest / positions) - (dynamic - 1)) ** (dim / (dim - 2))
    return 1.0 / theta ** (np.arange(0, dim, 2) / dim) / divisor


def logits(w, config, ids, inv_freq):
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    length, eps = len(ids), config["rms_norm_eps"]
    norm = lambda x, name: x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]
    angles = np.outer(np.arange(length), inv_freq)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def rotate(x):
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    x = w["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        linear = lambda x, name: x @ w[f"{at}.{name}.weight"].T
        split = lambda x, n: x.reshape(length, n, -1)
        h = norm(x, f"{at}.input_layernorm")
        q = rotate(split(linear(h, "self_attn.q_proj"), heads))
        k = np.repeat(rotate(split(linear(h, "self_attn.k_proj"), kv_heads)), heads // kv_heads, axis=1)
        v = np.repeat(split(linear(h, "self_attn.v_proj"), kv_heads), heads // kv_heads, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
        scores += np.triu(np.full((length, length), -np.inf), 1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        x = x + linear(np.einsum("hqk,khd->qhd", scores, v).reshape(length, -1), "self_attn.o_proj")
        h = norm(x, f"{at}.post_attention_layernorm")
        gate = linear(h, "mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, "mlp.up_proj"), "mlp.down_proj")
    return norm(x[-1], "model.norm") @ w["lm_head.weight"].T


def main():
    folder, out = sys.argv[1:]
    with open(f"{folder}/config.json") as f:
        fixture = json.load(f)
    with open(f"{folder}/golden.json") as f:
        golden = json.load(f)
    w = tensors(folder)
    plain = frequencies(fixture, fixture["rope_theta"], 1.0, None, 0)
    for prompt in golden["prompts"]:
        found = logits(w, fixture, prompt["ids"], plain)
        assert np.abs(found - prompt["last_logits"]).max() < 1e-4, prompt["name"]
    ids = [(i * 131 + i * i * 7) % 380 for i in range(max(LENGTHS))]
    cases = []
    for changes, theta, divisor, dynamic in CASES:
        config = {**fixture, **changes}
        by_length = {
            length: logits(w, config, ids[:length], frequencies(config, theta, divisor, dynamic, length))
            for length in LENGTHS
        }
        rounded = {length: [float(f"{x:.6g}") for x in found] for length, found in by_length.items()}
        cases.append({"config": changes, "last_logits": rounded})
    with open(out, "w") as f:
        json.dump({"ids": ids, "cases": cases}, f)
        f.write("\n")


if __name__ == "__main__":
    main()
