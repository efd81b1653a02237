#!/usr/bin/env bash
# Runs every example of this folder in the environment of its framework, and keeps
# what each auditor saw in a folder, for scripts/framework_docs.py:
#   bash examples/frameworks/run.sh FOLDER [ENVIRONMENTS]
# ENVIRONMENTS is what tests/auditor/adapters/install.sh made, .venv-frameworks.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?give a folder for the audits}
environments=${2:-.venv-frameworks}
mkdir -p "$out"
export PYTHONPATH=$PWD

.venv/bin/python examples/frameworks/numpy_loop.py --out="$out"
.venv/bin/python examples/frameworks/optax_quickstart.py --out="$out"
.venv/bin/python examples/frameworks/jax_privacy_quickstart.py --out="$out"
for name in flower pfl opacus; do
  "$environments/torch/bin/python" "examples/frameworks/${name}_quickstart.py" \
    --out="$out"
done
for name in fedjax nvflare; do
  "$environments/$name/bin/python" "examples/frameworks/${name}_quickstart.py" \
    --out="$out"
done
