#!/usr/bin/env bash
# What nvllm is for, in one sitting: lock check, build, serve, one completion, bless, blessed serve, a tampered byte,
# the refusal. Everything is real; only the model is tiny. Whatever way it ends, the bytes are put back and nothing runs
# on. The project is a copy, .demo/: what is blessed in it stays there, and a second demo serves it at once.
set -euo pipefail
cd "$(dirname "$0")/.."

nvllm=.venv/bin/nvllm
project=.demo
began=$SECONDS
tampered=""
rm -rf "$project"/{images,patches}
mkdir -p "$project"
cp -R images manifests patches "$project/"

step() { printf '\n\033[1m== %s\033[0m  (%d s)\n' "$*" $((SECONDS - began)); }
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] || step() { printf '\n== %s  (%d s)\n' "$*" $((SECONDS - began)); }
run() {
    printf '$ nvllm %s\n' "$*"
    "$nvllm" --project "$project" "$@"
}
refused() { # `nvllm serve` of profile $1 must be refused
    status=0
    run serve cpu --profile "$1" --detach || status=$?
    [ "$status" -eq 3 ] || { echo "demo: expected exit status 3 (refused), found $status" >&2; exit 1; }
}
serving() { # the instance that serves: its name ends otherwise if another checkout has one of this profile
    "$nvllm" --project "$project" --json status | .venv/bin/python -c '
import json
import sys

print(*(each["instance"] for each in json.load(sys.stdin)["result"]["instances"] if each["stage"] == "ready"))
'
}
unserved() { # whether the build ends because nobody has a locked Debian package any more
    { "$nvllm" --project "$project" --json build cpu 2>/dev/null || true; } | .venv/bin/python -c '
import json
import sys

refusals = json.load(sys.stdin).get("refusals", [])
sys.exit(not any(one["code"] == "NV206" and one["where"].startswith("index debian:") for one in refusals))
'
}
finish() {
    status=$?
    trap - EXIT
    [ -n "$tampered" ] && .venv/bin/python tools/flip.py "$tampered"
    "$nvllm" --project "$project" --quiet stop --all >/dev/null 2>&1 || true
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# What a lock of this host's platform is called. One that nobody has committed is made here, and kept for the next demo.
lock=$(.venv/bin/python - "$(uname -m)" <<'PYTHON_END'
import sys

from nvllm.core.paths import host_platform, lock_name

print(lock_name("cpu", host_platform(sys.argv[1])))
PYTHON_END
)
if [ ! -e "manifests/$lock" ]; then
    step "no lock of image cpu for $(uname -m) is committed: made first, as $project/manifests/$lock"
    run lock cpu
fi

step 'the lock pins every byte, and fits its spec and its series'
run patch check cpu
run build cpu --dry-run

step 'build: from locked inputs to an image, held against the recorded digests'
status=0
run build cpu || status=$?
if [ "$status" -ne 0 ]; then
    unserved || exit "$status"
    step 'no mirror has a locked Debian package any more: the lock of this copy moves on, and this is how far'
    run lock cpu --update debs
    run build cpu
fi
run build cpu

step 'the model: made here, and compared with the tree hash of the spec'
run model check cpu 2>/dev/null || run model make cpu tiny-lfm2

step 'serve: checks, container, gate, one real generation'
run serve cpu --profile tiny-eager --detach
run status

step 'one completion'
.venv/bin/python - <<'PYTHON_END'
import json
import urllib.request

question = {"model": "tiny-lfm2", "prompt": "hello world the quick", "max_tokens": 8, "temperature": 0}
request = urllib.request.Request(
    "http://127.0.0.1:8000/v1/completions", json.dumps(question).encode(), {"content-type": "application/json"}
)
with urllib.request.urlopen(request, timeout=60) as answer:
    body = json.load(answer)
print(f"{question['prompt']!r} goes on {body['choices'][0]['text']!r}: {body['usage']['completion_tokens']} tokens")
PYTHON_END
run stop --all

step 'bless: one cold compile, five fresh containers on the read-only cache'
"$nvllm" --project "$project" --quiet serve cpu --profile tiny-blessed --dry-run >/dev/null 2>&1 ||
    run bless cpu --profile tiny-blessed
run manifest list

step 'serve what was blessed: the code is loaded, nothing is compiled'
run serve cpu --profile tiny-blessed --detach
"$nvllm" --project "$project" logs "$(serving)" | grep -m 1 'Directly load AOT compilation from path'
run stop --all

step 'one byte of the blessed cache is changed: refused, with the file and the cure'
tampered=$(.venv/bin/python tools/flip.py --find tiny-blessed "$nvllm" --project "$project")
.venv/bin/python tools/flip.py "$tampered"
refused tiny-blessed
.venv/bin/python tools/flip.py "$tampered"
tampered=""

step 'restored: it would be served again'
run serve cpu --profile tiny-blessed --dry-run >/dev/null
echo "demo: done in $((SECONDS - began)) s"
