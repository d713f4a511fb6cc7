#!/usr/bin/env bash
# The public line. Public headers are those of one list (cmake/ZrHeaders.cmake): each compiles alone,
# as C11 and as C++17, where nothing of the tree is but the headers of the list. Includes of the
# library point down its layers; the programs and models include zero/zero.h and nothing else of it.
# Libraries define, and shared ones export, only what begins with zr_; oneDNN is libzero_nn's alone.
#
# Usage: test_headers.sh SOURCE BUILD HEADER...
set -u
cd "$1" || exit 1
build=$2
shift 2
public=$(mktemp -d)
trap 'rm -rf "$public"' EXIT
failed=0

complain() {
    printf '%s\n' "$*"
    failed=1
}

for header; do
    installed=$public/${header#examples/}
    mkdir -p "${installed%/*}"
    cp "$header" "$installed" || complain "$header: no such file"
done
[ $# -gt 15 ] || complain "only $# headers are public"
for header; do
    header=${header#examples/}
    printf '#include "%s"\n' "$header" |
        cc -std=c11 -Wall -Wextra -Werror -I"$public" -fsyntax-only -x c - ||
        complain "$header: not C11 by itself, or it includes an internal header"
    printf '#include "%s"\n' "$header" |
        c++ -std=c++17 -Wall -Wextra -Werror -I"$public" -fsyntax-only -x c++ - ||
        complain "$header: not C++17 by itself"
done
# A program gets everything but what is for those who implement a backend.
included=$(printf '#include "zero/zero.h"\n' | cc -std=c11 -I"$public" -M -x c - 2>/dev/null)
for header; do
    case $header in zero/zero.h | */*_backend.h | kernels/device_trace.h | examples/models/*) continue ;; esac
    printf '%s\n' "$included" | grep -q "/$header" ||
        complain "$header: not included by zero/zero.h"
done

# Beside public headers, internal ones say what they are by their names.
unnamed=$(
    folders=$(for header; do printf '%s\n' "${header%/*}"; done | sort -u)
    for folder in $folders; do
        for header in "$folder"/*.h; do
            case $header in *_math.h | *internal.h) ;; *) [ -e "$public/${header#examples/}" ] || echo "$header" ;; esac
        done
    done
)
[ -z "$unnamed" ] || complain "neither public (cmake/ZrHeaders.cmake) nor named *_internal.h:
$unnamed"

upwards() { # FOLDER LAYERS: what FOLDER includes of layers above it, or beside it
    grep -rnE "#include \"($2)/" "$1" --include='*.[ch]' --include='*.cu' --include='*.cuh'
}
above=$(
    upwards kernels 'allocator|offload|zero|examples'
    upwards allocator 'offload|zero|examples|kernels/nn'
    upwards offload 'zero|examples|kernels/nn'
    upwards zero 'examples|kernels/nn' | grep -v '^zero/zero.h:'
    upwards kernels 'kernels/nn' | grep -v '^kernels/nn/'
)
[ -z "$above" ] || complain "includes that point up the layers:
$above"

others=$(grep -rnE '#include ["<](kernels|allocator|offload|zero)/' examples --include='*.[ch]' |
    grep -vE '#include ["<]zero/zero\.h[">]|^examples/bench/step_apart\.c:.*offload/store_backend\.h') # its own store
[ -z "$others" ] || complain "programs include more of the library than zero/zero.h:
$others"

more=$(grep -rn '#include "' examples/models | grep -vE '"(zero/zero\.h|models/[^"]*)"')
[ -z "$more" ] || complain "libzero_models includes more than zero/zero.h and its own:
$more"

# What the compiler adds itself: of target_clones and of the sanitizers.
not_ours() { awk 'NF == 3 { print $3 }' | grep -vE '^(zr_|__|DW\.ref|$)' | sort -u; }
for library in libzero libzero_nn libzero_models; do
    symbols=$(nm -g --defined-only "$build/$library.a" | not_ours)
    [ -z "$symbols" ] || complain "$library.a: symbols that do not begin with zr_:
$symbols"
    [ "$(nm -g --defined-only "$build/$library.a" | grep -c ' zr_')" -gt 10 ] ||
        complain "no symbols in $library.a"
done
nm -u "$build/libzero.a" | grep -E ' (dnnl|omp|GOMP)_' && complain "libzero.a wants oneDNN, or OpenMP"

# Sanitized builds have no shared libraries.
if [ -e "$build/libzero.so" ]; then
    for library in libzero libzero_nn libzero_models; do
        about=$(readelf -dW "$build/$library.so")
        printf '%s\n' "$about" | grep -q "SONAME.*\[$library\.so\.[0-9]*\]" ||
            complain "$library.so has no SONAME with a version"
        exported=$(nm -D --defined-only "$build/$library.so" | awk '{ print $3 }')
        symbols=$(printf '%s\n' "$exported" | grep -v '^zr_')
        [ -z "$symbols" ] || complain "$library.so exports what does not begin with zr_:
$symbols"
    done
    nm -D --defined-only "$build/libzero.so" | grep -q ' zr_runtime_step$' ||
        complain "libzero.so does not export zr_runtime_step"
    nm -D --defined-only "$build/libzero_models.so" | grep -q ' zr_gpt_create$' ||
        complain "libzero_models.so does not export zr_gpt_create"
    nm -D --defined-only "$build/libzero_nn.so" | grep -q ' zr_runtime_step$' &&
        complain "libzero_nn.so has a copy of libzero"
    nm -D --defined-only "$build/libzero_models.so" | grep -qE ' zr_(runtime_step|nn_gelu)$' &&
        complain "libzero_models.so has a copy of libzero, or of libzero_nn"
    readelf -dW "$build/libzero.so" | grep -iE 'NEEDED.*(dnnl|gomp)' &&
        complain "libzero.so needs oneDNN, or OpenMP"
    readelf -dW "$build/libzero_nn.so" | grep -q 'NEEDED.*dnnl' ||
        complain "libzero_nn.so does not name oneDNN"
fi
exit $failed
