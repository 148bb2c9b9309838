# Sources of CPython, from Debian's source packages. Sourced by the scripts that build one: tools/debian_built_python and
# tests/bare/build_python. Uses die.
# shellcheck shell=sh

# debian_python_source <3.11 | 3.13 | 3.14> <folder>: unpacks them in <folder>/source. apt keeps the lists of their release
# in <folder>/apt; the system's lists stay as they are. The release is one that has this version, not the system's own.
debian_python_source() {
  case $1 in
    3.11) suite=bookworm ;;
    3.13) suite=trixie ;;
    3.14) suite=forky ;;
    *) die "no Debian release is known that has the source of Python $1" ;;
  esac
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 'Origin: Debian' | head -n 1)
  [ -n "$mirror" ] || die "apt knows no mirror of Debian to fetch the source from"
  mkdir -p "$2/apt/lists/partial" "$2/apt/cache/archives/partial" "$2/source"
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$2/apt/sources.list"
  cat >"$2/apt/apt.conf" <<EOF
Dir::Etc::SourceList "$2/apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$2/apt/lists";
Dir::Cache "$2/apt/cache";
APT::Sandbox::User "root";
EOF
  (
    export APT_CONFIG="$2/apt/apt.conf"
    cd "$2"
    apt-get -q update && apt-get -q source --download-only "python$1"
  ) >"$2/apt.log" 2>&1 || {
    tail -n 20 "$2/apt.log" >&2
    die "apt-get could not fetch the source of Python $1 from Debian $suite"
  }
  tar -xf "$2/python$1"_*.orig.tar.[gx]z --directory "$2/source" --strip-components=1
}
