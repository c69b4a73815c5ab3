"""Flags for Beam and for an engine's job server: what passes, and what is a slip; with those that job servers of Beam
2.62 know and Beam's Python side does not.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Sequence
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import there_are
from recordmill.options.commands import about_unknown, flags_of
from recordmill.transforms.local_run import no_log_of_beam

BOTH = """
    app_name bundle_processor_cache_timeout credential_factory_class dataflow_kms_key default_environment_config
    default_environment_type default_sdk_harness_log_level enable_bucket_read_metric_counter?
    enable_bucket_write_metric_counter? enable_heap_dumps? enable_streaming_engine? environment_cache_millis#
    environment_expiration_millis# environment_options* executor_service experiments* files_to_stage*
    g_c_thrashing_percentage_per_period gcp_credential gcp_oauth_scopes* gcp_temp_location gcs_endpoint
    gcs_http_request_read_timeout# gcs_http_request_write_timeout# gcs_performance_metrics?
    gcs_read_counter_prefix gcs_rewrite_data_op_batch_limit# gcs_upload_buffer_size_bytes# gcs_util
    gcs_write_counter_prefix google_api_trace google_cloud_storage_read_options grouping_table_max_size_mb#
    impersonate_service_account jdk_add_open_modules* job_endpoint job_name job_server_timeout#
    load_balance_bundles? log_mdc? max_cache_memory_usage_mb# max_cache_memory_usage_mb_class
    max_cache_memory_usage_percent options_id# output_executable_path path_validator path_validator_class
    project resource_hints* retain_docker_containers? runner sdk_harness_log_level_overrides
    sdk_worker_parallelism# semi_persist_dir stable_unique_names streaming? temp_location
    transform_service_address transform_service_beam_version transforms_to_override*
    update_compatibility_version user_agent worker_region worker_zone zone
"""
FLINK = """
    allow_non_restored_state? attached_mode? auto_balance_write_files_sharding_enabled? auto_watermark_interval#
    checkpoint_timeout_millis# checkpointing_interval# checkpointing_mode disable_metrics?
    enable_stable_input_drain? execution_mode_for_batch execution_retry_delay# externalized_checkpoints_enabled?
    fail_on_checkpointing_errors? faster_copy? file_input_split_max_size_m_b#
    finish_bundle_before_checkpointing? flink_conf_dir flink_master force_unaligned_checkpoint_enabled?
    job_check_interval_in_secs# latency_tracking_interval# max_bundle_size# max_bundle_time_mills#
    max_parallelism# min_pause_between_checkpoints# num_concurrent_checkpoints# number_of_execution_retries#
    object_reuse? operator_chaining? parallelism# re_iterable_group_by_key_result? report_checkpoint_duration
    retain_externalized_checkpoints_on_cancellation? savepoint_path shutdown_sources_after_idle_ms#
    state_backend state_backend_factory state_backend_storage_path unaligned_checkpoint_enabled?
    use_data_stream_for_batch?
"""
SPARK = """
    batch_interval_millis# bundle_size# cache_disabled? checkpoint_dir checkpoint_duration_millis#
    enable_spark_metric_sinks? max_records_per_batch# min_read_time_millis# read_time_percentage spark_master
    storage_level streaming_timeout_ms# test_mode? use_active_spark_session? uses_provided_spark_context?
"""


def known_flags(runner: str) -> dict[str, str]:
    """Name to form ("", "?", "#" or "*") of the flags of a runner's job server; of all servers where the runner does
    not say.

    >>> known_flags("FlinkRunner")["object_reuse"], "bundle_size" in known_flags("FlinkRunner")
    ('?', False)
    """
    name = runner.lower()
    own = FLINK if "flink" in name else SPARK if "spark" in name else FLINK + SPARK if "portable" in name else ""
    words = (BOTH + own).split() if own else []
    return {word.rstrip("?*#"): word[len(word.rstrip("?*#")) :] for word in words}


_FORMS: dict[str, dict[str, Any]] = {
    "": {},
    "#": {"type": int},
    "?": {"action": "store_true"},
    "*": {"action": "append"},
}


def as_flags(given: Sequence[str]) -> tuple[str, ...]:
    """The flags; UsageError for a text, whose letters would be taken for them.

    >>> as_flags(["--parallelism=2"])
    ('--parallelism=2',)
    """
    if isinstance(given, str):
        raise UsageError(f"beam_args is a text; give a list: beam_args={given.split()}")
    return tuple(given)


def check_flags(arguments: Sequence[str], runner: str | None) -> None:
    """Checks that Beam or the runner's job server knows these flags. Beam passes over those that nobody knows.

    Raises:
        UsageError: a flag is unknown, or its value can't be.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    given = [argument for argument in arguments if argument]
    names = known_flags(runner or "")
    unknown: list[str] = []
    known: list[str] = []

    def look(parser: argparse.ArgumentParser) -> None:
        for name, form in names.items():
            with contextlib.suppress(argparse.ArgumentError):  # Beam has it as well
                parser.add_argument(f"--{name}", **_FORMS[form])
        unknown.extend(parser.parse_known_args(given)[1])
        known.extend(re.findall(r"--\w+", parser.format_help()))

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), no_log_of_beam():
            PipelineOptions(given).get_all_options(add_extra_args_fn=look)
    except SystemExit:
        raise UsageError(said.getvalue().rpartition("error: ")[2].strip()) from None
    if unknown:
        own = [flag for name in ("build", "read") for option in flags_of(name) for flag in option.all_flags]
        meant = about_unknown(unknown, "build", [*own, *dict.fromkeys(known)])
        raise UsageError(f"unknown option {' '.join(unknown)}: neither recordmill nor Apache Beam has it{meant}")


def check_name(runner: str) -> None:
    """UsageError unless Beam has that runner, as it reads names, or it is a class that can be imported."""
    from apache_beam.options.pipeline_options import StandardOptions
    from apache_beam.runners.runner import create_runner

    try:
        create_runner(runner)
    except (ImportError, AttributeError, TypeError) as error:
        raise UsageError(f"--runner {runner}: can't be imported: {error}") from None
    except ValueError:
        raise UsageError(f"--runner {runner}: {there_are(runner, StandardOptions.KNOWN_RUNNER_NAMES)}") from None
