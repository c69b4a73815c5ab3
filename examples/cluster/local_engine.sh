# Functions of flink_local.sh and spark_local.sh, which source this file. They set these variables:
#   dir    the folder of all files
#   jar    the job server
#   page   the web page of the cluster
#   mark   a text in the command line of each process that `up` starts, and of no other process
#   ready  a description of the cluster that `up` waits for
# They define the functions distribution, up, is_up, flags, and job_server (the command of a job server that stays).
beam_version=2.62.0
worker="$dir/worker"

get() {  # get FOLDER VERSION PACKAGE...: installs Python packages from PyPI that contain the engine's jars
  local folder="$dir/$1" version="$2"
  shift 2
  [ ! -e "$folder/got-$version" ] || return 0
  rm -rf "$folder"  # an interrupted run leaves an incomplete folder
  "${PYTHON:-python3}" -m venv "$folder"
  "$folder/bin/pip" install --quiet --no-deps "$@"
  touch "$folder/got-$version"
}

build_job_server() {  # build_job_server ARTIFACT MAIN-CLASS [ENTRIES]: builds Beam's job server with Maven. ENTRIES: XML for the manifest of its jar
  [ ! -s "$jar" ] || return 0
  rm -rf "$dir/jar" && mkdir -p "$dir/jar"
  cat >"$dir/jar/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>job-server</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.beam</groupId><artifactId>$1</artifactId><version>$beam_version</version>
</dependency></dependencies>
<build><plugins><plugin><groupId>org.apache.maven.plugins</groupId><artifactId>maven-shade-plugin</artifactId><version>3.5.1</version>
<executions><execution><phase>package</phase><goals><goal>shade</goal></goals><configuration>
<createDependencyReducedPom>false</createDependencyReducedPom>
<filters><filter><artifact>*:*</artifact><excludes><exclude>META-INF/*.SF</exclude><exclude>META-INF/*.DSA</exclude><exclude>META-INF/*.RSA</exclude></excludes></filter></filters>
<transformers><transformer implementation="org.apache.maven.plugins.shade.resource.ServicesResourceTransformer"/>
<transformer implementation="org.apache.maven.plugins.shade.resource.ManifestResourceTransformer"><mainClass>$2</mainClass>
<manifestEntries>${3:-}</manifestEntries></transformer></transformers>
</configuration></execution></executions></plugin></plugins></build>
</project>
POM
  (cd "$dir/jar" && mvn -q -B -Dstyle.color=never package)
  mv "$dir/jar/target/job-server-1.jar" "$jar"
  rm -rf "$dir/jar"
}

write_worker() {  # writes the command that the processes of the engine start for each of their slots
  printf '#!/bin/sh\nexport PYTHONPATH="%s"\nexec "%s" -m recordmill.transforms.worker "$@"\n' "${PYTHONPATH:-}" "$(command -v python || command -v python3)" >"$worker"
  chmod +x "$worker"
}

pids() {  # prints the processes of the pid files, without ids that other programs have now
  cat "$dir"/pid/*.pid 2>/dev/null | while read -r pid; do
    { tr '\0' '\n' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -qF -- "$mark" && echo "$pid"
  done || true
}

bring_up() {
  [ -z "$(pids)" ] || { echo "already up: $page"; return; }
  command -v java >/dev/null || { echo "Java is needed: install a JDK 17" >&2; exit 1; }
  [ -s "$jar" ] || command -v mvn >/dev/null || { echo "Maven is needed, once, to build the job server" >&2; exit 1; }
  ! curl -s -o /dev/null "$page" || { echo "$page is taken by something else: the port is an option of $0" >&2; exit 1; }
  mkdir -p "$dir"; distribution
  rm -rf "$dir/tmp" && mkdir -p "$dir/log" "$dir/pid" "$dir/tmp"
  write_worker; up
  for _ in $(seq 120); do
    is_up && { echo "up: $page, $ready; $0 submit build INPUT --out OUT"; return; }
    sleep 0.5
  done
  echo "it did not come up within a minute; see $dir/log" >&2
  exit 1
}

endpoint="localhost:${JOB_PORT:-8099}" server="$dir/pid/job-server.pid"

serves() { [ -e "$server" ] && pids | grep -qx "$(cat "$server")"; }

serve() {  # starts a job server for later `submit` commands, so that a job can continue after its command ends
  [ -n "$(pids)" ] || { echo "not up: $0 up" >&2; exit 1; }
  ! serves || { echo "already there: $endpoint"; return; }
  mapfile -t command < <(job_server)
  # Only the job port is fixed. `down` removes the staged files.
  nohup "${command[@]}" --job-port "${endpoint#*:}" --artifact-port 0 --expansion-port -1 --artifacts-dir "$dir/tmp/staged" \
    >"$dir/log/job-server.log" 2>&1 </dev/null &
  echo $! >"$server"
  for _ in $(seq 120); do
    serves || break
    (exec 3<>"/dev/tcp/${endpoint/:/\/}") 2>/dev/null && { echo "job server: $endpoint, for anybody who reaches that port, on any interface"; return; }
    sleep 0.5
  done
  echo "the job server did not come up; see $dir/log/job-server.log" >&2
  exit 1
}

all_flags() {  # prints the flags for the engine, with the job server of `serve` if it runs
  serves || { flags; return; }
  printf '%s\n' --runner=PortableRunner "--job_endpoint=$endpoint"
  flags | grep -v -e ^--runner= -e job_server_ -e ^--spark_master
}

bring_down() {
  local running
  running="$(pids)"
  for pid in $running; do kill "$pid" 2>/dev/null || true; done
  for _ in $(seq 40); do [ -n "$(pids)" ] || break; sleep 0.25; done
  for pid in $(pids); do kill -9 "$pid" 2>/dev/null || true; done
  rm -rf "$dir/pid" "$dir/tmp"
  echo "down: $(echo "$running" | wc -w) processes stopped"
}

command_line() {  # command_line ARGUMENTS...: runs the command of the script that sources this file
  case "${1:-}" in
    up) bring_up ;;
    submit)
      shift
      [ -n "$(pids)" ] || { echo "not up: $0 up" >&2; exit 1; }
      mapfile -t given < <(all_flags)
      exec python -m recordmill "$@" "${given[@]}" ;;
    serve) serve ;;
    flags) all_flags ;;
    fetch) mkdir -p "$dir"; distribution ;;
    down) bring_down ;;
    *) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
}
