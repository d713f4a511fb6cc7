#!/usr/bin/env bash
# The update's bits on CUDA are the host's only if every operation of its formula is correctly
# rounded. Read the PTX: floating point arithmetic must be of these few kinds, with .rn, without
# flush to zero, and nothing may be approximate. No kernel may have atomics, those of a transformer
# included: a sum would depend on the run. usage: test_ptx.sh FILE.ptx...
set -u
status=0 n_checked=0

# Whether the PTX has an instruction of these kinds, which may be predicated: shows them.
has() {
    grep -nE "^[[:space:]]+(@!?%p[0-9]+[[:space:]]+)?($1)" "$ptx"
}

# The kernels whose bits are the host's: check what they compute with.
check_arithmetic() {
    # Instructions on floating point values that compute: not moves, loads, stores, comparisons.
    used=$(grep -oE '^[[:space:]]+(@!?%p[0-9]+[[:space:]]+)?[a-z][a-z0-9_.]*\.(f32|f64|f16|bf16)[a-z0-9_.]*' "$ptx" |
        awk '{print $NF}' | grep -vE '^(mov|ld|st|setp|selp|slct|shfl)\.' | sort -u)
    [ -n "$used" ] || { echo "$source: no floating point instruction was found"; status=1; }
    for instruction in $used; do
        case $instruction in
        add.rn.f32 | mul.rn.f32 | fma.rn.f32 | div.rn.f32 | rcp.rn.f32 | sqrt.rn.f32) ;;
        neg.f32 | min.f32 | max.f32 | cvt.rn.f32.s16 | cvt.rn.f32.s32) ;; # exact, of codes
        add.rn.f64 | fma.rn.f64 | cvt.f64.f32) ;; # the norm; a float is exact in double
        *) echo "$source: $instruction is not allowed"; status=1 ;;
        esac
    done
    if has '[a-z0-9.]+\.(approx|ftz)'; then
        echo "$source: approximate or flushing instructions"
        status=1
    fi
    n_checked=$((n_checked + 1))
    echo "$source:" $used
}

for ptx; do
    source=$(basename "$ptx" _cuda.ptx)
    case $source in
    adamw | lion | sgd | blocks | elementwise | spread | sum_of_squares) check_arithmetic ;;
    esac
    if has '(red|atom)\.'; then
        echo "$source: atomic instructions"
        status=1
    fi
done
[ $n_checked -eq 7 ] || { echo "7 files of exact arithmetic expected, $n_checked found"; status=1; }
exit $status
