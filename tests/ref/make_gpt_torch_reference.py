#!/usr/bin/env python3
"""Make tests/ref/gpt_torch_reference.json: the losses of a small GPT-2 trained by PyTorch.

    python3 tests/ref/make_gpt_torch_reference.py > tests/ref/gpt_torch_reference.json
    python3 tests/ref/make_gpt_torch_reference.py PROGRAM

The second runs PROGRAM, which is test_gpt_torch, with what the first writes, made anew. It exits with 77
where Python has no torch or numpy (tests/ref/requirements.txt).

The model is written with PyTorch's own operations and differentiated by autograd, so it shares
nothing with examples/gpt but the initial weights, whose generator (examples/models/gpt2/init.c) is
written again here, and the data, which follow a rule that the test knows as well.
"""

import json
import math
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SHAPE = {"layers": 2, "channels": 64, "heads": 4, "seq": 32, "vocab": 257}
BATCH, STEPS, SEED = 4, 20, 20240601
LR, BETA1, BETA2, EPSILON, WEIGHT_DECAY = 3e-3, 0.9, 0.95, 1e-8, 0.1

# ---- initial weights: integers modulo 2^64 until the last multiplication ----------------------


def scatter(z):
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def sum_of_four(bits):
    mask = np.uint64(0xFFFF)
    return sum((bits >> np.uint64(shift)) & mask for shift in (0, 16, 32, 48))


def normal(name, n_elems, deviation):
    with np.errstate(over="ignore"):
        key = scatter(np.array(SEED, dtype=np.uint64))
        for byte in name.encode():
            key = scatter(key ^ np.uint64(byte))
        index = np.arange(n_elems, dtype=np.uint64)
        total = sum_of_four(scatter(key + np.uint64(2) * index))
        total = total + sum_of_four(scatter(key + np.uint64(2) * index + np.uint64(1)))
    centered = total.astype(np.float64) - 4.0 * 65535.0
    return (centered * (deviation / math.sqrt(8.0 * (65536.0**2 - 1.0) / 12.0))).astype(np.float32)


def make_params():
    c, layers = SHAPE["channels"], SHAPE["layers"]
    into_residual = 0.02 / math.sqrt(2.0 * layers)
    params = {}

    def matrix(name, rows, columns, deviation=0.02):
        params[name] = normal(name, rows * columns, deviation).reshape(rows, columns)

    def norm(name):
        params[name + ".weight"] = np.ones(c, dtype=np.float32)
        params[name + ".bias"] = np.zeros(c, dtype=np.float32)

    def linear(name, n_in, n_out, deviation=0.02):
        matrix(name + ".weight", n_in, n_out, deviation)
        params[name + ".bias"] = np.zeros(n_out, dtype=np.float32)

    matrix("wte.weight", SHAPE["vocab"], c)
    matrix("wpe.weight", SHAPE["seq"], c)
    for i in range(layers):
        norm(f"h.{i}.ln_1")
        linear(f"h.{i}.attn.c_attn", c, 3 * c)
        linear(f"h.{i}.attn.c_proj", c, c, into_residual)
        norm(f"h.{i}.ln_2")
        linear(f"h.{i}.mlp.c_fc", c, 4 * c)
        linear(f"h.{i}.mlp.c_proj", 4 * c, c, into_residual)
    norm("ln_f")
    return {name: torch.tensor(value, requires_grad=True) for name, value in params.items()}


# ---- data: each token follows from the one before ---------------------------------------------


def make_batch(step):
    t, vocab = SHAPE["seq"], SHAPE["vocab"]
    rows = []
    for b in range(BATCH):
        row = [(37 * step + 11 * b) % vocab]
        while len(row) <= t:
            row.append((3 * row[-1] + 5) % vocab)
        rows.append(row)
    rows = torch.tensor(rows)
    return rows[:, :-1], rows[:, 1:]


# ---- the model -----------------------------------------------------------------------------------


def norm(x, p, name):
    return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], 1e-5)


def linear(x, p, name):
    return x @ p[name + ".weight"] + p[name + ".bias"]


def attention(x, p, name):
    b, t, c = x.shape
    heads = SHAPE["heads"]
    q, k, v = linear(x, p, name + ".c_attn").split(c, dim=-1)
    q, k, v = (y.view(b, t, heads, c // heads).transpose(1, 2) for y in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return linear(out.transpose(1, 2).reshape(b, t, c), p, name + ".c_proj")


def loss_of(p, tokens, targets):
    x = p["wte.weight"][tokens] + p["wpe.weight"][: tokens.shape[1]]
    for i in range(SHAPE["layers"]):
        x = x + attention(norm(x, p, f"h.{i}.ln_1"), p, f"h.{i}.attn")
        wide = linear(norm(x, p, f"h.{i}.ln_2"), p, f"h.{i}.mlp.c_fc")
        x = x + linear(F.gelu(wide, approximate="tanh"), p, f"h.{i}.mlp.c_proj")
    logits = norm(x, p, "ln_f") @ p["wte.weight"].T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    torch.set_num_threads(1)  # the model is tiny
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    params = make_params()
    first = {name: [float(v) for v in p.detach().flatten()[:3]] for name, p in params.items()
             if p.dim() == 2}
    groups = [
        {"params": [p for p in params.values() if p.dim() == 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in params.values() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(BETA1, BETA2), eps=EPSILON)
    losses = []
    for step in range(STEPS):
        loss = loss_of(params, *make_batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    reference = {
        "made_by": "tests/ref/make_gpt_torch_reference.py",
        "torch": torch.__version__.split("+")[0],
        "shape": SHAPE,
        "batch": BATCH,
        "seed": SEED,
        "lr": LR,
        "beta1": BETA1,
        "beta2": BETA2,
        "epsilon": EPSILON,
        "weight_decay": WEIGHT_DECAY,
        "first_values": first,
        "losses": losses,
    }
    if len(sys.argv) == 1:
        print(json.dumps(reference, indent=1))
        return
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(reference, file)
        file.flush()
        environment = {**os.environ, "ZR_GPT_TORCH_REFERENCE": file.name}
        sys.exit(subprocess.run(sys.argv[1:], env=environment).returncode)


if __name__ == "__main__":
    main()
