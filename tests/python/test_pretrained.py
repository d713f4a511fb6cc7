"""Values from files: what transformers has renamed or merged loads with equal values, each rank's part alone is read, and hostile
files end in an error of libzero that names the file: no raw error of Python, no file outside of the folder, no waiting.

Usage: test_pretrained.py [NAME...], with PYTHONPATH and LIBZERO_LIBRARY_DIR. Exit code 77: there is no PyTorch.
"""

import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile
import unittest
import unittest.mock

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
try:
    import transformers
except ImportError:
    transformers = None

import libzero
from libzero import pretrained

torch.set_num_threads(1)


def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))


SHAPES = {name: list(value.shape) for name, value in module().state_dict().items()}


def header(**changes):
    """Of a file that fits the module; a change of None leaves a tensor out."""
    entries, end = {}, 0
    for name, shape in SHAPES.items():
        begin, end = end, end + 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    for name, change in changes.items():
        name = name.replace("_", ".")
        if isinstance(change, dict) and name in entries:
            change = {**entries[name], **change}
        entries[name] = change
    return {name: entry for name, entry in entries.items() if entry is not None}


N_BYTES = sum(4 * int(torch.tensor(s).prod()) for s in SHAPES.values())
FIRST, LAST = "0_weight", "1_bias"


def pack(text, n_bytes=N_BYTES, length=None):
    text = text if isinstance(text, bytes) else (text if isinstance(text, str) else json.dumps(text)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(n_bytes)


DUPLICATE = json.dumps(header())[:-1] + ', "0.bias": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}'
#: Content of model.safetensors, and a part of the message.
HOSTILE = {
    "empty": (b"", "truncated"),
    "no length": (b"\1\2\3", "truncated"),
    "header cut off": (pack(header(), 0)[:40], "truncated"),
    "header of 2^63 bytes": (pack(header(), length=1 << 63), "truncated"),
    "header of 2^64 - 1 bytes": (pack(header(), length=(1 << 64) - 1), "truncated"),
    "data cut off": (pack(header(), N_BYTES - 4), "lies at bytes"),
    "data behind": (pack(header(), N_BYTES + 4), "the end of the file"),
    "not JSON": (pack("{" * 20), "not JSON"),
    "no object": (pack("[1, 2, 3]"), "not an object"),
    "deep JSON": (pack('{"a":' * 100000 + "1" + "}" * 100000), "not JSON"),
    "NaN": (pack('{"a": NaN}'), "NaN"),
    "not UTF-8": (pack(b'{"\xff\xfe": 1}'), "not JSON"),
    "duplicate names": (pack(DUPLICATE), "duplicate"),
    "tensor is a number": (pack(header(x=7)), "is not an object"),
    "tensor is null": (pack('{"0.weight": null}'), "is not an object"),
    "no dtype": (pack({"0.weight": {"shape": [1], "data_offsets": [0, 4]}}), "is not an object"),
    "one key more": (pack(header(**{FIRST: {"more": 1}})), "is not an object"),
    "dtype is a list": (pack(header(**{FIRST: {"dtype": ["F32"]}})), "has dtype"),
    "dtype is unknown": (pack(header(**{FIRST: {"dtype": "F31"}})), "'F31'"),
    "dtype of FP8": (pack(header(**{FIRST: {"dtype": "F8_E4M3"}})), "quantised"),
    "shape is a text": (pack(header(**{FIRST: {"shape": "32"}})), "its shape"),
    "shape is an object": (pack(header(**{FIRST: {"shape": {"0": 3}}})), "its shape"),
    "shape is negative": (pack(header(**{FIRST: {"shape": [-3, -2]}})), "its shape"),
    "shape is huge": (pack(header(**{FIRST: {"shape": [1 << 61, 1 << 61]}})), "lies at bytes"),
    "shape is of booleans": (pack(header(**{LAST: {"shape": [True, 2]}})), "its shape"),
    "shape is of fractions": (pack(header(**{LAST: {"shape": [2.0]}})), "its shape"),
    "shape is of lists": (pack(header(**{LAST: {"shape": [[2]]}})), "its shape"),
    "1,000 dimensions": (pack(header(**{LAST: {"shape": [1] * 1000}})), "its shape"),
    "offsets are negative": (pack(header(**{FIRST: {"data_offsets": [-24, 0]}})), "data_offsets"),
    "offsets are turned": (pack(header(**{FIRST: {"data_offsets": [24, 0]}})), "lies at bytes"),
    "offsets are behind the end": (pack(header(**{FIRST: {"data_offsets": [1 << 40, (1 << 40) + 24]}})), "lies at bytes"),
    "offsets are beyond 64 bits": (pack(header(**{FIRST: {"data_offsets": [1 << 80, 1 << 81]}})), "data_offsets"),
    "offsets are three": (pack(header(**{FIRST: {"data_offsets": [0, 24, 0]}})), "data_offsets"),
    "offsets are texts": (pack(header(**{FIRST: {"data_offsets": ["0", "24"]}})), "data_offsets"),
    "offsets are booleans": (pack(header(**{FIRST: {"data_offsets": [False, True]}})), "data_offsets"),
    "data overlap": (pack(header(**{LAST: {"data_offsets": [0, 8]}}), N_BYTES - 8), "begin at byte 0"),
    "a hole": (pack(header(**{LAST: {"data_offsets": [N_BYTES, N_BYTES + 8]}}), N_BYTES + 8), "begin at byte"),
    "another shape": (pack(header(**{FIRST: {"shape": [2, 3]}})), "has shape"),
    "a tensor is missing": (pack(header(**{LAST: None}), N_BYTES - 8), "no tensor for 1"),
    "no tensors": (pack({}, 0), "no tensor for 4"),
    "integers": (pack(header(**{FIRST: {"dtype": "I32"}})), "quantised"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\nsize 9\n", "git lfs pull"),
    "GGUF": (b"GGUF\3\0\0\0\0\0\0\0", "GGUF"),
    "GPTQ": (pack({"0.qweight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, 4), "quantised"),
    "control characters": (pack({"\33[31m": 1}), r"\\x1b\[31m"),
}

#: Content of an index.
INDICES = {
    "not JSON": (b"{", "not JSON"),
    "empty": (b"", "not JSON"),
    "a list": ([], "not an object"),
    "deep": ('{"weight_map":' * 50000, "not JSON"),
    "no weight_map": ({}, "weight_map is missing"),
    "weight_map is a list": ({"weight_map": ["a"]}, "weight_map is missing"),
    "weight_map is empty": ({"weight_map": {}}, "weight_map is missing"),
    "a file is a number": ({"weight_map": {"0.weight": 1}}, "allowed: names"),
    "a file is a list": ({"weight_map": {"0.weight": ["a.safetensors"]}}, "allowed: names"),
    "a file above": ({"weight_map": {"0.weight": "../outside.safetensors"}}, "allowed: names"),
    "a file below": ({"weight_map": {"0.weight": "a/../../outside.safetensors"}}, "allowed: names"),
    "an absolute path": ({"weight_map": {"0.weight": "/etc/passwd"}}, "allowed: names"),
    "another kind of file": ({"weight_map": {"0.weight": "config.json"}}, "allowed: names"),
    "a zero byte": ({"weight_map": {"0.weight": "a\0.safetensors"}}, "cannot open"),
    "a long name": ({"weight_map": {"0.weight": "a" * 5000 + ".safetensors"}}, "cannot open"),
    "a file that is missing": ({"weight_map": {"0.weight": "none.safetensors"}}, "cannot open"),
    "a folder": ({"weight_map": {"0.weight": "folder.safetensors"}}, "is not a file"),
    "a pipe": ({"weight_map": {"0.weight": "pipe.safetensors"}}, "is not a file"),
    "a loop": ({"weight_map": {"0.weight": "loop.safetensors"}}, "cannot open"),
    "a tensor that is elsewhere": ({"weight_map": {**{n: "good.safetensors" for n in SHAPES}, "more": "good.safetensors"}}, "'more' is not in"),
    "a tensor that is not named": ({"weight_map": {"0.weight": "good.safetensors"}}, "is in 'no file' there"),
    "duplicate names": ('{"weight_map": {"a": "good.safetensors", "a": "good.safetensors"}}', "duplicate"),
}

good = module().state_dict()
#: What torch.save has written.
PICKLES = {
    "a list": ([1, 2], "has list"),
    "a number": (7, "has int"),
    "a tensor": (torch.ones(2), "has Tensor"),
    "numbers by name": ({"0.weight": 1}, "is int"),
    "tensors by number": ({0: torch.ones(2)}, "not tensors by name"),
    "nested": ({"state_dict": good}, "is dict|is OrderedDict"),
    "sparse": ({**good, "1.weight": good["1.weight"].to_sparse()}, "sparse_coo"),
    "complex": ({**good, "1.weight": good["1.weight"].to(torch.complex64)}, "complex64"),
    "without values": ({**good, "1.weight": good["1.weight"].to("meta")}, "meta"),
    "quantised": ({**good, "1.weight": torch.quantize_per_tensor(good["1.weight"], 0.1, 0, torch.qint8)}, "quantised"),
    "int8": ({**good, "1.weight": good["1.weight"].to(torch.int8)}, "int8"),
    "code": ({"a": unittest.TestCase}, "torch.load cannot read"),
}


class Hostile(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        self.folder = self.root / "model"
        self.folder.mkdir()

    def refuse(self, said, path=None):
        path = path or self.folder
        with self.assertRaisesRegex(libzero.Error, said) as caught:
            libzero.load_pretrained(module(), path)
        self.assertIn(str(self.folder), str(caught.exception))
        self.assertTrue(all(c.isprintable() for c in str(caught.exception)), str(caught.exception))

    def test_safetensors(self):
        path = self.folder / "model.safetensors"
        path.write_bytes(pack(header()))
        libzero.load_pretrained(module(), self.folder)
        for name, (content, said) in HOSTILE.items():
            with self.subTest(name):
                path.write_bytes(content)
                self.refuse(said)
                self.refuse(said, path)

    def test_index(self):
        (self.root / "outside.safetensors").write_bytes(pack(header()))
        (self.folder / "good.safetensors").write_bytes(pack(header()))
        (self.folder / "folder.safetensors").mkdir()
        os.mkfifo(self.folder / "pipe.safetensors")
        os.symlink("loop.safetensors", self.folder / "loop.safetensors")
        index = self.folder / "model.safetensors.index.json"
        for name, (content, said) in INDICES.items():
            with self.subTest(name):
                text = content if isinstance(content, (bytes, str)) else json.dumps(content)
                index.write_bytes(text if isinstance(text, bytes) else text.encode())
                self.refuse(said)
        index.write_text(json.dumps({"weight_map": dict.fromkeys(SHAPES, "good.safetensors")}))
        libzero.load_pretrained(module(), self.folder)
        libzero.load_pretrained(module(), index)
        (self.folder / "model.safetensors").write_bytes(pack(header()))
        self.refuse("has both")

    def test_torch_files(self):
        path = self.folder / "pytorch_model.bin"
        for name, (content, said) in PICKLES.items():
            with self.subTest(name):
                torch.save(content, path)
                self.refuse(said)
        for content, said in ((b"", "cannot read"), (b"PK\3\4rest", "cannot read"), (b"version https://git-lfs", "lfs")):
            path.write_bytes(content)
            self.refuse(said)

    def test_places(self):
        """What is no file is not waited for; the links of Hugging Face's cache lead to ../../blobs."""
        path = self.folder / "model.safetensors"
        for name in ("model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"):
            place = self.folder / name
            for make in (os.mkfifo, os.mkdir, lambda p: os.symlink("/dev/zero", p), lambda p: os.symlink(p.name, p),
                         lambda p: os.symlink("nowhere", p)):
                make(place)
                self.refuse("is not a file|cannot open")
                (os.rmdir if place.is_dir() and not place.is_symlink() else os.unlink)(place)
        self.refuse("found neither")
        (self.folder / "adapter_config.json").write_text("{}")
        self.refuse("folder of adapters.*--adapter")
        blobs, snapshot = self.root / "blobs", self.root / "snapshots" / "a"
        blobs.mkdir(), snapshot.mkdir(parents=True)
        (blobs / "0").write_bytes(pack(header()))
        os.symlink("../../blobs/0", snapshot / path.name)
        libzero.load_pretrained(module(), snapshot)


class Filling(unittest.TestCase):
    """An exception while first values are read ends initialize with itself; the module may be given again."""

    def check(self, error, model):
        def fail(file, name, first, n_elems, read=pretrained._TorchFile.read):
            if name == "1.weight":
                raise error
            return read(file, name, first, n_elems)

        with unittest.mock.patch.object(pretrained._TorchFile, "read", fail), self.assertRaises(type(error)) as caught:
            libzero.initialize(model, lr=1e-3)
        self.assertIs(caught.exception, error)

    def test_exceptions(self):
        with tempfile.TemporaryDirectory() as folder:
            torch.save(good, folder + "/pytorch_model.bin")
            for error in (KeyboardInterrupt(), ValueError("x"), MemoryError(), SystemExit(3), OSError(5, "I/O")):
                model = libzero.load_pretrained(module(), folder)
                self.check(error, model)
                with libzero.initialize(model, lr=1e-3) as engine:
                    for key, value in engine.state_dict().items():
                        self.assertTrue(torch.equal(value, good[key]), key)
            broken = {**good, "1.weight": good["1.weight"].clone()}
            broken["1.weight"][1, 0] = float("nan")
            torch.save(broken, folder + "/pytorch_model.bin")
            with self.assertRaisesRegex(libzero.FormatError, "element 3 of '1.weight' is not finite"):
                libzero.initialize(libzero.load_pretrained(module(), folder), lr=1e-3)


@unittest.skipIf(transformers is None, "there is no transformers")
class Renamed(unittest.TestCase):
    """Folders that transformers writes have the values that it reads from them."""

    def check(self, config, stage=0, **changes):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder, **changes)
            want = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
            with libzero.init():
                empty = transformers.AutoModelForCausalLM.from_config(config)
            with self.assertNoLogs("libzero", "WARNING") if sys.version_info >= (3, 10) else unittest.mock.MagicMock():
                libzero.load_pretrained(empty, folder)
            with libzero.initialize(empty, stage=stage) as engine:
                state = engine.state_dict()
        for key, value in want.items():
            self.assertTrue(torch.equal(state[key], value), key)

    def test_families(self):
        sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                 "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
        heads = {"num_key_value_heads": 2, "head_dim": 8}
        experts = {"moe_intermediate_size": 8, "num_experts": 12, "num_experts_per_tok": 2}
        families = {
            "Qwen3MoeConfig": {**sizes, **heads, **experts},
            "Qwen2MoeConfig": {**sizes, "num_key_value_heads": 2, **experts, "shared_expert_intermediate_size": 8},
            "OlmoeConfig": {**sizes, "num_key_value_heads": 2, "num_experts": 3, "num_experts_per_tok": 2},
            "MixtralConfig": {**sizes, "num_key_value_heads": 2, "num_local_experts": 3},
            "GPTNeoXConfig": sizes,
            "LlamaConfig": {**sizes, **heads},
            "GPT2Config": {"vocab_size": 32, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16},
        }
        for name, values in families.items():
            with self.subTest(name):
                self.check(getattr(transformers, name)(**values))
        self.check(transformers.Qwen3MoeConfig(**families["Qwen3MoeConfig"]), max_shard_size="6KB")

    def test_parts(self):
        """A part of merged experts reads the experts that it has, alone."""
        config = transformers.Qwen3MoeConfig(
            vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
            head_dim=8, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=1)
        model = transformers.AutoModelForCausalLM.from_config(config)
        name = "model.layers.0.mlp.experts.gate_up_proj"
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            weights = pretrained.Weights(folder, model)
            param, seen = model.get_parameter(name), []

            def read(file, name, first, n_elems, old=pretrained._File.read):
                seen.append(name)
                return old(file, name, first, n_elems)

            with unittest.mock.patch.object(pretrained._File, "read", read):
                values = weights.filler(param)(300, 100)  # of 256 elements an expert
            self.assertTrue(torch.equal(values, param.detach().flatten()[300:400]))
            self.assertEqual({n.split(".")[5] for n in seen}, {"1"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
