#!/usr/bin/env bash
# Makes sure that there is what `make test-nix` needs besides .venv: Nix, a static busybox for the stub of nixpkgs, and
# git. Debian has all three; installing them needs root. A Nix that is there, from whomever, is taken.
set -euo pipefail

say() { echo "nix: $*" >&2; }

missing=()
for pair in nix:nix-bin busybox:busybox-static git:git; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        say "needs ${missing[*]}: apt-get install --no-install-recommends ${missing[*]}"
        exit 1
    fi
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install --yes --no-install-recommends "${missing[@]}" >/dev/null 2>&1 ||
        { apt-get update >/dev/null && apt-get install --yes --no-install-recommends "${missing[@]}" >/dev/null; } ||
        { say "could not install ${missing[*]} (apt-get said so above)"; exit 1; }
fi
