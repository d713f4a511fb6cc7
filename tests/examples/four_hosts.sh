#!/usr/bin/env bash
# Four hosts, each a network namespace with process numbers of its own, joined by virtual links and
# a bridge, train together, with a secret: first to the weights of four threads; then, at random
# moments, one is killed, stopped, starved of memory or cut off. Every other rank must end within
# the time limit with its name and exit status 1, leave no process and no file of its drive, and
# the newest checkpoint must be whole and go on with the three hosts that are left.
#
# four_hosts.sh TRAIN CHECK [MOMENTS [SEED [AT_ONCE [SECONDS]]]]
# With SECONDS, which is their --comm-timeout, ranks that end later than that fail it.
# Everything is in namespaces and in a folder in memory that end with the script, however it ends.
# 77: skipped, where these cannot be made.
set -u
if [ "${ZR_FOUR_HOSTS:-}" != inside ]; then
    for tool in ip unshare nsenter; do
        command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }
    done
    unshare --mount --net --pid --fork --kill-child --mount-proc sh -c '
        mount -t tmpfs none /mnt && ip link add name try type bridge && ip link add name a type veth peer name b
        ' 2>/dev/null || { echo "skipped: network namespaces cannot be made here"; exit 77; }
    ZR_FOUR_HOSTS=inside exec unshare --mount --net --pid --fork --kill-child --mount-proc bash "$0" "$@"
fi

train=$1
check=$2
moments=${3:-3}
seed=${4:-1}
at_once=${5:-3}
limit_s=${6:-10}
is_strict=${6:+yes}
kinds=(kill stop cut memory)
mkdir -p /run/netns
mount -t tmpfs none /run/netns && mount -t tmpfs none /mnt || exit 1
model=layers=2,channels=64,heads=4,seq=64,vocab=256
for ((i = 0; i < 4000; i++)); do echo "$i: the quick brown fox jumps over $((i * i % 977)) lazy dogs"; done >/mnt/text
(umask 077 && head -c 32 /dev/urandom | base64 >/mnt/secret)
trust=(--comm-secret /mnt/secret)
options=(--device host --threads 1 --data /mnt/text --model "$model" --stage 3 --quiet)
offload=(--offload-optimizer cpu)
"$train" "${options[@]}" --steps 1 --offload-optimizer nvme --nvme-path /mnt 2>/dev/null && offload=(--offload-optimizer nvme)

# make_hosts CASE: four hosts, 10.CASE.0.1 to .4.
make_hosts() {
    local host
    ip link add name "br$1" type bridge && ip link set "br$1" up || return 1
    for host in 0 1 2 3; do
        ip netns add "c$1-$host" &&
            ip -n "c$1-$host" link set lo up &&
            ip link add "p$1-$host" type veth peer name eth0 netns "c$1-$host" &&
            ip link set "p$1-$host" master "br$1" up &&
            ip -n "c$1-$host" addr add "10.$1.0.$((host + 1))/24" dev eth0 &&
            ip -n "c$1-$host" link set eth0 up || return 1
    done
}

# launch CASE HOSTS VMEM_OF_HOST OPTION...: a rank on each host, the first is rank 0. pids[HOST], said.HOST.
launch() {
    local case=$1 hosts=$2 starved=$3 rank=0 n=0 host first
    shift 3
    for host in $hosts; do n=$((n + 1)); done
    first=${hosts%% *}
    pids=()
    for host in $hosts; do
        mkdir -p "drive.$host"
        local place=()
        [ "${offload[1]}" = nvme ] && place=(--nvme-path "drive.$host")
        (
            [ "$host" != "${starved%:*}" ] || ulimit -v "${starved#*:}"
            exec env WORLD_SIZE=$n RANK=$rank LOCAL_RANK=0 \
                MASTER_ADDR="10.$case.0.$((first + 1))" MASTER_PORT=29500 \
                ip netns exec "c$case-$host" unshare --pid --fork --kill-child \
                "$train" "${options[@]}" "${offload[@]}" "${place[@]}" "${trust[@]}" \
                --comm-timeout "$limit_s" "$@"
        ) >"out.$host" 2>"said.$host" &
        pids[host]=$!
        rank=$((rank + 1))
    done
}

# The process of a host's rank.
rank_of() { pgrep -P "${pids[$1]}" | head -n 1; }

fail() {
    echo "case $case ($kind of rank $victim): $*"
    tail -n 3 said.* 2>/dev/null
    kill -KILL "${pids[@]}" 2>/dev/null
    exit 1
}

hash_of() { sed -n 's/.*"weights_xxh3": *"\([0-9a-f]*\)".*/\1/p' "$1"; }

# The weights of four threads, over the network.
train_together() {
    case=100 kind=none victim=none
    mkdir /mnt/100 && cd /mnt/100 && make_hosts 100 || return 1
    "$train" "${options[@]}" "${offload[@]}" --nvme-path /mnt --ranks 4 --steps 10 --json >threads 2>/dev/null ||
        "$train" "${options[@]}" "${offload[@]}" --ranks 4 --steps 10 --json >threads || fail "threads"
    launch 100 "0 1 2 3" none --steps 10 --json
    for host in 0 1 2 3; do wait "${pids[$host]}" || fail "rank $host does not train"; done
    [ -n "$(hash_of threads)" ] && [ "$(hash_of threads)" = "$(hash_of out.0)" ] ||
        fail "weights $(hash_of out.0), and of threads $(hash_of threads)"
    # Nobody says how many ranks a host has, among which its cores are divided. Nor is there a secret.
    trust=()
    launch 100 "0 1 2 3" none --steps 1 --threads 0 --json
    trust=(--comm-secret /mnt/secret)
    for host in 0 1 2 3; do wait "${pids[$host]}" || fail "rank $host does not train on all cores"; done
    grep -q "\"threads\": *$(nproc)," out.0 || fail "a rank alone on its host does not use its $(nproc) cores"
    grep -q '"overlap_comm": *true' out.0 || fail "collectives between hosts hold compute"
    received=$(ip netns exec c100-3 cat /proc/net/dev | sed -n 's/ *eth0: *\([0-9]*\) .*/\1/p')
    [ "$received" -gt 1000000 ] || fail "only $received bytes went over the network"
    echo "four hosts have the weights of four threads; host 3 has received $received bytes"
}

# strike KIND HOST: what happens to a rank.
strike() {
    case $1 in
    kill) kill -KILL "$(rank_of "$2")" ;;
    memory) # no more than it has; who can go on without is killed
        prlimit --pid "$(rank_of "$2")" --as=4096 2>/dev/null
        for ((i = 0; i < 40; i++)); do is_running "${pids[$2]}" && sleep 0.1; done
        kill -KILL "$(rank_of "$2")" 2>/dev/null && echo "case $case: killed without memory to take"
        ;;
    stop) kill -STOP "$(rank_of "$2")" ;;
    cut) ip link set "p$case-$2" down ;;
    esac
}

# Whether a process is there that is not a zombie.
is_running() { [ -d "/proc/$1" ] && ! grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null; }

# are_there HOST...: whether all these ranks train still.
are_there() {
    local host
    for host in "$@"; do is_running "${pids[$host]}" || return 1; done
}

# begin CASE STARVED OPTION...: four hosts train, and have saved; then a while passes. Again, where the
# machine has held one up for the time limit, so that all was over before anything was done to anybody.
begin() {
    local case=$1 starved=$2
    shift 2
    for ((try = 0; try < 10; try++)); do
        launch "$case" "0 1 2 3" "$starved" --steps 1000000 --checkpoint-dir run --checkpoint-every 2 \
            --checkpoint-keep 2 --log log "$@"
        until [ -s run/latest ] || ! are_there 0 1 2 3; do sleep 0.1; done
        sleep "$((delay_ms / 1000)).$(printf %03d $((delay_ms % 1000)))"
        [ "$starved" = none ] || return 0 # who starves may not come so far
        [ -s run/latest ] && are_there 0 1 2 3 && return 0
        wait "${pids[@]}"
        grep -qE '[0-9] ms|heard' said.* || fail "it has ended before anything was done to it"
        rm -rf run log
    done
    fail "nothing was saved"
}

# one_moment CASE: what, whom and when follow from the seed and the case.
one_moment() {
    case=$1
    RANDOM=$((seed * 1000 + case))
    kind=${kinds[case % 4]}
    victim=$((RANDOM % 4))
    local delay_ms=$((RANDOM % 1500)) starved=none saved groups=()
    [ $(((case + case / 4) % 2)) -eq 0 ] || groups=(--shard-group-size 2) # a rank that has no group with the victim
    [ "$kind" != memory ] || [ $((case / 4 % 2)) -eq 0 ] || starved=$victim:$((least_kb + RANDOM % (most_kb - least_kb)))
    mkdir "/mnt/$case" && cd "/mnt/$case" && make_hosts "$case" || return 1
    begin "$case" "$starved" "${groups[@]}"
    local begin=$EPOCHREALTIME
    strike "$kind" "$victim"
    [ "$kind" != memory ] || begin=$EPOCHREALTIME # it took a while to die
    local others=() code message
    for host in 0 1 2 3; do [ "$host" = "$victim" ] || others+=("$host"); done
    for host in "${others[@]}"; do
        for ((i = 0; i < 10 * (limit_s + 60); i++)); do
            is_running "${pids[$host]}" || break
            sleep 0.1
        done
        is_running "${pids[$host]}" && fail "rank $host has not ended"
        wait "${pids[$host]}"
        code=$?
        message=$(grep -a -m 1 'error:' "said.$host")
        [ $code -eq 1 ] || fail "rank $host: exit status $code: $message"
        grep -a -q -E "rank ${victim}([^0-9]|\$)|have not come to [^ ]*: ${victim}\$" <<<"${message#*rank $host:}" ||
            fail "rank $host does not name rank $victim: $message"
        [ "$kind" != cut ] || grep -a -q -E "has not been heard from|connection has ended|connection .* is lost|has lost the connection" <<<"$message" ||
            fail "rank $host was not told by the connection, but by the time limit: $message"
    done
    local took=$(((${EPOCHREALTIME/./} - ${begin/./}) / 1000))
    [ -z "$is_strict" ] || [ $took -le $((1000 * limit_s)) ] || fail "ended after $took ms, and not within $limit_s s: $message"
    if [ "$kind" = cut ]; then # it cannot know that it is the one
        for ((i = 0; i < 10 * (limit_s + 60); i++)); do is_running "${pids[$victim]}" && sleep 0.1; done
        is_running "${pids[$victim]}" && fail "the rank that was cut off has not ended"
        wait "${pids[$victim]}"
        code=$?
        [ $code -eq 1 ] || fail "the rank that was cut off: exit status $code"
        ip link set "p$case-$victim" up
    fi
    kill -KILL "$(rank_of "$victim")" 2>/dev/null
    wait "${pids[$victim]}" 2>/dev/null
    for host in 0 1 2 3; do
        [ -z "$(ip netns pids "c$case-$host")" ] || fail "processes are left on host $host"
        [ -z "$(ls -A "drive.$host")" ] || fail "files are left on the drive of host $host"
    done
    echo "case $case: $kind of rank $victim${groups[*]:+ with ${groups[*]}}, $delay_ms ms after a checkpoint: all ended after $took ms: ${message#*error: }"
    [ -s run/latest ] || return 0 # it was starved before the first
    for folder in run/step-*; do
        [ -f "$folder/manifest.json" ] || fail "$folder has its name and is not complete"
    done
    "$check" verify run >verified 2>&1 || fail "no checkpoint is whole: $(cat verified)"
    saved=$(cat run/latest)
    saved=$((10#${saved#step-}))
    launch "$case" "${others[*]}" none --steps $((saved + 6)) --checkpoint-dir run --resume --json
    for host in "${others[@]}"; do wait "${pids[$host]}" || fail "three hosts do not go on"; done
    [ -f "$(printf 'run/step-%08d/manifest.json' $((saved + 6)))" ] || fail "three hosts have not saved"
}

train_together || exit 1
# Between what a rank needs to begin and what it needs in all.
least_kb=20000
most_kb=$( (
    "$train" "${options[@]}" --steps 1000000 2>/dev/null &
    sleep 0.7
    sed -n 's/VmPeak:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$!/status"
    kill -KILL $!
) 2>/dev/null)
[ -n "$most_kb" ] && [ "$most_kb" -gt $least_kb ] || most_kb=400000
failed=0
for ((next = 0; next < moments; next += at_once)); do
    running=()
    for ((c = next; c < moments && c < next + at_once; c++)); do
        (one_moment "$c") &
        running+=($!)
    done
    for pid in "${running[@]}"; do wait "$pid" || failed=$((failed + 1)); done
done
echo "$moments moments, $failed failed"
[ $failed -eq 0 ]
