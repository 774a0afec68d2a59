"""Argument checks of PyTorch do not restrict the batch size of a package."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from braid.exporter import torch_versions  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Apply(nn.Module):
    """Applies each function to itself, the input, and the output of a linear layer."""

    def __init__(self, *functions):
        super().__init__()
        self.functions, self.layer = functions, nn.Linear(4, 4)
        self.register_buffer("right", torch.randn(4, 2))
        self.register_buffer("square", torch.randn(4, 4))

    def forward(self, x):
        y = self.layer(x)
        return tuple(function(self, x, y) for function in self.functions)


class Transformer(nn.Module):
    """Spatial transformer with a grid of fixed size."""

    def __init__(self, space, corners=False):
        super().__init__()
        self.space, self.corners = space, corners
        self.layer = nn.Linear(3, 6 if len(space) == 3 else 12)

    def forward(self, image):
        theta = self.layer(image.mean((2, 3))).view(-1, len(self.space) - 1, len(self.space))
        grid = F.affine_grid(theta, (image.shape[0], *self.space), align_corners=self.corners)
        if len(self.space) > 3:
            return grid
        return F.grid_sample(image, grid, align_corners=self.corners)


def definite(x):
    return x @ x.mT + torch.eye(4)


MATRICES = {
    "solve": lambda m, x, y: torch.linalg.solve(definite(y), m.right),
    "solve_ex": lambda m, x, y: torch.linalg.solve_ex(definite(y), m.right)[0],
    "solve with columns": lambda m, x, y: torch.linalg.solve(definite(y), x),
    "solve with vectors": lambda m, x, y: torch.linalg.solve(definite(y), x[:, 0]),
    "solve a constant": lambda m, x, y: torch.linalg.solve(definite(m.square), y),
    "triangular": lambda m, x, y: torch.linalg.solve_triangular(
        definite(y).tril(), m.right, upper=False
    ),
    "cholesky_solve": lambda m, x, y: torch.cholesky_solve(
        m.right, torch.linalg.cholesky(definite(y))
    ),
    "lu_solve": lambda m, x, y: torch.linalg.lu_solve(
        *torch.linalg.lu_factor(definite(y)), m.right
    ),
    "inv": lambda m, x, y: torch.linalg.inv(definite(y)),
    "slogdet": lambda m, x, y: torch.linalg.slogdet(definite(y))[1],
    "kron": lambda m, x, y: torch.kron(y, m.right),
    "kron of a constant": lambda m, x, y: torch.kron(m.right, y),
    "spectral norm": lambda m, x, y: torch.linalg.matrix_norm(y, 2),
    "smallest singular value": lambda m, x, y: torch.linalg.norm(y, -2, dim=(1, 2), keepdim=True),
    "nuclear norm": lambda m, x, y: torch.linalg.matrix_norm(y, "nuc"),
    "sums of columns": lambda m, x, y: torch.linalg.matrix_norm(y, 1, dim=(2, 1)),
    "sums of rows": lambda m, x, y: torch.linalg.matrix_norm(y, float("-inf"), keepdim=True),
    "einsum": lambda m, x, y: torch.einsum("bij,bjk,kl->bil", y, x, m.right),
    "baddbmm": lambda m, x, y: torch.baddbmm(m.square, y, x),
    "bilinear": lambda m, x, y: F.bilinear(y, x, m.square[None]),
    "equal branches": lambda m, x, y: y * (2 if x.shape[0] > 3 else 2),
    "first rows": lambda m, x, y: y + x[:50].sum(),
    "number of the first rows": lambda m, x, y: y / y[:50].shape[0],
}
IMAGES = {
    "affine_grid": lambda: Transformer((3, 6, 6)),
    "affine_grid of more channels": lambda: Transformer((7, 6, 6)),
    "affine_grid by corners": lambda: Transformer((3, 4, 4), corners=True),
    "affine_grid of volumes": lambda: Transformer((3, 4, 5, 6)),
}


# Several functions in each package, because an export takes a second.
@pytest.mark.parametrize(
    "names", [list(MATRICES)[start::4] for start in range(4)], ids=", ".join
)
def test_package_of_matrix_functions_accepts_any_number_of_rows(tmp_path, names):
    torch.manual_seed(0)
    assert_any_number_of_rows_works(tmp_path, Apply(*(MATRICES[name] for name in names)), (4, 4))


@pytest.mark.parametrize("make", IMAGES.values(), ids=IMAGES)
def test_package_of_image_functions_accepts_any_number_of_rows(tmp_path, make):
    torch.manual_seed(0)
    assert_any_number_of_rows_works(tmp_path, make(), (3, 6, 6))


def assert_any_number_of_rows_works(tmp_path, module, shape):
    result = braid.export(module, (torch.randn(3, *shape),), tmp_path / "net", "pair",
                          precisions=())
    found = ExportedPair(result.path)
    (name,) = (each["name"] for each in found.part()["inputs"])
    for count in (2, 3, 4, 6, 7, 20, 60):
        batch = torch.randn(count, *shape)
        got = found.run(found.program("eval"), found.state() | {("input", name): batch})
        with torch.no_grad():
            expected = module(batch)
        for place, each in enumerate(expected if isinstance(expected, tuple) else [expected]):
            torch.testing.assert_close(got["output", f"output__{place}"], each, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function, rows", [
    # For 4 rows, PyTorch interprets the right-hand side as one vector per matrix.
    (lambda m, x, y: torch.linalg.solve(definite(y), m.square), 4),
    # For 2 rows, PyTorch rejects such a vector.
    (lambda m, x, y: torch.linalg.solve(definite(y), m.right.mT, left=False), 2),
    (lambda m, x, y: y * (2 if x.shape[0] > 3 else 1), 2),
    (lambda m, x, y: y * min(x.shape[0], 3), 2),
])
def test_branch_on_the_number_of_rows_is_rejected(tmp_path, function, rows):
    with pytest.raises(braid.ExportError, match=f"different branch for {rows} rows") as raised:
        braid.export(Apply(function), (torch.randn(3, 4, 4),), tmp_path / "net", "pair")
    assert "test_argument_checks.py" in str(raised.value)


@pytest.mark.parametrize("name, function", [
    ("quantile", lambda m, x, y: y.quantile(0.5, dim=-1)),
    ("quantile", lambda m, x, y: torch.quantile(y, torch.tensor([0.1, 0.9]), dim=-1)[0]),
    ("nanquantile", lambda m, x, y: torch.nanquantile(y, 0.5, dim=-1)),
])
def test_operator_without_a_shape_rule_is_named(tmp_path, name, function):
    """PyTorch has rules for these operators since 2.12."""
    if torch_versions.installed() >= (2, 12):
        assert_any_number_of_rows_works(tmp_path, Apply(function), (4, 4))
        return
    reason = f"the operator {name} has no shape rule for a dynamic batch size"
    with pytest.raises(braid.ExportError, match=reason) as raised:
        braid.export(Apply(function), (torch.randn(3, 4, 4),), tmp_path / "net", "pair")
    assert "test_argument_checks.py" in str(raised.value)
