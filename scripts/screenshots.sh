#!/usr/bin/env bash
# docs/screenshots: the report of the recorded digits run in Chromium, wide, in a dark
# theme, on a phone, and the first page on paper (which poppler's pdftoppm draws).
#   bash scripts/screenshots.sh
set -euo pipefail
cd "$(dirname "$0")/.."
page=file://$PWD/docs/runs/digits/report.html
out=$PWD/docs/screenshots
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

browse() {
  chromium --headless --no-sandbox --disable-gpu --hide-scrollbars \
    --force-device-scale-factor=1 --user-data-dir="$scratch/profile" "$@" 2>"$scratch/log" ||
    { cat "$scratch/log" >&2; exit 1; }
}

browse --window-size=1100,1150 --screenshot="$out/report_wide.png" "$page"
browse --window-size=1100,1150 --blink-settings=preferredColorScheme=0 \
  --screenshot="$out/report_dark.png" "$page"
# A window has a least width, and a frame has none.
echo "<body style='margin: 0'><iframe src='$page' width=360 height=1500 style='border: 0'>" \
  >"$scratch/phone.html"
browse --window-size=600,1500 --screenshot="$scratch/phone.png" "$scratch/phone.html"
.venv/bin/python -c '
import sys
from PIL import Image
source, target = sys.argv[1:]
Image.open(source).crop((0, 0, 360, 1500)).save(target)
' "$scratch/phone.png" "$out/report_phone.png"
browse --no-pdf-header-footer --print-to-pdf="$scratch/report.pdf" "$page"
pdftoppm -png -r 90 -f 1 -singlefile "$scratch/report.pdf" "$out/report_print"
