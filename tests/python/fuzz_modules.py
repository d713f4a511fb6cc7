"""Random modules in random training loops: losses and weights of libzero at several placements
beside those of plain PyTorch to 1e-5, and one hash at all of them.

    ZR_FUZZ_SEED=17 ZR_FUZZ_COUNT=1 python tests/python/fuzz_modules.py
    python tests/python/fuzz_modules.py PROGRAM...       # files with programs that were printed

A seed makes a program (fuzz_programs.py). A failure prints the smallest program that fails in the
same way, and the features that it needs.

ZR_FUZZ_SEED     of the first program; the others follow. Default 1
ZR_FUZZ_COUNT    number of programs. Default 100, about a minute
ZR_FUZZ_WITHOUT  features, blocks and steps that are left out, with commas: gru,block2,step0
ZR_FUZZ_FOUND    a folder in which each finding's program is kept

Findings: an exception that is no libzero.Error, a signal, a hang, NaN, another loss, weight or
hash, and a libzero.Error that the tables do not allow. Exit code 1: there were findings; 77: there
is no PyTorch.
"""

import collections
import faulthandler
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

os.environ["LIBZERO_POISON"] = "1"  # memory that is given back is overwritten
sys.path.insert(0, os.path.dirname(__file__))
from fuzz_loops import Ours, Plain
from fuzz_programs import GRAD, HAS_PEFT, ROWS, load, read, write
from processes import fork_ranks

import libzero

torch.set_num_threads(1)

LIMIT_S = 120  # of a program at all its placements, on a busy machine; it takes one second
TOLERANCE, WORST_TOLERANCE = 1e-5, 1e-2


def run_plain(program, space, moved=0.0):
    loop = Plain(program, space, moved)
    space["train"](loop)
    return loop.values, loop.end()


def largest_difference(values, expected):
    """Relative to what is larger than 1; infinite where one is NaN and the other not."""
    worst = 0.0
    for a, b in zip(values, expected, strict=True):
        if a != a and b != b:
            continue
        difference = abs(a - b) / max(1.0, abs(b))
        worst = max(worst, difference if difference == difference else float("inf"))
    return worst


def worst_of(seen, expected):
    """Largest differences of two runs: of values, and of a weight, with its name."""
    worst, name = 0.0, ""
    for key, value in expected[1].items():
        if key not in seen[1]:
            return float("inf"), float("inf"), f"{key} is missing"
        found = largest_difference(
            seen[1][key].double().flatten().tolist(), value.double().flatten().tolist()
        )
        if found > worst:
            worst, name = found, key
    return largest_difference(seen[0], expected[0]), worst, name


def run_ours(program, space, placement, expected, tolerances):
    """A line of the result: what was found, or the hash."""
    try:
        loop = Ours(program, space, placement)
        space["train"](loop)
        weights = loop.end()
    except Exception as error:
        kind = "refused" if isinstance(error, libzero.Error) else "exception"
        frames = traceback.extract_tb(error.__traceback__)
        where = (
            ""
            if kind == "refused"
            else f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}"
        )
        said = []
        while error is not None:
            said.append(f"{type(error).__name__}: {error}{where}")
            error, where = error.__cause__ or error.__context__, ""
        return {"kind": kind, "text": "; while: ".join(said)}
    values, weight, name = worst_of((loop.values, weights), expected)
    if weight > tolerances[1]:
        return {
            "kind": "difference",
            "text": f"weights, {name} by {weight:.1e}; tolerance {tolerances[1]:.1e}",
        }
    if values > tolerances[0]:
        text = f"values by {values:.1e}: {loop.values} for {expected[0]}"
        return {"kind": "difference", "text": f"{text}; tolerance {tolerances[0]:.1e}"}
    return {"kind": "equal", "hash": loop.hash, "values": loop.values}


def work(program, path):
    """In a process of its own: a line for plain PyTorch, and one for each placement."""
    faulthandler.dump_traceback_later(LIMIT_S - 5)
    signal.alarm(LIMIT_S)
    with open(path, "a") as file:

        def say(line):
            print(json.dumps(line), file=file, flush=True)

        space = load(program.source, f"seed {program.seed}")
        try:
            expected = run_plain(program, space)
            moved = worst_of(run_plain(program, space, 1e-7), expected)
        except Exception as error:
            say({"kind": "plain", "text": f"{type(error).__name__}: {error}"})
            return
        tolerances = [
            max(TOLERANCE, 20 * m) for m in moved[:2]
        ]  # of values, of weights: as last bits count
        is_exact = "dtype" not in program.keywords  # PyTorch has no fp32 master of bf16
        tolerances = [t if t <= WORST_TOLERANCE and is_exact else float("inf") for t in tolerances]
        say({"kind": "plain", "tolerances": tolerances})
        for placement in program.placements:
            found = run_ours(program, space, placement, expected, tolerances)
            say(found)
            if found["kind"] in ("refused", "exception"):
                libzero.close("a finding")
                os._exit(0)  # the next placement begins anew


def start(program, path):
    """Processes of a program's ranks; in a rank, it ends there."""
    sys.stdout.flush()
    if program.n_ranks > 1:
        started = fork_ranks(program.n_ranks, output=path + "said")
    else:
        started = [os.fork()]
        if started[0] == 0:
            started = None
            file = os.open(path + "said0", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1), os.dup2(file, 2)
    if started is not None:
        return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in started]
    try:
        tempfile.tempdir = path
        work(program, f"{path}/rank{os.environ['RANK'] if program.n_ranks > 1 else 0}")
        libzero.close()
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def run(program):
    """What was found at each placement, after what plain PyTorch says."""
    folder = tempfile.mkdtemp(prefix="libzero-fuzz-")
    try:
        found, plain = [], None
        while plain is None or (
            len(found) < len(program.placements)
            and plain["kind"] == "plain"
            and "text" not in plain
        ):
            path = f"{folder}/{len(found)}"
            os.mkdir(path)
            codes = start(program._replace(placements=program.placements[len(found) :]), path)
            with open(f"{path}/rank0") as file:
                lines = [json.loads(line) for line in file]
            plain, found = (lines or [{"kind": "plain", "text": "no result"}])[0], found + lines[1:]
            is_complete = "text" in plain or len(found) == len(program.placements)
            if any(codes) or (not is_complete and len(lines) < 2):
                with open(path + "said0", errors="replace") as file:
                    said = file.read()[-2000:]
                kind = "hang" if -signal.SIGALRM in codes else "end"
                bad = {"kind": kind, "text": f"exit codes {codes}: {said}"}
                if is_complete and found:
                    found[-1] = bad
                else:
                    found.append(bad)
        return plain, found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_allowed(program, placement, text):
    """Whether a feature of the program may be refused like this."""
    rows = [ROWS[name] for name in program.used if name in ROWS]
    for row in rows:
        works = row.refusal != GRAD or program.keywords["reduce"] == "auto"
        is_to_work = (
            works and program.n_ranks == 1 and placement["stage"] in getattr(row, "works_at", ())
        )
        if row.refusal and not is_to_work and re.search(row.refusal, text):
            return True
    return False


def findings_of(program, found):
    """(kind, text, placements) of what is wrong, and texts of what may be refused."""
    findings, refused = [], []
    for placement, line in zip(program.placements, found):
        if line["kind"] == "refused" and is_allowed(program, placement, line["text"]):
            refused.append(line["text"])
        elif line["kind"] != "equal":
            findings.append((line["kind"], line["text"], [placement]))
    equal = [(p, line) for p, line in zip(program.placements, found) if line["kind"] == "equal"]
    for sums_first in (True, False) if program.keywords["reduce"] == "auto" else (None,):
        alike = [e for e in equal if sums_first in (None, e[0]["stage"] < 2)]
        for placement, line in alike[1:]:
            if line["hash"] != alike[0][1]["hash"]:
                findings.append(("hash", "other bits", [alike[0][0], placement]))
                break
    return findings, refused


def shrink(program, kind, placements):
    """The smallest program with this kind of finding, by leaving out one thing after another."""
    without, tried = set(program.without), set()
    smallest = write(program.seed, without, placements)
    while pending := sorted(
        smallest.used - tried, key=lambda n: (not n.startswith(("step", "block")), n)
    ):
        tried.add(pending[0])
        smaller = write(program.seed, without | {pending[0]}, placements)
        if any(f[0] == kind for f in findings_of(smaller, run(smaller)[1])[0]):
            without.add(pending[0])
            smallest = smaller
    return smallest


def without_numbers(text):
    """The beginning of a finding that other programs share; of differences there is none."""
    return "" if text.startswith(("weights", "values", "other bits")) else re.split(r"\d", text)[0]


def cause_of(program, kind, text, placements, known):
    """A finding that is known already, without which this one is not there."""
    for cause in known:
        if cause[0] == kind and cause[2] and cause[2] == without_numbers(text):
            return cause
        if cause[0] == kind and cause[1] and set(cause[1]) <= program.used:
            other = write(program.seed, program.without | {cause[1][0]}, placements)
            if not any(k == kind for k, _, _ in findings_of(other, run(other)[1])[0]):
                return cause
    return None


def report(program, kind, text, placements):
    """Prints a finding; returns what it needs, by which it is known again."""
    smallest = shrink(program, kind, placements)
    findings = [f for f in findings_of(smallest, run(smallest)[1])[0] if f[0] == kind]
    text = findings[0][1] if findings else text
    needs = sorted(n for n in smallest.used if not re.fullmatch(r"(step|block)\d+", n))
    what = f"{kind} at {placements}: {text}"
    print(
        f"{what}\nit needs: {' '.join(needs) or 'nothing'}\n{smallest.command()}\n{smallest}\n",
        flush=True,
    )
    if "ZR_FUZZ_FOUND" in os.environ:
        with open(
            f"{os.environ['ZR_FUZZ_FOUND']}/{'-'.join([kind, *needs])[:120]}.py", "w"
        ) as file:
            lines = "\n".join(f"# {line}" for line in what.splitlines())
            file.write(f"{lines}\n# {smallest.command()}\n{smallest}\n")
    return kind, tuple(needs), without_numbers(text)


class Tally:
    """What was seen of all programs."""

    def __init__(self):
        self.began = time.monotonic()
        self.counts, self.refused = collections.Counter(), collections.Counter()
        self.known = collections.Counter()  # findings, by kind and by what they need

    def add(self, program):
        plain, found = run(program)
        self.counts["programs"] += 1
        if "text" in plain:
            self.refused["PyTorch: " + plain["text"].splitlines()[0][:100]] += 1
            return
        for what, tolerance in zip(("losses", "weights"), plain["tolerances"]):
            exactness = "to 1e-5" if tolerance == TOLERANCE else "less exactly"
            exactness = exactness if tolerance <= WORST_TOLERANCE else "by hash alone"
            self.counts[f"{what} {exactness}"] += 1
        self.counts["placements"] += len(found)
        findings, refused = findings_of(program, found)
        self.refused.update(text.splitlines()[0][:100] for text in refused)
        for kind, (text, placements) in {f[0]: f[1:] for f in reversed(findings)}.items():
            cause = cause_of(program, kind, text, placements, self.known)
            self.known[cause or report(program, kind, text, placements)] += 1

    def __str__(self):
        seconds = time.monotonic() - self.began
        lines = [f"{n} {what}" for what, n in self.counts.items()]
        lines += [f"{n} refused: {text}" for text, n in self.refused.most_common()]
        lines += [
            f"{n} findings: {kind}, needs {' '.join(needs)}"
            for (kind, needs, _), n in self.known.most_common()
        ]
        return "\n  ".join([f"in {seconds:.0f} s", *lines])


def names_in(variable):
    """Features, blocks and steps that a variable lists."""
    names = frozenset(filter(None, os.environ.get(variable, "").split(",")))
    for name in names - set(ROWS):
        if not re.fullmatch(r"(step|block)\d+", name):
            sys.exit(f"{variable}: there is no feature {name}")
    return names


def main():
    first, count = int(os.environ.get("ZR_FUZZ_SEED", 1)), int(os.environ.get("ZR_FUZZ_COUNT", 100))
    without = names_in("ZR_FUZZ_WITHOUT")
    warm_up()
    if sys.argv[1:]:
        sys.exit(run_files(sys.argv[1:]))
    tally = Tally()
    for seed in range(first, first + count):
        tally.add(write(seed, without))
        if (seed - first) % 100 == 99:
            print(f"to seed {seed}, {tally}", flush=True)
    print(f"seeds {first} to {first + count - 1}, {tally}")
    if not HAS_PEFT:
        print("  not drawn: peft, which is not installed")
    sys.exit(1 if tally.known else 0)


def run_files(paths):
    """Exit code: whether there are findings in programs of files."""
    n_bad = 0
    for path in paths:
        program = read(path)
        plain, found = run(program)
        findings, refused = findings_of(program, found)
        n_bad += bool(findings) or "text" in plain
        said = [f"{kind} at {places}: {text}" for kind, text, places in findings] + [
            f"refused: {text}" for text in refused
        ]
        print(f"{path}: {'; '.join(said) or plain.get('text', 'equal')}", flush=True)
    return 1 if n_bad else 0


def warm_up():
    """Imports that PyTorch puts off, once for all processes."""
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    torch.optim.AdamW([p]).step()


if __name__ == "__main__":
    main()
