"""Branches of `torch.cond` are exported for training and inference."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import nn  # noqa: E402


class Branches(nn.Module):
    """Runs one of two layers, as a buffer says. drops: the second layer has dropout."""

    def __init__(self, drops=False):
        super().__init__()
        self.early = nn.Linear(4, 3)
        self.late = nn.Linear(4, 3)
        self.drops = drops
        self.register_buffer("step", torch.tensor(0.0))

    def run_late(self, x):
        hidden = torch.dropout(x, 0.5, True) if self.drops else x
        return self.late(hidden).tanh()

    def forward(self, x):
        return torch.cond(self.step > 0, self.run_late, self.early, (x,))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "m"
    torch.manual_seed(0)
    return ExportedPair(braid.export(Branches(), (torch.randn(4, 4),), folder, "pair",
                                     precisions=()).path)


@pytest.mark.parametrize("step", [0.0, 1.0])
def test_each_branch_equals_eager_mode_in_training(pair, step):
    """The export compares the branch that its example takes; both must be in the graphs."""
    module = Branches()
    state = pair.state() | {("buffer", "step"): torch.tensor(step)}
    module.load_state_dict({name: tensor for (_, name), tensor in state.items()})
    x, gradient = torch.randn(5, 4), torch.randn(5, 3)
    y = module(x)
    y.backward(gradient)
    known = state | {("input", "x"): x}
    known |= pair.run(pair.program("forward"), known)
    torch.testing.assert_close(known["output", "output__0"], y.detach())
    known["output_gradient", "output__0"] = gradient
    found = pair.run(pair.program("backward"), known)
    for name, parameter in module.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found["parameter_gradient", name], expected)


@pytest.mark.parametrize("step", [0.0, 1.0])
def test_each_branch_equals_eager_mode_in_evaluation(pair, step):
    state = pair.state() | {("buffer", "step"): torch.tensor(step)}
    module = Branches()
    module.load_state_dict({name: tensor for (_, name), tensor in state.items()})
    x = torch.randn(3, 4)
    got = pair.run(pair.program("eval"), state | {("input", "x"): x})
    torch.testing.assert_close(got["output", "output__0"], module(x).detach())


def test_random_operators_in_branches_are_rejected(tmp_path):
    """Backward runs a branch again, with other random numbers."""
    with pytest.raises(braid.ExportError, match="a branch of torch.cond calls the random operator"):
        braid.export(Branches(drops=True), (torch.randn(4, 4),), tmp_path / "m", "pair",
                     precisions=())
