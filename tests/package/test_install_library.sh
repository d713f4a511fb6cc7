#!/usr/bin/env bash
# What tests/run.sh and examples/quickstart.sh do before they build: on which systems they
# install, what they find missing, and that they stop with a list where they cannot install.
set -u
cd "$(dirname "$0")/../.." || exit 1
. cmake/install.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

expect() { # RESULT TEXT: whether the os-release TEXT is of a supported system
    printf '%b' "$2" >"$folder/os-release"
    zr_is_supported "$folder/os-release"
    [ $? -eq "$1" ] || {
        printf 'wrong for %s\n' "$2"
        failed=1
    }
}
expect 0 'ID=debian\nVERSION_ID="12"\n'
expect 0 'ID=debian\nVERSION_ID="13"\n'
expect 0 'ID=ubuntu\nVERSION_ID="22.04"\n'
expect 0 'ID=ubuntu\nVERSION_ID="24.10"\n'
expect 1 'ID=debian\nVERSION_ID="11"\n'
expect 1 'ID=debian\n' # testing has no number
expect 1 'ID=ubuntu\nVERSION_ID="20.04"\n'
expect 1 'ID=fedora\nVERSION_ID=41\n'
expect 1 ''
zr_is_supported "$folder/absent" && failed=1

# Elsewhere: with nothing in PATH, everything is missing, is named, and nothing is built.
printf 'ID=other\n' >"$folder/os-release"
mkdir "$folder/bin"
for tool in printf cat; do ln -s "$(type -P $tool)" "$folder/bin/$tool"; done
said=$(PATH=$folder/bin ZR_OS_RELEASE=$folder/os-release; zr_install gnuplot-nox 2>&1)
[ $? -eq 1 ] || failed=1
for name in cmake ninja pkg-config gnuplot libdnnl-dev; do
    case $said in *"$name"*) ;; *)
        printf '%s is not in: %s\n' "$name" "$said"
        failed=1
        ;;
    esac
done

# On a known system: a package that does not exist is missing.
if command -v dpkg-query >/dev/null; then
    [ "$(zr_missing_packages libzero-no-such-package dpkg)" = "libzero-no-such-package " ] || failed=1
fi
exit $failed
