#!/usr/bin/env bash
# The whole test suite, or what is named of it.
#
#   scripts/test.sh [pytest arguments]      e.g. scripts/test.sh tests/data -k packing
#   PYTHON=python3.12 scripts/test.sh       on another interpreter, in an environment of its own
#   EXTRAS=reference scripts/test.sh        with the tests that compare with torch and transformers
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(scripts/environment.sh test)
exec "$python" -m pytest "$@"
