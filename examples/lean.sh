#!/usr/bin/env bash
# What a state in fewer bits does to the loss: trains a GPT on a text with --state fp32, bf16 and
# 8bit from the same weights on the same batches, for several seeds, and compares losses on text that
# was held back. Fails where one is more than LEAN_PERCENT worse. Builds as quickstart.sh does;
# ZERO_TRAIN=path of a zero-train that is built already. The usual model takes minutes; a larger:
#   LEAN_MODEL=layers=8,channels=320,heads=5,seq=256,vocab=256 LEAN_BATCH=16 examples/lean.sh
set -u
cd "$(dirname "$0")/.." || exit 1
. cmake/install.sh

model=${LEAN_MODEL:-layers=2,channels=96,heads=3,seq=96,vocab=256}
train=${ZERO_TRAIN:-}
if [ -z "$train" ]; then
    zr_install
    zr_configure . build
    zr_build build zero-train || zr_die "the build failed"
    train=$PWD/build/bin/zero-train
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/zr-lean-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
if [ -n "${LEAN_TEXT:-}" ]; then
    cat "$LEAN_TEXT" >"$work/all" || exit 1
else
    cat docs/*/*.md README.md >"$work/all"
fi
size=$(wc -c <"$work/all")
head -c $((size * 9 / 10)) "$work/all" >"$work/text"
tail -c $((size / 10)) "$work/all" >"$work/held"

# train STATE SEED: the loss on the text that was held back.
train() {
    "$train" --data "$work/text" --val-data "$work/held" --eval-batches 64 --model "$model" \
        --micro-batch "${LEAN_BATCH:-8}" --steps "${LEAN_STEPS:-1000}" --lr "${LEAN_LR:-1e-3}" \
        --schedule cosine --clip 1 --seed "$2" --dtype bf16 --state "$1" --json --quiet \
        2>"$work/said" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["evaluation"]["loss"]["last"])'
}

worst=0
for seed in ${LEAN_SEEDS:-1 2 3}; do
    for state in fp32 bf16 8bit; do
        loss=$(train "$state" "$seed") || { cat "$work/said"; exit 1; }
        [ "$state" != fp32 ] || usual=$loss
        more=$(python3 -c "print(f'{100 * ($loss / $usual - 1):.2f}')")
        echo "seed $seed, --state $state: loss $loss, $more% more than fp32"
        worst=$(python3 -c "print(max($worst, $more))")
    done
done
python3 -c "import sys; sys.exit($worst > ${LEAN_PERCENT:-1})" || {
    echo "a loss is more than ${LEAN_PERCENT:-1}% worse"
    exit 1
}
