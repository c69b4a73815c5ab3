"""The keywords of the functions, for type checkers. Nothing imports this module at run time.

docs/make_reference.py writes it from the declarations of the options.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from recordmill.reader.options.collation import Collate
    from recordmill.reader.options.images import ImageSpec
    from recordmill.schemas.feature import Schema


class OpenKeywords(TypedDict, total=False):
    """The options of `open`."""

    schema: Schema | str | os.PathLike[str] | None
    """schema of files without a manifest, or the path of a schema.pbtxt; nothing is inferred."""
    threads: int | None
    """number of threads (default: all cores)."""
    infer_from: str | int | None
    """infer the schema from a sample: N records, taken from the start of each file, or N files, as in '20files'. A later record that does not fit it is an error when it is read (default: all)."""
    where: str | pc.Expression | None
    """only records that meet a condition: SQL for DuckDB, or a pyarrow.compute expression. It refers to the features as stored, also those that columns leaves out. The other records are numbered from 0."""
    cache: str | os.PathLike[str] | None
    """local folder that keeps blocks read from an object store, with their CRCs; several processes may share it."""
    cache_bytes: str | int
    """largest size of the cache (default: 10GiB)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""
    decode_raw: Mapping[str, str] | Sequence[str] | str | None
    """decode bytes that are the memory of an array, as in {'depth': 'float32[256,256]'} or 'depth=float32[256,256]'. A dtype alone is a scalar, [-1,4] has a variable first dimension, and '>float32' is big-endian. where and filter see the stored features."""
    reshape: Mapping[str, str | Sequence[int]] | Sequence[str] | str | None
    """give the values another shape after decode_raw, as in {'boxes': [-1, 4]} or 'boxes=[-1,4]'. The number of values stays the same."""
    pad: Mapping[str, str] | Sequence[str] | str | None
    """pad lists to a fixed length, as in {'tokens': '128:0'} or 'tokens=128:0'; a longer list is an error."""
    ragged: str | Sequence[str] | None
    """keep lists of variable length, even if all have the same length."""
    decode_images: ImageSpec | None
    """decode images: (height, width), True, `Images(...)`, or a dict of these by feature name. If no feature is named, the first records determine which features are images. Lists of images become lists of arrays. The same option of batches, to_tf and to_torch overrides it."""
    class_names: bool
    """return classes as names instead of numbers."""
    generation: int | None
    """generation of a data set that grows or was replaced; `recordmill.log` lists them (default: the newest)."""


class BatchesKeywords(TypedDict, total=False):
    """The options of `batches`."""

    shuffle: bool | Literal['window', 'global']
    """Shuffles the records, differently in each epoch. "window" or True reads pieces of files in random order and mixes the records of as many pieces as fit into the window. "global" is a random order of all records. False keeps the order of the files. (default: window)."""
    seed: int
    """Any integer. A seed always results in the same order. (default: 0)."""
    epochs: int | None
    """Number of epochs of one iteration. None never ends. A batch never mixes two epochs. If the data set is iterated again, it continues with the next epochs. A `state` continues the iteration in which it was taken, or begins the next one if it was taken at the end. (default: 1)."""
    drop_remainder: bool
    """Leaves out the last records of an epoch that do not fill a batch. With several hosts this is the default for records that do not fill the batches of all hosts."""
    pad_remainder: bool
    """Fills up these batches with other records of the epoch. Each batch then has `"mask"`, with True for the rows that count."""
    num_hosts: int | None
    """Number of hosts that train together. Each step is divided into equal parts, so all hosts have the same number of batches, and together they read the epoch once. None means one host. For `to_torch`, None uses the ranks of torch.distributed if it is initialised."""
    host_index: int | None
    """Index of this host, from 0. It is required with `num_hosts`."""
    state: Mapping[str, Any] | None
    """The result of `state()` of an iterator. The new iterator continues after the last batch that the old one returned. The data set, `where`, `seed`, `shuffle` and `batch_size` must be the same. The number of hosts may differ, except between steps that are bucketed together."""
    start_step: int
    """Number of batches to skip on this host, from the start or after `state`. (default: 0)."""
    window_bytes: str | int
    """Size of the window for "window": framed bytes, as a number or as text such as "64MiB". (default: 64MiB)."""
    label: str | bool
    """The feature that is y in `(x, y)`. True uses the label of the schema. False returns dicts by feature name. x is an array instead of a dict if only one feature remains. A record without a label is an error."""
    weights: str | None
    """The feature that is w in `(x, y, w)`. It requires `label`."""
    collate: Mapping[str, Collate] | Collate | None
    """How lists become arrays, for all lists or by feature name: "ragged" (the default), "dense", "padded" or `Padded(...)`, "bucketed" or `Bucketed(...)`, or `Packed(length)`. "one_hot" or `OneHot(depth)` encodes integers."""
    matrix: Sequence[str] | None
    """Combines numeric features into one float32 array [rows, numbers], in this order. It is the only input in addition to label and weights, or `"matrix"` in a dict. Missing values are NaN, or the values of `defaults`."""
    ids: bool
    """Adds `"record/shard"` and `"record/index"` to each batch: the index of the file in `ds.files`, and the number of the record in it."""
    map: Callable[[Any], Any] | None
    """A function that takes a batch. Its result is returned instead of the batch. It runs in the threads of the reader, or as a TensorFlow graph in `to_tf`. Its errors are raised with the number of the batch."""
    decode_images: ImageSpec | None
    """(height, width) decodes images to uint8 [rows, height, width, channels], resized as `tf.image.resize` does. True keeps the size, which must be the same for all images. Lists of images become lists of arrays. `Images(...)` has further options such as scaling and cropping. A dict specifies targets by feature name. None uses the option of `open`."""
    channels: int
    """Number of channels if `decode_images` is a size or True: 1 for grey, 3 for RGB, 4 for RGBA. (default: 3)."""
    antialias: bool
    """Resizes with antialiasing if `decode_images` is a size or True."""
    memory_bytes: str | int
    """Limit of the data that is read ahead or being decoded, as a number of bytes or as text such as "512MiB". (default: 512MiB)."""
    on_bad: Literal['error', 'skip']
    """"error" raises an error at the first unusable record, with its place. "skip" leaves out records that are damaged, do not fit the schema or have images that can't be decoded, and fills batches with the next records. A warning at the end of an epoch reports their number. The number of batches is then unknown in advance. Each worker of a PyTorch DataLoader fills its batches with records of its own steps. (default: error)."""
    nulls: Literal['masked', 'valid', 'drop']
    """Form of features that may be missing. "masked" returns masked arrays, and None in arrays of text. "valid" returns zeros and empty text for missing values and adds `name/valid`, as `to_tf` and `to_torch` do. JAX needs this form. "drop" leaves out the records that lack a feature that is read. (default: masked)."""


class ToTfKeywords(TypedDict, total=False):
    """The options of `to_tf`."""

    shuffle: bool | Literal['window', 'global']
    """Shuffles the records, differently in each epoch. "window" or True reads pieces of files in random order and mixes the records of as many pieces as fit into the window. "global" is a random order of all records. False keeps the order of the files. (default: window)."""
    seed: int
    """Any integer. A seed always results in the same order. (default: 0)."""
    epochs: int | None
    """Number of epochs of one iteration. None never ends. A batch never mixes two epochs. If the data set is iterated again, it continues with the next epochs. A `state` continues the iteration in which it was taken, or begins the next one if it was taken at the end. (default: 1)."""
    drop_remainder: bool
    """Leaves out the last records of an epoch that do not fill a batch. With several hosts this is the default for records that do not fill the batches of all hosts."""
    pad_remainder: bool
    """Fills up these batches with other records of the epoch. Each batch then has `"mask"`, with True for the rows that count."""
    num_hosts: int | None
    """Number of hosts that train together. Each step is divided into equal parts, so all hosts have the same number of batches, and together they read the epoch once. None means one host. For `to_torch`, None uses the ranks of torch.distributed if it is initialised."""
    host_index: int | None
    """Index of this host, from 0. It is required with `num_hosts`."""
    state: Mapping[str, Any] | None
    """The result of `state()` of an iterator. The new iterator continues after the last batch that the old one returned. The data set, `where`, `seed`, `shuffle` and `batch_size` must be the same. The number of hosts may differ, except between steps that are bucketed together."""
    start_step: int
    """Number of batches to skip on this host, from the start or after `state`. (default: 0)."""
    window_bytes: str | int
    """Size of the window for "window": framed bytes, as a number or as text such as "64MiB". (default: 64MiB)."""
    label: str | bool
    """The feature that is y in `(x, y)`. True uses the label of the schema. False returns dicts by feature name. x is an array instead of a dict if only one feature remains. A record without a label is an error."""
    weights: str | None
    """The feature that is w in `(x, y, w)`. It requires `label`."""
    collate: Mapping[str, Collate] | Collate | None
    """How lists become arrays, for all lists or by feature name: "ragged" (the default), "dense", "padded" or `Padded(...)`, "bucketed" or `Bucketed(...)`, or `Packed(length)`. "one_hot" or `OneHot(depth)` encodes integers."""
    matrix: Sequence[str] | None
    """Combines numeric features into one float32 array [rows, numbers], in this order. It is the only input in addition to label and weights, or `"matrix"` in a dict. Missing values are NaN, or the values of `defaults`."""
    ids: bool
    """Adds `"record/shard"` and `"record/index"` to each batch: the index of the file in `ds.files`, and the number of the record in it."""
    map: Callable[[Any], Any] | None
    """A function that takes a batch. Its result is returned instead of the batch. It runs in the threads of the reader, or as a TensorFlow graph in `to_tf`. Its errors are raised with the number of the batch."""
    decode_images: ImageSpec | None
    """(height, width) decodes images to uint8 [rows, height, width, channels], resized as `tf.image.resize` does. True keeps the size, which must be the same for all images. Lists of images become lists of arrays. `Images(...)` has further options such as scaling and cropping. A dict specifies targets by feature name. None uses the option of `open`."""
    channels: int
    """Number of channels if `decode_images` is a size or True: 1 for grey, 3 for RGB, 4 for RGBA. (default: 3)."""
    antialias: bool
    """Resizes with antialiasing if `decode_images` is a size or True."""
    memory_bytes: str | int
    """Limit of the data that is read ahead or being decoded, as a number of bytes or as text such as "512MiB". (default: 512MiB)."""
    on_bad: Literal['error', 'skip']
    """"error" raises an error at the first unusable record, with its place. "skip" leaves out records that are damaged, do not fit the schema or have images that can't be decoded, and fills batches with the next records. A warning at the end of an epoch reports their number. The number of batches is then unknown in advance. Each worker of a PyTorch DataLoader fills its batches with records of its own steps. (default: error)."""
    defaults: Mapping[str, Any] | None
    """Values for records that lack a feature, by feature name. Without a default, `name/valid` marks the records that have the feature."""
    nulls: Literal['valid', 'drop']
    """"drop" leaves out the records that lack a feature that is read. "valid" keeps them. (default: valid)."""


class ToKerasKeywords(TypedDict, total=False):
    """The options of `to_keras`."""

    shuffle: bool | Literal['window', 'global']
    """Shuffles the records, differently in each epoch. "window" or True reads pieces of files in random order and mixes the records of as many pieces as fit into the window. "global" is a random order of all records. False keeps the order of the files. (default: window)."""
    seed: int
    """Any integer. A seed always results in the same order. (default: 0)."""
    epochs: int | None
    """Number of epochs of one iteration. None never ends. A batch never mixes two epochs. If the data set is iterated again, it continues with the next epochs. A `state` continues the iteration in which it was taken, or begins the next one if it was taken at the end. (default: 1)."""
    drop_remainder: bool
    """Leaves out the last records of an epoch that do not fill a batch. With several hosts this is the default for records that do not fill the batches of all hosts."""
    pad_remainder: bool
    """Fills up these batches with other records of the epoch. Each batch then has `"mask"`, with True for the rows that count."""
    num_hosts: int | None
    """Number of hosts that train together. Each step is divided into equal parts, so all hosts have the same number of batches, and together they read the epoch once. None means one host. For `to_torch`, None uses the ranks of torch.distributed if it is initialised."""
    host_index: int | None
    """Index of this host, from 0. It is required with `num_hosts`."""
    state: Mapping[str, Any] | None
    """The result of `state()` of an iterator. The new iterator continues after the last batch that the old one returned. The data set, `where`, `seed`, `shuffle` and `batch_size` must be the same. The number of hosts may differ, except between steps that are bucketed together."""
    start_step: int
    """Number of batches to skip on this host, from the start or after `state`. (default: 0)."""
    window_bytes: str | int
    """Size of the window for "window": framed bytes, as a number or as text such as "64MiB". (default: 64MiB)."""
    weights: str | None
    """The feature that is w in `(x, y, w)`. It requires `label`."""
    collate: Mapping[str, Collate] | Collate | None
    """How lists become arrays, for all lists or by feature name: "ragged" (the default), "dense", "padded" or `Padded(...)`, "bucketed" or `Bucketed(...)`, or `Packed(length)`. "one_hot" or `OneHot(depth)` encodes integers."""
    matrix: Sequence[str] | None
    """Combines numeric features into one float32 array [rows, numbers], in this order. It is the only input in addition to label and weights, or `"matrix"` in a dict. Missing values are NaN, or the values of `defaults`."""
    ids: bool
    """Adds `"record/shard"` and `"record/index"` to each batch: the index of the file in `ds.files`, and the number of the record in it."""
    map: Callable[[Any], Any] | None
    """A function that takes a batch. Its result is returned instead of the batch. It runs in the threads of the reader, or as a TensorFlow graph in `to_tf`. Its errors are raised with the number of the batch."""
    decode_images: ImageSpec | None
    """(height, width) decodes images to uint8 [rows, height, width, channels], resized as `tf.image.resize` does. True keeps the size, which must be the same for all images. Lists of images become lists of arrays. `Images(...)` has further options such as scaling and cropping. A dict specifies targets by feature name. None uses the option of `open`."""
    channels: int
    """Number of channels if `decode_images` is a size or True: 1 for grey, 3 for RGB, 4 for RGBA. (default: 3)."""
    antialias: bool
    """Resizes with antialiasing if `decode_images` is a size or True."""
    memory_bytes: str | int
    """Limit of the data that is read ahead or being decoded, as a number of bytes or as text such as "512MiB". (default: 512MiB)."""
    on_bad: Literal['error', 'skip']
    """"error" raises an error at the first unusable record, with its place. "skip" leaves out records that are damaged, do not fit the schema or have images that can't be decoded, and fills batches with the next records. A warning at the end of an epoch reports their number. The number of batches is then unknown in advance. Each worker of a PyTorch DataLoader fills its batches with records of its own steps. (default: error)."""
    defaults: Mapping[str, Any] | None
    """Values for records that lack a feature, by feature name. Without a default, `name/valid` marks the records that have the feature."""
    nulls: Literal['valid', 'drop']
    """"drop" leaves out the records that lack a feature that is read. "valid" keeps them. (default: valid)."""


class ToTorchKeywords(TypedDict, total=False):
    """The options of `to_torch`."""

    shuffle: bool | Literal['window', 'global']
    """Shuffles the records, differently in each epoch. "window" or True reads pieces of files in random order and mixes the records of as many pieces as fit into the window. "global" is a random order of all records. False keeps the order of the files. (default: window)."""
    seed: int
    """Any integer. A seed always results in the same order. (default: 0)."""
    epochs: int | None
    """Number of epochs of one iteration. None never ends. A batch never mixes two epochs. If the data set is iterated again, it continues with the next epochs. A `state` continues the iteration in which it was taken, or begins the next one if it was taken at the end. (default: 1)."""
    drop_remainder: bool
    """Leaves out the last records of an epoch that do not fill a batch. With several hosts this is the default for records that do not fill the batches of all hosts."""
    pad_remainder: bool
    """Fills up these batches with other records of the epoch. Each batch then has `"mask"`, with True for the rows that count."""
    num_hosts: int | None
    """Number of hosts that train together. Each step is divided into equal parts, so all hosts have the same number of batches, and together they read the epoch once. None means one host. For `to_torch`, None uses the ranks of torch.distributed if it is initialised."""
    host_index: int | None
    """Index of this host, from 0. It is required with `num_hosts`."""
    state: Mapping[str, Any] | None
    """The result of `state()` of an iterator. The new iterator continues after the last batch that the old one returned. The data set, `where`, `seed`, `shuffle` and `batch_size` must be the same. The number of hosts may differ, except between steps that are bucketed together."""
    start_step: int
    """Number of batches to skip on this host, from the start or after `state`. (default: 0)."""
    window_bytes: str | int
    """Size of the window for "window": framed bytes, as a number or as text such as "64MiB". (default: 64MiB)."""
    label: str | bool
    """The feature that is y in `(x, y)`. True uses the label of the schema. False returns dicts by feature name. x is an array instead of a dict if only one feature remains. A record without a label is an error."""
    weights: str | None
    """The feature that is w in `(x, y, w)`. It requires `label`."""
    collate: Mapping[str, Collate] | Collate | None
    """How lists become arrays, for all lists or by feature name: "ragged" (the default), "dense", "padded" or `Padded(...)`, "bucketed" or `Bucketed(...)`, or `Packed(length)`. "one_hot" or `OneHot(depth)` encodes integers."""
    matrix: Sequence[str] | None
    """Combines numeric features into one float32 array [rows, numbers], in this order. It is the only input in addition to label and weights, or `"matrix"` in a dict. Missing values are NaN, or the values of `defaults`."""
    ids: bool
    """Adds `"record/shard"` and `"record/index"` to each batch: the index of the file in `ds.files`, and the number of the record in it."""
    map: Callable[[Any], Any] | None
    """A function that takes a batch. Its result is returned instead of the batch. It runs in the threads of the reader, or as a TensorFlow graph in `to_tf`. Its errors are raised with the number of the batch."""
    decode_images: ImageSpec | None
    """(height, width) decodes images to uint8 [rows, height, width, channels], resized as `tf.image.resize` does. True keeps the size, which must be the same for all images. Lists of images become lists of arrays. `Images(...)` has further options such as scaling and cropping. A dict specifies targets by feature name. None uses the option of `open`."""
    channels: int
    """Number of channels if `decode_images` is a size or True: 1 for grey, 3 for RGB, 4 for RGBA. (default: 3)."""
    antialias: bool
    """Resizes with antialiasing if `decode_images` is a size or True."""
    memory_bytes: str | int
    """Limit of the data that is read ahead or being decoded, as a number of bytes or as text such as "512MiB". (default: 512MiB)."""
    on_bad: Literal['error', 'skip']
    """"error" raises an error at the first unusable record, with its place. "skip" leaves out records that are damaged, do not fit the schema or have images that can't be decoded, and fills batches with the next records. A warning at the end of an epoch reports their number. The number of batches is then unknown in advance. Each worker of a PyTorch DataLoader fills its batches with records of its own steps. (default: error)."""
    nulls: Literal['valid', 'drop']
    """"drop" leaves out the records that lack a feature that is read. "valid" returns zeros and empty text for missing values and adds `name/valid`. (default: valid)."""
