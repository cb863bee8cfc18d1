#!/usr/bin/env bash
# What nvllm is for, in one sitting: lock check, build, serve, one completion, a tampered file, the refusal.
# Everything is real; only the model is tiny. Whatever way it ends, the model is put back and nothing runs on.
set -euo pipefail
cd "$(dirname "$0")/.."

nvllm=.venv/bin/nvllm
instance=nvllm-cpu-tiny-eager
model_file="${NVLLM_HOME:+$NVLLM_HOME/cache}"
model_file="${model_file:-${XDG_CACHE_HOME:-$HOME/.cache}/nvllm}/models/tiny-lfm2/config.json"
saved="${model_file%/*}.config.json.untampered"  # beside the model: inside it would be an extra file
began=$SECONDS

step() { printf '\n\033[1m== %s\033[0m  (%d s)\n' "$*" $((SECONDS - began)); }
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] || step() { printf '\n== %s  (%d s)\n' "$*" $((SECONDS - began)); }
run() {
    printf '$ nvllm %s\n' "$*"
    "$nvllm" "$@"
}
finish() {
    status=$?
    trap - EXIT
    [ -f "$saved" ] && mv -f "$saved" "$model_file"
    "$nvllm" --quiet stop "$instance" >/dev/null 2>&1 || true
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step 'the lock pins every byte, and fits its spec and its series'
run patch check cpu
run build cpu --dry-run

step 'build: from locked inputs to an image, the same bytes everywhere'
run build cpu
run build cpu

step 'the model: made inside the image, pinned by its tree hash'
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
run stop "$instance"

step 'one byte of the model is changed: refused, with the file and the cure'
cp -p "$model_file" "$saved"
sed -i 's/"hidden_size": 64/"hidden_size": 65/' "$model_file"
status=0
run serve cpu --profile tiny-eager --detach || status=$?
mv -f "$saved" "$model_file"
[ "$status" -eq 3 ] || { echo "demo: expected exit status 3 (refused), found $status" >&2; exit 1; }

step 'restored: it would be served again'
run serve cpu --profile tiny-eager --dry-run >/dev/null
echo "demo: done in $((SECONDS - began)) s"
