"""engine.optimizer: a torch.optim.Optimizer of any engine, whose groups schedulers and scripts
change; and the optimizer's options: PyTorch's, or DeepSpeed's where a configuration is given.
Alone, and as two processes.

Usage: test_optimizer.py [NAME...], with PYTHONPATH and LIBZERO_LIBRARY_DIR. Exit code 77: there is
no PyTorch.
"""

import copy
import os
import pickle
import sys
import unittest
import warnings

try:
    import torch
    from torch.optim import SGD, Adam, AdamW, lr_scheduler
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(__file__))

import libzero
import models
from processes import run_as_ranks_first

torch.set_num_threads(1)
run_as_ranks_first(2)
RANK, N_RANKS = libzero.rank(), libzero.world_size()

PLACES = [
    {"stage": 0},
    {"stage": 2, "update_at": "backward"},
    {"stage": 3, "offload_params": "cpu", "offload_optimizer": "cpu"},
]
WARMUP = {
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_type": "linear"}},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
}


def make():
    return models.make("mlp")


def groups_of(model):
    """Two, that have nothing in common."""
    return [
        {
            "params": [p for p in model.parameters() if p.dim() > 1],
            "betas": (0.5, 0.9),
            "eps": 1e-4,
        },
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.3, "lr": 3e-3},
    ]


def halves_of(model):
    params = list(model.parameters())
    return [
        {"params": params[:2], "momentum": 0.5},
        {"params": params[2:], "momentum": 0.8, "nesterov": True},
    ]


def train(engine, n_steps=1, change=None, step=None):
    batches = models.batches("mlp", RANK, N_RANKS)
    for i in range(n_steps):
        if change is not None:
            change(engine.optimizer, i)
        engine.backward(engine(*next(batches)))
        engine.step() if step is None else step(engine)


def train_plain(optimizer, model, n_steps, scheduler=None, change=None):
    parts = [models.batches("mlp", r, N_RANKS) for r in range(N_RANKS)]
    for i in range(n_steps):
        if change is not None:
            change(optimizer, i)
        optimizer.zero_grad()
        for part in parts:
            (model(*next(part)) / N_RANKS).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


class Case(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("error")  # schedulers warn of steps that they do not see

    def check_weights(self, engine, plain, what):
        state = engine.state_dict()
        for name, value in plain.state_dict().items():
            self.assertLess((state[name] - value).abs().max().item(), 1e-5, (name, what))

    def refused(self, words, call, kind=libzero.Error):
        with self.assertRaisesRegex(kind, words):
            call()


class Schedules(Case):
    def check(self, optimizer_of, scheduler_of=None, change=None, n_steps=5):
        plain = make()
        optimizer = optimizer_of(plain)
        train_plain(
            optimizer, plain, n_steps, scheduler_of(optimizer) if scheduler_of else None, change
        )
        for place in PLACES:
            # The engine steps the scheduler.
            model = make()
            given = optimizer_of(model)
            scheduler = scheduler_of(given) if scheduler_of else None
            with libzero.initialize(
                model, optimizer=given, lr_scheduler=scheduler, **place
            ) as engine:
                self.assertIs(engine.optimizer, given)
                self.assertIsInstance(given, type(optimizer))
                train(engine, n_steps, change)
                self.check_weights(engine, plain, (place, "given"))
                for a, b in zip(engine.get_lr(), optimizer.param_groups):
                    self.assertAlmostEqual(a, float(b["lr"]), 12)
            # The script does, as in PyTorch.
            model = make()
            with libzero.initialize(model, optimizer=optimizer_of(model), **place) as engine:
                own = scheduler_of(engine.optimizer) if scheduler_of else None

                def step(engine, scheduler=own):
                    engine.optimizer.step()
                    engine.optimizer.zero_grad()
                    if scheduler is not None:
                        scheduler.step()

                train(engine, n_steps, change, step)
                self.check_weights(engine, plain, (place, "script"))

    def test_betas_move(self):
        self.check(
            lambda m: AdamW(m.parameters(), 1e-2),
            lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=12),
        )

    def test_momentum_moves(self):
        for nesterov in (False, True):
            self.check(
                lambda m, n=nesterov: SGD(m.parameters(), 0.1, momentum=0.9, nesterov=n),
                lambda o: lr_scheduler.CyclicLR(o, 1e-3, 0.1, step_size_up=3),
            )

    def test_groups(self):
        self.check(
            lambda m: AdamW(groups_of(m), 1e-2), lambda o: lr_scheduler.ExponentialLR(o, 0.9)
        )
        self.check(lambda m: SGD(halves_of(m), 0.05))

    def test_rates(self):
        for scheduler in (
            lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
            lambda o: lr_scheduler.SequentialLR(
                o,
                [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)],
                [4],
            ),
        ):
            self.check(lambda m: AdamW(m.parameters(), torch.tensor(1e-2)), scheduler)
        self.check(
            lambda m: AdamW(m.parameters(), 1e-2, foreach=True),
            lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
        )
        self.check(
            lambda m: Adam(m.parameters(), 1e-2, fused=True), lambda o: lr_scheduler.StepLR(o, 3)
        )

    def test_all_by_hand(self):
        def change(optimizer, i):
            for group in optimizer.param_groups:
                group.update(
                    betas=(0.9 - 0.05 * i, 0.999 - 0.02 * i),
                    eps=1e-6 * (i + 1),
                    weight_decay=0.05 * i,
                    lr=1e-2 / (i + 1),
                )

        self.check(lambda m: AdamW(m.parameters()), change=change)
        plain = make()
        train_plain(AdamW(plain.parameters()), plain, 6, change=change)
        for place in PLACES:
            with libzero.initialize(make(), **place) as engine:
                train(engine, 6, change)
                self.check_weights(engine, plain, place)

    def test_of_a_name(self):
        """Schedulers work on the optimizer of a configuration, too."""
        plain = make()
        optimizer = AdamW(plain.parameters(), 1e-2, betas=(0.8, 0.9), weight_decay=0.0)
        train_plain(optimizer, plain, 8, lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=12))
        for place in PLACES:
            keywords = {
                "lr": 1e-2,
                "betas": (0.8, 0.9),
                "lr_scheduler": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=12),
            }
            with libzero.initialize(make(), **keywords, **place) as engine:
                train(engine, 8)
                self.check_weights(engine, plain, place)

    def test_of_the_configuration(self):
        """Groups show the library's rate, which nobody else sets."""
        with libzero.initialize(make(), WARMUP) as engine:
            for rate in (0.0, 0.25e-2, 0.5e-2):
                self.assertAlmostEqual(engine.optimizer.param_groups[0]["lr"], rate, 12)
                self.assertEqual(engine.get_lr(), [engine.optimizer.param_groups[0]["lr"]])
                train(engine)
            folder = os.environ["ZR_TEST_FOLDER"] + f"-optimizer-{N_RANKS}"
            engine.save_checkpoint(folder)
            train(engine)
            engine.load_checkpoint(folder)
            self.assertAlmostEqual(engine.get_lr()[0], 0.75e-2, 12)
            engine.optimizer.param_groups[0]["weight_decay"] = 0.5
            train(engine)
            engine.optimizer.param_groups[0]["lr"] = 1.0
            self.refused(
                "lr was set to 1.0, and the configuration's scheduler sets it to 0.01",
                lambda: train(engine),
            )
            engine.optimizer.param_groups[0]["lr"] = 1e-2
            engine.step()
            other = lr_scheduler.StepLR(engine.optimizer, 1, 0.5)
            train(engine)
            other.step()
            self.refused("lr was set to 0.005", lambda: train(engine))

    def test_refused(self):
        def with_scheduler(scheduler_of, **keywords):
            model = make()
            optimizer = AdamW(model.parameters())
            libzero.initialize(
                model, optimizer=optimizer, lr_scheduler=scheduler_of(optimizer), **keywords
            )

        plateau = lr_scheduler.ReduceLROnPlateau
        for words, call in [
            (
                "ReduceLROnPlateau.* needs metrics.*call the scheduler's step yourself",
                lambda: with_scheduler(plateau),
            ),
            ("needs metrics", lambda: libzero.initialize(make(), lr_scheduler=plateau)),
            ("lr_scheduler is int", lambda: libzero.initialize(make(), lr_scheduler=3)),
            (
                "made NoneType",
                lambda: libzero.initialize(make(), lr_scheduler=lambda optimizer: None),
            ),
            (
                "another optimizer",
                lambda: libzero.initialize(
                    make(), lr_scheduler=lr_scheduler.StepLR(AdamW(make().parameters()), 3)
                ),
            ),
            (
                "configuration has a scheduler",
                lambda: libzero.initialize(
                    make(), WARMUP, lr_scheduler=lambda o: lr_scheduler.StepLR(o, 1)
                ),
            ),
        ]:
            self.refused(words, call)
        model = make()
        optimizer = AdamW(model.parameters(), 1e-2)
        scheduler = plateau(optimizer, factor=0.5, patience=0)
        with libzero.initialize(model, optimizer=optimizer) as engine:
            for rate in (1e-2, 5e-3):
                train(engine)
                scheduler.step(1.0)
                self.assertAlmostEqual(engine.get_lr()[0], rate, 12)


class Object(Case):
    """What scripts do with the optimizer."""

    def test_kinds(self):
        for name, kind in [
            ("adamw", AdamW),
            ("AdamW", AdamW),
            ("sgd", SGD),
            ("lion", torch.optim.Optimizer),
        ]:
            model = make()
            with libzero.initialize(model, optimizer=name) as engine:
                self.assertIsInstance(engine.optimizer, kind)
                self.assertEqual(
                    [id(p) for p in engine.optimizer.param_groups[0]["params"]],
                    [id(p) for p in model.parameters()],
                )
                train(engine)

    def test_step_and_hooks(self):
        with libzero.initialize(make()) as engine:
            seen = []
            engine.optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
            engine.optimizer.register_step_post_hook(lambda *_: seen.append("after"))
            batch = next(models.batches("mlp", RANK, N_RANKS))

            def closure():
                loss = engine(*batch)
                engine.backward(loss)
                return loss

            self.assertIsInstance(engine.optimizer.step(closure), torch.Tensor)
            train(engine)
            self.assertEqual((seen, engine.global_steps), (["before", "after"] * 2, 2))
        self.refused("its engine is closed", engine.optimizer.step)

    def test_values_go_round(self):
        with libzero.initialize(make(), lr=1e-2) as engine:
            train(engine)
            state = copy.deepcopy(engine.optimizer.state_dict())
            engine.optimizer.param_groups[0].update(lr=5.0, betas=(0.1, 0.2))
            engine.optimizer.load_state_dict(state)
            self.assertEqual(
                (engine.get_lr(), engine.optimizer.param_groups[0]["betas"]), ([1e-2], (0.9, 0.999))
            )
            train(engine)

    def test_nothing_is_lost(self):
        plain = make()
        other = AdamW(plain.parameters())
        train_plain(other, plain, 1)

        def set_in_group(key, value):
            return lambda o: o.param_groups[0].update({key: value})

        for words, change in [
            (
                "state of 6 parameters would be lost.*load_checkpoint",
                lambda o: o.load_state_dict(other.state_dict()),
            ),
            (
                "has no 'betas'",
                lambda o: o.load_state_dict(SGD(plain.parameters(), 0.1).state_dict()),
            ),
            ("it belongs to the engine", lambda o: o.state[o.param_groups[0]["params"][0]]),
            ("it belongs to the engine", lambda o: o.state.clear()),
            ("state was replaced", lambda o: setattr(o, "state", {})),
            (
                "groups cannot be added",
                lambda o: o.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]}),
            ),
            ("2 groups, but", lambda o: o.param_groups.append({})),
            ("parameters of group 0 have changed", lambda o: o.param_groups[0]["params"].pop()),
            ("cannot be copied", copy.deepcopy),
            ("cannot be copied", pickle.dumps),
            ("amsgrad=True", set_in_group("amsgrad", True)),
            ("lr is -1.0", set_in_group("lr", -1.0)),
            ("lr is nan", set_in_group("lr", float("nan"))),
            ("lr=None", set_in_group("lr", None)),
            ("beta2 is 1; it must be", set_in_group("betas", (0.9, 1.0))),
        ]:
            with libzero.initialize(make()) as engine:
                train(engine)

                def change_and_step(change=change, engine=engine):
                    change(engine.optimizer)
                    train(engine)

                self.refused(words, change_and_step)
        with libzero.initialize(make(), optimizer="sgd") as engine:
            train(engine)
            engine.optimizer.param_groups[0]["momentum"] = 0.9
            self.refused("momentum changes from 0.0 to 0.9", lambda: train(engine))
        with libzero.initialize(make(), stage=2, update_at="backward") as engine:
            engine.backward(engine(*next(models.batches("mlp", RANK, N_RANKS))))
            engine.optimizer.param_groups[0]["lr"] = 1.0
            self.refused("too late", engine.step)

    def test_one_engine(self):
        model = make()
        optimizer = AdamW(model.parameters())
        with libzero.initialize(model, optimizer=optimizer):
            self.refused(
                "belongs to an engine that is open",
                lambda: libzero.initialize(make(), optimizer=optimizer),
            )


class Options(Case):
    """Defaults and keywords, by what is trained."""

    def check(self, optimizer_of, clip=0.0, n_steps=4, **keywords):
        plain = make()
        optimizer = optimizer_of(plain)
        if clip:
            optimizer.register_step_pre_hook(
                lambda *_: torch.nn.utils.clip_grad_norm_(plain.parameters(), clip) and None
            )
        train_plain(optimizer, plain, n_steps)
        with libzero.initialize(make(), **keywords) as engine:
            train(engine, n_steps)
            self.check_weights(engine, plain, keywords)
            self.assertEqual(engine.clip, clip)

    def test_defaults_of_torch(self):
        self.check(lambda m: AdamW(m.parameters(), weight_decay=0.0))
        self.check(lambda m: SGD(m.parameters()), optimizer="sgd")
        self.check(lambda m: AdamW(m.parameters(), 0.1, weight_decay=0.0), lr=0.1)
        self.check(lambda m: AdamW(m.parameters(), 0.1, weight_decay=0.0), config={}, lr=0.1)

    def test_keywords_of_torch(self):
        adamw = {
            "lr": 0.05,
            "betas": (0.8, 0.99),
            "eps": 1e-3,
            "weight_decay": 0.1,
            "amsgrad": False,
            "maximize": False,
            "foreach": True,
            "capturable": False,
            "differentiable": False,
            "fused": None,
        }
        self.check(lambda m: AdamW(m.parameters(), **adamw), **adamw)
        self.check(lambda m: AdamW(m.parameters(), 0.05, weight_decay=0.0), lr=torch.tensor(0.05))
        sgd = {
            "lr": 0.05,
            "momentum": 0.9,
            "dampening": 0,
            "weight_decay": 0.1,
            "nesterov": True,
            "maximize": False,
            "foreach": None,
            "differentiable": False,
            "fused": None,
        }
        self.check(lambda m: SGD(m.parameters(), **sgd), optimizer="sgd", **sgd)
        plain = make()
        train_plain(AdamW(groups_of(plain), 1e-2, weight_decay=0.0), plain, 4)
        model = make()
        with libzero.initialize(model, model_parameters=groups_of(model), lr=1e-2) as engine:
            train(engine, 4)
            self.check_weights(engine, plain, "groups")

    def test_defaults_of_deepspeed(self):
        def config(**optimizer):
            return {"optimizer": optimizer, "zero_optimization": {"stage": 1}}

        self.check(
            lambda m: AdamW(m.parameters(), 1e-3, weight_decay=0),
            clip=1.0,
            config=config(type="AdamW"),
        )
        params = {"lr": 0.05, "betas": "auto", "torch_adam": True, "adam_w_mode": True}
        self.check(
            lambda m: AdamW(m.parameters(), 0.05, weight_decay=0),
            clip=1.0,
            config=config(type="Adam", params=params),
        )
        self.check(
            lambda m: AdamW(m.parameters(), 0.05, weight_decay=0.2),
            clip=0.5,
            weight_decay=0.2,
            lr=0.05,
            config={**config(type="AdamW"), "gradient_clipping": 0.5},
        )
        self.check(
            lambda m: SGD(m.parameters(), momentum=0.9),
            clip=0.0,
            config={**config(type="SGD", params={"momentum": 0.9}), "gradient_clipping": 0},
        )
        with libzero.initialize(make(), config(type="Lion")) as engine:
            group = engine.optimizer.param_groups[0]
            self.assertEqual(
                (group["lr"], group["betas"], group["weight_decay"]), (1e-3, (0.9, 0.99), 0)
            )

    def test_rate_beside_a_scheduler(self):
        """`lr` counts where the file's scheduler does not say its own; what would not count is an error."""

        def config(**params):
            own = {"type": "WarmupLR", "params": {"warmup_num_steps": 1, "warmup_min_lr": 0, **params}}
            return {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "scheduler": own}

        for own, lr, rate in (({}, 0.5, 0.5), ({"warmup_max_lr": "auto"}, 0.5, 0.5), ({"warmup_max_lr": 0.1}, None, 0.1)):
            with libzero.initialize(make(), config(**own), lr=lr) as engine:
                for _ in range(3):
                    engine.backward(sum(p.sum() for p in engine.module.parameters()))
                    engine.step()
                self.assertEqual(engine.get_lr(), [rate])
        with self.assertRaisesRegex(libzero.ArgumentError, "lr=0.5 has no effect: .*warmup_max_lr"):
            libzero.initialize(make(), config(warmup_max_lr=0.1), lr=0.5)

    def test_refused(self):
        def given(kind=AdamW, own=None, **keywords):
            model = make()
            libzero.initialize(model, optimizer=kind(model.parameters(), **keywords), **(own or {}))

        def grouped(**keywords):
            model = make()
            libzero.initialize(
                model, model_parameters=[{"params": list(model.parameters()), **keywords}]
            )

        def file(kind, **params):
            return {"config": {"optimizer": {"type": kind, "params": params}}}

        for words, call in [
            ("amsgrad=True is not supported", lambda: libzero.initialize(make(), amsgrad=True)),
            ("maximize=True.*negative loss", lambda: libzero.initialize(make(), maximize=True)),
            ("differentiable=True", lambda: libzero.initialize(make(), differentiable=True)),
            (
                "dampening=0.1",
                lambda: libzero.initialize(make(), optimizer="sgd", momentum=0.9, dampening=0.1),
            ),
            (
                "Nesterov momentum requires",
                lambda: libzero.initialize(make(), optimizer="sgd", nesterov=True),
            ),
            ("betas is 0.9, must be two numbers", lambda: libzero.initialize(make(), betas=0.9)),
            (
                "betas and beta1 say the same",
                lambda: libzero.initialize(make(), betas=(0.9, 0.9), beta1=0.9),
            ),
            (
                "eps and epsilon say the same",
                lambda: libzero.initialize(make(), eps=1e-8, epsilon=1e-8),
            ),
            (
                "has no effect",
                lambda: libzero.initialize(make(), optimizer="sgd", betas=(0.9, 0.9)),
            ),
            ("beta1 is set by the optimizer", lambda: given(own={"betas": (0.9, 0.9)})),
            ("has params.lr", lambda: given(own=file("AdamW", lr=1e-3))),
            ("has type SGD", lambda: given(own=file("SGD"))),
            ("maximize=True", lambda: given(maximize=True)),
            ("dampening=0.5", lambda: given(SGD, lr=0.1, momentum=0.9, dampening=0.5)),
            ("use AdamW", lambda: given(Adam, weight_decay=0.1)),
            ("RAdam is not supported; allowed: AdamW", lambda: given(torch.optim.RAdam)),
            ("adam_w_mode", lambda: libzero.initialize(make(), **file("AdamW", adam_w_mode=False))),
            (
                "bias_correction",
                lambda: libzero.initialize(make(), **file("AdamW", bias_correction=False)),
            ),
            (
                "'lr_mult' is not supported; groups have params, lr, weight_decay, betas, eps",
                lambda: grouped(lr_mult=2),
            ),
            ("betas=1", lambda: grouped(betas=1)),
            ("amsgrad=True", lambda: grouped(amsgrad=True)),
        ]:
            self.refused(words, call)


if __name__ == "__main__":
    unittest.main(verbosity=2)
