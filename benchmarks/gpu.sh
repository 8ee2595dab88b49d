#!/usr/bin/env bash
# Checks the CUDA path against dense attention and stock transformers, and times it: under 4 minutes.
#
#   bash benchmarks/gpu.sh              results in benchmarks/results/gpu.json (or in $OUT, if set)
#   PYTHON=... bash benchmarks/gpu.sh   with this Python
#   bash benchmarks/gpu.sh --dry        without a GPU: every line of it, on small things
#
# Takes the first Python whose torch sees a GPU: PYTHON, the project's own, the machine's. Installs
# nothing, reaches for no network; without the default model it takes random weights of its shapes.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
out="${OUT:-benchmarks/results}/gpu.json"

has_gpu() {
  "$1" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null
}

for python in ${PYTHON:-} .venv/bin/python python3; do
  command -v "$python" >/dev/null || continue
  if [ "${1:-}" = --dry ]; then
    TRITON_INTERPRET=1 exec "$python" benchmarks/gpu.py --dry
  elif has_gpu "$python"; then
    unset TRITON_INTERPRET
    exec timeout 235 "$python" benchmarks/gpu.py --out "$out"
  fi
done
echo "benchmarks/gpu.sh: no GPU here, so the CUDA path was not run. It needs an NVIDIA GPU and a Python" >&2
echo "whose torch is a CUDA build: name one with PYTHON=..., or make one with \`make setup\`." >&2
exit 2
