"""libzero.initialize: a module trains as with plain torch, at every stage and placement, alone and as two processes,
which end in the same bits.

Usage: test_engine.py [PATTERN...], with PYTHONPATH and LIBZERO_LIBRARY_DIR. Exit code 77: there is no PyTorch.
"""

import os
import sys
import unittest

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

os.environ["LIBZERO_POISON"] = "1"  # memory that is given back is overwritten
sys.path.insert(0, os.path.dirname(__file__))

import libzero
import models
from processes import run_as_ranks

torch.set_num_threads(1)
N_STEPS = 20
HYPER = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.05, "epsilon": 1e-5, "clip": 0.5}
IS_STARTER = "WORLD_SIZE" not in os.environ
RANK, N_RANKS = libzero.rank(), libzero.world_size()

NVME = {"nvme_path": os.environ.get("TMPDIR", "/tmp"), "nvme_capacity": "64MiB"}
PLACEMENTS = [
    {"stage": 0},
    {"stage": 1},
    {"stage": 2},
    {"stage": 3},
    {"stage": 0, "offload_optimizer": "cpu"},
    {"stage": 1, "offload_optimizer": "nvme", **NVME},
    {"stage": 2, "offload_optimizer": "cpu"},
    {"stage": 3, "offload_optimizer": "nvme", **NVME},
    {"stage": 3, "offload_params": "cpu"},
    {"stage": 3, "offload_optimizer": "nvme", "offload_params": "nvme", **NVME},
]


def train_plain(name, n_steps=N_STEPS, accum=1):
    """What torch does with all ranks' batches: losses, and the module."""
    model = models.make(name)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=HYPER["lr"], betas=(HYPER["beta1"], HYPER["beta2"]), eps=1e-5,
        weight_decay=HYPER["weight_decay"])
    losses = []
    parts = [models.batches(name, r, N_RANKS) for r in range(N_RANKS)]
    for _ in range(n_steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(accum):
            for part in parts:
                loss = model(*next(part)) / (accum * N_RANKS)
                loss.backward()
                total += loss.item()
        # Parameters without a gradient are decayed here, as if it were zero.
        for p in model.parameters():
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)
        torch.nn.utils.clip_grad_norm_(model.parameters(), HYPER["clip"])
        optimizer.step()
        losses.append(total)
    return losses, model


def train_engine(engine, name, n_steps=N_STEPS, accum=1):
    losses = []
    batches = models.batches(name, RANK, N_RANKS)
    for _ in range(n_steps):
        total = 0.0
        for _ in range(accum):
            loss = engine(*next(batches))
            engine.backward(loss)
            engine.step()
            total += loss.item() / accum
        losses.append(engine.average(total))
    return losses


class Parity(unittest.TestCase):
    """Losses and weights of 20 steps are torch's to 1e-5, and equal bits at every stage and placement."""

    def check(self, name):
        expected, plain = train_plain(name)
        hashes = {}
        for placement in PLACEMENTS:
            with libzero.initialize(models.make(name), **HYPER, **placement) as engine:
                losses = train_engine(engine, name)
                state = engine.state_dict()
                hashes[str(placement)] = engine.weights_xxh3()
            worst = max(abs(a - b) for a, b in zip(losses, expected))
            self.assertLess(worst, 1e-5, placement)
            self.assertGreater(expected[0] - expected[-1], 0.01, "it learns")
            for key, value in plain.state_dict().items():
                if value.numel():
                    self.assertLess((state[key] - value).abs().max().item(), 1e-5, (key, placement))
        self.assertEqual(len(set(hashes.values())), 1, hashes)

    def test_mlp(self):
        self.check("mlp")

    def test_conv(self):
        self.check("conv")

    def test_odd(self):
        self.check("odd")

    def test_gpt2(self):
        self.check("gpt2")

    def test_llama(self):
        self.check("llama")


if __name__ == "__main__":
    if IS_STARTER:
        failed = run_as_ranks(2, [sys.executable, *sys.argv])
        if failed:
            sys.exit(failed)
    unittest.main(verbosity=2 if RANK == 0 else 0)
