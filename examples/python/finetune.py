"""Fine-tune a causal language model of Hugging Face on text files, sharded over ranks.

    torchrun --nproc-per-node 4 examples/python/finetune.py MODEL TEXT... [--steps 100] [--save tuned] [OPTION=VALUE...]

MODEL is a folder with config.json, safetensors and a tokenizer. Options are libzero's, such as stage=3 offload_optimizer=cpu
device_memory=8GiB grad_accum=4; `python -c "import libzero; print(libzero.options())"` lists them.
"""

import argparse

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import libzero

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("text", nargs="+", help="files, and options of libzero as name=value")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--seq", type=int, default=256)
parser.add_argument("--lr", type=float, default=1e-4)
parser.add_argument("--save", help="folder for the tuned model")
arguments = parser.parse_intermixed_args()
options = dict(word.split("=", 1) for word in arguments.text if "=" in word)
files = [word for word in arguments.text if "=" not in word]

# All ranks have the same tokens, and take turns with their sequences.
tokenizer = AutoTokenizer.from_pretrained(arguments.model)
text = "\n\n".join(open(file, encoding="utf-8", errors="replace").read() for file in files)
tokens = torch.tensor(tokenizer(text)["input_ids"])
n_sequences = len(tokens) // arguments.seq
sequences = tokens[: n_sequences * arguments.seq].view(n_sequences, arguments.seq)

with libzero.init():  # no rank holds the whole model
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(arguments.model))
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)
engine = libzero.initialize(
    model=model, pretrained=arguments.model, optimizer=optimizer, lr_scheduler=scheduler, **{"clip": 1.0, **options}
)

n_used = 0
for step in range(1, arguments.steps + 1):
    total = 0.0
    for _ in range(engine.gradient_accumulation_steps()):
        at = (n_used * engine.world_size + engine.rank) % n_sequences
        n_used += 1
        batch = sequences[at : at + 1]
        loss = engine(input_ids=batch, labels=batch, use_cache=False).loss
        engine.backward(loss)
        total += loss.item() / engine.gradient_accumulation_steps()
        engine.step()
    total = engine.average(total)
    if engine.rank == 0 and (step % 10 == 0 or step in (1, arguments.steps)):
        print(f"step {step:4}: loss {total:.4f}, norm {engine.get_global_grad_norm():.3f}, lr {engine.get_lr()[0]:.2e}")

if arguments.save:
    engine.save_pretrained(arguments.save)  # all ranks; rank 0 writes
    if engine.rank == 0:
        tokenizer.save_pretrained(arguments.save)
