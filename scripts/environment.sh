#!/usr/bin/env bash
# Makes the virtual environment where there is none, installs jaxtrain into it and prints the path
# of its interpreter. The scripts beside this one call it first; nothing is done twice.
#
#   scripts/environment.sh [EXTRA …]        extras of pyproject.toml: test, reference, cuda12
#
# PYTHON=python3.12 asks for an interpreter; without it an existing .venv is used, or made with
# python3. Where .venv has another version than the one asked for, .venv-3.12 and the like are used.
# EXTRAS="cuda12" in the environment adds extras to whatever a script asks for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

venv=.venv
if [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ]; then
    base=.venv/bin/python
else
    base=${PYTHON:-python3}
fi
version=$(version_of "$base") ||
    fail "no Python found as '$base'; install Python 3.11 or newer, or name it: PYTHON=/path/to/python3 $0"
"$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "jaxtrain needs Python 3.11 or newer and '$base' is $version; name another: PYTHON=python3.12 $0"

if [ -x .venv/bin/python ] && [ "$(version_of .venv/bin/python)" != "$version" ]; then
    venv=.venv-$version
fi
if [ ! -x "$venv/bin/python" ]; then
    echo "making $venv with $base (Python $version)" >&2
    "$base" -m venv "$venv" >&2 ||
        fail "'$base -m venv' failed; on Debian and Ubuntu, 'apt install python3-venv' brings it"
fi

# A stamp for the package and one for each extra, holding what they were installed from.
wanted=$(cat pyproject.toml constraints.txt)
is_installed() { [ -f "$venv/.installed-$1" ] && [ "$(cat "$venv/.installed-$1")" = "$wanted" ]; }

read -ra extras <<<"$* ${EXTRAS:-}"
missing=()
for part in core "${extras[@]}"; do
    is_installed "$part" || missing+=("$part")
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "installing jaxtrain (${missing[*]}) into $venv; some hundred MB the first time" >&2
    list=$(IFS=, && echo "${extras[*]}")
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        -c constraints.txt -e ".${list:+[$list]}" >&2 ||
        fail "the installation failed; the lines above say why"
    for part in "${missing[@]}"; do
        printf '%s\n' "$wanted" >"$venv/.installed-$part"
    done
fi
echo "$PWD/$venv/bin/python"
