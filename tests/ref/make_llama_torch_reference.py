#!/usr/bin/env python3
"""Make tests/ref/llama_torch_reference.json: what Llama's parts are in Hugging Face's transformers.

    pip install torch transformers
    python3 tests/ref/make_llama_torch_reference.py > tests/ref/llama_torch_reference.json
    python3 tests/ref/make_llama_torch_reference.py --check FILE

Attention is a module of transformers (Llama's, Qwen3's, SmolLM3's) whose projections pass on parts
of what they are given: so it is rotary positions, norms of queries and keys, and attention alone.
All is computed in double precision, but for what transformers itself casts to fp32, from values
that fp32 has exactly, and differentiated by autograd. --check holds a file to what transformers
gives here; without it the script is skipped (exit status 77).
"""

import json
import sys

try:
    import torch
    import torch.nn.functional as F
    import transformers
    from transformers.masking_utils import sliding_window_overlay
    from transformers.models.llama import modeling_llama
    from transformers.models.qwen3 import modeling_qwen3
    from transformers.models.smollm3 import modeling_smollm3
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SEQ, HEADS, KV_HEADS, HEAD_SIZE = 9, 2, 1, 8
EPSILON = 1e-4
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

# documents: where each begins. rope: whether positions turn anything.
CASES = [
    {"model": "llama", "rope": DEFAULT, "window": 0, "documents": [0]},
    {"model": "llama", "rope": LINEAR, "window": 0, "documents": [0, 4]},
    {"model": "llama", "rope": DEFAULT, "window": 3, "documents": [0]},
    {"model": "qwen3", "rope": LLAMA3, "window": 4, "documents": [0, 2, 3]},
    {"model": "smollm3", "rope": None, "window": 0, "documents": [0, 5]},
]


def draw(seed, *shape):
    """Numbers from -1 to 1 in steps of 1/1024."""
    numbers, n = [], 1
    for size in shape:
        n *= size
    for _ in range(n):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        numbers.append(((seed >> 40) % 2049 - 1024) / 1024)
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape)


class Part(torch.nn.Module):
    """A projection that gives channels [first, last)."""

    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, last

    def forward(self, x):
        return x[..., self.first:self.last]


def config_of(kind, rope, head_size=HEAD_SIZE, **more):
    return kind(hidden_size=HEADS * head_size, num_attention_heads=HEADS, head_dim=head_size,
                num_key_value_heads=KV_HEADS, rms_norm_eps=EPSILON, num_hidden_layers=4,
                max_position_embeddings=131072, rope_parameters=rope or DEFAULT,
                attn_implementation="eager", **more)


def make_attention(case):
    """The module, and what gives its cosines and sines."""
    if case["model"] == "qwen3":
        config = config_of(transformers.Qwen3Config, case["rope"])
        module = modeling_qwen3.Qwen3Attention(config, layer_idx=0)
        angles = modeling_qwen3.Qwen3RotaryEmbedding(config)
    elif case["model"] == "smollm3":
        config = config_of(transformers.SmolLM3Config, case["rope"], pad_token_id=0,
                           no_rope_layers=[0, 1, 1, 1])
        module = modeling_smollm3.SmolLM3Attention(config, layer_idx=0)
        angles = modeling_smollm3.SmolLM3RotaryEmbedding(config)
        assert not module.use_rope
    else:
        config = config_of(transformers.LlamaConfig, case["rope"])
        module = modeling_llama.LlamaAttention(config, layer_idx=0)
        angles = modeling_llama.LlamaRotaryEmbedding(config)
    ends = [HEADS * HEAD_SIZE, (HEADS + KV_HEADS) * HEAD_SIZE, (HEADS + 2 * KV_HEADS) * HEAD_SIZE]
    module.q_proj, module.k_proj = Part(0, ends[0]), Part(ends[0], ends[1])
    module.v_proj, module.o_proj = Part(ends[1], ends[2]), torch.nn.Identity()
    return module.double(), angles


def starts_of(case):
    return [max(d for d in case["documents"] if d <= t) for t in range(SEQ)]


def run_attention(case):
    module, angles = make_attention(case)
    starts = starts_of(case)
    qkv = (2 * draw(1, 1, SEQ, (HEADS + 2 * KV_HEADS) * HEAD_SIZE)).requires_grad_()
    mask = torch.full((1, 1, SEQ, SEQ), float("-inf"), dtype=torch.float64)
    in_window = sliding_window_overlay(case["window"] or SEQ)
    for t in range(SEQ):
        for s in range(starts[t], t + 1):
            if in_window(0, 0, t, s):
                mask[0, 0, t, s] = 0.0
    result = {}
    has_norms = hasattr(module, "q_norm")
    if has_norms:
        with torch.no_grad():
            module.q_norm.weight.copy_(draw(2, HEAD_SIZE))
            module.k_norm.weight.copy_(draw(3, HEAD_SIZE))
    positions = torch.tensor([[t - starts[t] for t in range(SEQ)]])
    out = module(hidden_states=qkv, position_embeddings=angles(qkv, positions),
                 attention_mask=mask)[0]
    (out * draw(4, 1, SEQ, HEADS * HEAD_SIZE)).sum().backward()
    result["out"], result["dqkv"] = out, qkv.grad
    if has_norms:
        result["dq_weight"], result["dk_weight"] = module.q_norm.weight.grad, module.k_norm.weight.grad
    return {**case, "starts": starts, "has_norms": has_norms, "is_turned": case["rope"] is not None,
            **{name: rounded(value) for name, value in result.items()}}


def run_others():
    """RMSNorm, SwiGLU, and cross-entropy in which targets are ignored."""
    x = draw(5, 4, 12).requires_grad_()
    norm = modeling_llama.LlamaRMSNorm(12, EPSILON).double()
    with torch.no_grad():
        norm.weight.copy_(draw(6, 12))
    normal = norm(x)
    (normal * draw(7, 4, 12)).sum().backward()
    gate_up = (8 * draw(8, 4, 2, 5)).requires_grad_()
    gated = F.silu(gate_up[:, 0]) * gate_up[:, 1]
    (gated * draw(9, 4, 5)).sum().backward()
    hidden, weight = draw(10, 6, 5).requires_grad_(), (4 * draw(11, 7, 5)).requires_grad_()
    targets = torch.tensor([3, -100, 0, 6, -100, 2])
    loss = F.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    loss.backward()
    return {"norm": {"y": rounded(normal), "dx": rounded(x.grad), "dweight": rounded(norm.weight.grad)},
            "swiglu": {"y": rounded(gated), "dgate_up": rounded(gate_up.grad)},
            "head": {"targets": targets.tolist(), "loss": [loss.item()], "dx": rounded(hidden.grad),
                     "dweight": rounded(weight.grad)}}


def frequencies_of(rope, head_size):
    config = config_of(transformers.LlamaConfig, rope, head_size)
    return {"head_size": head_size, "rope": rope,
            "frequencies": rounded(modeling_llama.LlamaRotaryEmbedding(config).inv_freq)}


def rounded(tensor):
    """To nine digits: more than fp32 has."""
    return [float(f"{value:.9g}") for value in tensor.detach().flatten().tolist()]


def reference():
    return {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
            "shape": {"seq": SEQ, "heads": HEADS, "kv_heads": KV_HEADS, "head_size": HEAD_SIZE},
            "epsilon": EPSILON, **run_others(),
            "frequencies": [frequencies_of(DEFAULT, 64), frequencies_of(LINEAR, 20),
                            frequencies_of(LLAMA3, 128)],
            "cases": [run_attention(case) for case in CASES]}


def compare(committed, made, where):
    if isinstance(made, dict):
        assert committed.keys() == made.keys(), where
        for key, value in made.items():
            if key not in ("torch", "transformers"):
                compare(committed[key], value, f"{where} {key}")
    elif isinstance(made, list):
        assert len(committed) == len(made), where
        for i, value in enumerate(made):
            compare(committed[i], value, f"{where} {i}")
    elif isinstance(made, float):
        assert abs(committed - made) <= 1e-6 * (1 + abs(made)), (where, committed, made)
    else:
        assert committed == made, (where, committed, made)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--check"]:
        with open(sys.argv[2], encoding="utf-8") as file:
            compare(json.load(file), reference(), "")
        print(f"as transformers {transformers.__version__} has it")
    else:
        made = reference()
        lines = [f'"{key}": {json.dumps(value)}' for key, value in made.items()
                 if key not in ("frequencies", "cases")]
        for key in ("frequencies", "cases"):
            lines.append(f'"{key}": [\n' + ",\n".join(json.dumps(x) for x in made[key]) + "]")
        print("{" + ",\n".join(lines) + "}")
