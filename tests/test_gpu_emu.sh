#!/usr/bin/env bash
# tests/gpu.sh on the emulated GPU: each command that it runs on a GPU is run, with its options, on tiny models, and
# what the script reads is what programs print. Without PyTorch and what has tests of its own.
# usage: test_gpu_emu.sh SOURCE BUILD
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/path" "$work/programs/bin" "$work/programs/tests" "$work/programs/lib"
for name in train bench capacity; do
    ln -s "$2/tests/zero-$name-emu" "$work/programs/bin/zero-$name"
done
ln -s "$2/bin/zero-plan" "$work/programs/bin/zero-plan"
for name in test_device test_nn_attention; do
    ln -s /bin/true "$work/programs/tests/$name"
done
echo 'add_test(test_none_cuda "true")' >"$work/programs/CTestTestfile.cmake"
cat >"$work/path/nvidia-smi" <<'END'
#!/bin/sh
case "$*" in *compute_cap*) echo 9.0 ;; *memory.free*) echo "64 MiB" ;; *) echo "An emulated GPU, 1.2, 64 MiB" ;; esac
END
printf '#!/bin/sh\nexit 1\n' >"$work/path/python3"
printf '#!/bin/sh\n' >"$work/path/compute-sanitizer"
chmod +x "$work/path/"*
cd "$work" || exit 1 # programs leave nothing in the source
EMU_DEVICES=1 ZR_GPU_TINY=1 ZR_GPU_PART_SECONDS=300 PATH=$work/path:$PATH bash "$1/tests/gpu.sh" --programs "$work/programs" --build "$work/build" \
    >"$work/said" 2>&1
code=$?
left_out=$(grep -c ': left out: ' "$work/said")
# PyTorch's two, and what cuBLASLt has not logged in three traces
if [ $code -ne 0 ] || [ "$left_out" -ne 5 ] || ! grep -q '"incomplete": 0,$' "$work/build/gpu.json"; then
    cat "$work/said"
    echo "gpu.sh ended with $code, and left out $left_out parts; expected are 0 and 5"
    exit 1
fi
for part in cudnn-step trace-124m-cudnn-in-use planned-step-1.5b-largest planned-offload-1.5b-nvme kernels-124m capacity; do
    grep -q "^$part: passed" "$work/said" || { echo "$part is not there" && exit 1; }
done
