#!/usr/bin/env bash
# Train the same small GPT at ZeRO stages 0 to 3 on 4 ranks of this machine, under one budget
# of device memory per rank: stage 0 does not fit, stage 3 does. Prints a table of planned and measured
# peak memory, step time and loss, and draws a figure (build/quickstart/quickstart.png).
# Installs missing packages on Debian 12 and Ubuntu 22.04 or later (root or sudo), builds (some
# minutes on two cores) and trains for 1 to 2 minutes; a second run builds nothing.
#
#   bash examples/quickstart.sh
set -u
case ${1-} in
"") ;;
-h | --help)
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
*)
    echo "quickstart.sh: unknown argument: $1; allowed: none, or --help" >&2
    exit 2
    ;;
esac
trap 'exit 130' INT # zero-train ends by itself, with a report, and would only be the first to
cd "$(dirname "$0")/.." || exit 1
. cmake/install.sh

build=build
work=$build/quickstart
picture=$work/quickstart.png
ranks=4
budget_mib=48
steps=50
model=layers=6,channels=256,heads=8,seq=128,vocab=256

# ---- build ------------------------------------------------------------------------------------
more_packages="jq"
command -v gnuplot >/dev/null || more_packages="$more_packages gnuplot-nox"
# shellcheck disable=SC2086
zr_install $more_packages
zr_configure . $build
zr_build $build zero-train || zr_die "the build failed"
mkdir -p $work

# ---- data: English text that is on every such machine -------------------------------------------
data=/usr/share/common-licenses
[ -d $data ] || data="kernels allocator zero examples"

# ---- train --------------------------------------------------------------------------------------
# train STAGE STEPS NAME OPTION...: what --json prints is in NAME.json; 1 when the run failed.
train() {
    local stage=$1 n_steps=$2 name=$3
    shift 3
    # shellcheck disable=SC2086
    $build/bin/zero-train --model $model --data $data --ranks $ranks --stage "$stage" \
        --steps "$n_steps" --micro-batch 2 --recompute unit --lr 1e-3 --warmup 15 --clip 1 \
        --json --quiet --log "$work/$name.jsonl" "$@" >"$work/$name.json" 2>"$work/$name.txt"
    local code=$?
    [ $code -le 1 ] || zr_die "stage $stage: $(cat "$work/$name.txt")"
    return $code
}

field() { jq -r "$2" "$work/$1.json"; }
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f", bytes / 1048576 }'; }

row="%-6s %-14s %12s %12s %9s %11s %10s\n"
zr_say "
$model, $ranks ranks, fp32, $budget_mib MiB of device memory per rank
(planned and measured: peak device memory per rank in MiB; for a stage that is out of memory, what it
needs without the budget)
"
# shellcheck disable=SC2059
table=$(printf "$row" stage result planned measured "step ms" "first loss" "last loss")
zr_say "$table"
rm -f $work/peaks.txt
for stage in 0 1 2 3; do
    peak=.peak_bytes.device.reserved
    planned=.planned_peak_bytes.device.reserved
    if train $stage $steps "stage-$stage" --device-memory ${budget_mib}MiB; then
        name=stage-$stage
        # shellcheck disable=SC2059
        line=$(printf "$row" $stage trained "$(mib "$(field $name $planned)")" \
            "$(mib "$(field $name $peak)")" "$(field $name '.step_ms|round')" \
            "$(field $name '.loss.first*1000|round/1000')" \
            "$(field $name '.loss.last*1000|round/1000')")
    else
        [ "$(field "stage-$stage" .error)" = ZR_ERR_BUDGET ] ||
            zr_die "stage $stage: $(cat "$work/stage-$stage.txt")"
        name=needed-$stage # what it would have taken: three steps without the budget
        train $stage 3 $name --warmup 1 || zr_die "stage $stage: $(cat "$work/$name.txt")"
        # shellcheck disable=SC2059
        line=$(printf "$row" $stage "out of memory" "$(mib "$(field "stage-$stage" $planned)")" \
            "$(mib "$(field $name $peak)")" - - -)
    fi
    zr_say "$line"
    table="$table
$line"
    # What is live at the peak, and what is reserved alone: together they are what the budget limits.
    jq -r "[\"$stage\", ((.at_peak_bytes.device | .parameters, .gradients, .optimizer_state,
        .gathered_parameters + .gradient_buckets, .activations + .workspace + .staging + .data + .other),
        (.peak_bytes.device | .reserved - .live)) / 1048576] | @tsv" \
        "$work/$name.json" >>$work/peaks.txt
done
printf '%s\n' "$table" >$work/table.txt

# ---- draw ---------------------------------------------------------------------------------------
curves=
for stage in 0 1 2 3; do
    rm -f "$work/loss-$stage.txt"
    [ "$(field "stage-$stage" .result)" = trained ] || continue
    jq -r '[.step, .loss] | @tsv' "$work/stage-$stage.jsonl" >"$work/loss-$stage.txt"
    curves="$curves '$work/loss-$stage.txt' with lines linewidth $((2 * (4 - stage))) title 'stage $stage',"
done
terminal="pngcairo size 900,420 font 'sans,10'"
[ -n "$(fc-list 2>/dev/null | head -n 1)" ] || terminal="png medium size 900,420"
gnuplot <<PLOT || zr_die "gnuplot could not draw $picture"
set terminal $terminal
set output '$picture'
set multiplot layout 1,2
set title 'peak device memory, MiB per rank ($ranks ranks)'
set style data histograms
set style histogram rowstacked
set style fill solid 0.8 border -1
set boxwidth 0.6
set yrange [0:*]
set label 'budget, $budget_mib MiB' at graph 0.98, first $budget_mib right offset 0,0.6
set key outside below reverse Left samplen 2 maxrows 3
plot '$work/peaks.txt' using 2:xtic('stage '.strcol(1)) title 'parameters', '' using 3 title 'gradients', \
    '' using 4 title 'optimizer state', '' using 5 title 'gathered parameters and gradient buckets', \
    '' using 6 title 'activations and other', '' using 7 title 'reserved alone', \
    $budget_mib with lines linewidth 2 dashtype 2 linecolor 'black' notitle
unset label
set title 'loss'
set style data lines
set xlabel 'step'
set yrange [*:*]
set key inside top right
plot $curves 1/0 notitle
unset multiplot
PLOT

zr_say "
The table is in $work/table.txt, the picture in $picture"
