#!/usr/bin/env python3
"""Random compositions of all options of zero-train. Each run ends with 0; with 2 and an error that
names an option; or with 1 where a budget does not suffice, as it was planned. Planned bytes are the
measured ones, JSON has numbers only, other stages and placements end in the same bits, and so does
a run that was resumed.

    ZR_FUZZ_SEED=17 ZR_FUZZ_COUNT=1 python3 tests/examples/fuzz_options.py build/bin/zero-train

ZR_FUZZ_SEED     of the first composition; the others follow. Default 1
ZR_FUZZ_COUNT    number of compositions, each of one to four runs. Default 300, about a minute
ZR_FUZZ_FOUND    a file to which each finding is added

Options are those that --help prints. One that is new there is drawn if it has choices; if not,
OPTIONS below needs a row for it.
"""

import collections
import json
import os
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python"))
from processes import free_port

LIMIT_S = 120  # of a run on a busy machine; it takes a tenth of a second
SIZES = ("1MiB", "4MiB", "64MiB", "1GiB")


class Option:
    """How an option is drawn."""

    def __init__(self, chance, value, when=None, changes=False):
        self.chance, self.value, self.when = chance, value, when or (lambda o: True)
        self.changes = changes  # the result; else other values of it end in the same bits


def one_of(*values):
    return lambda d, o: str(d.choice(values))


def flag(d, o):
    return ""


def has(name, *values):
    """The option is given, with one of these values."""
    return lambda o: name in o and (not values or o[name] in values)


def n(o, name, default=1):
    return int(o.get(name, default))


def encodes_between_groups(o):
    is_split = n(o, "shard-group-size", 9) < n(o, "ranks")
    return is_split and o.get("reduce-encoding", "none") != "none"


def any_nvme(o):
    return any(v in ("nvme", "auto") for k, v in o.items() if k.startswith("offload-"))


def model(d, o):
    sizes = {
        "layers": d.randint(1, 3),
        "channels": d.choice((8, 16, 24, 48)),
        "heads": d.choice((1, 2)),
        "seq": d.choice((8, 16, 32)),
        "vocab": d.choice((256, 257, 300)),
    }
    head = "gpt2," if d.random() < 0.1 else ""
    if d.random() < 0.4:
        head = "llama,"
        sizes.update(wide=d.choice((8, 40)), tied=d.choice((0, 1)))
        sizes["kv-heads"] = d.choice([k for k in (1, 2) if sizes["heads"] % k == 0])
    return head + ",".join(f"{k}={v}" for k, v in sizes.items())


def seq_of(o):
    return int(o.get("seq") or re.search(r"seq=(\d+)", o["model"])[1])


def data(d, o):
    """One path, or two."""
    names = d.choice((("text",), ("text",), ("text", "more"), ("tokens",), ("documents",)))
    return tuple(f"{FILES.root}/{name}" for name in names)


def validation(d, o):
    """Of the kind of what is trained on."""
    kind = "text" if o.get("data-as") == "text" else os.path.basename(o["data"][0])
    return f"{FILES.root}/" + (
        "val"
        if kind == "text"
        else d.choice(("val-documents", "val-masked"))
        if kind == "documents"
        else "val-tokens"
    )


def divisors(d, o):
    ranks = n(o, "ranks")
    return str(d.choice([k for k in range(1, ranks + 1) if ranks % k == 0]))


def names(d, o):
    is_llama = o["model"].startswith("llama")
    return d.choice(
        ("model.layers.0", "model.norm.weight", "model.embed_tokens")
        if is_llama
        else ("wte", "h.0", "wpe", "wte,h.0.ln_1", "ln_f")
    )


def lora(d, o):
    targets = d.choice(
        ("all-linear", "q_proj,v_proj" if o["model"].startswith("llama") else "c_attn")
    )
    return f"rank={d.choice((1, 2, 8))},alpha={d.choice((1, 16))},targets={targets}"


class RunFile(str):
    """A path of --run, with the names of the options that are in it."""

    options = frozenset()


def run_file(d, o):
    path = RunFile(f"{FILES.root}/{d.choice(('run.toml', 'run.json'))}")
    path.options = frozenset(name for name in o if d.random() < 0.6)
    return path


def text_of_run_file(path, held):
    """Its options, as a person would write them: numbers and lists as those, a flag as true."""
    values = {}
    for name, value in held.items():
        values[name] = list(value) if isinstance(value, tuple) else value or True
        if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value):
            values[name] = json.loads(value)
    if path.endswith(".json"):
        return json.dumps(values)
    return "# of a run\n" + "".join(f"{k} = {json.dumps(v)}  # {k}\n" for k, v in values.items())


def config(d, o):
    """DeepSpeed's file, of what has no option beside it here."""
    parts = [
        {"gradient_clipping": 0.5},
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.8, 0.9]}}},
        {"bf16": {"enabled": True}},
        {"aio": {"queue_depth": 4, "block_size": 65536}},
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1}}},
        {"zero_optimization": {"stage": d.randint(0, 3), "sub_group_size": 4096}},
    ]
    chosen = {}
    for part in d.sample(parts, d.randint(1, 3)):
        chosen.update(part)
    return FILES.write("config.json", json.dumps(chosen))


def io_settings(d, o):
    return FILES.write(
        "io.json", json.dumps({"request_bytes": d.choice((4096, 65536)), "depth": d.choice((1, 8))})
    )


def hardware(d, o):
    """A described machine as if it were a host."""
    with open(
        os.path.join(os.path.dirname(__file__), "../../hardware/24g-64g.json"), encoding="ascii"
    ) as file:
        return FILES.write("hardware.json", file.read().replace('"kind": "cuda"', '"kind": "host"'))


def tokens(dice, count):
    """A file of llm.c's: a header of 256 numbers, and 16 bits a token."""
    return struct.pack("<3I", 20240520, 1, count).ljust(1024, b"\0") + struct.pack(
        f"<{count}H", *(dice.randint(0, 255) for _ in range(count))
    )


def documents(dice, count, part):
    """Documents of up to 40 tokens, of which a part has a loss."""
    words, left = [], 0
    for _ in range(count):
        begins = left == 0
        left = dice.randint(1, 40) if begins else left
        left -= 1
        words.append(dice.randint(97, 122) | begins << 30 | (dice.random() >= part) << 31)
    return struct.pack("<4I", 20261123, 1, count, 0).ljust(1024, b"\0") + struct.pack(
        f"<{count}I", *words
    )


class Files:
    """Data and files of options; and the folder of a run, made anew for each."""

    def __init__(self):
        self.root = tempfile.mkdtemp(prefix="zero-fuzz-")
        dice, words = (
            random.Random(5),
            "the quick brown fox jumps over a lazy dog while seven apples fall".split(),
        )
        for name, count in (("text", 3000), ("more", 700), ("val", 60)):
            with open(f"{self.root}/{name}", "w", encoding="ascii") as file:
                file.write(" ".join(dice.choice(words) for _ in range(count)))
        for name, count, part in (
            ("tokens", 5000, 0),
            ("val-tokens", 200, 0),
            ("documents", 3000, 0.5),
            ("val-documents", 300, 0.5),
            ("val-masked", 300, 0),
        ):
            with open(f"{self.root}/{name}", "wb") as file:
                file.write(
                    documents(dice, count, part)
                    if "documents" in name or "masked" in name
                    else tokens(dice, count)
                )
        with open(f"{self.root}/secret", "w", encoding="ascii") as file:
            file.write("a secret of sixteen bytes or more")
        os.chmod(f"{self.root}/secret", 0o600)
        self.run = f"{self.root}/run"
        os.mkdir(self.run)

    def write(self, name, text):
        with open(f"{self.root}/{name}", "w", encoding="ascii") as file:
            file.write(text)
        return f"{self.root}/{name}"

    def renew(self):
        shutil.rmtree(self.run, ignore_errors=True)
        os.mkdir(self.run)


FILES = Files()
HAS_GNUPLOT = shutil.which("gnuplot") is not None


def path(name):
    return lambda d, o: f"{FILES.run}/{name}"


def of_root(*choices):
    return lambda d, o: f"{FILES.root}/{d.choice(choices)}"


def many(o):
    return n(o, "ranks") > 1


def stage_in(*stages):
    return lambda o: o.get("stage", "0") in stages


OFFLOADED = has("offload-optimizer", "cpu", "nvme", "auto")
EVALUATES, SAVES = has("val-data"), has("checkpoint-dir")

#: In the order in which they are drawn: those that others depend on first.
OPTIONS = {
    "model": Option(1, model, changes=True),
    "data": Option(1, data, changes=True),
    "steps": Option(1, lambda d, o: str(d.randint(2, 4)), changes=True),
    "threads": Option(1, one_of(1), changes=True),
    "device": Option(1, one_of("host"), changes=True),
    "ranks": Option(0.75, lambda d, o: str(d.randint(1, 6)), changes=True),
    "config": Option(0.06, config, changes=True),
    "data-as": Option(0.15, one_of("auto", "text"), changes=True),
    "seed": Option(0.3, one_of(1, 2, 77), changes=True),
    "seq": Option(0.1, one_of(4, 8), changes=True),
    "seq-min": Option(0.12, lambda d, o: str(d.randint(1, seq_of(o))), changes=True),
    "dtype": Option(0.4, one_of("fp32", "bf16"), changes=True),
    "freeze": Option(0.12, names, lambda o: "lora" not in o, changes=True),
    "lora": Option(0.12, lora, lambda o: "freeze" not in o, changes=True),
    "lora-base": Option(0.5, one_of("dtype", "bf16", "8bit", "nf4"), has("lora"), changes=True),
    "micro-batch": Option(0.3, one_of(1, 2, 3), changes=True),
    "grad-accum": Option(0.4, one_of(1, 2, 3), changes=True),
    "shard-group-size": Option(0.25, divisors, many, changes=True),
    "gather-encoding": Option(0.1, one_of("none", "bf16", "8bit"), many, changes=True),
    "reduce-encoding": Option(0.1, one_of("none", "bf16", "8bit", "4bit"), many, changes=True),
    "error-feedback": Option(0.5, one_of("on", "off"), encodes_between_groups, changes=True),
    "reduce": Option(
        1,
        one_of("every-micro-batch"),
        lambda o: n(o, "grad-accum") > 1 and o.get("reduce-encoding", "none") == "none",
        changes=True,
    ),
    "outer-every": Option(
        0.2, one_of(0, 1, 2), lambda o: n(o, "shard-group-size", 9) < n(o, "ranks"), changes=True
    ),
    "outer-lr": Option(0.5, one_of(0.5, 1), has("outer-every", "1", "2"), changes=True),
    "outer-momentum": Option(0.5, one_of(0, 0.9), has("outer-every", "1", "2"), changes=True),
    "sums": Option(0.05, one_of("rank-order", "any"), changes=True),
    "optimizer": Option(0.3, one_of("adamw", "lion", "sgd"), changes=True),
    "state": Option(
        0.15,
        one_of("fp32", "bf16", "8bit"),
        lambda o: o.get("optimizer") != "sgd" or "momentum" in o,
        changes=True,
    ),
    "lr": Option(0.3, one_of(1e-3, 0.01), changes=True),
    "beta1": Option(0.1, one_of(0.5, 0.9), lambda o: o.get("optimizer") != "sgd", changes=True),
    "beta2": Option(0.1, one_of(0.9, 0.999), lambda o: o.get("optimizer") != "sgd", changes=True),
    "epsilon": Option(
        0.1, one_of(1e-6), lambda o: o.get("optimizer", "adamw") == "adamw", changes=True
    ),
    "weight-decay": Option(0.2, one_of(0, 0.1), changes=True),
    "momentum": Option(0.5, one_of(0, 0.9), has("optimizer", "sgd"), changes=True),
    "nesterov": Option(
        0.5, one_of("on", "off"), lambda o: o.get("momentum") == "0.9", changes=True
    ),
    "clip": Option(0.25, one_of(0, 0.1, 1), changes=True),
    "schedule": Option(0.2, one_of("cosine", "linear", "constant"), changes=True),
    "warmup": Option(0.2, one_of(0, 1, 2), changes=True),
    "min-lr-ratio": Option(
        0.2, one_of(0, 0.5), lambda o: o.get("schedule", "cosine") == "cosine", changes=True
    ),
    "data-weights": Option(0.6, one_of("0.7,0.3"), lambda o: len(o["data"]) > 1, changes=True),
    # Other values end in the same bits.
    "stage": Option(0.85, one_of(0, 1, 2, 3, 3, 3, "auto")),
    "comm": Option(0.06, one_of("threads", "processes"), many),
    "prefetch": Option(0.2, one_of(0, 500, 5000, "all"), stage_in("3")),
    "max-live": Option(0.2, one_of(2000, 20000, "all"), stage_in("3")),
    "overlap-comm": Option(0.2, one_of("auto", "on", "off"), many),
    "recompute": Option(0.4, one_of("none", "unit", "never", "auto")),
    "attention": Option(0.05, one_of("own", "own", "own", "cudnn")),
    "device-memory": Option(0.1, one_of(*SIZES)),
    "host-memory": Option(0.1, one_of(*SIZES)),
    "memory": Option(0.08, one_of("80MiB", "200MiB", "2GiB")),
    "plan-check": Option(0.1, one_of("on", "off")),
    "memory-plan": Option(0.15, one_of("on", "off")),
    "order": Option(0.3, one_of("micro-batch", "block", "auto"), lambda o: n(o, "grad-accum") > 1),
    "offload-optimizer": Option(0.5, one_of("none", "cpu", "nvme", "auto")),
    "offload-ratio": Option(0.2, one_of(0, 0.3, 1), has("offload-optimizer", "cpu", "nvme")),
    "state-in-host": Option(0.2, one_of(0, 1024, 5000), has("offload-optimizer", "nvme")),
    "offload-gradients": Option(
        0.4, one_of("none", "cpu", "nvme"), lambda o: OFFLOADED(o) and stage_in("2", "3")(o)
    ),
    "offload-gradients-ratio": Option(
        0.3, one_of(0.4, 1), lambda o: o.get("offload-gradients") in ("cpu", "nvme")
    ),
    "gradients-in-host": Option(0.3, one_of(0, 1024, 5000), has("offload-gradients", "nvme")),
    "update-on": Option(0.2, one_of("auto", "host", "device"), OFFLOADED),
    "sub-group": Option(0.3, one_of(1024, 2048, 65536)),
    "offload-params": Option(0.5, one_of("none", "cpu", "nvme", "auto"), stage_in("3")),
    "offload-param-ratio": Option(0.2, one_of(0, 0.5, 1), has("offload-params", "cpu", "nvme")),
    "param-buffers": Option(0.2, one_of(3, 6), has("offload-params", "nvme")),
    "param-buffer": Option(0.3, one_of(2048, 16384), has("offload-params", "nvme")),
    "params-in-host": Option(0.2, one_of(0, 3000), has("offload-params", "nvme")),
    "offload-activations": Option(
        0.5, one_of("none", "cpu", "nvme", "auto"), has("recompute", "unit")
    ),
    "activations-on-device": Option(
        0.3,
        one_of(0, 1),
        lambda o: o.get("offload-activations") in ("cpu", "nvme") and o.get("order") != "block",
    ),
    "activations-in-host": Option(0.3, one_of(0, 1), has("offload-activations", "nvme")),
    "nvme-path": Option(1, lambda d, o: FILES.run + d.choice(("", f",{FILES.root}")), any_nvme),
    "nvme-capacity": Option(0.2, one_of("16MiB", "1GiB"), any_nvme),
    "nvme-buffers": Option(0.2, one_of(2, 4, "auto"), has("offload-optimizer", "nvme")),
    "nvme-verify": Option(0.2, one_of("on", "off"), any_nvme),
    "io-settings": Option(0.1, io_settings, any_nvme),
    "nvme-tbw": Option(0.1, one_of("600TB"), any_nvme),
    "hardware": Option(
        0.3,
        hardware,
        lambda o: "auto" in (o.get("stage"), o.get("order"), o.get("offload-optimizer")),
    ),
    "matmul-choices": Option(0.005, path("none.json")),
    "master": Option(0.2, one_of("apart", "split", "auto")),
    "update-at": Option(0.3, one_of("end", "backward", "auto"), stage_in("2", "3")),
    "check-overflow": Option(0.15, one_of("on", "off")),
    "val-data": Option(0.15, validation),
    "eval-every": Option(0.4, one_of(1, 2), EVALUATES),
    "eval-batches": Option(0.4, one_of(1, 3), EVALUATES),
    "patience": Option(0.2, one_of(1, 3), has("eval-every"), changes=True),
    "checkpoint-dir": Option(0.2, path("checkpoints")),
    "checkpoint-every": Option(0.5, one_of(1, 2), SAVES),
    "checkpoint-keep": Option(0.3, one_of(0, 2), SAVES),
    "checkpoint-async": Option(0.3, flag, SAVES),
    "checkpoint-sign": Option(0.2, one_of("off", "write", "require"), SAVES),
    "comm-secret": Option(
        1, of_root("secret"), lambda o: o.get("checkpoint-sign") in ("write", "require")
    ),
    "keep-best": Option(0.4, flag, lambda o: EVALUATES(o) and SAVES(o)),
    "comm-timeout": Option(0.05, one_of(30, 90)),
    "comm-bind": Option(0.3, one_of("127.0.0.1"), has("comm", "processes")),
    "resume": Option(0.1, flag, SAVES),
    "resume-data": Option(0.2, one_of("continue", "restart"), has("resume")),
    "resume-damaged": Option(0.2, one_of("refuse", "previous"), has("resume")),
    "eval-only": Option(0.03, flag, EVALUATES, changes=True),
    "log": Option(0.1, lambda d, o: FILES.run + d.choice(("/log.csv", "/log.jsonl"))),
    "tensorboard": Option(0.1, path("events")),
    "plot": Option(0.3, path("losses.svg"), lambda o: "log" in o and HAS_GNUPLOT),
    "memory-snapshot": Option(
        0.08,
        lambda d, o: FILES.run + d.choice(("/snapshot.csv", "/snapshot.json", "/snapshot.pickle")),
    ),
    "trace": Option(0.08, path("trace.json")),
    "trace-steps": Option(0.5, one_of("1:2", "2:2"), has("trace")),
    "json": Option(1, flag),
    "quiet": Option(0.5, flag),
    "verbose": Option(0.1, flag, lambda o: "quiet" not in o),
    "run": Option(0.1, run_file),
    "dry-run": Option(0, flag),  # beside the run itself: try_dry_run
    "help": Option(0, flag),
    "version": Option(0, flag),
}


#: What is planned, and measured.
PLANNED = (
    ("planned_peak_bytes", "peak_bytes"),
    ("planned_pinned_bytes", "pinned_bytes"),
    ("planned_metadata_bytes", "metadata_bytes"),
)


#: Options without which no run is compared with another.
NEEDED = ("model", "data", "steps", "threads", "device", "json", "reduce")


class Known(NamedTuple):
    """A finding that is not mended yet."""

    reason: str
    said: str
    options: tuple = ()  # all of them are given, some with a value: "stage=auto"

    def is_this(self, wrong, options):
        given = {*options, *(f"{k}={v}" for k, v in options.items())}
        return re.search(self.said, wrong) and given.issuperset(self.options)


KNOWN = ()


def options_of(program):
    """Name: what stands for its value, as --help prints it."""
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"^ {2,6}(?:-\w, )?--([a-z0-9-]+)(?:\[?=(\S+))?", text, re.M))


def table_of(program):
    """OPTIONS, with those that are new and have choices."""
    found, table = options_of(program), dict(OPTIONS)
    gone = sorted(set(table) - set(found))
    if gone:
        sys.exit(f"{program} --help has no --{gone[0]}: take its row out of OPTIONS")
    for name, what in found.items():
        if name not in table and re.fullmatch(r"[a-z0-9-]+(\|[a-z0-9-]+)+", what):
            table[name] = Option(0.1, one_of(*what.split("|")), changes=True)
        elif name not in table:
            sys.exit(
                f"--{name}={what} of {program} is new: add a row to OPTIONS, with values of it"
            )
    return table


def draw(table, dice, fixed=None):
    """Options and values. fixed: has those that change the result; the others are drawn."""
    is_wild = dice.random() < 0.15  # options that have no meaning beside the others come, too
    drawn = {}
    for name, row in table.items():
        if fixed is not None and row.changes:
            if name in fixed:
                drawn[name] = fixed[name]
            continue
        wanted = dice.random() < row.chance if row.when(drawn) else is_wild and dice.random() < 0.04
        if wanted:
            drawn[name] = row.value(dice, drawn)
    return drawn


def words(options):
    found, path = [], options.get("run")
    held = {k: v for k, v in options.items() if path is not None and k in path.options}
    if path is not None:
        FILES.write(os.path.basename(path), text_of_run_file(path, held))
    for name, value in options.items():
        if name in held:
            continue
        for one in value if isinstance(value, tuple) else (value,):
            found += [f"--{name}", one] if one else [f"--{name}"]
    return found


def start(program, options):
    """Exit code, output and errors; of processes those of rank 0, and the largest code."""
    line = [program, *words(options)]
    if options.get("comm") != "processes":
        try:
            done = subprocess.run(
                line, capture_output=True, text=True, timeout=LIMIT_S, cwd=FILES.run
            )
        except subprocess.TimeoutExpired:
            return "hang", "", ""
        return done.returncode, done.stdout, done.stderr
    port, ranks, started = free_port(), n(options, "ranks"), []
    for rank in range(ranks):
        variables = dict(
            os.environ,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            WORLD_SIZE=str(ranks),
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE=str(ranks),
        )
        if "comm-secret" in options:
            variables.pop("ZR_COMM_SECRET", None)
        started.append(
            subprocess.Popen(
                line,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=FILES.run,
                env=variables,
            )
        )
    said = []
    try:
        said = [process.communicate(timeout=LIMIT_S) for process in started]
    except subprocess.TimeoutExpired:
        for process in started:
            process.kill()
            process.wait()
        return "hang", "", ""
    codes = [process.returncode for process in started]
    return (
        min(codes) if min(codes) < 0 else max(codes),
        said[0][0],
        "".join(errors for _, errors in said),
    )


def no_constant(text):
    raise ValueError(f"{text} is no number of JSON")


def differing(planned, measured, where=""):
    """Planned numbers that are others than the measured ones."""
    if isinstance(planned, dict):
        return [
            d for k, v in planned.items() for d in differing(v, measured.get(k), f"{where}.{k}")
        ]
    return [] if planned == measured else [f"{where[1:]} {planned} != {measured}"]


def check_refusal(output, errors):
    """Exit code 2: an error names an option, a key or a file of options."""
    said = [line for line in errors.splitlines() if "error" in line]
    if output:
        return ["exit code 2, and output"], None
    if not said or not re.search(r"--[a-z]|[a-z_]+\.[a-z_]+|config\.json", " ".join(said)):
        return [f"exit code 2 without an option's name: {' '.join(said) or errors[-600:]}"], None
    return [], {"result": "refused", "message": said[-1]}


def check_failure(options, result):
    """Exit code 1: a budget does not suffice, and no plan has said that it would."""
    is_short = {"device-memory", "host-memory", "memory", "nvme-capacity"} & set(options)
    if result.get("error") != "ZR_ERR_BUDGET" or not is_short or "--" not in result["message"]:
        return [f"exit code 1: {result.get('error')}: {result.get('message')}"]
    if result.get("planned_fits") is True:
        return [f"planned to fit, and failed: {result['message']}"]
    return []


def check_success(options, result):
    wrong = []
    if result["result"] not in ("trained", "evaluated"):
        wrong.append(f"exit code 0, and result {result['result']}")
    if options.get("plan-check") != "off":
        if result.get("planned_fits") is False:
            wrong.append("planned not to fit, and it ran")
        if "planned_peak_bytes" not in result:
            wrong.append("there is no plan")
    has_ended = result.get("evaluation", {}).get("ended_run", False)  # by --patience, early
    for planned, measured in PLANNED:
        other = differing(result[planned], result[measured]) if planned in result else []
        if (
            measured == "metadata_bytes" and "checkpoint-async" in options
        ):  # when a save ends, nobody knows
            other = other if result[measured]["peak"] > result[planned]["peak"] else []
        if other and not has_ended:
            wrong.append(f"{planned}: {'; '.join(other[:4])}")
    return wrong


def check(options, code, output, errors):
    """What is wrong with a run; and its result."""
    if code == "hang":
        return ["hang"], None
    if code not in (0, 1, 2):
        return [f"exit code {code}: {errors[-600:]}"], None
    if code == 2:
        return check_refusal(output, errors)
    try:
        result = json.loads(output, parse_constant=no_constant)
    except ValueError as error:
        return [f"{error}: {output[:200]} {errors[-300:]}"], None
    return (check_failure if code else check_success)(options, result), result


def differs_as_said(options, other, *stages):
    """Whether docs/guide/ names the difference as one that ends in other bits."""
    saves_otherwise = any(
        options.get(k) != other.get(k) for k in ("checkpoint-dir", "checkpoint-every")
    )
    is_encoded = options.get("reduce-encoding", "none") != "none"
    has_frozen = "freeze" in options or "lora" in options
    if options.get("gather-encoding", "none") != "none" and has_frozen and 3 in stages:
        return stages[0] != stages[1]  # frozen parameters are gathered at stage 3 alone
    if options.get("error-feedback") == "on" and saves_otherwise:
        return True  # a checkpoint drops it
    if n(options, "outer-every", 0) > 0 and saves_otherwise:
        return True  # groups meet, and have the same moments then
    if is_encoded and n(options, "grad-accum") > 1:
        return True  # sums of micro-batches are made before or after, as stage and order have it
    return is_encoded and 0 in stages and stages[0] != stages[1]  # stage 0 encodes sums, too


class Composition:
    """Runs of one seed, and what was found."""

    def __init__(self, program, table, seed):
        self.program, self.table, self.seed = program, table, seed
        self.n_runs, self.found, self.refused, self.known = 0, [], [], []

    def run(self, options, keeps_files=False):
        if not keeps_files:
            FILES.renew()
        code, output, errors = start(self.program, options)
        self.n_runs += 1
        wrong, result = check(options, code, output, errors)
        for text in wrong:
            self.say(text, self.says(text) if not keeps_files else None, options)
        if result is not None and result["result"] == "refused":
            self.refused.append(result["message"])
        return result if code == 0 else None

    def says(self, text):
        """Whether a run has the same finding, up to its numbers."""

        def fails(runs):
            FILES.renew()
            found, _ = check(runs[0], *start(self.program, runs[0]))
            return any(re.split(r"\d", t)[0] == re.split(r"\d", text)[0] for t in found)

        return fails

    def differ(self, runs):
        """Whether two runs end in different bits."""
        hashes = []
        for options in runs:
            FILES.renew()
            code, output, _ = start(self.program, options)
            hashes.append(json.loads(output).get("weights_xxh3") if code == 0 else None)
        return None not in hashes and hashes[0] != hashes[1]

    @staticmethod
    def shrink(runs, fails):
        """The same with as few options as fail in the same way."""
        for name in [k for k in {**runs[0], **runs[-1]} if k not in NEEDED]:
            fewer = [{k: v for k, v in options.items() if k != name} for options in runs]
            if fails(fewer):
                runs = fewer
        return runs

    def say(self, wrong, fails, *runs):
        for known in KNOWN:
            if any(known.is_this(wrong, options) for options in runs):
                self.known.append(known.reason)
                return
        self.found.append(wrong)
        if fails is not None:
            runs = self.shrink(runs, fails)
        lines = "\n".join(shlex.join([self.program, *words(options)]) for options in runs)
        files = "".join(
            f"\n# {options[k]}: {open(options[k]).read()}"
            for options in runs[:1]
            for k in ("config", "io-settings", "run")
            if k in options
        )
        text = f"seed {self.seed}: {wrong}\n{lines}{files}\n"
        print(text, flush=True)
        if "ZR_FUZZ_FOUND" in os.environ:
            with open(os.environ["ZR_FUZZ_FOUND"], "a") as file:
                print(text, file=file)

    def compare(self, what, first, second, options, other, fails=None):
        if differs_as_said(options, other, first["stage"], second["stage"]):
            return
        hashes = first["weights_xxh3"], second["weights_xxh3"]
        if hashes[0] != hashes[1]:
            self.say(f"{what}: other bits, {hashes[0]} and {hashes[1]}", fails, options, other)

    def try_all(self):
        dice = random.Random(self.seed)
        options = draw(self.table, dice)
        result = self.run(options)
        if dice.random() < 0.15:
            self.try_dry_run(options, result)
        if result is None or result["result"] != "trained":
            return
        if "patience" in options:  # another number of steps
            return
        other = draw(self.table, dice, fixed=options)
        second = self.run(other)
        if second is not None and second["result"] == "trained":
            self.compare("another placement", result, second, options, other, self.differ)
        if dice.random() < 0.3 and not {"keep-best", "checkpoint-keep"} & set(options):
            self.try_resume(options, result)
        if dice.random() < 0.2:
            self.try_budgets(options, result)

    def try_dry_run(self, options, result):
        """It ends as the run would, with its plan, and leaves no file."""
        planning = {**options, "dry-run": ""}
        FILES.renew()
        code, output, errors = start(self.program, planning)
        self.n_runs += 1
        if result is None:  # refused, or without enough memory, which a plan need not foresee
            return
        left = os.listdir(FILES.run)
        if code != 0 or left:
            self.say(f"dry run: exit code {code}, {left} left: {errors[-600:]}", None, planning)
            return
        planned = json.loads(output, parse_constant=no_constant)
        for name in ("stage", "planned_fits", *(p for p, _ in PLANNED)):
            if planned.get(name) != result.get(name):
                self.say(f"dry run: {name} is not that of the run", None, planning)

    def try_budgets(self, options, result):
        """What a run has reserved is enough for it."""
        budgets = {
            f"{tier}-memory": str(result["peak_bytes"][tier]["reserved"])
            for tier in ("device", "host")
        }
        limited = {**options, **budgets}
        again = self.run(limited)
        if again is not None:
            self.compare("within budgets", result, again, options, limited)

    def try_resume(self, options, result):
        """Saved in each step, without its last checkpoint, and resumed."""
        saving = {
            k: v
            for k, v in options.items()
            if not k.startswith(("checkpoint-", "resume")) or k == "checkpoint-sign"
        }
        saving.update({"checkpoint-dir": f"{FILES.run}/checkpoints", "checkpoint-every": "1"})
        saved = self.run(saving)
        if saved is None:
            return
        self.compare("saving", result, saved, options, saving)
        folder = saving["checkpoint-dir"]
        shutil.rmtree(
            f"{folder}/{max(name for name in os.listdir(folder) if name.startswith('step-'))}"
        )
        resuming = {**saving, "resume": ""}
        resumed = self.run(resuming, keeps_files=True)
        if resumed is not None:
            self.compare("resumed", saved, resumed, saving, resuming)


def main():
    program = os.path.abspath(sys.argv[1])
    first, count = int(os.environ.get("ZR_FUZZ_SEED", 1)), int(os.environ.get("ZR_FUZZ_COUNT", 300))
    table = table_of(program)
    began, n_runs, n_found = time.monotonic(), 0, 0
    refused, known = collections.Counter(), collections.Counter()
    try:
        for seed in range(first, first + count):
            composition = Composition(program, table, seed)
            composition.try_all()
            n_runs, n_found = n_runs + composition.n_runs, n_found + len(composition.found)
            known.update(composition.known)
            refused.update(re.sub(r"[\d.]+", "N", m)[:110] for m in composition.refused)
    finally:
        shutil.rmtree(FILES.root, ignore_errors=True)
    seconds = time.monotonic() - began
    print(f"{count} compositions from seed {first}, {n_runs} runs in {seconds:.0f} s")
    print(f"  {n_found} findings, {sum(refused.values())} refused")
    for reason in dict.fromkeys(k.reason for k in KNOWN):
        print(f"  {known[reason]} known: {reason}")
    for message, times in refused.most_common(40):
        print(f"  {times} {message}")
    sys.exit(1 if n_found else 0)


if __name__ == "__main__":
    main()
