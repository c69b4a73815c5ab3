# A worker for engines: Beam's SDK container with recordmill in it. Not built where it was written, which has no container runtime.
#   docker build -t recordmill-worker . && docker push ...
#   recordmill build ... --environment_type=DOCKER --environment_config=recordmill-worker      (Dataflow: --sdk_container_image)
ARG BEAM=2.77.0
FROM apache/beam_python3.11_sdk:${BEAM}
ARG EXTRAS=beam
COPY . /opt/recordmill
# Kernels are compiled where they are first called; NUMBA_CACHE_DIR names a folder that outlives the container, if that is wanted.
RUN pip install --no-cache-dir -c /opt/recordmill/constraints/py311.txt "/opt/recordmill[${EXTRAS}]" \
    && rm -rf /opt/recordmill
