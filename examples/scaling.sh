#!/usr/bin/env bash
# How GPTs of 1.5, 13 and 175 billion parameters scale from 8 to 1,024 simulated ranks, and what was
# measured of other programs beside what is planned of the same runs: zero-plan makes one plan of
# each. Writes the tables of docs/internals/scaling.md again, and docs/internals/scaling.svg.
# Installs what is missing on Debian 12 and Ubuntu 22.04 or later, and builds zero-plan; or takes
# the one that ZERO_PLAN names. Some minutes of one core.
set -u
cd "$(dirname "$0")/.." || exit 1
. cmake/install.sh

document=docs/internals/scaling.md
picture=docs/internals/scaling.svg
work=build/scaling
if [ -z "${ZERO_PLAN:-}" ]; then
    packages=jq
    command -v gnuplot >/dev/null || packages="$packages gnuplot-nox"
    # shellcheck disable=SC2086
    zr_install $packages
    zr_configure . build
    zr_build build zero-plan || zr_die "the build failed"
    ZERO_PLAN=build/bin/zero-plan
fi
mkdir -p $work

# plan OPTION...: the one plan of it, as JSON; nothing is said where it does not fit.
plan() {
    "$ZERO_PLAN" --dtype bf16 --shard-group-size all --json --quiet "$@" >$work/plan.json 2>$work/error.txt
    [ $? -le 1 ] || zr_die "zero-plan $*: $(cat $work/error.txt)"
    jq -c '.plans[0]' $work/plan.json
}

# ---- weak scaling -------------------------------------------------------------------------------
# Hardware and order of sums of each column; the first has memory and times in the table, too.
columns="8x-a100-80g:any 8x-a100-80g:rank-order 8x-a100-80g-400gb:any 8x-a100-80g-400gb:rank-order
8x-h100:any 8x-h100-100gb:any"

# placement MODEL RANKS: where the state is that a rank's device has no room for.
placement() {
    case $1:$2 in
    gpt2-xl:*) echo "--stage 2 --offload-optimizer none" ;;
    gpt3-175b:8) echo "--stage 3 --offload-params none --offload-optimizer nvme" ;;
    gpt3-175b:16 | gpt3-175b:32) echo "--stage 3 --offload-params cpu --offload-optimizer cpu" ;;
    *) echo "--stage 3 --offload-params none --offload-optimizer none" ;;
    esac
}

how() {
    case $1 in
    gpt2-xl) echo "--seq 1024 --micro-batch 16 --recompute none" ;;
    gpt3-13b) echo "--seq 2048 --micro-batch 8 --recompute unit" ;;
    gpt3-175b) echo "--seq 2048 --micro-batch 4 --recompute unit" ;;
    esac
}

# percent NUMBER: of a part.
percent() { awk -v part="$1" -v format="${2:-%.0f%%}" 'BEGIN { printf format, 100 * part }'; }

# weak MODEL: a row of the table for each number of ranks; efficiencies into MODEL.txt, too.
weak() {
    local model=$1 ranks column row line efficiency
    rm -f "$work/$model.txt"
    printf '| ranks | stage, state, parameters | device, host | tokens/s of a rank | A100, 1600 Gb/s | in rank order | A100, 400 Gb/s | in rank order | H100, 3200 Gb/s | H100, 100 Gb/s |\n'
    printf '|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|\n'
    for ranks in 8 16 32 64 128 256 512 1024; do
        row='' line=$ranks
        for column in $columns; do
            # shellcheck disable=SC2046
            plan --model "$model" --ranks $ranks --hardware "${column%:*}" --sums "${column#*:}" \
                $(placement "$model" $ranks) $(how "$model") >$work/one.json
            [ -n "$row" ] || row=$(jq -r --argjson ranks $ranks '
                def gib: . / 1073741824 | round;
                "| \($ranks) | \(.stage), \(.offload_optimizer), \(.offload_params) " +
                "| \(.peak_bytes.device.reserved | gib), \(.peak_bytes.host.reserved | gib) GiB " +
                "| \(.tokens_per_s / $ranks | round)"' $work/one.json)
            # The part of a step that is kernels: of as many machines, so many are used.
            efficiency=$(jq -r '1000 * .time.compute.busy / .step_ms' $work/one.json)
            row="$row | $(percent "$efficiency")"
            line="$line $efficiency"
        done
        printf '%s |\n' "$row"
        printf '%s\n' "$line" >>"$work/$model.txt"
    done
}

draw() {
    gnuplot <<PLOT || zr_die "gnuplot could not draw $picture"
set terminal svg size 1080,380 font 'sans,12' background 'white'
set output '$picture'
set multiplot layout 1,3
set logscale x 2
set xrange [8:1024]
set xtics (8, 32, 128, 512)
set yrange [0:1]
set xlabel 'ranks'
set ylabel 'efficiency'
set style data linespoints
set pointsize 0.5
set linetype 1 linecolor rgb '#005090' linewidth 2
set linetype 2 linecolor rgb '#005090' linewidth 1 dashtype 2
set linetype 3 linecolor rgb '#c05000' linewidth 2
set linetype 4 linecolor rgb '#c05000' linewidth 1 dashtype 2
set linetype 5 linecolor rgb '#207020' linewidth 2
set linetype 6 linecolor rgb '#802080' linewidth 2
do for [model in 'gpt2-xl gpt3-13b gpt3-175b'] {
    set title model
    if (model eq 'gpt3-13b') { set key at graph 0.97,0.85 right top samplen 3 } else { unset key }
    plot '$work/'.model.'.txt' using 1:2 title 'A100, 1600 Gb/s', \
        '' using 1:3 title 'in rank order', '' using 1:4 title 'A100, 400 Gb/s', \
        '' using 1:5 title 'in rank order', '' using 1:6 title 'H100, 3200 Gb/s', \
        '' using 1:7 title 'H100, 100 Gb/s'
}
unset multiplot
PLOT
}

# ---- what was measured --------------------------------------------------------------------------
mpt=vocab=50368,seq=2048,layers
gpt=seq=2048,layers
# Source, model, hardware, ranks, micro-batch, accumulation, stage, recompute, and what was measured:
# tokens/s of a rank. Operations per second were divided by those of a token that the source counts.
measured() {
    cat <<CASES
1 $mpt=24,channels=2048,heads=16 8x-a100-80g 8 14 4 3 none 20513
1 $mpt=32,channels=4096,heads=32 8x-a100-80g 8 6 2 3 none 4641
1 $mpt=40,channels=5120,heads=40 8x-a100-80g 8 2 3 3 none 2262
1 $mpt=48,channels=7168,heads=56 8x-a100-80g 8 3 21 3 unit 916
1 $mpt=40,channels=5120,heads=40 8x-a100-40g 16 10 1 3 unit 1993
1 $mpt=40,channels=5120,heads=40 8x-a100-40g 32 14 1 3 unit 1998
1 $mpt=40,channels=5120,heads=40 8x-a100-40g 64 16 1 3 unit 1976
1 $mpt=40,channels=5120,heads=40 8x-a100-40g 128 16 1 3 unit 1972
1 $mpt=64,channels=8192,heads=64 8x-a100-40g 64 2 1 3 unit 276
1 $mpt=64,channels=8192,heads=64 8x-a100-40g 128 4 1 3 unit 376
1 $mpt=40,channels=5120,heads=40 8x-h100 8 2 1 3 none 4792
1 $mpt=40,channels=5120,heads=40 8x-h100 64 2 1 3 none 4800
2 $gpt=24,channels=2048,heads=16,vocab=50264 8x-a100-80g 8 8 8 1 none 21125
2 $gpt=32,channels=2560,heads=20,vocab=50264 8x-a100-80g 8 4 16 1 none 10625
3 seq=1024,layers=48,channels=1600,heads=25,vocab=50304 8x-h100 8 16 8 1 none 47671
4 $gpt=32,channels=4096,heads=32,vocab=103168 8x-a100-80g-400gb 8 2 4 1 none 4062
4 $gpt=32,channels=4096,heads=32,vocab=103168 8x-a100-80g-400gb 16 2 4 1 none 3842
4 $gpt=32,channels=4096,heads=32,vocab=103168 8x-a100-80g-400gb 32 2 4 1 none 3752
4 $gpt=32,channels=4096,heads=32,vocab=103168 8x-a100-80g-400gb 64 2 4 1 none 3690
4 $gpt=32,channels=4096,heads=32,vocab=103168 8x-a100-80g-400gb 128 2 4 1 none 3571
4 $gpt=32,channels=4096,heads=32,vocab=103168 8x-a100-80g-400gb 256 2 4 1 none 3209
4 $gpt=32,channels=4096,heads=32,vocab=103168 8x-a100-80g-400gb 512 2 4 1 none 2861
4 $gpt=32,channels=4096,heads=32,vocab=103168 8x-a100-80g-400gb 1024 2 4 1 none 2271
5 $gpt=96,channels=12288,heads=96,vocab=50000 8x-a100-80g 512 1 1 3 unit 121
5 $gpt=96,channels=12288,heads=96,vocab=50000 8x-a100-80g 512 2 1 3 unit 130
6 $gpt=96,channels=12288,heads=96,vocab=51200 8x-a100-80g 384 4 1 3 unit 100.4
6 $gpt=96,channels=12288,heads=96,vocab=51200 8x-a100-80g 768 2 1 3 unit 61.4
CASES
}

compare() {
    local source model hardware ranks micro accum stage recompute tokens params
    rm -f $work/measured.txt
    printf '| source | layers, channels | hardware | ranks | micro-batch x accumulation | stage, recompute | measured | planned | deviation | waits for communication |\n'
    printf '|---:|---|---|---:|---:|---|---:|---:|---:|---:|\n'
    measured | while read -r source model hardware ranks micro accum stage recompute tokens; do
        params=()
        [ "$stage" -lt 3 ] || params=(--offload-params none)
        plan --model "$model" --hardware "$hardware" --ranks "$ranks" --micro-batch "$micro" \
            --grad-accum "$accum" --stage "$stage" --recompute "$recompute" --sums any \
            --offload-optimizer none "${params[@]}" >$work/one.json
        jq -r --arg run "$source $model $hardware $ranks $tokens" --argjson ranks "$ranks" \
            '"\($run) \(.tokens_per_s / $ranks)"' $work/one.json >>$work/measured.txt
        jq -r --arg source "$source" --arg model "$model" --arg hardware "$hardware" \
            --argjson ranks "$ranks" --arg how "$micro x $accum | $stage, $recompute" \
            --argjson tokens "$tokens" '
            ($model | capture("layers=(?<l>[0-9]+),channels=(?<c>[0-9]+)")) as $shape |
            (.tokens_per_s / $ranks) as $planned |
            "| \($source) | \($shape.l), \($shape.c) | `\($hardware)` | \($ranks) | \($how) " +
            "| \($tokens) | \($planned | if . < 1000 then . * 10 | round / 10 else round end) " +
            "| +\(100 * ($planned / $tokens - 1) | round)% " +
            "| \(1000000 * .time.communication.exposed / .step_ms | round / 10)% |"' $work/one.json |
            sed 's/| +-/| -/'
    done
}

# Runs that were measured on four or more numbers of ranks: what is left of the first one's rate.
relative() {
    printf '| source | hardware | ranks | measured | planned |\n|---:|---|---:|---:|---:|\n'
    awk '{
            key = $1 " " $2 " " $3
            if (n[key]++ == 0) { keys[++n_keys] = key; measured[key] = $5; planned[key] = $6 }
            rows[key] = rows[key] sprintf("| %s | `%s` | %s | %.3f | %.3f |\n", $1, $3, $4,
                                          $5 / measured[key], $6 / planned[key])
        }
        END { for (i = 1; i <= n_keys; i++) if (n[keys[i]] >= 4) printf "%s", rows[keys[i]] }' $work/measured.txt
}

# ---- the document -------------------------------------------------------------------------------
# put NAME: standard input between the two lines of the document that name it.
put() {
    awk -v name="$1" -v file=/dev/stdin '
        $0 == "<!-- " name ": end -->" { is_inside = 0 }
        !is_inside { print }
        $0 == "<!-- " name " -->" {
            is_inside = 1
            while ((getline line < file) > 0)
                print line
        }' $document >$work/document.md && cp $work/document.md $document
}

for model in gpt2-xl gpt3-13b gpt3-175b; do
    weak $model >$work/table.md
    put $model <$work/table.md
done
compare >$work/table.md
put measured <$work/table.md
relative >$work/table.md
put relative <$work/table.md
draw
zr_say "Written: $document and $picture"
