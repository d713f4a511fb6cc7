"""The same script on DeepSpeed and on libzero: losses of each step, step time, and peak resident memory, of a GPT-2 of random weights
on the CPU, in turns.

    compare_deepspeed.py [--stages 1,2,3] [--ranks 2] [--steps 6] [--seq 128] [--layers 12] [--width 768] [--json FILE]
                         [--option KEY=VALUE]...

--option: a keyword of libzero, such as master=split.
With PYTHONPATH and LIBZERO_LIBRARY_DIR, as tests/python/test_engine.py. Each is started by torchrun's own launcher. Memory is what the
processes hold together of the machine's (PSS: shared pages count once), beyond what they hold when the model is made, sampled every
50 ms in the first half of the steps. Sampling itself takes more of the processor than a step, so that times are those of the other half: a step's is the
median over steps of the slowest rank's; its processor time is that of a rank, on average, and depends less on what else the machine does.
What libzero.plan says beyond the model is the sum of the peaks of its tiers and of activations.

Exit code: 0; 1 where a loss differs by more than 1e-4; 77 without DeepSpeed.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time


def resident():
    """Bytes of this process, of shared pages its part, without those of files: others use the same libraries, and end."""
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


class Watch(threading.Thread):
    """The most that the process holds."""

    def __init__(self):
        super().__init__(daemon=True)
        self.first = self.peak = resident()
        self.has_ended = False
        self.start()

    def run(self):
        while not self.has_ended:
            self.peak = max(self.peak, resident())
            time.sleep(0.05)


def work(arguments):
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    rank, n_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def make():
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_layer=arguments.layers, n_embd=arguments.width, n_head=arguments.width // 64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))

    model = make()
    config = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": arguments.stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.01}}}
    # Imported before memory is measured, as torch is.
    if arguments.worker == "deepspeed":
        import deepspeed

        deepspeed.init_distributed()
        watch = Watch()
        engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    else:
        import libzero

        watch = Watch()
        options = dict(option.split("=", 1) for option in arguments.option)
        engine = libzero.initialize(model=model, config=config, **options)
    generator = torch.Generator().manual_seed(1)
    losses, times, works = [], [], []
    for step in range(arguments.steps):
        if step == arguments.steps // 2:
            watch.has_ended = True
            watch.join()
        tokens = torch.randint(50257, (n_ranks, arguments.seq), generator=generator)[rank : rank + 1]
        begin, begin_work = time.perf_counter(), time.process_time()
        loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        times.append(time.perf_counter() - begin)
        works.append(time.process_time() - begin_work)
        losses.append(loss.item())
    found = {"losses": losses, "times": times, "works": works, "first": watch.first, "peak": watch.peak, "planned": 0}
    if arguments.worker == "libzero":
        plan = libzero.plan(make(), {"input_ids": tokens, "labels": tokens, "use_cache": False}, ranks=n_ranks, config=config, **options)
        parts = [plan["activations"], *(plan["tiers"][tier] for tier in ("device", "host"))]
        found["planned"] = sum(part["peak"] for part in parts) - sum(4 * p.numel() for p in model.parameters())
    with open(f"{arguments.json}.{rank}", "w") as file:
        json.dump(found, file)


def run(which, stage, arguments, folder):
    """What all ranks say."""
    file = os.path.join(folder, f"{which}-{stage}")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={arguments.ranks}", __file__,
               f"--worker={which}", f"--stage={stage}", f"--steps={arguments.steps}", f"--seq={arguments.seq}",
               f"--layers={arguments.layers}", f"--width={arguments.width}", f"--json={file}", *(f"--option={o}" for o in arguments.option)]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    if done.returncode:
        sys.exit(f"{which} at stage {stage} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found = []
    for rank in range(arguments.ranks):
        with open(f"{file}.{rank}") as f:
            found.append(json.load(f))
    timed = range(arguments.steps // 2, arguments.steps)
    return {
        "losses": [r["losses"] for r in found],
        "step_s": statistics.median(max(r["times"][i] for r in found) for i in timed),
        "processor_s": statistics.median(sum(r["works"][i] for r in found) / arguments.ranks for i in timed),
        "memory_bytes": sum(r["peak"] - r["first"] for r in found),
        "planned_bytes": sum(r["planned"] for r in found),
    }


#: What is compared: its key, name and unit.
FIGURES = [("step_s", "step, s", 1), ("processor_s", "processor, s", 1), ("memory_bytes", "memory, MiB", 2**20)]


def compare(arguments):
    if importlib.util.find_spec("deepspeed") is None:
        print("skipped: there is no deepspeed (pip install deepspeed)")
        sys.exit(77)
    import deepspeed
    import torch

    print(f"deepspeed {deepspeed.__version__}, torch {torch.__version__}, {arguments.ranks} processes, "
          f"{arguments.layers} layers of {arguments.width}, 1x{arguments.seq} tokens, {os.cpu_count()} cores")
    print(f"{'stage':>5}  {'worst loss':>10}  {'':>14}  {'DeepSpeed':>10}  {'libzero':>10}  {'ratio':>5}")
    results, is_near = [], True
    with tempfile.TemporaryDirectory(prefix="libzero-") as folder:
        for stage in map(int, arguments.stages.split(",")):
            theirs, ours = (run(which, stage, arguments, folder) for which in ("deepspeed", "libzero"))
            worst = max(abs(a - b) for x, y in zip(theirs["losses"], ours["losses"]) for a, b in zip(x, y, strict=True))
            is_near = is_near and worst <= 1e-4
            results.append({"stage": stage, "worst_loss": worst, "deepspeed": theirs, "libzero": ours})
            for i, (key, name, unit) in enumerate(FIGURES):
                head = f"{stage:>5}  {worst:>10.1e}" if i == 0 else " " * 17
                print(f"{head}  {name:>14}  {theirs[key] / unit:>10.2f}  {ours[key] / unit:>10.2f}  {ours[key] / theirs[key]:>5.2f}", flush=True)
            print(f"{'planned, MiB':>33}  {'':>10}  {ours['planned_bytes'] / 2**20:>10.2f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)
    return 0 if is_near else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default="1,2,3")
    for name, value in (("ranks", 2), ("steps", 6), ("seq", 128), ("layers", 12), ("width", 768)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json")
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--stage", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
    else:
        sys.exit(compare(arguments))
