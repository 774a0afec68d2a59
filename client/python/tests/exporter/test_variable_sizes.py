"""Dims of inputs that vary, other than the batch."""

import copy

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from braid.exporter.checks import self_test  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import nn  # noqa: E402
from torch.export import Dim  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class MeanOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.linear = nn.Linear(8, 3)

    def forward(self, ids):
        return self.linear(self.words(ids).mean(1))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x, mask):
        hidden = self.layer(x, src_key_padding_mask=~mask)
        weights = mask.to(x.dtype)[..., None]
        return {"logits": self.head((hidden * weights).sum(1) / weights.sum(1)), "hidden": hidden}


class MaskedMean(nn.Module):
    """Has the inputs and outputs of Encoder, and is exported faster."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))
        self.head = nn.Linear(8, 3)

    def forward(self, x, mask):
        hidden = self.layer(x)
        weights = mask.to(x.dtype)[..., None]
        return {"logits": self.head((hidden * weights).sum(1) / weights.sum(1)), "hidden": hidden}


class CrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, queries, keys):
        return self.attention(queries, keys, keys)


class SharedBias(nn.Module):
    """Backward needs the length, but none of the tensors that it saves has that size."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return (x + self.bias).mean(1)


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(50, 8, mode="sum")

    def forward(self, ids, weights):
        return self.words(ids, per_sample_weights=weights)


class Pyramid(nn.Module):
    """Takes images whose height and width are even."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.up = nn.ConvTranspose2d(4, 4, 2, 2)
        self.last = nn.Conv2d(7, 2, 1)

    def forward(self, image):
        return self.last(torch.cat([image, self.up(self.down(image))], 1))


class Stages(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.layers = nn.Sequential(Transposed(), nn.Conv1d(8, 8, 3, 2, 1), nn.Dropout(0.1))
        self.head = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 3))

    def forward(self, ids):
        return self.head(self.layers(self.words(ids)))


class Transposed(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


class Positions(MeanOfWords):
    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding(16, 8)

    def forward(self, ids):
        positions = self.positions(torch.arange(ids.shape[1]))
        return self.linear((self.words(ids) + positions).mean(1))


class SlicedPositions(Positions):
    def forward(self, ids):
        return self.linear(self.words(ids) + self.positions.weight[: ids.shape[1]])


class LongBranch(MeanOfWords):
    def forward(self, ids):
        words = self.words(ids)
        return self.linear(words.mean(1) if ids.shape[1] > 40 else words.sum(1))


class EvenBranch(MeanOfWords):
    def forward(self, ids):
        words = self.words(ids)
        return self.linear(words.mean(1) if ids.shape[1] % 2 == 0 else words.sum(1))


class Flattened(MeanOfWords):
    def forward(self, ids):
        return self.linear(self.words(ids)).flatten(0, 1)


class Counted(MeanOfWords):
    def forward(self, ids):
        return self.linear(self.words(ids).mean(1)) * int(ids.shape[1])


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, one, other):
        if one.shape[1] == other.shape[1]:
            return self.linear(one + other).mean(1)
        return self.linear(one.mean(1) + other.mean(1))


def words(length=7):
    torch.manual_seed(1)
    return {"ids": torch.randint(0, 50, (4, length))}


def encoder_inputs():
    torch.manual_seed(1)
    mask = torch.rand(4, 7) < 0.7
    mask[:, 0] = True
    return {"x": torch.randn(4, 7, 8), "mask": mask}


def export(path, module, inputs, dynamic, format="pair", **options):
    options.setdefault("precisions", ())
    result = braid.export(module, inputs, path / "net", format, dynamic=dynamic, **options)
    return ExportedPair(result.path) if format == "pair" else result


def resized(inputs, rows, sizes):
    """Returns inputs with other values. sizes: by input and dim."""
    generator = torch.Generator().manual_seed(rows)
    made = {}
    for name, example in inputs.items():
        shape = [rows, *example.shape[1:]]
        for dim, size in sizes.get(name, {}).items():
            shape[dim] = size
        if example.is_floating_point():
            made[name] = torch.randn(shape, generator=generator)
        elif example.dtype == torch.bool:
            made[name] = torch.rand(shape, generator=generator) < 0.7
            made[name][:, 0] = True
        else:
            made[name] = torch.randint(0, 50, shape, generator=generator)
    return made


def assert_trains_like(module, pair, inputs):
    """Compares outputs, gradients and buffers in training, and outputs in evaluation."""
    given = pair.state() | {("input", name): tensor for name, tensor in inputs.items()}
    names = [each["name"] for each in pair.part()["outputs"]]
    plain = copy.deepcopy(module).eval()
    with torch.no_grad():
        expected = list(leaves(plain(**inputs)))
    got = pair.run(pair.program("eval"), given)
    for name, tensor in zip(names, expected, strict=True):
        torch.testing.assert_close(got["output", name], tensor, rtol=2e-5, atol=2e-5)
    plain.train()
    torch.manual_seed(3)
    outputs = list(leaves(plain(**inputs)))
    gradients = [torch.randn_like(each) for each in outputs]
    torch.autograd.backward(outputs, gradients)
    torch.manual_seed(3)
    after = pair.run(pair.program("forward"), given)
    known = given | after
    known |= {("output_gradient", name): each for name, each in zip(names, gradients)}
    got = pair.run(pair.program("backward"), known)
    for name, output in zip(names, outputs):
        torch.testing.assert_close(after["output", name], output.detach(), rtol=2e-5, atol=2e-5)
    for name, parameter in plain.named_parameters():
        gradient = got["parameter_gradient", name]
        torch.testing.assert_close(gradient, parameter.grad, rtol=2e-4, atol=2e-5, msg=name)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(after["new_buffer", name], buffer, rtol=2e-5, atol=2e-5)


def leaves(value):
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)


HEIGHT, WIDTH = Dim("height", min=2, max=40), Dim("width", min=2, max=40)


@pytest.mark.parametrize(
    ("module", "inputs", "dynamic", "sizes"),
    [
        (MeanOfWords, words, {"ids": {1: "seq"}}, [{"ids": {1: n}} for n in (1, 2, 5, 200)]),
        (
            Encoder,
            encoder_inputs,
            {"x": {1: ("seq", 1, 512)}, "mask": {-1: "seq"}},
            [{"x": {1: n}, "mask": {1: n}} for n in (1, 5, 40)],
        ),
        (
            CrossAttention,
            lambda: {"queries": torch.randn(3, 5, 8), "keys": torch.randn(3, 7, 8)},
            {"queries": {1: "to"}, "keys": {1: "of"}},
            [{"queries": {1: n}, "keys": {1: m}} for n, m in ((1, 9), (9, 1), (6, 6))],
        ),
        (
            SharedBias,
            lambda: {"x": torch.randn(3, 7, 4)},
            {"x": {1: Dim("seq", min=2)}},
            [{"x": {1: n}} for n in (2, 30)],
        ),
        (
            Pyramid,
            lambda: {"image": torch.randn(3, 3, 12, 8)},
            {"image": {2: 2 * HEIGHT, 3: 2 * WIDTH}},
            [{"image": {2: n, 3: m}} for n, m in ((4, 4), (16, 6), (6, 22))],
        ),
        (
            Positions,
            words,
            {"ids": {1: ("seq", 1, 16)}},
            [{"ids": {1: n}} for n in (1, 2, 16)],
        ),
        (
            BagOfWords,
            lambda: {"ids": torch.randint(50, (4, 6)), "weights": torch.randn(4, 6)},
            {"ids": {1: "seq"}, "weights": {1: "seq"}},
            [{"ids": {1: n}, "weights": {1: n}} for n in (1, 2, 9)],
        ),
    ],
    ids=["words", "encoder", "attention", "bias", "images", "positions", "bags"],
)
def test_pair_matches_the_module_at_all_sizes(tmp_path, module, inputs, dynamic, sizes):
    torch.manual_seed(0)
    module, inputs = module(), inputs()
    pair = export(tmp_path, module, inputs, dynamic)
    for rows in (2, 5):
        for each in sizes:
            assert_trains_like(module, pair, resized(inputs, rows, each))


def test_manifest_and_config_declare_variable_dims(tmp_path):
    dynamic = {"x": {1: ("seq", 2, 512)}, "mask": {1: "seq"}}
    pair = export(tmp_path, MaskedMean(), encoder_inputs(), dynamic)
    assert pair.json["schema_version"] == 2
    assert pair.json["symbols"] == [{"name": "seq", "min": 2, "max": 512}]
    part = pair.part()
    assert [each["shape"] for each in part["inputs"]] == [["batch", "seq", 8], ["batch", "seq"]]
    assert [each["shape"] for each in part["outputs"]] == [["batch", 3], ["batch", "seq", 8]]
    config = (tmp_path / "net" / "config.pbtxt").read_text()
    assert config.count("dims: [ -1, 8 ]") == 2 and "dims: [ -1 ]" in config
    assert self_test.run(tmp_path / "net/1/model.pt2") == []


def test_multiples_and_their_symbols_are_recorded(tmp_path):
    inputs = {"image": torch.randn(2, 3, 12, 8)}
    pair = export(tmp_path, Pyramid(), inputs, {"image": {2: 2 * HEIGHT, 3: 2 * WIDTH}})
    assert pair.part()["inputs"][0]["shape"] == ["batch", 3, "2*height", "2*width"]
    assert pair.part()["outputs"][0]["shape"] == ["batch", 2, "2*height", "2*width"]


def test_fixed_sizes_keep_the_first_schema_version(tmp_path):
    pair = export(tmp_path, MeanOfWords(), words(), None)
    assert pair.json["schema_version"] == 1 and "symbols" not in pair.json


def test_stages_have_their_own_symbols(tmp_path):
    stages = [["words", "layers", "head"]]
    pair = export(tmp_path, Stages(), words(), {"ids": {1: "seq"}}, stages=stages)
    assert pair.part("words")["inputs"][0]["shape"] == ["batch", "seq"]
    assert pair.part("layers")["inputs"][0]["shape"] == ["batch", "seq", 8]
    batch, features, length = pair.part("head")["inputs"][0]["shape"]
    assert (batch, features) == ("batch", 8) and length not in ("seq", "batch")
    assert [each["name"] for each in pair.json["symbols"]] == ["seq"]


def test_precisions_and_evaluated_modules_take_all_sizes(tmp_path):
    pair = export(
        tmp_path,
        MeanOfWords(),
        words(),
        {"ids": {1: "seq"}},
        precisions=["bfloat16"],
        eval_modules=["linear"],
    )
    for part in pair.json["parts"]:
        assert [each["precision"] for each in part["programs"]] == ["model", "bfloat16"]


@pytest.mark.parametrize("format", ["torchscript", "aot"])
def test_other_formats_take_all_sizes(tmp_path, format):
    module, inputs = MeanOfWords(), words()
    result = export(tmp_path, module, inputs, {"ids": {1: ("seq", 1, 64)}}, format)
    assert "dims: [ -1 ]" in (tmp_path / "net" / "config.pbtxt").read_text()
    for length in (1, 3, 60):
        ids = words(length)["ids"]
        if format == "aot":
            (got,) = torch._inductor.aoti_load_package(str(result.path / "model.pt2"))(ids=ids)
        else:
            got = torch.jit.load(str(result.path / "model.pt"))(ids)
        torch.testing.assert_close(got, module.eval()(ids))


@pytest.mark.parametrize(
    ("module", "dynamic", "message"),
    [
        (Positions, "seq", r"seq = 17 differently from seq = \d .*\('seq', 1, 16\)"),
        (SlicedPositions, "seq", r"seq = 17 differently from seq = \d .*\('seq', 1, 16\)"),
        (LongBranch, "seq", r"seq = 41 differently from seq = \d .*\('seq', 1, 40\)"),
        (EvenBranch, "seq", r"seq = 2 differently from seq = \d \(expected the same for all size"),
        (Flattened, "seq", r"'output__0' has the shape \[batch\*seq, 3\]"),
        (Counted, "seq", r"fixed to \d.*\n.*int\(ids.shape\[1\]\)"),
    ],
)
def test_module_that_does_not_take_all_sizes_is_rejected(tmp_path, module, dynamic, message):
    with pytest.raises(braid.ExportError, match=message):
        export(tmp_path, module(), words(), {"ids": {1: dynamic}})


def test_limit_of_a_branch_is_accepted_as_a_bound(tmp_path):
    module = LongBranch()
    pair = export(tmp_path, module, words(), {"ids": {1: ("seq", 1, 40)}})
    assert_trains_like(module, pair, words(40))


def test_sizes_that_must_be_equal_need_one_symbol(tmp_path):
    inputs = {"one": torch.randn(3, 7, 4), "other": torch.randn(3, 7, 4)}
    with pytest.raises(braid.ExportError, match="differently"):
        export(tmp_path, Sum(), inputs, {"one": {1: "a"}, "other": {1: "b"}})
    export(tmp_path, Sum(), inputs, {"one": {1: "a"}, "other": {1: "a"}})


def test_error_of_the_module_names_the_sizes(tmp_path):
    module = nn.Sequential(nn.Conv1d(4, 2, 5), nn.Flatten(), nn.LazyLinear(2))
    inputs = {"input": torch.randn(2, 4, 9)}
    module(inputs["input"])
    with pytest.raises(braid.ExportError, match=r"for a batch of \d+ with seq = \d"):
        export(tmp_path, module, inputs, {"input": {2: "seq"}})


@pytest.mark.parametrize(
    ("dynamic", "error", "message"),
    [
        (["seq"], TypeError, "dynamic: a list .*expected a dict"),
        ({"tokens": {1: "seq"}}, ValueError, "dynamic: unknown input 'tokens' .*ids"),
        ({"ids": "seq"}, TypeError, r"dynamic\['ids'\]: a str"),
        ({"ids": {0: "seq"}}, ValueError, r"\['ids'\]\[0\]: dim 0 is the batch"),
        ({"ids": {2: "seq"}}, ValueError, r"\[2\]: invalid dim .expected a dim from 1 to 1"),
        ({"ids": {1: "batch"}}, ValueError, "'batch'"),
        ({"ids": {1: "two words"}}, ValueError, "'two words'"),
        ({"ids": {1: 7}}, TypeError, "7 .*'seq'"),
        ({"ids": {1: ("seq", 0, 9)}}, ValueError, "bounds 0 and 9"),
        ({"ids": {1: ("seq", 9, 9)}}, ValueError, "bounds 9 and 9"),
        ({"ids": {1: ("seq", 1.5, 9)}}, TypeError, "bounds 1.5"),
        ({"ids": {1: ("seq", 8, 16)}}, ValueError, "dim 1 of 'ids' is 7.*8 to 16"),
        ({"ids": {1: 2 * Dim("half")}}, ValueError, "dim 1 of 'ids' is 7 .*multiple of 2"),
        ({"ids": {1: Dim("seq") + 1}}, TypeError, "multiple"),
        ({"ids": {1: Dim.AUTO}}, TypeError, "AUTO"),
        ({"ids": {1: "seq", -1: "seq"}}, ValueError, "declared twice"),
    ],
)
def test_invalid_declarations_are_rejected(tmp_path, dynamic, error, message):
    with pytest.raises(error, match=message):
        export(tmp_path, MeanOfWords(), words(), dynamic)


def test_symbol_with_two_bounds_or_sizes_is_rejected(tmp_path):
    inputs = encoder_inputs()
    with pytest.raises(ValueError, match="'seq' is 1 to 9, but elsewhere 1 to 8"):
        export(tmp_path, Encoder(), inputs, {"x": {1: ("seq", 1, 8)}, "mask": {1: ("seq", 1, 9)}})
    inputs["mask"] = inputs["mask"][:, :5]
    with pytest.raises(ValueError, match="'mask' is 5, so 'seq' is 5 .expected 7, as in dim 1 of"):
        export(tmp_path, Encoder(), inputs, {"x": {1: "seq"}, "mask": {1: "seq"}})
