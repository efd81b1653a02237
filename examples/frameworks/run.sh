#!/usr/bin/env bash
# Runs every example of this folder in the environment of its framework, and keeps
# what each auditor saw, and with which versions, for scripts/framework_docs.py:
#   bash examples/frameworks/run.sh FOLDER [ENVIRONMENTS]
# ENVIRONMENTS is what tests/auditor/adapters/install.sh made, .venv-frameworks.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?give a folder for the audits}
environments=${2:-.venv-frameworks}
mkdir -p "$out"
export PYTHONPATH=$PWD

# audit ENVIRONMENT EXAMPLE PACKAGE...: writes NAME.npz, and NAME.versions.json.
audit() {
  local python="$1/bin/python" example=$2
  "$python" "examples/frameworks/$example.py" --out="$out"
  "$python" -c 'import importlib.metadata as m, json, platform, sys
made = {"python": platform.python_version(), **{x: m.version(x) for x in sys.argv[1:]}}
print(json.dumps(made))' numpy scipy "${@:3}" >"$out/${example%_*}.versions.json"
}

audit .venv numpy_loop
audit .venv optax_quickstart optax jax jaxlib
audit .venv jax_privacy_quickstart jax-privacy jax jaxlib
torch=$environments/torch
audit "$torch" flower_quickstart flwr
audit "$torch" secagg_quickstart flwr
audit "$torch" pfl_quickstart pfl torch
audit "$torch" opacus_quickstart opacus torch
# The mechanism of the Flower example. The exit status is 1, as a rule is broken.
check=(check epe_jax.conformance.adapters.flower:fixed_clipping --num_clients=12
  --clip_norm=2 --noise_multiplier=0.5 --shapes=8x9,8,128x64,64,64x4,4)
{
  echo "epe-jax ${check[*]}"
  "$torch/bin/python" -m epe_jax "${check[@]}" 2>/dev/null || [ $? = 1 ]
} >"$out/flower.check.txt"
audit "$environments/lora" dp_lora_gpt2 opacus peft torch transformers
audit "$environments/nvflare" nvflare_quickstart nvflare
