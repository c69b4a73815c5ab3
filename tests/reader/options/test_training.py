"""`hosts()` reads the number of hosts and the index from TensorFlow, JAX and PyTorch."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from kit.data_sets import mixed_rows, write_data_set

from recordmill.base.errors import UsageError
from recordmill.reader.dataset import open
from recordmill.reader.options.training import hosts


def torch_distributed(is_initialized: bool) -> SimpleNamespace:
    ranks = {"get_world_size": lambda: 2, "get_rank": lambda: 0}
    return SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: is_initialized, **ranks
    )


def test_hosts_are_read_from_jax_and_torch() -> None:
    assert hosts(SimpleNamespace(process_count=lambda: 4, process_index=lambda: 3)) == {
        "num_hosts": 4,
        "host_index": 3,
    }
    assert hosts(torch_distributed(True)) == {"num_hosts": 2, "host_index": 0}
    for source, message in ((torch_distributed(False), "init_process_group"), (4, "not from 4")):
        with pytest.raises(UsageError, match=message):
            hosts(source)


def test_hosts_are_read_from_the_input_context_of_a_strategy(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    ds = open(
        write_data_set(tmp_path / "out", {"train": mixed_rows(100)}, shards=2), columns=["id"]
    )
    record_ids = []
    for index in range(3):
        context = tf.distribute.InputContext(
            num_input_pipelines=3, input_pipeline_id=index, num_replicas_in_sync=3
        )
        batches = ds.to_tf(8, shuffle="global", pad_remainder=True, label=False, **hosts(context))
        assert int(batches.cardinality()) == 5
        for batch in batches:
            assert batch["id"].shape == batch["mask"].shape == (8,)
            record_ids += tf.boolean_mask(batch["id"], batch["mask"]).numpy().tolist()
    assert sorted(record_ids) == list(range(100))


def test_share_of_a_host_is_not_divided_again(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    ds = open(
        write_data_set(tmp_path / "out", {"train": mixed_rows(100)}, shards=2), columns=["id"]
    )
    epoch = ds.to_tf(8, shuffle=False, drop_remainder=True)
    share = ds.to_tf(8, shuffle=False, num_hosts=2, host_index=0, drop_remainder=True)
    off = tf.data.experimental.AutoShardPolicy.OFF
    assert share.options().experimental_distribute.auto_shard_policy == off
    assert epoch.options().experimental_distribute.auto_shard_policy != off
    assert share.element_spec["id"].shape == (8,)
    assert share.cardinality() == len(list(share)) == 6
    # These attributes are those of DataParallel.
    distribution = SimpleNamespace(num_model_replicas=2, num_processes=2, _process_id=0)
    if (
        distribute := getattr(keras.distribution.DataParallel, "distribute_tf_dataset", None)
    ) is not None:
        assert len(list(distribute(distribution, epoch))) == 12
        with pytest.raises(
            UsageError, match=r"the share of one of 2 hosts.*auto_shard_dataset=False"
        ):
            distribute(distribution, share)
    with pytest.raises(UsageError, match="auto_shard_dataset=False"):
        share.shard(2, 0)
