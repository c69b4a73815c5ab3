#!/usr/bin/env bash
# The main job on this machine: raw files -> shuffled TFRecord shards -> Parquet and NumPy -> a trained model.
#
#   ./run_local.sh              sample inputs, made from data inside PyPI packages, into local/
#   ./run_local.sh RAW          RAW (images, CSV, JSONL, text, Parquet or TFRecord files; the kind is told from the content) into local/out/own
#   ./run_local.sh RAW OUT      the same into OUT, read back into OUT-read
#
# It makes the virtual environment .venv if there is none. PYTHON=python3.12 ./run_local.sh chooses the interpreter it is made with.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
work="$here/local"
bin="$here/.venv/bin"

say() { if [ -t 1 ]; then printf '\n\033[1m== %s\033[0m\n' "$*"; else printf '\n== %s\n' "$*"; fi; }
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
  if [ ! -e "$here/.venv/installed-by-run-local" ]; then
    local python version
    python="$(find_python)"
    version="$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')"
    say "Installing recordmill with all extras, and scikit-learn for the samples, into .venv (some minutes, once)"
    run "$python" -m venv "$here/.venv"
    run "$bin/python" -m pip install --quiet -c "$here/.ci/constraints/py$version.txt" -e "$here[all]" scikit-learn
    touch "$here/.venv/installed-by-run-local"
  fi
}

# build_and_read REPLACE INPUT OUT READ [build's options]: one data set from INPUT, verified, and read back as Parquet and as NumPy arrays.
# REPLACE is --overwrite or empty.
build_and_read() {
  local replace="$1" input="$2" out="$3" read="$4"
  shift 4
  say "Building $out from $input"
  run "$bin/recordmill" build "$input" --out "$out" $replace "$@"
  say "Verifying $out: every shard against the manifest"
  run "$bin/recordmill" verify "$out"
  say "Reading $out back to Parquet: $read/parquet"
  run "$bin/recordmill" read "$out" --out "$read/parquet" --to parquet $replace
  say "Reading $out back to NumPy: $read/npy"
  run "$bin/recordmill" read "$out" --out "$read/npy" --to npy $replace
}

samples() {
  local name
  cd "$here"
  here=. work=local bin=.venv/bin
  say "Making sample inputs: $work/raw"
  run "$bin/python" "$here/examples/make_samples.py" "$work/raw"
  build_and_read --overwrite "$work/raw/digits" "$work/out/digits" "$work/read/digits" --splits train=0.9,validation=0.1
  for name in iris wine breast_cancer diabetes; do
    build_and_read --overwrite "$work/raw/tables/$name.csv" "$work/out/$name" "$work/read/$name" --label target
  done
  build_and_read --overwrite "$work/raw/texts" "$work/out/texts" "$work/read/texts"
  build_and_read --overwrite "$work/raw/packages.jsonl" "$work/out/packages" "$work/read/packages"
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
    if [ $# -ge 2 ]; then # what stands in a folder of the user's is never replaced
      build_and_read "" "$1" "${2%/}" "${2%/}-read"
      say "Done. Shards: ${2%/}, Parquet and NumPy: ${2%/}-read"
    else
      build_and_read --overwrite "$1" "$work/out/own" "$work/read/own"
      say "Done. Shards: $work/out/own, Parquet and NumPy: $work/read/own"
    fi
    ;;
esac
