#!/usr/bin/env bash
# Runs the program of a bundle that has this script's name, with LibTorch and the CUDA libraries of
# the machine's PyTorch. scripts/gpu_bundle.sh puts copies of this script into the bundle.
#
# In the environment: BUNDLE_PYTHON, the Python that has PyTorch (default: python3).
set -euo pipefail
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
torch=$("${BUNDLE_PYTHON:-python3}" -c '
import importlib.util
print(importlib.util.find_spec("torch").submodule_search_locations[0])')
libraries=$bundle/lib:$torch/lib
for folder in "$torch"/../nvidia/*/lib; do
  libraries+=:$folder
done
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$bundle/bin/$(basename "$0")" "$@"
