#!/usr/bin/env bash
# The peers of benchmarks/speed/rounds.py, each in a virtual environment of its own:
#   bash benchmarks/peers/install.sh [FOLDER]
# It needs Python 3.11 (PYTHON=python3.11), a C++ compiler and 6 GB.
# PEERS="pfl fedjax" installs these alone. What is there already is kept.
set -euo pipefail
folder=${1:-$(dirname "$0")/env}
mkdir -p "$folder"
cd "$folder"
peers=${PEERS:-pfl fedjax tff authors}
python=${PYTHON:-python3.11}

environment() {
  [ -x "$1/bin/python" ] || "$python" -m venv "$1"
}

for peer in $peers; do
  [ -e "$peer/installed" ] && continue
  case $peer in
    pfl)
      environment pfl
      # The build for the CPU, wherever pip finds one.
      pfl/bin/pip install 'torch==2.13.0+cpu' ||
        pfl/bin/pip install torch==2.13.0
      pfl/bin/pip install pfl==0.6.0
      ;;
    fedjax)
      environment fedjax
      fedjax/bin/pip install fedjax==0.0.17 jax==0.4.30 jaxlib==0.4.30 \
        dm-haiku==0.0.12 'numpy<2'
      ;;
    tff)
      environment tff
      # TFF's own requirements, but for jax and jaxlib, which it pins to 0.4.14,
      # and with limits on what its dependencies leave open. pip cannot override
      # a pin, so TFF comes last and alone.
      tff/bin/pip install 'absl-py>=1,<2' 'attrs~=23.1' 'cachetools~=5.3' \
        dm-tree==0.1.8 dp-accounting==0.4.3 farmhashpy==0.4.0 \
        google-vizier==0.1.11 'grpcio~=1.46' jax==0.4.18 jaxlib==0.4.18 \
        'ml-dtypes<0.4' 'numpy~=1.25' 'portpicker~=1.6' 'pyarrow<15' \
        'scipy~=1.9.3' 'semantic-version~=2.6' 'setuptools<70' \
        'tensorflow==2.14.*' 'tensorflow-compression==2.14.*' \
        'tensorflow-datasets<4.9.5' tensorflow-model-optimization==0.7.5 \
        tensorflow-privacy==0.8.12 'tqdm~=4.64' 'typing-extensions==4.5.*'
      tff/bin/pip install --no-deps tensorflow-federated==0.64.0
      ;;
    authors)
      # one_shot_epe, the authors' released code, which TFF runs.
      [ -d authors/one_shot_epe ] && continue
      git init -q authors
      if git -C authors fetch -q --depth 1 \
          https://github.com/google-research/federated \
          83e4fb53c3506713a6f545bac414eb4af9d5a1d0 &&
          git -C authors checkout -q FETCH_HEAD -- one_shot_epe; then
        touch authors/one_shot_epe/__init__.py
      else
        rm -rf authors
        echo "The authors' code cannot be had: TFF will not be measured." >&2
        continue
      fi
      ;;
    *)
      echo "$peer is none of pfl, fedjax, tff, authors." >&2
      exit 1
      ;;
  esac
  touch "$peer/installed"
done
