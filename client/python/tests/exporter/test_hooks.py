"""Module hooks receive the arguments of forward by position."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import nn  # noqa: E402


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, scale=2.0, *, mask):
        return self.layer(x) * mask * scale


INPUTS = {"x": torch.randn(3, 4), "mask": torch.ones(3, 2)}


def with_hooks(module):
    module.register_forward_pre_hook(lambda module, args: (args[0] + 1, *args[1:]))
    module.register_full_backward_hook(lambda module, given, _: (given[0], *given[1:]))
    return module


def test_pair_runs_hooks_with_positional_arguments(tmp_path):
    module = with_hooks(Net())
    result = braid.export(module, INPUTS, tmp_path / "net", "pair", precisions=())
    pair = ExportedPair(result.path)
    given = {("input", name): each for name, each in INPUTS.items()}
    got = pair.run(pair.program("eval"), pair.state() | given)
    expected = module(INPUTS["x"], mask=INPUTS["mask"])
    torch.testing.assert_close(got["output", "output__0"], expected.detach())


@pytest.mark.parametrize("format, examples", [
    ("torchscript", (torch.randn(3, 4),)),
    ("torchscript", {"input": torch.randn(3, 4)}),
    ("aot", (torch.randn(3, 4),)),
])
def test_other_formats_run_hooks(tmp_path, format, examples):
    """Relies on the exporter's own comparison with the module."""
    module = nn.Linear(4, 2)
    module.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    result = braid.export(module, examples, tmp_path / "net", format)
    assert result.format == format
