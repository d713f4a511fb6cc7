#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that has one: a smoke test, measurements, the suite on cuda,
# training, races and bad accesses. Takes at most ten minutes, needs no network, and writes one JSON file of results.
#
#   bash tests/gpu.sh [--dry-run] [--only PATTERN] [--seconds N] [--build FOLDER] [--out FILE]
#                     [--packages FOLDER] [--programs FOLDER]
#
#   --dry-run   print the parts, when each is expected to begin and how long it takes, and their commands;
#               run nothing
#   --only      run only the parts whose names match this extended regular expression (and the build)
#   --seconds   stop after this many seconds (default: 550)
#   --build     where to build (default: build/gpu)
#   --out       the file of results (default: FOLDER/gpu.json); what parts print lies in FOLDER/gpu/
#   --packages  a folder of Debian packages that the machine lacks and cannot fetch: they are unpacked
#               in the build folder, and used from there (tests/gpu_pack.sh collects them)
#   --programs  a folder of programs that tests/gpu_pack.sh has built elsewhere, for this kind of GPU: they are
#               used instead of a build where they start here
#
# Exit code: 0 when all that could be run passed, 1 when something failed, 2 for bad usage. Without a GPU it prints
# what --dry-run prints, runs its own test, and ends with 77, or with 1 when that test fails.
#
# Parts run in order of importance. A part is stopped after twice its expected time plus 5 s, or when --seconds have
# passed. If an optional part (compute-sanitizer, the comparison with PyTorch) runs out of time, it is reported as
# "incomplete", not as failed. The results file is rewritten after each part, and when the script is terminated.
set -u
cd "$(dirname "$0")/.." || exit 1
. cmake/install.sh

build=build/gpu out='' packages='' programs='' is_dry=false only=''
total_seconds=550 # ending the last part and writing results take some more
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) is_dry=true ;;
    -h | --help)
        sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    --only) only=${2:?--only needs a pattern} && shift ;;
    --seconds) total_seconds=${2:?--seconds needs a number} && shift ;;
    --build) build=${2:?--build needs a folder} && shift ;;
    --out) out=${2:?--out needs a file} && shift ;;
    --packages) packages=${2:?--packages needs a folder} && shift ;;
    --programs) programs=${2:?--programs needs a folder} && shift ;;
    *)
        echo "gpu.sh: unknown option: $1; allowed: --dry-run, --only PATTERN, --seconds N, --build FOLDER," >&2
        echo "--out FILE, --packages FOLDER, --programs FOLDER, --help" >&2
        exit 2
        ;;
    esac
    shift
done
out=${out:-$build/gpu.json}
logs=$build/gpu
expected=0        # when the next part is expected to begin
may_be_incomplete=false
was_ended=false
running='' # the process group of the part that runs
n_passed=0 n_failed=0 n_left_out=0 n_incomplete=0
parts='' # JSON objects, with commas between them

# What is trained and measured. ZR_GPU_TINY: so little that the emulation does it (tests/test_gpu_emu.sh).
small=gpt2 small_batch=16 large=gpt2-xl large_batch=12 most_batch=256 seq=1024 vocab=50257
elems=200000003 rows='--channels 1600 --tokens 65536' products='--channels 1600 --tokens 16384' steps='' brief='' rounds='--steps 6 --micro-batch 4' many_ranks=8 channels=128 few=4
most_memory='--attention cudnn --recompute never'
if [ -n "${ZR_GPU_TINY:-}" ]; then
    small='layers=2,channels=16,heads=2,seq=16,vocab=256' large='layers=3,channels=16,heads=2,seq=16,vocab=256'
    small_batch=2 large_batch=2 most_batch=4 seq=16 vocab=256 elems=5003 rows='--channels 24 --tokens 33'
    products='--channels 8 --tokens 5 --side 32' steps='--steps 1 --side 32' brief='--seconds 0' many_ranks=3 channels=16 few=1
    rounds='--steps 10 --micro-batch 1 --lr 0.01 --schedule constant'
fi

# ---- parts ------------------------------------------------------------------------------------

# A string as JSON has it.
quoted() {
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    text=${text//$'\n'/\\n}
    printf '"%s"' "${text//[[:cntrl:]]/}"
}

# The end of what a part printed, as ASCII.
last_words() {
    local LC_ALL=C out err
    out=$(tr '\t' ' ' <"$logs/$1.out") err=$(tr '\t' ' ' <"$logs/$1.err")
    [ ${#out} -le 8000 ] || out=${out: -8000}
    [ ${#err} -le 2000 ] || err=${err: -2000}
    printf %s "${out//[^$'\n' -~]/}${err:+$'\n'}${err//[^$'\n' -~]/}"
}

# note NAME STATUS SECONDS COMMAND [LIMIT]: a part's result; of one that was run, which has a limit, what it
# printed is part of it: as it is where it is JSON, its end otherwise.
note() {
    local result=null output=''
    if [ "$2" = passed ] && [ -n "${5:-}" ]; then
        result=$(<"$logs/$1.out")
        [ "${result:0:1}" = '{' ] || result=null
    fi
    [ "$result" != null ] || [ -z "${5:-}" ] || output=$(last_words "$1")
    parts+="${parts:+,}
    {\"name\": $(quoted "$1"), \"status\": $(quoted "$2"), \"seconds\": $3, \"limit\": ${5:-null}, \"command\": $(quoted "$4"), \"result\": $result, \"output\": $(quoted "$output")}"
    case $2 in
    passed) n_passed=$((n_passed + 1)) ;;
    'left out'*) n_left_out=$((n_left_out + 1)) ;;
    incomplete*) n_incomplete=$((n_incomplete + 1)) ;;
    *) n_failed=$((n_failed + 1)) ;;
    esac
    write_results
    zr_say "$1: $2 ($3 s)"
}

# Whether a part is to be run.
is_wanted() {
    [ "$1" = build ] || [[ $1 =~ $only ]]
}

# leave_out NAME REASON
leave_out() {
    if ! is_wanted "$1"; then
        return
    elif $is_dry; then
        zr_say "$1: left out: $2"
    else
        note "$1" "left out: $2" 0 ''
    fi
}

# Whether a process of the group runs still. What has ended, and waits for who began it to be told, does not.
runs_still() {
    local file line state group
    for file in /proc/[0-9]*/stat; do
        read -r line 2>/dev/null <"$file" || continue
        read -r state _ group _ <<<"${line##*) }"
        [ "$group" != "$1" ] || [[ $state = [ZX] ]] || return 0
    done
    return 1
}

# run_limited LIMIT COMMAND...: run it for so many seconds, then end it and what it has started. 124:
# it was ended; 125: it did not even end then, as a process that hangs in a driver, and is left behind.
run_limited() {
    local limit=$1 timer tries code
    shift
    setsid "$@" &
    running=$!
    sleep "$limit" &
    timer=$!
    wait -n "$running" "$timer"
    code=$?
    if ! $was_ended && kill "$timer" 2>/dev/null; then
        wait "$timer" 2>/dev/null
        running=''
        return $code
    fi
    kill "$timer" 2>/dev/null
    kill -TERM -- "-$running" 2>/dev/null
    for ((tries = 0; tries < 50; tries++)); do
        [ "$tries" -ne 20 ] || kill -KILL -- "-$running" 2>/dev/null
        runs_still "$running" || break
        sleep 0.1
    done
    ((tries < 50)) && code=124 || code=125
    running=''
    return $code
}

# Ended from outside: the part that runs is ended, and what there is is written.
trap 'was_ended=true' TERM INT HUP

# part NAME SECONDS COMMAND...: run it, if it is wanted (1 if not). It is expected to take so many seconds, and may take
# twice as many, and 5 more.
part() {
    local name=$1 left=$((total_seconds - SECONDS)) began=$SECONDS code late='timed out'
    local seconds=$2 limit=${ZR_GPU_PART_SECONDS:-$((2 * $2 + 5))} # the test of this script has its own
    shift 2
    is_wanted "$name" || return 1
    if $is_dry; then
        zr_say "$name (at $expected s, about $seconds s, at most $limit s$( ((expected < total_seconds)) || echo ", if time is left")): $*"
        expected=$((expected + seconds))
        return 0
    fi
    if [ "$left" -lt 5 ]; then
        leave_out "$name" "no time is left"
        return 1
    fi
    limit=$((limit < left ? limit : left))
    $may_be_incomplete && late=incomplete
    run_limited "$limit" "$@" >"$logs/$name.out" 2>"$logs/$name.err"
    code=$?
    $was_ended && late='stopped by a signal'
    case $code in
    0) note "$name" passed $((SECONDS - began)) "$*" "$limit" ;;
    77) leave_out "$name" "skipped: $(tail -n 1 "$logs/$name.out")" ;;
    124) note "$name" "$late" $((SECONDS - began)) "$*" "$limit" ;;
    125) note "$name" "$late, and its processes could not be killed" $((SECONDS - began)) "$*" "$limit" ;;
    *)
        note "$name" "failed with $code" $((SECONDS - began)) "$*" "$limit"
        tail -n 15 "$logs/$name.err" "$logs/$name.out" >&2
        ;;
    esac
    $was_ended && finish
    return $code
}

# check NAME WHAT COMMAND...: a comparison of what parts printed; WHAT is wrong when it fails.
check() {
    local name=$1 what=$2
    shift 2
    if "$@"; then
        note "$name" passed 0 ''
    else
        note "$name" "failed: $what" 0 ''
    fi
}

# ---- what there is to do ------------------------------------------------------------------------

# Unpack the packages, and look there for what is not installed.
use_packages() {
    local package root
    [ -n "$packages" ] || return 0
    root=$(realpath -m "$build")/packages
    rm -rf "$root"
    for package in "$packages"/*.deb; do
        dpkg-deb -x "$package" "$root" || return
    done
    local lib=$root/usr/lib/x86_64-linux-gnu
    sed -i "s|/usr|$root/usr|g" "$lib"/pkgconfig/*.pc
    export PATH=$root/usr/bin:$PATH PKG_CONFIG_PATH=$lib/pkgconfig CMAKE_PREFIX_PATH=$root/usr
    export LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# cuBLASLt and NCCL of Python packages, where the toolkit comes without them. They may lie in several
# places, one of the system and one of the user.
use_wheels() {
    local place folder
    while read -r place; do
        for folder in "$place"/*/include; do
            export CMAKE_INCLUDE_PATH=${CMAKE_INCLUDE_PATH:+$CMAKE_INCLUDE_PATH:}$folder
        done
        for folder in "$place"/*/lib; do
            export CMAKE_LIBRARY_PATH=${CMAKE_LIBRARY_PATH:+$CMAKE_LIBRARY_PATH:}$folder
            export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
        done
    done < <(python3 -c 'import nvidia; print(*nvidia.__path__, sep="\n")' 2>/dev/null)
}

# Programs that were built elsewhere, with the libraries that they were linked with: whether they start here.
use_programs() {
    [ -n "$programs" ] || return 1
    local lib
    lib=$(realpath -m "$programs/lib")
    LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$programs/bin/zero-train" --version >/dev/null || {
        zr_say "the programs in $programs do not start on this machine; building them instead"
        return 1
    }
    export LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    build=$programs
}

# For this GPU alone, and no more than is run.
build_all() {
    zr_configure . "$build" -DZR_CUDA=ON "-DZR_CUDA_ARCHITECTURES=$architecture" || return
    grep -q '^ZR_CUDA_REASON:[A-Z]*=built' "$build/CMakeCache.txt" || {
        echo "no CUDA toolkit: $(sed -n 's/^ZR_CUDA_REASON:[A-Z]*=//p' "$build/CMakeCache.txt")" >&2
        return 1
    }
    zr_build "$build" -j"$(nproc)" zero-train zero-bench zero-plan zero-capacity gpu_suite
}

# What is skipped has not seen the GPU: a failure here, but NCCL may be missing.
run_suite() {
    local code
    ctest --test-dir "$build" -R '_cuda$' -j4 --output-on-failure --no-tests=error | tee "$logs/suite.tests"
    code=${PIPESTATUS[0]}
    grep -v nccl "$logs/suite.tests" | grep -q '\*\*\*Skipped' || return "$code"
    echo "a *_cuda test was skipped although there is a GPU; see $logs/suite.tests" >&2
    return 1
}

# train_on_gpu NAME SECONDS OPTION...: zero-train on the GPU.
train_on_gpu() {
    local name=$1 seconds=$2
    shift 2
    part "$name" "$seconds" "$build/bin/zero-train" --dtype bf16 --device cuda --json --data docs/guide docs/reference --warmup 1 "$@"
}

# Whether anything works at all: the device, products, attention, one training step.
smoke() {
    part smoke-device 8 "$build/tests/test_device" cuda
    part smoke-attention 4 "$build/tests/test_nn_attention" cuda
    train_on_gpu smoke-step 5 --model "$small" --steps 1 --micro-batch 4
}

# Kernels under compute-sanitizer: errors end with 1.
sanitize() {
    local tool test
    for tool in memcheck racecheck; do
        for test in test_kernels test_nn_rows test_nn_attention; do
            if $is_dry || command -v compute-sanitizer >/dev/null; then
                part "$tool-$test" 15 compute-sanitizer --tool "$tool" --error-exitcode 1 \
                    "$build/tests/$test" cuda
            else
                leave_out "$tool-$test" "compute-sanitizer is not installed"
            fi
        done
    done
}

# part_of NAME SECONDS FUNCTION ARGUMENT...: a part that is a function of this script.
part_of() {
    local name=$1 seconds=$2 function=$3
    shift 3
    part "$name" "$seconds" bash -c "$function \"\$@\"" "$function" "$@"
}

# bench NAME SECONDS COMMAND OPTION...: zero-bench on the GPU.
bench() {
    local name=$1 seconds=$2 command=$3
    shift 3
    part "bench-$name" "$seconds" "$build/bin/zero-bench" "$command" --device cuda --json "$@"
}

# plan_of MODEL MICRO_BATCH ACCUMULATION PLACE: a step with its state there, on this GPU as it was measured, or as
# an H200 is described.
plan_of() {
    local hardware=$logs/hardware.json
    [ -s "$hardware" ] || hardware=h200
    "$build/bin/zero-plan" --hardware "$hardware" --dtype bf16 --stage 0 --offload-optimizer "$4" --recompute none --json \
        --ranks 1 --model "$1" --micro-batch "$2" --grad-accum "$3" --seq "$seq" 2>>"$logs/plans.err"
}

# agree_to_2_percent A B: or to 64 MiB.
agree_to_2_percent() {
    awk -v a="$1" -v b="$2" 'BEGIN {
        off = a > b ? a - b : b - a
        exit !(a > 0 && b > 0 && (off <= 0.02 * b || off <= 64 * 2 ^ 20)) }'
}

# compare_plan NAME: step time and peak that the part has measured, with those that were planned. The peaks have to
# agree (the plan's batches are read from files); how far off the time is is a result.
compare_plan() {
    local planned planned_peak peak
    planned=$(value_of "plan-$1" step_ms)
    planned_peak=$(value_of "plan-$1" reserved)
    peak=$(value_of "$1" peak_device_bytes)
    [ -n "$peak" ] || peak=$(value_of "$1" reserved)
    printf '{"planned_step_ms": %s, "step_ms": %s, "planned_peak_bytes": %s, "peak_bytes": %s}\n' \
        "${planned:-null}" "$(value_of "$1" step_ms)" "${planned_peak:-null}" "${peak:-null}"
    agree_to_2_percent "$peak" "$planned_peak"
}

# plan_step NAME MODEL MICRO_BATCH ACCUMULATION PLACE: what the part NAME has trained, as planned.
plan_step() {
    $is_dry && return
    plan_of "${@:2}" >"$logs/plan-$1.out"
    part_of "planned-${1#bench-}" 1 compare_plan "$1"
}

# bench_step NAME SECONDS MODEL MICRO_BATCH ACCUMULATION: a step, measured and planned.
# shellcheck disable=SC2086
bench_step() {
    bench "$1" "$2" step --dtype bf16 --model "$3" --seq "$seq" --micro-batch "$4" --grad-accum "$5" $steps || return
    plan_step "bench-$1" "$3" "$4" "$5" none
}

# What the driver says that the GPU has in use is what was planned.
in_use_is_planned() {
    agree_to_2_percent "$(value_of "$1" device_in_use_bytes)" "$(value_of "$1" planned_device_in_use_bytes)"
}

# The largest micro-batch of a model that a plan fits into this GPU.
largest_micro_batch() {
    local least=1 most=$most_batch middle
    while ((most - least > 1)); do
        middle=$(((least + most) / 2))
        if plan_of "$1" "$middle" 1 none | grep -q '"fits": true'; then least=$middle; else most=$middle; fi
    done
    echo "$least"
}

# Where the time of a step goes: the kernels of a trace, with how often each ran and its share.
sum_kernels() {
    set -o pipefail
    awk '/"cat":"work"/ {
            name = $0; sub(/.*"name":"/, "", name); sub(/".*/, "", name)
            time = $0; sub(/.*"dur":/, "", time); sub(/[,}].*/, "", time)
            bytes = 0
            if ($0 ~ /"bytes":/) { bytes = $0; sub(/.*"bytes":/, "", bytes); sub(/[,}].*/, "", bytes) }
            n[name]++; us[name] += time; moved[name] += bytes; all += time
        }
        END { for (name in n)
                  printf "%6.2f%% %12.1f us %6d times %8.1f GB/s  %s\n", 100 * us[name] / all, us[name], n[name],
                         (us[name] > 0 ? moved[name] / us[name] / 1e3 : 0), name }' "$1" | sort -rn
}

# The calls that cuBLASLt has logged, with the algorithms it was given, and how often: without addresses and times.
sum_choices() {
    [ -s "$1" ] || { echo "cuBLASLt has logged nothing" && exit 77; }
    sed 's/^\[[^]]*\]//; s/\[[0-9]*\]//g; s/0[xX][0-9a-fA-F]*//g' "$1" | sort | uniq -c | sort -rn | head -n 40
}

# trace NAME SECONDS MODEL MICRO_BATCH OPTION...: a step's kernels, what is in use then, and what cuBLASLt says that it was given.
trace() {
    export CUBLASLT_LOG_LEVEL=2 CUBLASLT_LOG_FILE=$logs/cublaslt-$1.log
    train_on_gpu "trace-$1" "$2" --model "$3" --steps 3 --micro-batch "$4" --trace "$logs/trace-$1.json" --trace-steps 3:3 "${@:5}"
    local code=$?
    unset CUBLASLT_LOG_LEVEL CUBLASLT_LOG_FILE
    $is_dry && return
    [ $code -eq 0 ] || return
    check "trace-$1-in-use" "device memory in use differs from the plan by more than 2% and more than 64 MiB" in_use_is_planned "trace-$1"
    part_of "kernels-$1" 2 sum_kernels "$logs/trace-$1.json"
    part_of "cublaslt-$1" 2 sum_choices "$logs/cublaslt-$1.log"
}

# A small step with cuDNN's attention, where there is a cuDNN.
try_cudnn() {
    local said code
    said=$("$build/bin/zero-train" --device cuda --json --data docs/guide docs/reference --dtype bf16 --steps 1 --micro-batch 2 \
        --model layers=1,channels=64,heads=1,seq=64,vocab=256 --attention cudnn 2>&1)
    code=$?
    echo "$said"
    case $said in *"cuDNN was not found"* | *"built without cuDNN"*) code=77 ;; esac
    return $code
}

# What there is to know first of the GPU's speed: what a plan needs to know, the update and the other kernels against
# the GPU's copy, a layer's products and whole steps against its own products. GPT-2 1.5B needs about 60 GB.
# shellcheck disable=SC2086 # $rows, $products and $brief are several words, or none
measure() {
    local micro_batch=64
    bench hardware 25 hardware --save-hardware "$logs/hardware.json" --path "$logs" ${ZR_GPU_TINY:+--quick}
    bench_step step-124m 5 "$small" "$small_batch" 1
    bench_step step-1.5b 16 "$large" "$large_batch" 1
    bench matmul-bf16 4 matmul --dtype bf16 $products $brief
    bench kernels-bf16 4 kernels --dtype bf16 $rows $brief
    bench adam-bf16 4 adam --dtype bf16 --elems "$elems" $brief
    trace 124m 5 "$small" "$small_batch"
    part_of cudnn-step 5 try_cudnn && {
        bench step-124m-cudnn 5 step --dtype bf16 --model "$small" --seq "$seq" --micro-batch "$small_batch" $steps $most_memory
        bench step-1.5b-cudnn 15 step --dtype bf16 --model "$large" --seq "$seq" --micro-batch "$large_batch" $steps $most_memory
        trace 124m-cudnn 5 "$small" "$small_batch" --attention cudnn
    }
    trace 1.5b 20 "$large" "$large_batch"
    bench_step step-1.5b-accumulated 30 "$large" "$large_batch" 8
    $is_dry || micro_batch=$(largest_micro_batch "$large")
    bench_step step-1.5b-largest 25 "$large" "$micro_batch" 1
}

# The same step in PyTorch, where it is installed.
measure_peers() {
    local model
    for model in gpt2 gpt2-xl; do
        if $is_dry || python3 -c 'import torch' 2>/dev/null; then
            part "pytorch-$model" $([ $model = gpt2 ] && echo 25 || echo 30) python3 tests/gpu_peer.py --model $model \
                --micro-batch $([ $model = gpt2 ] && echo 16 || echo 12)
        else
            leave_out "pytorch-$model" "PyTorch is not installed"
        fi
    done
}

# State in host memory and on a drive, and a model that fills the GPU and most of host memory.
offload() {
    local place
    $is_dry || mkdir -p "$logs/drive"
    for place in cpu nvme; do
        train_on_gpu "offload-1.5b-$place" 25 --model "$large" --stage 0 --steps 3 --micro-batch "$large_batch" \
            --offload-optimizer $place $([ $place = cpu ] || echo "--nvme-path $logs/drive") || continue
        plan_step "offload-1.5b-$place" "$large" "$large_batch" 1 $place
    done
    rm -rf "$logs/drive"
}

# Updates of state in host memory, beside backward instead of behind it.
update_in_backward() {
    local moment
    for moment in end backward; do
        train_on_gpu "offload-1.5b-update-at-$moment" 20 --model "$large" --stage 2 --steps 4 --micro-batch "$large_batch" \
            --offload-optimizer cpu --update-on device --update-at $moment
    done
}

fill_all_memory() {
    local device host
    device=$(ask_gpu memory.free)
    device=${device%% *}
    host=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
    [ -z "${ZR_GPU_TINY:-}" ] || host=64
    part capacity 50 "$build/bin/zero-capacity" --device cuda --json --stage 2 --offload-optimizer auto --seq "$seq" \
        --vocab "$vocab" --aspect 64 --device-memory "$((${device:-100000} * 94 / 100))MiB" --host-memory "$((host * 80 / 100))MiB" \
        --verify steps=1
}

# shellcheck disable=SC2086
measure_more() {
    bench step-124m-ranks8 10 step --dtype bf16 --model "$small" --seq "$seq" --micro-batch 2 --ranks "$many_ranks" --stage 3 $steps
    bench adam-fp32 5 adam --dtype fp32 --elems "$elems" $brief
    bench matmul-fp32 6 matmul --dtype fp32 $products $brief
}

# The value of a key on a line of its own, in what a part printed.
value_of() {
    sed -n "s/^ *\"$2\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$logs/$1.out" | head -n 1
}

# The first and the last loss are numbers, and the last is smaller.
losses_fall() {
    sed -n '/"loss": {/,/}/p' "$logs/$1.out" | awk '
        /"first"/ { first = $2 } /"last"/ { last = $2 }
        END { gsub(",", "", first); gsub(",", "", last)
              exit !(first ~ /^[0-9]/ && last ~ /^[0-9]/ && last + 0 < first + 0) }'
}

# What was live in a run of zero-train, by tier and tag, is to the byte what it has planned before; what is
# mapped beyond that depends on when events have passed.
peaks_are_planned() {
    local measured planned
    measured=$(sed -n '/^  "peak_bytes": {/,/^  }/p' "$logs/$1.out" | grep -v '"reserved"' | tail -n +2)
    planned=$(sed -n '/^  "planned_peak_bytes": {/,/^  }/p' "$logs/$1.out" | grep -v '"reserved"' | tail -n +2)
    [ -n "$measured" ] && [ "$measured" = "$planned" ]
}

# add_hash PART: that of the weights that it ended with, to the caller's `hashes` if they lack it.
add_hash() {
    local hash
    hash=$(value_of "$1" weights_xxh3)
    case " $hashes " in *" $hash "*) ;; *) hashes+=" $hash" ;; esac
}

# check_hashes NAME WHAT: the caller's `hashes` are one, where a part was run.
check_hashes() {
    [ -z "$hashes" ] || check "$1" "$2 end with different weights; hashes:$hashes" test "$(wc -w <<<"$hashes")" -eq 1
}

# GPT-2 124M at every stage with several ranks on one GPU: the losses fall, and for a number of ranks
# all stages end with the same weights.
# shellcheck disable=SC2086
train() {
    local ranks stage name hashes
    for ranks in 2 "$many_ranks"; do
        hashes=''
        for stage in $([ $ranks = 2 ] && echo 0 1 2 3 || echo 1 3); do
            name=train-ranks$ranks-stage$stage
            train_on_gpu "$name" 4 --model "$small" --ranks "$ranks" --stage "$stage" $rounds || continue
            $is_dry && continue
            check "$name-losses" "the losses are not finite or do not decrease" losses_fall "$name"
            check "$name-peaks" "peak memory in use differs from the plan" peaks_are_planned "$name"
            add_hash "$name"
        done
        check_hashes "train-ranks$ranks-hashes" stages
    done
}

# A small Llama, as Hugging Face describes one.
write_llama() {
    printf '{"model_type": "llama", "hidden_act": "silu", "hidden_size": %d, "intermediate_size": %d, "num_hidden_layers": 3,
  "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": %d, "max_position_embeddings": %d, "rms_norm_eps": 1e-5,
  "rope_theta": 10000.0, "tie_word_embeddings": false}\n' $((2 * channels)) $((4 * channels)) "$vocab" "$seq"
}

# place_everywhere NAME MODEL: the same training by two ranks, wherever its tensors lie and in either order, ends
# with one hash.
# shellcheck disable=SC2086
place_everywhere() {
    local place hashes='' n=0
    for place in '--stage 0' '--stage 1 --offload-optimizer cpu --update-on host' \
        '--stage 2 --offload-optimizer cpu --update-on device --order block' \
        '--stage 2 --offload-optimizer nvme --offload-gradients nvme --update-at backward' \
        '--stage 3 --offload-optimizer nvme --offload-params cpu' \
        '--stage 3 --offload-optimizer nvme --offload-params nvme --offload-activations nvme --order block'; do
        n=$((n + 1))
        [[ $place != *nvme* ]] || place+=" --nvme-path $logs/drive"
        train_on_gpu "place-$1-$n" 2 --model "$2" --ranks 2 --seq "$((seq < 128 ? seq : 128))" --micro-batch 2 \
            --grad-accum 2 --reduce every-micro-batch --recompute unit --steps 3 --clip 0.5 $place || continue
        $is_dry && continue
        add_hash "place-$1-$n"
    done
    check_hashes "place-$1-hashes" placements
}

place_models() {
    if ! $is_dry; then
        mkdir -p "$logs/drive"
        write_llama >"$logs/llama.json"
    fi
    place_everywhere gpt2 "layers=3,channels=$((2 * channels)),heads=4,seq=$seq,vocab=$vocab"
    place_everywhere llama "$logs/llama.json"
    rm -rf "$logs/drive"
}

# The losses of 20 steps in the logs of two parts differ by at most 0.01.
losses_agree() {
    paste "$logs/$1.log" "$logs/$2.log" | awk '
        { n = split($0, part, /"loss": */); a = part[2] + 0; b = part[3] + 0
          d = a > b ? a - b : b - a; n_bad += n != 3 || !(d <= 0.01) }
        END { exit !(NR == 20 && n_bad == 0) }'
}

# A small model on both devices, heads of 64, so that attention is that of the tensor cores.
compare_with_host() {
    local device
    for device in cuda host; do
        part "train-$device" 5 "$build/bin/zero-train" --device "$device" --json --data docs/guide docs/reference \
            --model layers=2,channels="$channels",heads=2,"seq=$((seq < 64 ? seq : 64))",vocab=256 --dtype bf16 --steps 20 \
            --micro-batch "$few" --warmup 1 --log "$logs/train-$device.log" || return
    done
    $is_dry || check train-host-losses "losses on cuda and on the host differ by more than 0.01, or a log does not have 20 steps" \
        losses_agree train-cuda train-host
}

# All parts so far, as one file.
write_results() {
    {
        printf '{\n  "date": %s,\n  "commit": %s,\n' "$(quoted "$began_at")" "$(quoted "$commit")"
        printf '  "gpu": %s,\n' "$(quoted "$gpu")"
        printf '  "seconds": %d,\n  "passed": %d,\n  "failed": %d,\n  "left_out": %d,\n  "incomplete": %d,\n' \
            "$SECONDS" "$n_passed" "$n_failed" "$n_left_out" "$n_incomplete"
        printf '  "parts": [%s\n  ]\n}\n' "$parts"
    } >"$out.new" && mv "$out.new" "$out"
}

# Say how it went, and end.
finish() {
    zr_say "$n_passed passed, $n_failed failed, $n_incomplete incomplete, $n_left_out left out; results: $out"
    $was_ended && zr_say "stopped by a signal: the remaining parts were not run"
    [ "$n_failed" -eq 0 ] && ! $was_ended
    exit
}

# ---- in this order ----------------------------------------------------------------------------

ask_gpu() {
    timeout --kill-after=2 20 nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1
}

gpu=$(ask_gpu name,driver_version,memory.total)
is_self_test=false
if [ -z "$gpu" ]; then
    zr_say "no GPU: nvidia-smi is not installed or lists none"
    $is_dry || is_self_test=true
    is_dry=true
fi
architecture=$(ask_gpu compute_cap | tr -d .)
began_at=$(date -u +%Y-%m-%dT%H:%M:%SZ)
commit=$(git rev-parse HEAD 2>/dev/null)
export -f build_all run_suite compare_plan agree_to_2_percent value_of sum_kernels sum_choices try_cudnn zr_configure zr_build zr_say zr_die
$is_dry || mkdir -p "$logs" "$(dirname "$out")"
$is_dry || use_packages || exit 1
$is_dry || use_wheels
is_built=false
! $is_dry && use_programs && is_built=true
export build architecture logs
if $is_built || part_of build 80 build_all; then
    smoke
    measure
    part_of suite 50 run_suite
    train
    compare_with_host
    place_models
    may_be_incomplete=true
    measure_peers
    offload
    fill_all_memory
    measure_more
    sanitize
    update_in_backward
fi
if $is_self_test; then
    zr_say "none of these parts was run, and no file was written; now testing this script with a simulated GPU"
    [ -n "${ZR_GPU_SELF_TEST:-}" ] && exit 77
    bash tests/test_gpu_script.sh . && zr_say "the test of this script passes" && exit 77
    exit 1
fi
$is_dry && exit 0
finish
