"""The peer of `zero-bench step`: the training step of a GPT-2 in PyTorch, compiled, with its fused attention and
AdamW, on random tokens. Parameters are fp32, products bf16 (autocast), as is usual there. Layers and the loss are
compiled apart: a layer's code serves all of them, and compiling the whole of 48 layers takes minutes.

    python3 tests/gpu_peer.py --model gpt2 --micro-batch 16 [--seq 1024] [--steps 5] [--device cuda] [--eager]

Prints one JSON object.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

# layers, channels, heads
MODELS = {"gpt2": (12, 768, 12), "gpt2-xl": (48, 1600, 25), "tiny": (2, 64, 2)}
VOCAB = 50257


class Layer(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        self.norm_2 = nn.LayerNorm(channels)
        self.up = nn.Linear(channels, 4 * channels)
        self.down = nn.Linear(4 * channels, channels)

    def forward(self, x):
        batch, seq, channels = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, seq, 3, self.heads, channels // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, channels))
        return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, channels, heads, seq):
        super().__init__()
        self.words = nn.Embedding(VOCAB, channels)
        self.positions = nn.Embedding(seq, channels)
        self.layers = nn.ModuleList(Layer(channels, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(channels)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def loss(self, x, targets):
        logits = functional.linear(self.norm(x), self.words.weight)  # tied
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def forward(self, tokens, targets):
        x = self.words(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.loss(x, targets)

    def compile_parts(self):
        for layer in self.layers:
            layer.compile(fullgraph=True)
        self.loss = torch.compile(self.loss, fullgraph=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="do not compile the model")
    args = parser.parse_args()

    torch.manual_seed(1)
    with torch.device(args.device):
        model = Gpt(*MODELS[args.model], args.seq)
        tokens = torch.randint(VOCAB, (args.micro_batch, args.seq + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=args.device == "cuda")
    if not args.eager:
        model.compile_parts()

    def step():
        with torch.autocast(args.device, dtype=torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()  # waits for the step

    begin = time.perf_counter()
    first = step()
    for _ in range(2):
        step()
    warm_up = time.perf_counter() - begin
    times = []
    for _ in range(args.steps):
        begin = time.perf_counter()
        last = step()
        times.append(time.perf_counter() - begin)
    seconds = statistics.median(times)
    print(json.dumps({
        "torch": torch.__version__,
        "model": args.model,
        "compiled_graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],  # of one layer, and the loss
        "micro_batch": args.micro_batch,
        "seq": args.seq,
        "warm_up_seconds": warm_up,
        "first_loss": first,
        "last_loss": last,
        "step_ms": 1e3 * seconds,
        "tokens_per_s": args.micro_batch * args.seq / seconds,
        "peak_device_bytes": torch.cuda.max_memory_allocated() if args.device == "cuda" else None,
    }))


if __name__ == "__main__":
    main()
