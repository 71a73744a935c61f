# shellcheck shell=bash disable=SC2034
# Sourced by every script of this folder: where the repository is, how scripts talk, and what they do about a missing program.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
musl_target=$(uname -m)-unknown-linux-musl
# The calls between malloc and the kernel that scripts/musl/shelf.c takes.
shelf_wraps=-Wl,--wrap=__mmap,--wrap=__munmap,--wrap=munmap

# The heading of a step, a line below it, and the end of a script that cannot go on. All on stderr: stdout is for results.
step() { printf '\n==> %s\n' "$*" >&2; }
note() { printf '    %s\n' "$*" >&2; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }
bad_usage() { printf '%s: %s (--help tells more)\n' "${0##*/}" "$*" >&2; exit 64; }

# The comment at the head of the calling script is its help.
help() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"; }

# Seconds since a moment in milliseconds, and such a moment.
now_ms() { date +%s%3N; }
seconds_since() { awk -v ms="$(($(now_ms) - $1))" 'BEGIN { printf "%.1f s", ms / 1000 }'; }

# need PROGRAM=PACKAGE...: installs the Debian packages of the missing programs, or names the command that does.
need() {
  local pair packages=()
  for pair in "$@"; do
    command -v "${pair%%=*}" >/dev/null || packages+=("${pair#*=}")
  done
  [ ${#packages[@]} -eq 0 ] || install_packages "${packages[@]}"
}

# Debian packages, as root; elsewhere the command to type.
install_packages() {
  command -v apt-get >/dev/null || die "missing: $*. These are Debian's package names: install what your system calls them."
  [ "$(id -u)" -eq 0 ] || die "missing: $*. Install with: sudo apt-get install -y --no-install-recommends $*"
  note "installing $*"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >&2 || note "apt-get update failed; trying with the package lists there are"
  apt-get install -y -qq --no-install-recommends "$@" >/dev/null || die "apt-get install $* failed"
}

# Whether the compiler $1 is there and as new as Cargo.toml wants.
is_new_enough() {
  local wanted have
  wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$top/Cargo.toml")
  have=$("$1" -V 2>/dev/null | cut -d' ' -f2) && [ "$(printf '%s\n' "$wanted" "${have%%-*}" | sort -V | head -n 1)" = "$wanted" ]
}
