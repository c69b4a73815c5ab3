#!/usr/bin/env bash
# Runs a Flink cluster on this machine, to try `recordmill` on an engine. It has a JobManager and two TaskManagers, each with Python workers of its own.
#   examples/cluster/flink_local.sh up                                   downloads what is missing, starts the cluster, and waits until it is ready
#   examples/cluster/flink_local.sh submit build photos/ --out shards    runs `recordmill build photos/ --out shards` on it
#   examples/cluster/flink_local.sh serve                                starts a job server that stays, so that jobs of `submit` continue after the command ends
#   examples/cluster/flink_local.sh fetch                                only downloads what `up` needs
#   examples/cluster/flink_local.sh flags                                prints the flags that `submit` passes to recordmill
#   examples/cluster/flink_local.sh down                                 stops only the processes that this script has started
# Needs Java 17 (`java`, and Maven's `mvn` for the first `up`) and an environment with recordmill[beam]. Its `python` must be in PATH.
#   JOB_PORT     the port of the job server of `serve` (default: 8099)
#   FLINK_LOCAL  the folder of all files (default: ~/.cache/recordmill/flink)    FLINK_PORT    the port of the web page (default: 8081)
#   FLINK_SLOTS  slots of each TaskManager (default: 1)                          FLINK_MEMORY  memory of each TaskManager (default: 3072m)
set -euo pipefail
flink_version=1.19.3
dir="${FLINK_LOCAL:-${XDG_CACHE_HOME:-$HOME/.cache}/recordmill/flink}" port="${FLINK_PORT:-8081}" slots="${FLINK_SLOTS:-1}"
page="http://localhost:$port" jar="$dir/flink-job-server.jar" mark="-Dlog.file=$dir/log/"
ready="2 TaskManagers with $slots slot(s) each"
source "$(dirname "$0")/local_engine.sh"

distribution() {
  get flink "$flink_version" "apache-flink==$flink_version" "apache-flink-libraries==$flink_version"
  build_job_server "beam-runners-flink-${flink_version%.*}" org.apache.beam.runners.flink.FlinkJobServerDriver
}

configure() {
  mkdir -p "$dir/conf"
  cp "$FLINK_HOME"/conf/*.properties "$FLINK_HOME"/conf/*.xml "$dir/conf/" 2>/dev/null || true
  cat >"$dir/conf/config.yaml" <<YAML
env.java.opts.all: $(sed -n 's/^ *all: \(--add.*\)/\1/p' "$FLINK_HOME/conf/config.yaml")
jobmanager.rpc.address: localhost
jobmanager.rpc.port: $((port - 1958))
jobmanager.bind-host: localhost
jobmanager.memory.process.size: 1600m
rest.address: localhost
rest.bind-address: localhost
rest.port: $port
taskmanager.host: localhost
taskmanager.bind-host: localhost
taskmanager.numberOfTaskSlots: $slots
taskmanager.memory.process.size: ${FLINK_MEMORY:-3072m}
taskmanager.memory.managed.size: 384m
taskmanager.memory.task.off-heap.size: 512m
io.tmp.dirs: $dir/tmp
web.tmpdir: $dir/tmp
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 10
restart-strategy.fixed-delay.delay: 1 s
heartbeat.interval: 2000
heartbeat.timeout: 10000
YAML
}

up() {
  FLINK_HOME="$(echo "$dir"/flink/lib/python3*/site-packages/pyflink)"
  export FLINK_HOME FLINK_CONF_DIR="$dir/conf" FLINK_LOG_DIR="$dir/log" FLINK_PID_DIR="$dir/pid"
  configure
  bash "$FLINK_HOME/bin/jobmanager.sh" start >/dev/null
  for _ in 1 2; do bash "$FLINK_HOME/bin/taskmanager.sh" start >/dev/null; done
}

job_server() { printf '%s\n' java "$mark" -jar "$jar" "--flink-master=localhost:$port"; }

is_up() { curl -s "$page/overview" | grep -q '"taskmanagers":2'; }

flags() {
  printf '%s\n' --runner=FlinkRunner "--flink_master=$page" "--flink_job_server_jar=$jar" --parallelism=$((2 * slots)) \
    --environment_type=PROCESS "--environment_config={\"command\": \"$worker\"}"
}

command_line "$@"
