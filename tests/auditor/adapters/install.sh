#!/usr/bin/env bash
# The frameworks of epe_jax.auditor.adapters, in virtual environments of their own:
#   bash tests/auditor/adapters/install.sh [FOLDER]
# FRAMEWORKS="torch" installs these alone, and NEWEST=1 the newest of each. What is there
# already is kept. It needs Python 3.11 (PYTHON=python3.11) and 5 GB; nothing of it is
# needed by other tests.
set -euo pipefail
cd "$(dirname "$0")/../../.."
folder=${1:-.venv-frameworks}
python=${PYTHON:-python3}
mkdir -p "$folder"
# A framework of the version that is tested, or the newest.
pin() { [ -n "${NEWEST:-}" ] && echo "${1%%==*}" || echo "$1"; }
# What the package requires, without the package: the tests run that of this
# checkout. Nothing is built, so that several frameworks can be installed at a time.
mapfile -t required < <("$python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
  print(*tomllib.load(file)["project"]["dependencies"], sep="\n")
')

for name in ${FRAMEWORKS:-torch lora nvflare}; do
  pip="$folder/$name/bin/pip"
  [ -e "$folder/$name/installed" ] && continue
  "$python" -m venv "$folder/$name"
  "$pip" install -q pytest pytest-xdist
  case $name in
    torch)
      # The build for the CPU, wherever pip finds one.
      "$pip" install -q 'torch==2.13.0+cpu' || "$pip" install -q torch==2.13.0
      "$pip" install -q "$(pin 'flwr[simulation]==1.42.0')" "$(pin opacus==1.6.0)" \
        "$(pin pfl==0.6.0)" "${required[@]}"
      # Of APPFL what its trainer imports, for benchmarks/conformance/findings.py.
      "$pip" install -q --no-deps "$(pin appfl==1.12.0)"
      "$pip" install -q omegaconf wandb
      # For the notebook of a loop in PyTorch.
      "$pip" install -q ipykernel matplotlib nbclient nbconvert nbformat
      ;;
    lora)
      "$pip" install -q 'torch==2.13.0+cpu' || "$pip" install -q torch==2.13.0
      "$pip" install -q "$(pin opacus==1.6.0)" "$(pin peft==0.21.2)" \
        "$(pin transformers==5.24.0)" "${required[@]}"
      ;;
    nvflare) "$pip" install -q "$(pin nvflare==2.9.0)" "${required[@]}" ;;
    # Released versions are in the environment of all other tests.
    jax)
      "$pip" install -q 'jaxlib!=0.10.2' optax scikit-learn 'jax_privacy @ git+https://github.com/google-deepmind/jax_privacy' \
        "${required[@]}"
      ;;
    *)
      echo "$name is none of torch, lora, nvflare, jax." >&2
      exit 1
      ;;
  esac
  touch "$folder/$name/installed"
done
