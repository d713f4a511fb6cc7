#!/usr/bin/env python3
"""Exchange models with Hugging Face's and compare what both say of the same tokens.

    check_hugging_face.py BIN MODEL_SAYS

BIN has zero-checkpoint and zero-train, MODEL_SAYS prints what our own model says (model_says.c).
Exits with 77 where Python has no torch, transformers, peft, tokenizers, safetensors or numpy.

To libzero: models with random weights, saved by transformers in fp32, bf16 and fp16, in one file and
in several, and in the form that older files have, are imported; ours must say the same as theirs.
From libzero: a model that zero-train has trained, and imported ones, are exported; theirs must say
the same as ours. Files of llm.c are read here a second time, by their description.

Of the Llama family each model_type goes in and comes back with its tokenizer: equal weights, logits
and chat template, and it generates. Steps of training are those of torch's AdamW.

Low-rank adapters of PEFT go in beside a model, are trained as there, come back, and are merged as there.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
try:
    import numpy as np
    import peft
    import safetensors.torch
    import tokenizers
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TOLERANCE = 1e-4
LAYERS, CHANNELS, HEADS, SEQ, VOCAB = 3, 48, 4, 16, 101
TOKENS = [7, 100, 0, 55, 55, 3, 98, 21, 64, 1]

BIN, MODEL_SAYS = pathlib.Path(sys.argv[1]), sys.argv[2]
n_checks = 0


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check(what, difference, most=TOLERANCE):
    global n_checks
    n_checks += 1
    print(f"{what}: {difference:.3g}")
    if not difference <= most:
        sys.exit(f"{what}: they differ by {difference:.3g}; at most {most:g} is allowed")


# ---- their model --------------------------------------------------------------------------------


def make_model(seed):
    """Weights that are larger than they start: what is confused shows."""
    torch.manual_seed(seed)
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=SEQ, n_embd=CHANNELS,
                                     n_layer=LAYERS, n_head=HEADS, bos_token_id=None,
                                     eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.add_(0.1 * torch.randn_like(value))
    return model


def their_logits(model):
    with torch.no_grad():
        return model.eval().float()(torch.tensor([TOKENS])).logits[0].double()


def load(folder):
    model, report = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    wrong = {kind: list(names) for kind, names in report.items() if names}
    if wrong:
        sys.exit(f"{folder}: {wrong}")
    return model


# ---- our model ------------------------------------------------------------------------------------


def our_log_probs(folder):
    return torch.tensor(json.loads(run(MODEL_SAYS, "log-probs", folder, *TOKENS)), dtype=torch.float64)


def difference(logits, log_probs):
    """Logits have no zero point: their softmax counts."""
    return (torch.log_softmax(logits, -1) - log_probs).abs().max().item()


def same_weights(model, folder):
    """Largest difference from what a folder or a file of safetensors has."""
    paths = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
    tensors = {}
    for path in paths:
        tensors.update(safetensors.torch.load_file(path))
    wanted = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    if set(tensors) != set(wanted):
        sys.exit(f"{folder}: {set(tensors) ^ set(wanted)}")
    return max((tensors[name].double() - wanted[name].double()).abs().max().item()
               for name in wanted)


# ---- there and back -------------------------------------------------------------------------------


def save_as_before(model, folder):
    """As older files are: no prefix, masks as buffers, the output's matrix, and no __metadata__."""
    folder.mkdir()
    model.config.save_pretrained(folder)
    tensors = {name.removeprefix("transformer."): value.contiguous().clone()
               for name, value in model.state_dict().items()}
    for layer in range(LAYERS):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(SEQ, SEQ).tril().view(1, 1, SEQ, SEQ)
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


def check_to_libzero(work):
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    for name, dtype in kinds.items():
        model = make_model(1).to(dtype)
        model.save_pretrained(work / name, max_shard_size="100KB" if name == "bf16" else "1GB")
        run(BIN / "zero-checkpoint", "import", work / name, "--checkpoint-dir", work / f"ck_{name}")
        check(f"{name} to libzero, log-probabilities",
              difference(their_logits(model), our_log_probs(work / f"ck_{name}")))
    model = make_model(2)
    save_as_before(model, work / "before")
    run(BIN / "zero-checkpoint", "import", work / "before", "--checkpoint-dir", work / "ck_before")
    check("older form to libzero, log-probabilities",
          difference(their_logits(model), our_log_probs(work / "ck_before")))


def check_export(work, checkpoint, ours):
    """Everything that export can write of a checkpoint."""
    out = work / f"{checkpoint.name}_out"
    out.mkdir()
    run(BIN / "zero-checkpoint", "export", checkpoint, "-o", out / "one", "--dtype", "fp32")
    model = load(out / "one")
    check(f"{checkpoint.name} from libzero, log-probabilities", difference(their_logits(model), ours))
    run(BIN / "zero-checkpoint", "export", checkpoint, "-o", out / "some", "--shard-size", "100kB",
        "--dtype", "fp32")
    check(f"{checkpoint.name} in several files, weights", same_weights(model, out / "some"), 0.0)
    check(f"{checkpoint.name} in several files, logits",
          (their_logits(load(out / "some")) - their_logits(model)).abs().max().item(), 0.0)
    for name, dtype in {"bf16": torch.bfloat16, "fp16": torch.float16}.items():
        path = out / f"{name}.safetensors"
        run(BIN / "zero-checkpoint", "export", checkpoint, "-o", path, "--dtype", name)
        check(f"{checkpoint.name} in {name}, weights against torch's rounding",
              same_weights(model.to(dtype), path), 0.0)
        model = load(out / "one")
    check_llmc(checkpoint, model, out)


def read_llmc(path):
    """A file of llm.c by its description: a header of 256 int32, then arrays of all layers."""
    header = np.fromfile(path, dtype=np.int32, count=256)
    magic, version, seq, vocab, layers, heads, c, padded = header[:8].tolist()
    assert magic == 20240326 and version in (3, 5) and padded % 128 == 0
    assert (seq, vocab, layers, heads, c) == (SEQ, VOCAB, LAYERS, HEADS, CHANNELS)
    if version == 3:
        values = torch.from_numpy(np.fromfile(path, dtype=np.float32, offset=1024))
    else:
        values = torch.from_numpy(np.fromfile(path, dtype=np.int16, offset=1024))
        values = values.view(torch.bfloat16).float()
    shapes = {"wte": (padded, c), "wpe": (seq, c), "ln_1.weight": (layers, c),
              "ln_1.bias": (layers, c), "attn.c_attn.weight": (layers, 3 * c, c),
              "attn.c_attn.bias": (layers, 3 * c), "attn.c_proj.weight": (layers, c, c),
              "attn.c_proj.bias": (layers, c), "ln_2.weight": (layers, c),
              "ln_2.bias": (layers, c), "mlp.c_fc.weight": (layers, 4 * c, c),
              "mlp.c_fc.bias": (layers, 4 * c), "mlp.c_proj.weight": (layers, c, 4 * c),
              "mlp.c_proj.bias": (layers, c), "ln_f.weight": (c,), "ln_f.bias": (c,)}
    arrays, at = {}, 0
    for name, shape in shapes.items():
        n = int(np.prod(shape))
        arrays[name] = values[at:at + n].view(shape)
        at += n
    assert at == len(values) and not arrays["wte"][vocab:].any()
    tensors = {"transformer.wte.weight": arrays["wte"][:vocab],
               "transformer.wpe.weight": arrays["wpe"]}
    for name, array in arrays.items():
        if name.startswith("ln_f"):
            tensors["transformer." + name] = array
        elif "." in name:
            for layer in range(layers):
                value = array[layer]
                tensors[f"transformer.h.{layer}.{name}"] = value.T if value.dim() == 2 else value
    return tensors


def check_llmc(checkpoint, model, out):
    for name, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16}.items():
        path = out / f"{name}.bin"
        run(BIN / "zero-checkpoint", "export", checkpoint, "-o", path, "--format", "llm.c",
            "--dtype", name)
        tensors = read_llmc(path)
        wanted = {key: value for key, value in model.state_dict().items() if key != "lm_head.weight"}
        assert set(tensors) == set(wanted), set(tensors) ^ set(wanted)
        worst = max((tensors[key] - wanted[key].to(dtype).float()).abs().max().item()
                    for key in wanted)
        check(f"{checkpoint.name} as a file of llm.c in {name}, weights", worst, 0.0)


def check_from_libzero(work):
    """A model that zero-train has trained, and one that it has trained on from theirs."""
    shape = f"layers={LAYERS},channels={CHANNELS},heads={HEADS},seq={SEQ},vocab={VOCAB}"
    text = work / "text"
    text.write_bytes(bytes((i * i + i // 7) % 90 for i in range(4000)))
    train = [BIN / "zero-train", "--model", shape, "--data", text, "--steps", 5, "--lr", "1e-2",
             "--checkpoint-every", 5, "--device", "host", "--quiet"]
    run(*train, "--checkpoint-dir", work / "trained", "--ranks", 2, "--stage", 3)
    check_export(work, work / "trained", our_log_probs(work / "trained"))
    before = our_log_probs(work / "ck_bf16")
    run(*train, "--checkpoint-dir", work / "ck_bf16", "--resume")
    after = our_log_probs(work / "ck_bf16")
    if not (after - before).abs().max().item() > 1e-3:
        sys.exit("5 steps from an imported model have changed nothing")
    check_export(work, work / "ck_bf16", after)


# ---- the Llama family -----------------------------------------------------------------------------

SIZES = dict(vocab_size=131, hidden_size=32, intermediate_size=44, num_hidden_layers=4,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)
TYPES = {
    "llama": ("LlamaConfig", dict(head_dim=10, attention_bias=True, mlp_bias=True,
                                  rope_parameters=LLAMA3, rms_norm_eps=1e-5)),
    "qwen2": ("Qwen2Config", dict(tie_word_embeddings=True, use_sliding_window=True,
                                  sliding_window=4, max_window_layers=2)),
    "qwen3": ("Qwen3Config", dict(head_dim=16, tie_word_embeddings=False)),
    "mistral": ("MistralConfig", dict(sliding_window=5, head_dim=None)),
    "smollm3": ("SmolLM3Config", dict(no_rope_layers=[1, 1, 1, 0], use_sliding_window=False)),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CHAT = [{"role": "user", "content": "w7 w9"}]


def make_tokenizer():
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, 131)}}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<pad>"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=own, bos_token="<s>",
                                                     eos_token="</s>", pad_token="<pad>")
    tokenizer.chat_template = "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}"
    return tokenizer


def make_decoder(name, seed):
    torch.manual_seed(seed)
    kind, more = TYPES[name]
    config = getattr(transformers, kind)(**{**SIZES, **more})
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.1 * torch.randn_like(value))
    return model


def load_decoder(folder, dtype):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", dtype=dtype)
    wrong = {kind: list(names) for kind, names in report.items() if names}
    if wrong:
        sys.exit(f"{folder}: {wrong}")
    return model


def stored(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(safetensors.torch.load_file(path))
    return tensors


def check_same_folder(name, came, back):
    """Names, dtypes and bytes of tensors, and all files but those of weights."""
    a, b = stored(came), stored(back)
    if set(a) != set(b):
        sys.exit(f"{name}: {set(a) ^ set(b)}")
    for key in a:
        if a[key].dtype != b[key].dtype or not torch.equal(a[key], b[key]):
            sys.exit(f"{name}: {key} has come back otherwise")
    others = [path for path in came.iterdir() if "safetensors" not in path.name]
    for path in others:
        if path.read_bytes() != (back / path.name).read_bytes():
            sys.exit(f"{name}: {path.name} has come back otherwise")
    check(f"{name} there and back, {len(a)} tensors and {len(others)} files differ", 0.0, 0.0)


def generate(folder, dtype):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(CHAT, tokenize=False)
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    return text, load_decoder(folder, dtype).generate(ids, max_new_tokens=8, do_sample=False)[0].tolist()


def check_training(name, model, folder, work, more=(), steps=3):
    """Steps on sequences that are all the same, so that their order does not matter."""
    seq = 16
    text = work / "as"
    text.write_bytes(b"a" * 2000)
    params = [param for param in model.parameters() if param.requires_grad]
    report = json.loads(run(BIN / "zero-train", "--checkpoint-dir", folder, "--resume", "--data", text,
                            "--steps", steps, "--seq", seq, "--micro-batch", 2, "--lr", "1e-3",
                            "--schedule", "constant", "--warmup", 0, "--weight-decay", "0",
                            "--clip", "0", "--beta2", "0.999", "--dtype", "fp32", "--device", "host", "--json", *more))
    model = model.float().train()
    optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.0)
    tokens, losses = torch.full((2, seq + 1), ord("a")), []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1),
                                                 tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    check(f"{name}, loss of the first step", abs(report["loss"]["first"] - losses[0]), 1e-5)
    check(f"{name}, loss of step {steps}", abs(report["loss"]["last"] - losses[-1]), 1e-4)


def check_decoder(name, seed, work):
    dtype = DTYPES[seed % 3]
    came, checkpoint, back = work / name, work / f"ck_{name}", work / f"{name}_back"
    make_decoder(name, seed).to(dtype).save_pretrained(came, max_shard_size="20KB")
    make_tokenizer().save_pretrained(came)
    run(BIN / "zero-checkpoint", "import", came, "--checkpoint-dir", checkpoint)
    model = load_decoder(came, torch.float32)
    check(f"{name} to libzero, log-probabilities",
          difference(their_logits(model), our_log_probs(checkpoint)), 1e-5)
    run(BIN / "zero-checkpoint", "export", checkpoint, "-o", back, "--shard-size", "30kB")
    check_same_folder(name, came, back)
    if generate(came, dtype) != generate(back, dtype):
        sys.exit(f"{name}: the folder that came back generates something else")
    check_training(name, model, checkpoint, work)
    run(BIN / "zero-checkpoint", "export", checkpoint, "-o", work / f"{name}_tuned", "--dtype", "fp32")
    check(f"{name} trained, from libzero, log-probabilities",
          difference(their_logits(load_decoder(work / f"{name}_tuned", torch.float32)),
                     our_log_probs(checkpoint)), 1e-5)


# ---- adapters -------------------------------------------------------------------------------------

ADAPTERS = {"gpt2": (["c_attn", "mlp.c_proj"], 3, 6, False), "llama": ("all-linear", 4, 4, False),
            "qwen3": (["q_proj", "down_proj"], 5, 8, True)}


def make_base(name):
    return make_model(3) if name == "gpt2" else make_decoder(name, 7)


def make_adapters(name, seed):
    targets, rank, alpha, rslora = ADAPTERS[name]
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, fan_in_fan_out=name == "gpt2",
                             use_rslora=rslora, task_type="CAUSAL_LM")
    model = peft.get_peft_model(make_base(name), config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            if param.requires_grad:
                param.add_(0.1 * torch.randn_like(param))
    return model


def merged(model):
    """Without what transformers does not store twice."""
    tensors = model.merge_and_unload().state_dict()
    return {key: value for key, value in tensors.items()
            if key != "lm_head.weight" or not model.config.tie_word_embeddings}


def check_merged(what, name, checkpoint, folder, model):
    """What is exported merged is what PEFT makes of it."""
    run(BIN / "zero-checkpoint", "export", checkpoint, "--merge", "-o", folder)
    tensors, wanted = stored(folder), merged(model)
    if set(tensors) != set(wanted):
        sys.exit(f"{name}: {set(tensors) ^ set(wanted)}")
    check(f"{name}, {what}, merged weights",
          max((tensors[key].double() - wanted[key].double()).abs().max().item() for key in wanted), 1e-6)


NF4_LEVELS = [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0, 0.0795803,
              0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]  # QLoRA, appendix E


def decoded_bf16(weight):
    return weight.bfloat16().float()


def decoded_nf4(weight):
    """Blocks of 64 elements in the order of the file, each with its largest magnitude in bf16."""
    flat = weight.flatten()
    blocks = torch.nn.functional.pad(flat, (0, -flat.numel() % 64)).view(-1, 64)
    scales = blocks.abs().amax(dim=1, keepdim=True).bfloat16().float()
    levels = torch.tensor(NF4_LEVELS)
    codes = (blocks[..., None] / scales[..., None] - levels).abs().argmin(dim=-1)
    return (levels[codes] * scales).flatten()[:flat.numel()].view_as(weight)


def check_base(name, base, decoded, checkpoint, work):
    """Adapters train beside weights in fewer bits as they do in PEFT beside what those are decoded to."""
    model = make_adapters(name, 11)
    linears = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)
    with torch.no_grad():
        for module_name, module in model.named_modules():
            if isinstance(module, linears) and "lora_" not in module_name and "lm_head" not in module_name:
                module.weight.copy_(decoded(module.weight))
    copy = work / f"ck_lora_{name}_{base}"
    shutil.copytree(checkpoint, copy)
    check_training(f"{name} with adapters, base in {base}", model, copy, work,
                   ["--stage", 3, "--ranks", 2, "--micro-batch", 1, "--lora-base", base], steps=20)


def check_adapters(name, work):
    came, adapters, checkpoint = work / f"base_{name}", work / f"lora_{name}", work / f"ck_lora_{name}"
    make_base(name).save_pretrained(came)
    model = make_adapters(name, 11)
    model.save_pretrained(adapters)
    run(BIN / "zero-checkpoint", "import", came, "--adapter", adapters, "--checkpoint-dir", checkpoint)
    run(BIN / "zero-checkpoint", "export", checkpoint, "--adapter", "-o", work / f"lora_{name}_back")
    a, b = stored(adapters), stored(work / f"lora_{name}_back")
    if set(a) != set(b) or any(not torch.equal(a[key], b[key]) for key in a):
        sys.exit(f"{name}: adapters have come back otherwise")
    check_merged("imported", name, checkpoint, work / f"merged_{name}", make_adapters(name, 11))
    for base, decoded in {"bf16": decoded_bf16, "nf4": decoded_nf4}.items():
        check_base(name, base, decoded, checkpoint, work)
    check_training(f"{name} with adapters", model, checkpoint, work, ["--stage", 3, "--ranks", 2, "--micro-batch", 1])
    run(BIN / "zero-checkpoint", "export", checkpoint, "--adapter", "-o", work / f"lora_{name}_tuned")
    tuned = peft.PeftModel.from_pretrained(make_base(name), work / f"lora_{name}_tuned")
    check_merged("trained", name, checkpoint, work / f"merged_{name}_tuned", tuned)


# Models that were never theirs: config.json is made of the shape.
OWN = "layers=4,channels=32,heads=4,kv-heads=2,wide=44,seq=64,vocab=131"
OWNS = {"llama": "", "qwen2": ",qkv-bias=1,tied=1", "qwen3": ",qk-norm=1,head-size=16",
        "mistral": ",window=5,windowed=all", "smollm3": ",unrotated=3",
        "llama, scaled": ",rope=llama3,rope-factor=8,rope-low=1,rope-high=4,rope-seq=16"}


def check_own(name, more, work):
    folder, out = work / f"own_{name}", work / f"own_{name}_out"
    text = work / "as"
    run(BIN / "zero-train", "--model", f"llama,{OWN}{more}", "--data", text, "--steps", 2, "--lr",
        "1e-2", "--seq", 16, "--device", "host", "--checkpoint-dir", folder, "--quiet")
    run(BIN / "zero-checkpoint", "export", folder, "-o", out)
    check(f"{name}, made here, log-probabilities",
          difference(their_logits(load_decoder(out, torch.float32)), our_log_probs(folder)), 1e-5)


def check_decoders(work):
    for seed, name in enumerate(TYPES):
        check_decoder(name, seed, work)
    for name, more in OWNS.items():
        check_own(name, more, work)


def main():
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)  # the models are tiny
    with tempfile.TemporaryDirectory(prefix="zr-test-hugging-face-") as folder:
        work = pathlib.Path(folder)
        check_to_libzero(work)
        check_from_libzero(work)
        check_decoders(work)
        for name in ADAPTERS:
            check_adapters(name, work)
    print(f"{n_checks} comparisons with torch {torch.__version__}, transformers "
          f"{transformers.__version__}, safetensors {safetensors.__version__}")


if __name__ == "__main__":
    main()
