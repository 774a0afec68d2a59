"""Embeddings that are compiled as PyTorch runs them: an index below 0 is an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch


@contextmanager
def indexed_from_zero() -> Iterator[None]:
    """Patches Inductor for a compilation: its own kernels take -1 for the last row."""
    from torch._inductor.ir import Pointwise
    from torch._inductor.lowering import lowerings
    from torch._inductor.virtualized import ops

    operator = torch.ops.aten.embedding.default
    original = lowerings[operator]

    def lower(weight: Any, indices: Any, padding: int = -1, scale: bool = False, sparse: bool = False):
        if sparse:  # PyTorch's operator is called
            return original(weight, indices, padding, scale, sparse)
        rows, *columns = weight.get_size()
        dims = len(indices.get_size())
        load_weight, load_index = weight.make_loader(), indices.make_loader()

        def element(place: Any) -> Any:
            row = ops.indirect_indexing(load_index(place[:dims]), rows, wrap_neg=False)
            return load_weight([row, *place[dims:]])

        return Pointwise.create(
            device=weight.get_device(),
            dtype=weight.get_dtype(),
            inner_fn=element,
            ranges=[*indices.get_size(), *columns],
        )

    with mock.patch.dict(lowerings, {operator: lower}):
        yield
