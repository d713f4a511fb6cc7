"""A rank that dies, fails, or does other things than the rest ends all of them, with an error that says so; and the
example works as two ranks.

Usage: test_ranks.py, with PYTHONPATH and LIBZERO_LIBRARY_DIR. Exit code 77: there is no PyTorch.
"""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(__file__))
import libzero
import models
from processes import start_ranks

torch.set_num_threads(1)


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
    def errors(self, case):
        """What each rank has said; all have ended."""
        ranks = start_ranks(2, [sys.executable, __file__, "work", case], stderr=subprocess.PIPE, text=True)
        said = [rank.communicate(timeout=300)[1] for rank in ranks]
        return said, [rank.returncode for rank in ranks]

    def check(self, case, *words, codes=(1, 1)):
        said, ended = self.errors(case)
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
        import transformers

        text = "the quick brown fox jumps over the lazy dog. " * 60
        script = os.path.join(os.path.dirname(__file__), "../../examples/python/finetune.py")
        with tempfile.TemporaryDirectory(prefix="libzero-") as folder:
            with open(f"{folder}/text", "w") as file:
                file.write(text)
            models.save_tiny_llama(f"{folder}/model", text)
            command = [sys.executable, script, f"{folder}/model", f"{folder}/text", "--seq", "16", "--steps", "20", "--lr",
                       "0.01", "--save", f"{folder}/tuned", "stage=3", "grad_accum=2", "offload_optimizer=cpu"]
            ranks = start_ranks(2, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            said = [rank.communicate(timeout=600) for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0, 0], said)
            losses = [float(line.split("loss ")[1].split(",")[0]) for line in said[0][0].splitlines() if "loss" in line]
            self.assertLess(losses[-1], 0.5 * losses[0])
            self.assertEqual(said[1][0], "")
            tuned = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/tuned")
            tokens = torch.tensor([transformers.AutoTokenizer.from_pretrained(f"{folder}/tuned")(text)["input_ids"][:16]])
            self.assertLess(tuned(input_ids=tokens, labels=tokens).loss.item(), 0.6 * losses[0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2])
    else:
        unittest.main(verbosity=2)
