#!/usr/bin/env bash
# A build folder that is configured again, as every script does that builds, takes up what was installed
# since, at another place, too, and does without what was removed. In a folder of its own, with an MPI and
# a oneDNN that are files of no content, as nothing is built, and with CUDA where this machine has it.
set -eu
cd "$(dirname "$0")/../.."
. cmake/install.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/pc"
for library in jansson libxxhash liburing libsodium; do
    cp "$(pkg-config --variable=pcfiledir $library)/$library.pc" "$work/pc"
done
unset PKG_CONFIG_PATH
export PKG_CONFIG_LIBDIR=$work/pc

fail() {
    zr_say "$*"
    exit 1
}

install_mpi() { # FOLDER
    mkdir -p "$1"
    : >"$1/libfake-mpi.so"
    printf 'Name: fake\nDescription: fake\nVersion: 9.8.7\nLibs: -L%s -lfake-mpi\n' "$1" >"$work/pc/ompi-c.pc"
}

install_onednn() { # FOLDER
    mkdir -p "$1/lib" "$1/include/oneapi/dnnl"
    : >"$1/lib/libdnnl.so"
    : >"$1/include/oneapi/dnnl/dnnl.h"
}

# configure WHEN EXPECTED [OPTION...]: the build folder, again; what it says has to have EXPECTED in it.
configure() {
    local when=$1 expected=$2 said
    shift 2
    said=$(zr_configure . "$work/build" -DZR_TESTS=OFF "$@") || fail "$when: $said"
    [[ $said = *"$expected"* ]] || fail "$when: not \"$expected\" but: $said"
}

# uses FOLDER: whether what is built would use something in there.
uses() { grep -q "$work/$1/" "$work/build/build.ninja"; }

install_onednn "$work/onednn"
options=(-DZR_CUDA=OFF "-DCMAKE_PREFIX_PATH=$work/onednn")
configure "without MPI" "MPI: left out: neither" "${options[@]}"
uses onednn || fail "the oneDNN in CMAKE_PREFIX_PATH is not used"
install_mpi "$work/first"
configure "MPI installed" "MPI: built with openmpi 9.8.7" "${options[@]}"
uses first || fail "the MPI that was installed is not used"
uses onednn || fail "a oneDNN that is there still is used no more"
rm -r "$work/first" "$work/onednn"
install_mpi "$work/second"
configure "MPI at another place, oneDNN removed" "MPI: built with openmpi 9.8.7"
uses first && fail "an MPI that was removed is used"
uses second || fail "the MPI at another place is not used"
uses onednn && fail "a oneDNN that was removed is used"
rm -r "$work/second" "$work/pc/ompi-c.pc"
configure "MPI removed" "MPI: left out: neither"
uses second && fail "an MPI that was removed is used"
configure "MPI refused" "MPI: left out: -DZR_MPI=OFF" -DZR_MPI=OFF

# Without a transformer's kernels oneDNN is not even looked for, and what would need it is left out.
said=$(zr_configure . "$work/core" -DZR_CUDA=OFF -DZR_NN=OFF -DCMAKE_DISABLE_FIND_PACKAGE_OneDNN=ON) || fail "-DZR_NN=OFF: $said"
targets=$(ninja -C "$work/core" -t targets all)
for target in libzero.a libzero.so install; do
    [[ $targets = *"$target:"* ]] || fail "-DZR_NN=OFF: there is no $target"
done
[[ $targets = *zero_nn* || $targets = *zero-train* ]] && fail "-DZR_NN=OFF builds what needs oneDNN"
grep -qi dnnl "$work/core/build.ninja" && fail "-DZR_NN=OFF uses oneDNN"
grep -qE 'zero_nn|zero-train' "$work/core/cmake_install.cmake" && fail "-DZR_NN=OFF installs what it does not build"

# CUDA: not found at first, then by a compiler that is removed.
nvcc=$(PATH=$PATH:${CUDA_PATH:-/usr/local/cuda}/bin type -P nvcc) || {
    zr_say "NOT CHECKED: CUDA, for there is no nvcc"
    exit 0
}
printf '#!/bin/sh\nexec "%s" "$@"\n' "$nvcc" >"$work/nvcc"
chmod +x "$work/nvcc"
configure "no CUDA asked for" "CUDA parts: left out: -DZR_CUDA=OFF" -DCMAKE_CUDA_COMPILER:FILEPATH=NOTFOUND
CUDACXX=$work/nvcc configure "CUDA installed" "CUDA parts: built with $work/nvcc" -DZR_CUDA=ON
rm "$work/nvcc"
CUDACXX=$nvcc configure "CUDA at another place" "CUDA parts: built with $nvcc"
