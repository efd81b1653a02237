#!/usr/bin/env bash
# docs/screenshots: the report of `make run` in Chromium.
#   bash scripts/screenshots.sh
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

chromium --headless --no-sandbox --disable-gpu --hide-scrollbars \
  --force-device-scale-factor=1 --user-data-dir="$scratch/profile" \
  --window-size=1100,1150 --screenshot="$PWD/docs/screenshots/report_wide.png" \
  "file://$PWD/runs/digits/report.html"
