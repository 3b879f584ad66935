#!/usr/bin/env bash
# All that a change must pass: style, types, architecture, tests. Runs every check, then fails if one
# did.
#
#   scripts/check.sh [--no-tests]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(scripts/environment.sh test)
bin=$(dirname "$python")
failed=()

check() {
    printf '\n== %s\n' "$*"
    "$@" || failed+=("$*")
}

check "$bin/ruff" check .
check "$bin/ruff" format --check .
check "$bin/pyright" --pythonpath "$python"
check "$bin/lint-imports"
if [ "${1:-}" != --no-tests ]; then
    check scripts/test.sh
fi

if [ ${#failed[@]} -gt 0 ]; then
    printf '\nfailed: %s\n' "${failed[@]}" >&2
    exit 1
fi
