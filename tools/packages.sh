# Finds and installs the Debian packages that ./dev needs. Source this file. Uses say, die and have. shellcheck shell=sh

# has_header <header>: true if the compiler can include it.
has_header() {
  have g++ || return 1
  printf '#if !__has_include(<%s>)\n#error\n#endif\n' "$1" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1
}

cmake_is_new_enough() {
  have cmake || return 1
  version=$(cmake --version | sed -n '1s/[^0-9]*//p')
  [ "$(printf '3.25\n%s\n' "$version" | sort -V | head -n 1)" = 3.25 ]
}

# present <package>: true if the files that we need from this Debian package exist, from any source.
present() {
  case $1 in
    g++) have g++ ;;
    cmake) cmake_is_new_enough ;;
    ninja-build) have ninja ;;
    capnproto) have capnp && have capnpc-c++ ;;
    libcapnp-dev) has_header capnp/message.h ;;
    libxtensor-dev) has_header xtensor/xarray.hpp || has_header xtensor/containers/xarray.hpp ;;
    valgrind) have valgrind ;;
    ccache) have ccache ;;
    pkgconf) have pkg-config || have pkgconf ;;
    clang-tidy) have clang-tidy ;;
    libbenchmark-dev) has_header benchmark/benchmark.h ;;
    iceoryx) have iox-roudi ;;
    libiceoryx-posh-dev) ls /usr/lib/*/cmake/iceoryx_posh/iceoryx_poshConfig.cmake >/dev/null 2>&1 ;;
    clang) have clang++ ;;
    libclang-rt-dev) ls "$(clang++ -print-resource-dir)"/lib/linux/libclang_rt.fuzzer-*.a >/dev/null 2>&1 ;;
    debootstrap) have debootstrap ;;
    doxygen) have doxygen ;;
    make) have make ;;
    git) have git ;;
    autoconf) have autoreconf ;;
    automake) have automake ;;
    llvm-dev) have llvm-config && [ -e "$(llvm-config --includedir)/llvm/IR/Module.h" ] ;;
    xz-utils) have xz ;;
    zlib1g-dev) has_header zlib.h ;;
    libssl-dev) has_header openssl/ssl.h ;;
    libffi-dev) has_header ffi.h ;;
    libbz2-dev) has_header bzlib.h ;;
    liblzma-dev) has_header lzma.h ;;
    libsqlite3-dev) has_header sqlite3.h ;;
    catch2) has_header catch2/catch.hpp || has_header catch2/catch_all.hpp ;;
    ca-certificates) [ -e "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" ] ;;
    python3-dev) debian_python_has 'import sysconfig, os; assert os.path.exists(sysconfig.get_paths()["include"] + "/Python.h")' ;;
    python3-venv) debian_python_has 'import venv, ensurepip' ;;
    libpython3.*-testsuite) debian_python_has 'import test._test_multiprocessing' ;;
    *) die "no rule for the package $1" ;;
  esac
}

debian_python_has() { [ -x /usr/bin/python3 ] && /usr/bin/python3 -c "$1" >/dev/null 2>&1; }

# missing_of <package>...: sets `missing` to the missing packages.
missing_of() {
  missing=
  for package in "$@"; do
    present "$package" || missing="$missing $package"
  done
}

# may_install: true for root, in CI, or if DEV_INSTALL=yes. Otherwise asks the user; false without a terminal.
may_install() {
  if [ "$(id -u)" -eq 0 ] || [ -n "${CI:-}" ] || [ "${DEV_INSTALL:-}" = yes ]; then return 0; fi
  [ -t 0 ] || return 1
  printf '==> install them? [y/N] ' >&2
  read -r answer || return 1
  [ "$answer" = y ] || [ "$answer" = Y ] || [ "$answer" = yes ]
}

# system <package>...: installs the missing packages, and prints their names and the command.
system() {
  missing_of "$@"
  [ -n "$missing" ] || return 0
  have apt-get || die "missing packages, which need apt-get to be installed; install these (Debian's names) yourself:$missing"
  as_root=
  if [ "$(id -u)" -ne 0 ]; then
    have sudo || die "missing packages, which need root or sudo to be installed; install these Debian packages yourself:$missing"
    as_root='sudo '
  fi
  say "missing:$missing"
  say "command: ${as_root}apt-get install --yes --no-install-recommends$missing"
  may_install || die "the packages were not installed; run the command above, or set DEV_INSTALL=yes"
  log=$(mktemp)
  # shellcheck disable=SC2086  # both are lists of words
  if ! { $as_root apt-get -q update && $as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -q install --yes --no-install-recommends $missing; } </dev/null >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "apt-get could not install:$missing"
  fi
  rm -f "$log"
  for package in $missing; do
    present "$package" || die "$package is installed, but its files are not found"
  done
}

# system_if_possible <package>...: like system, but only warns on failure. For packages that only save time.
system_if_possible() {
  missing_of "$@"
  [ -n "$missing" ] || return 0
  # shellcheck disable=SC2086  # a list of words
  (system $missing) || say "continuing without:$missing"
}

build_packages='g++ cmake ninja-build ca-certificates capnproto libcapnp-dev'

# Build requirements of the C++ tests.
test_packages="$build_packages libxtensor-dev catch2 pkgconf"

# Build requirements of tools/debian_built_python.
python_source_packages='make xz-utils zlib1g-dev libssl-dev libffi-dev libbz2-dev liblzma-dev libsqlite3-dev'
