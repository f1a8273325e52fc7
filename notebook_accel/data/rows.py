"""What in a tree is one entry a sample, and what only holds such parts together.

tensor, array                           one row a sample, if it is as long as the batch
list as long as the batch, no tensors   one row a sample, whatever a row is
tuple, dict, any other list             holds parts
number, string, None                    one value a rank
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from notebook_accel.config.words import kind_of
from notebook_accel.errors import RuntimeMisuse
from notebook_accel.ranks.collectives import tensors_of
from notebook_accel.ranks.plain import is_array, is_like_a_tensor, is_number

TENSOR, ARRAY, ROWS, VALUE = "tensor", "array", "list", "value"


class NoRows(RuntimeMisuse, TypeError):
    """Something was gathered in which the rows of samples cannot be told apart."""


@dataclass(frozen=True)
class Rows:
    """How a tree is read whose batch has ``num`` rows (None: nobody can say, outside of a loop).

    ``every_list`` makes every list, tensor and array one entry a sample. ``columns`` is a batch
    that torch collated: unless it holds strings, it is a list of columns.
    """

    num: int | None
    every_list: bool = False
    columns: Any = None

    def are(self, part: Any) -> bool:
        """Whether the list or tuple ``part`` has one entry a sample, rather than being a structure.

        It is told by lengths and types only, which are those of every batch.
        """
        if isinstance(part, list):
            is_columns = part is self.columns and not isinstance(part[0], (str, bytes))
            return not is_columns and self._is_list_of_rows(part)
        if type(part) is not tuple or not part:
            return False
        if all(isinstance(item, str) for item in part):
            return True
        return len(part) == self.num and (_alike(part) or (self.every_list and self._apart(part)))

    def _is_list_of_rows(self, part: list[Any]) -> bool:
        if self.every_list or not part:
            return True
        if self.num is None:
            return not tensors_of(part)
        if any(isinstance(item, Tensor) for item in part):
            return False
        return len(part) == self.num or not all(map(self._is_column, part))

    def _is_column(self, item: Any) -> bool:
        if isinstance(item, Mapping):
            return bool(item) and all(map(self._is_column, item.values()))
        if isinstance(item, (list, tuple)):
            return len(item) == self.num
        return (isinstance(item, Tensor) or is_array(item)) and length(item) == self.num

    def _apart(self, part: tuple[Any, ...]) -> bool:
        """Whether nobody can take the items of ``part`` for columns."""
        return not all(map(self._is_column, part))

    def kind(self, leaf: Any) -> str:
        """Say how ``leaf`` is gathered.

        Errors: NoRows (a TypeError) for what has no rows and is no value.
        """
        if isinstance(leaf, Tensor):
            return TENSOR if not self.every_list else ROWS if leaf.dim() else VALUE
        if is_array(leaf):
            if is_like_a_tensor(leaf) and not self.every_list:
                return ARRAY
            return ROWS if leaf.ndim else VALUE
        if isinstance(leaf, (list, tuple)):
            return ROWS
        if leaf is None or isinstance(leaf, (str, bytes)) or is_number(leaf):
            return VALUE
        raise NoRows(
            f"gather_for_metrics got {kind_of(leaf)}",
            "nobody can tell which part of it belongs to which sample, so those that were repeated "
            "to make ranks even would stay",
            "give a tensor, an array, or a list with one entry a sample; "
            "notebook_accel.utils.gather_object collects one object a rank",
        )


def length(part: Any) -> int | None:
    """How long a list, tensor or array is; None for what has no length."""
    if isinstance(part, Tensor) or is_array(part):
        return len(part) if part.ndim else None
    return len(part) if isinstance(part, list) else None


def _alike(items: tuple[Any, ...]) -> bool:
    """Whether all are dicts of the same keys: what a detector says of each image."""
    first = items[0]
    return isinstance(first, Mapping) and all(
        isinstance(item, Mapping) and item.keys() == first.keys() for item in items
    )
