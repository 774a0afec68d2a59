"""Export from a process whose default dtype differs from the server's, for example float64."""

import shutil
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import nn  # noqa: E402


@contextmanager
def default(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.fixture(params=[torch.float64, torch.bfloat16], ids=str)
def dtype(request):
    with default(request.param):
        yield request.param


class Adds(nn.Module):
    """Adds the result of a function of the input to a linear layer of it."""

    def __init__(self, function):
        super().__init__()
        self.function, self.layer = function, nn.Linear(6, 6)

    def forward(self, x):
        made = self.function(x)
        return self.layer(made) + made


class Positions(nn.Module):
    """Uses the default dtype in a way that TorchScript supports."""

    def forward(self, x):
        return x + torch.sin(torch.arange(6) / 7)


FUNCTIONS = {
    "arange": lambda x: x + torch.sin(torch.arange(6) / 7),
    "linspace": lambda x: x * torch.linspace(0.1, 1, 6),
    "number": lambda x: torch.arange(6) * 0.3 + x,
    "zeros": lambda x: torch.zeros(x.shape[0], 6) + x,
    "random": lambda x: x + torch.rand(x.shape[0], 6),
    "counts": lambda x: (x > 0) / (x > 0).sum(1, keepdim=True).add(1),
    "exp": lambda x: torch.exp((x > 0).long()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_graphs_contain_explicit_dtypes(tmp_path, dtype, name):
    torch.manual_seed(0)
    module, x = Adds(FUNCTIONS[name]), torch.randn(4, 6)
    pair = ExportedPair(braid.export(module, (x,), tmp_path / "net", "pair", precisions=()).path)
    given = pair.state() | {("input", "x"): x}
    for kind, training in (("eval", False), ("forward", True)):
        module.train(training)
        torch.manual_seed(1)
        expected = module(x)
        torch.manual_seed(1)
        with default(torch.float32), torch.no_grad():
            got = pair.run(pair.program(kind), given)["output", "output__0"]
        torch.testing.assert_close(got, expected.detach(), rtol=0, atol=0)


def test_implicit_dtypes_that_remain_are_rejected(tmp_path, dtype):
    module = Adds(lambda x: torch.where(x > 0, 0.1, 0.2))
    with pytest.raises(braid.ExportError, match=f"the default dtype is {dtype} here and torch.flo"):
        braid.export(module, (torch.randn(4, 6),), tmp_path / "net", "pair", precisions=())


def test_torchscript_that_depends_on_the_default_dtype_is_rejected(tmp_path, dtype):
    x = torch.randn(4, 6)
    with pytest.raises(braid.ExportError, match=f"the default dtype is {dtype} here and torch.flo"):
        braid.export(Positions(), (x,), tmp_path / "net", "torchscript")
    assert braid.export(nn.Linear(6, 2), (x,), tmp_path / "net", "torchscript")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_compiled_code_keeps_its_dtypes(tmp_path):
    with default(torch.float64):
        module, x = Positions(), torch.randn(4, 6)
        path = braid.export(module, (x,), tmp_path / "net", "aot").path / "model.pt2"
        expected = module(x)
    compiled = torch._inductor.aoti_load_package(str(path))
    torch.testing.assert_close(compiled(x=x), (expected,), rtol=0, atol=1e-14)
    assert torch.get_default_dtype() == torch.float32
