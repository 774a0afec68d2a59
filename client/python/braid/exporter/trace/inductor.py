"""Patches of Inductor for convolutions and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.fx.experimental.symbolic_shapes import _suppress_guards

# Functions that PyTorch calls to find a convolution's kernel and its memory layout.
_LAYOUT_QUERIES = ("_select_conv_backend", "_conv_determine_backend_memory_format")


@contextmanager
def dynamic_batch_convolutions() -> Iterator[None]:
    """Patches convolutions for a compilation so that they do not bound the number of rows.

    The kernel choice would add a guard, for example 2 to 15 rows, but all kernels use the same
    layout.
    """
    with ExitStack() as patches:
        for name in _LAYOUT_QUERIES:
            ask = _without_guards(getattr(torch._C, name))
            patches.enter_context(mock.patch.object(torch._C, name, ask))
        yield


def _without_guards(ask: Callable[..., Any]) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        input = kwargs["input"] if "input" in kwargs else args[0]
        with _suppress_guards(input.fake_mode.shape_env):
            return ask(*args, **kwargs)

    return answer


@contextmanager
def checked_embedding_indices() -> Iterator[None]:
    """Patches embeddings for a compilation so that a negative index is an error, as in eager mode.

    Inductor's own kernels accept -1 as the last row.
    """
    from torch._inductor.ir import Pointwise
    from torch._inductor.lowering import lowerings
    from torch._inductor.virtualized import ops

    operator = torch.ops.aten.embedding.default
    original = lowerings[operator]

    def lower(
        weight: Any, indices: Any, padding: int = -1, scale: bool = False, sparse: bool = False
    ):
        if sparse:  # Inductor calls PyTorch's operator.
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
