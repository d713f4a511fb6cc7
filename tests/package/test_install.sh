#!/usr/bin/env bash
# What is installed can be used: the program in examples/library is built with the pkg-config file alone,
# and by CMake's package, and learns the same at every stage, with ranks that are threads, or processes; all programs
# are there, with what they look for beside them.
#
# Usage: test_install.sh BUILD [MPIRUN]   (MPIRUN: that of Open MPI, where its module is installed)
set -eu
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$1" --prefix "$prefix" >/dev/null
example=$prefix/share/libzero/examples/library
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name libzero.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046
cc -std=c11 -Wall -Werror "$example/regression.c" -o "$prefix/regression" \
    $(pkg-config --static --cflags --libs libzero)
(
    unset PKG_CONFIG_PATH # the package finds its own file
    cmake -S "$example" -B "$prefix/user/build" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
    cmake --build "$prefix/user/build" >/dev/null
)
for stage in 0 1 2 3; do
    printf '{"zero_optimization": {"stage": %d}, "gradient_clipping": 1.0}' $stage >"$prefix/ds.json"
    "$prefix/regression" 3 "$prefix/ds.json" >"$prefix/stage-$stage"
    diff "$prefix/stage-0" "$prefix/stage-$stage"
done
"$prefix/user/build/regression" 3 "$prefix/ds.json" | diff "$prefix/stage-0" -
awk '/^step/ { sub(/^.* /, ""); last = $0; if (!first) first = last }
    END { exit !(first > 1 && last < first / 100) }' "$prefix/stage-0" || {
    echo "it did not learn:"
    cat "$prefix/stage-0"
    exit 1
}
grep -q '^weights [0-9a-f]\{16\}$' "$prefix/stage-0"
for program in zero-train zero-plan zero-capacity zero-bench zero-checkpoint; do
    "$prefix/bin/$program" --version
done
# Each kind of MPI that was found has two modules: the library's, and that of zero-bench.
for module in "$prefix"/lib*/libzero/libzero-*.so "$prefix"/lib/*/libzero/libzero-*.so; do
    [ -e "$module" ] || continue
    kind=${module##*-}
    ls "${module%/*}/libzero-$kind" "${module%/*}/libzero-bench-$kind" >/dev/null
done
# A user's program, which lies anywhere, finds its module.
[ $# -lt 2 ] || "$2" --allow-run-as-root --oversubscribe -n 3 --bind-to none \
    "$prefix/user/build/regression" 1 "$prefix/ds.json" | diff "$prefix/stage-0" -
