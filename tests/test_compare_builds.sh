#!/usr/bin/env bash
# tests/compare_builds.py with stand-ins for programs: equal ones pass, whatever differs is found, and
# what may differ is not. usage: test_compare_builds.sh SOURCE
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
script=$1/tests/compare_builds.py
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
status=0

# build NAME: both programs, which print the object of their kind and write what a run writes. Those
# of the lines that nothing fits fail, as expected of them.
build() {
    mkdir -p "$work/$1/bin"
    cat >"$work/$1/bin/zero-train" <<'END'
#!/bin/sh
mkdir -p saved
echo '{"step": 1, "loss": 5.5, "step_ms": '$$'}' >log.jsonl
echo '{"library": "'$$'", "step": 1}' >saved/manifest.json
echo weights >saved/rank.data
echo '{"step_ms": '$$', "time": {"io": '$$'}, "peak": [{"live": 1}], "weights_xxh3": "ab", "update_reason": "all 4 do"}'
case $* in *700KiB*) exit 1 ;; esac
END
    cat >"$work/$1/bin/zero-plan" <<'END'
#!/bin/sh
case $* in *--json*) echo '{"plans": [{"step_ms": 2.5, "fits": true}]}' ;; *) echo '->  1  cpu | 5%' && echo "best of 1" ;; esac
case $* in *175b*"--stage 1 "*) exit 1 ;; esac
END
    chmod +x "$work/$1"/bin/*
}

# expect CODE TEXT OPTION...: what comparing "old" and "new" exits with and says; then "new" is as it was.
expect() {
    local code=$1 text=$2 actual
    shift 2
    python3 "$script" "$work/old" "$work/new" "$@" >"$work/said" 2>&1
    actual=$?
    if [ "$actual" -ne "$code" ] || ! grep -qF -- "$text" "$work/said"; then
        echo "exit $actual, not $code, or nothing says: $text"
        cat "$work/said"
        status=1
    fi
    build new
}

# alter PROGRAM FROM TO: something of "new" is another one.
alter() {
    grep -q -- "$2" "$work/new/bin/$1" || { echo "$1 has no $2"; status=1; }
    sed -i "s/$2/$3/" "$work/new/bin/$1"
}

build old
build new
expect 0 "31 command lines, 0 different"
expect 2 "usage" --unknown
expect 1 "0 command lines" --only "no such case"

alter zero-train '"ab"' '"ac"'
expect 1 'weights_xxh3: "ab", now "ac"' --only "stage 0"
alter zero-train '"ab"' '"ac"'
expect 0 "allowed to differ: weights_xxh3" --only "stage 0" --allow weights_xxh3
alter zero-train '"live": 1' '"live": 2'
expect 1 'peak[0].live: 1, now 2' --only "stage 0"
alter zero-train '"live": 1' '"live": true'
expect 1 'peak[0].live: 1, now true' --only "stage 0"
alter zero-train '{"live": 1}' '{"live": 1}, {"live": 1}'
expect 1 'peak: 1 items, now 2' --only "stage 0"
alter zero-train '"io"' '"oi"'
expect 1 "time.io: missing" --only "stage 0"
alter zero-train '"peak"' '"more": 1, "peak"'
expect 0 "new field: more" --only "stage 0"
alter zero-train "all 4 do" "each of 4 does"
expect 0 "reworded: update_reason" --only "stage 0"
alter zero-train "all 4 do" "all 5 do"
expect 1 "update_reason: 'all 4 do', now 'all 5 do'" --only "stage 0"
alter zero-train "5.5" "5.6"
expect 1 "log.jsonl[0].loss: 5.5, now 5.6" --only "stage 0"
alter zero-train "echo weights" "echo others"
expect 1 "saved/rank.data: its bytes differ" --only "stage 0"
alter zero-train "rank.data" "rank2.data"
expect 1 "saved/rank.data: missing" --only "stage 0"
alter zero-train "700KiB" "701KiB"
expect 1 "exit status: 0 of NEW, not 1" --only "and offload auto"

alter zero-plan "2.5" "2.6"
expect 1 "plans[0].step_ms: 2.5, now 2.6" --only "zero-plan gpt2-xl"
alter zero-plan "cpu" "nvme"
expect 1 'table[0]: "-> 1 cpu | 5%", now "-> 1 nvme | 5%"' --only "zero-plan gpt2-xl"
alter zero-plan "best of" "best among"
expect 0 "reworded: text" --only "zero-plan gpt2-xl"
alter zero-plan "echo '->.*&&" ""
expect 1 "table: 1 items, now 0" --only "zero-plan gpt2-xl"

[ $status -ne 0 ] || echo "compare_builds.py: all as expected"
exit $status
