"""A model that is much larger than memory trains, within its budgets, as it does with larger ones.

    python3 tests/offload_proof.py [--states 45GiB] [--device 1GiB] [--host 3GiB] [--room 43GiB]
                                   [--drive DIR] [--build DIR] [--like "OPTIONS"] [--threads N]

zero-capacity finds the largest model for these budgets of device and host and so much --room
on the drive. Its states (parameters, gradients, optimizer state) have to take that much
at least. It then trains three steps with them, and three with twice the budgets of device and host, where
zero-train finds a placement of its own.

What has to hold: no tier is above its budget, and all are as planned; the process never has more
resident memory than both budgets and 64 MiB; and losses and weights are the same bits in both runs.
Files are unnamed, in --drive, and gone when a run ends. Exit status: 0; 1: something did not hold.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
PROGRAM = 64 << 20  # for the program itself, as --memory has it
STEPS = 3
ASKED = {"device-memory", "host-memory", "nvme-capacity", "nvme-path"}
PLACES = {"offload-optimizer", "offload-ratio", "state-in-host", "offload-params",
          "offload-param-ratio", "params-in-host", "offload-gradients", "offload-gradients-ratio",
          "gradients-in-host", "nvme-capacity"}


def size(text):
    number, unit = re.fullmatch(r"(\d+)(\w*)", text).groups()
    return int(number) * UNITS[unit]


def run(program, *arguments):
    done = subprocess.run([program, *arguments, "--json"], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"offload_proof: {' '.join(map(str, done.args))} ended with {done.returncode}")
    return json.loads(done.stdout)


def check(holds, what):
    if not holds:
        sys.exit(f"offload_proof: {what}")


def budgets(asked, times):
    return ["--device-memory", str(times * asked.device), "--host-memory", str(times * asked.host)]


def find(asked):
    object = run(asked.build / "bin/zero-capacity", *asked.like.split(), *budgets(asked, 1),
                 "--nvme-capacity", str(asked.room), "--nvme-path", asked.drive, "--stage", "3",
                 "--offload-optimizer", "auto", "--offload-params", "auto", "--verify", "off", "--threads", asked.threads)
    point = object["points"][0]
    check(point["result"] == "found", "not even the smallest model fits")
    return point["largest"]


def without(options, names):
    """Options in pairs of name and value."""
    pairs = zip(options[::2], options[1::2])
    return [word for pair in pairs if pair[0][2:] not in names for word in pair]


def train(asked, data, options, times):
    trained = run(asked.build / "bin/zero-train", "--data", data, *options, *budgets(asked, times),
                  "--nvme-path", asked.drive, "--steps", str(STEPS), "--threads", asked.threads, "--quiet")
    peaks, planned = trained["peak_bytes"], trained["planned_peak_bytes"]
    tiers = {"device": times * asked.device, "host": times * asked.host}
    for tier, budget in tiers.items():
        check(peaks[tier]["reserved"] <= budget, f"{tier}: {peaks[tier]} above {budget}")
        for kind in ("live", "reserved"):
            check(peaks[tier][kind] == planned[tier][kind],
                  f"{tier}, {kind}: {peaks[tier][kind]}, planned {planned[tier][kind]}")
    resident, most = trained["peak_resident_bytes"], sum(tiers.values()) + PROGRAM
    print(f"budgets {sum(tiers.values()) / 2**20:.0f} MiB: resident {resident / 2**20:.1f} MiB, "
          f"tensors {sum(peaks[tier]['reserved'] for tier in tiers) / 2**20:.1f}, tables "
          f"{trained['metadata_bytes']['peak'] / 2**20:.1f}; drive "
          f"{peaks['nvme']['reserved'] / 2**30:.2f} GiB; step {trained['step_ms'] / 1e3:.1f} s; "
          f"loss {trained['loss']['first']!r} to {trained['loss']['last']!r}, weights "
          f"{trained['weights_xxh3']}", flush=True)
    check(resident <= most, f"{resident} bytes resident, more than {most}")
    return trained


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=size, default=size("45GiB"))
    parser.add_argument("--device", type=size, default=size("1GiB"))
    parser.add_argument("--host", type=size, default=size("3GiB"))
    parser.add_argument("--room", type=size, default=size("43GiB"))
    parser.add_argument("--drive", default=".")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--like", default="--seq 32", help="options of zero-capacity")
    parser.add_argument("--threads", default="0")
    asked = parser.parse_args()
    largest = find(asked)
    states = largest["bytes"]["states"]
    check(states >= asked.states, f"states of {states} bytes are fewer than {asked.states}")
    print(f"{largest['model']}: states {states / 2**30:.2f} GiB", flush=True)
    options = without(largest["options"].split(), ASKED)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as data:
        data.write("".join(f"{i}: {i * i % 977} lazy dogs\n" for i in range(4000)))
        data.flush()
        small = train(asked, data.name, options, 1)
        large = train(asked, data.name, [*without(options, PLACES), "--offload-optimizer", "auto",
                                         "--offload-params", "auto"], 2)
    for key in ("loss", "weights_xxh3", "non_finite_weights"):
        check(small[key] == large[key], f"{key}: {small[key]}, with larger budgets {large[key]}")


if __name__ == "__main__":
    main()
