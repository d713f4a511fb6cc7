"""Fine-tune a causal language model of Hugging Face with transformers' Trainer: two lines are libzero's.

    torchrun --nproc-per-node 4 examples/python/trainer.py MODEL TEXT... --deepspeed ds_config.json --output_dir tuned \
        [ARGUMENT...]

MODEL is a folder with config.json, safetensors and a tokenizer. Arguments are those of transformers' TrainingArguments, such as --max_steps 100
--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --learning_rate 1e-4 --bf16. The configuration is DeepSpeed's; DeepSpeed is not used.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, default_data_collator

from libzero import HFTrainer as Trainer  # of transformers before
from libzero import HFTrainingArguments as TrainingArguments  # of transformers before

words = sys.argv[1:]
n_words = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
if n_words < 2:
    sys.exit(__doc__)
folder, *files = words[:n_words]
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(args=words[n_words:])

tokenizer = AutoTokenizer.from_pretrained(folder)
text = "\n\n".join(open(file, encoding="utf-8", errors="replace").read() for file in files)
tokens = torch.tensor(tokenizer(text)["input_ids"])
model = AutoModelForCausalLM.from_pretrained(folder)
length = min(256, model.config.max_position_embeddings)
sequences = [{"input_ids": s, "labels": s} for s in tokens[: len(tokens) // length * length].view(-1, length)]
n_held_out = max(1, len(sequences) // 20)

trainer = Trainer(model=model, args=args, train_dataset=sequences[n_held_out:], eval_dataset=sequences[:n_held_out],
                  processing_class=tokenizer, data_collator=default_data_collator)
trainer.train()
found = trainer.evaluate()  # all ranks
if args.process_index == 0:
    print(f"held-out loss {found['eval_loss']:.4f}")
trainer.save_model()  # whole weights, the tokenizer beside them
