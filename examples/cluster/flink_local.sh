#!/usr/bin/env bash
# A Flink cluster on this machine, to try `recordmill` on an engine: a JobManager and two TaskManagers, each with its own Python workers.
#   examples/cluster/flink_local.sh up                                   gets what is not there, starts it, waits until its slots are free
#   examples/cluster/flink_local.sh submit build photos/ --out shards    `recordmill build photos/ --out shards` on it
#   examples/cluster/flink_local.sh serve                                starts a job server that stays, for `submit`: what it has been given outlives the command
#   examples/cluster/flink_local.sh fetch                                only gets what `up` needs
#   examples/cluster/flink_local.sh flags                                what submit gives to recordmill
#   examples/cluster/flink_local.sh down                                 stops what `up` started, and nothing else
# Needs Java 17 (`java`, and Maven's `mvn` for the first `up`) and an environment with recordmill[beam], whose `python` is in PATH.
#   JOB_PORT     of what `serve` starts (default: 8099)
#   FLINK_LOCAL  where all of it lies (default: ~/.cache/recordmill/flink)       FLINK_PORT    of its web page (default: 8081)
#   FLINK_SLOTS  of each TaskManager (default: 1)                                FLINK_MEMORY  of each TaskManager (default: 3072m)
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
