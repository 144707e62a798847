#!/usr/bin/env bash
# This library on one GPU of a machine without network (docs/scaling.md, "On a GPU").
#   benchmarks/gpu.sh wheels DIR [--python 3.12] [--only NAME ...]    beforehand, with network: packages that the machine lacks
#   benchmarks/gpu.sh [--wheels DIR] --call 1 --out OUT [OPTIONS of gpu.py]    there: installs them aside and measures;
#                                                         then --call 2 and --call 3, ten minutes each
# PYTHON names the interpreter (python3).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}

if [ "${1-}" = wheels ]; then
    shift
    exec "$python" "$here/gpu_wheels.py" fetch "$@"
fi

folder=()
if [ "${1-}" = --wheels ]; then
    folder=("${2:?--wheels: expected a folder}")
    shift 2
fi
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
"$python" "$here/gpu_wheels.py" install ${folder[@]+"${folder[@]}"} "$site"
export PYTHONPATH="$here/../src:$site${PYTHONPATH:+:$PYTHONPATH}"
"$python" "$here/gpu.py" "$@"
