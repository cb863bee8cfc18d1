#!/usr/bin/env bash
# Makes .venv: Python, every package of requirements-dev.txt by its hash, and nvllm itself, editable.
# Does nothing if it is all there. Change the interpreter with PYTHON=/path/to/python3.
set -euo pipefail
cd "$(dirname "$0")/.."
ROOT=$PWD
VENV=$ROOT/.venv
STAMP=$VENV/nvllm-setup

say() { echo "setup: $*" >&2; }
give_up() { say "$@"; exit 1; }
install() { # the package $1, because of what $2 says
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        give_up "$2; install the package $1, for example: sudo apt-get install $1"
    fi
    say "installing $1"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install --yes --no-install-recommends "$1" >/dev/null 2>&1 ||
        { apt-get update >/dev/null && apt-get install --yes --no-install-recommends "$1" >/dev/null; } ||
        give_up "could not install $1 (apt-get said so above)"
}

fits() { command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

candidates=(python3 python3.11 python3.12 python3.13 python3.14)
[ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
python=
for candidate in "${candidates[@]}"; do
    if fits "$candidate"; then
        python=$(command -v "$candidate")
        break
    fi
done
if [ -z "$python" ]; then
    found=$("${PYTHON:-python3}" --version 2>/dev/null || echo "no ${PYTHON:-python3}")
    give_up "needs Python 3.11 or newer, and found $found." \
        "Debian 12 and Ubuntu 24.04 have it: apt-get install python3"
fi

# The package git alone does not bring it.
command -v ssh-keygen >/dev/null || install openssh-client "there is no ssh-keygen, which signs what is blessed"

# The path is part of the stamp: an environment knows where it lies and cannot be moved with its tree.
wanted=$("$python" - "$ROOT" <<'PYTHON_END'
import hashlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
parts = [str(root).encode(), sys.version.encode()]
parts += [(root / name).read_bytes() for name in ("requirements-dev.txt", "pyproject.toml")]
print(hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest())
PYTHON_END
)
if [ -x "$VENV/bin/nvllm" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

# Making an environment empties its directory, and behind a link that is the directory of somebody else.
[ ! -L "$VENV" ] || give_up ".venv is a link to $(readlink "$VENV"), and what it points to would be emptied: rm '$VENV'"

# Debian splits the venv module's ensurepip off into a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    package=$version-venv
    install "$package" "$python lacks the ensurepip module"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        give_up "$package is installed, and $python still lacks ensurepip: it is not the distribution's Python." \
            "Name another one: PYTHON=/usr/bin/$version $0"
fi

started=$SECONDS
# An environment of another place, another Python, or none that runs is made anew. One of older requirements is
# brought up to date, so that whoever works in it keeps what they have installed.
version_of() { "$1" -c 'import sys; print(sys.version)' 2>/dev/null; }
if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1 ||
    [ "$(version_of "$VENV/bin/python")" != "$(version_of "$python")" ] ||
    ! head -n 3 "$VENV/bin/pip" | grep -qF "$VENV/bin/python"; then
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear "$VENV"
fi
rm -f "$STAMP"

# pip, and not uv: pip reads the machine's own configuration (its indexes, certificates, proxies), which uv does not,
# and the hashes make what either of them installs the same. The lists are resolved already: --no-deps looks for nothing.
say "installing $(grep -c '==' requirements-dev.txt) packages by their hashes"
"$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-input \
    --require-hashes --no-deps -r requirements-dev.txt
"$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-input \
    --no-deps --no-build-isolation --no-index --editable .
echo "$wanted" >"$STAMP"
say "done in $((SECONDS - started)) s"
