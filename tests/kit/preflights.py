"""Beam options for the tests of preflights."""

PROCESS = (
    "--environment_type=PROCESS",
    '--environment_config={"command": "/opt/recordmill-worker"}',
)
