"""Traces of operators on permuted tensors have the strides that kernels return."""

import copy

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Permuted(nn.Module):
    """Applies a layer to a transposed tensor, between linear layers."""

    def __init__(self, layer):
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(4, 6), layer, nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.layer(self.first(x).transpose(1, 2)).transpose(1, 2))


class PermutedImage(nn.Module):
    """Applies a layer to a channels-last image."""

    def __init__(self, layer):
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(3, 4), layer, nn.Linear(4, 2)

    def forward(self, image):
        image = self.layer(self.first(image).permute(0, 3, 1, 2))
        return self.last(image.permute(0, 2, 3, 1)).flatten(1)


class Selective(nn.Module):
    """Block like Mamba's: a convolution over time, and a scan with input-dependent weights."""

    def __init__(self, width=8, states=4):
        super().__init__()
        self.norm, self.width = nn.LayerNorm(width), width
        self.inwards = nn.Linear(width, 2 * width, bias=False)
        self.convolution = nn.Conv1d(width, width, 3, groups=width, padding=2)
        self.select = nn.Linear(width, 1 + 2 * states, bias=False)
        self.step, self.outwards = nn.Linear(1, width), nn.Linear(width, width)
        self.decay = nn.Parameter(torch.rand(width, states))
        self.states = states

    def forward(self, x):
        hidden, gate = self.inwards(self.norm(x)).chunk(2, -1)
        hidden = self.convolution(hidden.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        hidden = F.silu(hidden)
        step, into, out = self.select(hidden).split([1, self.states, self.states], -1)
        step = F.softplus(self.step(step))[..., None]
        kept = (-step * self.decay.exp()).exp()
        added = step * into[:, :, None] * hidden[..., None]
        state, found = x.new_zeros(x.shape[0], self.width, self.states), []
        for time in range(x.shape[1]):
            state = kept[:, time] * state + added[:, time]
            found.append((state * out[:, time, None]).sum(-1))
        return x + self.outwards(torch.stack(found, 1) * F.silu(gate))


def series():
    return (torch.randn(3, 5, 4),)


def image():
    return (torch.randn(3, 5, 7, 3),)


LAYERS = {
    "batch norm": lambda: nn.BatchNorm1d(6),
    "batch norm without parameters": lambda: nn.BatchNorm1d(6, affine=False),
    "batch norm without statistics": lambda: nn.BatchNorm1d(6, track_running_stats=False),
    "instance norm": lambda: nn.InstanceNorm1d(6, affine=True, track_running_stats=True),
    "layer norm": lambda: nn.LayerNorm(5),
    "layer norm over two": lambda: nn.LayerNorm([6, 5]),
    "group norm": lambda: nn.GroupNorm(2, 6),
    "log_softmax of channels": lambda: nn.LogSoftmax(1),
    "log_softmax": lambda: nn.LogSoftmax(2),
    "softmax": lambda: nn.Softmax(1),
    "log sigmoid": lambda: nn.LogSigmoid(),
    "gelu": lambda: nn.GELU(),
    "prelu": lambda: nn.PReLU(6),
    "rrelu": lambda: nn.RReLU(),
    "dropout": lambda: nn.Dropout(0.3),
    "alpha dropout": lambda: nn.AlphaDropout(0.3),
    "feature dropout": lambda: nn.Dropout1d(0.3),
    "convolution": lambda: nn.Conv1d(6, 6, 3, padding=1),
    "max pooling": lambda: nn.MaxPool1d(3, 1, 1),
    "batch norm, dropout": lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.3)),
    "layer norm, alpha dropout": lambda: nn.Sequential(nn.LayerNorm(5), nn.AlphaDropout(0.3)),
    "dropout, batch norm": lambda: nn.Sequential(nn.Dropout(0.3), nn.BatchNorm1d(6)),
    "log_softmax, rows": lambda: Apply(
        lambda x: F.log_softmax(x, 1).reshape(-1, 5).cumsum(1).reshape(-1, 6, 5)
    ),
    "random": lambda: Apply(lambda x: x * torch.rand_like(F.layer_norm(x, [5]))),
    "other strides": lambda: Apply(
        lambda x: x + F.layer_norm(x, [5]).as_strided(x.shape, (30, 5, 1))
    ),
    "bytes": lambda: Apply(
        lambda x: F.layer_norm(x, [5]).view(torch.int32).view(torch.float32)
    ),
}
IMAGE_LAYERS = {
    "batch norm": lambda: nn.BatchNorm2d(4),
    "layer norm": lambda: nn.LayerNorm([5, 7]),
    "log_softmax": lambda: nn.LogSoftmax(1),
    "convolution, batch norm": lambda: nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
    ),
    "pixels": lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.PixelUnshuffle(1), nn.Dropout2d(0.2)),
}
CASES = {
    **{name: (lambda make=make: Permuted(make()), series) for name, make in LAYERS.items()},
    **{
        f"image, {name}": (lambda make=make: PermutedImage(make()), image)
        for name, make in IMAGE_LAYERS.items()
    },
    "selective": (Selective, lambda: (torch.randn(3, 4, 8),)),
}


def assert_is_the_module(version, module, batch):
    """Compares the package with the module, in evaluation and in a training step."""
    found = ExportedPair(version)
    (name,) = (each["name"] for each in found.part()["inputs"])
    given = found.state() | {("input", name): batch}
    torch.manual_seed(7)
    with torch.no_grad():
        expected = copy.deepcopy(module).eval()(batch)
    torch.manual_seed(7)
    (got,) = found.run(found.program("eval"), given).values()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)

    plain = copy.deepcopy(module).train()
    torch.manual_seed(7)
    expected = plain(batch)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)
    torch.manual_seed(7)
    known = given | found.run(found.program("forward"), given)
    got = known["output", "output__0"]
    torch.testing.assert_close(got, expected.detach(), rtol=1e-5, atol=1e-5)
    known["output_gradient", "output__0"] = gradient
    got = found.run(found.program("backward"), known)
    for name, parameter in plain.named_parameters():
        of_package = got.get(("parameter_gradient", name))
        torch.testing.assert_close(of_package, parameter.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make, example", CASES.values(), ids=CASES)
def test_training_and_evaluation_match_eager_mode(tmp_path, make, example):
    torch.manual_seed(0)
    module, inputs = make(), example()
    result = braid.export(module, inputs, tmp_path / "net", "pair", precisions=())
    for count in (2, 9):
        assert_is_the_module(result.path, module, torch.randn(count, *inputs[0].shape[1:]))


def test_mixed_precision_is_exported(tmp_path):
    module = Permuted(nn.Sequential(nn.BatchNorm1d(6), nn.LayerNorm(5), nn.LogSoftmax(1)))
    result = braid.export(module, series(), tmp_path / "net", "pair", precisions=["bfloat16"])
    assert result.reason == ""


@pytest.mark.parametrize("name", ["patches", "mamba"])
def test_transformers_models_are_exported(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if name == "patches":
        module = transformers.PatchTSTForPrediction(transformers.PatchTSTConfig(
            num_input_channels=2, context_length=16, patch_length=8, patch_stride=4, d_model=8,
            num_attention_heads=2, num_hidden_layers=1, ffn_dim=16, prediction_length=4,
        ))
        inputs = {"past_values": torch.randn(3, 16, 2)}
    else:
        module = transformers.MambaModel(transformers.MambaConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=1, state_size=4, use_cache=False,
        ))
        inputs = {"input_ids": torch.randint(0, 20, (3, 4))}
    assert braid.export(module, inputs, tmp_path / "net", "pair", precisions=()).reason == ""
