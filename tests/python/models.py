"""Small models that tests train, with their batches. A batch is for all ranks together; each takes its part."""

import itertools

import torch
from torch import nn

N_ROWS = 4  # sequences or images of a batch, over all ranks


class Odd(nn.Module):
    """Tied, frozen, unused, zero-sized, scalar and large-rank parameters; one used outside its module; a module
    that is called twice; an output that is a parameter."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.twice = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(2))
        self.by_name = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.LayerNorm(8)})
        self.unused = nn.Linear(3, 3)
        self.some_unused = nn.ParameterDict({"used": torch.ones(8), "not": torch.ones(5)})
        self.nothing = nn.Parameter(torch.empty(0, 4))
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.five = nn.Parameter(torch.randn(2, 1, 2, 1, 2))
        self.bias = Given(8)
        self.outside = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.frozen(x)
        x = self.twice(torch.tanh(self.twice(x)))
        for block in self.blocks:
            x = x + block(x)
        x = self.by_name["b"](self.by_name["a"](x)) * self.some_unused["used"]
        x = x * self.scale + self.five.reshape(8) + self.nothing.sum()
        x = x + self.bias()
        x = x @ self.outside.weight.t() + self.outside.bias
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.roll(1, 1).flatten())


class Given(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.value = nn.Parameter(torch.linspace(-1, 1, n))

    def forward(self):
        return self.value


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, stride=2),
            nn.GELU(), nn.ConvTranspose2d(8, 4, 2), nn.Flatten())
        self.head = nn.Linear(4 * 4 * 4, 5)

    def forward(self, images, labels):
        return nn.functional.cross_entropy(self.head(self.layers(images)), labels)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 33), nn.ReLU(), nn.Linear(33, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layers(x), y)


class Causal(nn.Module):
    """A model of transformers, with its own loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(input_ids=tokens, labels=tokens, use_cache=False).loss


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return Causal(GPT2LMHeadModel(GPT2Config(
        vocab_size=61, n_positions=16, n_embd=16, n_layer=3, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=0, eos_token_id=0)))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return Causal(LlamaForCausalLM(LlamaConfig(
        vocab_size=61, hidden_size=16, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16)))


def _images(generator):
    return torch.randn(N_ROWS, 3, 8, 8, generator=generator), torch.randint(5, (N_ROWS,), generator=generator)


def _vectors(generator):
    return torch.randn(N_ROWS, 8, generator=generator), torch.randn(N_ROWS, 4, generator=generator)


def _tokens(n_words):
    return lambda generator: (torch.randint(n_words, (N_ROWS, 12), generator=generator),)


#: Name: how it is made, and how a batch of it is.
MODELS = {
    "mlp": (Mlp, _vectors),
    "conv": (Conv, _images),
    "odd": (Odd, _tokens(11)),
    "gpt2": (gpt2, _tokens(61)),
    "llama": (llama, _tokens(61)),
}


def make(name):
    torch.manual_seed(7)
    return MODELS[name][0]()


def batches(name, rank, n_ranks, seed=1):
    """Two batches, again and again without end: this rank's part of each."""
    generator = torch.Generator().manual_seed(seed)
    n = N_ROWS // n_ranks
    both = [tuple(t[rank * n : (rank + 1) * n] for t in MODELS[name][1](generator)) for _ in range(2)]
    yield from itertools.cycle(both)
