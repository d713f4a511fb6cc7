"""What a program of fuzz_modules.py calls: the same loop with plain PyTorch and with an engine."""

import copy
import os
import tempfile

import fuzz_parts
import libzero.engine
import torch
import torch.optim.swa_utils
from fuzz_programs import HAS_PEFT, HYPER

if HAS_PEFT:
    import peft


class Loop:
    """A module and its optimizer. `values` is what has been seen: losses first of all.

    A loss is a list: in plain PyTorch of all ranks' parts, in libzero of this rank's.
    """

    def __init__(self, program, space, ranks):
        self.program, self.space, self.ranks = program, space, ranks
        self.n_micro_batches = program.keywords.get("grad_accum", 1)
        self.values, self.skips = [], set()
        self.averaged = None
        self.open()

    def open(self):
        torch.manual_seed(self.program.seed)
        inner = self.space["Model"]()
        if self.program.keywords["peft"]:
            linear = [n for n, m in inner.named_modules() if type(m) is torch.nn.Linear]
            config = peft.LoraConfig(r=2, target_modules=linear[::2], init_lora_weights=False)
            self.module = peft.get_peft_model(inner, config)
            inner = self.module.base_model.model
        else:
            self.module = inner
        if isinstance(self, Plain):
            self.module.to(torch.bfloat16 if "dtype" in self.program.keywords else torch.float32)
        self.space["prepare"](inner)
        self.inner, self.trained = inner, {id(p) for p in inner.parameters() if p.requires_grad}
        inner.skipped = self.skips

    def optimizer_of(self):
        params = [p for p in self.module.parameters() if p.requires_grad]
        keywords = self.program.keywords
        decay = keywords["weight_decay"]
        if keywords["groups"]:
            params = [
                {"params": params[::2], "weight_decay": 0.3},
                {"params": params[1::2], "lr": 5e-3},
            ]
            params = [group for group in params if group["params"]]
        if "momentum" in keywords:
            return torch.optim.SGD(
                params, lr=HYPER["lr"], momentum=keywords["momentum"], weight_decay=decay
            )
        return torch.optim.AdamW(
            params, lr=HYPER["lr"], betas=(0.9, 0.99), eps=HYPER["epsilon"], weight_decay=decay
        )

    def inputs(self, i):
        for rank in self.ranks:
            torch.manual_seed(i)
            yield fuzz_parts.batch(i, rank, self.program.n_ranks)

    def forward(self, i):
        losses = [fuzz_parts.loss_of(self.call(*inputs)) for inputs in self.inputs(i)]
        self.see(losses)
        return losses

    def see(self, losses):
        self.values.append(sum(loss.item() for loss in losses) / len(losses))

    def params(self, name):
        return list(self.inner.get_submodule(name).parameters())

    def both(self, first, second):
        return [a + 0.5 * b for a, b in zip(first, second)]

    def not_a_number(self, losses):
        return [loss * float("nan") for loss in losses]

    def regularised(self, losses):
        return [
            loss + 0.01 * sum(p.square().sum() for p in self.module.parameters()) for loss in losses
        ]

    def penalised(self, i):
        """With a penalty of the loss's gradient by the inputs."""
        losses = []
        for tokens, noise in self.inputs(i):
            noise.requires_grad_()
            loss = fuzz_parts.loss_of(self.call(tokens, noise))
            losses.append(
                loss + torch.autograd.grad(loss, noise, create_graph=True)[0].square().sum()
            )
        self.see(losses)
        return losses

    def evaluate(self, i, mode):
        modes = {
            "no_grad": torch.no_grad,
            "inference_mode": torch.inference_mode,
            "eval": torch.enable_grad,
        }
        self.module.train(mode == "no_grad")
        with modes[mode]():
            self.forward(i)
        self.module.train()

    def turn(self, name, on=None):
        """Freeze, and thaw again; on: thaw what was frozen from the beginning, too."""
        for p in self.params(name):
            if on or id(p) in self.trained:
                p.requires_grad_(on or not p.requires_grad)

    def skip(self, name):
        self.skips ^= {name}

    def read(self, name):
        with self.gathered(self.params(name)):
            self.values.append(sum(p.detach().sum().item() for p in self.params(name)))

    def write_by_hand(self, name, factor):
        with torch.no_grad():
            for p in self.params(name):
                p.mul_(factor)

    def edit_gradients(self, factor):
        for p in self.module.parameters():
            if p.grad is not None:
                p.grad.mul_(factor)

    def read_gradients(self):
        self.values.append(
            sum(p.grad.norm().item() for p in self.module.parameters() if p.grad is not None)
        )

    def drop_gradient(self, name):
        for p in self.params(name):
            p.grad = None

    def torch_clip(self, norm):
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), norm)

    def average_model(self):
        with self.gathered(None):
            if self.averaged is None:
                self.averaged = torch.optim.swa_utils.AveragedModel(self.module)
            self.averaged.update_parameters(self.module)
            self.values.append(sum(p.detach().sum().item() for p in self.averaged.parameters()))

    def call_a_copy(self, i):
        with self.gathered(None):
            other = copy.deepcopy(self.module)
        with torch.no_grad():
            losses = [fuzz_parts.loss_of(other(*inputs)) for inputs in self.inputs(i)]
        self.see(losses)

    def set_learning_rate(self, rate):
        for group in self.optimizer.param_groups:
            group["lr"] = rate


class Plain(Loop):
    """PyTorch alone.

    moved: how much first values are moved by, to see what the last bits of them and of gradients
        count
    """

    def __init__(self, program, space, moved=0.0):
        self.moved = moved
        super().__init__(program, space, range(program.n_ranks))

    def open(self):
        super().open()
        with torch.no_grad():
            for p in self.module.parameters():
                p.mul_(1 + self.moved)
        self.optimizer = self.optimizer_of()
        self.call = self.module

    def backward(self, losses, **keywords):
        scale = 0.7 if self.moved else 1.0  # gradients round in another way
        before = [(p, p.grad) for p in self.module.parameters()]
        for p, _ in before:
            p.grad = None
        for loss in losses:
            (loss * scale / (self.n_micro_batches * len(losses))).backward(**keywords)
        for p, gradient in before:
            if p.grad is None:
                p.grad = gradient
            else:
                p.grad = p.grad / scale if gradient is None else gradient + p.grad / scale

    def backward_twice(self, losses):
        self.backward(losses, retain_graph=True)
        self.backward(losses)

    backward_without_sync = backward

    def step(self):
        trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        is_finite = all(p.grad.isfinite().all() for p in trained if p.grad is not None)
        if self.program.keywords.get("clip") and is_finite:
            torch.nn.utils.clip_grad_norm_(trained, self.program.keywords["clip"])
        if is_finite:
            self.optimizer.step()
        self.zero_grad()

    def zero_grad(self):
        self.module.zero_grad()

    drop_step = zero_grad

    def gathered(self, _params):
        return torch.enable_grad()

    write = Loop.write_by_hand

    def load_state_dict(self, factor):
        state = self.module.state_dict()
        self.module.load_state_dict(
            {n: v * factor if v.is_floating_point() else v for n, v in state.items()}
        )

    def save(self):
        self.saved = copy.deepcopy((self.module.state_dict(), self.optimizer.state_dict()))

    def load(self):
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.module.load_state_dict(self.saved[0])
        self.optimizer.load_state_dict(copy.deepcopy(self.saved[1]))
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate

    def reopen(self):
        pass

    def end(self):
        return {n: v.detach().clone() for n, v in self.module.state_dict().items()}


class Ours(Loop):
    """An engine."""

    def __init__(self, program, space, placement):
        self.placement = dict(placement)
        self.folder = (
            tempfile.mkdtemp(prefix="fuzz-")
            if program.n_ranks == 1
            else f"{tempfile.gettempdir()}/both"
        )
        os.makedirs(self.folder, exist_ok=True)
        if any("nvme" in str(v) for v in placement.values()):
            self.placement["nvme_path"] = self.folder
        self.engine = None
        super().__init__(program, space, [libzero.rank()])

    def open(self):
        super().open()
        keywords = {
            k: v
            for k, v in self.program.keywords.items()
            if k not in ("peft", "groups", "torch_optimizer")
        }
        if self.program.keywords["torch_optimizer"]:
            keywords = {
                k: v
                for k, v in keywords.items()
                if k not in HYPER and k not in ("weight_decay", "momentum")
            }
            keywords["optimizer"] = self.optimizer_of()
        self.engine = libzero.initialize(self.module, **keywords, **self.placement)
        self.call = self.engine

    @property
    def optimizer(self):
        return self.engine.optimizer

    def backward(self, losses, **keywords):
        self.engine.backward(losses[0], **keywords)

    def backward_twice(self, losses):
        self.engine.backward(losses[0], retain_graph=True)
        self.engine.backward(losses[0])

    def backward_without_sync(self, losses):
        with self.engine.no_sync():
            self.engine.backward(losses[0])

    def step(self):
        self.engine.step()

    def zero_grad(self):
        self.engine.zero_grad()

    def drop_step(self):
        self.engine.drop_step()

    def gathered(self, params):
        return self.engine.gathered(params)

    def write(self, name, factor):
        params = self.params(name)
        with self.engine.gathered(params, modifier_rank=0), torch.no_grad():
            for p in params:
                p.mul_(factor)

    def load_state_dict(self, factor):
        state = self.engine.state_dict()
        self.engine.load_state_dict(
            {n: v * factor if v.is_floating_point() else v for n, v in state.items()}
        )

    def save(self):
        self.saved = self.engine.save_checkpoint(self.folder)

    def load(self):
        self.engine.load_checkpoint(self.saved)

    def reopen(self):
        saved = self.engine.save_checkpoint(self.folder + "-reopened")
        frozen = [not p.requires_grad for p in self.module.parameters()]
        rates = [group["lr"] for group in self.optimizer.param_groups] if self.optimizer else []
        self.engine.close()
        self.open()
        self.engine.load_checkpoint(saved)
        for i, rate in enumerate(rates):
            self.optimizer.param_groups[i]["lr"] = rate
        for p, was in zip(self.module.parameters(), frozen):
            p.requires_grad_(not was)

    def end(self):
        self.values = [self.engine.average(v) for v in self.values]
        self.hash = self.engine.weights_xxh3()
        state = self.engine.state_dict()
        self.engine.close()
        return state
