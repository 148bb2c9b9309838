# Downloads Debian's source packages. tools/debian_built_python, tools/capnp_library and tests/bare_debian/build_python source
# this file. Uses die.
# shellcheck shell=sh

# debian_source <package> <release> <folder>: unpacks the source in <folder>/source. apt keeps the lists of that release
# in <folder>/apt, and does not change the system's lists.
debian_source() {
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 'Origin: Debian' | head -n 1)
  [ -n "$mirror" ] || die "apt has no mirror of Debian, so the source cannot be fetched; add one to /etc/apt/sources.list"
  mkdir -p "$3/apt/lists/partial" "$3/apt/cache/archives/partial" "$3/source"
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $2 main" >"$3/apt/sources.list"
  cat >"$3/apt/apt.conf" <<EOF
Dir::Etc::SourceList "$3/apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$3/apt/lists";
Dir::Cache "$3/apt/cache";
APT::Sandbox::User "root";
EOF
  (
    export APT_CONFIG="$3/apt/apt.conf"
    cd "$3"
    apt-get -q update && apt-get -q source --download-only "$1"
  ) >"$3/apt.log" 2>&1 || {
    tail -n 20 "$3/apt.log" >&2
    die "apt-get could not fetch the source of $1 from Debian $2"
  }
  tar -xf "$3/$1"_*.orig.tar.[gx]z --directory "$3/source" --strip-components=1
}

# debian_python_source <3.11 | 3.13 | 3.14> <folder>: unpacks CPython, from a release that has this version.
debian_python_source() {
  case $1 in
    3.11) debian_source python3.11 bookworm "$2" ;;
    3.13) debian_source python3.13 trixie "$2" ;;
    3.14) debian_source python3.14 forky "$2" ;;
    *) die "no known Debian release has the source of Python $1" ;;
  esac
}
