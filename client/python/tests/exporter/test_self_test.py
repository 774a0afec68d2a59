"""Self-tests of packages: the record, its tensors, and detection of differences."""

import base64
import json
import math
import struct

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
import edited_package  # noqa: E402
import export_models  # noqa: E402
import numpy as np  # noqa: E402
from braid.exporter.checks import self_test  # noqa: E402
from braid.exporter.checks import self_test_tensors as tensors  # noqa: E402
from braid.exporter.formats.archive import Archive  # noqa: E402
from edited_package import SELF_TEST, edit, edit_json, set_argument  # noqa: E402
from torch import nn  # noqa: E402

# The server's tests in tests/unit/models use the same numbers.
UNIFORM = {
    (1, 0): float.fromhex("0x1.8858b43547040p-1"),
    (1, 1): float.fromhex("0x1.021c8d37eacc8p-3"),
    (1, 2): float.fromhex("0x1.66e075b128a0ep-1"),
    (1, 3): float.fromhex("0x1.44085b74d9795p-1"),
    (2, 0): float.fromhex("0x1.cf64b5a4f7996p-1"),
}
GENERATED = [
    ("FP32", {"seed": 1, "mean": 0.5, "scale": 2.0, "min": -1.0, "max": 2.0},
     [1.5652070045471191, -0.995875895023346, 1.303725004196167, 1.0315049886703491]),
    ("FP64", {"seed": 7, "mean": 0.0, "scale": 3**0.5, "min": -(3**0.5), "max": 3**0.5},
     [0.8234364159495591, -1.3769156420148092, 0.5285175674030833, 1.6941095619278368]),
    ("BF16", {"seed": 1, "mean": 0.5, "scale": 2.0, "min": -1.0, "max": 2.0},
     [1.5625, -0.99609375, 1.3046875, 1.03125]),
    ("FP32", {"seed": 1, "mean": 0.5, "scale": 2.0, "min": 0.0, "max": 1.5},
     [1.5, 0.0, 1.303725004196167, 1.0315049886703491]),
    ("INT64", {"seed": 3, "min": -5, "max": 5}, [-2, 0, -5, -4, 2, 0]),
    ("UINT8", {"seed": 3, "min": 0, "max": 255}, [79, 129, 9, 38, 166, 137]),
    ("INT64", {"seed": 4, "min": -(2**63), "max": 2**63 - 1},
     [1271045660031143936, -1326918328156846080, -7149746516711041024]),
    ("UINT64", {"seed": 4, "min": 0, "max": 2**64 - 1},
     [10494417696885919744, 7896453708697929728, 2073625520143734784]),
    ("BOOL", {"seed": 3}, [True, False, True, True, False, False, True, False]),
]


def record_of(package):
    return json.loads(Archive(package).self_test())


def export(module, inputs, folder, **options):
    """Exports a pair in its own precision. Returns the path of model.pt2."""
    result = braid.export(module, inputs, folder, "pair", precisions=(), **options)
    assert not any("self-test" in note for note in result.notes)
    return result.path / "model.pt2"


def splitmix64(seed, index):
    mask = (1 << 64) - 1
    z = ((seed << 32) + index + 0x9E3779B97F4A7C15) & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def test_uniform_numbers_match_splitmix64():
    for (seed, index), value in UNIFORM.items():
        assert tensors.uniform(seed, index, index + 1)[0] == value == splitmix64(seed, index)
    numbers = tensors.uniform(5, 10, 1000)
    assert numbers.tolist() == [splitmix64(5, index) for index in range(10, 1000)]


@pytest.mark.parametrize("dtype, how, values", GENERATED)
def test_generated_tensors_have_known_values(dtype, how, values):
    tensor = tensors.read_tensor({"dtype": dtype, "shape": [len(values)], "generated": how})
    assert tensor.dtype == tensors.DTYPES[dtype]
    assert tensor.tolist() == values


def test_generated_tensor_is_the_same_in_chunks(monkeypatch):
    how = {"seed": 9, "mean": 0.0, "scale": 1.0, "min": -1.0, "max": 1.0}
    whole = tensors.generate(torch.float32, [7, 11], **how)
    monkeypatch.setattr(tensors, "_CHUNK", 10)
    assert torch.equal(tensors.generate(torch.float32, [7, 11], **how), whole)


def test_large_tensors_are_generated_with_their_statistics():
    variances = torch.rand(100, 100) + 0.5
    said = tensors.describe(variances, seed=6)
    made = tensors.read_tensor(said)
    assert "data" not in said and said["generated"]["seed"] == 6
    assert 0.5 <= made.min() and made.max() <= 1.5
    assert float(made.mean()) == pytest.approx(float(variances.mean()), abs=0.02)
    assert float(made.std()) == pytest.approx(float(variances.std()), abs=0.02)
    indices = tensors.read_tensor(tensors.describe(torch.randint(3, 9, (5000,)), seed=1))
    assert set(indices.tolist()) == set(range(3, 9))


@pytest.mark.parametrize("tensor", [
    torch.randn(4, 1024), torch.tensor(3), torch.rand(3, 2) > 0.5, torch.empty(0, 3),
    torch.randn(5).bfloat16(), torch.randn(3, 4).t(), torch.tensor([2**64 - 1], dtype=torch.uint64),
    torch.full((100, 100), -math.inf).triu(1), torch._neg_view(torch.ones(3)),
    torch._efficientzerotensor([3]),
], ids=[
    "large", "scalar", "bool", "empty", "bfloat16", "transposed", "uint64", "infinite", "negated", "zeros",
])
def test_small_and_special_tensors_are_stored(tensor):
    said = tensors.describe(tensor, seed=1)
    assert "generated" not in said
    made = tensors.read_tensor(json.loads(json.dumps(said)))
    assert made.dtype == tensor.dtype and torch.equal(made, tensor)


def test_large_mask_of_infinities_is_generated_from_its_finite_values():
    said = tensors.describe(torch.full((200, 200), -math.inf).triu(1), seed=1)
    assert torch.equal(tensors.read_tensor(said), torch.zeros(200, 200))


def test_sample_compares_every_kth_element():
    tensor = torch.arange(1000, dtype=torch.float32)
    said = tensors.sample(tensor, 0.5)
    assert said["stride"] == 4 and said["shape"] == [1000] and said["tolerance"] == 0.5
    assert struct.unpack("<3d", base64.b64decode(said["data"])[:24]) == (0, 4, 8)
    assert tensors.largest_difference(said, tensor) == 0
    tensor[8] += 3
    assert tensors.largest_difference(said, tensor) == 3
    assert tensors.largest_difference(said, tensor.double()) == math.inf
    assert tensors.largest_difference(said, tensor[:-1]) == math.inf


def test_sample_resolves_lazy_negation():
    negated = torch._neg_view(torch.tensor([1.0, -2.0]).double())
    said = tensors.sample(negated, 0.0)
    assert np.frombuffer(base64.b64decode(said["data"])).tolist() == [-1.0, 2.0]
    assert tensors.largest_difference(said, negated.clone()) == 0.0


def test_nan_and_infinity_equal_themselves():
    tensor = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    said = tensors.sample(tensor, 0.0)
    assert tensors.largest_difference(said, tensor) == 0
    for place in range(3):
        other = tensor.clone()
        other[place] = 1.0
        assert tensors.largest_difference(said, other) == math.inf


def batch_norm():
    return nn.Sequential(
        nn.Linear(70, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 3)
    )


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    """Returns the path of a package, which tests must copy before changing it."""
    torch.manual_seed(1)
    example = {"input": torch.randn(8, 70)}
    return export(batch_norm(), example, tmp_path_factory.mktemp("models") / "mlp")


@pytest.fixture
def copied(mlp, tmp_path):
    package = tmp_path / "model.pt2"
    package.write_bytes(mlp.read_bytes())
    return package


def test_record_describes_inputs_and_expected_outputs(mlp):
    record = record_of(mlp)
    assert list(record) == ["format", "schema_version", "torch_version", "seed", "given", "graphs"]
    assert record["format"] == "braid-self-test" and record["schema_version"] == 1
    assert record["torch_version"] == torch.__version__.partition("+")[0]
    given = record["given"]
    assert {name: said["shape"] for name, said in given.items()} == {
        "parameter/0.weight": [64, 70], "parameter/0.bias": [64],
        "parameter/1.weight": [64], "parameter/1.bias": [64],
        "buffer/1.running_mean": [64], "buffer/1.running_var": [64],
        "buffer/1.num_batches_tracked": [],
        "parameter/4.weight": [3, 64], "parameter/4.bias": [3],
        "input/input": [4, 70], "output_gradient/output__0": [4, 3],
    }
    assert [name for name, said in given.items() if "generated" in said] == ["parameter/0.weight"]
    parameters = ["0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias"]
    assert [(each["graph"], each["role"], list(each["expected"])) for each in record["graphs"]] == [
        ("eval", "eval", ["output/output__0"]),
        ("fw", "forward", [
            "new_buffer/1.running_mean", "new_buffer/1.running_var",
            "new_buffer/1.num_batches_tracked", "output/output__0",
        ]),
        ("bw", "backward", [f"parameter_gradient/{name}" for name in parameters]),
    ]
    expected = record["graphs"][2]["expected"]["parameter_gradient/0.weight"]
    assert (expected["dtype"], expected["shape"], expected["stride"]) == ("FP32", [64, 70], 18)
    assert 0 < expected["tolerance"] < 0.1
    assert len(Archive(mlp).self_test()) < 30_000


def test_gradients_before_batch_norm_exceed_the_tolerance(mlp):
    expected = record_of(mlp)["graphs"][2]["expected"]["parameter_gradient/0.weight"]
    values = np.frombuffer(base64.b64decode(expected["data"]))
    assert np.abs(values).max() > 50 * expected["tolerance"]


def test_pytorch_can_read_the_archive(mlp):
    reader = torch._C.PyTorchFileReader(str(mlp))
    assert SELF_TEST in reader.get_all_records()
    assert json.loads(reader.get_record(SELF_TEST)) == record_of(mlp)


def test_self_test_passes_with_batch_norm_and_dropout(mlp):
    assert self_test.run(mlp) == []


class Tokens(nn.Module):
    """Embedding, tied and frozen weights, integer and infinite buffers, and a zero gate."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(900, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.score = nn.Linear(8, 900, bias=False)
        self.score.weight = self.words.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.gate = nn.Parameter(torch.zeros(8))
        self.register_buffer("places", torch.arange(6))
        self.register_buffer("order", torch.randint(0, 900, (5000,)))
        self.register_buffer("mask", torch.full((6, 6), -math.inf).triu(1))

    def forward(self, words):
        x = self.words(self.order[words]) + self.places[:, None]
        x = self.layer(x, src_mask=self.mask, is_causal=False)
        return self.score(x + self.gate * self.frozen(x))


MODELS = {
    "embedding": lambda: (Tokens(), {"words": torch.randint(0, 900, (4, 6))}),
    "lstm": lambda: (export_models.Recurrent(), {"x": torch.randn(3, 2, 3)}),
    "tied": lambda: export_models.make("mixed"),
    "bfloat16": lambda: (nn.Linear(3, 2).bfloat16(), {"input": torch.randn(4, 3).bfloat16()}),
    "frozen": lambda: (nn.Linear(3, 2).requires_grad_(False), {"input": torch.randn(4, 3)}),
}


@pytest.mark.parametrize("name", MODELS)
def test_self_test_passes_for_models(tmp_path, name):
    torch.manual_seed(2)
    package = export(*MODELS[name](), tmp_path / "net")
    assert self_test.run(package) == []
    for said in record_of(package)["graphs"]:
        for expected in said["expected"].values():
            assert np.isfinite(np.frombuffer(base64.b64decode(expected["data"]))).any()


def test_record_covers_tied_frozen_and_integer_state(tmp_path):
    torch.manual_seed(2)
    record = record_of(export(*MODELS["embedding"](), tmp_path / "net"))
    given = record["given"]
    assert "parameter/score.weight" not in given and "parameter/frozen.weight" in given
    assert given["buffer/order"]["dtype"] == "INT64"
    assert given["buffer/order"]["generated"]["min"] == 0
    assert "data" in given["buffer/mask"] and "data" in given["parameter/frozen.weight"]
    assert 0 < tensors.read_tensor(given["parameter/gate"]).abs().max() <= 0.1
    assert max(tensors.read_tensor(given["input/words"]).flatten()) < 900
    (gradients,) = (each["expected"] for each in record["graphs"] if each["role"] == "backward")
    assert "parameter_gradient/words.weight" in gradients
    assert not any("frozen" in name for name in gradients)


def test_frozen_model_has_one_graph(tmp_path):
    record = record_of(export(*MODELS["frozen"](), tmp_path / "net"))
    assert [each["role"] for each in record["graphs"]] == ["eval"]


class Draws(nn.Module):
    """Fails for probabilities outside [0, 1]."""

    def __init__(self):
        super().__init__()
        self.register_buffer("probabilities", torch.rand(9000).round())
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x) + torch.bernoulli(self.probabilities)[:3]


def test_generated_probabilities_stay_in_their_range(tmp_path):
    assert self_test.run(export(Draws(), {"x": torch.randn(4, 3)}, tmp_path / "net")) == []


def test_export_has_no_self_test_if_graphs_reject_generated_tensors(tmp_path, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("probability out of range\nat line 1")

    monkeypatch.setattr("braid.exporter.checks.runnable.RunnablePair.run", fail)
    result = braid.export(nn.Linear(3, 2), (torch.randn(4, 3),), tmp_path / "net", "pair",
                          precisions=())
    assert [each for each in result.notes if "self-test" in each] == [
        "no self-test for servers with other versions of PyTorch: "
        "the graphs reject generated values: probability out of range"
    ]
    assert not Archive(result.path / "model.pt2").has_self_test


@pytest.mark.parametrize("graph, operator, argument, value, found", [
    ("bw", "threshold_backward.default", "threshold", {"as_float": 0.4},
     "graph 'bw', parameter_gradient '0.weight' differs by up to "),
    ("eval", "_native_batch_norm_legit_no_training.default", "eps", {"as_float": 0.1},
     "graph 'eval', output 'output__0' differs by up to "),
    ("fw", "_native_batch_norm_legit_functional.default", "momentum", {"as_float": 0.2},
     "graph 'fw', new_buffer '1.running_mean' differs by up to "),
])
def test_changed_graph_fails(copied, graph, operator, argument, value, found):
    set_argument(copied, graph, operator, argument, value)
    differences = self_test.run(copied)
    assert str(differences[0]).startswith(found)
    assert {each.graph for each in differences} <= {graph, "bw"}
    assert all(each.largest > each.tolerance for each in differences)


class Gelu(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, n=None):
        return {"y": nn.functional.gelu(self.layer(x)), "none": n, "two": 2, "half": 0.5}


def save_program(path, examples=True):
    torch.manual_seed(4)
    rows = {0: torch.export.Dim("rows", min=3)}
    program = torch.export.export(
        Gelu().double().eval(),
        (torch.randn(9, 3).double(),),
        {"n": None},
        dynamic_shapes={"x": rows, "n": None},
    )
    if not examples:
        program.example_inputs = None
    torch.export.save(program, path)
    return path


@pytest.mark.parametrize("examples", [True, False])
def test_program_passes_its_self_test(tmp_path, examples):
    package = save_program(tmp_path / "model.pt2", examples)
    self_test.add(package)
    assert self_test.run(package) == []
    record = record_of(package)
    assert {name: said["shape"] for name, said in record["given"].items()} == {"input/0": [3, 3]}
    (graph,) = record["graphs"]
    assert (graph["graph"], graph["role"]) == ("model", "eval")
    assert [(name, said["dtype"], said["shape"]) for name, said in graph["expected"].items()] == [
        ("output/0", "FP64", [3, 2]), ("output/1", "INT64", []), ("output/2", "FP64", []),
    ]
    torch.export.load(package)


def test_program_with_a_number_input_passes(tmp_path):
    class Scaled(nn.Module):
        def forward(self, x, n):
            torch._check(n >= 3)
            return x.repeat(n, 1)

    sizes = {"x": {0: torch.export.Dim.DYNAMIC}, "n": torch.export.Dim.DYNAMIC}
    program = torch.export.export(Scaled(), (torch.randn(2, 3), 7), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "model.pt2")
    self_test.add(tmp_path / "model.pt2")
    assert self_test.run(tmp_path / "model.pt2") == []
    record = record_of(tmp_path / "model.pt2")
    assert tensors.read_tensor(record["given"]["input/1"]).tolist() == [3]
    assert record["graphs"][0]["expected"]["output/0"]["shape"] == [6, 3]


def test_changed_program_fails(tmp_path):
    package = save_program(tmp_path / "model.pt2")
    self_test.add(package)

    def change(program):
        (node,) = (each for each in program["graph_module"]["graph"]["nodes"]
                   if each["target"] == "torch.ops.aten.gelu.default")
        argument = {"name": "approximate", "arg": {"as_string": "tanh"}, "kind": 2}
        node["inputs"] = [*(each for each in node["inputs"] if each["name"] == "self"), argument]

    edit_json(package, "models/model.json", change)
    (difference,) = self_test.run(package)
    assert str(difference).startswith("graph 'model', output '0' differs by up to ")


def test_adding_replaces_the_file_atomically(tmp_path):
    package = save_program(tmp_path / "model.pt2")
    package.chmod(0o640)
    with package.open("rb") as before:
        self_test.add(package)
        assert SELF_TEST.encode() not in before.read()
    assert package.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [package]


def changed(change):
    """Returns a text editor for `edit` that changes parsed JSON."""

    def edited(text):
        content = json.loads(text)
        change(content)
        return json.dumps(content)

    return edited


@pytest.mark.parametrize("change, reason", [
    (lambda text: text[:100], f"{SELF_TEST}: damaged: not valid JSON ("),
    (lambda text: "[]", f"{SELF_TEST}: damaged: a value has the wrong type (list indices must be"),
    (lambda text: "{}", f"{SELF_TEST}: damaged: lacks 'format'"),
    (lambda text: text.replace('"schema_version": 1', '"schema_version": 2'),
     f"{SELF_TEST}: damaged: schema_version: 2 (expected 1)"),
    (lambda text: text.replace("braid-self-test", "other"),
     f"{SELF_TEST}: damaged: format: 'other' (expected 'braid-self-test')"),
    (lambda text: text.replace("parameter/0.bias", "parameter/0.bios"),
     "self-test: lacks 'parameter/0.bias'"),
    (lambda text: text.replace("new_buffer/1.running_mean", "new_buffer/1.running_median"),
     f"{SELF_TEST}: damaged: graph 'fw' has no new_buffer '1.running_median'"),
    (changed(lambda record: record["graphs"][2].update(role="forward")),
     f"{SELF_TEST}: damaged: the package has no graph 'bw' for forward"),
    (changed(lambda record: record["given"]["parameter/0.bias"].update(dtype="FP31")),
     f"{SELF_TEST}: damaged: unknown dtype 'FP31'"),
    (changed(lambda record: record.update(seed=None)),
     f"{SELF_TEST}: damaged: a value has the wrong type ("),
    (lambda text: text.replace('"shape": [64]', '"shape": [63]', 1),
     f"{SELF_TEST}: damaged: 256 bytes (expected 252 for shape [63])"),
    (lambda text: None, "no self-test"),
])
def test_damaged_record_is_an_error(copied, change, reason):
    edit(copied, SELF_TEST, change)
    with pytest.raises(braid.ExportError) as error:
        self_test.run(copied)
    assert str(error.value).startswith(f"{copied}: {reason}")


HERE = torch.__version__.partition("+")[0]
UNREADABLE = f"PyTorch {HERE} cannot read the exported pair (made with PyTorch {HERE}): "


@pytest.mark.parametrize("file, change, reason", [
    ("models/bw.json", lambda text: text.replace("aten.mm", "aten.none"),
     f"{UNREADABLE}We failed to resolve torch.ops.aten.none.default to an operator"),
    ("models/bw.json", lambda text: text[:100], f"{UNREADABLE}not valid JSON ("),
    ("models/bw.json", changed(lambda program: program["graph_module"].pop("graph")), UNREADABLE),
    ("models/bw.json", lambda text: None, "self-test: lacks 'bw'"),
    ("archive_format", lambda text: "zip", f"{UNREADABLE}Invalid archive format"),
    ("data/weights/eval_weights_config.json", lambda text: None,
     f"{UNREADABLE}data/weights/eval_weights_config.json not found in PT2 archive"),
    ("extra/train.json", changed(lambda pair: pair.pop("parts")),
     "extra/train.json: damaged: lacks 'parts'"),
    ("extra/train.json", changed(lambda pair: pair.update(device="gpu")),
     "extra/train.json: damaged: Expected one of cpu, cuda, "),
    ("extra/train.json", changed(lambda pair: pair["parts"][0].update(programs=[])),
     "extra/train.json: damaged: no program of precision 'model'"),
    ("extra/train.json", lambda text: text[:100], "extra/train.json: no torch_version"),
])
@pytest.mark.parametrize("use", [self_test.run, self_test.add])
def test_damaged_package_is_an_error(mlp, copied, use, file, change, reason):
    if use is self_test.add:
        edited_package.remove_self_test(copied)
        reason = reason.replace("self-test: ", "no self-test can be added: ")
        weights = mlp.with_name("model.safetensors").read_bytes()
        copied.with_name("model.safetensors").write_bytes(weights)
    edit(copied, file, change)
    with pytest.raises(braid.ExportError) as error:
        use(copied)
    assert str(error.value).startswith(f"{copied}: {reason}")
    assert len(str(error.value)) < len(str(copied)) + 250


def test_nothing_is_added_if_the_graph_rejects_generated_tensors(tmp_path, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("out of range")

    package = save_program(tmp_path / "model.pt2")
    monkeypatch.setattr("braid.exporter.checks.runnable.RunnableProgram.run", fail)
    with pytest.raises(braid.ExportError, match="no self-test can be added: .*: out of range"):
        self_test.add(package)
    assert not Archive(package).has_self_test


def test_adding_a_self_test_to_a_pair_requires_its_weights(copied):
    edited_package.remove_self_test(copied)
    reason = "model.safetensors: cannot be read: No such file or directory$"
    with pytest.raises(braid.ExportError, match=reason):
        self_test.add(copied)
    (copied.parent / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(braid.ExportError, match="model.safetensors: lacks parameter '0.weight'"):
        self_test.add(copied)
