#!/usr/bin/env bash
# A Flink cluster on this machine, to try `recordmill` on an engine: a JobManager and two TaskManagers, each with its own Python workers.
#   scripts/flink_local.sh up                                   gets what is not there, starts it, waits until its slots are free
#   scripts/flink_local.sh submit build photos/ --out shards    `recordmill build photos/ --out shards` on it
#   scripts/flink_local.sh fetch                                only gets what `up` needs
#   scripts/flink_local.sh flags                                what submit gives to recordmill
#   scripts/flink_local.sh down                                 stops what `up` started, and nothing else
# Needs Java 17 (`java`, and Maven's `mvn` for the first `up`) and an environment with recordmill[beam], whose `python` is in PATH.
#   FLINK_LOCAL  where all of it lies (default: ~/.cache/recordmill/flink)       FLINK_PORT    of its web page (default: 8081)
#   FLINK_SLOTS  of each TaskManager (default: 1)                                FLINK_MEMORY  of each TaskManager (default: 3072m)
set -euo pipefail
flink_version=1.19.3 beam_version=2.62.0
dir="${FLINK_LOCAL:-${XDG_CACHE_HOME:-$HOME/.cache}/recordmill/flink}" port="${FLINK_PORT:-8081}"
url="http://localhost:$port" jar="$dir/flink-job-server.jar" worker="$dir/worker"

fetch() {  # the distribution from PyPI, and the job server that Beam's clients submit through, built by Maven
  if [ ! -e "$dir/flink/got-$flink_version" ]; then  # what an interrupted run has left is no distribution
    rm -rf "$dir/flink"
    "${PYTHON:-python3}" -m venv "$dir/flink"
    "$dir/flink/bin/pip" install --quiet --no-deps "apache-flink==$flink_version" "apache-flink-libraries==$flink_version"
    touch "$dir/flink/got-$flink_version"
  fi
  [ -s "$jar" ] && return
  rm -rf "$dir/jar" && mkdir -p "$dir/jar"
  cat >"$dir/jar/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>flink-job-server</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.beam</groupId><artifactId>beam-runners-flink-${flink_version%.*}</artifactId><version>$beam_version</version>
</dependency></dependencies>
<build><plugins><plugin><groupId>org.apache.maven.plugins</groupId><artifactId>maven-shade-plugin</artifactId><version>3.5.1</version>
<executions><execution><phase>package</phase><goals><goal>shade</goal></goals><configuration>
<createDependencyReducedPom>false</createDependencyReducedPom>
<filters><filter><artifact>*:*</artifact><excludes><exclude>META-INF/*.SF</exclude><exclude>META-INF/*.DSA</exclude><exclude>META-INF/*.RSA</exclude></excludes></filter></filters>
<transformers><transformer implementation="org.apache.maven.plugins.shade.resource.ServicesResourceTransformer"/>
<transformer implementation="org.apache.maven.plugins.shade.resource.ManifestResourceTransformer"><mainClass>org.apache.beam.runners.flink.FlinkJobServerDriver</mainClass></transformer></transformers>
</configuration></execution></executions></plugin></plugins></build>
</project>
POM
  (cd "$dir/jar" && mvn -q -B package)
  mv "$dir/jar/target/flink-job-server-1.jar" "$jar"
  rm -rf "$dir/jar"
}

configure() {
  mkdir -p "$dir/conf" "$dir/log" "$dir/pid"
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
taskmanager.numberOfTaskSlots: ${FLINK_SLOTS:-1}
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
  rm -rf "$dir/tmp" && mkdir -p "$dir/tmp"
  # the TaskManagers start a process of this command for each of their slots
  printf '#!/bin/sh\nexport PYTHONPATH="%s"\nexec "%s" -m recordmill.transforms.worker "$@"\n' "${PYTHONPATH:-}" "$(command -v python || command -v python3)" >"$worker"
  chmod +x "$worker"
}

pids() {  # of what stands in the pid files and is still what `up` started: its command line names this folder
  cat "$dir"/pid/*.pid 2>/dev/null | while read -r pid; do
    { tr '\0' '\n' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -qF -- "-Dlog.file=$dir/log/" && echo "$pid"
  done || true
}

flags() {
  printf '%s\n' --runner=FlinkRunner "--flink_master=$url" "--flink_job_server_jar=$jar" --parallelism=$((2 * ${FLINK_SLOTS:-1})) \
    --environment_type=PROCESS "--environment_config={\"command\": \"$worker\"}"
}

case "${1:-}" in
  up)
    [ -z "$(pids)" ] || { echo "already up: $url"; exit 0; }
    command -v java >/dev/null || { echo "Java is needed: install a JDK 17" >&2; exit 1; }
    [ -s "$jar" ] || command -v mvn >/dev/null || { echo "Maven is needed, once, to build the job server" >&2; exit 1; }
    ! curl -s -o /dev/null "$url" || { echo "port $port is taken by something else: FLINK_PORT=9081 $0 up" >&2; exit 1; }
    mkdir -p "$dir"; fetch
    FLINK_HOME="$(echo "$dir"/flink/lib/python3*/site-packages/pyflink)"
    export FLINK_HOME FLINK_CONF_DIR="$dir/conf" FLINK_LOG_DIR="$dir/log" FLINK_PID_DIR="$dir/pid"
    configure
    bash "$FLINK_HOME/bin/jobmanager.sh" start >/dev/null
    for _ in 1 2; do bash "$FLINK_HOME/bin/taskmanager.sh" start >/dev/null; done
    for _ in $(seq 120); do
      if curl -s "$url/overview" | grep -q '"taskmanagers":2'; then
        echo "up: $url, 2 TaskManagers with ${FLINK_SLOTS:-1} slot(s) each; $0 submit build INPUT --out OUT"
        exit 0
      fi
      sleep 0.5
    done
    echo "the TaskManagers did not come up within a minute; see $dir/log" >&2
    exit 1 ;;
  submit)
    shift
    [ -n "$(pids)" ] || { echo "not up: $0 up" >&2; exit 1; }
    mapfile -t given < <(flags)
    exec python -m recordmill "$@" "${given[@]}" ;;
  flags) flags ;;
  fetch) mkdir -p "$dir"; fetch ;;
  down)
    running="$(pids)"
    for pid in $running; do kill "$pid" 2>/dev/null || true; done
    for _ in $(seq 40); do [ -n "$(pids)" ] || break; sleep 0.25; done
    for pid in $(pids); do kill -9 "$pid" 2>/dev/null || true; done
    rm -rf "$dir/pid" "$dir/tmp"
    echo "down: $(echo "$running" | wc -w) processes stopped" ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
