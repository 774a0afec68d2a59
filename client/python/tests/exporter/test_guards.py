"""Conditions on the number of rows that do not concern the model."""

from __future__ import annotations

import torch
from braid.exporter.trace import guards
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import functional


def test_limit_of_cudnn_batch_norm_is_no_branch_of_the_model() -> None:
    """PyTorch asks for it before it knows whether cuDNN can be used. Fake tensors need no GPU."""
    shapes = ShapeEnv()
    recorded = guards.record(shapes, __file__)
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    rows = mode.from_tensor(torch.empty(5), symbolic_context=dynamic).shape[0]
    with mode, torch.device("cuda"):
        images, channels = torch.empty(rows, 3, 8, 8), torch.ones(3)
        functional.batch_norm(images, channels, channels, channels, channels)
    assert any("65535" in str(guard.expr) for guard in shapes.guards)
    assert not recorded.conditions
