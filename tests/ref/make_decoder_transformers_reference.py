#!/usr/bin/env python3
"""Make tests/ref/decoder_transformers_reference.json: small decoders as transformers computes them.

    python3 tests/ref/make_decoder_transformers_reference.py > tests/ref/decoder_transformers_reference.json
    python3 tests/ref/make_decoder_transformers_reference.py --check FILE

--check holds what the first has written to what transformers gives here, of fewer steps. It exits with 77 where
Python has no torch, transformers or peft (tests/ref/requirements.txt).

Of each model type, and of GPT-2, there is a configuration that uses its switches: the losses of some AdamW
steps, in fp32 and in bf16 with fp32 masters, and of the first batch the gradient of each parameter, as its norm and its product with a known array.
The same again of packed documents, in part without a loss ("packed"): here each document is computed by itself,
without padding, and the loss is the mean over the targets of all that count. Of the first batch there is the
log-probability of each target, too.

The same with low-rank adapters of PEFT ("lora"), beside weights that are frozen; gradients are those where B is not 0.
"""

import json
import math
import sys

try:
    import numpy as np
    import peft
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

BATCH, SEQ, SEED = 4, 24, 20261122
STEPS = 3 if "--check" in sys.argv else 20
LR, BETA1, BETA2, EPSILON, WEIGHT_DECAY = 3e-3, 0.9, 0.95, 1e-8, 0.1
LAYERS = 4

SMALL = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=LAYERS, num_attention_heads=6,
             num_key_value_heads=2, vocab_size=131, max_position_embeddings=64, rms_norm_eps=1e-5,
             attention_dropout=0.0, use_cache=False, pad_token_id=None, bos_token_id=1, eos_token_id=2)
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
# Inputs of each document of each sequence; padding is what is left. The last sequence has no target that counts.
DOCUMENTS = [[10, 12], [24], [5, 1, 18], [7]]
SLIDING = ["full_attention", "sliding_attention"] * (LAYERS // 2)

CASES = {
    "gpt2": ("GPT2", dict(n_embd=48, n_layer=LAYERS, n_head=6, n_positions=64, vocab_size=131, resid_pdrop=0.0,
                          embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=1, eos_token_id=2)),
    "llama": ("Llama", dict(SMALL, rope_parameters=LLAMA3, tie_word_embeddings=False)),
    "llama, all biases, as many heads of keys": (
        "Llama", dict(SMALL, num_key_value_heads=6, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.5),
                      attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "qwen2": ("Qwen2", dict(SMALL, num_key_value_heads=1, tie_word_embeddings=True, use_sliding_window=True,
                            sliding_window=5, layer_types=SLIDING,
                            rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "qwen3": ("Qwen3", dict(SMALL, head_dim=16, tie_word_embeddings=True, rms_norm_eps=1e-6,
                            rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "mistral": ("Mistral", dict(SMALL, head_dim=10, sliding_window=7, tie_word_embeddings=False,
                                rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "smollm3": ("SmolLM3", dict(SMALL, no_rope_layers=[1, 1, 0, 1], tie_word_embeddings=True,
                                rope_parameters=dict(rope_type="default", rope_theta=1e5))),
}

# Of families: the layers that have adapters, their rank, alpha. The others have rank 3, alpha 6 and all.
LORA = {"GPT2": ("c_attn,mlp.c_proj", 4, 4), "Qwen2": ("q_proj,v_proj", 8, 16)}

# ---- initial weights: integers modulo 2^64 until the last multiplication ----------------------


def scatter(z):
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def sum_of_four(bits):
    mask = np.uint64(0xFFFF)
    return sum((bits >> np.uint64(shift)) & mask for shift in (0, 16, 32, 48))


def key_of(name):
    key = scatter(np.array(SEED, dtype=np.uint64))
    for byte in name.encode():
        key = scatter(key ^ np.uint64(byte))
    return key


def uniform(name, n_elems, deviation):
    with np.errstate(over="ignore"):
        half = scatter(key_of(name) + np.arange(n_elems, dtype=np.uint64)) >> np.uint64(11)
    return ((half.astype(np.float64) - 2.0**52) * (math.sqrt(3.0) * 2.0**-52) * deviation).astype(np.float32)


def normal(name, n_elems, deviation):
    with np.errstate(over="ignore"):
        key = key_of(name)
        index = np.arange(n_elems, dtype=np.uint64)
        total = sum_of_four(scatter(key + np.uint64(2) * index))
        total = total + sum_of_four(scatter(key + np.uint64(2) * index + np.uint64(1)))
    centered = total.astype(np.float64) - 4.0 * 65535.0
    return (centered * (deviation / math.sqrt(8.0 * (65536.0**2 - 1.0) / 12.0))).astype(np.float32)


def params_of(model):
    """By the names that libzero has, which are GPT-2's without what transformers puts in front."""
    return {name.removeprefix("transformer."): param for name, param in model.named_parameters()}


def adapters_of(model):
    """Likewise, of a model with adapters."""
    return {name.removeprefix("base_model.model.").removeprefix("transformer.").replace(".default.", "."): param
            for name, param in model.named_parameters() if param.requires_grad}


def fill(model):
    into_residual = 0.02 / math.sqrt(2.0 * LAYERS)
    with torch.no_grad():
        for name, param in params_of(model).items():
            if param.dim() == 2:
                deviation = into_residual if name.endswith("c_proj.weight") else 0.02
                param.copy_(torch.tensor(normal(name, param.numel(), deviation).reshape(param.shape)))
            else:
                param.fill_(0.0 if name.endswith(".bias") else 1.0)


# ---- data: each token follows from the one before ---------------------------------------------


def make_batch(step, vocab):
    rows = []
    for b in range(BATCH):
        row = [(37 * step + 11 * b) % vocab]
        while len(row) <= SEQ:
            row.append((3 * row[-1] + 5) % vocab)
        rows.append(row)
    rows = torch.tensor(rows)
    return rows[:, :-1], rows[:, 1:]


def make_documents(step, vocab):
    """Of each: what goes in, the targets, and which of them count."""
    documents = []
    for b, lengths in enumerate(DOCUMENTS):
        for d, length in enumerate(lengths):
            tokens = [(37 * step + 11 * b + 5 * d) % vocab]
            while len(tokens) <= length:
                tokens.append((3 * tokens[-1] + 5) % vocab)
            counts = [float(b < len(DOCUMENTS) - 1 and (t + b) % 7 != 0) for t in range(length)]
            documents.append((torch.tensor([tokens[:-1]]), torch.tensor(tokens[1:]), torch.tensor(counts)))
    return documents


# ---- one model ---------------------------------------------------------------------------------


def loss_of(model, step):
    tokens, targets = make_batch(step, model.config.vocab_size)
    logits = model(input_ids=tokens).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def log_probs_of(model, step):
    """Of the targets of each document, and which count."""
    result = []
    for tokens, targets, counts in make_documents(step, model.config.vocab_size):
        logits = model(input_ids=tokens).logits[0].float()
        result.append((-torch.nn.functional.cross_entropy(logits, targets, reduction="none"), counts))
    return result


def packed_loss_of(model, step):
    documents = log_probs_of(model, step)
    return -sum((p * counts).sum() for p, counts in documents) / sum(counts.sum() for _, counts in documents)


def describe_gpt(config):
    return dict(layers=LAYERS, channels=config.n_embd, heads=config.n_head, seq=config.n_positions,
                vocab=config.vocab_size)


def describe(config):
    """The sizes and switches by the names of zr_decoder_shape_t."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * LAYERS
    rope = config.rope_parameters
    if config.model_type == "mistral" and config.sliding_window:
        kinds = ["sliding_attention"] * LAYERS
    rotated = getattr(config, "no_rope_layers", None) or [1] * LAYERS
    is_qwen2 = config.model_type == "qwen2"
    attention_bias = bool(getattr(config, "attention_bias", False))
    return dict(
        layers=LAYERS, channels=config.hidden_size, heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        wide=config.intermediate_size, seq=config.max_position_embeddings, vocab=config.vocab_size,
        epsilon=config.rms_norm_eps, theta=rope["rope_theta"], scaling=rope["rope_type"],
        factor=rope.get("factor", 1.0), low_freq_factor=rope.get("low_freq_factor", 1.0),
        high_freq_factor=rope.get("high_freq_factor", 4.0),
        original=rope.get("original_max_position_embeddings", 1), tied=config.tie_word_embeddings,
        qkv_bias=is_qwen2 or attention_bias, out_bias=attention_bias,
        mlp_bias=bool(getattr(config, "mlp_bias", False)), normalises_qk=config.model_type == "qwen3",
        window=config.sliding_window or 0 if "sliding_attention" in kinds else 0,
        windowed=[int(kind == "sliding_attention") for kind in kinds],
        unrotated=[int(not is_rotated) for is_rotated in rotated])


def make_model(family, options):
    config = getattr(transformers, family + "Config")(**options)
    config._attn_implementation = "eager"
    kind = "GPT2LMHeadModel" if family == "GPT2" else family + "ForCausalLM"
    model = getattr(transformers, kind)(config).float().train()
    fill(model)
    return model


def rounded(value):
    return float(f"{value:.9g}")


def gradients_of(params):
    gradients = {}
    for name, param in params.items():
        gradient = param.grad.double().flatten()
        probe = torch.tensor(normal(name + ".probe", param.numel(), 1.0)).double()
        gradients[name] = [rounded(gradient.norm().item()), rounded((gradient @ probe).item())]
    return gradients


def losses_of(make, params_of, find_loss, dtype):
    """Of AdamW steps on fp32 weights, of which the model has a copy of the dtype."""
    masters = list(params_of(make()).values())
    model = make().to(dtype)
    params = list(params_of(model).values())
    groups = [{"params": [p for p in masters if p.dim() == n], "weight_decay": decay} for n, decay in ((2, WEIGHT_DECAY), (1, 0.0))]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(BETA1, BETA2), eps=EPSILON)
    losses = []
    for step in range(STEPS):
        model.zero_grad()
        loss = find_loss(model, step)
        loss.backward()
        for master, param in zip(masters, params):
            master.grad = param.grad.float()
        optimizer.step()
        for master, param in zip(masters, params):
            param.data.copy_(master)
        losses.append(rounded(loss.item()))
    return losses


def train(make, params_of, find_loss, make_for_gradients=None):
    model = (make_for_gradients or make)()
    find_loss(model, 0).backward()
    return dict(losses=losses_of(make, params_of, find_loss, torch.float32),
                bf16_losses=losses_of(make, params_of, find_loss, torch.bfloat16),
                gradients=gradients_of(params_of(model)))


def make_adapted(family, options, text, deviation):
    """A begins as libzero's, which is PEFT's but for the numbers that were drawn."""
    targets, rank, alpha = text
    names = targets if targets == "all-linear" else targets.split(",")
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=names, fan_in_fan_out=family == "GPT2",
                             task_type="CAUSAL_LM")
    model = peft.get_peft_model(make_model(family, options), config)
    with torch.no_grad():
        for name, param in adapters_of(model).items():
            is_a = name.endswith("lora_A.weight")
            values = uniform(name, param.numel(), (3.0 * param.shape[1]) ** -0.5) if is_a else \
                normal(name + ".start", param.numel(), deviation)
            param.copy_(torch.tensor(values.reshape(param.shape)))
    return model


def train_adapters(family, options):
    targets, rank, alpha = text = LORA.get(family, ("all-linear", 3, 6))
    trained = train(lambda: make_adapted(family, options, text, 0.0), adapters_of, loss_of,
                    lambda: make_adapted(family, options, text, 0.1))
    return dict(text=f"rank={rank},alpha={alpha},targets={targets}", **trained)


def describe_model(family, options):
    model = make_model(family, options)
    shape = describe_gpt(model.config) if family == "GPT2" else describe(model.config)
    with torch.no_grad():
        log_probs = [rounded(value) for p, _ in log_probs_of(model, 0) for value in p.tolist()]
    packed = dict(train(lambda: make_model(family, options), params_of, packed_loss_of), log_probs=log_probs)
    return dict(shape=shape, **train(lambda: make_model(family, options), params_of, loss_of), packed=packed,
                lora=train_adapters(family, options))


def check(stored, found, path):
    """The same, but for rounding, versions, and the steps that were left out."""
    if isinstance(found, dict):
        assert stored.keys() == found.keys(), path
        for key in found.keys() - {"torch", "transformers", "peft"}:
            check(stored[key], found[key], f"{path}/{key}")
    elif isinstance(found, list) and len(found) <= len(stored):
        for i, value in enumerate(found):
            check(stored[i], value, f"{path}/{i}")
    elif isinstance(found, float) and not isinstance(stored, str):
        most = 5e-3 if "/bf16_losses/" in path else 1e-5 * (1 + abs(found))
        assert abs(stored - found) <= most, (path, stored, found)
    else:
        assert stored == found, (path, stored, found)


def main():
    torch.set_num_threads(1)  # the models are tiny
    torch.manual_seed(0)
    reference = dict(made_by="tests/ref/make_decoder_transformers_reference.py",
                     torch=torch.__version__.split("+")[0], transformers=transformers.__version__,
                     peft=peft.__version__, batch=BATCH, seq=SEQ, seed=SEED, lr=LR, beta1=BETA1, beta2=BETA2,
                     epsilon=EPSILON, weight_decay=WEIGHT_DECAY, documents=DOCUMENTS,
                     models={name: describe_model(*case) for name, case in CASES.items()})
    if len(sys.argv) == 1:
        models = reference.pop("models")
        print(json.dumps(reference)[:-1] + ', "models": {')
        print(",\n".join(json.dumps(name) + ": {" + ",\n".join(
            f'"{key}": {json.dumps(value)}' for key, value in model.items()) + "}" for name, model in models.items()))
        print("}}")
        return
    with open(sys.argv[2], encoding="utf-8") as file:
        check(json.load(file), reference, "")
    print(f"{len(CASES)} models are as transformers {transformers.__version__} has them")


if __name__ == "__main__":
    main()
