"""Modules that programs of fuzz_modules.py are made of, each of 8 channels in and out, and what
they call. Importing everything from here makes a printed program complete."""

import collections
import contextlib
import dataclasses
import functools
import typing

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

__all__ = [
    "Bypassing",
    "Doubled",
    "Experts",
    "Given",
    "KeptInList",
    "KeptOnCtx",
    "Lora",
    "Odd",
    "Output",
    "Pair",
    "Running",
    "Scaled",
    "Stacked",
    "Table",
    "Viewed",
    "Walk",
    "batch",
    "checkpoint",
    "collections",
    "contextlib",
    "each",
    "functools",
    "loss_of",
    "F",
    "nn",
    "parametrizations",
    "quiet_hook",
    "read_gradient",
    "torch",
    "own_saved_hooks",
]

N_ROWS, N_TOKENS, N_CHANNELS, N_WORDS = 4, 6, 8, 11


def batch(i, rank=0, n_ranks=1):
    """A micro-batch's part of a rank: tokens, and noise that is added to their embeddings."""
    generator = torch.Generator().manual_seed(1000 + i)
    tokens = torch.randint(N_WORDS, (N_ROWS, N_TOKENS), generator=generator)
    noise = 0.1 * torch.randn(N_ROWS, N_TOKENS, N_CHANNELS, generator=generator)
    n = N_ROWS // n_ranks
    return tokens[rank * n : (rank + 1) * n], noise[rank * n : (rank + 1) * n]


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


def loss_of(output):
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, dict):
        return output["loss"]
    return output[0] if isinstance(output, tuple) else output.loss


def each(modules, x):
    """Through a list of modules, one after the other."""
    for module in modules:
        x = torch.tanh(module(x))
    return x


def quiet_hook(*_):
    """A hook that changes nothing."""
    return None


def read_gradient(parameter):
    """A hook of a gradient that is complete."""
    if parameter.grad.shape != parameter.shape:
        raise ValueError(
            f"a gradient of shape {parameter.grad.shape} of a parameter of {parameter.shape}"
        )


@contextlib.contextmanager
def own_saved_hooks():
    """Hooks of the model's own for saved tensors, as tools that move activations have them."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        yield


class Given(nn.Module):
    """Its output is its parameter."""

    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.linspace(0.5, 1.5, N_CHANNELS))

    def forward(self):
        return self.value


class Viewed(nn.Module):
    """Its outputs are views of its parameter, in a tuple within a dictionary."""

    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.randn(2, N_CHANNELS))

    def forward(self):
        return {"both": (self.value[0], self.value.t()[:, 1])}


class Odd(nn.Module):
    """A zero-sized, a scalar and a five-dimensional parameter, and one that is not contiguous."""

    def __init__(self):
        super().__init__()
        self.nothing = nn.Parameter(torch.empty(0, 4))
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.five = nn.Parameter(torch.randn(2, 1, 2, 1, 2))
        self.turned = nn.Parameter(torch.randn(N_CHANNELS, 3).t())

    def forward(self, x):
        return (
            x * self.scale + self.five.reshape(N_CHANNELS) + self.nothing.sum() + self.turned.sum(0)
        )


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight * 2

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight * 2, (gradient * x * 2).flatten(0, -2).sum(0)


class _DoubleKept(_Double):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        ctx.weight = weight
        return x * weight * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * ctx.weight * 2, (gradient * x * 2).flatten(0, -2).sum(0)


class Doubled(nn.Module):
    """A function of autograd's that saves a parameter."""

    function: typing.Any = _Double

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-0.5, 1, N_CHANNELS))

    def forward(self, x):
        return self.function.apply(x, self.weight)


class KeptOnCtx(Doubled):
    """The same that keeps the parameter itself, past autograd's saving."""

    function = _DoubleKept


class KeptInList(nn.Module):
    """Parameters in a plain list, used by a module that does not own them."""

    def __init__(self, owner):
        super().__init__()
        self.kept = [owner.weight, owner.bias]

    def forward(self, x):
        return F.linear(x, *self.kept)


class Bypassing(nn.Module):
    """Uses its submodule's parameters and never calls it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(N_CHANNELS, N_CHANNELS)

    def forward(self, x):
        return x @ self.inner.weight.t() + self.inner.bias


class Experts(nn.Module):
    """The data says which of three are used."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(N_CHANNELS, 3)
        self.experts = nn.ModuleList(Pair() for _ in range(3))

    def forward(self, x):
        scores = self.router(x).softmax(-1)
        chosen = int((x.detach().double().abs().sum() * 1e3).round().nan_to_num()) % 3
        return self.experts[chosen](x) * scores[..., chosen, None]


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(N_CHANNELS, 12), nn.Linear(12, N_CHANNELS, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class Stacked(nn.Module):
    """Weights of two matrices in one parameter, taken apart by slices and einsum."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(0.3 * torch.randn(2, N_CHANNELS, N_CHANNELS))

    def forward(self, x):
        return torch.einsum("btc,cd->btd", torch.tanh(x @ self.weights[0]), self.weights[1])


class Running(nn.Module):
    """A buffer that each forward in training changes."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(N_CHANNELS))
        self.register_buffer("scale", torch.full((N_CHANNELS,), 0.5))
        self.register_buffer("count", torch.tensor(0), persistent=False)

    def forward(self, x):
        if self.training:
            self.count += 1
        return x * self.scale + self.bias


class Scaled(nn.Module):
    """A parameter of the root's, handed to a child as an argument."""

    def forward(self, x, scale):
        return x * scale


class Table(nn.Module):
    """An embedding with a padding index, looked up twice."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(N_WORDS, N_CHANNELS, padding_idx=3)

    def forward(self, x, tokens):
        return x + 0.5 * self.rows(tokens) * self.rows(tokens.roll(1, 1))


class Walk(nn.Module):
    """A cell that is called once for each token."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(N_CHANNELS, N_CHANNELS)

    def forward(self, x):
        state, states = torch.zeros_like(x[:, 0]), []
        for i in range(x.shape[1]):
            state = self.cell(x[:, i], state)
            states.append(state)
        return torch.stack(states, 1)


class Lora(nn.Module):
    """A frozen norm and a frozen matrix, with a trained correction of rank 2."""

    def __init__(self):
        super().__init__()
        self.norm, self.base = nn.LayerNorm(N_CHANNELS), nn.Linear(N_CHANNELS, N_CHANNELS)
        self.requires_grad_(False)
        self.a = nn.Parameter(0.3 * torch.randn(2, N_CHANNELS))
        self.b = nn.Parameter(0.1 * torch.randn(N_CHANNELS, 2))

    def forward(self, x):
        x = self.norm(x)
        return self.base(x) + x @ self.a.t() @ self.b.t()
