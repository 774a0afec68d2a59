"""State in Python objects and foreign random numbers are rejected, and undone."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from torch import nn  # noqa: E402


class Keeps(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.part = nn.Identity()
        self.part.calls = 0
        self.average = torch.zeros(4)
        self.log = []
        self.seen = {"rows": [1]}
        self.array = np.zeros(4)
        self.last = None
        self.ready = False
        self.numbers = random.Random(1)
        self.more = np.random.default_rng(1)

    def forward(self, x):
        return self.function(self, x, self.layer(x))

    def kept(self):
        return [
            self.part.calls, self.average.tolist(), list(self.log), repr(self.seen),
            self.array.tolist(), self.last, self.ready, self.numbers.getstate(),
            repr(self.more.bit_generator.state),
        ]


def counts(module, x, y):
    module.part.calls += 1
    return y / module.part.calls


def counts_in_training(module, x, y):
    module.part.calls += module.training
    return y


def adds_in_place(module, x, y):
    module.average.add_(y.detach().mean(0))
    return y + module.average


def replaces_a_tensor(module, x, y):
    module.average = 0.9 * module.average + 0.1 * y.detach().mean(0)
    return y


def appends(module, x, y):
    module.log.append(len(module.log))
    return y


def appends_deep(module, x, y):
    module.seen["rows"].append(2)
    return y


def adds_to_an_array(module, x, y):
    module.array += 1
    return y


def draws_of_its_own(module, x, y):
    return y * module.numbers.random()


def draws_of_its_own_with_numpy(module, x, y):
    return y * float(module.more.random())


@pytest.mark.parametrize("function, name", [
    (counts, "part.calls"),
    (counts_in_training, "part.calls"),
    (adds_in_place, "average"),
    (replaces_a_tensor, "average"),
    (appends, "log"),
    (appends_deep, "seen"),
    (adds_to_an_array, "array"),
    (draws_of_its_own, "numbers"),
    (draws_of_its_own_with_numpy, "more"),
])
def test_attribute_that_forward_changes_is_rejected(tmp_path, function, name):
    module = Keeps(function)
    before = module.kept()
    average = module.average
    with pytest.raises(braid.ExportError, match=f"changes the module's attribute '{name}' in"):
        braid.export(module, (torch.randn(3, 4),), tmp_path / "net", "pair")
    assert module.kept() == before and module.average is average


def starts_once(module, x, y):
    if not module.ready:
        module.mean.copy_(x.mean(0))
        module.ready = True
    return y - module.mean


def counts_elsewhere(module, x, y):
    COUNTED.append(1)
    return y / len(COUNTED)


COUNTED = []


@pytest.mark.parametrize("function, reason", [
    (starts_once, "it changes the module's attribute 'ready', which a package would not"),
    (counts_elsewhere, "it keeps state in Python objects, or uses random numbers from outside"),
])
def test_different_result_in_a_second_run_is_rejected(tmp_path, function, reason):
    with pytest.raises(braid.ExportError, match="different result in a second run") as raised:
        braid.export(Keeps(function), (torch.randn(3, 4),), tmp_path / "net", "pair")
    assert reason in str(raised.value)


def draws(module, x, y):
    return y * random.uniform(1, 2)


def draws_with_numpy(module, x, y):
    return y * float(np.random.rand())


def draws_in_training(module, x, y):
    return random.choice([x, y]) if module.training else y


@pytest.mark.parametrize("function, library", [
    (draws, "random"), (draws_with_numpy, "numpy.random"), (draws_in_training, "random"),
])
def test_random_numbers_from_outside_pytorch_are_rejected(tmp_path, function, library):
    with pytest.raises(braid.ExportError, match=f"random numbers from {library}, which") as raised:
        braid.export(Keeps(function), (torch.randn(3, 4),), tmp_path / "net", "pair")
    assert f", in {function.__name__}: return " in str(raised.value)


def keeps_the_last(module, x, y):
    """Keeps the last output, for example for inspection."""
    module.last = y
    module.seen.setdefault("first", torch.ones(2))
    return y


def test_attribute_that_is_equal_after_each_run_is_accepted(tmp_path):
    module = Keeps(keeps_the_last)
    before = module.kept()
    result = braid.export(module, (torch.randn(3, 4),), tmp_path / "net", precisions=())
    assert (result.format, result.reason) == ("pair", "")
    assert module.kept() == before


def writes(module, x, y):
    module.layer.weight.data.mul_(0.5)
    module.mean += 1
    module.log.append(1)
    module.average.add_(1)
    return y


@pytest.mark.parametrize("format", ["auto", "torchscript", "pair"])
def test_the_module_is_restored_after_an_error(tmp_path, format):
    module = Keeps(writes)
    module.layer.weight.data[0, 0] = float("nan")
    tensors = {name: each.clone() for name, each in module.state_dict().items()}
    kept = module.kept()
    with pytest.raises(braid.ExportError):
        braid.export(module, (torch.randn(3, 4),), tmp_path / "net", format)
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, tensors[name], rtol=0, atol=0, equal_nan=True)
    assert module.kept() == kept
