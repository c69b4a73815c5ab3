#!/usr/bin/env bash
# Runs a Spark cluster on this machine, to try `recordmill` on an engine. It has a master and two workers, each with Python workers of its own.
#   examples/cluster/spark_local.sh up                                   downloads what is missing, starts the cluster, and waits until it is ready
#   examples/cluster/spark_local.sh submit build photos/ --out shards    runs `recordmill build photos/ --out shards` on it
#   examples/cluster/spark_local.sh serve                                starts a job server that stays, so that jobs of `submit` continue after the command ends
#   examples/cluster/spark_local.sh fetch                                only downloads what `up` needs
#   examples/cluster/spark_local.sh flags                                prints the flags that `submit` passes to recordmill
#   examples/cluster/spark_local.sh down                                 stops only the processes that this script has started
# Needs Java 17 (`java`, and Maven's `mvn` for the first `up`) and an environment with recordmill[beam]. Its `python` must be in PATH.
#   JOB_PORT     the port of the job server of `serve` (default: 8099)
#   SPARK_LOCAL  the folder of all files (default: ~/.cache/recordmill/spark)    SPARK_PORT    the port of the master (default: 7077; its web page: 1003 higher)
#   SPARK_CORES  cores of each worker (default: 1)                               SPARK_MEMORY  memory of each executor (default: 1g)
set -euo pipefail
spark_version=3.5.6
dir="${SPARK_LOCAL:-${XDG_CACHE_HOME:-$HOME/.cache}/recordmill/spark}" port="${SPARK_PORT:-7077}"
cores="${SPARK_CORES:-1}" memory="${SPARK_MEMORY:-1g}"
page="http://localhost:$((port + 1003))" jar="$dir/spark-job-server.jar" mark="-Drecordmill.local=$dir/log/"
ready="2 workers with $cores core(s) each"
source "$(dirname "$0")/local_engine.sh"

distribution() {
  get pyspark "$spark_version" "pyspark==$spark_version"
  SPARK_HOME="$(echo "$dir"/pyspark/lib/python3*/site-packages/pyspark)"
  export SPARK_HOME
  # The manifest names the jars of Spark. If both have a class, Java uses the one in this jar.
  build_job_server beam-runners-spark-3 org.apache.beam.runners.spark.SparkJobServerDriver "<Class-Path>$(printf 'file://%s ' "$SPARK_HOME"/jars/*.jar)</Class-Path>"
}

start() {  # start NAME CLASS ARGUMENTS...
  local name="$1"
  shift
  SPARK_LOCAL_IP=127.0.0.1 SPARK_DAEMON_JAVA_OPTS="$mark" nohup "$SPARK_HOME/bin/spark-class" "$@" >"$dir/log/$name.log" 2>&1 </dev/null &
  echo $! >"$dir/pid/$name.pid"
}

up() {
  start master org.apache.spark.deploy.master.Master --host localhost --port "$port" --webui-port "$((port + 1003))"
  for number in 1 2; do
    start "worker$number" org.apache.spark.deploy.worker.Worker --host localhost --webui-port 0 -c "$cores" -m "$memory" -d "$dir/tmp" "spark://localhost:$port"
  done
}

job_server() {  # with the modules of Java 17 that Spark's own scripts open (org.apache.spark.launcher.JavaModuleOptions)
  printf '%s\n' java "$mark" -Djdk.reflect.useDirectMethodHandle=false
  for name in java.{lang,lang.invoke,lang.reflect,io,net,nio,util,util.concurrent,util.concurrent.atomic} \
    jdk.internal.ref sun.{nio.ch,nio.cs,security.action,util.calendar}; do
    printf '%s\n' "--add-opens=java.base/$name=ALL-UNNAMED"
  done
  flags | sed -n 's/^--job_server_jvm_properties=//p'
  printf '%s\n' -jar "$jar" "--spark-master-url=spark://localhost:$port"
}

is_up() { curl -s "$page/json/" | grep -q '"aliveworkers" *: *2'; }

flags() {
  printf '%s\n' --runner=SparkRunner "--spark_master_url=spark://localhost:$port" "--spark_job_server_jar=$jar" \
    "--job_server_jvm_properties=-Dspark.executor.extraClassPath=$jar" "--job_server_jvm_properties=-Dspark.executor.memory=$memory" \
    --job_server_jvm_properties=-Dspark.driver.host=localhost --environment_cache_millis=30000 \
    --environment_type=PROCESS "--environment_config={\"command\": \"$worker\"}"
}

command_line "$@"
