"""Test for independence of rows, and its effect on batching."""

import re
import shutil
import time

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from braid.cli import main  # noqa: E402
from braid.exporter.checks import row_independence  # noqa: E402
from braid.exporter.model.signature import named_inputs  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

REMEDY = (
    r'\(expected max_batch_size: 0, or to assume independence: parameters \{ key: '
    r'"row_independence" value \{ string_value: "assumed" \} \}\)'
)


class Net(nn.Module):
    """Applies `function` to itself and the inputs."""

    def __init__(self, function, **state):
        super().__init__()
        self.function = function
        self.linear = nn.Linear(4, 4)
        self.words = nn.Embedding(9, 4)
        for name, value in state.items():
            setattr(self, name, value)

    def forward(self, x, *others):
        return self.function(self, x, *others)


class AboveTwoHundredRows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 200:
            x = x - x.mean(0)
        return 2 * x


def check(function, x=None, **state):
    torch.manual_seed(0)
    module = function if isinstance(function, nn.Module) else Net(function, **state)
    x = torch.randn(5, 4) if x is None else x
    return row_independence.check(module, named_inputs(module, (x,), {}))


def parameter(*shape):
    return nn.Parameter(torch.zeros(shape))


DEPENDENT = {
    "standard deviation": lambda m, x: m.linear(x) / (1 + x.std(0).sum()),
    "mean": lambda m, x: x - x.mean(0),
    "mean of all": lambda m, x: x - x.mean(),
    "maximum": lambda m, x: torch.cat([x, x.amax(0, keepdim=True).expand_as(x)], 1),
    "cumulative sum": lambda m, x: x.cumsum(0),
    "cumulative sum from the end": lambda m, x: x.flip(0).cumsum(0).flip(0),
    "sort": lambda m, x: x.sort(0).values,
    "rank": lambda m, x: x.argsort(0).argsort(0),
    "flip": lambda m, x: x.flip(0),
    "roll": lambda m, x: x + 1e-3 * x.roll(1, 0),
    "shuffle": lambda m, x: x[torch.randperm(x.shape[0])],
    "attention": lambda m, x: (x @ x.t()).softmax(1) @ x,
    "softmax": lambda m, x: x.softmax(0),
    "the first row": lambda m, x: x - x[:1],
    "the last row": lambda m, x: x - x[-1:],
    "number of rows": lambda m, x: x / x.shape[0],
    "place": lambda m, x: x + torch.arange(x.shape[0])[:, None],
    "hidden NaN": lambda m, x: x + 1e-2 * x.nan_to_num().clamp(-1, 1).mean(0),
    "hidden large values": lambda m, x: x + torch.where(x.abs() > 9, 0.0, x).nan_to_num().mean(0),
    "only large values": lambda m, x: torch.where(x.nan_to_num().abs().amax() > 99, x / 2, x),
    "missing values": lambda m, x: torch.where(x.isnan(), x.nanmean(0), x),
    "one output of two": lambda m, x: {"a": m.linear(x), "b": x - x.mean(0)},
    "tiny": lambda m, x: x + 1e-9 * x.mean(0),
    "count under random numbers": lambda m, x: F.dropout(x, 0.5, True) / x.shape[0],
}

INDEPENDENT = {
    "layer": lambda m, x: m.linear(x),
    "row statistics": lambda m, x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True),
    "row sort": lambda m, x: x.sort(1),
    "several": lambda m, x: {"a": m.linear(x), "b": [x, x > 0, x.argmax(1), x[:, :0]]},
    "one number each": lambda m, x: m.linear(x).sum(1),
    "squeezed row": lambda m, x: m.linear(x)[:, :1].squeeze(),
    "dropout": lambda m, x: F.dropout(m.linear(x), 0.5, True),
    "noise": lambda m, x: m.linear(x) + torch.randn_like(x),
    "large sines": lambda m, x: (1e3 * m.linear(x)).sin(),
    "sigmoid of columns": lambda m, x: (100 * x).t().sigmoid().t(),
    "instance norm": lambda m, x: F.instance_norm(x[:, None, :].expand(-1, 8, -1) * 2),
    "rejects NaN": lambda m, x: m.linear(x) if not x.isnan().any() else 1 / 0,
}


@pytest.mark.parametrize("function", DEPENDENT.values(), ids=DEPENDENT)
def test_dependent_rows_are_detected(function):
    result = check(function)
    assert result.result == "dependent", result
    expected = r"output '\w+' of row \d in a batch of \d (differs by|becomes)"
    assert re.match(expected, result.evidence)


@pytest.mark.parametrize("function", INDEPENDENT.values(), ids=INDEPENDENT)
def test_independent_rows_are_accepted(function):
    assert check(function).result == "independent", check(function)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_other_dtypes_are_supported(dtype):
    x = torch.randn(5, 4).to(dtype)
    assert check(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).to(dtype), x).holds
    assert check(lambda m, x: x + 1e-2 * x.mean(0), x).result == "dependent"


def test_dependence_below_the_rounding_of_float32_is_found_in_float64():
    x = torch.randn(5, 4).double()
    result = check(lambda m, x: x + 1e-9 * x.nan_to_num().clamp(-1, 1).mean(0), x)
    assert result.result == "dependent"


@pytest.mark.parametrize("state, function", [
    ({"a": parameter()}, lambda m, x: x + m.a * x.nan_to_num().mean(0)),
    ({"a": parameter(4, 4)}, lambda m, x: x + x.nan_to_num().mean(0) @ m.a),
    ({"a": parameter(4)}, lambda m, x: x + torch.where(m.a == 0, 0, x.mean(0))),
    ({"a": parameter(4)}, lambda m, x: x * (1 + m.a * x.shape[0])),
    ({"a": parameter()}, lambda m, x: m.words(x) + m.a * m.words(x).mean(0)),
    # sqrt fails for negative weights, so only random weights near the module's own apply.
    ({"a": nn.Parameter(torch.ones(4)), "b": parameter()},
     lambda m, x: x * m.a.sqrt() + m.b * x.nan_to_num().mean(0)),
])
def test_dependence_behind_zero_weights_is_detected(state, function):
    x = torch.tensor([1, 5, 2]) if "words" in function.__code__.co_names else None
    before = {name: each.clone() for name, each in state.items()}
    result = check(function, x, **state)
    assert result.result == "dependent" and result.evidence.endswith("(with random weights)")
    assert all(torch.equal(each, before[name]) for name, each in state.items())


@pytest.mark.parametrize("function", [
    lambda m, x: m.words(x) - m.words(x).mean(0),
    lambda m, x: torch.unique(x, return_inverse=True)[1],
    lambda m, x: x - x.amax(),
])
@pytest.mark.parametrize("x", [torch.tensor([1, 5, 2]), torch.zeros(2, dtype=torch.int64)])
def test_dependence_is_detected_for_examples_with_few_integers(function, x):
    assert check(function, x).result == "dependent"


@pytest.mark.parametrize("dtype", [
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16,
    torch.int32,
], ids=str)
def test_all_integer_dtypes_are_supported(dtype):
    x = (torch.arange(15).reshape(5, 3) % 2).to(dtype)
    assert check(lambda m, x: {"same": x, "number": x.double() * 2}, x).holds
    assert check(lambda m, x: x.flip(0), x).result == "dependent"


def test_integers_stay_in_the_range_that_the_model_accepts():
    assert check(lambda m, x: m.words(x), torch.zeros(2, dtype=torch.int64)).holds
    assert check(lambda m, x: m.a[x], torch.ones(2, dtype=torch.int64), a=parameter(3, 4)).holds
    assert check(lambda m, x: x / 255, torch.randint(256, (2, 3), dtype=torch.uint8)).holds


@pytest.mark.parametrize("make, across", [
    (lambda: nn.BatchNorm1d(4), False),
    (lambda: nn.BatchNorm1d(4, track_running_stats=False), True),
    (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), False),
    (lambda: nn.TransformerEncoderLayer(4, 2, 8), True),
    (lambda: torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), False),
    (lambda: nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Softmax(0)), True),
    (lambda: torch.jit.script(AboveTwoHundredRows()), True),
    (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)), False),
])
def test_modules_are_classified(make, across):
    module = make()
    x = torch.randn(5, 3, 4) if isinstance(module, nn.TransformerEncoderLayer) else None
    before = {name: each.clone() for name, each in module.state_dict().items()}
    assert check(module, x).result == ("dependent" if across else "independent")
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())


@pytest.mark.parametrize("function, evidence", [
    (lambda m, x: x @ x.t(), r"'output__0' has the shape \[4, 4\] for 4 rows and \[257, 257\]"),
    (lambda m, x: x.mean(0), r"'output__0' has the shape \[4\] for 7 rows and \[4\] for 257"),
    (lambda m, x: x[:3], r"has the shape \[3, 4\] for 7 rows and \[3, 4\] for 257"),
    (lambda m, x: x[x[:, 0] > 0.2], r"has the shape \[\d, 4\] for 7 rows and \[\d+, 4\] for 257"),
    (lambda m, x: x[:, : 1 + int(x.nan_to_num().sum() > 0)], "which depends on values"),
])
def test_output_shapes_show_dependence(function, evidence):
    result = check(function)
    assert result.result == "dependent" and result.by_shape
    assert re.search(evidence, result.evidence), result.evidence


def test_output_without_dims_is_one_number_for_all_rows():
    result = check(lambda m, x: (m.linear(x), x.sum()))
    assert result.result == "dependent" and result.one_number
    assert result.evidence == "output 'output__1' has no dims: it is one number for all rows"


def test_dynamic_quantization_is_an_approximate_dependence():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    module = torch.ao.quantization.quantize_dynamic(module, {nn.Linear})
    result = check(module, torch.randn(5, 8))
    assert result.result == "dependent" and result.approximate
    assert not check(lambda m, x: x - 0.5 * x.mean(0)).approximate
    assert not check(DEPENDENT["only large values"]).approximate


@pytest.mark.parametrize("function, reason", [
    (lambda m, x: m.linear(x) + next(m.counter), "a different result for the same batch"),
    (lambda m, x: m.linear(x) * float("nan"), "output 'output__0' cannot be compared: "),
    (lambda m, x: m.linear(x[:, :3]), "forward() fails: RuntimeError: "),
])
def test_undecided_results_have_a_reason(function, reason):
    result = check(function, counter=iter(range(10**6)))
    assert result.result == "undecided" and not result.holds
    assert reason in result.evidence


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.gate = nn.Parameter(torch.zeros(()))
        self.calls = 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.seen += 1
        return self.linear(x) + self.gate * x.mean(0)


def test_the_module_is_restored():
    module = Gated().train()
    check(module)
    assert module.training and module.calls == 0 and module.seen == 0 and module.gate == 0


class Centered(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x - x.mean(0))


class Gram(nn.Module):
    def forward(self, x):
        return x @ x.t()


class Total(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        y = self.linear(x)
        return {"y": y, "total": y.sum()}


X = (torch.randn(5, 4),)
TRAINING = (
    "in training, a model whose rows depend on each other sees only one chunk of the batch on "
    "each replica"
)
UNBATCHED = """\
max_batch_size: 0
input [
  { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }
]
output [
  { name: "output__0" data_type: TYPE_FP32 dims: [ -1, 2 ] }
]
"""
# Each request is a batch, so that the model can be trained.
WHOLE = UNBATCHED + 'parameters { key: "row_independence" value { string_value: "dependent" } }\n'
BATCHED = UNBATCHED.replace("size: 0", "size: 8").replace("-1, ", "")


def export(module, path, format="pair", config=None):
    path.mkdir(exist_ok=True)
    if config is not None:
        (path / "config.pbtxt").write_text(config)
    return braid.export(module, X, path, format, precisions=())


@pytest.mark.parametrize("format, platform", [
    ("pair", ""),
    ("torchscript", 'platform: "pytorch_libtorch"\n'),
    pytest.param("aot", 'platform: "torch_aoti"\n', marks=pytest.mark.skipif(
        shutil.which("g++") is None, reason="no C++ compiler")),
])
def test_dependent_rows_disable_batching(tmp_path, format, platform):
    result = export(Centered(), tmp_path, format)
    assert (tmp_path / "config.pbtxt").read_text() == platform + WHOLE
    assert result.reason.startswith(
        "not batched (max_batch_size: 0): output 'output__0' of row 2 in a batch of 4 differs by"
    )
    assert result.notes[0] in result.reason
    assert (TRAINING in result.notes) is (format != "aot")


def test_independent_rows_enable_batching(tmp_path):
    result = export(nn.Linear(4, 2), tmp_path)
    assert (result.reason, result.notes) == ("", ())
    assert "max_batch_size: 256\n" in (tmp_path / "config.pbtxt").read_text()
    assert ExportedPair(result.path).json["row_independence"] == {
        "result": "independent", "evidence": "",
    }


def test_pair_records_the_evidence(tmp_path):
    result = export(Centered(), tmp_path)
    said = ExportedPair(result.path).json["row_independence"]
    assert said["result"] == "dependent"
    assert said["evidence"].startswith("output 'output__0' of row 2 in a batch of 4 differs by")


def test_output_with_two_batch_dims_is_not_batched(tmp_path):
    result = braid.export(Gram(), X, tmp_path / "net")
    assert result.format == "torchscript"
    assert "not batched (max_batch_size: 0): output 'output__0' has the shape" in result.reason
    config = (tmp_path / "net/config.pbtxt").read_text()
    assert "max_batch_size: 0\n" in config and "dims: [ -1, -1 ]" in config
    assert "parameters" not in config  # Dim 0 is no batch.
    assert TRAINING not in result.notes  # The module has no parameters.


def test_size_of_zero_is_declared_as_any_size(tmp_path):
    """The server rejects a configuration with a size of 0."""
    export(Net(lambda m, x: (x, x[:, :0])), tmp_path)
    config = (tmp_path / "config.pbtxt").read_text()
    assert '{ name: "output__1" data_type: TYPE_FP32 dims: [ -1 ] }' in config


def test_number_for_all_rows_is_not_batched(tmp_path):
    result = export(Total(), tmp_path)
    config = (tmp_path / "config.pbtxt").read_text()
    assert "max_batch_size: 0\n" in config
    # Each request is one batch.
    assert '{ name: "total" data_type: TYPE_FP32 dims: [ -1 ] }' in config
    assert 'value { string_value: "dependent" }' in config
    assert "output 'total' has no dims" in result.reason


@pytest.mark.parametrize("format", ["pair", "torchscript", "auto"])
def test_config_that_declares_batches_of_dependent_rows_is_rejected(tmp_path, format):
    evidence = r"output 'output__0' of row 2 in a batch of 4 differs by up to [\d.e+-]+ when rows "
    with pytest.raises(braid.ExportError, match=(
        rf"^{tmp_path}/config.pbtxt: max_batch_size: 8, but the rows of a batch depend on each "
        rf"other: "
        rf"{evidence}.* {REMEDY}$"
    )):
        export(Centered(), tmp_path, format, BATCHED)
    assert [each.name for each in tmp_path.iterdir()] == ["config.pbtxt"]


def test_config_that_declares_no_batches_is_accepted(tmp_path):
    for config in (UNBATCHED, WHOLE):
        assert export(Centered(), tmp_path, config=config).reason == ""
    assert export(nn.Linear(4, 2), tmp_path / "net", config=UNBATCHED.replace('"x"', '"input"'))
    message = r"dims \[4\], but the model has \[-1, 4\] \(-1: any size; with "
    with pytest.raises(braid.ExportError, match=message):
        export(Centered(), tmp_path, config=BATCHED.replace("size: 8", "size: 0"))


def test_config_that_assumes_independent_rows_is_accepted(tmp_path):
    assumed = 'parameters { key: "row_independence" value { string_value: "assumed" } }\n'
    result = export(Centered(), tmp_path, config=BATCHED + assumed)
    assert (tmp_path / "config.pbtxt").read_text() == BATCHED + assumed
    assert "assumes independent rows: output 'output__0' of row 2" in result.reason
    assert TRAINING in result.notes
    other = assumed.replace("assumed", "maybe")
    with pytest.raises(braid.ExportError, match=REMEDY):
        export(Centered(), tmp_path, config=BATCHED + other)


def test_assumed_independence_does_not_override_shapes(tmp_path):
    config = BATCHED.replace("dims: [ 2 ]", "dims: [ -1 ]") + (
        'parameters { key: "row_independence" value { string_value: "assumed" } }\n'
    )
    with pytest.raises(braid.ExportError, match=r"for 257 \(expected max_batch_size: 0\)$"):
        export(Gram(), tmp_path, "torchscript", config)


def test_config_may_declare_batches_for_an_approximate_dependence(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    module = torch.ao.quantization.quantize_dynamic(module, {nn.Linear})
    config = 'platform: "pytorch_libtorch"\n' + BATCHED.replace('"x"', '"input"')
    result = export(module, tmp_path, "torchscript", config)
    assert "batched, although rows affect each other slightly: output" in result.reason


def test_config_may_declare_one_number_per_chunk(tmp_path):
    config = BATCHED.replace('"output__0"', '"y"').replace(
        "[ 2 ] }", '[ 2 ] },\n  { name: "total" data_type: TYPE_FP32 dims: [ ] }'
    )
    result = export(Total(), tmp_path, config=config)
    assert "one number for all rows, so a split batch returns several" in result.reason


def test_failing_forward_is_reported_before_the_config(tmp_path):
    with pytest.raises(braid.ExportError, match=r"forward\(\) fails for a batch of"):
        export(nn.Linear(3, 2), tmp_path, config=BATCHED.replace('"x"', '"input"'))


def test_command_prints_notes(tmp_path, monkeypatch, capsys):
    (tmp_path / "row_models.py").write_text(
        "from torch import nn\n"
        "class Centered(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.linear = nn.Linear(4, 2)\n"
        "    def forward(self, x):\n"
        "        return self.linear(x - x.mean(0))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["export", "row_models:Centered", "net", "--input", "x=FP32:4",
                 "--precision", "none"]) == 0
    said = capsys.readouterr()
    assert said.out == "net/1: pair\n"
    first, second = said.err.splitlines()
    assert first.startswith("note: not batched (max_batch_size: 0): output 'output__0' of row")
    assert second == f"note: {TRAINING}"


def test_small_model_takes_less_than_a_second():
    module = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    began = time.process_time()
    assert check(module, torch.randn(8, 784)).holds
    assert time.process_time() - began < 1


def test_large_model_runs_few_small_batches():
    rows = []
    layer = nn.Linear(5100, 5100)
    module = nn.Sequential(layer, nn.ReLU(), nn.Linear(5100, 2))
    layer.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    assert check(module, torch.randn(2, 5100)).holds
    assert max(rows) <= 7 and sum(rows) <= 80


def test_model_that_uses_much_memory_runs_few_small_batches():
    rows = []

    def widened(module, x):
        rows.append(len(x))
        return x.unsqueeze(2).expand(-1, -1, 1 << 18).mul(1.0).mean(2)

    assert check(widened).holds
    assert max(rows) <= 7 and sum(rows) <= 80
