#!/usr/bin/env bash
# The whole test suite, or what is named of it.
#
#   scripts/test.sh [pytest arguments]      e.g. scripts/test.sh tests/data -k packing
#   JOBS=4 scripts/test.sh                  in so many processes at once instead of 2; each takes 4 GB
#   PYTHON=python3.12 scripts/test.sh       on another interpreter, in an environment of its own
#   EXTRAS=reference scripts/test.sh        with the tests that compare with torch and transformers
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(scripts/environment.sh test)
# A file's tests stay together: they share what they have compiled.
exec "$python" -m pytest -n "${JOBS:-2}" --dist loadfile "$@"
