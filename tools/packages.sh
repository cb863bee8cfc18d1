#!/usr/bin/env bash
# tools/packages.sh NAME PROGRAM:PACKAGE...: makes sure that the programs are there, by Debian's packages of them. NAME
# stands before what this says. Installing needs root; a program that is there, from whomever, is taken.
set -euo pipefail

name=$1
say() { echo "$name: $*" >&2; }

missing=()
for pair in "${@:2}"; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "needs ${missing[*]}: apt-get install --no-install-recommends ${missing[*]}"
    exit 1
fi
say "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get install --yes --no-install-recommends "${missing[@]}" >/dev/null 2>&1 ||
    { apt-get update >/dev/null && apt-get install --yes --no-install-recommends "${missing[@]}" >/dev/null; } ||
    { say "could not install ${missing[*]} (apt-get said so above)"; exit 1; }
