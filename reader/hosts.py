"""`hosts`: what knows how many processes train together, to the keywords of batches. No framework is imported: what is
asked is what the caller gives.
"""

from __future__ import annotations

from typing import Any

from recordmill.base.errors import UsageError

_ASKED = (  # (how many there are, which of them this is)
    ("num_input_pipelines", "input_pipeline_id"),  # tf.distribute.InputContext
    ("process_count", "process_index"),  # jax
    ("get_world_size", "get_rank"),  # torch.distributed
)


def hosts(of: Any) -> dict[str, int]:
    """`num_hosts` and `host_index` for `batches`, `to_tf` and `to_torch`: `ds.batches(64, **recordmill.hosts(jax))`.

    Args:
        of: a tf.distribute.InputContext, the module jax, or the module torch.distributed.

    Raises:
        UsageError: it is none of them, or torch.distributed before init_process_group.
    """
    if hasattr(of, "is_initialized") and not (of.is_available() and of.is_initialized()):
        raise UsageError("torch.distributed knows no ranks yet: call init_process_group first")
    for names in _ASKED:
        if all(hasattr(of, name) for name in names):
            count, index = (getattr(of, name) for name in names)
            return {"num_hosts": int(_called(count)), "host_index": int(_called(index))}
    raise UsageError(f"hosts are taken from a tf.distribute.InputContext, jax or torch.distributed, not from {of!r}")


def _called(value: Any) -> Any:
    return value() if callable(value) else value
