"""Modules whose train() and eval() do more than to say which mode it is."""

from __future__ import annotations

from torch import nn

from braid._export import ExportError
from braid.exporter.state import preserved, restored, same, state_of


def check_keeps_state(module: nn.Module) -> None:
    """ExportError, by name, if a switch of modes changes a parameter or buffer, as of an adapter
    that is merged into the weights for evaluation: a package has one set for both."""
    with restored(module), preserved(module):
        module.train(module.training)
        before = [(entry, entry.copy()) for entry in state_of(module)]
        for training in (not module.training, module.training):
            module.train(training)
            now = {entry.name: entry.tensor for entry in state_of(module)}
            for entry, was in before:
                if entry.name not in now or not same(now[entry.name], was):
                    called = "train()" if training else "eval()"
                    raise ExportError(
                        f"{called} of the module changes the {entry.kind} '{entry.name}', of which "
                        f"a package has one for training and evaluation: switch that off, such as "
                        f"the merging of an adapter's weights"
                    )
