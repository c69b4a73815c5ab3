"""Preflights of jobs."""

PROCESS = (
    "--environment_type=PROCESS",
    '--environment_config={"command": "/opt/recordmill-worker"}',
)
