#!/usr/bin/env bash
# Four hosts of a rank each, network namespaces joined by a bridge, over links that a token bucket
# (tc, tbf) slows down in both directions: the time of a step, what a rank sends in it, and the loss,
# of values as they are and encoded, at stage 3, and of groups that meet once in 20 steps.
#
# slow_links.sh TRAIN [RATE [STEPS [MODEL]]]      RATE as tc has it: 1gbit, 200mbit
# A measure, no test: its figures are for docs/guide/lean.md. Ways are measured in turns, twice each.
# 77: skipped, where such hosts cannot be made.
set -u
if [ "${ZR_SLOW_LINKS:-}" != inside ]; then
    for tool in ip tc unshare; do
        command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }
    done
    unshare --mount --net --pid --fork --kill-child --mount-proc sh -c '
        mount -t tmpfs none /mnt && ip link add name a type veth peer name b &&
        tc qdisc add dev a root tbf rate 1gbit burst 256kb latency 50ms' 2>/dev/null ||
        { echo "skipped: shaped links cannot be made here"; exit 77; }
    ZR_SLOW_LINKS=inside exec unshare --mount --net --pid --fork --kill-child --mount-proc bash "$0" "$@"
fi

train=$(realpath "$1")
rate=${2:-1gbit}
steps=${3:-10}
model=${4:-layers=4,channels=256,heads=4,seq=32,vocab=256}
mkdir -p /run/netns && mount -t tmpfs none /run/netns && mount -t tmpfs none /mnt && cd /mnt || exit 1
for ((i = 0; i < 20000; i++)); do echo "$i: the quick brown fox jumps over $((i * i % 977)) lazy dogs"; done >text
ip link add name bridge type bridge && ip link set bridge up || exit 1
for host in 0 1 2 3; do
    ip netns add h$host && ip -n h$host link set lo up &&
        ip link add p$host type veth peer name eth0 netns h$host &&
        ip link set p$host master bridge up &&
        ip -n h$host addr add 10.0.0.$((host + 1))/24 dev eth0 && ip -n h$host link set eth0 up &&
        tc qdisc add dev p$host root tbf rate "$rate" burst 256kb latency 50ms &&
        ip netns exec h$host tc qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 50ms || exit 1
done

# train_for OPTION...: its report in out.0, and `carried`, what host 1 has sent.
train_for() {
    local host before pids=()
    before=$(ip netns exec h1 cat /proc/net/dev | sed -n 's/ *eth0: *//p' | awk '{print $9}')
    for host in 0 1 2 3; do
        WORLD_SIZE=4 RANK=$host LOCAL_RANK=0 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 ip netns exec h$host \
            unshare --pid --fork --kill-child "$train" --device host --threads 1 --data text --model "$model" \
            --quiet --json --comm-timeout 300 "$@" >out.$host 2>said.$host &
        pids+=($!)
    done
    for host in 0 1 2 3; do wait "${pids[host]}" || { tail -n 3 said.*; exit 1; }; done
    carried=$(($(ip netns exec h1 cat /proc/net/dev | sed -n 's/ *eth0: *//p' | awk '{print $9}') - before))
}

number() { tr -d '\n' <out.0 | sed "s/.*\"$1\": *\([-0-9.e+]*\).*/\1/"; }

ways=(
    "--stage 3 --dtype fp32"
    "--stage 3 --dtype fp32 --gather-encoding 8bit --reduce-encoding 4bit"
    "--stage 3 --dtype bf16"
    "--stage 3 --dtype bf16 --gather-encoding 8bit --reduce-encoding 4bit"
)
echo "links of $rate, $steps steps of $model"
for turn in 1 2; do
    for way in "${ways[@]}"; do
        train_for --steps "$steps" $way
        printf '%8.1f ms per step, %8.2f MB carried per step: %s\n' "$(number step_ms)" \
            "$(awk "BEGIN {print $carried / 1e6 / $steps}")" "$way"
    done
done
