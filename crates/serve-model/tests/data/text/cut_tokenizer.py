#!/usr/bin/env python3
"""Cut a model's folder down to the tokens and merges that golden cases need; ids stay the real ones.

    python3 cut_tokenizer.py MODEL_DIR NAME GOLDEN.json [GOLDEN.json ...] OUT_DIR

MODEL_DIR holds tokenizer.json (byte-level BPE) and tokenizer_config.json; NAME is its name in the golden
files. Writes OUT_DIR/NAME/{tokenizer.json,tokenizer_config.json,chat_template.jinja}. Needs tokenizers.

A merge is kept if it is applied somewhere in the golden texts. Merging is greedy by rank, and a subset of the
merges that holds every one applied to a word is walked through in the same order, so the tokens are the same;
this is checked for every case before anything is written.
"""

import json
import re
import sys
from pathlib import Path

from tokenizers import Tokenizer

def golden_texts(files, name):
    """Pairs of a text and its ids."""
    for file in files:
        golden = json.loads(Path(file).read_text(encoding="utf-8"))
        for case in golden["cases"]:
            if name in case:
                yield case["text"], case[name]["ids"]
        for chat in golden["chat"]:
            if name in chat:
                yield chat[name]["prompt"], chat[name]["ids"]


def words(tokenizer, added, text):
    """The pre-tokens of a text, in the byte-level alphabet."""
    pattern = "|".join(re.escape(token) for token in sorted(added, key=len, reverse=True))
    for part in re.split(pattern, text):
        if tokenizer.normalizer is not None:
            part = tokenizer.normalizer.normalize_str(part)
        yield from (word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(part))


def applied(word, ranks):
    """The merges that BPE applies to a word."""
    symbols = list(word)
    while True:
        pairs = [(ranks[pair], i) for i, pair in enumerate(zip(symbols, symbols[1:])) if pair in ranks]
        if not pairs:
            return
        rank, i = min(pairs)
        yield rank
        symbols[i:i + 2] = [symbols[i] + symbols[i + 1]]


def cut(folder, name, files):
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model, added = spec["model"], {token["content"]: token["id"] for token in spec["added_tokens"]}
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    texts = list(golden_texts(files, name))
    kept = sorted({rank for text, _ in texts for word in set(words(tokenizer, added, text))
                   for rank in applied(word, ranks)})
    # The tokens of single bytes; some vocabularies lack a few that no text holds.
    vocab = {token: id for token, id in model["vocab"].items() if len(token) == 1}
    for rank in kept:
        for token in (*merges[rank], "".join(merges[rank])):
            vocab[token] = model["vocab"][token]
    # Added tokens are numbered by the model's vocabulary where it holds them, else counted up from its
    # size, which is not the real one here.
    vocab.update(added)
    model["vocab"] = dict(sorted(vocab.items(), key=lambda item: item[1]))
    model["merges"] = [" ".join(merges[rank]) for rank in kept]
    text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
    small = Tokenizer.from_str(text)
    for source, ids in texts:
        found = small.encode(source, add_special_tokens=False).ids
        assert found == ids, (source, ids, found)
    return text, len(texts), len(vocab)


def main():
    folder, name, *files, out = sys.argv[1:]
    folder, out = Path(folder), Path(out) / name
    text, cases, tokens = cut(folder, name, files)
    out.mkdir(parents=True, exist_ok=True)
    (out / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    config.pop("added_tokens_decoder", None)
    (out / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    template = folder / "chat_template.jinja"
    if template.exists():
        (out / template.name).write_bytes(template.read_bytes())
    print(f"{out}: {tokens} tokens, {cases} cases, {len(text.encode()) // 1000} kB")


if __name__ == "__main__":
    main()
