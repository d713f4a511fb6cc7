#!/usr/bin/env python3
"""Make tests/ref/optimizers_torch_reference.json: what PyTorch's optimizers do to a few numbers.

    pip install torch
    python3 tests/ref/make_optimizers_torch_reference.py > tests/ref/optimizers_torch_reference.json
    python3 tests/ref/make_optimizers_torch_reference.py --check FILE

AdamW and SGD are torch.optim's. Lion, which PyTorch does not have, is algorithm 2 of Chen et al.
2023 (Symbolic Discovery of Optimization Algorithms) in PyTorch's operations. All are computed in
double precision, from values and gradients that fp32 has exactly. --check holds a file to what
PyTorch gives here; without PyTorch it is skipped (exit status 77).
"""

import json
import sys

try:
    import torch
except ImportError:
    print("skipped: this Python has no torch")
    sys.exit(77)

N_ELEMS, N_STEPS = 24, 8

CASES = [
    {"optimizer": "AdamW", "lr": 3e-3, "weight_decay": 0.1,
     "hypers": {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8}},
    {"optimizer": "AdamW", "lr": 1e-2, "weight_decay": 0.0,
     "hypers": {"beta1": 0.5, "beta2": 0.999, "epsilon": 1e-3}},
    {"optimizer": "Lion", "lr": 1e-3, "weight_decay": 0.1, "hypers": {"beta1": 0.9, "beta2": 0.99}},
    {"optimizer": "Lion", "lr": 1e-2, "weight_decay": 0.0, "hypers": {"beta1": 0.5, "beta2": 0.8}},
    {"optimizer": "SGD", "lr": 1e-2, "weight_decay": 0.0, "hypers": {"momentum": 0.0, "nesterov": 0}},
    {"optimizer": "SGD", "lr": 1e-2, "weight_decay": 0.1, "hypers": {"momentum": 0.9, "nesterov": 0}},
    {"optimizer": "SGD", "lr": 1e-2, "weight_decay": 0.1, "hypers": {"momentum": 0.9, "nesterov": 1}},
]


def draw(seed):
    """Numbers from -2 to 2 in steps of 1/512; every seventh is 0."""
    numbers = []
    for i in range(N_ELEMS):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        numbers.append(0.0 if i % 7 == 6 else ((seed >> 40) % 2049 - 1024) / 512)
    return numbers


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for param in group["params"]:
                state = self.state[param]
                m = state.setdefault("exp_avg", torch.zeros_like(param))
                c = beta1 * m + (1 - beta1) * param.grad
                param -= group["lr"] * (torch.sign(c) + group["weight_decay"] * param)
                state["exp_avg"] = beta2 * m + (1 - beta2) * param.grad


def make(case, param):
    hypers, common = case["hypers"], {"lr": case["lr"], "weight_decay": case["weight_decay"]}
    if case["optimizer"] == "AdamW":
        return torch.optim.AdamW([param], betas=(hypers["beta1"], hypers["beta2"]),
                                 eps=hypers["epsilon"], **common)
    if case["optimizer"] == "Lion":
        return Lion([param], betas=(hypers["beta1"], hypers["beta2"]), **common)
    return torch.optim.SGD([param], momentum=hypers["momentum"], nesterov=hypers["nesterov"] != 0,
                           **common)


def run(case, initial, gradients):
    param = torch.nn.Parameter(torch.tensor(initial, dtype=torch.float64))
    optimizer = make(case, param)
    for gradient in gradients:
        param.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    arrays = {"master": param.detach().tolist()}
    for name in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
        if torch.is_tensor(optimizer.state[param].get(name)):
            arrays[name] = optimizer.state[param][name].tolist()
    return {**case, "arrays": arrays}


def reference():
    initial, gradients = draw(1), [draw(2 + step) for step in range(N_STEPS)]
    return {"torch": torch.__version__, "initial": initial, "gradients": gradients,
            "cases": [run(case, initial, gradients) for case in CASES]}


def check(path):
    with open(path, encoding="utf-8") as file:
        committed = json.load(file)
    made = reference()
    for key in ("initial", "gradients"):
        assert committed[key] == made[key], key
    assert len(committed["cases"]) == len(made["cases"])
    for a, b in zip(committed["cases"], made["cases"]):
        assert a["optimizer"] == b["optimizer"] and a["arrays"].keys() == b["arrays"].keys(), b
        for name, values in b["arrays"].items():
            for i, value in enumerate(values):
                error = abs(a["arrays"][name][i] - value)
                assert error <= 1e-12 * (1 + abs(value)), (b["optimizer"], name, i, error)
    print(f"{len(made['cases'])} cases are as PyTorch {torch.__version__} has them")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check(sys.argv[2])
    else:
        made = reference()
        lines = [f'"{key}": {json.dumps(made[key])}' for key in ("torch", "initial")]
        for key in ("gradients", "cases"):
            lines.append(f'"{key}": [\n' + ",\n".join(json.dumps(x) for x in made[key]) + "]")
        print("{" + ",\n".join(lines) + "}")
