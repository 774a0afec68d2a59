"""Training graphs of a pair with submodules in evaluation mode equal the module's."""

import copy

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import nn  # noqa: E402


class Tuned(nn.Module):
    """Backbone with batch norm and dropout under several paths, and a head with both."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Sequential(nn.Dropout(0.4))
        )
        self.head = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Dropout(0.3))

    def forward(self, x):
        return self.head(self.backbone(x))


def make():
    torch.manual_seed(0)
    return Tuned(), {"x": torch.randn(4, 6)}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    module, inputs = make()
    path = tmp_path_factory.mktemp("models") / "net"
    braid.export(
        module, inputs, path, "pair", precisions=["bfloat16"],
        stages=[["backbone", "head"]], eval_modules=["^backbone$", r"head\.1"],
    )  # fmt: skip
    return ExportedPair(path / "1")


def part(pair, path, eval_modules=True):
    (found,) = (
        each for each in pair.json["parts"]
        if each["path"] == path and each["eval_modules"] == eval_modules
    )  # fmt: skip
    return found


def test_training_equals_the_module_with_submodules_in_evaluation_mode(pair):
    module, inputs = make()
    assert pair.json["modules"] == [name for name, _ in module.named_modules() if name]
    assert pair.json["eval_modules"] == [
        "backbone", "backbone.0", "backbone.1", "backbone.2", "backbone.3", "backbone.3.0", "head.1"
    ]
    module.train()
    module.backbone.eval()
    module.head[1].eval()
    before = copy.deepcopy(module.state_dict())
    torch.manual_seed(3)
    output = module(**inputs)
    output.backward(torch.ones_like(output))
    program = part(pair, "")["programs"][0]
    given = pair.state() | {("input", "x"): inputs["x"]}
    torch.manual_seed(3)
    after = pair.run(program["forward"], given)
    assert torch.equal(after["output", "output__0"], output)
    assert "new_buffer" not in {role for role, _ in after}
    given |= after | {("output_gradient", "output__0"): torch.ones_like(output)}
    got = pair.run(program["backward"], given)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(got["parameter_gradient", name], parameter.grad)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_one_row_is_enough_without_batch_norm_in_training_mode(pair):
    assert part(pair, "", eval_modules=False)["min_training_rows"] == 2
    assert part(pair, "")["min_training_rows"] == 1


def test_each_stage_and_precision_has_graphs_of_both_kinds(pair):
    assert [(each["path"], each["eval_modules"]) for each in pair.json["parts"]] == [
        (path, eval_modules) for eval_modules in (False, True) for path in ("", "backbone", "head")
    ]
    for each in pair.json["parts"]:
        assert [program["precision"] for program in each["programs"]] == ["model", "bfloat16"]
    for eval_modules in (False, True):
        outputs = part(pair, "backbone", eval_modules)["programs"][0]["forward"]["outputs"]
        assert ("new_buffer" in {slot["role"] for slot in outputs}) == (not eval_modules)


@pytest.mark.parametrize(
    "patterns, message",
    [
        (["head", "^bn"], r"'\^bn' matches no submodule \(the model has backbone, backbone.0, "),
        (["("], r"'\(' is not a regular expression"),
    ],
)
def test_wrong_patterns_are_rejected(tmp_path, patterns, message):
    module, inputs = make()
    with pytest.raises(ValueError, match=f"eval_modules: {message}"):
        braid.export(module, inputs, tmp_path / "net", eval_modules=patterns)
    with pytest.raises(TypeError, match="expected a list of patterns"):
        braid.export(module, inputs, tmp_path / "net", eval_modules="head")
    assert not (tmp_path / "net").exists()
