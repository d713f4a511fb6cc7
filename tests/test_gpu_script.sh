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

# fake NAME: a program on the stand-in's PATH, from standard input; `is KIND` says whether the machine is of it.
fake() {
    { echo '#!/bin/sh'; echo 'is() { case " ${FAKE:-} " in *" $1 "*) ;; *) return 1 ;; esac; }'; cat; } >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}

mkdir "$work/bin" "$work/built"
fake nvidia-smi <<'END'
case "$FAKE $*" in none*) ;; *compute_cap*) echo 9.0 ;; *memory.free*) echo "140000 MiB" ;; *) echo "A GPU, 1.2, 3 MiB" ;; esac
END
fake ctest <<'END'
echo '1/2 Test  #9: test_kernels_cuda ....   Passed'
! is skips || echo '2/2 Test #10: test_device_cuda .....***Skipped'
END
fake dpkg-deb <<'END'
mkdir -p "$3/usr/lib/x86_64-linux-gnu/pkgconfig"
echo prefix=/usr >"$3/usr/lib/x86_64-linux-gnu/pkgconfig/$(basename "$2" .deb).pc"
END
fake compute-sanitizer <<'END'
! is slow || sleep 100
is race || exit 0
printf 'a "hazard"\t\\ at \303\244\033[0m\nthe end\n'
exit 1
END
fake cmake <<'END'
! is packages ||
    grep -q "^prefix=${CMAKE_PREFIX_PATH:-none}\$" "$PKG_CONFIG_PATH/some.pc" || exit 1
case "$*" in *-DZR_CUDA_ARCHITECTURES=90) ;; *) exit 1 ;; esac
while [ "$1" != -B ]; do shift; done
echo 'ZR_CUDA_REASON:INTERNAL=built with nvcc' >"$2/CMakeCache.txt"
touch "$2/build.ninja"
END
fake ninja <<'END'
! is broken || exit 1
! is hangs || { trap '' TERM; while :; do sleep 1; done; }
mkdir -p "$2/bin" "$2/tests"
cp "$0-built/"* "$2/bin/"
cp "$0-tests/"* "$2/tests/"
END
mkdir "$work/bin/ninja-built"
fake ninja-built/zero-bench <<'END'
case "$*" in
*--save-hardware*) echo '{"figures": 1}' ;;
*" --device cuda --json "*) printf '{\n  "peak_device_bytes": 6000000000,\n  "step_ms": 12.5,\n  "ratio": 1\n}\n' ;;
*) exit 1 ;;
esac
END
fake ninja-built/zero-plan <<'END'
peak=6001000000 fits=true micro_batch=1
! is unplanned || peak=7000000000
while [ $# -gt 0 ]; do [ "$1" != --micro-batch ] || micro_batch=$2; shift; done
[ "$micro_batch" -le 77 ] || fits=false
printf '{\n "fits": %s,\n  "reserved": %s,\n  "step_ms": 11.0,\n}\n' $fits $peak
END
fake ninja-built/zero-capacity </dev/null
mkdir "$work/bin/ninja-tests"
for name in test_device test_nn_attention; do
    fake ninja-tests/$name <<'END'
! is smokeless
END
done
fake python3 <<'END'
[ "$1" != tests/gpu_peer.py ] || { echo '{"step_ms": 20}'; exit; }
case "$1 $2" in '-c import torch') ! is torchless ;; *) exec /usr/bin/env -i PATH=/usr/bin:/bin python3 "$@" ;; esac
END
fake ninja-built/zero-train <<'END'
[ "$1" != --version ] || exit 0
case "$*" in *'--attention cudnn'*) ! is dnnless || { echo "cuDNN was not found" && exit 2; } ;; esac
while [ $# -gt 0 ]; do
    case $1 in --ranks) ranks=$2 ;; --stage) stage=$2 ;; --log) log=$2 ;; --device) device=$2 ;; --trace) trace=$2 ;; esac
    shift
done
[ -z "${CUBLASLT_LOG_FILE:-}" ] || printf '[now][cublasLt][%s][Trace][cublasLtMatmul] A=0X%s algo=[algoId=6]\n' 1 7f 1 8e >"$CUBLASLT_LOG_FILE"
in_use=7000000000
! is crowded || in_use=8000000000
[ -z "${trace:-}" ] || printf '{"name":"%s","cat":"work","ph":"X","dur":%s,"args":{"bytes":%s}},\n' matmul 30.5 0 gelu 10 20000 matmul 59.5 0 >"$trace"
peak=4096
! is peaks || [ "$ranks$stage" != 83 ] || peak=8192
extra=0
! is apart || [ "$device" != cuda ] || extra=2
[ -z "${log:-}" ] || for i in $(seq 20); do echo "{\"step\": $i, \"loss\": 5.$extra$((i + 20)), \"x\": 1}"; done >"$log"
hash=abc$ranks last=2.5
! is differ || [ "$ranks$stage" != 23 ] || hash=def
! is nan || [ "$stage" != 1 ] || last=nan
printf '{\n  "loss": {\n    "first": 3.5,\n    "last": %s\n  },\n' "$last"
printf '  "step_ms": 12.5,\n  "device_in_use_bytes": %s,\n  "planned_device_in_use_bytes": 7010000000,\n' $in_use
printf '  "peak_bytes": {\n    "live": 4096,\n    "reserved": 6000000000\n  },\n'
printf '  "planned_peak_bytes": {\n    "live": %s,\n    "reserved": 6002000000\n  },\n' $peak
printf '  "weights_xxh3": "%s"\n}\n' "$hash"
END

# run KINDS [OPTION...]: the script on a machine of these kinds, in a folder of its own unless $keep is set. Sets `code`; what it printed is in
# $work/said.
run() {
    [ -n "${keep:-}" ] || rm -rf "$work/build"
    FAKE=$1 ZR_GPU_PART_SECONDS=${part_seconds:-100} PATH=$work/bin:$PATH bash -c 'echo $$ >"$0/pid"; exec bash "$@"' "$work" "$script" \
        --build "$work/build" --out "$work/out.json" "${@:2}" >"$work/said" 2>&1
    code=$?
    [ -z "${TIMES:-}" ] || echo "$SECONDS $*"
}

not_in_results() { ! grep -q "$1" "$work/out.json"; }

# counts PASSED FAILED: what the results say.
counts() {
    grep -q "\"passed\": $1,\$" "$work/out.json" && grep -q "\"failed\": $2,\$" "$work/out.json"
}

export ZR_GPU_SELF_TEST=1 # what the script does without a GPU is to run this test

run none
expect "no GPU: 77" test $code -eq 77
expect "no GPU: says so" grep -q '^no GPU: nvidia-smi' "$work/said"
expect "no GPU: says what it would do" grep -q '^smoke-device (at [0-9]* s, about 8 s, ' "$work/said"
expect "no GPU: no results" test ! -e "$work/out.json"

FAKE=none PATH=$work/bin:$PATH bash "$script" --dry-run --build "$work/build" >"$work/said" 2>&1
expect "a dry run ends well" test $? -eq 0
in_order() {
    local part line=0 next
    for part; do
        next=$(grep -n "^$part (at [0-9]* s, about [0-9]* s" "$work/said" | cut -d: -f1)
        [ "${next:-0}" -gt $line ] || { echo "$part is not listed, or too early" && return 1; }
        line=$next
    done
}
expect "a dry run lists parts in the order of what they are worth" in_order build smoke-device smoke-step bench-hardware \
    bench-step-1.5b bench-matmul-bf16 trace-1.5b bench-step-1.5b-largest suite train-ranks8-stage3 pytorch-gpt2-xl \
    offload-1.5b-nvme capacity bench-matmul-fp32 racecheck-test_nn_rows
expect "a dry run makes nothing" test ! -e "$work/build"
expect "it says what may not be reached" grep -q '^racecheck-test_nn_attention (at [0-9]* s, about [0-9]* s, at most [0-9]* s, if time is left): ' "$work/said"
expect "a part may take twice as long as expected, and 5 s more" grep -q '^build (at 0 s, about 80 s, at most 165 s): ' "$work/said"
first_smoke=$(sed -n 's/^smoke-device (at \([0-9]*\) s.*/\1/p' "$work/said") after_smoke=$(sed -n 's/^bench-hardware (at \([0-9]*\) s.*/\1/p' "$work/said")
first_sanitizer=$(sed -n 's/^memcheck-test_kernels (at \([0-9]*\) s.*/\1/p' "$work/said")
expect "what measures and compares is expected to be done by then" test "$first_sanitizer" -le 550
expect "the smoke test takes a minute at most" test $((after_smoke - first_smoke)) -le 60

# With all that it needs: build, 4 of smoke, the hardware, 4 steps with their plans, 3 other benchmarks, 3 traces with
# what is in use, their kernels and cuBLASLt's choices, a step with cuDNN, suite, 6 runs with their losses and peaks, 2 comparisons, 12 placements with 2 comparisons, 2 runs
# and their losses, 2 of PyTorch, 2 of offload with their plans, capacity, 3 further benchmarks, 6 of compute-sanitizer, 2 of updates.
n_all=87
run well
expect "all passes" test $code -eq 0
expect "$n_all parts pass" counts $n_all 0
expect "what the tests printed is in the results" grep -q '"suite".*"output": "1/2 Test .* Passed"}' "$work/out.json"
expect "a plan stands beside its step" grep -Fq '"result": {"planned_step_ms": 11.0, "step_ms": 12.5, "planned_peak_bytes": 6001000000, "peak_bytes": 6000000000}' "$work/out.json"
expect "kernels are added up" grep -Fq '90.00%         90.0 us      2 times      0.0 GB/s  matmul\n 10.00%         10.0 us      1 times      2.0 GB/s  gelu' "$work/out.json"
expect "so are cuBLASLt's choices" grep -Fq '      2 [cublasLt][Trace][cublasLtMatmul] A= algo=[algoId=6]' "$work/out.json"
expect "the largest micro-batch is what fits" grep -q 'bench-step-1.5b-largest".*--micro-batch 77 ' "$work/out.json"
if command -v python3 >/dev/null; then
    expect "the results are JSON" python3 -m json.tool "$work/out.json" /dev/null
fi
# What goes wrong in a part fails that part, and the rest is run.
run "smokeless torchless dnnless unplanned crowded peaks differ race skips apart"
expect "without PyTorch and cuDNN their three parts are left out" grep -q '"left_out": 3,$' "$work/out.json"
expect "a part fails for each" counts $((n_all - 31)) 22
expect "different weights end with 1" test $code -eq 1
failed() { sed -n 's/^\([^ ]*\): failed.*/\1/p' "$work/said" | tr '\n' ' '; }
expect "which parts: smoke, plans, the suite, hashes, peaks, sanitizers" test "$(failed)" = "$(echo \
    smoke-device smoke-attention planned-step-124m planned-step-1.5b trace-124m-in-use trace-1.5b-in-use \
    planned-step-1.5b-accumulated planned-step-1.5b-largest suite train-ranks2-hashes train-ranks8-stage3-peaks \
    train-host-losses place-gpt2-hashes place-llama-hashes planned-offload-1.5b-cpu planned-offload-1.5b-nvme memcheck-test_kernels memcheck-test_nn_rows memcheck-test_nn_attention racecheck-test_kernels racecheck-test_nn_rows racecheck-test_nn_attention) "
expect "and why" grep -q 'train-ranks2-hashes: failed: .* abc2 def' "$work/said"
expect "what a sanitizer says is in the results" grep -Fq '"output": "a \"hazard\" \\ at [0m\nthe end"}' "$work/out.json"
if command -v python3 >/dev/null; then
    expect "which are JSON" python3 -m json.tool "$work/out.json" /dev/null
fi
part_seconds=1 run slow
expect "a sanitizer whose time has passed is incomplete" grep -q '"memcheck-test_kernels", "status": "incomplete"' "$work/out.json"
expect "which is no failure" counts $((n_all - 6)) 0
expect "and is counted" grep -q '"incomplete": 6,$' "$work/out.json"
mkdir "$work/debs"
touch "$work/debs/some.deb"
run "packages nan" --packages "$work/debs"
expect "packages are unpacked and used; losses that are no numbers fail, at stage 1 of each number of ranks" \
    counts $((n_all - 2)) 2

mkdir -p "$work/carried/lib"
cp -r "$work/bin/ninja-built" "$work/carried/bin"
cp -r "$work/bin/ninja-tests" "$work/carried/tests"
run broken --programs "$work/carried"
expect "programs that were carried here are used, and nothing is built" counts $((n_all - 1)) 0
rm "$work/carried/bin/zero-train"
run well --programs "$work/carried"
expect "where they do not start, it is built" counts $n_all 0
part_seconds=1 run hangs
expect "a build that hangs, and does not end when asked to, is ended" grep -q 'build: timed out (' "$work/said"
expect "and the only part" counts 0 1
nothing_is_left() {
    ! grep -aqs "$work/bin/[n]inja" /proc/[0-9]*/cmdline
}
expect "nothing of it is left" nothing_is_left
rm -rf "$work/build" "$work/pid"
(
    while [ ! -e "$work/build/gpu/build.out" ]; do sleep 0.1; done
    kill -TERM "$(cat "$work/pid")"
) &
keep=yes run hangs
expect "ended from outside, it says so" grep -q '^stopped by a signal' "$work/said"
expect "with 1" test $code -eq 1
expect "and has written what there is" grep -q '"build", "status": "stopped by a signal"' "$work/out.json"
expect "nothing of that is left" nothing_is_left
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
