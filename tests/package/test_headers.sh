#!/usr/bin/env bash
# Every public header compiles alone, as C11 and as C++17; the programs include zero/zero.h and
# no other header of the library; every symbol of the library begins with zr_.
#
# Usage: test_headers.sh SOURCE libzero.a
set -u
cd "$1" || exit 1
library=$2
failed=0

complain() {
    printf '%s\n' "$*"
    failed=1
}

for header in $(find kernels allocator offload zero -name '*.h' | sort); do
    case $header in *_internal.h | */internal.h | */host/* | */cuda/*) continue ;; esac
    grep -q 'extern "C"' "$header" || continue # of one folder only
    printf '#include "%s"\n' "$header" |
        cc -std=c11 -Wall -Wextra -Werror -I. -fsyntax-only -x c - || complain "$header: not C11"
    printf '#include "%s"\n' "$header" |
        c++ -std=c++17 -Wall -Wextra -Werror -I. -fsyntax-only -x c++ - ||
        complain "$header: not C++17"
done

others=$(grep -rnE '#include "(kernels|allocator|offload|zero)/' examples --include='*.[ch]' |
    grep -v '#include "zero/zero.h"')
[ -z "$others" ] || complain "programs include more of the library than zero/zero.h:
$others"

symbols=$(nm -g --defined-only "$library" | awk 'NF == 3 { print $3 }' | grep -v '^zr_' | sort -u)
# What the compiler adds itself: of target_clones and of the sanitizers.
symbols=$(printf '%s\n' "$symbols" | grep -vE '^(__|DW\.ref|$)')
[ -z "$symbols" ] || complain "symbols that do not begin with zr_:
$symbols"
[ "$(nm -g --defined-only "$library" | grep -c ' zr_')" -gt 10 ] || complain "no symbols in $library"

exit $failed
