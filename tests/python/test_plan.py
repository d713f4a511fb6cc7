"""libzero.plan of a module: model states are planned to the byte, as an engine has them, alone and as two processes; what
was recorded of activations says how.

Usage: test_plan.py [NAME...], with PYTHONPATH and LIBZERO_LIBRARY_DIR. Exit code 77: there is no PyTorch.
"""

import os
import sys
import unittest
import xml.etree.ElementTree

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(__file__))

import libzero
import models
from processes import run_as_ranks_first

torch.set_num_threads(1)
models.make("llama")  # imported once
run_as_ranks_first(2)

RANK, N_RANKS = libzero.rank(), libzero.world_size()
NVME = {"nvme_path": os.environ.get("TMPDIR", "/tmp"), "nvme_capacity": "64MiB"}
PLACEMENTS = [
    {"stage": 0},
    {"stage": 1, "offload_optimizer": "cpu"},
    {"stage": 2, "grad_accum": 2},
    {"stage": 3},
    {"stage": 3, "offload_params": "cpu", "offload_optimizer": "cpu", "dtype": "bf16"},
    {"stage": 3, "offload_params": "nvme", "offload_optimizer": "nvme", **NVME},
]


class ModelStates(unittest.TestCase):
    def measured(self, name, placement):
        """Peaks of what an engine holds, after three steps."""
        with libzero.initialize(models.make(name), **placement) as engine:
            batches = models.batches(name, RANK, N_RANKS)
            for _ in range(3 * engine.gradient_accumulation_steps()):
                engine.backward(engine(*next(batches)))
                engine.step()
            return engine.memory()

    def check(self, name):
        for placement in PLACEMENTS:
            if name == "conv" and "dtype" in placement:
                continue  # its images are fp32
            plan = libzero.plan(models.make(name), next(models.batches(name, RANK, N_RANKS)), ranks=N_RANKS, **placement)
            measured = self.measured(name, placement)
            self.assertEqual((plan["n_ranks"], plan["stage"]), (N_RANKS, placement["stage"]))
            has_drives = placement.get("offload_params") == "nvme"
            self.assertEqual("nvme" in plan["tiers"], has_drives)
            for tier in ("device", "host"):
                found = dict(plan["tiers"][tier]["tags"])
                expected = {tag: count["peak"] for tag, count in measured[tier]["tags"].items()}
                if has_drives:  # buffers are as the drive's blocks want them, which the plan does not know
                    found.pop("staging"), expected.pop("staging")
                else:
                    self.assertEqual(plan["tiers"][tier]["peak"], measured[tier]["peak"], (placement, tier))
                self.assertEqual(found, expected, (placement, tier))

    def test_odd(self):
        self.check("odd")

    def test_llama(self):
        self.check("llama")

    def test_conv(self):
        self.check("conv")


class Activations(unittest.TestCase):
    def test_by_hand(self):
        """A chain of linear layers: its peak is where backward begins."""
        model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Tanh()) for _ in range(4)])
        row = 64 * 32 * 4
        for record in ("meta", "real"):
            plan = libzero.plan(model, torch.randn(32, 64), loss=lambda y: y.sum(), record=record)
            self.assertEqual(plan["activations"]["recorded"], record)
            self.assertGreaterEqual(plan["activations"]["peak"], 4 * row)
            self.assertLess(plan["activations"]["peak"], 8 * row + 64 * 64 * 4)

    def test_tied(self):
        """Of a parameter that two modules use, one part of its gradient is there at a time."""
        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = torch.nn.Embedding(4096, 64)

            def forward(self, tokens):
                return (self.embedding(tokens) @ self.embedding.weight.t()).square().mean()

        plan = libzero.plan(Tied(), torch.arange(4), record="real")
        self.assertLess(plan["activations"]["peak"], 1.5 * 4096 * 64 * 4)

    def test_lookup(self):
        """Of an embedding's gradient there are the rows that were looked up, not the table."""
        plan = libzero.plan(torch.nn.Embedding(4096, 64), torch.arange(4), loss=lambda y: y.sum(), record="real")
        self.assertLess(plan["activations"]["peak"], 0.1 * 4096 * 64 * 4)

    def test_meta_and_real(self):
        """The same module with values and without; the module is as it was."""
        for name in ("odd", "conv", "llama"):
            model = models.make(name)
            batch = next(models.batches(name, 0, 1))
            before = {n: v.clone() for n, v in model.state_dict().items()}
            plans = [libzero.plan(model, batch, record=record, stage=3, ranks=2) for record in ("meta", "real", "auto")]
            meta, real = plans[0]["activations"], plans[1]["activations"]
            self.assertEqual((meta["recorded"], real["recorded"], plans[2]["activations"]["recorded"]), ("meta", "real", "meta"))
            self.assertLess(abs(meta["peak"] - real["peak"]), 0.2 * real["peak"])
            self.assertEqual(plans[0]["tiers"], plans[1]["tiers"])
            for n, v in model.state_dict().items():
                self.assertTrue(torch.equal(v, before[n]), n)
            self.assertFalse(any(p.grad is not None for p in model.parameters()))
        with libzero.init():
            empty = models.make("conv")
        self.assertEqual(libzero.plan(empty, batch if name == "conv" else next(models.batches("conv", 0, 1)))["tiers"],
                         libzero.plan(models.make("conv"), next(models.batches("conv", 0, 1)))["tiers"])

    def test_autocast_turned_off(self):
        """As transformers 4 does in rotary embeddings, where the tensors are: PyTorch has no autocast of the meta device."""

        class Exact(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(8, 8)

            def forward(self, x):
                with torch.autocast(device_type=x.device.type, enabled=False):
                    return self.linear(x).square().mean()

        plan = libzero.plan(Exact(), torch.ones(2, 8), record="meta", loss=lambda output: output)
        self.assertEqual(plan["activations"]["recorded"], "meta")

    def test_recomputation(self):
        """It is seen in what is recorded."""
        def make(is_on):
            model = models.make("llama")
            model.model.config.num_hidden_layers = 3
            if is_on:
                model.model.gradient_checkpointing_enable()
            return model

        batch = (torch.zeros(4, 16, dtype=torch.int64),)
        peaks = [libzero.plan(make(is_on), batch)["activations"]["peak"] for is_on in (False, True)]
        self.assertLess(peaks[1], 0.8 * peaks[0])

    def test_real_where_meta_is_not_possible(self):
        class Asks(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 8)

            def forward(self, x):
                return self.layer(x).sum() * int(x.abs().sum() * 0 + 3)

        plan = libzero.plan(Asks(), torch.ones(2, 8))
        self.assertEqual(plan["activations"]["recorded"], "real")
        self.assertIn("meta", plan["activations"]["why"])
        self.assertIn("recorded with real values", str(plan))
        with self.assertRaises(RuntimeError):
            libzero.plan(Asks(), torch.ones(2, 8), record="meta")


class Object(unittest.TestCase):
    def test_table_and_picture(self):
        plan = libzero.plan(models.make("odd"), next(models.batches("odd", 0, 1)), ranks=8, hardware="8x-a100-80g", stage=2)
        self.assertIn("722 parameters, 72 of them frozen; stage 2, rank 0 of 8", str(plan))
        self.assertIn("optimizer state", str(plan))
        self.assertIn("recorded on the meta device", str(plan))
        picture = xml.etree.ElementTree.fromstring(plan._repr_svg_())
        bars = picture.findall("{http://www.w3.org/2000/svg}rect")
        self.assertGreater(len(bars), 5)
        table = xml.etree.ElementTree.fromstring(f"<div>{plan._repr_html_()}</div>")
        self.assertGreater(len(table.findall(".//tr")), 4)

    def test_groups(self):
        """An optimizer, and groups, are those of the module that is planned."""
        model = models.make("mlp")
        batch = next(models.batches("mlp", 0, 1))
        adamw, sgd = (libzero.plan(model, batch, optimizer=kind(model.parameters(), lr=0.1))["tiers"]["device"]["tags"]["optimizer_state"]
                      for kind in (torch.optim.AdamW, torch.optim.SGD))
        self.assertEqual(adamw, sgd * 2)
        grouped = libzero.plan(model, batch, model_parameters=[{"params": list(model.parameters()), "weight_decay": 0.0}])
        self.assertEqual(grouped["tiers"]["device"]["tags"]["optimizer_state"], adamw)

    def test_refused(self):
        model = models.make("mlp")
        batch = next(models.batches("mlp", 0, 1))
        for keywords, words in [
            ({}, "needs batch="), ({"batch": batch, "record": "never"}, "'auto', 'meta' or 'real'"),
            ({"batch": batch, "hardware": "abacus"}, "nor one of .*8x-a100-80g"), ({"batch": batch, "device_memory": "4KiB"}, "device memory"),
            ({"batch": batch, "loss": lambda y: None}, "loss is NoneType"),
        ]:
            with self.assertRaisesRegex(libzero.Error, words):
                libzero.plan(model, **keywords)
        with self.assertRaisesRegex(libzero.ArgumentError, "give loss="):
            libzero.plan(torch.nn.Linear(2, 2), torch.ones(3, 2))


if __name__ == "__main__":
    names = sys.argv[1:] or (["ModelStates"] if N_RANKS > 1 else [])
    unittest.main(argv=[sys.argv[0], *names], verbosity=2 if RANK == 0 else 0)
