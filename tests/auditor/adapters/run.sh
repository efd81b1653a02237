#!/usr/bin/env bash
# The tests of each framework's integration, in its environment:
#   bash tests/auditor/adapters/run.sh [ENVIRONMENTS [ENVIRONMENT TEST...]]
set -euo pipefail
cd "$(dirname "$0")/../../.."
environments=${1:-.venv-frameworks}
export PYTHONPATH=$PWD

# Without the settings and fixtures of the other tests, which need JAX.
run() {
  "$environments/$1/bin/python" -m pytest -q -c tests/auditor/adapters/frameworks.ini \
    --rootdir=. --confcutdir=tests/auditor/adapters "${@:2}"
}

if [ $# -gt 1 ]; then
  run "${@:2}"
  exit
fi
run torch -n 2 tests/auditor/adapters/test_flower.py \
  tests/auditor/adapters/test_opacus.py tests/auditor/adapters/test_pfl.py \
  tests/auditor/adapters/test_own_loop_notebook.py
run lora tests/auditor/adapters/test_dp_lora.py
run nvflare tests/auditor/adapters/test_nvflare.py
