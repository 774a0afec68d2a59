"""Exported pairs match the module in forward and backward."""

import copy

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
import export_models  # noqa: E402
from braid.exporter.model.signature import DATATYPES  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def export(path, name, **options):
    module, inputs = export_models.make(name)
    options.setdefault("precisions", ())
    result = braid.export(module, inputs, path / name, "pair", **options)
    assert result == braid.ExportResult("pair", path / name / "1", 1, result.reason)
    return module, inputs, ExportedPair(result.path)


@pytest.fixture(scope="module", params=export_models.MODELS)
def exported(request, tmp_path_factory):
    return export(tmp_path_factory.mktemp("models"), request.param)


def rows(inputs, count):
    """Returns values that differ from those of the exporter's own comparison."""
    generator = torch.Generator().manual_seed(count)
    made = {}
    for name, example in inputs.items():
        index = torch.randint(example.shape[0], (count,), generator=generator)
        made[name] = example[index]
        if example.is_floating_point():
            made[name] = made[name] * 1.5 + 0.1
    return made


def leaves(value):
    """Returns the tensors in depth-first order."""
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value
    return [leaf for each in inner for leaf in leaves(each)]


def given_to(pair, inputs):
    return pair.state() | {("input", name): tensor for name, tensor in inputs.items()}


def tolerance(tensor):
    return {torch.bfloat16: 2e-2, torch.float64: 1e-12}.get(tensor.dtype, 2e-5)


def assert_same(got, expected, what):
    assert got.dtype == expected.dtype, what
    allowed = tolerance(expected)
    torch.testing.assert_close(got, expected, rtol=allowed, atol=allowed, msg=lambda m: what + m)


def output_gradients(names, outputs):
    torch.manual_seed(5)
    return {
        name: torch.randn_like(output)
        for name, output in zip(names, outputs)
        if output.requires_grad
    }


def parameters_with_all_names(module):
    return list(module.named_parameters(remove_duplicate=False))


@pytest.mark.parametrize("count", [1, 3, 20])
def test_evaluation_matches_the_module(exported, count):
    module, inputs, pair = exported
    batch = rows(inputs, count)
    with torch.no_grad():
        expected = leaves(copy.deepcopy(module).eval()(**batch))
    got = pair.run(pair.program("eval"), given_to(pair, batch))
    names = [output["name"] for output in pair.part()["outputs"]]
    assert list(got) == [("output", name) for name in names]
    for name, tensor in zip(names, expected, strict=True):
        assert_same(got["output", name], tensor, name)


@pytest.mark.parametrize("count", [2, 3, 20])
def test_training_step_matches_the_module(exported, count):
    """Compares outputs, gradients and buffers for the same seed."""
    module, inputs, pair = exported
    module, batch = copy.deepcopy(module).train(), rows(inputs, count)
    names = [output["name"] for output in pair.part()["outputs"]]

    torch.manual_seed(7)
    expected = leaves(module(**batch))
    gradients = output_gradients(names, expected)
    differentiable = [output for output in expected if output.requires_grad]
    torch.autograd.backward(differentiable, list(gradients.values()))

    torch.manual_seed(7)
    after = pair.run(pair.program("forward"), given_to(pair, batch))
    known = given_to(pair, batch) | after
    known |= {("output_gradient", name): each for name, each in gradients.items()}
    got = pair.run(pair.program("backward"), known)

    for name, tensor in zip(names, expected, strict=True):
        assert_same(after["output", name], tensor.detach(), name)
    tied = {entry["name"]: entry.get("tied_to") for entry in pair.json["state"]}
    for name, buffer in module.named_buffers(remove_duplicate=False):
        now = after.get(("new_buffer", tied[name] or name), pair.state()["buffer", name])
        assert_same(now, buffer, name)
    for name, parameter in parameters_with_all_names(module):
        gradient = got.pop(("parameter_gradient", tied[name] or name), None)
        if tied[name] is None:
            assert (gradient is None) == (parameter.grad is None), name
        if gradient is not None:
            assert_same(gradient, parameter.grad.to_dense(), name)
    assert not got


def test_state_matches_the_module(exported):
    module, _, pair = exported
    entries = {entry["name"]: entry for entry in pair.json["state"]}
    assert [name for name in entries if name in module.state_dict()] == list(module.state_dict())
    for name, parameter in parameters_with_all_names(module):
        assert entries[name]["kind"] == "parameter"
        assert entries[name]["trainable"] == parameter.requires_grad
        assert torch.equal(pair.state()["parameter", name], parameter)
    for name, buffer in module.named_buffers(remove_duplicate=False):
        assert entries[name]["kind"] == "buffer" and "trainable" not in entries[name]
        assert torch.equal(pair.state()["buffer", name], buffer)
    assert set(pair.tensors) == {n for n, entry in entries.items() if "tied_to" not in entry}


def test_the_module_is_restored(tmp_path):
    module, inputs = export_models.make("mlp")
    module.features.eval()
    before = copy.deepcopy(module.state_dict())
    modes = [each.training for each in module.modules()]
    random = torch.get_rng_state()
    braid.export(module, inputs, tmp_path / "net", "pair", precisions=())
    assert [each.training for each in module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_random_numbers_come_from_the_seed(tmp_path):
    _, inputs, pair = export(tmp_path, "mlp")
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(pair.run(pair.program("forward"), given_to(pair, inputs)))
    first, again, other = (run["output", "output__0"] for run in runs)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_manifest_lists_names_shapes_and_roles(tmp_path):
    _, _, pair = export(tmp_path, "mixed")
    part = pair.part()
    assert part["inputs"] == [
        {"name": "words", "dtype": "INT64", "shape": ["batch", 3], "range": [0, 8]},
        {"name": "weights", "dtype": "FP32", "shape": ["batch", 3]},
    ]
    outputs = {each["name"]: (each["dtype"], each["shape"]) for each in part["outputs"]}
    assert outputs == {
        "scores": ("FP32", ["batch", 9]),
        "more.0": ("FP32", ["batch", 4]),
        "more.1": ("INT64", ["batch", 3]),
        "more.2.0": ("FP32", []),
        "more.2.1": ("FP32", ["batch"]),
    }
    tied = {each["name"]: each["tied_to"] for each in pair.json["state"] if "tied_to" in each}
    assert tied == {"score.weight": "words.weight", "same_mean": "mean"}
    gradients = [slot["name"] for slot in pair.program("backward")["outputs"]]
    assert gradients == ["words.weight"]  # scale is frozen, unused is unused
    new = [s["name"] for s in pair.program("forward")["outputs"] if s["role"] == "new_buffer"]
    assert new == ["calls", "mean"]


def test_manifest_lists_outputs_that_gradients_depend_on(tmp_path):
    _, _, pair = export(tmp_path, "separate")
    depends = {
        slot["name"]: slot["depends_on"] for slot in pair.program("backward")["outputs"]
    }
    assert depends["left.weight"] == ["left"]
    assert depends["right.bias"] == ["right"]
    assert depends["both.weight"] == ["left", "right"]


def test_backward_receives_only_tensors(tmp_path):
    _, _, pair = export(tmp_path, "sizes")
    graph = pair.programs[pair.program("backward")["graph"]].graph
    inputs = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
    assert all(isinstance(value, torch.Tensor) for value in inputs)
    assert any(node.target == torch.ops.aten.sym_size.int for node in graph.nodes)


def test_evaluation_keeps_composite_operators(tmp_path):
    """Composite operators stay one node, and dropout is removed."""
    _, _, pair = export(tmp_path, "mlp")
    graph = pair.programs["eval"].graph
    names = [node.target._schema.name for node in graph.nodes if hasattr(node.target, "_schema")]
    assert names == [
        "aten::linear", "aten::_native_batch_norm_legit_no_training", "aten::relu", "aten::linear"
    ]


def test_backward_draws_no_random_numbers(exported):
    _, _, pair = exported
    for node in pair.programs["bw"].graph.nodes:
        tags = getattr(node.target, "tags", ())
        assert torch.Tag.nondeterministic_seeded not in tags, node


def test_outputs_are_not_saved_twice_for_backward(tmp_path):
    """Backward takes batch norm's new buffers as such, not as saved tensors."""
    _, _, pair = export(tmp_path, "mlp")
    forward, backward = pair.program("forward"), pair.program("backward")
    taken = [(slot["role"], slot["name"]) for slot in backward["inputs"]]
    assert ("new_buffer", "features.1.running_mean") in taken
    saved = [slot["name"] for slot in forward["outputs"] if slot["role"] == "saved"]
    assert saved == [name for role, name in taken if role == "saved"]
    operators = [node.target for node in pair.programs["fw"].graph.nodes]
    assert torch.ops.aten.clone.default not in operators


def test_batch_norm_requires_two_rows_in_training(tmp_path):
    _, _, pair = export(tmp_path, "mlp")
    assert pair.part()["min_training_rows"] == 2
    assert pair.part()["min_evaluation_rows"] == 1
    _, _, pair = export(tmp_path, "linear")
    assert pair.part()["min_training_rows"] == 1


def test_frozen_model_has_no_training_programs(tmp_path):
    module, inputs = export_models.make("linear")
    braid.export(module.requires_grad_(False), inputs, tmp_path / "net", "pair", precisions=())
    (program,) = ExportedPair(tmp_path / "net/1").part()["programs"]
    assert set(program) == {"precision", "eval"}


@pytest.fixture(scope="module")
def in_low_precisions(tmp_path_factory):
    return export(tmp_path_factory.mktemp("models"), "mlp", precisions=["float16", "bfloat16"])


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_matches_autocast(in_low_precisions, precision):
    module, inputs, pair = in_low_precisions
    module = copy.deepcopy(module).train()
    programs = [each["precision"] for each in pair.part()["programs"]]
    assert programs == ["model", "float16", "bfloat16"]
    dtype = getattr(torch, precision)
    torch.manual_seed(7)
    with torch.autocast("cpu", dtype=dtype, cache_enabled=False):
        expected = module(**inputs)
    torch.manual_seed(7)
    given = given_to(pair, inputs)
    after = pair.run(pair.program("forward", precision=precision), given)
    assert after["output", "output__0"].dtype == expected.dtype == dtype
    torch.testing.assert_close(after["output", "output__0"], expected, rtol=0.05, atol=0.05)
    one = torch.ones_like(expected)
    got = pair.run(
        pair.program("backward", precision=precision),
        given | after | {("output_gradient", "output__0"): one},
    )
    expected.backward(one)
    for name, parameter in module.named_parameters():
        gradient = got["parameter_gradient", name]
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, parameter.grad, rtol=0.1, atol=0.1)
    for slot in pair.program("forward", precision=precision)["outputs"]:
        assert DATATYPES[after[slot["role"], slot["name"]].dtype] == slot["dtype"], slot


@pytest.mark.parametrize("name, precisions", [("linear", ["model", "bfloat16"]),
                                              ("double", ["model"])])
def test_default_precisions_depend_on_the_dtype(tmp_path, name, precisions):
    _, _, pair = export(tmp_path, name, precisions=None)
    assert [each["precision"] for each in pair.part()["programs"]] == precisions


def test_stages_in_sequence_match_the_module(tmp_path):
    module, inputs, pair = export(tmp_path, "mlp", stages=[["features", "classifier"]])
    assert pair.json["chains"] == [["features", "classifier"]]
    assert [part["path"] for part in pair.json["parts"]] == ["", "features", "classifier"]
    module.train()
    torch.manual_seed(7)
    expected = module(**inputs)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)

    torch.manual_seed(7)
    first_given = pair.state() | {("input", "input"): inputs["x"]}
    first = pair.run(pair.program("forward", "features"), first_given)
    hidden = first["output", "output__0"]
    second_given = pair.state() | {("input", "input"): hidden}
    second = pair.run(pair.program("forward", "classifier"), second_given)
    torch.testing.assert_close(second["output", "output__0"], expected.detach())
    got = pair.run(
        pair.program("backward", "classifier"),
        second_given | second | {("output_gradient", "output__0"): gradient},
    )
    back = {("output_gradient", "output__0"): got.pop(("input_gradient", "input"))}
    got |= pair.run(pair.program("backward", "features"), first_given | first | back)
    assert set(got) == {("parameter_gradient", name) for name, _ in module.named_parameters()}
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(got["parameter_gradient", name], parameter.grad)


def test_frozen_stage_runs_in_training(tmp_path):
    module, inputs = export_models.make("mlp")
    module.features.requires_grad_(False)
    braid.export(module, inputs, tmp_path / "net", "pair", precisions=(),
                 stages=[["features", "classifier"]])
    pair = ExportedPair(tmp_path / "net/1")
    (features,) = pair.part("features")["programs"]
    assert "forward" in features and "backward" not in features
    new = {s["name"] for s in features["forward"]["outputs"] if s["role"] == "new_buffer"}
    assert "features.1.running_mean" in new


def test_dtype_that_torch_export_cannot_write_is_rejected(tmp_path):
    class Packed(torch.nn.Module):
        def forward(self, words):
            return words.view(torch.float4_e2m1fn_x2).view(torch.uint8)

    words = torch.zeros(2, 4, dtype=torch.uint8)
    with pytest.raises(braid.ExportError, match="graph with a tensor of torch.float4_e2m1fn_x2"):
        braid.export(Packed(), (words,), tmp_path / "words", "pair")
    assert not list(tmp_path.iterdir())
