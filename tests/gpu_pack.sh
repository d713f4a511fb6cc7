#!/usr/bin/env bash
# What tests/gpu.sh needs on a machine with a GPU that lacks packages and cannot fetch them: collected here, carried
# there. Debian 12 or Ubuntu 22.04 or later, with the CUDA toolkit, and network for the packages.
#
#   bash tests/gpu_pack.sh [--architecture N] [--without-packages] FOLDER
#
#   --architecture     compute capability of the GPU there (default: 90, as of H100 and H200)
#   --without-packages collect no Debian packages: programs alone
#
# FOLDER/programs has the programs that are run there, with the libraries that they were linked with;
# FOLDER/packages the Debian packages that a build needs. There:
#
#   bash tests/gpu.sh --programs FOLDER/programs --packages FOLDER/packages
#
# Exit code: 0, 1 when something failed, 2 for bad usage.
set -u
cd "$(dirname "$0")/.." || exit 1
. cmake/install.sh

architecture=90 with_packages=true folder=''
while [ $# -gt 0 ]; do
    case $1 in
    --architecture) architecture=${2:?--architecture needs a number} && shift ;;
    --without-packages) with_packages=false ;;
    -*)
        echo "gpu_pack.sh: $1 is unknown; --architecture N, --without-packages and FOLDER are possible" >&2
        exit 2
        ;;
    *) folder=$1 ;;
    esac
    shift
done
[ -n "$folder" ] || {
    echo "gpu_pack.sh: say into which FOLDER; it is made" >&2
    exit 2
}
build=build/gpu-pack

build_programs() {
    zr_configure . "$build" -DZR_CUDA=ON "-DZR_CUDA_ARCHITECTURES=$architecture" || return
    grep -q '^ZR_CUDA_REASON:[A-Z]*=built' "$build/CMakeCache.txt" || {
        echo "no CUDA toolkit: $(sed -n 's/^ZR_CUDA_REASON:[A-Z]*=//p' "$build/CMakeCache.txt")" >&2
        return 1
    }
    zr_build "$build" zero-train zero-bench zero-plan zero-capacity gpu_suite
}

# The tests whose names end in _cuda, as CTest reads them, relative to where the file lies.
write_tests() {
    grep -E '^(add_test|set_tests_properties)\([^ ]*_cuda[^a-z0-9_]' "$build/tests/CTestTestfile.cmake" |
        sed "s|$(realpath "$build")|\${CMAKE_CURRENT_LIST_DIR}|g; s|  *_BACKTRACE_TRIPLES \"[^\"]*\"||"
}

collect_programs() {
    local program tests
    rm -rf "$folder/programs"
    mkdir -p "$folder/programs/bin" "$folder/programs/tests" "$folder/programs/lib" || return
    for program in zero-train zero-bench zero-plan zero-capacity; do
        strip -o "$folder/programs/bin/$program" "$build/bin/$program" || return
    done
    write_tests >"$folder/programs/CTestTestfile.cmake"
    tests=$(sed -n 's|^add_test([^ ]* "${CMAKE_CURRENT_LIST_DIR}/tests/\([a-z0-9_]*\)".*|\1|p' "$folder/programs/CTestTestfile.cmake" | sort -u)
    [ -n "$tests" ] || return
    for program in $tests; do
        strip -o "$folder/programs/tests/$program" "$build/tests/$program" || return
    done
    ldd "$folder"/programs/bin/* "$folder"/programs/tests/* |
        awk '/jansson|xxhash|uring|sodium|mimalloc|dnnl|cmocka|gomp|OpenCL/ { print $3 }' | sort -u |
        xargs -r cp -L -t "$folder/programs/lib"
}

collect_packages() {
    local packages
    $with_packages || return 0
    # Without the compiler and CMake, which a machine with the CUDA toolkit has; with what these are made of.
    # shellcheck disable=SC2086
    packages=$(for package in $zr_packages; do
        case $package in build-essential | cmake | ninja-build | pkg-config) continue ;; esac
        echo "$package"
        apt-cache depends "$package" | sed -n 's/^ *Depends: \(lib[a-z0-9.-]*\)$/\1/p'
    done | grep -v '^libc6\|^libgcc\|^libstdc' | sort -u)
    packages+=" ocl-icd-libopencl1 pkgconf pkgconf-bin libpkgconf3"
    rm -rf "$folder/packages"
    mkdir -p "$folder/packages" || return
    # shellcheck disable=SC2086
    (cd "$folder/packages" && apt-get download -qq $packages)
}

build_programs && collect_programs && collect_packages || zr_die "gpu_pack.sh: failed; $folder is not whole"
zr_say "$folder: $(du -sh "$folder" | cut -f1); there: bash tests/gpu.sh --programs $folder/programs$(
    $with_packages && echo " --packages $folder/packages")"
