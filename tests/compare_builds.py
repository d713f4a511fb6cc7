#!/usr/bin/env python3
"""Hold a build to the behaviour of another one: the same hashes, losses, peaks, traffic and plans.

    python3 tests/compare_builds.py OLD_BUILD NEW_BUILD [--allow FIELD]... [--only REGEX]
    python3 tests/compare_builds.py OLD_BUILD NEW_BUILD --speed [--rounds N] [--limit RATIO]

It runs 21 command lines of zero-train and 10 of zero-plan with both builds' programs, and
compares what they print with --json, field by field, and every file that they write: the log of
steps and checkpoints. Times, rates and what follows from them may differ, but have to be there; in
plans, where time is simulated, they have to be equal. A field that is missing or different fails.
A new field is listed, and so is a sentence with other words but the same numbers. What NEW resumes
is a checkpoint of OLD.

--speed measures zero-bench step, adam and comm, and the processor time of a plan of 175B on 1,024
ranks, with both builds in turns: old new, new old, and so on. It needs a machine that does
nothing else: the spread over the rounds says how far a ratio is to be believed. It fails only with
--limit, when a ratio of medians is above it.

Exit status: 0 equal, 1 not, 2 bad usage.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

SMALL = "--model layers=3,channels=64,heads=4,seq=64,vocab=256 "
NVME = "--offload-optimizer nvme --nvme-path drive "
SAVE = "--checkpoint-dir saved "

# A case is a name and the command lines that follow each other in one folder: the exit status that
# is expected, the options, and "text" where people's output is compared instead of --json.
TRAIN = (
    ("stage 0, one rank, schedule options, saved beside training", (0, SMALL + SAVE + "--checkpoint-every 2 "
     "--checkpoint-async --steps 8 --clip 1 --schedule constant "
     "--weight-decay 0.1 --beta1 0.8 --beta2 0.99 --epsilon 1e-6 --lr 1e-3 --micro-batch 2")),
    ("stage 0, bf16, accumulation", (0, SMALL + "--ranks 2 --dtype bf16 --grad-accum 3 --warmup 2 --min-lr-ratio 0.3")),
    ("stage 1, every micro-batch, clip", (0, SMALL + "--stage 1 --ranks 3 --grad-accum 2 "
     "--reduce every-micro-batch --clip 0.5")),
    ("stage 1, accumulation, update on the device", (0, SMALL + "--stage 1 --ranks 2 --grad-accum 2 --reduce auto "
     "--offload-optimizer cpu --update-on device --sub-group 4096")),
    ("stage 1, bf16, part of the state in host memory", (0, SMALL + "--stage 1 --ranks 2 --dtype bf16 "
     "--offload-optimizer cpu --offload-ratio 0.6 --sub-group 8192 --check-overflow off")),
    ("stage 2, bf16, part of the gradients", (0, SMALL + "--stage 2 --ranks 4 --dtype bf16 --grad-accum 2 "
     "--offload-optimizer cpu --offload-gradients-ratio 0.4 --sub-group 4096 --clip 1")),
    ("stage 2, state on NVMe", (0, SMALL + NVME + "--stage 2 --ranks 2 --offload-ratio 0.8 --state-in-host 20000 "
     "--sub-group 8192 --offload-gradients none --nvme-verify off --nvme-tbw 600TB")),
    ("stage 2, overlap, recompute", (0, SMALL + "--stage 2 --ranks 3 --overlap-comm on --recompute unit")),
    ("stage 3, overlap, prefetch", (0, SMALL + "--stage 3 --ranks 4 --overlap-comm on --grad-accum 2 "
     "--prefetch 60000 --max-live 150000")),
    ("stage 3, bf16, in host memory", (0, SMALL + "--stage 3 --ranks 2 --dtype bf16 --recompute unit "
     "--offload-activations cpu --offload-params cpu --offload-param-ratio 0.5 --offload-optimizer cpu")),
    ("stage 3, all on NVMe", (0, SMALL + NVME + "--stage 3 --ranks 3 --grad-accum 2 --recompute unit --sub-group 8192 "
     "--offload-params nvme --param-buffer 4096 --params-in-host 9000 --offload-activations nvme")),
    ("stage 3 in groups", (0, SMALL + "--stage 3 --ranks 4 --shard-group-size 2 --grad-accum 2 --clip 1")),
    ("stage 1 in groups, bf16, lengths", (0, SMALL + "--stage 1 --ranks 4 --shard-group-size 2 --dtype bf16 "
     "--seq-min 9 --seed 7")),
    ("stage 3, lengths, no plan of memory", (0, SMALL + "--stage 3 --ranks 2 --micro-batch 3 --seq-min 5 --steps 8 "
     "--memory-plan off")),
    ("stage 2, lengths, frozen parameters", (0, SMALL + "--stage 2 --ranks 2 --seq-min 20 --steps 9 --micro-batch 2 "
     "--freeze wte,h.0 --recompute unit")),
    ("checkpoints: saved, and resumed with other ranks and stages",
     (0, SMALL + SAVE + "--stage 3 --ranks 4 --dtype bf16 --checkpoint-every 3 --checkpoint-keep 1 "
      "--seq-min 30"),
     (0, SMALL + SAVE + "--resume --stage 1 --ranks 2 --steps 9 --seq-min 30 --offload-optimizer cpu"),
     (0, SMALL + SAVE + NVME + "--resume --resume-data restart --stage 2 --ranks 3 --steps 12")),
    ("DeepSpeed's JSON", (0, "--model layers=2,channels=64,heads=2,seq=32,vocab=256 --config ../../ds.json --ranks 2")),
    ("stage and offload auto", (1, SMALL + "--stage auto --ranks 2 --device-memory 700KiB"),
     (0, SMALL + "--stage auto --offload-optimizer auto --offload-params auto --ranks 2 --device-memory 2MiB "
      "--host-memory 64MiB")),
)
PLAN = (
    ("gpt2-xl, 8 ranks", (0, "--model gpt2-xl --ranks 8 --dtype bf16 --hardware 8x-a100-80g --micro-batch 16")),
    ("gpt2-xl, the table", (0, "--model gpt2-xl --ranks 8 --dtype bf16 --hardware 8x-a100-80g --micro-batch 16 "
     "--recompute none", "text")),
    ("gpt2, every micro-batch", (0, "--model gpt2 --hardware h200 --grad-accum 2 --clip 1 --reduce every-micro-batch")),
    ("13b on one card, NVMe", (0, "--model gpt3-13b --hardware 24g-64g --dtype bf16 --micro-batch 2")),
    ("13b on 1,024 ranks, groups", (0, "--model gpt3-13b --ranks 1024 --hardware 8x-a100-40g --dtype bf16 --stage 3")),
    ("175b on 1,024 ranks, groups", (0, "--model gpt3-175b --ranks 1024 --hardware 8x-h100-100gb --dtype bf16 "
     "--stage 3 --recompute unit --micro-batch 4")),
    ("175b on 1,024 ranks, nothing fits", (1, "--model gpt3-175b --ranks 1024 --hardware 8x-a100-80g-400gb "
     "--dtype bf16 --stage 1")),
    ("6.7b in groups of 4, overlap off", (0, "--model gpt3-6.7b --ranks 16 --hardware 4x-rtx4090 --dtype bf16 "
     "--shard-group-size 4 --overlap-comm off --micro-batch 4")),
    ("length, frozen parameters, DeepSpeed's JSON", (0, "--model gpt2-large --hardware h200 --config ../../ds.json "
     "--seq 512 --freeze wte,h.0 --memory-plan off --offload-ratio 0.5")),
    ("this machine, offload auto", (0, "--model gpt2 --hardware this --device host --threads 1 --ranks 2 "
     "--device-memory 1GiB --host-memory 2GiB --nvme-path drive --offload-optimizer auto --offload-params auto")),
)

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 0.7,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "betas": [0.85, 0.97], "eps": 1e-7, "weight_decay": 0.05}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 2e-3,
                                                      "warmup_num_steps": 2, "total_num_steps": 6}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "sub_group_size": 8192,
                          "stage3_prefetch_bucket_size": 40000}}

# What differs from run to run of the same program; all that lies below such a field does, too.
TIMED = re.compile(r"(_ms|seconds|_per_s|_per_day|_days)$|^(time|slowest_rank|peak_resident_bytes|library)$")
SENTENCES = ("message", "why", "update_reason", "error")
SHOWN = 12  # differences of a command line


class Findings:
    """Of one command line: what differs, and what is listed without being a failure."""

    def __init__(self, allowed, has_timed):
        self.allowed, self.has_timed, self.n_compared = allowed, has_timed, 0
        self.different, self.other = [], set()

    def differ(self, path, text):
        name = without_indices(path)
        if name in self.allowed:
            self.other.add(f"allowed to differ: {name}")
        else:
            self.different.append(f"{path}: {text}")

    def list_once(self, what, path):
        self.other.add(f"{what}: {without_indices(path)}")


def without_indices(path):
    return re.sub(r"\[\d+\]", "", path)


def numbers(text):
    return re.findall(r"\d+(?:\.\d+)?", text)


def compare(old, new, path, findings, is_timed=False):
    """What NEW printed against what OLD did; of timed values, only that they are there."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in old:
            below = f"{path}.{name}" if path else name
            if name not in new:
                findings.differ(below, "missing")
            elif name in SENTENCES and isinstance(old[name], str) and isinstance(new[name], str):
                compare_sentence(old[name], new[name], below, findings)
            else:
                compare(old[name], new[name], below, findings,
                        is_timed or (findings.has_timed and bool(TIMED.search(name))))
        for name in new.keys() - old.keys():
            findings.list_once("new field", f"{path}.{name}" if path else name)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            findings.differ(path, f"{len(old)} items, now {len(new)}")
        for i, (one, other) in enumerate(zip(old, new)):
            compare(one, other, f"{path}[{i}]", findings, is_timed)
    elif not is_timed:
        findings.n_compared += 1
        if (type(old), old) != (type(new), new):
            findings.differ(path, f"{json.dumps(old)}, now {json.dumps(new)}")


def compare_sentence(old, new, path, findings):
    findings.n_compared += 1
    if numbers(old) != numbers(new):
        findings.differ(path, f"{old!r}, now {new!r}")
    elif old != new:
        findings.list_once("reworded", path)


def compare_table(old, new, findings):
    """Rows of a table are compared as a whole, the lines around it as sentences."""
    parts = [[[" ".join(line.split()) for line in text.splitlines() if ("|" in line) == is_row]
              for is_row in (True, False)] for text in (old, new)]
    if not parts[0][0]:
        findings.differ("table", "no rows")
    compare(parts[0][0], parts[1][0], "table", findings)
    compare_sentence("\n".join(parts[0][1]), "\n".join(parts[1][1]), "text", findings)


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def compare_files(old, new, findings):
    for path in sorted(path for path in old.rglob("*") if path.is_file()):
        name = str(path.relative_to(old))
        if not (new / name).is_file():
            findings.differ(name, "missing")
        elif name.endswith((".json", ".jsonl")):
            compare(read_lines(path) if name.endswith("l") else json.loads(path.read_text()),
                    read_lines(new / name) if name.endswith("l") else json.loads((new / name).read_text()),
                    name, findings)
        else:
            findings.n_compared += 1
            if path.read_bytes() != (new / name).read_bytes():
                findings.differ(name, "its bytes differ")
    for path in new.rglob("*"):
        if path.is_file() and not (old / path.relative_to(new)).is_file():
            findings.list_once("new file", str(path.relative_to(new)))


def run(build, program, words, folder):
    return subprocess.run([build / "bin" / program, *words], cwd=folder, capture_output=True, text=True, timeout=600)


def compare_line(builds, folders, program, expected, line, is_text, findings):
    """Run one command line with both builds, and compare what they print and write."""
    words = line.split() + ([] if is_text else ["--json"])
    if program == "zero-train":
        words += "--data ../../text --device host --quiet --log log.jsonl".split()
        words += [] if "--steps" in words else ["--steps", "6"]
    if "--resume" in words:
        shutil.rmtree(folders[1] / "saved", ignore_errors=True)
        shutil.copytree(folders[0] / "saved", folders[1] / "saved")
    done = [run(build, program, words, folder) for build, folder in zip(builds, folders)]
    for which, one in zip(("OLD", "NEW"), done):
        if one.returncode != expected:
            findings.differ("exit status", f"{one.returncode} of {which}, not {expected}: {one.stderr.strip()[-600:]}")
    if findings.different:
        return
    if is_text:
        compare_table(done[0].stdout, done[1].stdout, findings)
    else:
        compare(json.loads(done[0].stdout), json.loads(done[1].stdout), "", findings)
    compare_files(*folders, findings)


def compare_case(builds, work, number, program, case, allowed):
    """[(command line, findings)], of which the first that differs is the last."""
    folders = [work / f"{program}-{number}" / which for which in ("old", "new")]
    results = []
    for folder in folders:
        (folder / "drive").mkdir(parents=True)
    for expected, line, *how in case[1:]:
        findings = Findings(allowed, program == "zero-train")
        try:
            compare_line(builds, folders, program, expected, line, how == ["text"], findings)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            findings.differ("comparison", str(error))
        results.append((line, findings))
        if findings.different:
            break
    return results


def write_inputs(work):
    """Text with something to learn, the same on every machine."""
    with open(work / "text", "w", encoding="ascii") as text:
        for i in range(4000):
            text.write(f"Line {i} counts {i * i % 97} apples and {i * 7 % 31} pears.\n")
    (work / "ds.json").write_text(json.dumps(DEEPSPEED))


def compare_behaviour(builds, work, arguments):
    write_inputs(work)
    cases = [(program, i, case) for program, cases in (("zero-train", TRAIN), ("zero-plan", PLAN))
             for i, case in enumerate(cases) if re.search(arguments.only, f"{program} {case[0]}")]
    n_lines = n_different = 0
    other = set()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running = [pool.submit(compare_case, builds, work, i, program, case, arguments.allow)
                   for program, i, case in cases]
        for (program, _, case), future in zip(cases, running):
            for line, findings in future.result():
                n_lines += 1
                n_different += bool(findings.different)
                other |= findings.other
                print(f"{'DIFFERENT' if findings.different else 'equal    '} {findings.n_compared:6} values  "
                      f"{program}: {case[0]}", flush=True)
                if findings.different:
                    print(f"    {program} {line}")
                for text in findings.different[:SHOWN]:
                    print(f"    {text}")
                if len(findings.different) > SHOWN:
                    print(f"    and {len(findings.different) - SHOWN} more")
    for text in sorted(other):
        print(text)
    print(f"compare_builds: {n_lines} command lines, {n_different} different")
    return n_lines > 0 and n_different == 0


# ---- speed ---------------------------------------------------------------------------------------

STEP = "--model layers=6,channels=256,heads=8,seq=128,vocab=256 --side 256 --steps 10 --json"
SPEED = (
    ("step, 1 rank, stage 0", "zero-bench", "step " + STEP),
    ("step, 2 ranks, stage 3", "zero-bench", "step --ranks 2 --stage 3 --recompute unit --grad-accum 2 " + STEP),
    ("adam", "zero-bench", "adam --seconds 1 --json"),
    ("adam, state in host memory", "zero-bench", "adam --offload cpu --seconds 1 --json"),
    ("comm", "zero-bench", "comm --min 16KiB --max 16MiB --factor 32 --seconds 0.1 --json"),
    ("plan of 175B on 1,024 ranks", "zero-plan", "--model gpt3-175b --ranks 1024 --dtype bf16 --hardware 8x-a100-80g "
     "--json --quiet"),
)


def measure(build, work, name, program, line):
    """{what: seconds} of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run(build, program, line.split(), work)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"compare_builds: {build}/bin/{program} {line}: exit {done.returncode}: {done.stderr.strip()[-600:]}")
    told = json.loads(done.stdout)
    if program == "zero-plan":
        return {name + ", processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}
    if "step_ms" in told:
        return {name: told["step_ms"] / 1000}
    if "update_seconds" in told:
        return {name: told["update_seconds"]}
    if "adam" in told:
        return {name: told["adam"]["seconds"]}
    by_collective = {}
    for one in told["measurements"]:
        by_collective.setdefault(f"{name}, {one['collective']}", []).append(one["seconds"])
    return {what: math.exp(statistics.fmean(map(math.log, all_sizes))) for what, all_sizes in by_collective.items()}


def compare_speed(builds, work, arguments):
    taken = {}
    for i in range(arguments.rounds):
        order = (0, 1) if i % 2 == 0 else (1, 0)
        for one in SPEED:
            if not re.search(arguments.only, one[0]):
                continue
            pair = {which: measure(builds[which], work, *one) for which in order}
            for what in pair[0]:
                taken.setdefault(what, []).append((pair[0][what], pair[1][what]))
        print(f"round {i + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    print(f"{'medians of ' + str(arguments.rounds) + ' rounds':42} {'OLD ms':>10} {'NEW ms':>10} {'NEW / OLD':>10} "
          f"{'of fastest':>10}   of each round")
    is_within = True
    for what, pairs in taken.items():
        old, new = (statistics.median(pair[which] for pair in pairs) for which in (0, 1))
        fastest = min(pair[1] for pair in pairs) / min(pair[0] for pair in pairs)
        ratios = [pair[1] / pair[0] for pair in pairs]
        is_over = arguments.limit is not None and new / old > arguments.limit
        is_within = is_within and not is_over
        print(f"{what:42} {old * 1000:10.3f} {new * 1000:10.3f}  {new / old:10.3f} {fastest:10.3f}   "
              f"{min(ratios):.3f} to {max(ratios):.3f}{'  above the limit' if is_over else ''}")
    return is_within and bool(taken)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs=2, metavar="BUILD", type=pathlib.Path, help="the old build, then the new one")
    parser.add_argument("--allow", action="append", default=[], metavar="FIELD",
                        help="a field that differs on purpose, such as memory.device.plan.height")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name matches")
    parser.add_argument("--speed", action="store_true", help="compare times, on a machine that does nothing else")
    parser.add_argument("--rounds", type=int, default=8, help="of --speed, each build once (default 8)")
    parser.add_argument("--limit", type=float, metavar="RATIO", help="largest ratio of --speed, such as 1.03")
    arguments = parser.parse_args()
    builds = [build.resolve() for build in arguments.builds]
    for build in builds:
        for program in ("zero-train", "zero-plan") + (("zero-bench",) if arguments.speed else ()):
            if not os.access(build / "bin" / program, os.X_OK):
                parser.error(f"{build}/bin/{program} is missing; give two build folders")
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    with tempfile.TemporaryDirectory(prefix="compare_builds.") as folder:
        do = compare_speed if arguments.speed else compare_behaviour
        return 0 if do(builds, pathlib.Path(folder), arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
