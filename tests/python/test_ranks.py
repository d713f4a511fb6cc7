"""A rank that dies, fails, or does other things than the rest ends all of them, with an error that says so; and the
example works as two ranks.

Usage: test_ranks.py, with PYTHONPATH and LIBZERO_LIBRARY_DIR. Exit code 77: there is no PyTorch.
"""

import atexit
import os
import runpy
import shutil
import signal
import sys
import tempfile
import unittest

try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(__file__))
import libzero.engine
import models
from processes import fork_ranks, wait_for

torch.set_num_threads(1)
EXAMPLE = os.path.join(os.path.dirname(__file__), "../../examples/python/finetune.py")
TEXT = "the quick brown fox jumps over the lazy dog. " * 60


class Two(torch.nn.Module):
    def __init__(self, n=8):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, n), torch.nn.Linear(8, n)

    def forward(self, x, part):
        return getattr(self, part)(x).square().mean()


def work(case):
    """A rank. Rank 1 does what the case says in its second step."""
    is_odd = libzero.rank() == 1
    model = Two(9 if case == "model" and is_odd else 8)
    engine = libzero.initialize(model, stage=3, lr=0.1 if case == "lr" and is_odd else 0.01)
    for step in range(3):
        part = "a"
        if step == 1 and is_odd:
            if case == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if case == "raises":
                raise KeyError("no cheese")
            if case == "exits":
                sys.exit(0)
            part = "b" if case == "unit" else "a"
        engine.backward(engine(torch.ones(1, 8), part))
        engine.step()


class Ranks(unittest.TestCase):
    def check(self, case, *words, codes=(1, 1)):
        said, ended = ENDED[case]
        self.assertEqual(tuple(ended), codes, said)
        for rank, word in enumerate(words):
            self.assertRegex(said[rank], word)

    def test_all_is_well(self):
        self.check("well", "^$", "^$", codes=(0, 0))

    def test_killed(self):
        self.check("killed", "CommError.*rank 1", codes=(1, -signal.SIGKILL))

    def test_raises(self):
        self.check("raises", "CommError.*rank 1.*no cheese", "KeyError")

    def test_exits(self):
        self.check("exits", "CommError.*rank 1", codes=(1, 0))

    def test_another_unit(self):
        self.check("unit", 'CommError.*"b parameters"', 'CommError.*"b parameters"')

    def test_another_model(self):
        self.check("model", "CommError.*rank 1.*a.weight", "CommError")

    def test_another_option(self):
        self.check("lr", "CommError.*rank 1 has another configuration.*lr", "CommError")


class Example(unittest.TestCase):
    """examples/python/finetune.py learns a text, as two processes, and saves what it has learned."""

    def test_finetune(self):
        said, codes = ENDED["example"]
        self.assertEqual(codes, [0, 0], said)
        losses = [float(line.split("loss ")[1].split(",")[0]) for line in said[0].splitlines() if line.startswith("step")]
        self.assertLess(losses[-1], 0.5 * losses[0])
        self.assertNotIn("step", said[1])
        tuned = transformers.AutoModelForCausalLM.from_pretrained(f"{FOLDER}/tuned")
        tokens = torch.tensor([transformers.AutoTokenizer.from_pretrained(f"{FOLDER}/tuned")(TEXT)["input_ids"][:16]])
        self.assertLess(tuned(input_ids=tokens, labels=tokens).loss.item(), 0.6 * losses[0])


def run_example():
    sys.argv = [EXAMPLE, f"{FOLDER}/model", f"{FOLDER}/text", "--seq", "16", "--steps", "20", "--lr", "0.01", "--save", f"{FOLDER}/tuned",
                "stage=3", "grad_accum=2", "offload_optimizer=cpu"]
    runpy.run_path(EXAMPLE, run_name="__main__")


if __name__ == "__main__":
    # All at once: ranks begin here, so that an error goes where an error of a script goes.
    FOLDER = tempfile.mkdtemp(prefix="libzero-")
    models.save_tiny_llama(f"{FOLDER}/model", TEXT)
    with open(f"{FOLDER}/text", "w") as file:
        file.write(TEXT)
    started = {}
    for case in ("well", "killed", "raises", "exits", "unit", "model", "lr", "example"):
        started[case] = fork_ranks(2, f"{FOLDER}/{case}")
        if started[case] is None:
            work(case) if case != "example" else run_example()
            sys.exit()
    ENDED = {}
    for case, processes in started.items():
        codes = wait_for(processes)
        ENDED[case] = [open(f"{FOLDER}/{case}{rank}").read() for rank in range(2)], codes
    atexit.register(shutil.rmtree, FOLDER)
    unittest.main(verbosity=2)
