#!/usr/bin/env bash
# The update's bits on CUDA are the host's only if every operation of its formula is correctly
# rounded. Read the PTX: floating point arithmetic must be of these few kinds, with .rn, without
# flush to zero, and nothing may be approximate. usage: test_ptx.sh NVCC SOURCE_FOLDER
set -u
nvcc=$1
cd "$2" || exit 1
ptx=$(mktemp) || exit 1
trap 'rm -f "$ptx"' EXIT
status=0

for source in adamw elementwise sum_of_squares; do
    "$nvcc" -std=c++17 -O3 -fmad=false -I. -ptx -arch=compute_80 \
        "kernels/cuda/${source}_cuda.cu" -o "$ptx" || exit 1
    # Instructions on floating point values that compute: not moves, loads, stores, comparisons.
    used=$(grep -oE '^[[:space:]]+(@!?%p[0-9]+[[:space:]]+)?[a-z][a-z0-9_.]*\.(f32|f64|f16|bf16)[a-z0-9_.]*' "$ptx" |
        awk '{print $NF}' | grep -vE '^(mov|ld|st|setp|selp|slct|shfl)\.' | sort -u)
    [ -n "$used" ] || { echo "$source: no floating point instruction was found"; status=1; }
    for instruction in $used; do
        case $instruction in
        add.rn.f32 | mul.rn.f32 | fma.rn.f32 | div.rn.f32 | sqrt.rn.f32) ;;
        add.rn.f64 | fma.rn.f64 | cvt.f64.f32) ;; # the norm; a float is exact in double
        *) echo "$source: $instruction is not allowed"; status=1 ;;
        esac
    done
    if grep -nE '\.(approx|ftz)|^[[:space:]]+(red|atom)\.' "$ptx"; then
        echo "$source: approximate, flushing or atomic instructions"
        status=1
    fi
    echo "$source:" $used
done
exit $status
