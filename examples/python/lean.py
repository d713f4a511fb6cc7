"""Compare losses of a GPT with AdamW's state in fp32 and in 8 bits, and with other libraries' 8-bit AdamW.

    python examples/python/lean.py TEXT... [--steps 1000] [--seeds 1 2 3] [--optimizers fp32 8bit torchao bitsandbytes]

Each run of a seed has the same weights and batches. A tenth of the text is held back for the loss. fp32, bf16 and 8bit are libzero's; the others
have to be installed.
"""

import argparse
import importlib
import math
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import libzero

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("text", nargs="+")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
parser.add_argument("--optimizers", nargs="+", default=["fp32", "8bit"], choices=("fp32", "bf16", "8bit", "torch", "torchao", "bitsandbytes"))
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--seq", type=int, default=64)
parser.add_argument("--lr", type=float, default=6e-4)
arguments = parser.parse_intermixed_args()
SEQ = arguments.seq
SHAPE = GPT2Config(vocab_size=256, n_positions=SEQ, n_embd=384, n_layer=6, n_head=6, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
HYPER = {"lr": arguments.lr, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}

text = torch.frombuffer(bytearray(b"".join(open(file, "rb").read() for file in arguments.text)), dtype=torch.uint8).long()
kept = text[: len(text) * 9 // 10]
held_back = text[len(kept) :][: 128 * SEQ].unfold(0, SEQ, SEQ)


def rate_at(step):
    """Of the learning rate: a rise of 50 steps, then a cosine."""
    return min((step + 1) / 50, 0.5 + 0.5 * math.cos(math.pi * step / arguments.steps))


def of_torch(name):
    if name == "torch":
        return torch.optim.AdamW
    return importlib.import_module({"torchao": "torchao.optim", "bitsandbytes": "bitsandbytes.optim"}[name]).AdamW8bit


def train(name, seed):
    """The loss on what was held back."""
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(SHAPE)
    is_own = name in ("fp32", "bf16", "8bit")
    optimizer = (torch.optim.AdamW if is_own else of_torch(name))(model.parameters(), **HYPER)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_at)
    run = libzero.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler, clip=1.0, state=name) if is_own else model
    batches = torch.Generator().manual_seed(seed)
    for _ in range(arguments.steps):
        places = torch.randint(len(kept) - SEQ, (arguments.batch,), generator=batches)
        batch = torch.stack([kept[place : place + SEQ] for place in places])
        loss = run(input_ids=batch, labels=batch, use_cache=False).loss
        if is_own:
            run.backward(loss)
            run.step()
            continue
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    run.eval()
    with torch.no_grad():
        losses = [run(input_ids=batch, labels=batch, use_cache=False).loss.item() for batch in held_back.split(16)]
    return sum(losses) / len(losses)


for seed in arguments.seeds:
    first = None
    for name in arguments.optimizers:
        begin = time.process_time()
        loss = train(name, seed)
        first = first or loss
        seconds = time.process_time() - begin
        print(f"seed {seed}, {name}: loss {loss:.4f}, {100 * (loss / first - 1):+.2f}%, {seconds:.0f} s of processor time", flush=True)
