"""Flags for Beam and for an engine's job server: what passes, and what is a slip; with those that job servers of Beam
2.62 know and Beam's Python side does not, for where no server can be asked.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from recordmill.base.errors import UsageError
from recordmill.base.suggestions import there_are
from recordmill.options.commands import about_unknown, flags_of

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


_ASKING_SEC = 10.0
_FORMS: dict[str, dict[str, Any]] = {
    "": {},
    "#": {"type": int},
    "?": {"action": "store_true"},
    "*": {"action": "append"},
}


class _Options(Protocol):
    """A class of Beam's options, which adds its flags to a parser."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None: ...


def as_flags(given: Sequence[str]) -> tuple[str, ...]:
    """The flags; UsageError for a text, whose letters would be taken for them.

    >>> as_flags(["--parallelism=2"])
    ('--parallelism=2',)
    """
    if isinstance(given, str):
        raise UsageError(f"beam_args is a text; give a list: beam_args={given.split()}")
    return tuple(given)


def check_flags(arguments: Sequence[str], runner: str | None, options: type[_Options]) -> None:
    """That Beam or the runner's job server knows these flags.

    Raises:
        UsageError: a flag is unknown, or its value can't be; or the job server that is named does not answer.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    for known in options.__subclasses__():
        if known.__module__.startswith("apache_beam"):
            known._add_argparse_args(parser)
    given = [argument for argument in arguments if argument]
    of_beam, unknown = parser.parse_known_args(given)
    # a server is asked only where there is something to ask
    for name, form in _of_server(runner, getattr(of_beam, "job_endpoint", None) if unknown else None).items():
        parser.add_argument(f"--{name}", **_FORMS[form])
    _, unknown = parser.parse_known_args(given)
    if unknown:
        raise UsageError(_unknown(unknown, [word for action in parser._actions for word in action.option_strings]))


def _unknown(unknown: Sequence[str], known: Sequence[str]) -> str:
    own = [flag for name in ("build", "read") for option in flags_of(name) for flag in option.all_flags]
    meant = about_unknown(unknown, "build", [*own, *known])
    return f"unknown option {' '.join(unknown)}: neither recordmill nor Apache Beam has it{meant}"


def _of_server(runner: str | None, endpoint: str | None) -> Mapping[str, str]:
    """Name to form of what the runner's job server knows."""
    if runner is None:
        return {}
    listed = known_flags(runner)
    if not endpoint or endpoint == "embed":
        return listed
    return {**listed, **ask_server(endpoint)}


def ask_server(endpoint: str) -> dict[str, str]:
    """Name to form of the flags that a running job server tells; none where it tells nothing of its flags.

    Raises:
        UsageError: nobody answers there.
    """
    import grpc
    from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

    with grpc.insecure_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_ASKING_SEC)
        except grpc.FutureTimeoutError:
            raise UsageError(
                f"--job_endpoint {endpoint}: no job server answers there; start it, or name another HOST:PORT"
            ) from None
        try:
            request = beam_job_api_pb2.DescribePipelineOptionsRequest()
            told = beam_job_api_pb2_grpc.JobServiceStub(channel).DescribePipelineOptions(request, timeout=_ASKING_SEC)
        except grpc.RpcError:  # Prism has no such call
            return {}
    kinds = beam_job_api_pb2.PipelineOptionType
    forms = {kinds.BOOLEAN: "?", kinds.INTEGER: "#", kinds.ARRAY: "*"}
    return {option.name: forms.get(option.type, "") for option in told.options}


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


class _Parser(argparse.ArgumentParser):
    """Lets two option classes define the same flag, as Beam's own do, and raises what is wrong."""

    def add_argument(self, *names: Any, **settings: Any) -> Any:
        try:
            return super().add_argument(*names, **settings)
        except argparse.ArgumentError:
            return None

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)
