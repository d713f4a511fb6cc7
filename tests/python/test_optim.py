"""libzero.optim: optimizers of PyTorch with their state in host memory or on drives do what torch.optim's do.

Usage: test_optim.py [NAME...], with PYTHONPATH and LIBZERO_LIBRARY_DIR. Exit code 77: there is no PyTorch.
"""

import copy
import gc
import io
import os
import pickle
import sys
import tempfile
import unittest

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(__file__))

import libzero
import models
from libzero import optim

torch.set_num_threads(1)
FOLDER = tempfile.TemporaryDirectory(prefix="libzero-")
NVME = {"offload": "nvme", "nvme_path": FOLDER.name, "nvme_capacity": "64MiB"}
PLACES = [{}, NVME, {**NVME, "state_in_host": 1500, "sub_group": 1024, "nvme_buffers": 1}]


class PlainLion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al., in torch."""

    def __init__(self, params, lr, betas, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                beta1, beta2 = group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((beta1 * m + (1 - beta1) * p.grad).sign(), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - beta2)


#: Ours, torch's, and what both are given.
KINDS = {
    "adamw": (optim.AdamW, torch.optim.AdamW, {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-5, "weight_decay": 0.05}),
    "lion": (optim.Lion, PlainLion, {"lr": 1e-3, "betas": (0.875, 0.96875), "weight_decay": 0.05}),
    "sgd": (optim.SGD, torch.optim.SGD, {"lr": 1e-1, "momentum": 0.9, "weight_decay": 0.05}),
    "nesterov": (optim.SGD, torch.optim.SGD, {"lr": 1e-1, "momentum": 0.9, "nesterov": True}),
    "plain": (optim.SGD, torch.optim.SGD, {"lr": 1e-1}),
}


def groups_of(model):
    """Two, of which one has its own rate and no decay."""
    return [{"params": [p for p in model.parameters() if p.dim() > 1]},
            {"params": [p for p in model.parameters() if p.dim() < 2], "lr": 3e-3, "weight_decay": 0.0}]


def train(model, optimizer, n_steps, name="mlp", seed=1):
    """An existing loop: accumulation, clipping, a scheduler. Losses."""
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
    batches, losses = models.batches(name, 0, 1, seed), []
    for step in range(n_steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for _ in range(2):
            loss = model(*next(batches)) / 2
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


class Parity(unittest.TestCase):
    def check_near(self, model, expected, most=1e-6):
        for (name, p), q in zip(model.named_parameters(), expected.parameters()):
            if p.numel():
                self.assertLess((p - q).abs().max().item(), most, name)

    def test_as_torch(self):
        for ours, plain, keywords in KINDS.values():
            expected = models.make("mlp")
            losses = train(expected, plain(groups_of(expected), **keywords), 20)
            self.assertGreater(losses[0] - losses[-1], 0.01)
            bits = set()
            for place in PLACES:
                with self.subTest(ours=ours, **place):
                    model = models.make("mlp")
                    optimizer = ours(groups_of(model), **keywords, **place)
                    self.assertLess(max(abs(a - b) for a, b in zip(train(model, optimizer, 20), losses, strict=True)), 1e-6)
                    self.check_near(model, expected)
                    bits.add(tuple(p.detach().double().sum().item() for p in model.parameters()))
            self.assertEqual(len(bits), 1)

    def test_odd_parameters(self):
        """Frozen, tied, unused, scalar, and of no elements."""
        expected, model = models.make("odd"), models.make("odd")
        losses = train(expected, torch.optim.AdamW(expected.parameters(), lr=1e-2), 10, "odd")
        for place in PLACES[:2]:
            model = models.make("odd")
            self.assertLess(max(abs(a - b) for a, b in zip(train(model, optim.AdamW(model.parameters(), lr=1e-2, **place), 10, "odd"), losses)), 1e-6)
            self.check_near(model, expected)
            self.assertTrue(torch.equal(model.unused.weight, models.make("odd").unused.weight))

    def test_bf16_has_masters(self):
        """Small updates add up, which they do not in bf16 alone."""
        gradient, sums = torch.ones(3000), set()
        for place in PLACES:
            p = torch.nn.Parameter(torch.ones(3000, dtype=torch.bfloat16))
            optimizer = optim.SGD([p], lr=1e-4, **place)
            plain = torch.nn.Parameter(p.detach().clone())
            for _ in range(100):
                p.grad = gradient.to(torch.bfloat16)
                optimizer.step()
                with torch.no_grad():
                    plain -= 1e-4 * gradient.to(torch.bfloat16)
            self.assertTrue(torch.equal(plain, torch.ones_like(plain)))
            self.assertTrue(torch.equal(p, torch.full_like(p, 0.99)))
            self.assertLess((optimizer.state_dict()["state"][0]["master"] - 0.99).abs().max().item(), 1e-5)
            sums.add(p.detach().double().sum().item())
        self.assertEqual(len(sums), 1)

    def test_closure(self):
        model = models.make("mlp")
        optimizer, batch = optim.SGD(model.parameters(), lr=0.1), next(models.batches("mlp", 0, 1))

        def closure():
            optimizer.zero_grad()
            loss = model(*batch)
            loss.backward()
            return loss

        self.assertGreater(optimizer.step(closure).item(), optimizer.step(closure).item())

    def test_autograd_sees_the_change(self):
        """A backward over what was saved before the step is refused, as with torch's."""
        model = models.make("mlp")
        optimizer, batch = optim.SGD(model.parameters(), lr=0.1), next(models.batches("mlp", 0, 1))
        loss = model(*batch)
        loss.backward(retain_graph=True)
        optimizer.step()
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()


class States(unittest.TestCase):
    def test_go_on(self):
        """From a state_dict of ours or torch's, in ours or torch's, as if nothing had been."""
        for ours, plain, keywords in (KINDS["adamw"], KINDS["sgd"]):
            whole = models.make("mlp")
            optimizer = plain(groups_of(whole), **keywords)
            train(whole, optimizer, 4)
            for group, lr in zip(optimizer.param_groups, (keywords["lr"], 3e-3)):
                group["lr"] = group["initial_lr"] = lr
            saved, values = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(whole.state_dict())
            train(whole, optimizer, 4, seed=2)
            for place in PLACES:
                states = [saved]
                for _ in range(2):  # torch's; and ours, made of it
                    model = models.make("mlp")
                    model.load_state_dict(values)
                    optimizer = ours(groups_of(model), **keywords, **place)
                    optimizer.load_state_dict(states[-1])
                    states.append(optimizer.state_dict())
                    for number, state in saved["state"].items():
                        for key, value in state.items():
                            self.assertTrue(torch.equal(torch.as_tensor(value), torch.as_tensor(states[-1]["state"][number][key])), key)
                    train(model, optimizer, 4, seed=2)
                    for p, q in zip(model.parameters(), whole.parameters()):
                        self.assertLess((p - q).abs().max().item(), 1e-6)
                model = models.make("mlp")
                model.load_state_dict(values)
                back = plain(groups_of(model), **keywords)
                back.load_state_dict(states[-1])
                train(model, back, 4, seed=2)
                for p, q in zip(model.parameters(), whole.parameters()):
                    self.assertTrue(torch.equal(p, q))

    def test_copies(self):
        """By deepcopy, pickle and torch.save: with a state of their own, of the same values."""
        for name, (kind, _, keywords) in KINDS.items():
            for dtype, place in ((torch.float32, {}), (torch.bfloat16, PLACES[-1])):
                model = models.make("mlp").to(dtype)
                optimizer = kind(groups_of(model), **keywords, **place)
                batch = tuple(t.to(dtype) for t in next(models.batches("mlp", 0, 1)))

                def step(model, optimizer, batch=batch):
                    optimizer.zero_grad()
                    model(*batch).backward()
                    optimizer.step()

                step(model, optimizer)
                file = io.BytesIO()
                torch.save((model, optimizer), file)
                file.seek(0)
                copies = [copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer))),
                          torch.load(file, weights_only=False)]
                for _ in range(2):
                    step(model, optimizer)
                optimizer.close()
                with self.assertRaisesRegex(libzero.StateError, "closed"):
                    copy.deepcopy(optimizer)
                for other, of_other in copies:
                    for _ in range(2):
                        step(other, of_other)
                    for a, b in zip(model.parameters(), other.parameters()):
                        self.assertTrue(torch.equal(a, b), name)
                    of_other.close()

    def test_saved_as_a_file(self):
        model = models.make("mlp")
        optimizer = optim.AdamW(model.parameters())
        self.assertEqual(optimizer.state_dict()["state"], {})  # no step yet, as torch's
        train(model, optimizer, 1)
        with tempfile.TemporaryFile() as file:
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer.load_state_dict(torch.load(file, weights_only=True))

    def test_refused(self):
        model = models.make("mlp")
        optimizer = optim.AdamW(model.parameters())
        train(model, optimizer, 1)
        state = optimizer.state_dict()
        with self.assertRaisesRegex(ValueError, "group"):
            optim.AdamW(list(model.parameters())[:2]).load_state_dict(state)
        state["state"][0]["exp_avg"] = torch.ones(2)
        with self.assertRaisesRegex(libzero.ArgumentError, "shape"):
            optimizer.load_state_dict(state)


class Memory(unittest.TestCase):
    def test_budgets(self):
        p = torch.nn.Parameter(torch.zeros(1 << 20))
        optimizer = optim.AdamW([p])
        self.assertLess(abs(optimizer.memory()["live"] - (8 << 20)), 1 << 19)
        optimizer = optim.AdamW([p], **NVME, sub_group=16384, host_memory="2MiB")
        p.grad = torch.ones_like(p)
        optimizer.step()
        self.assertLess(optimizer.memory()["peak"], 2 << 20)
        with self.assertRaisesRegex(libzero.BudgetError, "host memory.*--host-memory"):
            optim.AdamW([p], host_memory="1MiB")
        with self.assertRaisesRegex(libzero.BudgetError, "--nvme-capacity"):
            optim.AdamW([p], **{**NVME, "nvme_capacity": "1MiB"})

    def test_given_back(self):
        """Room on drives goes with the optimizer, or when it is closed."""
        p = torch.nn.Parameter(torch.zeros(1 << 20))
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            optim.AdamW([p], **NVME)
            gc.collect()
            self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        optimizer = optim.AdamW([p], **NVME)
        optimizer.close()
        optimizer.close()
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        p.grad = torch.ones_like(p)
        with self.assertRaisesRegex(libzero.StateError, "closed"):
            optimizer.step()


class Refused(unittest.TestCase):
    def test_when_made(self):
        p = torch.nn.Parameter(torch.zeros(4, 4))
        for make, error, words in [
            (lambda: optim.AdamW([torch.zeros(2)]), libzero.ArgumentError, "no parameter requires"),
            (lambda: optim.AdamW([torch.nn.Parameter(torch.zeros(2, dtype=torch.float16))]), libzero.UnsupportedError, "float16"),
            (lambda: optim.AdamW([p, torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))]), libzero.UnsupportedError, "an optimizer for each"),
            (lambda: optim.AdamW([torch.nn.Parameter(torch.zeros(4, 4).t()[1:])]), libzero.UnsupportedError, "not contiguous"),
            (lambda: optim.AdamW([torch.nn.Parameter(torch.zeros(2, device="meta"))]), libzero.UnsupportedError, "is on meta"),
            (lambda: optim.AdamW([p], offload="moon"), libzero.ArgumentError, "offload='moon'"),
            (lambda: optim.AdamW([p], offload="nvme"), libzero.Error, "nvme.path|nvme-path"),
            (lambda: optim.AdamW([p], stage=3), TypeError, "unknown option 'stage'"),
            (lambda: optim.AdamW([p], nvme_buffers=3), libzero.ArgumentError, "no effect"),
            (lambda: optim.AdamW([p], amsgrad=True), libzero.UnsupportedError, "amsgrad=True"),
        ]:
            with self.assertRaisesRegex(error, words):
                make()

    def test_later(self):
        p, q = (torch.nn.Parameter(torch.zeros(4)) for _ in range(2))
        q.requires_grad_(False)
        optimizer = optim.AdamW([p, q], lr=torch.tensor(0.1), weight_decay=torch.tensor(0.0))
        for use in (lambda: optimizer.state[p], optimizer.state.clear):
            with self.assertRaisesRegex(libzero.StateError, "optimizer.state cannot be .*load_state_dict"):
                use()
        with self.assertRaisesRegex(libzero.UnsupportedError, "cannot be added"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(4))]})
        q.grad = torch.ones(4)
        with self.assertRaisesRegex(libzero.UnsupportedError, "did not require gradients"):
            optimizer.step()
        q.grad = None
        embedding = torch.nn.Embedding(4, 4, sparse=True)
        optimizer = optim.AdamW(embedding.parameters())
        embedding(torch.tensor([1])).sum().backward()
        with self.assertRaisesRegex(libzero.UnsupportedError, "sparse"):
            optimizer.step()
        optimizer = optim.AdamW([p])
        p.grad = torch.ones(4)
        p.data = p.data.double()
        with self.assertRaisesRegex(libzero.UnsupportedError, "converted"):
            optimizer.step()


if __name__ == "__main__":
    unittest.main(verbosity=2)
