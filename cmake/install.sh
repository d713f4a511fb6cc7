# Sourced by tests/run.sh and the scripts in examples/: make sure that what the build needs is
# there. Run by itself, it does that, installs MPI, and the packages that it is given (fio, for
# zero-bench io). Debian 12 and Ubuntu 22.04 or later get it through apt-get; elsewhere the tools and
# libraries are looked for, and what is missing is named.

zr_packages="build-essential cmake ninja-build pkg-config libdnnl-dev libjansson-dev libxxhash-dev liburing-dev libsodium-dev libmimalloc-dev libcmocka-dev"

zr_say() { printf '%s\n' "$*"; }
zr_die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# zr_is_supported FILE: whether the os-release file is of a system whose packages are known.
zr_is_supported() (
    [ -r "$1" ] || exit 1
    ID='' VERSION_ID=''
    # shellcheck disable=SC1090
    . "$1"
    major=${VERSION_ID%%.*}
    case $major in '' | *[!0-9]*) exit 1 ;; esac
    case $ID in
    debian) [ "$major" -ge 12 ] ;;
    ubuntu) [ "$major" -ge 22 ] ;;
    *) exit 1 ;;
    esac
)

# zr_missing_packages PACKAGE...: those that dpkg does not have installed.
zr_missing_packages() {
    for package; do
        case $(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) in
        'install ok installed') ;;
        *) printf '%s ' "$package" ;;
        esac
    done
}

# zr_apt PACKAGE...: install them.
zr_apt() {
    zr_as_root=
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            zr_die "missing packages: $*
neither root nor sudo here; as root run: apt-get update && apt-get install --yes $*"
        zr_as_root=sudo
    fi
    zr_say "installing: $*"
    # One attempt with the lists that are there, one with new ones.
    $zr_as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes -qq \
        -o DPkg::Lock::Timeout=120 --no-install-recommends "$@" >/dev/null 2>&1 && return
    $zr_as_root apt-get update -qq ||
        zr_die "apt-get update failed; packages still missing: $*"
    $zr_as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes -qq \
        -o DPkg::Lock::Timeout=120 --no-install-recommends "$@" >/dev/null ||
        zr_die "apt-get could not install: $*"
}

# zr_missing_elsewhere: what cannot be found on a system whose packages are not known.
zr_missing_elsewhere() {
    for tool in cc c++ cmake ninja pkg-config; do
        command -v "$tool" >/dev/null || printf '%s\n' "  $tool"
    done
    if command -v pkg-config >/dev/null; then
        for library in jansson libxxhash liburing libsodium cmocka; do
            pkg-config --exists "$library" || printf '%s\n' "  $library (with its headers)"
        done
    fi
    if command -v cc >/dev/null; then
        printf '#include <oneapi/dnnl/dnnl.h>\n' | cc -E - >/dev/null 2>&1 ||
            printf '%s\n' "  oneDNN (with its headers)"
        printf '#include <mimalloc.h>\n' | cc -E - >/dev/null 2>&1 ||
            printf '%s\n' "  mimalloc (with its headers)"
    fi
}

# zr_install [PACKAGE...]: what the build needs, and these packages more. The names of the
# further ones are those of commands as well where the system is another.
zr_install() {
    if zr_is_supported "${ZR_OS_RELEASE:-/etc/os-release}"; then
        # shellcheck disable=SC2046,SC2086
        set -- $(zr_missing_packages $zr_packages "$@")
        [ $# -eq 0 ] || zr_apt "$@"
        return
    fi
    zr_missing=$(
        zr_missing_elsewhere
        for package; do
            command -v "${package%-nox}" >/dev/null || printf '%s\n' "  ${package%-nox}"
        done
    )
    [ -z "$zr_missing" ] ||
        zr_die "This system is neither Debian 12 nor Ubuntu 22.04, or later. Install these, then run this again:
$zr_missing
(the packages of Debian: $zr_packages $*)"
}

# zr_install_if_possible WHAT PACKAGE...: what the build does without, where packages are known.
zr_install_if_possible() {
    zr_is_supported "${ZR_OS_RELEASE:-/etc/os-release}" || return 0
    zr_what=$1
    shift
    # shellcheck disable=SC2046
    set -- $(zr_missing_packages "$@")
    [ $# -eq 0 ] || (zr_apt "$@") || zr_say "$zr_what is left out: it could not be installed"
}

# zr_install_mpi: for ranks on several machines, and their tests.
zr_install_mpi() { zr_install_if_possible MPI libopenmpi-dev openmpi-bin; }

# zr_configure SOURCE BUILD [OPTION...]: configure, and say what of CUDA and MPI is built. A folder that
# is configured already is so again, in a second: what was installed or removed since is noticed.
zr_configure() {
    zr_source=$1
    zr_build=$2
    shift 2
    mkdir -p "$zr_build"
    cmake -G Ninja -S "$zr_source" -B "$zr_build" "$@" >"$zr_build/configure.log" 2>&1 || {
        cat "$zr_build/configure.log" >&2
        zr_die "configuring $zr_build failed"
    }
    zr_say "CUDA parts: $(sed -n 's/^ZR_CUDA_REASON:[A-Z]*=//p' "$zr_build/CMakeCache.txt")"
    zr_say "MPI: $(sed -n 's/^ZR_MPI_REASON:[A-Z]*=//p' "$zr_build/CMakeCache.txt")"
}

# zr_build BUILD [TARGET...]: build; a terminal sees the progress, everybody the errors.
zr_build() {
    zr_build=$1
    shift
    if [ -t 1 ]; then
        ninja -C "$zr_build" "$@"
        return
    fi
    zr_say "building in $zr_build: some minutes where it is the first time" >&2
    if ! ninja -C "$zr_build" "$@" >"$zr_build/build.log" 2>&1; then
        cat "$zr_build/build.log" >&2
        return 1
    fi
}

# Not sourced: install.
if [ "${BASH_SOURCE[0]:-}" = "$0" ]; then
    zr_install "$@"
    zr_install_mpi
fi
