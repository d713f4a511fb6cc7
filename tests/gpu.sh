#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that has one: build, run the suite on cuda, train, measure,
# look for races and bad accesses. Ten minutes at most, offline, and one JSON file of results.
#
#   bash tests/gpu.sh [--dry-run] [--build FOLDER] [--out FILE] [--packages FOLDER]
#
#   --dry-run   print the parts, their limits in seconds and their commands; run nothing
#   --build     where to build (default: build/gpu)
#   --out       the file of results (default: FOLDER/gpu.json); what parts print lies in FOLDER/gpu/
#   --packages  a folder of Debian packages that the machine lacks and cannot fetch: they are unpacked
#               in the build folder, and used from there (docs/gpu.md says which)
#
# Exit code: 0 when all that could be run passed, 1 when something failed, 2 for bad usage, 77
# without a GPU. Parts come in the order of what they are worth. All their limits together are less than
# the ten minutes; what one leaves of its own, those behind it may use. The file of results is written
# anew behind each, so that there is always one.
set -u
cd "$(dirname "$0")/.." || exit 1
. cmake/install.sh

build=build/gpu out='' packages='' is_dry=false
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) is_dry=true ;;
    --build) build=${2:?--build needs a folder} && shift ;;
    --out) out=${2:?--out needs a file} && shift ;;
    --packages) packages=${2:?--packages needs a folder} && shift ;;
    *)
        echo "gpu.sh: $1 is unknown; --dry-run, --build FOLDER, --out FILE and --packages FOLDER are possible" >&2
        exit 2
        ;;
    esac
    shift
done
out=${out:-$build/gpu.json}
logs=$build/gpu
total_seconds=585
limits=0 # of all parts so far, together
n_passed=0 n_failed=0 n_left_out=0
parts='' # JSON objects, with commas between them

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
    *) n_failed=$((n_failed + 1)) ;;
    esac
    write_results
    zr_say "$1: $2 ($3 s)"
}

# leave_out NAME REASON
leave_out() {
    if $is_dry; then
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
    local limit=$1 pid timer tries code
    shift
    setsid "$@" &
    pid=$!
    sleep "$limit" &
    timer=$!
    wait -n "$pid" "$timer"
    code=$?
    if kill "$timer" 2>/dev/null; then
        wait "$timer" 2>/dev/null
        return $code
    fi
    kill -TERM -- "-$pid" 2>/dev/null
    for ((tries = 0; tries < 80; tries++)); do
        [ "$tries" -ne 20 ] || kill -KILL -- "-$pid" 2>/dev/null
        runs_still "$pid" || return 124
        sleep 0.1
    done
    return 125
}

# part NAME LIMIT COMMAND...: run it for LIMIT seconds, and as many more of those that the parts before it
# have left of theirs.
part() {
    local name=$1 left=$((total_seconds - SECONDS)) spare=$((limits - SECONDS)) began=$SECONDS code
    local limit=${ZR_GPU_PART_SECONDS:-$2} # the test of this script is not to wait so long
    shift 2
    limits=$((limits + limit))
    if $is_dry; then
        zr_say "$name ($limit s): $*"
        return 0
    fi
    if [ "$left" -lt 5 ]; then
        leave_out "$name" "no time is left"
        return 1
    fi
    [ "$spare" -le 0 ] || limit=$((limit + (spare < limit ? spare : limit)))
    limit=$((limit < left ? limit : left))
    run_limited "$limit" "$@" >"$logs/$name.out" 2>"$logs/$name.err"
    code=$?
    case $code in
    0) note "$name" passed $((SECONDS - began)) "$*" "$limit" ;;
    77) leave_out "$name" "skipped: $(tail -n 1 "$logs/$name.out")" ;;
    124) note "$name" "timed out" $((SECONDS - began)) "$*" "$limit" ;;
    125) note "$name" "timed out, and cannot be ended" $((SECONDS - began)) "$*" "$limit" ;;
    *)
        note "$name" "failed with $code" $((SECONDS - began)) "$*" "$limit"
        tail -n 15 "$logs/$name.err" "$logs/$name.out" >&2
        ;;
    esac
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

# For this GPU alone, and no more than is run.
build_all() {
    zr_configure . "$build" -DZR_CUDA=ON "-DZR_CUDA_ARCHITECTURES=$architecture" || return
    grep -q '^ZR_CUDA_REASON:[A-Z]*=built' "$build/CMakeCache.txt" || {
        echo "no CUDA toolkit: $(sed -n 's/^ZR_CUDA_REASON:[A-Z]*=//p' "$build/CMakeCache.txt")" >&2
        return 1
    }
    zr_build "$build" -j"$(nproc)" zero-train zero-bench gpu_suite
}

# What is skipped has not seen the GPU: a failure here, but NCCL may be missing.
run_suite() {
    local code
    ctest --test-dir "$build" -R '_cuda$' -j4 --output-on-failure --no-tests=error | tee "$logs/suite.tests"
    code=${PIPESTATUS[0]}
    grep -v nccl "$logs/suite.tests" | grep -q '\*\*\*Skipped' || return "$code"
    echo "a test was skipped on a machine with a GPU" >&2
    return 1
}

# Kernels under compute-sanitizer: errors end with 1.
sanitize() {
    local tool test limit
    for tool in memcheck racecheck; do
        limit=20
        [ $tool = memcheck ] || limit=25
        for test in test_kernels test_nn_rows test_nn_attention; do
            if $is_dry || command -v compute-sanitizer >/dev/null; then
                part "$tool-$test" $limit compute-sanitizer --tool "$tool" --error-exitcode 1 \
                    "$build/tests/$test" cuda
            else
                leave_out "$tool-$test" "no compute-sanitizer here"
            fi
        done
    done
}

# bench NAME LIMIT COMMAND OPTION...: zero-bench on the GPU.
bench() {
    local name=$1 limit=$2 command=$3
    shift 3
    part "bench-$name" "$limit" "$build/bin/zero-bench" "$command" --device cuda --json "$@"
}

# What there is to know first of the GPU's speed: the update and the other kernels against its copy, a
# layer's products and whole steps against its own products. GPT-2 1.5B needs about 60 GB.
measure() {
    bench adam-bf16 12 adam --dtype bf16 --elems 200000003
    bench kernels-bf16 12 kernels --dtype bf16 --channels 1600 --tokens 65536
    bench matmul-bf16 12 matmul --dtype bf16 --channels 1600 --tokens 16384
    bench step-124m 20 step --dtype bf16 --model gpt2 --seq 1024 --micro-batch 16
    bench step-1.5b 50 step --dtype bf16 --model gpt2-xl --seq 1024 --micro-batch 12
}

measure_more() {
    bench step-124m-ranks8 20 step --dtype bf16 --model gpt2 --seq 1024 --micro-batch 2 --ranks 8 \
        --stage 3
    bench adam-fp32 10 adam --dtype fp32 --elems 200000003
    bench matmul-fp32 10 matmul --dtype fp32 --channels 1600 --tokens 16384
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

# GPT-2 124M at every stage with several ranks on one GPU: the losses fall, and for a number of ranks
# all stages end with the same weights.
train() {
    local ranks stage name hash hashes
    for ranks in 2 8 1; do
        hashes=''
        for stage in 0 1 2 3; do
            name=train-ranks$ranks-stage$stage
            part "$name" 9 "$build/bin/zero-train" --model gpt2 --dtype bf16 --device cuda --json \
                --data docs --ranks "$ranks" --stage "$stage" --steps 6 --micro-batch 4 \
                --warmup 1 || continue
            $is_dry && continue
            check "$name-losses" "the losses are not finite, or do not fall" losses_fall "$name"
            hash=$(value_of "$name" weights_xxh3)
            case " $hashes " in *" $hash "*) ;; *) hashes+=" $hash" ;; esac
        done
        if [ -n "$hashes" ]; then
            check "train-ranks$ranks-hashes" "stages end with different weights:$hashes" \
                test "$(wc -w <<<"$hashes")" -eq 1
        fi
    done
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
        part "train-$device" 10 "$build/bin/zero-train" --device "$device" --json --data docs \
            --model layers=2,channels=128,heads=2,seq=64,vocab=256 --dtype bf16 --steps 20 \
            --micro-batch 4 --warmup 1 --log "$logs/train-$device.log" || return
    done
    $is_dry || check train-host-losses "cuda's losses are not the host's to 0.01" \
        losses_agree train-cuda train-host
}

# All parts so far, as one file.
write_results() {
    {
        printf '{\n  "date": %s,\n  "commit": %s,\n' "$(quoted "$began_at")" "$(quoted "$commit")"
        printf '  "gpu": %s,\n' "$(quoted "$gpu")"
        printf '  "seconds": %d,\n  "passed": %d,\n  "failed": %d,\n  "left_out": %d,\n' \
            "$SECONDS" "$n_passed" "$n_failed" "$n_left_out"
        printf '  "parts": [%s\n  ]\n}\n' "$parts"
    } >"$out.new" && mv "$out.new" "$out"
}

# ---- in this order ----------------------------------------------------------------------------

ask_gpu() {
    timeout --kill-after=2 20 nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1
}

gpu=$(ask_gpu name,driver_version,memory.total)
if [ -z "$gpu" ]; then
    zr_say "no GPU here: nvidia-smi is missing or finds none"
    if ! $is_dry; then
        zr_say "nothing was run, and nothing written"
        exit 77
    fi
fi
architecture=$(ask_gpu compute_cap | tr -d .)
began_at=$(date -u +%Y-%m-%dT%H:%M:%SZ)
commit=$(git rev-parse HEAD 2>/dev/null)
$is_dry || mkdir -p "$logs" "$(dirname "$out")"
export -f build_all run_suite zr_configure zr_build zr_say zr_die
export build architecture logs
$is_dry || use_packages || exit 1
$is_dry || use_wheels
if part build 90 bash -c build_all; then
    part suite 70 bash -c run_suite
    measure
    train
    compare_with_host
    sanitize
    measure_more
    part ptx 15 ctest --test-dir "$build" -R '^test_ptx$' --output-on-failure --no-tests=error
fi
$is_dry && exit 0
zr_say "$n_passed passed, $n_failed failed, $n_left_out left out; results: $out"
[ "$n_failed" -eq 0 ]
