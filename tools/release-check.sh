#!/usr/bin/env bash
# Checks that this commit can be released; docs/releasing.md says when. What it builds lies in dist/.
#   tools/release-check.sh             everything; installing and twine need a package index
#   tools/release-check.sh --offline   what needs none: the wheel is laid beside the packages of .venv
set -euo pipefail
cd "$(dirname "$0")/.."

offline=
[ "${1:-}" != --offline ] || offline=1
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "release-check: $*" >&2; exit 1; }
done_() { echo "ok: $*"; }

[ -z "$(git status --porcelain)" ] || fail "the tree is not clean: git status"
done_ "the tree is clean"
[ "$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' launcher/nvllm/__init__.py)" = "$version" ] ||
    fail "launcher/nvllm/__init__.py has another version than pyproject.toml, $version"
grep -q "^## $version\( \|$\)" CHANGELOG.md || fail "CHANGELOG.md has no heading \"## $version\""
if git rev-parse -q --verify "refs/tags/v$version" >/dev/null; then
    [ "$(git rev-parse "v$version^{}")" = "$(git rev-parse HEAD)" ] || fail "the tag v$version is on another commit"
    git verify-tag "v$version" 2>/dev/null || fail "the tag v$version has no signature that git can verify here"
fi
done_ "version $version is in the changelog, and its tag is free"

.venv/bin/python tools/records.py --check || fail "a suite that the CI never runs was not run on what is released: docs/records.md"
done_ "every suite has a row in docs/records.md"

rm -rf dist
.venv/bin/python -m hatchling build -d dist >"$work/build" 2>&1 || { cat "$work/build" >&2; fail "hatchling failed"; }
wheel=dist/nvllm-$version-py3-none-any.whl
[ -e "$wheel" ] || fail "hatchling made no $wheel"
done_ "built $(cd dist && echo *)"

if [ -n "$offline" ]; then
    .venv/bin/python -m pip install -qq --no-deps --no-index --target "$work/lib" "$wheel"
    site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    export PYTHONPATH=$work/lib:$site
    nvllm=("$PWD/.venv/bin/python" -S -m nvllm)
    manual=$work/lib/share/man/man1/nvllm.1
else
    .venv/bin/python -m venv "$work/venv"
    "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$wheel"
    nvllm=("$work/venv/bin/nvllm")
    manual=$work/venv/share/man/man1/nvllm.1
fi
mkdir "$work/elsewhere" # no checkout: specs, locks and series are those of the wheel
in_wheel() { (cd "$work/elsewhere" && HOME=$work "$@"); }
[ "$(in_wheel "${nvllm[@]}" --version)" = "nvllm $version" ] || fail "the wheel is not of version $version"
in_wheel "${nvllm[@]}" patch list --series v0.32.0 >/dev/null || fail "the wheel has no series"
status=0
in_wheel "${nvllm[@]}" doctor >"$work/doctor" 2>&1 || status=$?
[ "$status" = 0 ] || [ "$status" = 3 ] || { cat "$work/doctor" >&2; fail "nvllm doctor ended with $status"; }
[ -e "$manual" ] || fail "the wheel installs no manual page"
done_ "installed: --version, patch list, doctor (exit status $status) and the manual page, outside a checkout"

if [ -n "$offline" ]; then
    echo "not checked: the dependencies from an index and their known vulnerabilities, twine check"
    exit
fi
tools/audit.sh || fail "packages with known vulnerabilities, or packages that were not looked up: tools/audit.sh"
done_ "no vulnerability of a package is known"
.venv/bin/python -m venv "$work/twine"
"$work/twine/bin/python" -m pip install -qq --disable-pip-version-check twine
"$work/twine/bin/python" -m twine check --strict dist/*
echo "ready: git tag -s v$version -m \"nvllm $version\""
