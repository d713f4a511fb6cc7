#!/usr/bin/env bash
# Build everything and run every test: all of them in a Release build, then a fast subset
# under AddressSanitizer with UBSan and under ThreadSanitizer. On Debian 12 and Ubuntu 22.04
# or later it installs what is missing.
#
#   bash tests/run.sh [--python]
#
#   --python  first make an environment with PyTorch in build/python (tests/python.sh: 3 GB are loaded),
#             or take the one that is there, for the tests that compare with it. Where it cannot be had,
#             as without network, they are skipped. Without the option they run where ZR_PYTHON, or
#             python3, has torch.
#
# What was skipped is listed with the reason; the last line sums up. Exit code: 0, 1 when something failed,
# 2 for bad usage.
set -u
cd "$(dirname "$0")/.." || exit 1
. cmake/install.sh

with_python=false
for argument; do
    case $argument in
    --python) with_python=true ;;
    -h | --help)
        sed -n '2,/^set /s/^# \{0,1\}//p' tests/run.sh
        exit 0
        ;;
    *)
        zr_say "run.sh: $argument is unknown; --python and --help are possible" >&2
        exit 2
        ;;
    esac
done

passed=0 failed=0 skipped=0 broken=0
jobs=$(nproc)
# Tests wait for each other's ranks, for the drive and for limits of time: two more than there are cores keep
# them busy.
tests_at_once=$((jobs + 2))

# Add what a run's JUnit file says; its suite is one element with counts as attributes.
add_counts() {
    local suite total failures left_out
    suite=$(tr '\n' ' ' <"$1" | sed -n 's/.*<testsuite \([^>]*\)>.*/\1/p')
    total=$(sed -n 's/.*tests="\([0-9]*\)".*/\1/p' <<<"$suite")
    failures=$(sed -n 's/.*failures="\([0-9]*\)".*/\1/p' <<<"$suite")
    left_out=$(sed -n 's/.*skipped="\([0-9]*\)".*/\1/p' <<<"$suite")
    if [ -z "$total" ] || [ "$total" -eq 0 ]; then
        broken=1
        return
    fi
    failed=$((failed + failures))
    skipped=$((skipped + left_out))
    passed=$((passed + total - failures - left_out))
}

# List what a run's JUnit file has as skipped, with the last line that it printed: the reason.
list_skipped() {
    awk '/<testcase / { name = $0; sub(/.* name="/, "", name); sub(/".*/, "", name); reason = ""; is_skipped = 0 }
        /<skipped/ { is_skipped = 1 }
        /<system-out>/, /<\/system-out>/ {
            gsub(/<\/?system-out>/, "")
            if (/[^[:space:]]/) reason = $0
        }
        /<\/testcase>/ && is_skipped { print name ": " reason }' "$1" |
        sed 's/&lt;/</g; s/&gt;/>/g; s/&quot;/"/g; s/&amp;/\&/g'
}

# PyTorch is loaded while the build runs, in a process group of its own that ends with this script.
python_job=
begin_python() {
    $with_python || return 0
    python3 -c 'import ensurepip, venv' 2>/dev/null || zr_install_if_possible Python python3 python3-venv
    mkdir -p build
    setsid bash tests/python.sh build/python >build/python.log 2>&1 &
    python_job=$!
    trap 'kill -- "-$python_job" 2>/dev/null' EXIT
}

await_python() {
    [ -n "$python_job" ] || return 0
    kill -0 "$python_job" 2>/dev/null && zr_say "PyTorch: still being loaded into build/python"
    if wait "$python_job"; then
        export ZR_PYTHON=$PWD/build/python/bin/python
        zr_say "PyTorch: in build/python"
    else
        zr_say "PyTorch: left out: $(tail -n 1 build/python.log)"
    fi
    python_job=
    trap - EXIT
}

# run TITLE BUILD LABEL OPTION...: build and test one configuration.
run() {
    local title=$1 build=$2 label=$3
    shift 3
    zr_say "== $title ($build)"
    zr_configure . "$build" "$@"
    if ! zr_build "$build" -j"$jobs"; then
        zr_say "$title: the build failed"
        broken=1
        return
    fi
    await_python
    local report=$PWD/$build/tests.xml
    rm -f "$report"
    ctest --test-dir "$build" -j"$tests_at_once" --output-on-failure --no-tests=error \
        ${label:+-L "^$label\$"} --output-junit "$report" || broken=1
    [ -f "$report" ] || return
    list_skipped "$report"
    add_counts "$report"
}

zr_install
zr_install_mpi
begin_python
# Kernels are compiled for one kind of GPU here, and as PTX for the oldest (tests/ptx/); a build by itself
# has all kinds that are known.
run "release" build "" -DZR_CUDA_ARCHITECTURES=90
run "AddressSanitizer and UBSan" build/asan asan -DZR_SANITIZE=address,undefined -DZR_CUDA=OFF
run "ThreadSanitizer" build/tsan tsan -DZR_SANITIZE=thread -DZR_CUDA=OFF

zr_say "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$broken" -eq 0 ]
