"""Programs of fuzz_modules.py: which features there are, and how a seed becomes the source of a
module and of the loop that trains it.

Each feature of a program is drawn from a part of the seed of its own, so that one can be left out
and all else stays.
"""

import importlib.util
import random
import re
from typing import NamedTuple

ABSENT = "gathered"  # what an error says of a parameter that is not there
GRAD = r"one rank and reduce='auto'"  # of a gradient that is not
DROPPED = "set update_at='end'"  # of gradients that are updates already
ACCUM = "grad_accum.* says how many|declare how many the step has|or update at the end"  # of more micro-batches than were declared
HAS_PEFT = importlib.util.find_spec("peft") is not None


class Kind(NamedTuple):
    """A block: how it is made, and what it does to x; {m} is the module."""

    make: str
    use: str = "{m}(x)"
    refusal: str = ""  # an error that may refuse it; "": it has to work
    is_alone: bool = False  # ranks together do not compute what one computes
    weight: int = 1


class Feature(NamedTuple):
    """Anything else that is drawn."""

    chance: float
    refusal: str = ""
    is_alone: bool = False
    works_at: tuple = ()  # stages at which one rank is not refused


KINDS = {
    "linear": Kind("nn.Linear(8, 8)", "torch.tanh({m}(x))"),
    "mlp": Kind("nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))"),
    "inplace": Kind(
        "nn.Sequential(nn.Linear(8, 12), nn.ReLU(inplace=True), nn.Dropout(0.0), nn.Linear(12, 8))"
    ),
    "conv": Kind("nn.Conv1d(8, 8, 3, padding=1)", "{m}(x.transpose(1, 2)).transpose(1, 2)"),
    "layer_norm": Kind("nn.LayerNorm(8)", weight=3),
    "rms_norm": Kind("nn.RMSNorm(8)"),
    "batch_norm": Kind(
        "nn.BatchNorm1d(8)", "{m}(x.transpose(1, 2)).transpose(1, 2)", is_alone=True
    ),
    "group_norm": Kind("nn.GroupNorm(2, 8)", "{m}(x.transpose(1, 2)).transpose(1, 2)"),
    "attention": Kind("nn.MultiheadAttention(8, 2, batch_first=True)", "{m}(x, x, x)[0]", weight=2),
    "encoder": Kind(
        # silu: with others PyTorch computes evaluations without calling the layers in it
        "nn.TransformerEncoderLayer(8, 2, 16, 0.0, F.silu, batch_first=True)",
        weight=4,
    ),
    "gru": Kind("nn.GRU(8, 8, batch_first=True)", "{m}(x)[0]"),
    "lstm": Kind("nn.LSTM(8, 8, 2, batch_first=True)", "{m}(x)[0]"),
    "walk": Kind("Walk()"),
    "list": Kind("nn.ModuleList(nn.Linear(8, 8) for _ in range(3))", "each({m}, x)"),
    "dict": Kind(
        'nn.ModuleDict({{"a": nn.Linear(8, 8), "b": nn.LayerNorm(8)}})', '{m}["b"]({m}["a"](x))'
    ),
    "parameter_list": Kind(
        "nn.ParameterList([0.3 * torch.randn(8) for _ in range(3)])", "x * sum({m})"
    ),
    "parameter_dict": Kind(
        'nn.ParameterDict({{"used": torch.ones(8), "not": torch.ones(5)}})',
        'x * {m}["used"]',
    ),
    "functional": Kind("nn.Linear(8, 8)", "F.linear(x, {m}.weight, {m}.bias)"),
    "functional_call": Kind(
        "Pair()",
        "torch.func.functional_call({m}, dict({m}.named_parameters()), (x,))",
        refusal=ABSENT,
    ),
    "bypassing": Kind("Bypassing()"),
    "given": Kind("Given()", "x * {m}()"),
    "viewed": Kind(
        "Viewed()",
        'x * {m}()["both"][0] + {m}()["both"][1].sum()',
    ),
    "odd": Kind("Odd()"),
    "doubled": Kind("Doubled()"),
    "kept_on_ctx": Kind("KeptOnCtx()", refusal=ABSENT),
    "kept_in_list": Kind(
        "nn.Sequential(collections.OrderedDict(own=nn.Linear(8, 8)))", "KeptInList({m}.own)(x)"
    ),
    "experts": Kind("Experts()", refusal='all_gather of ".* parameters"'),
    "stacked": Kind("Stacked()"),
    "running": Kind("Running()"),
    "table": Kind("Table()", "{m}(x, tokens)"),
    "weight_norm": Kind("parametrizations.weight_norm(nn.Linear(8, 8))"),
    "old_weight_norm": Kind("nn.utils.weight_norm(nn.Linear(8, 8))"),
    "spectral_norm": Kind("parametrizations.spectral_norm(nn.Linear(8, 8))", is_alone=True),
    "orthogonal": Kind("parametrizations.orthogonal(nn.Linear(8, 8))"),
    "pre_norm": Kind("nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))", weight=3),
    "lora": Kind("Lora()", weight=3),
    "nested_checkpoint": Kind(
        "Pair()",
        "checkpoint(lambda x: {m}.down(checkpoint({m}.up, x, use_reentrant=False)), x, "
        "use_reentrant=False)",
    ),
    "dropout": Kind("nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2))", is_alone=True),
}

FEATURES = {
    # of a block
    "residual": Feature(0.6),
    "frozen": Feature(0.15),
    "shared": Feature(0.1),
    "tied": Feature(0.1),
    "twice": Feature(0.1),
    "switched": Feature(0.1),
    "checkpoint": Feature(0.15, refusal="or update at the end"),
    "checkpoint_reentrant": Feature(0.1),
    "checkpoint_all": Feature(0.15, refusal="or update at the end"),
    "saved_hooks": Feature(0.07),
    "block_autocast": Feature(0.04),
    "tensor_hook": Feature(0.07),
    "accumulate_hook": Feature(0.05),
    "backward_hook": Feature(0.07),
    "forward_hook": Feature(0.07),
    "replaced_forward": Feature(0.05),
    "activation_hook": Feature(0.05),
    # of the module
    "tied_head": Feature(0.2),
    "unused": Feature(0.15),
    "root_parameter": Feature(0.2),
    "autocast": Feature(0.1),
    "peft": Feature(0.15),
    "dict_output": Feature(0.15),
    "tuple_output": Feature(0.1),
    "dataclass_output": Feature(0.1),
    "regulariser_inside": Feature(0.05, refusal=ABSENT),
    "one_storage": Feature(0.03, refusal="storage"),
    # of the loop
    "decay": Feature(0.5),
    "clip": Feature(0.3),
    "torch_optimizer": Feature(0.5),
    "sgd": Feature(0.15),
    "groups": Feature(0.15),
    "bf16": Feature(0.05),
    "named_units": Feature(0.1),
    "two_ranks": Feature(0.2),
    "accumulate": Feature(0.3),
    # of a step
    "evaluate": Feature(0.15),
    "no_grad": Feature(0.1),
    "inference_mode": Feature(0.1),
    "dropped_forward": Feature(0.07),
    "two_forwards": Feature(0.1),
    "no_sync": Feature(0.07),
    "retain_graph": Feature(0.05, refusal=ACCUM),
    "penalty": Feature(0.05),
    "regulariser": Feature(0.05, refusal=ABSENT),
    "freeze": Feature(0.07),
    "unfreeze_first": Feature(0.03, refusal="was frozen when the engine was made"),
    "learning_rate": Feature(0.1),
    "gathered_read": Feature(0.1),
    "gathered_write": Feature(0.1),
    "write_by_hand": Feature(0.04, refusal=ABSENT, works_at=(0, 1, 2)),
    "load_state_dict": Feature(0.1),
    "save_and_load": Feature(0.1),
    "reopen": Feature(0.05),
    "whole_gradients": Feature(0.4),
    "torch_clip": Feature(0.05, refusal=GRAD, works_at=(0, 1)),
    "edit_gradients": Feature(0.05, refusal=GRAD, works_at=(0, 1)),
    "read_gradients": Feature(0.05, refusal=GRAD, works_at=(0, 1)),
    "no_gradient": Feature(0.04, refusal=GRAD, works_at=(0, 1)),
    "zero_grad": Feature(0.2),
    "drop_gradients": Feature(0.04, refusal=DROPPED),
    "other_accumulation": Feature(0.05, refusal=ACCUM),
    "nan": Feature(0.05),
    "averaged_model": Feature(0.04),
    "deep_copy": Feature(0.04),
}

if not HAS_PEFT:
    FEATURES["peft"] = FEATURES["peft"]._replace(chance=0.0)
ROWS = {**KINDS, **FEATURES}

NVME = {"nvme_capacity": "64MiB"}
PLACEMENTS = [
    {"stage": 0},
    {"stage": 1},
    {"stage": 2},
    {"stage": 0, "offload_optimizer": "cpu"},
    {"stage": 1, "offload_optimizer": "nvme", "master": "apart", **NVME},
    {"stage": 2, "offload_optimizer": "cpu", "offload_ratio": 0.5},
    {"stage": 2, "update_at": "backward"},
    {"stage": 3},
    {"stage": 3, "offload_params": "cpu"},
    {"stage": 3, "offload_optimizer": "cpu", "offload_params": "cpu", "update_at": "backward"},
    {"stage": 3, "offload_optimizer": "nvme", "offload_params": "nvme", **NVME},
    {
        "stage": 3,
        "offload_params": "cpu",
        "offload_activations": "nvme",
        "activations_capacity": "16MiB",
        **NVME,
    },
]
STAGE_3 = 7  # the first of them

HYPER = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-4}


class Draw:
    """Random choices. Each is of its own part of the seed."""

    def __init__(self, seed, without=frozenset()):
        self.seed, self.without = seed, frozenset(without)
        self.used = set()

    def dice(self, *place):
        return random.Random(f"{self.seed}/{place}")

    def keeps(self, name):
        """Whether a block or a step that is there is not left out."""
        if name in self.without:
            return False
        self.used.add(name)
        return True

    def _may(self, name, row):
        return name not in self.without and not (row.is_alone and self.n_ranks > 1)

    def has(self, name, *place):
        row = FEATURES[name]
        if self.dice(name, *place).random() >= row.chance or not self._may(name, row):
            return False
        self.used.add(name)
        return True

    def kind(self, *place):
        weights = [row.weight for row in KINDS.values()]
        name = self.dice("kind", *place).choices(list(KINDS), weights)[0]
        if not self._may(name, KINDS[name]):
            return "linear"
        self.used.add(name)
        return name


class Program(NamedTuple):
    source: str
    keywords: dict
    placements: list
    n_ranks: int
    used: frozenset
    seed: int
    without: frozenset

    def __str__(self):
        """A file that main() runs again."""
        places = "".join(f"    {p},\n" for p in self.placements)
        return (
            f"# features: {' '.join(sorted(self.used))}\n"
            f"SEED, N_RANKS = {self.seed}, {self.n_ranks}\nKEYWORDS = {self.keywords}\n"
            f"PLACEMENTS = [\n{places}]\n\n\n{self.source}"
        )

    def command(self):
        without = f" ZR_FUZZ_WITHOUT={','.join(sorted(self.without))}" if self.without else ""
        variables = f"ZR_FUZZ_SEED={self.seed} ZR_FUZZ_COUNT=1{without}"
        return f"{variables} python tests/python/fuzz_modules.py"


def write_block(draw, i, kinds, lines):
    """Block i of the module: statements of __init__, of forward, and of prepare(model)."""
    init, forward, after = lines
    name, use = kinds[i][0], KINDS[kinds[i][1]].use
    module, body = f"self.{name}", []
    for _ in range(2 if draw.has("twice", i) else 1):
        value = use.format(m=module)
        if draw.is_checkpointed or draw.has("checkpoint", i):
            value = f"checkpoint(lambda x: {value}, x, use_reentrant=False)"
        elif draw.has("checkpoint_reentrant", i):
            value = f"checkpoint(lambda x: {value}, x, use_reentrant=True)"
        body.append(f"x = x + {value}" if draw.has("residual", i) else f"x = {value}")
    if draw.has("block_autocast", i):
        body = [
            'with torch.autocast("cpu", torch.bfloat16):',
            *("    " + b for b in body),
            "x = x.to(self.front.weight.dtype)",
        ]
    if draw.has("activation_hook", i):
        body += ["if x.requires_grad:", "    x.register_hook(lambda g: g * 0.9)"]
    if draw.has("saved_hooks", i):
        body = ["with own_saved_hooks():", *("    " + b for b in body)]
    if draw.has("switched", i):
        body = [f'if "{name}" not in self.skipped:', *("    " + b for b in body)]
        draw.switched.append(name)
    forward += body
    if draw.has("frozen", i):
        after.append(f"model.{name}.requires_grad_(False)")
    if draw.has("tensor_hook", i):
        after += [
            f"for p in model.{name}.parameters():",
            "    if p.requires_grad:",
            "        p.register_hook(lambda g: g * 0.5)",
        ]
    if draw.has("accumulate_hook", i):
        after += [
            f"for p in model.{name}.parameters():",
            "    if p.requires_grad:",
            "        p.register_post_accumulate_grad_hook(read_gradient)",
        ]
    if draw.has("backward_hook", i):
        after.append(f"model.{name}.register_full_backward_hook(quiet_hook)")
    if draw.has("replaced_forward", i):
        after.append(
            f"model.{name}.forward = functools.partial(type(model.{name}).forward, model.{name})"
        )
    if draw.has("forward_hook", i):
        after += [
            f"model.{name}.register_forward_pre_hook(quiet_hook)",
            f"model.{name}.register_forward_hook(quiet_hook)",
        ]


def write_module(draw):
    """The source of Model and of prepare(model), and names of its blocks."""
    init = [
        "self.skipped = set()",
        "self.embed = nn.Embedding(11, 8)",
        "self.front = nn.Linear(8, 8)",
    ]
    forward = ["x = self.front(self.embed(tokens) + noise.to(self.front.weight.dtype))"]
    after, kinds = [], {}
    draw.is_checkpointed, draw.switched = draw.has("checkpoint_all"), []
    for i in range(draw.dice("blocks").randint(1, 5)):
        if not draw.keeps(f"block{i}"):
            continue
        if kinds and draw.has("shared", i):
            other, kind = kinds[draw.dice("shared of", i).choice(list(kinds))]
            kinds[i] = (f"b{i}", kind)
            init.append(f"self.b{i} = self.{other}")
        else:
            kinds[i] = (f"b{i}", draw.kind(i))
            init.append(f"self.b{i} = {KINDS[kinds[i][1]].make.format()}")
            if kinds[i][1] in ("linear", "functional") and draw.has("tied", i):
                init.append(f"self.b{i}.weight = self.front.weight")
        write_block(draw, i, kinds, (init, forward, after))
    init.append("self.head = nn.Linear(8, 11)")
    if draw.has("tied_head"):
        init.append("self.head.weight = self.embed.weight")
    if draw.has("unused"):
        init.append("self.unused = nn.Linear(3, 3)")
    if draw.has("root_parameter"):
        init += ["self.scale = nn.Parameter(torch.ones(8))", "self.scaled = Scaled()"]
        forward.append("x = self.scaled(x, self.scale)")
    if draw.has("one_storage"):
        init += [
            "both = torch.randn(2, 8)",
            "self.upper, self.lower = nn.Parameter(both[0]), nn.Parameter(both[1])",
        ]
        forward.append("x = x * self.upper + self.lower")
    forward += [
        "logits = self.head(x).float()",
        "loss = F.cross_entropy(logits.flatten(0, 1), tokens.roll(1, 1).flatten())",
    ]
    if draw.has("regulariser_inside"):
        forward.append("loss = loss + 0.01 * sum(p.square().sum() for p in self.parameters())")
    for feature, value in (
        ("dict_output", '{"loss": loss, "logits": logits}'),
        ("tuple_output", "(loss, logits)"),
        ("dataclass_output", "Output(loss, logits)"),
        (None, "loss"),
    ):
        if feature is None or draw.has(feature):
            forward.append(f"return {value}")
            break
    if draw.has("autocast"):
        forward = ['with torch.autocast("cpu", torch.bfloat16):', *("    " + f for f in forward)]
    lines = [
        "class Model(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        *("        " + i for i in init),
        "",
        "    def forward(self, tokens, noise):",
        *("        " + f for f in forward),
        "",
        "",
        "def prepare(model):",
        *("    " + a for a in after or ["pass"]),
        "    return model",
    ]
    return "\n".join(lines), [name for name, _ in kinds.values()]


def write_loop(draw, blocks, accum):
    """The source of train(t), which calls a Loop of fuzz_loops.py."""
    lines, at = [], 0
    is_saved = False

    def micro_batch(s, m):
        nonlocal at
        at += 1
        if draw.has("two_forwards", s, m):
            lines.append(f"t.backward(t.both(t.forward({at}), t.forward({at + 50})))")
        elif draw.has("penalty", s, m):
            lines.append(f"t.backward(t.penalised({at}))")
        elif draw.has("regulariser", s, m):
            lines.append(f"t.backward(t.regularised(t.forward({at})))")
        elif draw.has("retain_graph", s, m):
            lines.append(f"t.backward_twice(t.forward({at}))")
        elif draw.has("nan", s, m):
            lines.append(f"t.backward(t.not_a_number(t.forward({at})))")
        else:
            if draw.has("no_sync", s, m):
                lines.append(f"t.backward_without_sync(t.forward({at + 70}))")
            lines.append(f"t.backward(t.forward({at}))")

    def block_of(feature, s):
        return draw.dice(feature, "block", s).choice([*blocks, "front", "head"])

    for s in range(draw.dice("steps").randint(2, 6)):
        if not draw.keeps(f"step{s}"):
            continue
        lines.append(f"# step {s}")
        if draw.has("learning_rate", s):
            lines.append(f"t.set_learning_rate({draw.dice('rate', s).choice((3e-3, 2e-2, 0.0))})")
        if draw.has("freeze", s):
            lines.append(f't.turn("{block_of("freeze", s)}")')
        if draw.has("unfreeze_first", s):
            lines.append(f't.turn("{block_of("unfreeze_first", s)}", True)')
        if draw.switched and draw.dice("skip", s).random() < 0.4:
            lines.append(f't.skip("{draw.dice("skipped", s).choice(draw.switched)}")')
        if draw.has("zero_grad", s):
            lines.append("t.zero_grad()")
        if draw.has("dropped_forward", s):
            lines.append(f"t.forward({90 + s})")
        if draw.has("drop_gradients", s):  # of several micro-batches zero_grad() drops all or none
            drop = "t.zero_grad()" if accum == 1 else "t.drop_step()"
            lines += [f"t.backward(t.forward({80 + s}))", drop]
        for m in range(accum + (1 if draw.has("other_accumulation", s) else 0)):
            if draw.has("evaluate", s, m):
                lines.append(f't.evaluate({60 + at}, "eval")')
            micro_batch(s, m)
        for feature, call in (
            ("torch_clip", "t.torch_clip(0.05)"),
            ("edit_gradients", "t.edit_gradients(0.3)"),
            ("read_gradients", "t.read_gradients()"),
            ("no_gradient", 't.drop_gradient("front")'),
        ):
            if draw.has(feature, s):
                lines.append(call)
        lines.append("t.step()")
        for mode in ("no_grad", "inference_mode"):
            if draw.has(mode, s):
                lines.append(f't.evaluate({60 + at}, "{mode}")')
        if draw.has("gathered_read", s):
            lines.append(f't.read("{block_of("gathered_read", s)}")')
        if draw.has("gathered_write", s):
            lines.append(f't.write("{block_of("gathered_write", s)}", 0.9)')
        if draw.has("write_by_hand", s):
            lines.append(f't.write_by_hand("{block_of("write_by_hand", s)}", 0.9)')
        if draw.has("load_state_dict", s):
            lines.append("t.load_state_dict(0.95)")
        if draw.has("averaged_model", s):
            lines.append("t.average_model()")
        if draw.has("deep_copy", s):
            lines.append(f"t.call_a_copy({at})")
        if draw.has("reopen", s):
            lines.append("t.reopen()")
        if draw.has("save_and_load", s):
            lines.append("t.load()" if is_saved else "t.save()")
            is_saved = not is_saved
    return "\n".join(["def train(t):", *("    " + line for line in lines or ["pass"])])


def write(seed, without=frozenset(), placements=None):
    """The program of a seed."""
    draw = Draw(seed, without)
    draw.n_ranks = 1
    draw.n_ranks = 2 if draw.has("two_ranks") else 1
    keywords = dict(HYPER)
    if draw.has("sgd"):
        keywords = {"optimizer": "sgd", "lr": HYPER["lr"], "momentum": 0.9}
    keywords["weight_decay"] = 0.1 if draw.has("decay") else 0.0
    # every-micro-batch: else stages add several backwards in another order
    is_whole = draw.n_ranks == 1 and draw.has("whole_gradients")
    keywords["reduce"] = "auto" if is_whole else "every-micro-batch"
    accum = draw.dice("accumulation").choice((2, 3)) if draw.has("accumulate") else 1
    if accum > 1:
        keywords["grad_accum"] = accum
    if draw.has("clip"):
        keywords["clip"] = 0.5
    if draw.has("bf16"):
        keywords["dtype"] = "bf16"
    module, blocks = write_module(draw)
    if blocks and draw.has("named_units"):
        keywords["units"] = ["b*"]
    keywords["peft"] = draw.has("peft")
    keywords["groups"] = draw.has("groups")
    loop = write_loop(draw, blocks, accum)
    keywords["torch_optimizer"] = draw.has("torch_optimizer") or keywords["groups"]
    dice = draw.dice("placements")
    drawn = [
        dice.choice(PLACEMENTS[:STAGE_3]),
        dice.choice(PLACEMENTS[STAGE_3 + 1 :]),
        *dice.sample(PLACEMENTS, 2),
    ]
    drawn = [p for i, p in enumerate(drawn) if p not in drawn[:i]]
    return Program(
        f"{module}\n\n\n{loop}\n",
        keywords,
        drawn if placements is None else placements,
        draw.n_ranks,
        frozenset(draw.used),
        seed,
        frozenset(without),
    )


def load(source, name):
    """What a program defines."""
    space = {}
    exec("from fuzz_parts import *", space)
    exec(compile(source, name, "exec"), space)
    return space


def read(path):
    """A program that a finding has printed."""
    with open(path) as file:
        source = file.read()
    space = load(source, path)
    used = frozenset(re.search(r"^# features: (.*)$", source, re.M)[1].split())
    return Program(
        source,
        space["KEYWORDS"],
        space["PLACEMENTS"],
        space["N_RANKS"],
        used,
        space["SEED"],
        frozenset(),
    )
