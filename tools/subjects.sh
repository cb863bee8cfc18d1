#!/usr/bin/env bash
# Says which commit subjects are not `room: what` in at most 72 characters; the exit status is 1 if any is not.
#   tools/subjects.sh COMMIT             of the commits since COMMIT, without merges
#   tools/subjects.sh --message FILE     of the message in FILE, as git's hook commit-msg has it
set -euo pipefail

subjects() {
    if [ "${1:-}" = --message ]; then
        grep -v '^#' "$2" | sed '/./,$!d' | head -n 1
    else
        git log --no-merges --format=%s "${1:?name a commit: tools/subjects.sh COMMIT}..HEAD"
    fi
}

bad=0
while IFS= read -r subject; do
    case $subject in
        Merge[:\ ]* | Revert\ * | fixup!\ * | squash!\ *) continue ;;
    esac
    if [ ${#subject} -gt 72 ]; then
        echo "${#subject} characters, and 72 are allowed: $subject" >&2
        bad=1
    elif ! [[ $subject =~ ^[a-z][a-z0-9_-]*:\ [^\ ] ]]; then
        echo "not \`room: what\`: $subject" >&2
        bad=1
    fi
done < <(subjects "$@")
exit "$bad"
