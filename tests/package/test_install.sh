#!/usr/bin/env bash
# What is installed can be used: a program is built with the pkg-config file alone, and runs.
#
# Usage: test_install.sh BUILD
set -eu
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$1" --prefix "$prefix" >/dev/null
cat >"$prefix/user.c" <<'PROGRAM'
#include <stdio.h>
#include <zero/zero.h>
int main(void) {
    puts(zr_version());
    return zr_status_name(ZR_OK)[0] != 'Z';
}
PROGRAM
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name libzero.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046
cc -std=c11 -Wall -Werror "$prefix/user.c" -o "$prefix/user" \
    $(pkg-config --define-variable=prefix="$prefix" --static --cflags --libs libzero)
"$prefix/user"
"$(find "$prefix" -name zero-train)" --version
