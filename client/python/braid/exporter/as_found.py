"""Restores a module and the random generators after an attempt to export it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from braid.exporter import attributes, state


@contextmanager
def left_as_found(module: nn.Module) -> Iterator[None]:
    """Restores the module's parameters, buffers, attributes and modes, and the state of the shared
    random generators of Python and NumPy, on every exit."""
    with state.preserved(module), state.restored(module), attributes.restored(module):
        with _generators_restored():
            yield


@contextmanager
def _generators_restored() -> Iterator[None]:
    drawn = random.getstate()
    numpy = sys.modules.get("numpy")
    drawn_by_numpy = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        random.setstate(drawn)
        if numpy is not None:
            numpy.random.set_state(drawn_by_numpy)
