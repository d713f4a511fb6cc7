"""What python/libzero/_c.py declares is laid out as the C compiler does it, and constants are those of the
headers; options become keywords, and errors exceptions. Needs no PyTorch.

Usage: test_package.py LAYOUTS, the program of layouts.c; with PYTHONPATH and LIBZERO_LIBRARY_DIR
"""

import ctypes
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import libzero
from libzero import _c, _options

LAYOUTS = sys.argv.pop(1)


class Layouts(unittest.TestCase):
    def test_structures(self):
        n = 0
        for line in subprocess.run([LAYOUTS], check=True, capture_output=True, text=True).stdout.splitlines():
            path, number = line.split()
            name, _, field = path.partition(".")
            structure = getattr(_c, name)
            is_here = getattr(structure, field).offset if field else ctypes.sizeof(structure)
            if path in ("Config", "Hardware", "TierStatistics"):  # the rest is never looked into
                self.assertGreaterEqual(is_here, int(number))
                continue
            self.assertEqual(is_here, int(number), path)
            n += 1
        self.assertGreater(n, 60)

    def test_statuses(self):
        _c.lib.zr_status_name.restype = ctypes.c_char_p
        for status, name in [(-1, "ARGUMENT"), (-4, "BUDGET"), (-6, "COMM"), (-9, "FORMAT")]:
            self.assertEqual(_c.lib.zr_status_name(status).decode(), f"ZR_ERR_{name}")
        self.assertEqual(sorted(_c._errors), list(range(-9, 0)))


class Options(unittest.TestCase):
    def configure(self, source=None, n_ranks=1, **keywords):
        return _options.configure(source, keywords, n_ranks)

    def test_keywords(self):
        config = self.configure(stage=3, lr=1e-3, offload_params="cpu", device_memory="1GiB", overlap_comm=False)
        for keyword, text in [("stage", "3"), ("lr", "0.001"), ("offload_params", "cpu"), ("overlap_comm", "off"),
                              ("device_memory", "1073741824"), ("grad_accum", "1"), ("master", "auto")]:
            self.assertEqual(_options.get(config, keyword), text)
        self.assertEqual(_options.get(self.configure(total_num_steps=9, schedule="cosine", warmup=2), "total_num_steps"), "9")

    def test_deepspeed(self):
        source = {"zero_optimization": {"stage": 2}, "train_batch_size": "auto", "gradient_accumulation_steps": 4}
        with tempfile.NamedTemporaryFile("w") as file:
            json.dump(source, file)
            file.flush()
            for given in (source, file.name):
                config = self.configure(given, grad_accum=2)
                self.assertEqual((_options.get(config, "stage"), _options.get(config, "grad_accum")), ("2", "2"))

    def test_refused(self):
        for keywords, error, words in [
            ({"sage": 1}, TypeError, "did you mean stage?"),
            ({"stage": 9}, libzero.ArgumentError, "stage"),
            ({"offload_params": "cpu"}, libzero.ArgumentError, "stage 3"),
            ({"nvme_buffers": 3}, libzero.ArgumentError, "no effect"),
            ({"stage": "auto"}, libzero.UnsupportedError, "auto"),
            ({"lr": "fast"}, ValueError, "lr"),
            ({"source": {"zero_optimisation": {}}}, libzero.ArgumentError, "did you mean zero_optimization?"),
            ({"source": {"fp16": {"enabled": True}}}, libzero.UnsupportedError, "config: fp16"),
            ({"source": "/none/there.json"}, OSError, "/none/there.json"),
        ]:
            with self.assertRaises(error, msg=keywords) as raised:
                self.configure(**keywords)
            self.assertIn(words, str(raised.exception))

    def test_files_as_deepspeed_reads_them(self):
        """Comments, names without prefix, and DeepSpeed's defaults, of which notes tell."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "config.json")
            path.write_text("""{ # of a run
                zero_optimization: {'stage': 3, "max_live_parameters": 0,
                    "offload_optimizer": {"device": "cpu", "pin_memory": false}},
                "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}, // the rest is usual
            }""")
            notes = []
            config = _options.configure(path, {}, 1, notes=notes)
        expected = {"stage": "3", "max_live": "0", "beta2": "0.999", "clip": "1"}
        for keyword, text in expected.items():
            self.assertEqual(_options.get(config, keyword), text)
        said = "\n".join(notes)
        for words in (
            f"{path}: zero_optimization.offload_optimizer.pin_memory false has no effect",
            "gradient_clipping 1.0, betas[1] 0.999",
            "stage3_max_reuse_distance 0 (1000000000)",
            '"auto" in the configuration became: lr',
        ):
            self.assertIn(words, said)

    def test_hugging_face(self):
        """Configurations of its documents are taken as they are, and notes say what "auto" became."""
        params = {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}
        warmup = {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}
        loss_scale = {"loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}
        shared = {
            "fp16": {"enabled": "auto", **loss_scale}, "bf16": {"enabled": "auto"}, "optimizer": {"type": "AdamW", "params": params},
            "scheduler": {"type": "WarmupLR", "params": warmup}, "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
            "steps_per_print": 2000, "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": False}
        on_cpu = {"device": "cpu", "pin_memory": True}
        second = {
            "stage": 2, "offload_optimizer": on_cpu, "allgather_partitions": True, "allgather_bucket_size": 2e8, "overlap_comm": True,
            "reduce_scatter": True, "reduce_bucket_size": 2e8, "contiguous_gradients": True, "round_robin_gradients": True}
        third = {
            "stage": 3, "offload_optimizer": on_cpu, "offload_param": on_cpu, "overlap_comm": True, "contiguous_gradients": True,
            "sub_group_size": 1e9, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True}
        for zero, n_without in ((second, 3), (third, 1)):
            notes = []
            config = _options.configure({**shared, "zero_optimization": zero}, {"lr": 2e-5}, 2, notes=notes)
            for keyword, text in [("stage", str(zero["stage"])), ("lr", "2e-05"), ("dtype", "fp32"), ("train_batch_size", "2")]:
                self.assertEqual(_options.get(config, keyword), text)
            self.assertEqual(sum("has no effect" in note for note in notes), n_without)
            for words in ("lr 2e-05", "beta2 0.999", "dtype fp32", "fp16.enabled false", "micro_batch 1", "grad_accum 1", "clip 1"):
                self.assertIn(words, notes[-1])
            self.assertIn(f"train_batch_size {_options.get(config, 'train_batch_size')}", notes[-1])

    def test_all_messages(self):
        """Of a file that is wrong in two places, both are told."""
        with self.assertRaises(libzero.Error) as raised:
            self.configure({"zero_optimisation": {}, "gradient_clippings": 1})
        self.assertIn("zero_optimization", str(raised.exception))
        self.assertIn("gradient_clipping", str(raised.exception))

    def test_text(self):
        text = libzero.options()
        for keyword in ("stage = 0 (0, 1, 2, 3)", "nvme_path", "DeepSpeed: zero_optimization.stage"):
            self.assertIn(keyword, text)


class Rank(unittest.TestCase):
    def test_alone(self):
        self.assertEqual((libzero.rank(), libzero.world_size()), (0, 1))
        libzero.close()
        self.assertEqual(libzero.rank(), 0)  # it begins again
        libzero.close("it was a test")


class Programs(unittest.TestCase):
    def test_plan(self):
        plan = libzero.plan(model="layers=2,channels=64,heads=2,seq=32,vocab=64", ranks=2, hardware="8x-a100-80g", stage=3,
                            config={"gradient_accumulation_steps": 2}, micro_batch=1)
        self.assertEqual(plan["ranks"], 2)
        self.assertEqual(plan["grad_accum"], 2)
        self.assertTrue(all(p["stage"] == 3 for p in plan["plans"]))
        self.assertIn("optimizer_state", plan["plans"][0]["peak_bytes"]["device"]["tags"])
        self.assertIn("stage", str(plan))
        with self.assertRaisesRegex(libzero.ArgumentError, "no-such-machine"):
            libzero.plan(hardware="no-such-machine")

    def test_plan_of_a_config(self):
        """A model of Hugging Face, by its config.json."""
        shape = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 96,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "rms_norm_eps": 1e-6,
                 "hidden_act": "silu", "tie_word_embeddings": True}
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/config.json", "w") as file:
                json.dump(shape, file)
            plan = libzero.plan(model=folder, ranks=2, hardware="8x-a100-80g", stage=1, micro_batch=1)
        self.assertEqual(plan["model"]["parameters"], 96 * 64 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64) + 64)

    def test_capacity(self):
        found = libzero.capacity(device_memory="64MiB", host_memory="64MiB", stage=0, verify="off", hardware="8x-a100-80g")
        self.assertIn("result", found)

    def test_main(self):
        said = subprocess.run([sys.executable, "-m", "libzero", "plan", "--version"], capture_output=True, text=True)
        self.assertIn("zero-plan", said.stdout)
        self.assertEqual(subprocess.run([sys.executable, "-m", "libzero", "bake"], capture_output=True).returncode, 2)


if __name__ == "__main__":
    unittest.main()
