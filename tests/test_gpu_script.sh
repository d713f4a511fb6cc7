#!/usr/bin/env bash
# tests/gpu.sh without a GPU: what it says where there is none, what it would do, and, with stand-ins
# for the machine and for what is built, what it makes of results. usage: test_gpu_script.sh SOURCE
set -u
script=$1/tests/gpu.sh
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
status=0

# expect WHAT COMMAND...
expect() {
    local what=$1
    shift
    "$@" && return
    echo "not so: $what"
    [ ! -e "$work/said" ] || cat "$work/said"
    status=1
}

# fake NAME: a program on the stand-in's PATH, from standard input.
fake() {
    { echo '#!/bin/sh'; cat; } >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}

mkdir "$work/bin" "$work/built"
fake nvidia-smi <<'END'
case "$FAKE $*" in none*) ;; *compute_cap*) echo 9.0 ;; *) echo "A GPU, 1.2, 3 MiB" ;; esac
END
fake ctest <<'END'
echo '1/2 Test  #9: test_kernels_cuda ....   Passed'
[ "${FAKE:-}" != skips ] || echo '2/2 Test #10: test_device_cuda .....***Skipped'
END
fake dpkg-deb <<'END'
mkdir -p "$3/usr/lib/x86_64-linux-gnu/pkgconfig"
echo prefix=/usr >"$3/usr/lib/x86_64-linux-gnu/pkgconfig/$(basename "$2" .deb).pc"
END
fake compute-sanitizer <<'END'
[ "${FAKE:-}" = race ] || exit 0
printf 'a "hazard"\t\\ at \303\244\033[0m\nthe end\n'
exit 1
END
fake cmake <<'END'
[ "${FAKE:-}" != packages ] ||
    grep -q "^prefix=${CMAKE_PREFIX_PATH:-none}\$" "$PKG_CONFIG_PATH/some.pc" || exit 1
case "$*" in *-DZR_CUDA_ARCHITECTURES=90) ;; *) exit 1 ;; esac
while [ "$1" != -B ]; do shift; done
echo 'ZR_CUDA_REASON:INTERNAL=built with nvcc' >"$2/CMakeCache.txt"
touch "$2/build.ninja"
END
fake ninja <<'END'
[ "${FAKE:-}" != broken ] || exit 1
[ "${FAKE:-}" != hangs ] || { trap '' TERM; while :; do sleep 1; done; }
mkdir -p "$2/bin"
cp "$0-built/"* "$2/bin/"
END
mkdir "$work/bin/ninja-built"
fake ninja-built/zero-bench <<'END'
case "$*" in *" --device cuda --json "*) echo '{"ratio": 1}' ;; *) exit 1 ;; esac
END
fake ninja-built/zero-train <<'END'
while [ $# -gt 0 ]; do
    case $1 in --ranks) ranks=$2 ;; --stage) stage=$2 ;; --log) log=$2 ;; --device) device=$2 ;; esac
    shift
done
extra=0
[ "${FAKE:-}$device" != apartcuda ] || extra=2
[ -z "${log:-}" ] || for i in $(seq 20); do echo "{\"step\": $i, \"loss\": 5.$extra$((i + 20)), \"x\": 1}"; done >"$log"
hash=abc$ranks last=2.5
[ "${FAKE:-}$ranks$stage" != differ23 ] || hash=def
[ "${FAKE:-}$stage" != nan1 ] || last=nan
printf '{\n  "loss": {\n    "first": 3.5,\n    "last": %s\n  },\n' "$last"
printf '  "weights_xxh3": "%s"\n}\n' "$hash"
END

# run KIND [OPTION...]: the script on a machine of that kind, in a folder of its own unless $keep is set. Sets `code`; what it printed is in
# $work/said.
run() {
    [ -n "${keep:-}" ] || rm -rf "$work/build"
    FAKE=$1 ZR_GPU_PART_SECONDS=${part_seconds:-100} PATH=$work/bin:$PATH bash "$script" --build "$work/build" --out "$work/out.json" "${@:2}" \
        >"$work/said" 2>&1
    code=$?
}

not_in_results() { ! grep -q "$1" "$work/out.json"; }

# counts PASSED FAILED: what the results say.
counts() {
    grep -q "\"passed\": $1,\$" "$work/out.json" && grep -q "\"failed\": $2,\$" "$work/out.json"
}

run none
expect "no GPU: 77" test $code -eq 77
expect "no GPU: says so" grep -q '^no GPU here' "$work/said"
expect "no GPU: no results" test ! -e "$work/out.json"

FAKE=none PATH=$work/bin:$PATH bash "$script" --dry-run --build "$work/build" >"$work/said" 2>&1
expect "a dry run ends well" test $? -eq 0
for part in build suite bench-adam-bf16 bench-kernels-bf16 bench-matmul-fp32 bench-step-1.5b train-ranks8-stage3 racecheck-test_nn_rows; do
    expect "a dry run lists $part" grep -q "^$part ([0-9]* s): " "$work/said"
done
expect "a dry run makes nothing" test ! -e "$work/build"

limits=$(sed -n 's/^[^ ]* (\([0-9]*\) s): .*/\1/p' "$work/said" | paste -sd+)
expect "the limits of all parts, $limits, leave some of ten minutes" test $((limits)) -le 585

# build, suite, 8 benchmarks, 12 runs with their losses, 3 comparisons, 2 runs and their losses, 6 of
# compute-sanitizer, the PTX
run well
expect "all passes" test $code -eq 0
expect "47 parts pass" counts 47 0
expect "what the tests printed is in the results" grep -q '"suite".*"output": "1/2 Test .* Passed"}' "$work/out.json"
# Parts have 100 seconds here, and up to as many that others have left.
mapfile -t limits < <(sed -n 's/.*"limit": \([0-9]*\).*/\1/p' "$work/out.json")
expect "the first part has its own limit: ${limits[0]}" test "${limits[0]}" -eq 100
expect "others may use what it has left: ${limits[1]}" test "${limits[1]}" -gt 100
expect "but no more than double theirs" test "$(printf '%s\n' "${limits[@]}" | sort -n | tail -n 1)" -eq 200
if command -v python3 >/dev/null; then
    expect "the results are JSON" python3 -m json.tool "$work/out.json" /dev/null
fi
run differ
expect "different weights fail" test $code -eq 1
expect "one part fails" counts 46 1
expect "which ones" grep -q 'train-ranks2-hashes: failed: .* abc2 def' "$work/said"
run nan
expect "losses that are no numbers fail, at stage 1 of each number of ranks" counts 44 3
run race
expect "compute-sanitizer's errors fail" counts 41 6
expect "and are in the results" grep -Fq '"output": "a \"hazard\" \\ at [0m\nthe end"}' "$work/out.json"
if command -v python3 >/dev/null; then
    expect "which are JSON" python3 -m json.tool "$work/out.json" /dev/null
fi
run skips
expect "a test that is skipped fails" counts 46 1
run apart
expect "other losses than the host's fail" counts 46 1
mkdir "$work/debs"
touch "$work/debs/some.deb"
run packages --packages "$work/debs"
expect "packages are unpacked and used" counts 47 0
part_seconds=3 run hangs
expect "a build that hangs, and does not end when asked to, is ended" grep -q 'build: timed out (' "$work/said"
expect "and the only part" counts 0 1
nothing_is_left() {
    ! grep -aqs "$work/bin/[n]inja" /proc/[0-9]*/cmdline
}
expect "nothing of it is left" nothing_is_left
run broken
expect "a build that fails is the only part" counts 0 1
# What an earlier run in the same folder printed is not of this one.
if ! command -v compute-sanitizer >/dev/null; then
    rm "$work/bin/compute-sanitizer"
    echo earlier | tee "$work/build/gpu/memcheck-test_kernels.out" >"$work/build/gpu/memcheck-test_kernels.err"
    keep=yes run well
    expect "without compute-sanitizer six parts are left out" grep -q '"left_out": 6,\{0,1\}$' "$work/out.json"
    expect "and have printed nothing" not_in_results earlier
fi
bash "$script" --unknown >"$work/said" 2>&1
expect "an unknown option ends with 2" test $? -eq 2
exit $status
