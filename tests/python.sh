#!/usr/bin/env bash
# Make what the tests that compare with PyTorch need: a virtual environment of python3 in FOLDER, with what
# REQUIREMENTS lists. One that is there already, made of the same list, stays; to one of another list, what
# it lacks is added. Packages come from where pip is configured to look for them. PyPI's PyTorch cannot be imported without CUDA's libraries, so that
# 3 GB are loaded, and 5 GB lie on the disk.
#
#   bash tests/python.sh FOLDER [REQUIREMENTS]
#
# Exit code: 0 when FOLDER/bin/python has everything; 1 otherwise, and the last line says why.
set -u
folder=$(realpath -m "${1:?FOLDER}")
requirements=${2:-$(dirname "$0")/ref/requirements.txt}

die() {
    echo "$*" >&2
    exit 1
}

# The list that it was made of is written last. pip is not found where python3 is another version by now.
if cmp -s "$requirements" "$folder/made-of.txt" && "$folder/bin/python" -c 'import pip' 2>/dev/null; then
    exit 0
fi
is_new=false
rm -f "$folder/made-of.txt"
if ! "$folder/bin/python" -c 'import pip' 2>/dev/null; then
    is_new=true
    python3 -m venv --clear "$folder" ||
        die "python3 could not make a virtual environment in $folder (Debian's package is python3-venv)"
fi
# Not by way of /tmp, which may be small.
mkdir -p "$folder/tmp"
if ! TMPDIR=$folder/tmp "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
    --no-cache-dir --only-binary :all: --requirement "$requirements" 2>"$folder/pip.log"; then
    cat "$folder/pip.log" >&2
    reason=$(grep '^ERROR' "$folder/pip.log" | tail -n 1)
    if $is_new; then rm -rf "$folder"; fi
    die "pip could not install what $requirements lists: ${reason#ERROR: }"
fi
rm -r "$folder/tmp"
cp "$requirements" "$folder/made-of.txt"
