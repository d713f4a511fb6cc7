#!/usr/bin/env bash
# What is installed can be used: the program in examples/library is built with the pkg-config file alone,
# and by CMake's package, and learns the same at every stage, with ranks that are threads, or processes;
# the programs in tests/package/outside are built on each library, static and shared; all programs
# are there, with what they look for beside them. Public headers are installed, and no others.
#
# Usage: test_install.sh BUILD MPIRUN HEADER...   (MPIRUN: that of Open MPI, where its module is
# installed, or empty; HEADER: what is public)
set -eu
build=$1
mpirun=$2
shift 2
outside=$(cd "$(dirname "$0")/outside" && pwd)
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$build" --prefix "$prefix" >/dev/null
example=$prefix/share/libzero/examples/library
libraries=$(dirname "$(find "$prefix" -name libzero.a)")
PKG_CONFIG_PATH=$libraries/pkgconfig
export PKG_CONFIG_PATH
unset LD_LIBRARY_PATH # programs find the shared libraries by themselves

printf '%s\n' "$@" | sed 's|^examples/||' | sort >"$prefix/public"
(cd "$prefix/include/libzero" && find . -name '*' -type f | sed 's|^\./||' | sort) |
    diff "$prefix/public" - || {
    echo "what is installed in include/ is not the list of public headers"
    exit 1
}

compile() { # SOURCES PROGRAM PACKAGE
    # shellcheck disable=SC2046,SC2086
    cc -std=c11 -Wall -Werror $1 -o "$prefix/$2" $(pkg-config --cflags --libs "$3") -lm
}
compile "$example/regression.c" regression libzero
(
    unset PKG_CONFIG_PATH # the package finds its own file
    for source in "$example" "$outside"; do
        cmake -S "$source" -B "$prefix/user/${source##*/}" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
        cmake --build "$prefix/user/${source##*/}" >/dev/null
    done
    # A component that nobody has is said so.
    mkdir "$prefix/user/none"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.22)' 'project(none C)' \
        'find_package(libzero 0.1 REQUIRED COMPONENTS nn no_such)' >"$prefix/user/none/CMakeLists.txt"
    if cmake -S "$prefix/user/none" -B "$prefix/user/none" -DCMAKE_PREFIX_PATH="$prefix" \
        >"$prefix/said" 2>&1 || ! grep -q 'no component no_such' "$prefix/said"; then
        cat "$prefix/said"
        exit 1
    fi
)
for stage in 0 1 2 3; do
    printf '{"zero_optimization": {"stage": %d}, "gradient_clipping": 1.0}' $stage >"$prefix/ds.json"
    "$prefix/regression" 3 "$prefix/ds.json" >"$prefix/stage-$stage"
    diff "$prefix/stage-0" "$prefix/stage-$stage"
done
"$prefix/user/library/regression" 3 "$prefix/ds.json" | diff "$prefix/stage-0" -
awk '/^step/ { sub(/^.* /, ""); last = $0; if (!first) first = last }
    END { exit !(first > 1 && last < first / 100) }' "$prefix/stage-0" || {
    echo "it did not learn:"
    cat "$prefix/stage-0"
    exit 1
}
grep -q '^weights [0-9a-f]\{16\}$' "$prefix/stage-0"

# A store of the program's own, on the core alone; a transformer's kernel; a model of the library's.
compile "$outside/store.c $outside/inverted_store.c" store libzero
compile "$outside/gelu.c" gelu libzero_nn
compile "$outside/gpt.c" gpt libzero_models
"$prefix/store"
"$prefix/gelu"
"$prefix/gpt" 0 3 >"$prefix/gpt-0"
grep -q '^weights [0-9a-f]\{16\}$' "$prefix/gpt-0"
for stage in 1 2 3; do
    "$prefix/gpt" $stage 3 | diff "$prefix/gpt-0" -
done
llama=llama,layers=2,channels=32,heads=4,kv-heads=2,wide=48,seq=16,vocab=11
"$prefix/gpt" 0 3 $llama >"$prefix/llama-0"
"$prefix/gpt" 3 3 $llama | diff "$prefix/llama-0" -

# A model of blocks, an optimizer and a store of the program's own: planned to the byte, the same at every
# stage, and after each kill. The example's blocks are planned to the byte, too.
compile "$outside/whole.c $outside/own_model.c $outside/inverted_store.c" whole libzero
"$prefix/whole" "$prefix/run-0" 0 3 >"$prefix/whole-0"
grep -q '^weights [0-9a-f]\{16\}$' "$prefix/whole-0"
for stage in 1 2 3; do
    "$prefix/whole" "$prefix/run-$stage" $stage 3 | diff "$prefix/whole-0" -
done
for step in 2 5 8; do
    if "$prefix/whole" "$prefix/killed-$step" 2 3 $step 2>/dev/null; then
        echo "step $step did not kill it"
        exit 1
    fi
    "$prefix/whole" "$prefix/killed-$step" 3 3 | diff "$prefix/whole-0" -
done
compile "$example/blocks.c" blocks libzero
"$prefix/blocks" 3 "$prefix/ds.json" >"$prefix/said"
[ "$(sed -n 's/^planned: //p' "$prefix/said")" = "$(sed -n 's/^device memory: //p' "$prefix/said")" ]
grep -q '^step 300: loss 0\.0' "$prefix/said"
# It goes on from its checkpoints to the same weights, with other ranks as well.
"$prefix/blocks" 3 "$prefix/ds.json" "$prefix/blocks-run" | diff <(tail -n 1 "$prefix/said") <(tail -n 1)
rm -r "$prefix/blocks-run/step-00000300"
"$prefix/blocks" 3 "$prefix/ds.json" "$prefix/blocks-run" >"$prefix/again"
if grep '^step 200' "$prefix/again"; then
    echo "it began again instead of going on"
    exit 1
fi
diff <(tail -n 1 "$prefix/said") <(tail -n 1 "$prefix/again")
"$prefix/user/outside/store" >/dev/null
"$prefix/user/outside/whole" "$prefix/run-cmake" 3 3 | diff "$prefix/whole-0" -
"$prefix/user/outside/gelu"
"$prefix/user/outside/gpt" 3 3 | diff "$prefix/gpt-0" -
for program in store regression; do
    if readelf -dW "$prefix/$program" | grep -iE 'NEEDED.*(dnnl|gomp|libzero)'; then
        echo "$program uses the core alone, statically, and needs these libraries"
        exit 1
    fi
done
readelf -dW "$prefix/gelu" | grep -q 'NEEDED.*dnnl' # so the above would be seen
if [ -e "$libraries/libzero.so" ]; then
    compile "$outside/store.c $outside/inverted_store.c" store-shared libzero-shared
    compile "$outside/gelu.c" gelu-shared libzero_nn-shared
    compile "$outside/gpt.c" gpt-shared libzero_models-shared
    compile "$example/regression.c" regression-shared libzero-shared
    readelf -dW "$prefix/gelu-shared" | grep -q 'NEEDED.*libzero_nn\.so\.[0-9]'
    "$prefix/store-shared" >/dev/null
    "$prefix/gelu-shared"
    "$prefix/user/outside/store-shared" >/dev/null
    "$prefix/user/outside/whole-shared" "$prefix/run-shared" 1 3 | diff "$prefix/whole-0" -
    "$prefix/user/outside/gelu-shared"
    "$prefix/gpt-shared" 2 3 | diff "$prefix/gpt-0" -
    "$prefix/user/outside/gpt-shared" 1 3 | diff "$prefix/gpt-0" -
    "$prefix/regression-shared" 3 "$prefix/ds.json" | diff "$prefix/stage-0" -
    # So does a user's program that CMake has installed.
    cmake --install "$prefix/user/outside" --prefix "$prefix/moved" >/dev/null
    "$prefix/moved/bin/gelu-shared"
fi
for program in zero-train zero-plan zero-capacity zero-bench zero-checkpoint; do
    "$prefix/bin/$program" --version
done
# A user's program keeps its malloc, and zero-train's is mimalloc's where the library has it.
malloc_of() { LD_BIND_NOW=1 LD_DEBUG=bindings "$@" 2>&1 >/dev/null | sed -n "s/.*binding file .* to \([^ ]*\) .*\`malloc'.*/\1/p"; }
for program in store store-shared user/outside/store user/outside/store-shared; do
    [ -e "$prefix/$program" ] || continue
    malloc_of "$prefix/$program" >"$prefix/said"
    if ! grep -q '/libc\.so' "$prefix/said" || grep -q mimalloc "$prefix/said"; then
        echo "the malloc of $program is not the C library's"
        exit 1
    fi
done
if readelf -dW "$prefix/bin/zero-train" | grep -q 'NEEDED.*mimalloc'; then
    malloc_of "$prefix/bin/zero-train" --version >"$prefix/said"
    if ! grep -q mimalloc "$prefix/said" || grep -q '/libc\.so' "$prefix/said"; then
        echo "the malloc of zero-train is not mimalloc's"
        exit 1
    fi
fi
# Each kind of MPI that was found has two modules: the library's, and that of zero-bench.
for module in "$libraries"/libzero/libzero-*.so; do
    [ -e "$module" ] || continue
    kind=${module##*-}
    ls "${module%/*}/libzero-$kind" "${module%/*}/libzero-bench-$kind" >/dev/null
done
# A user's program, which lies anywhere, finds its module, and so does the shared library.
if [ -n "$mpirun" ]; then
    for program in user/library/regression regression-shared; do
        [ -e "$prefix/$program" ] || continue
        "$mpirun" --allow-run-as-root --oversubscribe -n 3 --bind-to none "$prefix/$program" 1 "$prefix/ds.json" | diff "$prefix/stage-0" -
    done
fi
