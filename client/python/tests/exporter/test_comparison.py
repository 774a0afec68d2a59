"""Tolerances of the comparison of a package with eager mode."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from braid.exporter.checks.comparison import PackageReader  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Normalized(nn.Module):
    """Network in which the gradient of some biases is zero except for rounding.

    An instance norm subtracts the mean that the bias before it adds.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 7, padding=3, padding_mode="reflect")
        self.rest = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(8, 8, 3), nn.InstanceNorm2d(8), nn.ReLU(True),
            nn.ReflectionPad2d(1), nn.Conv2d(8, 8, 3), nn.InstanceNorm2d(8),
        )
        self.last = nn.ConvTranspose2d(8, 3, 3, 2, 1, 1)

    def forward(self, x):
        x = self.first(x)
        return torch.tanh(self.last(x + self.rest(x)))


class Faint(nn.Module):
    """Two layers, one with much smaller gradients than the other."""

    def __init__(self):
        super().__init__()
        self.loud, self.faint = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.loud(x) + 3e-6 * F.softplus(self.faint(x))


@pytest.mark.parametrize("seed", range(2))
def test_rounding_of_a_zero_gradient_is_accepted(tmp_path, seed):
    torch.manual_seed(seed)
    assert braid.export(Normalized(), (torch.randn(8, 3, 16, 16),), tmp_path / "net", "pair",
                        precisions=())


@pytest.mark.parametrize("make, shape, name, wrong", [
    (Faint, (4, 4), "faint.bias", lambda gradient: 1.5 * gradient),
    (Normalized, (8, 3, 16, 16), "rest.5.bias", lambda gradient: gradient + 0.1),
])
def test_wrong_small_gradient_is_detected(tmp_path, monkeypatch, make, shape, name, wrong):
    run = PackageReader.run

    def run_wrong(*args):
        results = run(*args)
        if (key := ("parameter_gradient", name)) in results:
            results[key] = wrong(results[key])
        return results

    monkeypatch.setattr(PackageReader, "run", run_wrong)
    with pytest.raises(braid.ExportError, match=f"gradient of the parameter '{name}'"):
        braid.export(make(), (torch.randn(shape),), tmp_path / "net", "pair", precisions=())
