#!/usr/bin/env bash
# The tests of each framework's integration, in its environment:
#   bash tests/integrations/run.sh [ENVIRONMENTS]
set -euo pipefail
cd "$(dirname "$0")/../.."
environments=${1:-.venv-frameworks}
export PYTHONPATH=$PWD

# Without the settings and fixtures of the other tests, which need JAX.
run() {
  "$environments/$1/bin/python" -m pytest -q -c tests/integrations/frameworks.ini \
    --rootdir=. --confcutdir=tests/integrations "${@:2}"
}

run torch -n 2 tests/integrations/test_flower.py \
  tests/integrations/test_opacus.py tests/integrations/test_pfl.py \
  tests/integrations/test_own_loop_notebook.py
run fedjax tests/integrations/test_fedjax.py
run nvflare tests/integrations/test_nvflare.py
