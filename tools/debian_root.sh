# Creates a bare Debian in a folder. tests/bare_debian/run and tools/aarch64 source this file. BARE_MIRROR replaces
# debootstrap's default mirror. BARE_BIND lists paths of this machine to mount read-only inside (/here=/there: under
# another name). Use it for certificates (/usr/local/share/ca-certificates; not the files that Debian's ca-certificates
# writes), settings of pip, and local package mirrors.
# shellcheck shell=sh

# debian_root <release> <folder>: creates <folder>/base, once. Exits with status 77 (skipped) if that is impossible.
debian_root() {
  [ "$(id -u)" -eq 0 ] || { echo "$0: skipped, not root" >&2; exit 77; }
  for tool in debootstrap unshare chroot; do
    command -v "$tool" >/dev/null 2>&1 || { echo "$0: skipped, no $tool" >&2; exit 77; }
  done
  mkdir -p "$2"
  [ ! -e "$2/made" ] || return 0
  rm -rf --one-file-system "$2/base"
  debootstrap --variant=minbase "$1" "$2/base" ${BARE_MIRROR:+"$BARE_MIRROR"} >"$2/debootstrap.log" 2>&1 || {
    tail -n 20 "$2/debootstrap.log" >&2
    exit 1
  }
  touch "$2/made"
}

# in_root <root> <command> [argument]...: runs the command there, in a mount namespace that ends with it.
in_root() {
  # shellcheck disable=SC2016  # expanded inside
  BARE_ROOT=$1 unshare --mount --fork sh -c '
    set -eu
    root=$BARE_ROOT
    shift
    mount -t proc proc "$root/proc"
    mkdir -p "$root/dev/shm"
    mount -t tmpfs tmpfs "$root/dev/shm"
    for pair in /etc/resolv.conf ${BARE_BIND:-}; do
      path=${pair%%=*} inside=$root${pair#*=}
      [ -e "$path" ] || continue
      if [ -d "$path" ]; then mkdir -p "$inside"; else mkdir -p "${inside%/*}"; : >>"$inside"; fi
      mount --bind "$path" "$inside"
      mount -o remount,bind,ro "$inside"
    done
    exec chroot "$root" "$@"
  ' sh "$@" </dev/null
}
