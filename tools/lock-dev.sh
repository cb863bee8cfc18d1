#!/usr/bin/env bash
# Writes requirements-dev.txt: every package of the development environment, by version and sha256; and
# requirements-ray.txt: those that `make test-fleet` needs besides.
# Run it after changing a dependency in pyproject.toml. Needs uv, which finds the indexes by its own configuration.
#   tools/lock-dev.sh              keep what still fits
#   tools/lock-dev.sh --upgrade    take the newest
set -euo pipefail
cd "$(dirname "$0")/.."
UV=${UV:-uv}

if ! command -v "$UV" >/dev/null; then
    echo "lock-dev: uv is not there; install it (pip install uv), or say where it is: UV=/path/to/uv $0" >&2
    exit 1
fi
# --universal: one file for every Python from 3.11 on and for every machine. No index is written into it: whose
# index serves the bytes does not matter, because their hashes are here.
lock() { # from the files $1..., further arguments of uv included
    "$UV" pip compile "$@" --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --custom-compile-command tools/lock-dev.sh --quiet
}
lock pyproject.toml tools/build.in --group dev --output-file requirements-dev.txt "$@"
lock tools/ray.in --constraint requirements-dev.txt --output-file requirements-ray.txt "$@"
