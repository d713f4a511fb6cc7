#!/usr/bin/env bash
# How much faster --order block is than --order micro-batch with 8 micro-batches and parameters,
# gradients and state on drives: measured, both orders in turns, against the plan of both on this
# machine's rates, which are measured first. The rates of the plan hold for a machine that does
# nothing else. About four minutes with the model below.
#
# usage: bash examples/orders.sh DIR [SIZES [ROUNDS]]
#   DIR     a folder on the drives; SIZES: as --model of zero-train; ROUNDS: of each order (3)
# BIN: the folder of the programs (build/bin). STEPS: of each run, of which the median counts (3).
# Exit status: 0 measured is at least 0.9 of planned, 1 it is not, 2 bad usage.
set -u
cd "$(dirname "$0")/.." || exit 2
if [ ! -d "${1:-}" ]; then
    sed -n '7,10s/^# //p' "$0" >&2
    exit 2
fi
bin=${BIN:-build/bin}
model=${2:-layers=6,channels=1024,heads=16,seq=64,vocab=4096}
rounds=${3:-3}
work=$(mktemp -d "$1/orders.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
options="--model $model --stage 3 --dtype bf16 --recompute unit --micro-batch 1 --grad-accum 8
    --offload-optimizer nvme --offload-params nvme --offload-gradients nvme
    --nvme-path $work --quiet --json"
head -c 1000000 /dev/urandom >"$work/data"

# step_ms FILE: of a report, the last.
step_ms() { sed -n 's/.*"step_ms": \([0-9.]*\).*/\1/p' "$1" | tail -n 1; }

fail() { echo "$1: $(tail -n 3 "$work/error.txt")" >&2; exit 1; }

"$bin/zero-bench" hardware --path "$work" --save-hardware "$work/machine.json" \
    >"$work/out" 2>"$work/error.txt" || fail zero-bench
for order in micro-batch block; do
    # shellcheck disable=SC2086
    "$bin/zero-plan" $options --hardware "$work/machine.json" --order $order \
        >"$work/plan" 2>"$work/error.txt" || fail zero-plan
    step_ms "$work/plan" >"$work/planned.$order"
done
for _ in $(seq "$rounds"); do
    for order in micro-batch block; do
        # shellcheck disable=SC2086
        "$bin/zero-train" $options --data "$work/data" --steps "${STEPS:-3}" --order $order \
            >"$work/run" 2>"$work/error.txt" || fail zero-train
        step_ms "$work/run" | tee -a "$work/measured.$order" | sed "s/^/$order: step_ms /"
    done
done
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
awk -v pm="$(cat "$work/planned.micro-batch")" -v pb="$(cat "$work/planned.block")" \
    -v mm="$(median "$work/measured.micro-batch")" -v mb="$(median "$work/measured.block")" 'BEGIN {
    printf "planned:  micro-batch %.0f ms, block %.0f ms, ratio %.2f\n", pm, pb, pm / pb
    printf "measured: micro-batch %.0f ms, block %.0f ms, ratio %.2f\n", mm, mb, mm / mb
    printf "measured to planned ratio: %.2f (at least 0.90)\n", mm / mb / (pm / pb)
    exit mm / mb >= 0.9 * pm / pb ? 0 : 1
}'
