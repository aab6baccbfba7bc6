#!/usr/bin/env bash
# Everything that needs a GPU, in under 8 minutes: tests, bandwidths, overlap, dispatch. Where no GPU answers it runs on
# fake ones, without times. `bash bench/gpu_check.sh --help` lists the options.
# Needs: pip install -e '.[cuda12]' pytest (or cuda13); PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-python3}" -m bench.gpu_check "$@"
