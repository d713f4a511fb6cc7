#!/usr/bin/env python3
"""Take each call that orders work away, one place at a time, and see which test notices.

    python3 tests/waits/waits.py [--only REGEX] [--tests REGEX] [--list]

It builds the tests in build/waits, where the calls named in CALLS go through taken_away.c, finds out
which places of the sources each test meets, and runs those tests with one place taken away until one
fails. A place is a line, and where several lines call the function that it is in, each of those. The
last line says how many places no test noticed; where there are any it ends with 1.
"""
import argparse
import collections
import concurrent.futures
import functools
import glob
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, "build", "waits")

# Where work is late, or the device's clock is its own: elsewhere nothing can be noticed. The first
# are asked first: those that find most in a second. Behind a colon stands which part of a program.
TESTS = [tuple(test.split()) for test in (
    "test_replay", "test_allocator_streams", "test_allocator_conformance", "test_replay_properties",
    "test_comm_queued", "test_overlap", "test_comm_threads_late", "test_gpt_late", "test_stash",
    "test_emu_trace cuda", "test_emu_device cuda", "test_emu_allocator cuda", "test_emu cuda",
    "test_emu_nccl cuda", "test_emu_comm_nccl cuda",
    "test_late :runs_*", "test_late :early_*", "test_late :what_*", "test_late :a_new_*",
    "test_late :the_*", "test_late :copies_*", "test_late :late_*_params", "test_late :late_*_offload",
    "test_late :late_*_nothing", "test_emu_checkpoint cuda", "test_emu_comm_threads cuda", "test_emu_late cuda",
    "test_emu_offload cuda", "test_emu_parity cuda", "test_emu_train", "test_comm_sim", "test_gpt_sim")]

# Places that count: below these, the rest are tests and what devices do themselves.
SOURCES = ("zero/", "offload/", "allocator/", "examples/", "kernels/cuda/")

LEFT_OUT = ("examples/bench/",)  # they only measure

CALLS = {"record": "event recorded", "stream_wait": "stream waits", "query": "event asked for",
         "wait_for_event": "event waited for", "wait_for_stream": "stream waited for",
         "free_behind": "freed behind a stream"}

# A call keeps its line and its caller's: nothing is inlined, merged, or left by a jump.
FLAGS = ("-fno-omit-frame-pointer -fno-optimize-sibling-calls -fno-inline-functions "
         "-fno-inline-functions-called-once -fno-inline-small-functions -fno-partial-inlining "
         "-fno-ipa-icf -fno-ipa-cp -fno-crossjumping -fno-tree-tail-merge -fno-code-hoisting "
         "-fno-shrink-wrap")

Test = collections.namedtuple("Test", "name command seconds")
Place = collections.namedtuple("Place", "call line caller")  # caller: "" where there is one alone


def build(tests, jobs):
    if not os.path.exists(os.path.join(BUILD, "build.ninja")):
        subprocess.run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", BUILD, "-DZR_CUDA=OFF",
                        "-DZR_TAKE_AWAY_WAITS=ON", "-DCMAKE_C_FLAGS=" + FLAGS],
                       check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", BUILD, f"-j{jobs}"] + sorted({test[0] for test in tests}),
                   check=True, stdout=subprocess.DEVNULL)


@functools.cache
def environments():
    """What ctest gives programs: {program: {name: value}}."""
    told = subprocess.run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], check=True,
                          capture_output=True, text=True).stdout
    given = collections.defaultdict(dict)
    for test in json.loads(told)["tests"]:
        for of_test in test.get("properties", []):
            if of_test["name"] == "ENVIRONMENT" and "command" in test:
                program = os.path.basename(test["command"][0])
                given[program].update(pair.split("=", 1) for pair in of_test["value"])
    return given


def run(command, limit, **variables):
    """What the test returns, or None: it has not ended within the limit."""
    given = environments()[command[0]]
    environment = dict(os.environ, CMOCKA_TEST_ABORT="1", **given, **variables)
    if command[-1].startswith(":"):
        environment["WAITS_PART"] = command[-1][1:]
        command = command[:-1]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([os.path.join(BUILD, "tests", command[0]), *command[1:]],
                                   cwd=folder, env=environment, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return None


def lines_of(program, addresses):
    """FILE:LINE of each address, as the sources are named in the tree."""
    asked = "\n".join(addresses)
    told = subprocess.run(["addr2line", "-e", os.path.join(BUILD, "tests", program)], input=asked,
                          check=True, capture_output=True, text=True).stdout.split("\n")
    lines = [line.split(" ")[0].replace(ROOT + "/", "") for line in told]
    return dict(zip(addresses, lines))


def meet(command):
    """How long a test takes as it is, and the calls that it meets: run it, once for each build."""
    kept = os.path.join(BUILD, "tests", re.sub(r"\W+", "_", "_".join(command)) + ".met")
    program = os.path.join(BUILD, "tests", command[0])
    if not os.path.exists(kept) or os.path.getmtime(kept) < os.path.getmtime(program):
        with tempfile.NamedTemporaryFile("r") as met:
            begin = time.monotonic()
            returned = run(command, 900, WAITS_MET=met.name)
            if returned != 0:
                sys.exit(f"{' '.join(command)}: fails as it is ({returned})")
            told = f"{time.monotonic() - begin}\n{met.read()}"
        with open(kept, "w") as file:
            file.write(told)
    with open(kept) as file:
        seconds, *calls = file.read().splitlines()
    calls = sorted({tuple(call.split()) for call in calls})
    of_calls = []
    for program, group in itertools.groupby(calls, key=lambda call: call[0]):
        group = list(group)
        lines = lines_of(program, sorted({address for call in group for address in call[2:]}))
        of_calls += [(call, Place(call[1], lines[call[2]], lines[call[3]])) for call in group]
    of_calls = [call for call in of_calls if call[1].line.startswith(SOURCES)]
    return Test(" ".join(command), command, float(seconds)), of_calls


def collect(met):
    """What is taken away: for each place, what it is in each test."""
    callers = collections.defaultdict(set)
    for _, calls in met:
        for _, place in calls:
            if place.caller.startswith(SOURCES):
                callers[place[:2]].add(place.caller)
    places = collections.defaultdict(lambda: collections.defaultdict(list))
    for test, calls in met:
        for call, place in calls:
            own = callers[place[:2]]
            if len(own) < 2:
                place = place._replace(caller="")
            elif place.caller not in own:
                continue  # a test calls: the same line, but nobody's use of it
            places[place][test].append(" ".join(call))
    return places


def add_unmet(places):
    """Calls that stand in the sources, and that no test has come to."""
    met = {place.line for place in places}
    names = {"zr_event_record": "record", "cudaEventRecord": "record",
             "zr_event_query": "query", "cudaEventQuery": "query",
             "zr_event_synchronize": "wait_for_event", "cudaEventSynchronize": "wait_for_event",
             "zr_stream_synchronize": "wait_for_stream", "cudaStreamSynchronize": "wait_for_stream",
             "zr_stream_wait": "stream_wait", "cudaStreamWaitEvent": "stream_wait",
             "zr_free": "free_behind"}
    for path in sorted(glob.glob(ROOT + "/**/*.c", recursive=True)):
        name = os.path.relpath(path, ROOT)
        if not name.startswith(SOURCES) or name.startswith(LEFT_OUT):
            continue
        with open(path) as file:
            for number, line in enumerate(file, 1):
                called = re.match(r"\s+[^*]*?\b(" + "|".join(names) + r")\((.*)", line)
                if called is None or f"{name}:{number}" in met:
                    continue
                if called[1] != "zr_free" or "NULL);" not in called[2]:
                    places[Place(names[called[1]], f"{name}:{number}", "")] = {}


def find(of_tests):
    """The first test that notices."""
    for test in sorted(of_tests, key=lambda test: TESTS.index(test.command)):
        with tempfile.NamedTemporaryFile("w") as away:
            away.write("\n".join(of_tests[test]) + "\n")
            away.flush()
            returned = run(test.command, 20 + 4 * test.seconds, WAITS_AWAY=away.name)
            if returned != 0:
                return test.command[0] + (" (hangs)" if returned is None else "")
    return None


def order(place):
    file, line = place.line.rsplit(":", 1)
    return file, int(line) if line.isdigit() else 0, place.caller


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="places that match")
    parser.add_argument("--tests", default="", metavar="REGEX", help="tests that match")
    parser.add_argument("--list", action="store_true", help="print places, and run nothing more")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    options = parser.parse_args()
    tests = [test for test in TESTS if re.search(options.tests, " ".join(test))]
    build(tests, options.jobs)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        places = collect(list(pool.map(meet, tests)))
        add_unmet(places)
        wanted = [place for place in sorted(places, key=order)
                  if re.search(options.only, f"{place.line} {place.caller} {place.call}")]
        told = threading.Lock()

        def take_away(place):
            of_tests = places[place]
            found = ", ".join(t.name for t in of_tests) if options.list else find(of_tests)
            with told:
                where = place.line + (f" < {place.caller}" if place.caller else "")
                found = found or ("NOTHING" if of_tests else "NOTHING meets it")
                print(f"{where:60} {CALLS[place.call]:22} {found}", flush=True)
            return not found.startswith("NOTHING")

        n_unnoticed = list(pool.map(take_away, wanted)).count(False)
    print(f"{len(wanted)} places, {n_unnoticed} of them not noticed")
    return 1 if n_unnoticed > 0 else 0


if __name__ == "__main__":
    sys.exit(main())
