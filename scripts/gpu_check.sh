#!/usr/bin/env bash
# Checks Braid on a machine with a GPU, in about ten minutes and without a network or a build. What
# it runs comes from a bundle (scripts/gpu_bundle.sh) and from this source tree.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

stages=(load correctness sharing formats probes speed)
usage() {
  cat <<END
usage: scripts/gpu_check.sh [--dry-run] [--python PYTHON] [--output DIRECTORY] BUNDLE [STAGE...]

  --dry-run           use two CPU workers in place of the GPU, and small models
  --python PYTHON     has NumPy and PyTorch for CUDA (default: python3)
  --output DIRECTORY  a log of each stage, and gpu.json with figures (default: build/gpu-check)
  STAGE               ${stages[*]} (default: all)

Stages:
  load         a server starts, is scraped before and after its first request, and ends
  correctness  inference, training, metrics and shared memory, compared with PyTorch
  sharing      versions and trainers in the same memory, a job and a trainer at once
  formats      AOTInductor packages and exported pairs, compared with PyTorch
  probes       synchronized batch norm, lack of memory, a lost GPU, serving and training and loading
               at once, unusual settings of the CUDA runtime, compute-sanitizer
  speed        bench/gpu --short
END
}

# Seconds for each stage. They add up to ten minutes.
declare -A limits=([load]=50 [correctness]=90 [sharing]=60 [formats]=130 [probes]=90 [speed]=180)
slowness=1
dry_run=no
python=python3
output=build/gpu-check
while (($#)) && [[ $1 == -* ]]; do
  case $1 in
    --dry-run) dry_run=yes ;;
    --python | --output)
      [[ -n ${2:-} ]] || { usage >&2 && exit 2; }
      declare "${1#--}=$2"
      shift
      ;;
    --help | -h) usage && exit ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done
(($#)) || { usage >&2 && exit 2; }
bundle=$1
shift
(($# == 0)) || stages=("$@")
for stage in "${stages[@]}"; do
  [[ -n ${limits[$stage]:-} ]] || fail "no stage '$stage' (expected ${!limits[*]})"
done
[[ -f $bundle ]] || fail "no file '$bundle': scripts/gpu_bundle.sh makes one"
python=$(command -v "$python") || fail "no Python '$python'"

# Fails unless the machine has what the bundle was made for.
check_machine() {
  local torch version found
  read -r torch version <"$work/bundle/versions"
  found=$("$python" -c 'import numpy, torch, sys
print(torch.__version__.partition("+")[0], "%d.%d" % sys.version_info[:2])') ||
    fail "$python has no NumPy or no PyTorch"
  [[ $found == "$torch $version" ]] ||
    fail "$python has PyTorch and Python $found (expected $torch $version, as the bundle)"
  say "PyTorch $torch, Python $version, $(nproc) processors"
  if [[ $dry_run == no ]]; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader ||
      fail "nvidia-smi failed: no GPU or no driver"
  fi
}

work=$(mktemp -d)
exporter=''
clean_up() {
  [[ -z $exporter ]] || kill "$exporter" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT
mkdir -p "$output"
rm -f "$output"/*.log "$output/gpu.json"
output=$(realpath "$output")
"$python" -W ignore -m tarfile -e "$bundle" "$work/bundle"
check_machine

export BUNDLE_PYTHON=$python BRAID_SERVER_BINARY=$work/bundle/braid-server
export PYTHONPATH=$work/bundle/packages:client/python:tests PYTHONUNBUFFERED=1
export GRPC_ENABLE_FORK_SUPPORT=false PYTHONDONTWRITEBYTECODE=1
# Plugins of the machine's Python may not fit the bundle's pytest.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
benchmark=(-m bench.gpu.gpu --packages "$work/models" --json "$output/gpu.json")
if [[ $dry_run == yes ]]; then
  export BRAID_GPU_TESTS_ON=cpu
  slowness=60 # A dry run may take its time, on a few busy cores.
  benchmark+=(--devices 'cpu*2' --small)
else
  benchmark+=(--short)
fi

# Prints the names of a stage's test files.
test_names() { # STAGE
  case $1 in
    load) say load ;;
    correctness) printf '%s\n' inference training metrics shared_memory ;;
    sharing) printf '%s\n' publish jobs ;;
    formats) printf '%s\n' formats pairs ;;
    probes) printf '%s\n' lost memory batch_norm workers sanitizer ;;
  esac
}

# Runs a stage's test files side by side, because most of their time is PyTorch's on one core.
run_tests() { # STAGE SECONDS
  local status=0 name
  # The inner shell expands these: $0 is Python, $1 the folder for logs, $2 the
  # seconds after which a test shows where it waits, $3 the file's name.
  # shellcheck disable=SC2016
  test_names "$1" | timeout --kill-after=15 "$2" \
    xargs --max-procs="$(nproc)" --max-args=1 bash -c '
      "$0" -m pytest -q -rsP -p no:cacheprovider --maxfail=10 -o "faulthandler_timeout=$2" \
        --durations=3 "tests/gpu/test_$3_gpu.py" >"$1/$3.log" 2>&1' \
    "$python" "$work" "$((60 * slowness))" || status=$?
  for name in $(test_names "$1"); do
    [[ -f $work/$name.log ]] || continue # Time was up before it began.
    say "  $name: $(tail -n 1 "$work/$name.log")"
    ((status == 0)) || sed -n 's/^\(E  .*\|FAILED.*\|ERROR.*\)/    \1/p' "$work/$name.log"
    cat "$work/$name.log" >>"$output/$1.log"
  done
  return "$status"
}

run_benchmark() { # SECONDS
  if [[ -n $exporter ]]; then
    wait "$exporter" || say "  exporting failed: see $output/speed.errors.log"
    exporter=''
  fi
  timeout --kill-after=15 "$1" "$python" "${benchmark[@]}" \
    2>>"$output/speed.errors.log" | tee "$output/speed.log"
}

# Exports the benchmark's models while tests run.
start_exporting() {
  timeout "$((300 * slowness))" "$python" "${benchmark[@]}" export \
    >"$output/speed.errors.log" 2>&1 &
  exporter=$!
}

started=$SECONDS
failed=()
for stage in "${stages[@]}"; do
  limit=$((slowness * limits[$stage]))
  stage_started=$SECONDS
  status=0
  say "== $stage (at most $limit s)"
  if [[ $stage == speed ]]; then
    run_benchmark "$limit" || status=$?
  else
    run_tests "$stage" "$limit" || status=$?
  fi
  seconds=$((SECONDS - stage_started))
  case $status in
    0) say "$stage: PASSED in $seconds s" ;;
    124 | 137) say "$stage: FAILED: not done after $limit s" ;;
    *) say "$stage: FAILED after $seconds s, status $status" ;;
  esac
  ((status == 0)) || failed+=("$stage")
  if [[ $stage == load ]]; then
    ((status == 0)) || break # Nothing else can work.
    [[ " ${stages[*]} " != *' speed '* ]] || start_exporting
  fi
done

((${#failed[@]} == 0)) || fail "failed: ${failed[*]}; logs are in $output"
say "All passed in $((SECONDS - started)) s: ${stages[*]}; logs are in $output"
