#!/usr/bin/env bash
# The main job on this machine: raw files -> shuffled TFRecord shards -> Parquet and NumPy -> a trained model.
#
#   ./run_local.sh              sample inputs, made from data inside PyPI packages, into local/
#   ./run_local.sh RAW          your images, CSV, JSONL, text, Parquet or TFRecord files into local/out/own
#   ./run_local.sh RAW OUT      the same into OUT, read back into OUT-read
#   ./run_local.sh test         the tests; arguments after it are those of pytest
#
# The first run makes the virtual environment .venv. PYTHON=python3.12 ./run_local.sh chooses its interpreter, VENV another folder.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
work="$here/local"
venv="${VENV:-$here/.venv}"
bin="$venv/bin"
log="$work/run_local.log"
export TF_CPP_MIN_LOG_LEVEL=3 # no notes of TensorFlow about the processor and missing GPUs

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

# step TITLE COMMAND...: one line, which ends with the summary that the command prints; all of its output goes to the log.
step() {
  local title="$1" lines
  shift
  printf '%-8s' "$title"
  printf '\n$ %s\n' "$*" >>"$log"
  if ! lines="$("$@" 2>&1)"; then
    printf 'failed: %s\n%s\n' "$*" "$lines"
    exit 1
  fi
  printf '%s\n' "$lines" >>"$log"
  printf '%s\n' "$lines" | grep -v -e '^note: ' -e '^  ' -e '^$' | tail -n 1 || echo
}

# show TITLE COMMAND...: the command and all that it prints.
show() {
  shift
  printf '\n$ %s\n' "$*"
  "$@"
}

# install EXTRAS MEGABYTES [PACKAGE...]: recordmill with these extras, once. Versions are those that are tested.
install() {
  local extras="$1" megabytes="$2" python version
  shift 2
  [ ! -e "$venv/installed-$extras" ] || return 0
  python="$(find_python)"
  version="$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')"
  echo "install recordmill[$extras] into $venv, once: pip downloads about $megabytes MB, TensorFlow the largest,"
  echo "        and compiles the C++ library. This takes 2 to 15 minutes and prints nothing meanwhile."
  "$python" -m venv "$venv"
  "$bin/python" -m pip install --quiet --disable-pip-version-check -c "$here/.ci/constraints/py$version.txt" -e "$here[$extras]" "$@"
  touch "$venv/installed-$extras"
  echo "        done in $SECONDS s"
}

# build_and_read HOW REPLACE INPUT OUT READ [build's options]: a data set from INPUT, verified, and read back as Parquet and NumPy arrays.
# HOW is step or show, REPLACE --overwrite or empty.
build_and_read() {
  local how="$1" replace="$2" input="$3" out="$4" read="$5"
  shift 5
  "$how" build "$bin/recordmill" build "$input" --out "$out" $replace "$@"
  "$how" verify "$bin/recordmill" verify "$out"
  "$how" read "$bin/recordmill" read "$out" --out "$read/parquet" --to parquet $replace
  "$how" read "$bin/recordmill" read "$out" --out "$read/npy" --to npy $replace
}

samples() {
  cd "$here"
  here=. work=local
  [ -n "${VENV:-}" ] || bin=.venv/bin
  step samples "$bin/python" examples/make_samples.py "$work/raw"
  build_and_read step --overwrite "$work/raw/digits" "$work/out/digits" "$work/read/digits" --splits train=0.9,validation=0.1
  build_and_read step --overwrite "$work/raw/tables/wine.csv" "$work/out/wine" "$work/read/wine" --label target
  build_and_read step --overwrite "$work/raw/texts" "$work/out/texts" "$work/read/texts"
  build_and_read step --overwrite "$work/raw/packages.jsonl" "$work/out/packages" "$work/read/packages"
  step train "$bin/python" examples/train_keras.py "$work/out/digits" "$work/digits.keras"
  echo "done    in $SECONDS s. Shards: $work/out, Parquet and NumPy: $work/read, all output: ${log#"$PWD/"}"
}

case "${1:-}" in
  -h | --help)
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    ;;
  test)
    shift
    install dev 1500
    cd "$here"
    [ $# -gt 0 ] || set -- -n auto --dist loadfile
    exec "$bin/python" -m pytest "$@"
    ;;
  "")
    mkdir -p "$work"
    : >"$log"
    install beam,tf 750 scikit-learn
    samples
    ;;
  *)
    install beam,tf 750 scikit-learn
    if [ $# -ge 2 ]; then # what stands in a folder of the user's is never replaced
      out="${2%/}" read="${2%/}-read" replace=""
    else
      out="$work/out/own" read="$work/read/own" replace=--overwrite
    fi
    build_and_read show "$replace" "$1" "$out" "$read"
    printf '\nDone. Shards: %s, Parquet and NumPy: %s\n' "$out" "$read"
    ;;
esac
