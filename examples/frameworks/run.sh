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
for name in flower secagg pfl opacus; do
  "$environments/torch/bin/python" "examples/frameworks/${name}_quickstart.py" \
    --out="$out"
done
# The mechanism of the Flower example. The exit status is 1, as a rule is broken.
check=(check epe_jax.conformance.adapters.flower:fixed_clipping --num_clients=12
  --clip_norm=2 --noise_multiplier=0.5 --shapes=8x9,8,128x64,64,64x4,4)
{
  echo "epe-jax ${check[*]}"
  "$environments/torch/bin/python" -m epe_jax "${check[@]}" 2>/dev/null || [ $? = 1 ]
} >"$out/flower.check.txt"
"$environments/lora/bin/python" examples/frameworks/dp_lora_gpt2.py --out="$out"
"$environments/nvflare/bin/python" examples/frameworks/nvflare_quickstart.py \
  --out="$out"
