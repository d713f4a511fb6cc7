#!/usr/bin/env bash
# Build everything and run every test: all of them in a Release build, then a fast subset
# under AddressSanitizer with UBSan and under ThreadSanitizer. On Debian 12 and Ubuntu 22.04
# or later it installs what is missing. The last line sums up; any failure ends with 1.
set -u
cd "$(dirname "$0")/.." || exit 1
. cmake/install.sh

passed=0 failed=0 skipped=0 broken=0
jobs=$(nproc)
# Tests wait for each other's ranks and for the drive: one more than there are cores keeps them busy.
tests_at_once=$((jobs + 1))

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
    local report=$PWD/$build/tests.xml
    rm -f "$report"
    ctest --test-dir "$build" -j"$tests_at_once" --output-on-failure --no-tests=error \
        ${label:+-L "^$label\$"} --output-junit "$report" || broken=1
    [ -f "$report" ] && add_counts "$report"
}

zr_install
zr_install_mpi
run "release" build ""
run "AddressSanitizer and UBSan" build/asan asan -DZR_SANITIZE=address,undefined -DZR_CUDA=OFF
run "ThreadSanitizer" build/tsan tsan -DZR_SANITIZE=thread -DZR_CUDA=OFF

zr_say "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$broken" -eq 0 ]
