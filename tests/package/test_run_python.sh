#!/usr/bin/env bash
# tests/run.sh --python and tests/python.sh: an environment is made once, not kept for other requirements,
# left out where pip does not find them, and what the tests then run with. In a copy of the scripts, with
# a package of our own for PyTorch, and with stand-ins for what builds and tests.
set -u
cd "$(dirname "$0")/../.." || exit 1
python3 -c 'import ensurepip, venv' || {
    echo "skipped: python3 cannot make a virtual environment"
    exit 77
}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
status=0

# expect WHAT COMMAND...
expect() {
    local what=$1
    shift
    "$@" && return
    echo "not so: $what"
    cat "$work/said"
    status=1
}

# fake NAME: a program on the stand-in's PATH, from standard input.
fake() {
    { echo '#!/bin/sh'; cat; } >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}

mkdir -p "$work/tests/ref" "$work/cmake" "$work/bin" "$work/wheels" "$work/none"
cp tests/run.sh tests/python.sh "$work/tests"
cp cmake/install.sh "$work/cmake"
touch "$work/os-release" # of no system whose packages are known
fake cmake </dev/null
fake ninja </dev/null
fake ctest <<'END'
echo "tests run with ${ZR_PYTHON:-no Python}"
while [ "$1" != --output-junit ]; do shift; done
cat >"$2" <<'XML'
<testsuite name="x" tests="3" failures="0" disabled="0" skipped="1">
	<testcase name="test_a" status="run"><system-out>of no
interest
</system-out>
	</testcase>
	<testcase name="test_b" classname="x" status="notrun">
		<skipped message="SKIP_RETURN_CODE=77"/>
		<system-out>begins
skipped: &quot;a&quot; &lt; 1
</system-out>
	</testcase>
	<testcase name="test_c" status="run"><system-out></system-out></testcase>
</testsuite>
XML
END

# package VERSION: zr_oracle, as pip loads it.
package() {
    python3 - "$work/wheels" "$1" <<'END'
import sys, zipfile
folder, version = sys.argv[1:]
info = f"zr_oracle-{version}.dist-info/"
with zipfile.ZipFile(f"{folder}/zr_oracle-{version}-py3-none-any.whl", "w") as wheel:
    wheel.writestr("zr_oracle.py", f"version = '{version}'\n")
    wheel.writestr(info + "METADATA", f"Metadata-Version: 2.1\nName: zr-oracle\nVersion: {version}\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "")
END
}

# run_tests FOLDER OPTION...: the copy, with a pip that finds what is in FOLDER alone.
run_tests() {
    local wheels=$work/$1
    shift
    env -u ZR_PYTHON PATH="$work/bin:$PATH" ZR_OS_RELEASE="$work/os-release" PIP_CONFIG_FILE=/dev/null \
        PIP_NO_INDEX=1 PIP_FIND_LINKS="$wheels" bash "$work/tests/run.sh" "$@" >"$work/said" 2>&1
}

says() { grep -qF -- "$1" "$work/said"; }
imports() { [ "$("$work/build/python/bin/python" -c 'import zr_oracle; print(zr_oracle.version)')" = "$1" ]; }

run_tests none --pyhton
expect "an unknown option is an error" [ $? -eq 2 ]
expect "which names it" says "--pyhton is unknown"
run_tests none --help
expect "help is none" [ $? -eq 0 ]
expect "and says what is possible" says "bash tests/run.sh [--python]"

echo 'zr-oracle==1.0' >"$work/tests/ref/requirements.txt"
package 1.0
run_tests wheels --python
expect "with the package the tests pass" [ $? -eq 0 ]
expect "they run with the environment" says "tests run with $work/build/python/bin/python"
expect "which has the package" imports 1.0
expect "what is skipped is listed with the reason" says 'test_b: skipped: "a" < 1'
expect "and counted" says "6 passed, 0 failed, 3 skipped"
run_tests none --python
expect "the environment is taken again" says "tests run with $work/build/python/bin/python"
run_tests none
expect "without the option it is not taken" says "tests run with no Python"

echo 'zr-oracle==2.0' >"$work/tests/ref/requirements.txt"
run_tests wheels --python
expect "other requirements, which pip does not find: the tests pass" [ $? -eq 0 ]
expect "it says what is missing" says "PyTorch: left out: pip could not install"
expect "and what pip said" says "zr-oracle==2.0"
expect "the tests run without" says "tests run with no Python"
expect "what was there is not taken for it" [ ! -e "$work/build/python/made-of.txt" ]
package 2.0
run_tests wheels --python
expect "when pip finds it, it is added" imports 2.0
rm -r "$work/build/python"
run_tests none --python
expect "nothing is left of a new one that fails" [ ! -e "$work/build/python" ]
exit $status
