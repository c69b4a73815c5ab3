#!/usr/bin/env bash
# The main job on this machine: raw files -> shuffled TFRecord shards -> Parquet and NumPy -> a trained model.
#
#   ./run_local.sh              sample inputs, made from data inside PyPI packages, into local/
#   ./run_local.sh RAW          RAW (images, CSV, JSONL, text, Parquet or TFRecord files; the kind is told from the content) into local/out/own
#   ./run_local.sh RAW OUT      the same into OUT
#
# It makes the virtual environment .venv if there is none. PYTHON=python3.12 ./run_local.sh chooses the interpreter it is made with.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
work="$here/local"
bin="$here/.venv/bin"

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }

find_python() {
  local name
  for name in ${PYTHON:-python3.11 python3.12 python3.13 python3.10 python3}; do
    if "$name" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
      printf '%s\n' "$name"
      return
    fi
  done
  echo "run_local.sh needs Python 3.10 to 3.13; PYTHON=/path/to/python3.11 ./run_local.sh names one" >&2
  exit 1
}

install() {
  if [ ! -x "$bin/recordmill" ]; then
    local python version
    python="$(find_python)"
    version="$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')"
    say "Installing recordmill with all extras, and scikit-learn for the samples, into .venv (some minutes, once)"
    run "$python" -m venv "$here/.venv"
    run "$bin/python" -m pip install --quiet -c "$here/constraints/py$version.txt" -e "$here[all]" scikit-learn
  fi
}

# build INPUT OUT READ [build's options]: one data set from INPUT, verified, and read back as Parquet and as NumPy arrays.
build_and_read() {
  local input="$1" out="$2" read="$3"
  shift 3
  say "Building $out from $input"
  run "$bin/recordmill" build "$input" --out "$out" "$@"
  say "Verifying $out: every shard against the manifest"
  run "$bin/recordmill" verify "$out"
  say "Reading $out back to Parquet: $read/parquet"
  run "$bin/recordmill" read "$out" --out "$read/parquet" --to parquet --overwrite
  say "Reading $out back to NumPy: $read/npy"
  run "$bin/recordmill" read "$out" --out "$read/npy" --to npy --overwrite
}

samples() {
  local name
  say "Making sample inputs: $work/raw"
  run "$bin/python" "$here/examples/make_samples.py" "$work/raw"
  build_and_read "$work/raw/digits" "$work/out/digits" "$work/read/digits" --splits train=0.9,validation=0.1 --overwrite
  for name in iris wine breast_cancer diabetes; do
    build_and_read "$work/raw/tables/$name.csv" "$work/out/$name" "$work/read/$name" --label target --overwrite
  done
  build_and_read "$work/raw/texts" "$work/out/texts" "$work/read/texts" --overwrite
  build_and_read "$work/raw/packages.jsonl" "$work/out/packages" "$work/read/packages" --overwrite
  say "The first records of $work/out/wine"
  run "$bin/recordmill" head "$work/out/wine" -n 2
  say "Training a small Keras model for one epoch on $work/out/digits"
  export TF_CPP_MIN_LOG_LEVEL=3 # TensorFlow's notes about the processor and missing GPUs
  run "$bin/python" "$here/examples/train_keras.py" "$work/out/digits" "$work/digits.keras"
  say "Done. Shards: $work/out, Parquet and NumPy: $work/read, model: $work/digits.keras"
}

case "${1:-}" in
  -h | --help)
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    ;;
  "")
    install
    samples
    ;;
  *)
    install
    out="${2:-$work/out/own}"
    name="$(basename "$out")"
    build_and_read "$1" "$out" "$work/read/$name"
    say "Done. Shards: $out, Parquet and NumPy: $work/read/$name"
    ;;
esac
