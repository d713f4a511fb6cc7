#!/usr/bin/env bash
# Two hosts of two ranks each, network namespaces joined by one virtual link, train with each host as a
# group: what the link has carried is what the ranks say that they have sent between groups, save for
# what ranks say to each other and what TCP adds; and no more at stage 3, whose gathers stay within
# hosts. With one group of all ranks the link carries what a host's ranks send the other's.
#
# two_levels.sh TRAIN
# 77: skipped, where such hosts cannot be made.
set -u
if [ "${ZR_TWO_LEVELS:-}" != inside ]; then
    for tool in ip unshare; do
        command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }
    done
    unshare --mount --net --pid --fork --kill-child --mount-proc sh -c '
        mount -t tmpfs none /mnt && ip link add name a type veth peer name b' 2>/dev/null ||
        { echo "skipped: network namespaces cannot be made here"; exit 77; }
    ZR_TWO_LEVELS=inside exec unshare --mount --net --pid --fork --kill-child --mount-proc bash "$0" "$@"
fi

train=$1
mkdir -p /run/netns && mount -t tmpfs none /run/netns && mount -t tmpfs none /mnt && cd /mnt || exit 1
for ((i = 0; i < 4000; i++)); do echo "$i: the quick brown fox jumps over $((i * i % 977)) lazy dogs"; done >text
for host in 0 1; do ip netns add h$host && ip -n h$host link set lo up || exit 1; done
ip link add eth0 netns h0 type veth peer name eth0 netns h1 || exit 1
for host in 0 1; do
    ip -n h$host addr add 10.0.0.$((host + 1))/24 dev eth0 && ip -n h$host link set eth0 up || exit 1
done

# Bytes that host 0 has sent so far.
sent() { ip netns exec h0 cat /proc/net/dev | sed -n 's/ *eth0: *//p' | awk '{print $9}'; }

# On a host, ranks see each other's processes, and share its memory. How many they are is said to them.
export n_local=2
ranks='for local in 0 1; do
    WORLD_SIZE=4 RANK=$((2 * host + local)) LOCAL_RANK=$local LOCAL_WORLD_SIZE=$n_local MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 \
        "$@" >out.$host.$local 2>said.$host.$local & pids="$pids $!"
done
for pid in $pids; do wait $pid || exit 1; done'

# train_for STEPS OPTION...: carried, what host 0 has sent.
train_for() {
    local before host pids=()
    before=$(sent)
    for host in 0 1; do
        host=$host ip netns exec h$host unshare --pid --fork --kill-child bash -c "$ranks" ranks "$train" --device host \
            --threads 1 --data text --quiet --json --model layers=4,channels=128,heads=4,seq=32,vocab=256 \
            --comm-timeout 60 --steps "$@" &
        pids+=($!)
    done
    for host in 0 1; do wait "${pids[host]}" || { tail -n 3 said.*; exit 1; }; done
    carried=$(($(sent) - before))
}

# number OBJECT NAME: of the last run.
number() { tr -d '\n' <out.0.0 | sed "s/.*\"$1\": *{//;s/}.*//;s/.*\"$2\": *\([0-9]*\).*/\1/"; }

# expect WHAT BYTES: of each of two ranks, in 8 steps, the difference of runs of 10 and of 2.
expect() {
    echo "$1: $((carried - begun)) bytes on the link, $2 counted"
    [ $((carried - begun)) -ge "$2" ] && [ $((100 * (carried - begun))) -le $((103 * $2)) ] ||
        { echo "the link has carried something else"; exit 1; }
}

for stage in 1 3; do
    train_for 2 --stage $stage --shard-group-size 2 --grad-accum 2
    begun=$carried counted=$(number between_groups all_reduce)
    train_for 10 --stage $stage --shard-group-size 2 --grad-accum 2
    expect "stage $stage, groups" $((2 * ($(number between_groups all_reduce) - counted)))
done
# Of all that is summed, each rank's half for the other host; of all that is gathered, a rank's quarter once.
train_for 2 --stage 3 --grad-accum 2
begun=$carried scattered=$(number comm_bytes reduce_scatter) gathered=$(number comm_bytes all_gather)
train_for 10 --stage 3 --grad-accum 2
scattered=$(($(number comm_bytes reduce_scatter) - scattered)) gathered=$(($(number comm_bytes all_gather) - gathered))
expect "stage 3, all ranks" $((2 * scattered * 2 / 3 + 2 * gathered / 3))
# Where nobody says it they find out, and a plan of two hosts has each as a group; one of a single host has none.
n_local=
train_for 2 --stage auto
grep -q '"options": *"[^"]*--shard-group-size 2"' out.0.0 || { grep -A 4 chosen out.0.0; echo "no groups were chosen"; exit 1; }
