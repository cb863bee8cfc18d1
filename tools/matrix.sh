#!/usr/bin/env bash
# Runs the unit and refusal tests under each Python that nvllm supports, and says which ran and which could not be had.
#   tools/matrix.sh [VERSION]...       default: 3.11 3.12 3.13 3.14
# An interpreter comes from PATH, from pyenv, from uv (which may download it), or from Debian: the packages of SUITE
# (default sid) are unpacked below ~/.cache/nvllm-matrix, verified by Debian's keyring; nothing is installed. Each gets an
# environment of its own in .matrix/, with the packages of requirements-dev.txt. The exit status is 1 if a test failed.
set -euo pipefail
cd "$(dirname "$0")/.."

SUITE=${SUITE:-sid}
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/nvllm-matrix
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
[ $# -gt 0 ] || set -- 3.11 3.12 3.13 3.14

say() { echo "matrix: $*" >&2; }
runs() { [ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$2" ]; }

from_debian() { # prints an interpreter of version $1, of unpacked packages; says why not otherwise
    local version=$1 top=$CACHE/$SUITE/$1 mirror name deb loader libraries
    local python=$top/root/usr/bin/python$version
    if [ -x "$top/complete/python" ]; then
        echo "$top/complete/python"
        return
    fi
    [ -e "$KEYRING" ] || { say "Debian: there is no $KEYRING"; return 1; }
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | head -n 1)
    [ -n "$mirror" ] || { say "Debian: apt has no source"; return 1; }
    rm -rf "$top"
    mkdir -p "$top"/{state/lists,packages/archives}/partial "$top"/root/usr/{bin,sbin,lib,lib64}
    touch "$top/status"
    echo "deb [signed-by=$KEYRING] $mirror $SUITE main" >"$top/sources.list"
    local apt=(apt-get -qq -oDir::State="$top/state" -oDir::State::status="$top/status" -oDir::Cache="$top/packages"
        -oDir::Etc::sourcelist="$top/sources.list" -oDir::Etc::sourceparts=/dev/null -oAPT::Install-Recommends=false
        -oDir::Etc::preferencesparts=/dev/null -oAcquire::Check-Valid-Until=false -oAcquire::Check-Date=false)
    [ "$(id -u)" != 0 ] || apt+=(-oAPT::Sandbox::User=root)
    "${apt[@]}" --error-on=any update >&2 || { say "Debian: the lists of $SUITE cannot be fetched"; return 1; }
    "${apt[@]}" --yes --download-only install "python$version-venv" patchelf >/dev/null 2>"$top/said" ||
        { say "Debian: $SUITE has no python$version: $(tail -n 1 "$top/said")"; return 1; }
    for name in bin sbin lib lib64; do
        ln -s "usr/$name" "$top/root/$name"
    done
    for deb in "$top"/packages/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -C "$top/root" -x --keep-directory-symlink
    done
    rm -r "$top/packages" "$top/state"
    # The host's C library may be older than this interpreter's: it gets the loader and the libraries beside it.
    loader=$(echo "$top"/root/lib*/ld-linux*.so.*)
    libraries=$(echo "$top"/root/usr/lib/*-linux-gnu*)
    local patchelf=("$loader" --library-path "$libraries" "$top/root/usr/bin/patchelf")
    "${patchelf[@]}" --force-rpath --set-rpath "$libraries" "$python" # in one call with the next it would not start
    "${patchelf[@]}" --set-interpreter "$loader" "$python"
    runs "$python" "$version" || { say "Debian: its Python $version does not start here"; return 1; }
    mkdir "$top/complete"
    ln -s "$python" "$top/complete/python"
    echo "$python"
}

find_python() { # prints an interpreter of version $1
    local version=$1 candidate
    for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python; do
        if runs "$candidate" "$version"; then
            echo "$candidate"
            return
        fi
    done
    if command -v uv >/dev/null; then
        if candidate=$(uv python find --no-project "$version" 2>/dev/null) || {
            uv python install --quiet "$version" && candidate=$(uv python find --no-project "$version")
        }; then
            echo "$candidate"
            return
        fi
        say "uv brings no Python $version here"
    fi
    from_debian "$version"
}

summary=()
failed=0
for version in "$@"; do
    if ! python=$(find_python "$version"); then
        summary+=("$version  not run: no interpreter, as said above")
        continue
    fi
    place=.matrix/$version
    say "$("$python" --version) of $python"
    "$python" -m venv --without-pip --clear "$place"
    pip=(.venv/bin/python -m pip --python "$place/bin/python" install -qq --disable-pip-version-check --no-deps)
    if ! "${pip[@]}" --require-hashes -r requirements-dev.txt ||
        ! "${pip[@]}" --no-build-isolation --no-index --editable .; then
        summary+=("$version  not run: a package cannot be installed, as pip said above")
        failed=1
        continue
    fi
    full=$("$place/bin/python" -c 'import platform; print(platform.python_version())')
    started=$SECONDS
    if "$place/bin/python" -m pytest tests/unit tests/refusals -m "not engine and not long" -q -n "${WORKERS:-2}" --dist worksteal \
        ${PYTEST:-} | tee "$place/log"; then
        verdict=passed
    else
        verdict=FAILED
        failed=1
    fi
    summary+=("$full  $verdict in $((SECONDS - started)) s: $(grep -E " (passed|failed|error)" "$place/log" | tail -n 1)")
done
printf '%s\n' "${summary[@]}"
exit "$failed"
