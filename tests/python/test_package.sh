#!/usr/bin/env bash
# `pip install .`: the sources distribution has what the wheel is built of, the wheel is one for every Python, links no
# torch, and works where it is installed. Without CUDA and optimization, which would only make it longer.
#
# Usage: test_package.sh SOURCE LAYOUTS; ZR_PYTHON, or python3, needs scikit-build-core. 77: it has none.
set -u
cd "$1" || exit 1
layouts=$2
python=${ZR_PYTHON:-python3}
"$python" -c 'import pip, scikit_build_core' 2>/dev/null || {
    echo "skipped: $python has no scikit-build-core"
    exit 77
}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

die() {
    echo "$*"
    exit 1
}

"$python" -c "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])" "$work" \
    >"$work/said" 2>&1 || die "no sources distribution: $(cat "$work/said")"
tar -xzf "$work"/libzero-*.tar.gz -C "$work" && mv "$work"/libzero-*/ "$work/source" || die "it cannot be unpacked"
"$python" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --no-index -w "$work" \
    -Ccmake.define.ZR_CUDA=OFF -Ccmake.build-type=Debug "$work/source" >"$work/said" 2>&1 || die "no wheel: $(tail -n 40 "$work/said")"
wheel=$(echo "$work"/libzero-*-py3-none-linux_*.whl)
[ -f "$wheel" ] || die "the wheel is not for every Python: $(ls "$work")"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index --target "$work/site" "$wheel" \
    >"$work/said" 2>&1 || die "it cannot be installed: $(cat "$work/said")"
for library in zero zero_nn zero_models; do
    needed=$(ldd "$work/site/libzero/lib/lib$library.so.0") || die "lib$library.so.0 is missing: $(find "$work/site")"
    case $needed in *"not found"* | *torch* | *python*) die "lib$library.so.0 needs: $needed" ;; esac
done
cd / || exit 1
env -u LIBZERO_LIBRARY_DIR PYTHONPATH="$work/site" "$python" "$OLDPWD/tests/python/test_package.py" "$layouts" ||
    die "what was installed does not work"
