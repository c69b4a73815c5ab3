#!/usr/bin/env bash
# A Spark cluster on this machine, to try `recordmill` on an engine: a master and two workers, each with its own Python workers.
#   scripts/spark_local.sh up                                   gets what is not there, starts it, waits until its workers are there
#   scripts/spark_local.sh submit build photos/ --out shards    `recordmill build photos/ --out shards` on it
#   scripts/spark_local.sh fetch                                only gets what `up` needs
#   scripts/spark_local.sh flags                                what submit gives to recordmill
#   scripts/spark_local.sh down                                 stops what `up` started, and nothing else
# Needs Java 17 (`java`, and Maven's `mvn` for the first `up`) and an environment with recordmill[beam], whose `python` is in PATH.
#   SPARK_LOCAL  where all of it lies (default: ~/.cache/recordmill/spark)       SPARK_PORT    of its master (default: 7077; its page is 1003 higher)
#   SPARK_CORES  of each worker (default: 1)                                     SPARK_MEMORY  of each executor (default: 1g)
set -euo pipefail
spark_version=3.5.6 beam_version=2.62.0
dir="${SPARK_LOCAL:-${XDG_CACHE_HOME:-$HOME/.cache}/recordmill/spark}" port="${SPARK_PORT:-7077}"
cores="${SPARK_CORES:-1}" memory="${SPARK_MEMORY:-1g}"
page="http://localhost:$((port + 1003))" jar="$dir/spark-job-server.jar" worker="$dir/worker"

fetch() {  # the distribution from PyPI, and the job server that Beam's clients submit through, built by Maven
  if [ ! -e "$dir/pyspark/got-$spark_version" ]; then  # what an interrupted run has left is no distribution
    rm -rf "$dir/pyspark"
    "${PYTHON:-python3}" -m venv "$dir/pyspark"
    "$dir/pyspark/bin/pip" install --quiet --no-deps "pyspark==$spark_version"
    touch "$dir/pyspark/got-$spark_version"
  fi
  [ -s "$jar" ] && return
  rm -rf "$dir/jar" && mkdir -p "$dir/jar"
  # Spark's own jars are named in its manifest: behind what it holds itself, where both have a class
  cat >"$dir/jar/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>spark-job-server</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.beam</groupId><artifactId>beam-runners-spark-3</artifactId><version>$beam_version</version>
</dependency></dependencies>
<build><plugins><plugin><groupId>org.apache.maven.plugins</groupId><artifactId>maven-shade-plugin</artifactId><version>3.5.1</version>
<executions><execution><phase>package</phase><goals><goal>shade</goal></goals><configuration>
<createDependencyReducedPom>false</createDependencyReducedPom>
<filters><filter><artifact>*:*</artifact><excludes><exclude>META-INF/*.SF</exclude><exclude>META-INF/*.DSA</exclude><exclude>META-INF/*.RSA</exclude></excludes></filter></filters>
<transformers><transformer implementation="org.apache.maven.plugins.shade.resource.ServicesResourceTransformer"/>
<transformer implementation="org.apache.maven.plugins.shade.resource.ManifestResourceTransformer"><mainClass>org.apache.beam.runners.spark.SparkJobServerDriver</mainClass>
<manifestEntries><Class-Path>$(home; printf 'file://%s ' "$SPARK_HOME"/jars/*.jar)</Class-Path></manifestEntries></transformer></transformers>
</configuration></execution></executions></plugin></plugins></build>
</project>
POM
  (cd "$dir/jar" && mvn -q -B package)
  mv "$dir/jar/target/spark-job-server-1.jar" "$jar"
  rm -rf "$dir/jar"
}

home() {
  SPARK_HOME="$(echo "$dir"/pyspark/lib/python3*/site-packages/pyspark)"
  export SPARK_HOME
}

start() {  # start NAME CLASS ARGUMENTS...
  local name="$1"
  shift
  SPARK_LOCAL_IP=127.0.0.1 SPARK_DAEMON_JAVA_OPTS="-Drecordmill.local=$dir/log/" nohup "$SPARK_HOME/bin/spark-class" "$@" >"$dir/log/$name.log" 2>&1 </dev/null &
  echo $! >"$dir/pid/$name.pid"
}

pids() {  # of what stands in the pid files and is still what `up` started: its command line names this folder
  cat "$dir"/pid/*.pid 2>/dev/null | while read -r pid; do
    { tr '\0' '\n' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -qxF -- "-Drecordmill.local=$dir/log/" && echo "$pid"
  done || true
}

workers() { curl -s "$page/json/" | grep -o '"aliveworkers" *: *[0-9]*' | grep -o '[0-9]*$' || echo 0; }

flags() {
  printf '%s\n' --runner=SparkRunner "--spark_master_url=spark://localhost:$port" "--spark_job_server_jar=$jar" \
    "--job_server_jvm_properties=-Dspark.executor.extraClassPath=$jar" "--job_server_jvm_properties=-Dspark.executor.memory=$memory" \
    --job_server_jvm_properties=-Dspark.driver.host=localhost --environment_cache_millis=30000 \
    --environment_type=PROCESS "--environment_config={\"command\": \"$worker\"}"
}

case "${1:-}" in
  up)
    [ -z "$(pids)" ] || { echo "already up: $page"; exit 0; }
    command -v java >/dev/null || { echo "Java is needed: install a JDK 17" >&2; exit 1; }
    [ -s "$jar" ] || command -v mvn >/dev/null || { echo "Maven is needed, once, to build the job server" >&2; exit 1; }
    ! curl -s -o /dev/null "$page" || { echo "port $((port + 1003)) is taken by something else: SPARK_PORT=9077 $0 up" >&2; exit 1; }
    mkdir -p "$dir"; fetch; home
    rm -rf "$dir/work" && mkdir -p "$dir/log" "$dir/pid" "$dir/work"
    # the executors start a process of this command for each of their cores
    printf '#!/bin/sh\nexport PYTHONPATH="%s"\nexec "%s" -m recordmill.transforms.worker "$@"\n' "${PYTHONPATH:-}" "$(command -v python || command -v python3)" >"$worker"
    chmod +x "$worker"
    start master org.apache.spark.deploy.master.Master --host localhost --port "$port" --webui-port "$((port + 1003))"
    for number in 1 2; do
      start "worker$number" org.apache.spark.deploy.worker.Worker --host localhost --webui-port 0 -c "$cores" -m "$memory" -d "$dir/work" "spark://localhost:$port"
    done
    for _ in $(seq 120); do
      if [ "$(workers)" = 2 ]; then
        echo "up: $page, 2 workers with $cores core(s) each; $0 submit build INPUT --out OUT"
        exit 0
      fi
      sleep 0.5
    done
    echo "the workers did not come up within a minute; see $dir/log" >&2
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
    rm -rf "$dir/pid" "$dir/work"
    echo "down: $(echo "$running" | wc -w) processes stopped" ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
