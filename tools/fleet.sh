#!/usr/bin/env bash
# Makes sure that there is what `make test-fleet` needs besides .venv and an engine: a registry, and skopeo as a second
# client of it. Debian has both; installing them needs root.
set -euo pipefail

say() { echo "fleet: $*" >&2; }

missing=()
for program in docker-registry skopeo; do
    command -v "$program" >/dev/null || missing+=("$program")
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
