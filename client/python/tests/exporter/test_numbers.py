"""Python numbers in graphs, computed from the number of rows or passed to operators."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

FUNCTIONS = {
    "norm": lambda y, weight: y / torch.linalg.norm(weight),
    "frobenius": lambda y, weight: y / torch.linalg.norm(weight, "fro"),
    "first norm": lambda y, weight: y / torch.linalg.norm(weight, 1),
    "norm of three dims": lambda y, weight: y / torch.linalg.norm(weight[None]),
    "sum": lambda y, weight: y / torch.sum(weight, dim=None),
    "mean": lambda y, weight: y / torch.mean(weight, dim=None),
    "root of rows": lambda y, weight: y * y.shape[0] ** 0.5,
    "taken along a dim": lambda y, weight: torch.take_along_dim(y, y.argsort(1)[:, :1], 1),
    "taken along rows": lambda y, weight: y + torch.take_along_dim(y, y.argsort(0)[:1], 0),
    "chain of products": lambda y, weight: torch.chain_matmul(y, weight, weight),
    "dots": lambda y, weight: torch.linalg.multi_dot([y, weight, weight[:, :2]]),
    "deviation": lambda y, weight: torch.mul(*torch.std_mean(y, dim=1, keepdim=True)) * y,
    "deviation of all": lambda y, weight: torch.mul(*torch.std_mean(weight, (0, 1))) * y,
    "affine grid": lambda y, weight: functional.affine_grid(
        y[:, None, :3].expand(-1, 2, 3), (y.shape[0], 1, 2, 2), align_corners=False
    ),
    "affine grid of three dims": lambda y, weight: functional.affine_grid(
        y[:, None].expand(-1, 3, 4), (y.shape[0], 1, 2, 3, 2), align_corners=True
    ),
    "most rows": lambda y, weight: y * torch.sym_max(torch.sym_min(y.shape[0], 5), 2),
    "mean of rows": lambda y, weight: y * (1.0 / y.shape[0]),
    "third of rows": lambda y, weight: y * y * (y.shape[0] / 3),
    "by half of rows": lambda y, weight: y * y / (y.shape[0] / 2),
    "less a share": lambda y, weight: y * (1 - 1 / (y.shape[0] + 1)),
    "share as a factor": lambda y, weight: torch.sub(y, y * y, alpha=1 / y.shape[0]),
    "share of a remainder": lambda y, weight: y * ((y.shape[0] % 4) / 3 + y.shape[0] // 2 / 5),
    "third of most rows": lambda y, weight: y * (torch.sym_max(y.shape[0] - 2, 1) / 3),
    "half of rows, rounded up": lambda y, weight: y * (-(-y.shape[0] // 2)),
    "rows to a multiple": lambda y, weight: y * ((-y.shape[0]) % 4 + 1),
    "less than no rows": lambda y, weight: y * ((2 - y.shape[0]) // 3 + (5 - y.shape[0]) % 3),
    "number by rows": lambda y, weight: y * (-7 // y.shape[0] + -7 % y.shape[0]),
    "rows by less than nothing": lambda y, weight: y * (y.shape[0] // -4 + y.shape[0] % -4),
    "padded": lambda y, weight: functional.pad(y, (0, 0, 0, (-y.shape[0]) % 8))[: y.shape[0]],
    "in eights": lambda y, weight: functional.pad(y, (0, 0, 0, (-y.shape[0]) % 8))
    .view(-1, 8, 4)
    .tanh()
    .view(-1, 4)[: y.shape[0]],
    "ends": lambda y, weight: torch.cat([y[-(-y.shape[0] // 2) :], y[: -(-y.shape[0] // 2)].exp()]),
}
FUNCTIONS |= {
    "remainder of decimals": lambda y, weight: y * ((y.shape[0] / 4) % 1),
    "most of decimals": lambda y, weight: y * torch.sym_max(y.shape[0] / 3, 1.0),
    "quotient of any sign": lambda y, weight: y * (100 // (2 * y.shape[0] - 5)),
    "square root": lambda y, weight: y * torch.sym_sqrt(y.shape[0]),
    "as decimals": lambda y, weight: y * torch.sym_float(y.shape[0]),
    "without decimals": lambda y, weight: y * torch.sym_int(y.shape[0] / 3),
    "bits": lambda y, weight: y * ((y.shape[0] & 5) + (y.shape[0] | 2) + (y.shape[0] << 2 >> 1)),
    "one or the other": lambda y, weight: y * torch.sym_ite(y.shape[0] > 3, 2, 3),
}
# Python numbers in place of tensors, and complex numbers.
NUMBERS = {
    "floor of a quotient": lambda y, weight: y * (y.detach() // 3),
    "floor of a number's quotient": lambda y, weight: y * (0.3 // y.detach()),
    "whole numbers' quotient": lambda y, weight: y * (torch.arange(4) // 2),
    "whole numbers by decimals": lambda y, weight: y * (torch.arange(4) // 1.5),
    "small numbers' quotient": lambda y, weight: y * (torch.ones(4, dtype=torch.uint8) // 3),
    "number times tensor": lambda y, weight: torch.mul(0.1, y) + torch.sub(2, y, alpha=3),
    "number by tensor": lambda y, weight: y + torch.div(7, y.detach(), rounding_mode="floor"),
    "number by sum": lambda y, weight: y * torch.div(2, weight.sum()),
    "truth": lambda y, weight: torch.mul(True, y) * torch.mul(y > 0, True),
    "by rows": lambda y, weight: y * (y.detach() // y.shape[0]),
    "rows by": lambda y, weight: y * (y.shape[0] // y.detach()),
    "complex power": lambda y, weight: (y.exp() ** 1j).real,
    "complex difference": lambda y, weight: (1j - y).abs(),
    "complex product": lambda y, weight: (y * (1 + 2j)).abs() + (1j / (y + 3j)).real,
    "complex constant": lambda y, weight: (torch.full((4,), 1j) * y).abs(),
}


class Scaled(nn.Module):
    """Applies each function to the output and the weight of a layer."""

    def __init__(self, *functions) -> None:
        super().__init__()
        self.functions = functions
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        return tuple(function(y, self.layer.weight) for function in self.functions)


# Several functions in each package, because an export takes a second.
def in_groups(functions, size=8):
    names = list(functions)
    return [names[start : start + size] for start in range(0, len(names), size)]


@pytest.mark.parametrize("names", in_groups(FUNCTIONS), ids=", ".join)
def test_function_of_the_number_of_rows_matches_eager_mode(tmp_path, names):
    check(tmp_path, Scaled(*(FUNCTIONS[name] for name in names)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("names", in_groups(NUMBERS), ids=", ".join)
def test_number_argument_matches_eager_mode(tmp_path, names, dtype):
    check(tmp_path, Scaled(*(NUMBERS[name] for name in names)).to(dtype))


def test_norm_stays_one_operator(tmp_path):
    module = Scaled(lambda y, weight: y / torch.linalg.norm(weight))
    result = braid.export(module, (torch.randn(3, 4),), tmp_path / "net", "pair", precisions=())
    pair = ExportedPair(result.path)
    graph = pair.programs[pair.program("eval")["graph"]].graph
    assert torch.ops.aten.linalg_norm.default in [node.target for node in graph.nodes]


def test_random_draw_without_a_gradient_has_no_backward(tmp_path):
    """The gradient of torch.normal is zero, so the pair has no backward graph."""
    module = Scaled(lambda y, weight: torch.normal(y, torch.ones_like(y)))
    result = braid.export(module, (torch.randn(3, 4),), tmp_path / "net", "pair", precisions=())
    (program,) = ExportedPair(result.path).part()["programs"]
    assert "forward" in program and "backward" not in program


def check(path, module):
    """Compares outputs and gradients of the package with the module's."""
    torch.manual_seed(4)
    module.layer.reset_parameters()
    module.eval()
    dtype = module.layer.weight.dtype
    example = torch.randn(3, 4, dtype=dtype)
    result = braid.export(module, (example,), path / "net", "pair", precisions=())
    pair = ExportedPair(result.path)
    for rows in (1, 2, 6, 7):
        x = torch.randn(rows, 4, dtype=dtype)
        known = pair.state() | {("input", "x"): x}
        outputs = pair.run(pair.program("eval"), known)
        expected = module(x)
        for place, each in enumerate(expected):
            torch.testing.assert_close(outputs["output", f"output__{place}"], each.detach())

        known |= pair.run(pair.program("forward"), known)
        for place, each in enumerate(expected):
            known["output_gradient", f"output__{place}"] = torch.ones_like(each)
        gradients = pair.run(pair.program("backward"), known)
        (wanted,) = torch.autograd.grad(sum(each.sum() for each in expected), [module.layer.weight])
        torch.testing.assert_close(gradients["parameter_gradient", "layer.weight"], wanted)
