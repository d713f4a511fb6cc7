#!/usr/bin/env bash
# A run that is disturbed for hours loses nothing: kills, stops, full disks, I/O faults, strangers
# on ports, and restarts with other ranks, placements and processes, at random from a seed. Ranks that
# are processes share a secret, with which all checkpoints are signed.
#
#   bash tests/soak.sh HOURS [SEED [BUILD]]      BUILD: a folder that is built; ./build
#
# The run is made of legs. Within a leg the number of ranks is one, since sums depend on it; stage,
# placement, threads or processes, and how often is saved are others at each start, which change no
# bit. At the end of each leg the weights are those of a run of the same legs that nothing disturbs.
# After each event the newest checkpoint is whole, and no older than what was saved before; whoever
# is to end has ended within its time, with a status that is documented.
# ZR_SOAK_TIMEOUT=10 in the environment: ranks await each other so many seconds instead of 4, on a
# machine that other work keeps from running them.
# Prints its seed and each event. Exit status: 0; 1 something was lost: the folder stays; 77 skipped.
set -u
hours=${1:?soak.sh HOURS [SEED [BUILD]]}
ranks=1
seed=${2:-$((RANDOM * 32768 + RANDOM))}
build=$(cd "${3:-$(dirname "$0")/../build}" && pwd) || exit 1
train=$build/bin/zero-train check=$build/bin/zero-checkpoint
if [ "${ZR_SOAK:-}" != inside ]; then # a folder system that can be full, and ends with the script
    [ -x "$train" ] && [ -x "$check" ] || { echo "skipped: no zero-train and zero-checkpoint in $build"; exit 77; }
    unshare --mount sh -c 'mount -t tmpfs none /mnt' 2>/dev/null ||
        { echo "skipped: folders in memory cannot be mounted here"; exit 77; }
    ZR_SOAK=inside exec unshare --mount bash "$0" "$hours" "$seed" "$build"
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/zr-soak-XXXXXX") || exit 1
mount -t tmpfs -o size=24m none /mnt && mkdir /mnt/run || exit 1
cc -shared -fPIC -O1 -o "$work/faults.so" "$(dirname "$0")/fault/io_faults.c" -ldl || exit 1
mkdir "$work/drive" "$work/plain"
for ((i = 0; i < 4000; i++)); do echo "$i: the quick brown fox jumps over $((i * i % 977)) lazy dogs"; done >"$work/text"
model=layers=2,channels=64,heads=4,seq=64,vocab=256
(umask 077 && head -c 32 /dev/urandom | base64 >"$work/secret")
base=(--device host --threads 1 --data "$work/text" --model "$model" --schedule constant --quiet 
    --comm-secret "$work/secret" --checkpoint-sign require)
limit=${ZR_SOAK_TIMEOUT:-4} # --comm-timeout of disturbed runs
ends_within=90 # of those that are to end, in seconds, on a busy machine
done_within=900 # of those that are let alone
RANDOM=$seed
start=$SECONDS
pids=() strangers=() n_starts=0 leg=0 step=0 damaged='' event=none faults=''
declare -A counts=()

say() { echo "$((SECONDS - start)) s: $*"; }
pick() { # pick VARIABLE WORD...: one of the words; not in a subshell, where the seed would stay
    local -n picked=$1
    shift
    local i=$((RANDOM % $#))
    shift $i
    picked=$1
}
draw() { local -n drawn=$1; drawn=$(($2 + RANDOM % ($3 - $2 + 1))); }
pause() { sleep "$(($1 / 10)).$(($1 % 10))"; }
end() {
    [ ${#pids[@]} -eq 0 ] || kill -KILL "${pids[@]}" 2>/dev/null
    umount /mnt 2>/dev/null
}
trap end EXIT
trap 'exit 130' INT TERM
lose() {
    echo "LOST: seed $seed, leg $leg, start $n_starts: $*"
    tail -n 5 "$work"/said.* 2>/dev/null
    cp -a /mnt/run "$work/run"
    echo "all of it is in $work"
    exit 1
}

newest() { # steps of the newest checkpoint; 0: there is none
    local name
    name=$(cat /mnt/run/latest 2>/dev/null) || name=step-0
    echo $((10#${name#step-}))
}

# ---- starting ------------------------------------------------------------------------------------
find_port() {
    local port
    draw port 20000 29999
    while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
    master_port=$port
}

knock() { # as strangers do: some say nothing, some say anything
    local i until=$((SECONDS + 10))
    until (: <"/dev/tcp/127.0.0.1/$master_port") 2>/dev/null || [ $SECONDS -ge $until ]; do sleep 0.05; done
    for ((i = 0; i < 20; i++)); do
        (exec 3<>"/dev/tcp/127.0.0.1/$master_port" && head -c $((i / 2 * 37)) /dev/urandom >&3 && sleep 0.$((i % 3))) 2>/dev/null &
        strangers+=($!)
    done
}

faulty() { # instead of the shell that calls it
    [ -z "$faults" ] || export LD_PRELOAD=$work/faults.so IO_FAULTS=$faults
    exec "$@"
}

# launch KIND RANKS OPTION...: pids has the processes; said.R what they say, out.0 the report
launch() {
    local kind=$1 n=$2 rank
    shift 2
    pids=()
    rm -f "$work"/said.* "$work"/out.*
    if [ "$kind" = threads ]; then
        faulty "$train" "${base[@]}" --ranks "$n" "$@" >"$work/out.0" 2>"$work/said.0" &
        pids=($!)
        return
    fi
    find_port
    for ((rank = 0; rank < n; rank++)); do
        WORLD_SIZE=$n RANK=$rank LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$master_port \
            faulty "$train" "${base[@]}" "$@" >"$work/out.$rank" 2>"$work/said.$rank" &
        pids+=($!)
        [ "$event" != strangers ] || [ $rank -ne 0 ] || knock # while rank 0 awaits the others
    done
}

start_run() { # with the leg's ranks; all else at random
    local stage offload every async
    pick kind threads processes
    [ "$event" != strangers ] || kind=processes
    [ "$ranks" -gt 1 ] || kind=threads
    draw stage 0 3
    pick offload none cpu nvme
    draw every 3 30
    pick async "" --checkpoint-async
    local damaged_is=previous # but where a drive is made to fail again and again: that is no damage
    [ -z "$faults" ] || damaged_is=refuse
    local options=(--stage "$stage" --checkpoint-dir /mnt/run --checkpoint-every "$every" --checkpoint-keep 2
        --resume --resume-damaged "$damaged_is" --steps "$target" --log "$work/log" --json --comm-timeout "$limit" $async)
    [ "$offload" = none ] || options+=(--offload-optimizer "$offload")
    [ "$offload" != nvme ] || options+=(--nvme-path "$work/drive")
    [ "$offload" = none ] || [ "$stage" != 0 ] || options+=(--stage 1)
    n_starts=$((n_starts + 1))
    say "start $n_starts: $ranks $kind, stage $stage, offload $offload, every $every $async${faults:+, faults $faults}"
    launch "$kind" "$ranks" "${options[@]}"
}

# ---- ends ----------------------------------------------------------------------------------------
is_running() { kill -0 "${pids[0]}" 2>/dev/null && [ "$(ps -o stat= -p "${pids[0]}" | cut -c1)" != Z ]; }

# await STATUS...: all end within their time, each with one of these
await() { { await_quietly "$@"; } 2>/dev/null; } # the shell remarks on who was killed
await_quietly() {
    local pid code within=$ends_within
    [ "$event" != none ] || within=$done_within
    local until=$((SECONDS + within))
    for pid in "${pids[@]}"; do
        while kill -0 "$pid" 2>/dev/null && [ "$(ps -o stat= -p "$pid" | cut -c1)" != Z ]; do
            [ $SECONDS -lt $until ] || lose "process $pid has not ended for $within s"
            sleep 0.1
        done
        wait "$pid" 2>/dev/null
        code=$?
        case " $* " in *" $code "*) ;; *) lose "exit status $code instead of $*" ;; esac
    done
    pids=()
}

# Nothing is lost: the newest is whole, and not older than before.
check_folder() {
    local now
    now=$(newest)
    [ -z "$damaged" ] || [ -d "/mnt/run/$damaged.damaged" ] || lose "$damaged is not set aside"
    rm -rf /mnt/run/*.damaged*
    damaged=''
    [ "$now" -ge "$step" ] || lose "the newest checkpoint has $now steps, and there was one of $step"
    step=$now
    [ "$step" -eq 0 ] || "$check" verify /mnt/run --comm-secret "$work/secret" >"$work/verified" 2>&1 ||
        lose "the newest checkpoint is not whole: $(tail -n 2 "$work/verified")"
    [ -z "$(ls -A "$work/drive")" ] || [ "$event" = kill-all ] || lose "files of the drive are left"
    rm -rf "$work/drive" && mkdir "$work/drive"
}

# ---- events: what is done to a run ---------------------------------------------------------------
kill_one() { local v; draw v 0 $((${#pids[@]} - 1)); kill -KILL "${pids[v]}"; await 1 137 0; }
kill_all() { kill -KILL "${pids[@]}"; await 137 1 0; }
term() { kill -TERM "${pids[@]}"; await 0 1; }
stop_one() { # the others have to end; then it goes on, and ends
    local v
    draw v 0 $((${#pids[@]} - 1))
    [ ${#pids[@]} -gt 1 ] || { stop_all; return; }
    kill -STOP "${pids[v]}"
    pause $((limit * 15))
    kill -CONT "${pids[v]}"
    await 0 1
}
stop_all() { # it goes on, whatever time has passed, several times
    local i tenths
    for i in 1 2 3; do
        is_running || break
        kill -STOP "${pids[@]}" 2>/dev/null
        draw tenths 1 $((limit * 12))
        pause "$tenths"
        kill -CONT "${pids[@]}" 2>/dev/null
        draw tenths 0 5
        pause "$tenths"
    done
    is_running || { await 0; return; }
    kill -TERM "${pids[@]}" 2>/dev/null
    await 0
}
fill_disk() { # a save fails, or none was due; then there is room again
    head -c 30000000 /dev/zero >/mnt/filler 2>/dev/null
    local tenths
    draw tenths 5 30
    pause "$tenths"
    is_running && kill -TERM "${pids[@]}" 2>/dev/null
    await 0 1 2
    rm -f /mnt/filler
}
strangers() { # at the port, before all have come: the run does not end of it
    local tenths
    wait "${strangers[@]}" 2>/dev/null
    strangers=()
    draw tenths 2 20
    pause "$tenths"
    is_running && kill -TERM "${pids[@]}" 2>/dev/null
    await 0
}
io_faults() { # until its faults end it, or it is done
    local i
    for ((i = 0; i < 100; i++)); do is_running || break; sleep 0.1; done
    kill -TERM "${pids[@]}" 2>/dev/null
    await 0 1 2
}

# A bit of the newest checkpoint, before a start: where there is one before, the run goes on from that.
# Not from one of the leg before, whose ranks were others.
damage() {
    local file names place byte newest=$step
    names=(/mnt/run/step-????????) # the newest is the last
    [ ${#names[@]} -ge 2 ] && [ $((10#${names[-2]##*/step-})) -ge "$leg_begin" ] || return
    damaged=${names[-1]##*/}
    step=$((10#${names[-2]##*/step-}))
    pick file /mnt/run/"$damaged"/rank-*.data
    draw place 0 $(($(stat -c %s "$file") - 1))
    byte=$(od -An -tu1 -j "$place" -N 1 "$file")
    # shellcheck disable=SC2059
    printf "\\x$(printf %02x $((byte ^ 16)))" | dd of="$file" bs=1 seek="$place" conv=notrunc status=none
    if "$check" verify "/mnt/run/$damaged" >/dev/null 2>&1; then # between what is saved
        damaged=''
        step=$newest
        return
    fi
    say "damage: $file, byte $place; the one before has $step steps"
}
flipped() { # it goes on from the one before
    pause 30
    is_running && kill -TERM "${pids[@]}" 2>/dev/null
    await 0
}

disturb() {
    local tenths rarity
    faults=''
    pick event kill_one kill_one kill_all term stop_one stop_all stop_all fill_disk strangers io_faults flipped
    draw tenths 0 30
    [ "$event" != strangers ] || [ "$ranks" -gt 1 ] || event=term
    [ "$event" != strangers ] || tenths=0
    draw rarity 20 400
    [ "$event" != io_faults ] || faults="$RANDOM $rarity"
    [ "$event" != flipped ] || damage
    start_run
    pause "$tenths"
    say "$event after $tenths tenths, at step $(newest) of $target"
    if is_running || [ "$event" = io_faults ]; then
        counts[$event]=$((${counts[$event]:-0} + 1))
        $event
    else
        await 0
    fi
    check_folder
}

# ---- legs ----------------------------------------------------------------------------------------
report() { sed -n 's/.*"weights_xxh3": *"\([0-9a-fx]*\)".*/\1/p' "$work/out.0" | head -n 1; }

run_leg() {
    local n_events i wanted
    leg=$((leg + 1))
    leg_begin=$target
    draw ranks 1 4
    draw n_events 3 8
    target=$((target + 1500 + RANDOM % 3000))
    say "leg $leg: $ranks ranks to step $target, $n_events events"
    for ((i = 0; i < n_events && step < target; i++)); do disturb; done
    faults='' event=none
    start_run
    await 0
    check_folder
    wanted=$(report)
    launch threads "$ranks" --stage 2 --checkpoint-dir "$work/plain" --checkpoint-keep 1 --resume --steps "$target" --json
    await 0
    [ -n "$wanted" ] && [ "$wanted" = "$(report)" ] || lose "weights $wanted instead of $(report)"
    [ "$(wc -l <"$work/log")" -eq "$target" ] || lose "the log has $(wc -l <"$work/log") lines of $target steps"
    say "leg $leg is whole: $wanted"
}

say "seed $seed, $hours hours, $build"
target=0
until_s=$(awk -v h="$hours" -v s="$SECONDS" 'BEGIN { print int(s + h * 3600) }')
while [ $SECONDS -lt "$until_s" ]; do run_leg; done
[ $SECONDS -ge "$until_s" ] || lose "the script has ended before its time"
events=$(for event in "${!counts[@]}"; do echo -n "$event ${counts[$event]}, "; done)
say "seed $seed: $leg legs, $n_starts starts, $target steps; ${events}nothing was lost"
rm -rf "$work"
