"""Independence of the export from PyTorch's modes and from strides of the state."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import Tensor, nn  # noqa: E402

MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def assert_same(version, module, x):
    """Compares output and gradients with the module for contiguous inputs and state."""
    pair = ExportedPair(version)
    given = pair.state() | {("input", pair.part()["inputs"][0]["name"]): x}
    assert all(each.is_contiguous() for each in given.values())
    y = module.train()(x)
    after = pair.run(pair.program("forward"), given)
    torch.testing.assert_close(after["output", "output__0"], y.detach())
    given |= after | {("output_gradient", "output__0"): torch.ones_like(y)}
    gradients = pair.run(pair.program("backward"), given)
    named = {name: each for name, each in module.named_parameters() if each.requires_grad}
    assert {name for _, name in gradients} == set(named)
    for name, wanted in zip(named, torch.autograd.grad(y.sum(), named.values())):
        torch.testing.assert_close(gradients["parameter_gradient", name], wanted)


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_the_caller_do_not_affect_the_package(tmp_path, mode):
    module = nn.Linear(4, 2)
    with MODES[mode]():
        result = braid.export(module, (torch.randn(3, 4),), tmp_path / "net", "pair", precisions=())
    assert_same(result.path, module, torch.randn(5, 4))


def test_inference_tensors_become_trainable_parameters(tmp_path):
    """Eager mode cannot train parameters that were created in inference mode."""
    torch.manual_seed(2)
    with torch.inference_mode():
        module = nn.Linear(4, 2)
        result = braid.export(module, (torch.randn(3, 4),), tmp_path / "net", "pair", precisions=())
    again = nn.Linear(4, 2)
    again.load_state_dict(module.state_dict())
    assert_same(result.path, again, torch.randn(5, 4))


class ChannelsLast(nn.Module):
    """Reshapes a channels-last convolution output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1)


class Transposed(nn.Module):
    """Module with a transposed parameter and an expanded buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6).t())
        self.register_buffer("column", torch.randn(4).view(1, 4).expand(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight + self.column).t().reshape(-1).reshape(4, 6)


@pytest.mark.parametrize("make, shape", [(ChannelsLast, (3, 2, 2)), (Transposed, (4,))])
def test_non_contiguous_state_is_exported(tmp_path, make, shape):
    module = make()
    strides = [each.stride() for each in module.state_dict().values()]
    x = torch.randn(3, *shape)
    result = braid.export(module, (x,), tmp_path / "net", "pair", precisions=())
    assert_same(result.path, module, torch.randn(5, *shape))
    assert [each.stride() for each in module.state_dict().values()] == strides


def test_non_contiguous_example_is_accepted(tmp_path):
    class Viewed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + x.view(-1, 2, 2).flatten(1)

    module = Viewed(4, 4)
    example = torch.randn(4, 3).t()
    result = braid.export(module, (example,), tmp_path / "net", "pair", precisions=())
    assert_same(result.path, module, torch.randn(5, 4))


def test_view_that_fails_for_contiguous_state_is_rejected(tmp_path):
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 6).t())

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.t().view(24).view(4, 6)

    with pytest.raises(braid.ExportError) as raised:
        braid.export(Viewed(), (torch.randn(3, 4),), tmp_path / "net", "pair", precisions=())
    message = str(raised.value)
    assert "with 'weight' contiguous, as on a server: RuntimeError: view" in message
    assert message.endswith("in forward: return x @ self.weight.t().view(24).view(4, 6)")
    assert list(tmp_path.iterdir()) == []
