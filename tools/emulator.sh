#!/usr/bin/env bash
# Makes sure that QEMU's user mode is here. It runs the interpreter of an image for the other machine, so that the
# layers of such an image, which hold bytecode, can be made and tested on this one.
set -euo pipefail

say() { echo "emulator: $*" >&2; }
give_up() { say "$@"; exit 1; }

case $(uname -m) in
    x86_64) other=aarch64 ;;
    aarch64) other=x86_64 ;;
    *) exit 0 ;; # images are made for these two
esac
if command -v "qemu-$other-static" >/dev/null || command -v "qemu-$other" >/dev/null; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    give_up "there is no qemu-$other-static; install it, for example: sudo apt-get install qemu-user-static"
fi
say "installing qemu-user-static"
export DEBIAN_FRONTEND=noninteractive
apt-get install --yes --no-install-recommends qemu-user-static >/dev/null 2>&1 ||
    { apt-get update >/dev/null && apt-get install --yes --no-install-recommends qemu-user-static >/dev/null; } ||
    give_up "could not install qemu-user-static (apt-get said so above)"
