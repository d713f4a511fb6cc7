"""What people write around a training loop, and what their tools do with parameters: it works as in plain PyTorch, or an error of libzero's says
what to do. Nothing is lost, and nothing is silently something else.

Usage: test_habits.py [NAME...], with PYTHONPATH and LIBZERO_LIBRARY_DIR. Exit code 77: there is no PyTorch.
"""

import contextlib
import copy
import gc
import io
import os
import signal
import sys
import tempfile
import unittest
import weakref

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(__file__))

import libzero
from processes import run_as_ranks_first
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)
run_as_ranks_first(2)
RANK, N_RANKS = libzero.rank(), libzero.world_size()
HYPER = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.05, "clip": 0.0}
WHOLE = {"stage": 0}
SUMMED = {"stage": 2}
MOVING = {"stage": 3, "offload_params": "cpu", "offload_optimizer": "cpu"}
PLACES = (WHOLE, {"stage": 1}, SUMMED, {"stage": 0, "master": "apart"}, MOVING)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(i):
    """All ranks' are the same: their mean is each."""
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(i))


def torch_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=HYPER["lr"], betas=(0.9, 0.99), eps=1e-8, weight_decay=HYPER["weight_decay"])


class Loops(unittest.TestCase):
    """The weights of plain PyTorch, or a refusal where it is listed."""

    def check(self, plain, ours, make=net, refused=(), n_steps=4, places=PLACES, **options):
        model = make()
        optimizer = torch_optimizer(model)
        for i in range(n_steps):
            plain(model, optimizer, i)
        expected = {n: p.detach().clone() for n, p in model.named_parameters()}
        hashes = {}
        for place in places:
            with libzero.initialize(make(), **{**HYPER, **options, **place}) as engine:
                is_refused = place in refused or (N_RANKS > 1 and "ranks" in refused)
                with self.assertRaises(libzero.Error) if is_refused else contextlib.nullcontext():
                    for i in range(n_steps):
                        ours(engine, i)
                if is_refused:
                    continue
                state = engine.state_dict()
                # With several micro-batches, stages 2 and 3 add up ranks before micro-batches.
                hashes.setdefault(place["stage"] < 2, set()).add(engine.weights_xxh3())
            for name, value in expected.items():
                difference = (state[name] - value).abs().max().item() if value.numel() else 0
                self.assertLess(difference, 1e-5, (name, place))
        for found in hashes.values():
            self.assertEqual(len(found), 1, hashes)

    @staticmethod
    def plain_step(model, optimizer, i):
        model(batch(i)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    @staticmethod
    def our_step(engine, i):
        engine.backward(engine(batch(i)).square().mean())
        engine.step()

    def test_gradients_by_hand(self):
        """Where they are whole, what is done to `grad` counts."""
        elsewhere = ("ranks", {"stage": 1}, SUMMED, MOVING) if N_RANKS > 1 else (SUMMED, MOVING)

        def clip(model):
            return nn.utils.clip_grad_norm_(model.parameters(), 0.01)

        def clip_values(model):
            nn.utils.clip_grad_value_(model.parameters(), 0.001)

        def scale(model):
            for p in model.parameters():
                p.grad.mul_(0.5)

        def drop(model):
            model[0].bias.grad = None

        def replace(model):
            model[2].weight.grad = torch.ones_like(model[2].weight)

        def read(model):
            self.assertGreater(model[2].weight.grad.norm().item(), 0)

        for change in (clip, clip_values, scale, drop, replace, read):
            with self.subTest(change.__name__):
                def plain(model, optimizer, i, change=change):
                    model(batch(i)).square().mean().backward()
                    change(model)
                    optimizer.step()
                    optimizer.zero_grad()

                def ours(engine, i, change=change):
                    engine.backward(engine(batch(i)).square().mean())
                    change(engine.module)
                    engine.step()

                self.check(plain, ours, refused=elsewhere)

    def test_gradients_that_are_not_there(self):
        """They answer what needs no values, and name the engine's own way."""
        with libzero.initialize(net(), **HYPER, **SUMMED) as engine:
            weight = engine.module[0].weight
            self.assertIsNone(weight.grad)
            engine.backward(engine(batch(0)).square().mean())
            self.assertEqual((weight.grad.shape, weight.grad.dtype), (weight.shape, weight.dtype))
            with self.assertRaisesRegex(libzero.StateError, "gradient of parameter 0.weight.*get_global_grad_norm"):
                weight.grad.norm()
            with self.assertRaisesRegex(libzero.UnsupportedError, "register_hook"):
                weight.grad = None
            engine.step()
            self.assertIsNone(weight.grad)

    def test_micro_batches(self):
        """Gradients of what comes before step() add up; zero_grad() drops them."""
        def two(model, optimizer, i):
            model(batch(i)).square().mean().backward()
            model(batch(i + 50)).abs().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        def ours(engine, i):
            engine.backward(engine(batch(i)).square().mean())
            engine.backward(engine(batch(i + 50)).abs().mean())
            engine.step()

        self.check(two, ours)

        def left_out(model, optimizer, i):
            model(batch(i)).square().mean().backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()

        def ours(engine, i):
            engine.backward(engine(batch(i)).square().mean())
            if i % 2:
                engine.step()

        self.check(left_out, ours)

        def dropped(model, optimizer, i):
            model(batch(i + 50)).square().mean().backward()
            optimizer.zero_grad()
            self.plain_step(model, optimizer, i)

        def ours(engine, i):
            engine.backward(engine(batch(i + 50)).square().mean())
            engine.zero_grad()
            self.our_step(engine, i)

        self.check(dropped, ours)

        def retained(model, optimizer, i):
            loss = model(batch(i)).square().mean()
            loss.backward(retain_graph=True)
            (loss * 2).backward()
            optimizer.step()
            optimizer.zero_grad()

        def ours(engine, i):
            loss = engine(batch(i)).square().mean()
            engine.backward(loss, retain_graph=True)
            engine.backward(loss * 2)
            engine.step()

        self.check(retained, ours)

    def test_declared_micro_batches(self):
        """They are averaged, and one more is refused."""
        def plain(model, optimizer, i):
            for k in range(3):
                (model(batch(i + 50 * k)).square().mean() / 3).backward()
            optimizer.step()
            optimizer.zero_grad()

        def ours(engine, i):
            for k in range(3):
                engine.zero_grad()  # of DeepSpeed's loops: nothing is lost
                engine.backward(engine(batch(i + 50 * k)).square().mean())
                self.assertEqual(engine.is_gradient_accumulation_boundary(), k == 2)
                if k < 2:
                    self.assertFalse(engine.step())
            engine.step()

        self.check(plain, ours, grad_accum=3)
        with libzero.initialize(net(), grad_accum=2) as engine:
            for i in range(2):
                engine.backward(engine(batch(i)).square().mean())
            with self.assertRaisesRegex(libzero.StateError, "2 micro-batches are done; call step"):
                engine.backward(engine(batch(3)).square().mean())

    def test_two_backwards_at_updates_in_backward(self):
        with libzero.initialize(net(), update_at="backward", **HYPER, **MOVING) as engine:
            engine.backward(engine(batch(0)).square().mean())
            with self.assertRaisesRegex(libzero.StateError, "gradient_accumulation_steps"):
                engine.backward(engine(batch(1)).square().mean())

    def test_frozen_in_turn(self):
        """What has no gradient is not moved, as PyTorch's optimizers skip it, and goes on with its own count of updates."""
        def freeze(model, i):
            model[0].requires_grad_(i in (0, 1, 4, 5))

        def plain(model, optimizer, i):
            freeze(model, i)
            self.plain_step(model, optimizer, i)

        def ours(engine, i):
            freeze(engine.module, i)
            self.our_step(engine, i)

        self.check(plain, ours, n_steps=7)
        self.check(plain, ours, n_steps=7, places=(MOVING,), update_at="backward")

        def checkpointed(model, x):
            return checkpoint(model, x.requires_grad_(), use_reentrant=True)  # its graph does not show what the loss depends on

        def plain_checkpointed(model, optimizer, i):
            freeze(model, i)
            checkpointed(model, batch(i)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        def ours_checkpointed(engine, i):
            freeze(engine.module, i)
            with engine.in_forward():
                loss = checkpointed(engine.module, batch(i)).square().mean()
            engine.backward(loss)
            engine.step()

        self.check(plain_checkpointed, ours_checkpointed, n_steps=7, places=({"stage": 2}, MOVING), update_at="backward")

    def test_unused_later(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.a, self.aux, self.never = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(3, 3)

            def forward(self, x, with_aux):
                return self.a(x).square().mean() + (self.aux(x).abs().mean() if with_aux else 0)

        def plain(model, optimizer, i):
            model(batch(i), i in (0, 1, 5)).backward()
            optimizer.step()
            optimizer.zero_grad()

        def ours(engine, i):
            engine.backward(engine(batch(i), i in (0, 1, 5)))
            engine.step()

        self.check(plain, ours, make=Two, n_steps=7)

    def test_unused_on_one_rank(self):
        """It has a gradient of zero there, and is updated by the others'."""
        if N_RANKS == 1:
            return
        for place in PLACES[:-1]:  # at stage 3 ranks gather the same
            with libzero.initialize(nn.ModuleDict({"a": nn.Linear(8, 4), "b": nn.Linear(8, 4), "c": nn.Linear(8, 4)}), **HYPER, **place) as engine:
                before = engine.state_dict()
                with engine.in_forward():
                    loss = engine.module["a"](batch(0)).sum() + (engine.module["b"](batch(0)).sum() if RANK == 1 else 0)
                engine.backward(loss)
                engine.step()
                after = engine.state_dict()
            moved = {k: not torch.equal(before[k], after[k]) for k in before}
            self.assertEqual((moved["a.weight"], moved["b.weight"], moved["c.weight"]), (True, True, False), place)

    def test_checkpoint_keeps_counts(self):
        """A parameter that was left out of updates goes on as in a run without the checkpoint."""
        def train(engine, steps):
            for i in steps:
                engine.module[0].requires_grad_(i > 1)
                self.our_step(engine, i)

        hashes = set()
        for place in PLACES:
            with tempfile.TemporaryDirectory() as folder, libzero.initialize(net(), **HYPER, **place) as engine:
                folder = os.path.join(folder, "of") if N_RANKS == 1 else os.environ["ZR_TEST_FOLDER"] + "-counts" + str(PLACES.index(place))
                train(engine, range(3))
                engine.save_checkpoint(folder)
                train(engine, range(3, 5))
                hashes.add(engine.weights_xxh3())
                engine.load_checkpoint(folder)
                train(engine, range(3, 5))
                hashes.add(engine.weights_xxh3())
        self.assertEqual(len(hashes), 1)

    def test_values_by_hand(self):
        """Changes between steps are followed, whatever the way; on several ranks they are refused by name."""
        def fill(model):
            with torch.no_grad():
                model[2].bias.fill_(0.3)

        def fill_data(model):
            model[2].bias.data.fill_(0.3)

        def assign_data(model):
            model[2].bias.data = torch.full((4,), 0.3)

        def multiply(model):
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.9)

        def clamp_data(model):
            for p in model.parameters():
                p.data.clamp_(-0.1, 0.1)

        def load(model):
            state = io.BytesIO()
            torch.save({k: v * 2 for k, v in model.state_dict().items()}, state)
            state.seek(0)
            model.load_state_dict(torch.load(state))

        for change in (fill, fill_data, assign_data, multiply, clamp_data, load):
            with self.subTest(change.__name__):
                def plain(model, optimizer, i, change=change):
                    self.plain_step(model, optimizer, i)
                    if i == 1:
                        change(model)

                def ours(engine, i, change=change):
                    self.our_step(engine, i)
                    if i == 1:
                        change(engine.module)

                places = PLACES[:-1] if change is load else PLACES  # a module's state_dict() is refused at stage 3
                if N_RANKS > 1 and change is load:
                    continue
                # In fp32, `data` of what every rank has whole is the master of its own part.
                refused = () if N_RANKS == 1 else PLACES
                self.check(plain, ours, refused=refused, places=places)

    def test_reads_between(self):
        """Averages, norms, regularisers and copies of parameters that are elsewhere."""
        def ours(engine, i):
            penalty = 0.1 * sum(p.square().sum() for p in engine.module.parameters())
            engine.backward(engine(batch(i)).square().mean() + penalty)
            engine.step()

        def plain(model, optimizer, i):
            (model(batch(i)).square().mean() + 0.1 * sum(p.square().sum() for p in model.parameters())).backward()
            optimizer.step()
            optimizer.zero_grad()

        refused = (MOVING,) if N_RANKS > 1 else ()
        self.check(plain, ours, refused=refused)
        with libzero.initialize(net(), **HYPER, **MOVING) as engine:
            weight = engine.module[0].weight
            self.assertEqual((weight.shape, weight.dtype, weight.numel(), weight.stride()), ((16, 8), torch.float32, 128, (8, 1)))
            self.assertIs(weight.to("cpu"), weight)
            self.assertIsInstance(weight, nn.Parameter)
            self.assertIn("0.weight", repr(weight))
            self.assertEqual(torch.zeros_like(weight).sum(), 0)
            other = net()
            calls = [lambda: weight.norm(), lambda: weight + 1, lambda: nn.functional.linear(batch(0), weight), lambda: weight.tolist(),
                     lambda: other[0].weight.data.copy_(weight.data), lambda: weight.detach().clone(), lambda: copy.deepcopy(weight),
                     lambda: weight.data.abs().max(), lambda: nn.utils.parameters_to_vector(engine.module.parameters())]
            for call in calls:
                if N_RANKS > 1:
                    with self.assertRaisesRegex(libzero.StateError, "parameter 0.weight.*gathered"):
                        call()
                else:
                    self.assertIsNotNone(call())
            if N_RANKS == 1:
                self.assertTrue(torch.equal(other[0].weight, engine.state_dict()["0.weight"]))
                self.assertFalse(copy.deepcopy(weight).isnan().any())

    def test_hooks_of_parameters(self):
        """They get the whole gradient once, and what they return is used."""
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.table, self.layer = nn.Embedding(10, 8), nn.Linear(8, 8)
                self.head = nn.Linear(8, 10, bias=False)
                self.head.weight = self.table.weight
                self.seen = []
                for p in (self.table.weight, self.layer.weight):
                    p.register_hook(lambda g: self.seen.append(g.norm().item()) or g * 0.5)
                    p.register_post_accumulate_grad_hook(lambda p: self.seen.append(p.grad.norm().item()))

            def forward(self, tokens):
                return nn.functional.cross_entropy(self.head(self.layer(self.layer(self.table(tokens)))), tokens)

        tokens = torch.arange(8)
        seen = []

        def plain(model, optimizer, i):
            model(tokens).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(model.seen[:])

        def ours(engine, i):
            engine.backward(engine(tokens))
            engine.step()
            self.assertEqual(len(engine.module.seen), len(seen[i]))
            for a, b in zip(engine.module.seen, seen[i]):
                self.assertLess(abs(a - b), 1e-5)

        self.check(plain, ours, make=Twice)


class Block(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(size).requires_grad_(False), nn.Linear(size, size)
        self.frozen = nn.Linear(size, size).requires_grad_(False)

    def forward(self, x):
        return x + self.linear(self.norm(x)) + self.frozen(x).tanh()


class Recompute(torch.autograd.Function):
    """A checkpointing function of another tool's kind: its backward runs a backward of its own."""

    @staticmethod
    def forward(ctx, block, x):
        ctx.block = block
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


class Keeps(torch.autograd.Function):
    """Keeps a parameter itself, without autograd's knowledge."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.x, ctx.weight = x, weight
        return x @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.weight, gradient.t() @ ctx.x


def run_plain(block, x):
    return block(x)


def run_reentrant(block, x):
    return checkpoint(block, x, use_reentrant=True)


def run_checkpointed(block, x):
    return checkpoint(block, x, use_reentrant=False)


def run_own(block, x):
    return Recompute.apply(block, x)


def run_saved(block, x):
    with torch.autograd.graph.save_on_cpu():
        return block(x)


def run_nested(block, x):
    return checkpoint(run_saved, block, x, use_reentrant=False)


def run_kept(block, x):
    return Keeps.apply(block(x), block.linear.weight)


class Lifetimes(unittest.TestCase):
    """Whatever reads a parameter's memory when its unit would have been released."""

    def make(self, run):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.first, self.blocks = nn.Linear(8, 8), nn.ModuleList(Block() for _ in range(3))
                self.every = [self.first.weight]

            def forward(self, x):
                x = self.first(x) + self.every[0].sum()
                for block in self.blocks:
                    x = run(block, x)
                return x.square().mean()

        return Net()

    def test_recomputed_and_kept(self):
        for run in (run_plain, run_reentrant, run_checkpointed, run_own, run_saved, run_nested, run_kept):
            model = self.make(run)
            optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, betas=(0.9, 0.99), weight_decay=0.05)
            losses = []
            for i in range(3):
                loss = model(batch(i))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            hashes = set()
            for place in PLACES:
                with libzero.initialize(self.make(run), **HYPER, **place) as engine:
                    for i in range(3):
                        loss = engine(batch(i))
                        engine.backward(loss)
                        self.assertTrue(engine.step(), (run.__name__, place))
                        self.assertLess(abs(loss.item() - losses[i]), 1e-4, (run.__name__, place))
                    hashes.add(engine.weights_xxh3())
            self.assertEqual(len(hashes), 1, run.__name__)

    def test_frozen_are_read_last(self):
        """A unit's last gradient may come before its frozen weights are read, as LoRA's do."""
        class Lora(nn.Module):
            def __init__(self):
                super().__init__()
                self.base = nn.Linear(8, 8).requires_grad_(False)
                self.a, self.b = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

            def forward(self, x):
                return self.base(x) + self.b(self.a(x))

        def make():
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(8, 8), *(nn.Sequential(Lora(), nn.ReLU(inplace=True)) for _ in range(3)))

        def plain(model, optimizer, i):
            Loops.plain_step(model, optimizer, i)

        Loops().check(plain, Loops.our_step, make=make, places=(SUMMED, {"stage": 3}, MOVING), update_at="backward")

    def test_memory_is_given_back(self):
        """Units that stayed for somebody are released when he is done."""
        with libzero.initialize(self.make(run_checkpointed), **HYPER, **MOVING) as engine:
            for i in range(3):
                engine.backward(engine(batch(i)))
                self.assertEqual(engine._lingering, [])
                engine.step()

    def test_views_that_outlive_a_step(self):
        with libzero.initialize(self.make(run_plain), **HYPER, **MOVING) as engine:
            kept = []
            with engine.in_forward():
                loss = engine.module(batch(0))
                kept.append(engine.module.first.weight.detach().t())
            engine.backward(loss)
            engine.step()
            with self.assertRaisesRegex(RuntimeError, "parameter first.weight is used after"):
                kept[0].sum()
            engine.backward(engine(batch(1)))
            self.assertTrue(engine.step())

    def test_after_close_and_load(self):
        """Tensors on the library's memory say why they have no values any more."""
        for end in ("close", "load"):
            with libzero.initialize(net(), **HYPER) as engine:
                folder = tempfile.mkdtemp() if N_RANKS == 1 else os.environ["ZR_TEST_FOLDER"] + "-after"
                state, view = engine.module.state_dict(), engine.module[0].weight.detach()[0]
                loss = engine(batch(0)).sum()
                if end == "close":
                    engine.close()
                else:
                    engine.save_checkpoint(folder)
                    engine.load_checkpoint(folder)
                for call in (view.sum, state["2.bias"].clone, loss.backward):
                    with self.assertRaisesRegex(RuntimeError, "engine that had them was closed, or has loaded|call engine.backward"):
                        call()

    def test_refused_checkpoint(self):
        """It leaves the engine as it is."""
        folder = tempfile.mkdtemp() if N_RANKS == 1 else os.environ["ZR_TEST_FOLDER"] + "-refused"
        with libzero.initialize(net(), **HYPER) as engine:
            Loops.our_step(engine, 0)
            engine.save_checkpoint(folder)
        others = [(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)), {}, "of a different model|no parameter"),
                  (nn.Sequential(nn.Linear(8, 17), nn.ReLU(), nn.Linear(17, 4)), {}, "0.weight has shape"),
                  (net(), {"optimizer": "lion", "beta2": 0.9, "epsilon": None}, "optimizer")]
        for model, options, words in others:
            for place in (WHOLE, MOVING):
                with libzero.initialize(model, **{**HYPER, **options, **place}) as engine:
                    Loops.our_step(engine, 0)
                    before = engine.weights_xxh3()
                    with self.assertRaisesRegex(libzero.ArgumentError, words):
                        engine.load_checkpoint(folder)
                    self.assertEqual(engine.weights_xxh3(), before)
                    Loops.our_step(engine, 1)
                model = copy.deepcopy(model) if False else type(model)(*[type(m)(m.in_features, m.out_features) if isinstance(m, nn.Linear) else m for m in model])

    def test_copies(self):
        """Copies of a module have no engine."""
        from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

        for place in (WHOLE, MOVING):
            with libzero.initialize(net(), **HYPER, **place) as engine:
                with engine.gathered():
                    other = copy.deepcopy(engine.module)
                    average = AveragedModel(engine.module, multi_avg_fn=get_ema_multi_avg_fn(0.5))
                    file = io.BytesIO()
                    torch.save(engine.module, file)
                file.seek(0)
                loaded = torch.load(file, weights_only=False)
                Loops.our_step(engine, 0)
                if place is WHOLE or N_RANKS == 1:
                    average.update_parameters(engine.module)
                    self.assertFalse(any(p.isnan().any() for p in average.parameters()))
                else:
                    with self.assertRaises(libzero.StateError):
                        average.update_parameters(engine.module)
                for module in (other, loaded):
                    self.assertIs(type(module[0].weight), nn.Parameter)
                    module(batch(0)).sum().backward()
                    self.assertFalse(module[0].weight.grad.isnan().any())

    def test_dropped_engines(self):
        """They are freed, and the module keeps values that it has; one that is open is not replaced."""
        model = net()
        engine = libzero.initialize(model, **HYPER)
        with self.assertRaisesRegex(libzero.ArgumentError, "belongs to an engine that is open"):
            libzero.initialize(model)
        Loops.our_step(engine, 0)
        expected, reference = engine.state_dict(), weakref.ref(engine)
        del engine
        gc.collect()
        self.assertIsNone(reference())
        self.assertTrue(torch.equal(model[0].weight, expected["0.weight"]))
        with libzero.initialize(model, **HYPER) as engine:
            Loops.our_step(engine, 1)

    def test_interrupts(self):
        """After Ctrl-C in forward, in backward or in step the engine goes on."""
        class Interrupts(nn.Module):
            at = None

            def __init__(self):
                super().__init__()
                self.net = net()

            def forward(self, x):
                y = self.net(x)
                if self.at == "forward":
                    raise KeyboardInterrupt
                if self.at == "backward":
                    y.register_hook(lambda g: (_ for _ in ()).throw(KeyboardInterrupt()))
                return y

        for place in (WHOLE, SUMMED, MOVING):
            with libzero.initialize(Interrupts(), **HYPER, **place) as engine:
                for at in ("forward", "backward"):
                    engine.module.at = at
                    with self.assertRaises(KeyboardInterrupt):
                        engine.backward(engine(batch(0)).square().mean())
                    engine.module.at = None
                    Loops.our_step(engine, 0)
                    engine(batch(0))
                    engine.state_dict()  # between steps, although a forward has begun one
                engine.backward(engine(batch(1)).square().mean())
                before = signal.signal(signal.SIGINT, signal.default_int_handler)
                step = libzero._c.lib.zr_runtime_step
                try:
                    def interrupted(*arguments):
                        status = step(*arguments)
                        signal.raise_signal(signal.SIGINT)
                        return status

                    libzero._c.lib.zr_runtime_step = interrupted
                    with self.assertRaises(KeyboardInterrupt):
                        engine.step()
                finally:
                    libzero._c.lib.zr_runtime_step = step
                    signal.signal(signal.SIGINT, before)
                self.assertEqual(engine.global_steps, 3)
                Loops.our_step(engine, 2)

    def test_skipped_in_a_row(self):
        with libzero.initialize(net(), **HYPER) as engine, self.assertRaisesRegex(libzero.StateError, "5 steps in a row"):
            for i in range(6):
                engine.backward((engine(batch(i)) * float("nan")).mean())
                engine.step()


class Modules(unittest.TestCase):
    """What cannot be trained is refused by name, with the way out."""

    def test_refused(self):
        a, b = nn.Linear(6, 4, bias=False), nn.Linear(4, 6, bias=False)
        b.weight = nn.Parameter(a.weight.data.t())
        for model, words in [
            (nn.Sequential(a, b), "0.weight and 1.weight share memory.*b.weight = a.weight"),
            (torch.jit.script(net()), "torch.jit.script"),
            (nn.Sequential(nn.Embedding(4, 4, sparse=True)), "sparse=False"),
            (nn.Sequential(nn.Linear(4, 4, dtype=torch.complex64)), "view_as_real"),
            (net().double(), "float64.*convert the model"),
        ]:
            with self.assertRaisesRegex(libzero.Error, words):
                libzero.initialize(model)

    def test_replaced_parameters(self):
        for place in (WHOLE, MOVING):
            with libzero.initialize(net(), **HYPER, **place) as engine:
                engine.module[0].bias = nn.Parameter(torch.zeros(16), requires_grad=False)
                with self.assertRaisesRegex(libzero.UnsupportedError, "parameter 0.bias of the module was replaced"):
                    Loops.our_step(engine, 0)

    def test_statistics_in_bf16(self):
        make = [lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)))]
        for model in (f() for f in make):
            with libzero.initialize(model, dtype="bf16", **HYPER) as engine:
                engine.backward(engine(batch(0).bfloat16()).square().mean())
                self.assertTrue(engine.step())

    def test_buffers_in_bf16(self):
        """Those of the parameters' dtype follow them; what is not saved, and models of bf16, stay as they are."""
        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 8)
                self.register_buffer("scale", torch.full((8,), 0.5))
                self.register_buffer("frequencies", torch.ones(8), persistent=False)
                self.register_buffer("count", torch.tensor(0))

            def forward(self, x):
                return self.linear(x) * self.scale

        for make, expected in ((Scaled, torch.bfloat16), (lambda: Scaled().bfloat16(), torch.bfloat16)):
            with libzero.initialize(make(), dtype="bf16", **HYPER) as engine:
                loss = engine(batch(0).bfloat16()).square().mean()
                self.assertEqual((loss.dtype, engine.module.scale.dtype, engine.module.count.dtype), (expected, expected, torch.int64))
                engine.backward(loss)
                self.assertTrue(engine.step())
                lowered = engine.module.frequencies.dtype == torch.bfloat16
                self.assertEqual(lowered, make is not Scaled)
        model = Scaled().bfloat16()
        model.scale = model.scale.float()
        with libzero.initialize(model, dtype="bf16", **HYPER) as engine:
            self.assertEqual(engine.module.scale.dtype, torch.float32)

    def test_values_by_hand_in_bf16(self):
        """They are what they were set to, at every place the same."""
        if N_RANKS > 1:
            return
        hashes = set()
        for place in (*PLACES, {"stage": 0, "master": "split"}, {"stage": 3, "offload_params": "cpu"}):
            with libzero.initialize(net(), dtype="bf16", **HYPER, **place) as engine:
                for i in range(3):
                    engine.backward(engine(batch(i).bfloat16()).float().square().mean())
                    engine.step()
                    with torch.no_grad():
                        engine.module[0].bias.fill_(0.1)
                        engine.module[2].weight.clamp_(-0.2, 0.2)
                    self.assertTrue((engine.state_dict()["0.bias"] == torch.tensor(0.1).bfloat16().float()).all(), place)
                hashes.add(engine.weights_xxh3())
        self.assertEqual(len(hashes), 1)

    def test_units_by_pattern(self):
        class Deep(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8))) for _ in range(2))

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x

        with libzero.initialize(Deep(), units=["layers.*"], **HYPER, **MOVING) as engine:
            self.assertEqual([u.name for u in engine._units], ["layers.0", "layers.1"])
            Loops.our_step(engine, 0)

    def test_embedding_within_checkpoint(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.table, self.layer = nn.Embedding(10, 8), nn.Linear(8, 8)

            def forward(self, tokens):
                return self.layer(checkpoint(self.table, tokens, use_reentrant=False)).square().mean()

        hashes = set()
        for place in PLACES:
            with libzero.initialize(Net(), **HYPER, **place) as engine:
                for _ in range(2):
                    engine.backward(engine(torch.arange(6)))
                    self.assertTrue(engine.step())
                hashes.add(engine.weights_xxh3())
        self.assertEqual(len(hashes), 1)


if __name__ == "__main__":
    unittest.main()
