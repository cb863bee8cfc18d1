#!/usr/bin/env bash
# Looks every package of requirements-dev.txt, the lock of nvllm itself, up in a database of known vulnerabilities.
#   tools/audit.sh [LOCK]     exit status 0: none is known; 1: some are; 75: not done, the database could not be reached
# AUDIT names another program than pip-audit, which uv fetches and runs in an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
read -ra audit <<<"${AUDIT:-.venv/bin/python -m uv --quiet tool run pip-audit==2.10.1}"

not_done() { echo "audit: not done, $*" >&2; exit 75; }
look_up() { # the packages of the lock $1: one line for each known vulnerability, and one with their number
    rm -f "$work/found"
    "${audit[@]}" --requirement "$1" --require-hashes --disable-pip --no-deps --progress-spinner off \
        --format json --output "$work/found" 2>"$work/said" || true # its status is 1 also when it reached nobody
    python3 - "$work/found" 2>/dev/null <<'EOF' ||
import json, sys

packages = json.load(open(sys.argv[1]))["dependencies"]
known = [(one["name"], one["version"], flaw) for one in packages for flaw in one.get("vulns", ())]
for name, version, flaw in known:
    print(f"{name} {version}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no version'}")
print(f"audit: {len(packages)} packages, {len(known)} known vulnerabilities")
EOF
        not_done "$(grep -v '^ *$' "$work/said" | tail -n 1 | cut -c 1-300)"
}

# A mirror of a package index may answer without knowing of any vulnerability. This version has some since 2018.
echo "requests==2.19.0 --hash=sha256:5722cd09762faa01276230270ff16af7acf7c5c45d623868d9ba116f15791ce8" >"$work/canary"
canary=$(look_up "$work/canary")
[[ $canary != *" 0 known vulnerabilities" ]] || not_done "the index that answers knows nothing of CVE-2018-18074"
found=$(look_up "${1:-requirements-dev.txt}")
echo "$found"
[[ $found == *" 0 known vulnerabilities" ]]
