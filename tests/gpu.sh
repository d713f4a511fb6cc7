#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that has one: build, run the suite on cuda, look for
# races and bad accesses, measure. Ten minutes at most, offline, and one JSON file of results.
#
#   bash tests/gpu.sh [--dry-run] [--build FOLDER] [--out FILE]
#
#   --dry-run   print the parts, their limits in seconds and their commands; run nothing
#   --build     where to build (default: build/gpu)
#   --out       the file of results (default: FOLDER/gpu.json); what parts print lies in FOLDER/gpu/
#
# Exit code: 0 when all that could be run passed, 1 when something failed, 2 for bad usage, 77
# without a GPU. A part that would begin too late is left out, and the results say so.
set -u
cd "$(dirname "$0")/.." || exit 1
. cmake/install.sh

build=build/gpu out='' is_dry=false
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) is_dry=true ;;
    --build) build=${2:?--build needs a folder} && shift ;;
    --out) out=${2:?--out needs a file} && shift ;;
    *) echo "gpu.sh: $1 is unknown; --dry-run, --build FOLDER and --out FILE are possible" >&2; exit 2 ;;
    esac
    shift
done
out=${out:-$build/gpu.json}
logs=$build/gpu
total_seconds=600
n_passed=0 n_failed=0 n_left_out=0
parts='' # JSON objects, with commas between them

# ---- parts ------------------------------------------------------------------------------------

# A string as JSON has it.
quoted() {
    printf '"%s"' "$(printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g' | tr -d '\000-\037')"
}

# note NAME STATUS SECONDS COMMAND: a part's result; what it printed is part of it where it is JSON.
note() {
    local result=null
    if [ "$(head -c 1 "$logs/$1.out" 2>/dev/null)" = '{' ] && [ "$2" = passed ]; then
        result=$(cat "$logs/$1.out")
    fi
    parts+="${parts:+,}
    {\"name\": $(quoted "$1"), \"status\": $(quoted "$2"), \"seconds\": $3, \"command\": $(quoted "$4"), \"result\": $result}"
    case $2 in
    passed) n_passed=$((n_passed + 1)) ;;
    'left out'*) n_left_out=$((n_left_out + 1)) ;;
    *) n_failed=$((n_failed + 1)) ;;
    esac
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

# part NAME LIMIT COMMAND...: run it, for LIMIT seconds or what is left at most.
part() {
    local name=$1 limit=$2 left=$((total_seconds - SECONDS)) began=$SECONDS code
    shift 2
    if $is_dry; then
        zr_say "$name (at most $limit s): $*"
        return 0
    fi
    if [ "$left" -lt 5 ]; then
        leave_out "$name" "no time is left"
        return 1
    fi
    timeout --kill-after=5 $((limit < left ? limit : left)) "$@" >"$logs/$name.out" 2>"$logs/$name.err"
    code=$?
    case $code in
    0) note "$name" passed $((SECONDS - began)) "$*" ;;
    77) leave_out "$name" "skipped: $(tail -n 1 "$logs/$name.out")" ;;
    124 | 137) note "$name" "timed out" $((SECONDS - began)) "$*" ;;
    *)
        note "$name" "failed with $code" $((SECONDS - began)) "$*"
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

build_all() {
    zr_configure . "$build" -DZR_CUDA=ON || return
    grep -q '^ZR_CUDA_REASON:[A-Z]*=built' "$build/CMakeCache.txt" || {
        echo "no CUDA toolkit: $(sed -n 's/^ZR_CUDA_REASON:[A-Z]*=//p' "$build/CMakeCache.txt")" >&2
        return 1
    }
    zr_build "$build" -j"$(nproc)"
}

# Kernels under compute-sanitizer: errors end with 1.
sanitize() {
    local tool test
    for tool in memcheck racecheck; do
        for test in test_kernels test_nn_rows test_attention; do
            if $is_dry || command -v compute-sanitizer >/dev/null; then
                part "$tool-$test" 40 compute-sanitizer --tool "$tool" --error-exitcode 1 \
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

# What there is to know of the GPU's speed: the update and the other kernels against its copy, a
# layer's products and whole steps against its own products. GPT-2 1.5B needs about 60 GB.
measure() {
    local dtype
    for dtype in bf16 fp32; do
        bench "adam-$dtype" 30 adam --dtype $dtype --elems 200000003
        bench "matmul-$dtype" 30 matmul --dtype $dtype --channels 1600 --tokens 16384
    done
    bench kernels-bf16 30 kernels --dtype bf16 --channels 1600 --tokens 65536
    bench step-124m 40 step --dtype bf16 --model gpt2 --seq 1024 --micro-batch 16
    bench step-124m-ranks8 60 step --dtype bf16 --model gpt2 --seq 1024 --micro-batch 2 --ranks 8 \
        --stage 3
    bench step-1.5b 90 step --dtype bf16 --model gpt2-xl --seq 1024 --micro-batch 12
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
    for ranks in 1 2 8; do
        hashes=''
        for stage in 0 1 2 3; do
            name=train-ranks$ranks-stage$stage
            part "$name" 25 "$build/bin/zero-train" --model gpt2 --dtype bf16 --device cuda --json \
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

write_results() {
    {
        printf '{\n  "date": %s,\n' "$(quoted "$(date -u +%Y-%m-%dT%H:%M:%SZ)")"
        printf '  "commit": %s,\n' "$(quoted "$(git rev-parse HEAD 2>/dev/null)")"
        printf '  "gpu": %s,\n' "$(quoted "$gpu")"
        printf '  "seconds": %d,\n  "passed": %d,\n  "failed": %d,\n  "left_out": %d,\n' \
            "$SECONDS" "$n_passed" "$n_failed" "$n_left_out"
        printf '  "parts": [%s\n  ]\n}\n' "$parts"
    } >"$out"
}

# ---- in this order ----------------------------------------------------------------------------

gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null)
if [ -z "$gpu" ]; then
    zr_say "no GPU here: nvidia-smi is missing or finds none"
    if ! $is_dry; then
        zr_say "nothing was run, and nothing written"
        exit 77
    fi
fi
gpu=$(head -n 1 <<<"$gpu")
$is_dry || mkdir -p "$logs" "$(dirname "$out")"
export -f build_all zr_configure zr_build zr_say zr_die
export build
if part build 240 bash -c build_all; then
    part suite 150 ctest --test-dir "$build" -R '_cuda$|^test_ptx$' --output-on-failure --no-tests=error
    measure
    train
    sanitize
fi
$is_dry && exit 0
write_results
zr_say "$n_passed passed, $n_failed failed, $n_left_out left out; results: $out"
[ "$n_failed" -eq 0 ]
