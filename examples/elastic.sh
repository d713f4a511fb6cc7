#!/usr/bin/env bash
# Training goes on when a rank has died: four ranks, each a process of its own, train and save
# checkpoints; one of them is killed; the other three end by themselves, each naming it, and the
# run resumes from the newest checkpoint with three ranks. Needs no MPI. Builds as quickstart.sh
# does; ZERO_TRAIN=path of a zero-train that is built already. Takes some seconds.
set -u
cd "$(dirname "$0")/.." || exit 1
. cmake/install.sh

ranks=4
victim=2
train=${ZERO_TRAIN:-}
if [ -z "$train" ]; then
    zr_install
    zr_configure . build
    zr_build build zero-train zero-checkpoint || zr_die "the build failed"
    train=$PWD/build/bin/zero-train
fi
check=$(dirname "$train")/zero-checkpoint
work=$(mktemp -d "${TMPDIR:-/tmp}/zr-elastic-XXXXXX") || exit 1
pids=()
stop() { # whatever happens, no process and no file is left
    [ ${#pids[@]} -eq 0 ] || kill -KILL "${pids[@]}" 2>/dev/null
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir "$work/data" "$work/drive"
cp docs/*/*.md "$work/data" || exit 1
model=layers=2,channels=64,heads=4,seq=64,vocab=256
options=(--device host --threads 1 --model "$model"
    --data "$work/data" --stage 3 --checkpoint-dir "$work/run" --checkpoint-every 5
    --checkpoint-keep 2 --comm-timeout "${ELASTIC_TIMEOUT:-60}" --log "$work/log")
# Where there is io_uring, the optimizer's state is in files: they are to go, too.
offload=(--offload-optimizer nvme --nvme-path "$work/drive")
"$train" --device host --model layers=1,channels=16,heads=2,seq=16,vocab=256 \
    --data "$work/data" --steps 1 --quiet "${offload[@]}" 2>/dev/null ||
    offload=(--offload-optimizer cpu)

# A port that nobody listens at: the first above a random one that refuses a connection.
find_port() {
    local port=$((20000 + RANDOM % 10000))
    while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
    echo $port
}

# launch N OPTION...: start N ranks as processes; pids has them, and $work/said.R what they say.
launch() {
    local n=$1 rank port
    shift
    port=$(find_port)
    pids=()
    for ((rank = 0; rank < n; rank++)); do
        WORLD_SIZE=$n RANK=$rank LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            "$train" "${options[@]}" "${offload[@]}" "$@" 2>"$work/said.$rank" &
        pids+=($!)
    done
}

said() { cat "$work"/said.*; }
saved() { [ ! -L "$work/run/latest" ] && cat "$work/run/latest" 2>/dev/null; }

zr_say "== $ranks ranks train, a process each"
launch $ranks --steps 1000000
until [ -n "$(saved)" ] && [ "$(saved | tr -d '\n')" != step-00000005 ]; do
    kill -0 "${pids[0]}" 2>/dev/null || zr_die "the run ended: $(said)"
    sleep 0.05
done
zr_say "checkpoint $(saved) is there: rank $victim is killed (SIGKILL)"
begin=$SECONDS
{ # the shell remarks on a process that was killed
    kill -KILL "${pids[$victim]}"
    wait "${pids[$victim]}"
} 2>/dev/null
for ((rank = 0; rank < ranks; rank++)); do
    wait "${pids[$rank]}" 2>/dev/null
    code=$?
    [ $rank -ne $victim ] || continue
    message=$(grep -a -m 1 'error:' "$work/said.$rank")
    zr_say "rank $rank: exit status $code, after $((SECONDS - begin)) s: $message"
    [ $code -eq 1 ] || zr_die "rank $rank: exit status $code instead of 1"
    grep -a -q "rank ${victim}[^0-9]" <<<"$message" || zr_die "rank $rank does not name rank $victim"
done
pids=()

zr_say "== what is left"
[ -z "$(ls -A "$work/drive")" ] || zr_die "files of the drive are left: $(ls -A "$work/drive")"
for folder in "$work"/run/step-*; do
    [ -f "$folder/manifest.json" ] || zr_die "$folder has its name and is not complete"
done
if [ -x "$check" ]; then
    "$check" list "$work/run" 2>/dev/null | sed "s|^|  |"
    "$check" verify "$work/run" | sed "s|$work/||" || zr_die "no checkpoint is whole"
fi

before=$(saved)
step=$((10#${before#step-}))
zr_say "== $((ranks - 1)) ranks go on"
launch $((ranks - 1)) --resume --steps $((step + 20)) --json >"$work/report.json"
for pid in "${pids[@]}"; do
    wait "$pid" || zr_die "the run does not go on: $(said)"
done
pids=()
grep -a -h 'resumes from' "$work/said.0" | sed "s|$work/||"
from=$(sed -n 's/.*resumes from .*: step \([0-9]*\) of .*/\1/p' "$work/said.0")
n_lines=$(wc -l <"$work/log")
[ "$n_lines" -eq $((step + 20)) ] || zr_die "the log has $n_lines lines, of $((step + 20)) steps"
n_steps=$((n_lines - from))
if [ -z "$from" ] || [ "$n_steps" -lt 1 ] || [ "$n_steps" -gt 20 ]; then zr_die "$n_steps steps instead of 20 or fewer"; fi
[ "$(saved)" != "$before" ] || zr_die "nothing was saved"
zr_say "$n_steps steps with $((ranks - 1)) ranks; the newest checkpoint is $(saved)"
