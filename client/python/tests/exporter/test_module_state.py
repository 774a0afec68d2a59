"""Every export restores the module, and stores its original state."""

import copy
import inspect
import random

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
import export_models  # noqa: E402
from braid.exporter.checks import comparison, dry_run  # noqa: E402
from braid.exporter.formats import aot, config, package, pair, torchscript  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


class Checkpointed(nn.Module):
    """Contains a checkpointed block, which backward reruns."""

    def __init__(self, *layers, **options):
        super().__init__()
        self.first, self.block = nn.Linear(4, 4), nn.Sequential(*layers)
        self.last, self.options = nn.Linear(4, 2), options

    def forward(self, x):
        x = checkpoint(self.block, self.first(x), use_reentrant=False, **self.options)
        return self.last(x)


class Branches(nn.Module):
    """Two checkpoints with the same random operator on the same tensor."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.left = nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.right = nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, x):
        x = self.layer(x)
        left = checkpoint(self.left, x, use_reentrant=False)
        return left + checkpoint(self.right, x, use_reentrant=False)


class Replaced(nn.Module):
    """Assigns a new tensor to a buffer in a checkpoint."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("average", torch.zeros(4))

    def block(self, x):
        x = self.layer(x)
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return torch.tanh(x - self.average)

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


class Stateful(nn.Module):
    """Applies `function` after a linear layer."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("average", torch.zeros(4))
        self.table = [nn.Parameter(torch.randn(3, 4))]
        self.hidden = [nn.BatchNorm1d(4)]
        self.cache, self.log, self.mean = None, [], torch.zeros(4)

    def forward(self, x):
        return self.function(self, self.layer(x))


def counts(module, x):
    module.calls += 1
    return x / module.calls


def averages(module, x):
    module.average = 0.5 * module.average + 0.5 * x.detach().mean(0)
    return x - module.average


def writes_to_a_parameter(module, x):
    with torch.no_grad():
        module.layer.weight.mul_(0.9)
    return x


def sets_a_parameters_data(module, x):
    module.layer.weight.data = module.layer.weight.data * 0.9
    return x


def renormalizes_what_is_in_a_list(module, x):
    indices = (x[:, 0] > 0).long()
    return x + F.embedding(indices, module.table[0], max_norm=0.5)


def normalizes_by_what_is_in_a_list(module, x):
    return module.hidden[0](x)


def caches(module, x):
    if module.cache is None:
        module.cache = torch.arange(4.0)
    return x + module.cache


def logs(module, x):
    module.log.append(1)
    module.mean.add_(x.detach().mean(0))
    return x * len(module.log)


def draws(module, x):
    return x * random.random()


def freezes(module, x):
    module.layer.bias.requires_grad_(False)
    return x


def fails_in_the_end(module, x):
    module.calls += 1
    module.layer.weight.data.mul_(2)
    raise ValueError("failed")


STATEFUL = [
    counts, averages, writes_to_a_parameter, sets_a_parameters_data,
    renormalizes_what_is_in_a_list, normalizes_by_what_is_in_a_list, caches, logs, draws,
    freezes, fails_in_the_end,
]


def renormalized(make, **options):
    def made():
        module = make(7, 4, max_norm=0.5, **options)
        with torch.no_grad():
            module.weight.mul_(3)
        return nn.Sequential(module, nn.Flatten())

    return made


def old_spectral_norm():
    return nn.utils.spectral_norm(nn.Linear(4, 3))


def weight_norm():
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))


def densenet():
    torchvision = pytest.importorskip("torchvision")
    return torchvision.models.densenet.DenseNet(
        growth_rate=4, block_config=(2, 2), num_init_features=8, num_classes=3,
        memory_efficient=True,
    )


EMBEDDINGS = {
    "embedding": renormalized(nn.Embedding),
    "padded": renormalized(nn.Embedding, padding_idx=2),
    "bag": renormalized(nn.EmbeddingBag),
    "summed bag": renormalized(nn.EmbeddingBag, mode="sum", padding_idx=2),
}


def everything(module):
    """Copies the module's tensors, attributes and modes."""
    tensors = module.state_dict()
    flags = {name: (each.requires_grad, each.grad) for name, each in module.named_parameters()}
    plain = {
        f"{path}.{name}": copy.deepcopy(value)
        for path, each in module.named_modules()
        for name, value in vars(each).items()
        if name in ("training", "cache", "log", "mean", "table")
    }
    hidden = [each.state_dict() for each in getattr(module, "hidden", [])]
    return copy.deepcopy((tensors, flags, plain, hidden))


def assert_same(one, other):
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_same([*one.values()], [*other.values()])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for each, its in zip(one, other):
            assert_same(each, its)
    else:
        assert one == other


def export(module, inputs, path, format):
    """Returns the result, or None for an error. Checks that the module is restored."""
    before, drawn = everything(module), random.getstate()
    identities = [(name, id(each)) for name, each in module.state_dict(keep_vars=True).items()]
    try:
        result = braid.export(module, inputs, path, format, precisions=())
    except braid.ExportError:
        result = None
    assert_same(everything(module), before)
    assert random.getstate() == drawn
    now = [(name, id(each)) for name, each in module.state_dict(keep_vars=True).items()]
    assert now == identities
    return result


def stored_state(result):
    if result.format == "pair":
        return {name: each for (_, name), each in ExportedPair(result.path).state().items()}
    script = torch.jit.load(str(result.path / "model.pt"))
    return dict([*script.named_parameters(), *script.named_buffers()])


def assert_is_the_module(result, module, inputs):
    """Compares the stored state and the first result."""
    if result.format != "aot":
        stored = stored_state(result)
        for name, tensor in module.state_dict().items():
            assert torch.equal(stored[name], tensor), name
    expected = copy.deepcopy(module).eval()(*(each.clone() for each in inputs))
    if result.format == "pair":
        found = ExportedPair(result.path)
        names = [each["name"] for each in found.part()["inputs"]]
        given = {("input", name): each for name, each in zip(names, inputs)}
        (got,) = found.run(found.program("eval"), found.state() | given).values()
    elif result.format == "torchscript":
        got = torch.jit.load(str(result.path / "model.pt"))(*inputs)
    else:
        loaded = torch._inductor.aoti_load_package(str(result.path / "model.pt2"))
        names = inspect.signature(module.forward).parameters
        (got,) = loaded(**dict(zip(names, inputs)))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("format", ["auto", "torchscript", "aot"])
@pytest.mark.parametrize("make", EMBEDDINGS.values(), ids=EMBEDDINGS)
def test_renormalized_embeddings_keep_their_state(tmp_path, make, format):
    module, inputs = make(), (torch.randint(0, 7, (5, 3)),)
    result = export(module, inputs, tmp_path / "net", format)
    assert format == "aot" or result.format == "torchscript"
    if result is not None:
        assert_is_the_module(result, module, inputs)


@pytest.mark.parametrize("format", ["auto", "pair", "torchscript"])
@pytest.mark.parametrize("function", STATEFUL)
def test_module_that_forward_changes_is_restored(tmp_path, function, format):
    module, inputs = Stateful(function), (torch.randn(5, 4),)
    result = export(module, inputs, tmp_path / "net", format)
    if result is not None:
        assert_is_the_module(result, module, inputs)


@pytest.mark.parametrize("make", [old_spectral_norm, weight_norm])
@pytest.mark.parametrize("format", ["pair", "torchscript"])
def test_parametrized_weights_are_restored(tmp_path, make, format):
    module, inputs = make(), (torch.randn(5, 4),)
    result = export(module, inputs, tmp_path / "net", format)
    if result is not None:
        assert_is_the_module(result, module, inputs)


@pytest.mark.parametrize("function", [counts, averages, writes_to_a_parameter, caches])
def test_module_that_forward_changes_is_restored_after_compilation(tmp_path, function):
    module, inputs = Stateful(function), (torch.randn(5, 4),)
    result = export(module, inputs, tmp_path / "net", "aot")
    if result is not None:
        assert_is_the_module(result, module, inputs)


@pytest.mark.parametrize("training", [True, False])
def test_memory_efficient_densenet_is_exported(tmp_path, training):
    torch.manual_seed(0)
    module = densenet().train(training)
    inputs = (torch.randn(3, 3, 32, 32),)
    result = export(module, inputs, tmp_path / "net", "auto")
    assert result.format == "pair"
    assert_is_the_module(result, module, inputs)
    assert_steps_alike(result, module, inputs[0])


def assert_steps_alike(result, module, x):
    """Compares a training step: outputs, buffers after backward, and gradients."""
    module, found = copy.deepcopy(module).train(), ExportedPair(result.path)
    torch.manual_seed(7)
    expected = module(x.clone())
    gradient = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    expected.backward(gradient)
    torch.manual_seed(7)
    name = found.part()["inputs"][0]["name"]
    known = found.state() | {("input", name): x}
    known |= found.run(found.program("forward"), known)
    (output,) = (each["name"] for each in found.part()["outputs"])
    torch.testing.assert_close(known["output", output], expected.detach(), rtol=1e-5, atol=1e-5)
    known["output_gradient", output] = gradient
    got = found.run(found.program("backward"), known)
    for name, buffer in module.named_buffers():
        now = known.get(("new_buffer", name), known["buffer", name])
        torch.testing.assert_close(now, buffer, rtol=1e-5, atol=1e-6)
    for name, parameter in module.named_parameters():
        gradient = got.get(("parameter_gradient", name))
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-4)


CHECKPOINTED = {
    "batch norm": lambda: [nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()],
    "batch norm last": lambda: [nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.5)],
    "without parameters": lambda: [nn.BatchNorm1d(4, affine=False), nn.Linear(4, 4), nn.Tanh()],
    "dropout": lambda: [
        nn.Dropout(0.3), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.BatchNorm1d(4),
    ],
    "frozen": lambda: [nn.Linear(4, 4), nn.BatchNorm1d(4).eval().requires_grad_(False)],
    "layer norm": lambda: [nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.2)],
    "spectral norm": lambda: [nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Tanh()],
}


@pytest.mark.parametrize("layers", CHECKPOINTED.values(), ids=CHECKPOINTED)
def test_checkpoints_match_eager_mode(tmp_path, layers):
    torch.manual_seed(0)
    module, inputs = Checkpointed(*layers()), (torch.randn(5, 4),)
    result = export(module, inputs, tmp_path / "net", "pair")
    assert_is_the_module(result, module, inputs)
    assert_steps_alike(result, module, inputs[0])


def test_batch_norm_in_a_checkpoint_runs_forward_once(tmp_path):
    result = export(Checkpointed(nn.BatchNorm1d(4), nn.Tanh()), (torch.randn(5, 4),),
                    tmp_path / "net", "pair")
    programs = ExportedPair(result.path).programs
    targets = [str(node.target) for kind in ("fw", "bw") for node in programs[kind].graph.nodes]
    assert targets.count("aten.tanh.default") == 1
    assert targets.count("aten._native_batch_norm_legit_functional.default") == 2


@pytest.mark.parametrize("make, reason", [
    (Branches, "native_dropout.default draws random numbers there that cannot be distinguished"),
    (Replaced, "assigns a new tensor to the buffer 'average'"),
])
def test_unsupported_checkpoints_are_rejected(tmp_path, make, reason):
    module = make()
    before = everything(module)
    with pytest.raises(braid.ExportError, match=reason):
        braid.export(module, (torch.randn(5, 4),), tmp_path / "net", "pair", precisions=())
    assert_same(everything(module), before)


class ReadsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, x, module):
        context.module = module
        return x * module.scale

    @staticmethod
    def backward(context, gradient):
        return gradient * context.module.scale, None


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 3.0))

    def forward(self, x):
        return ReadsInBackward.apply(self.layer(x), self)


def test_backward_reads_the_substituted_state(tmp_path):
    result = braid.export(Scaled(), (torch.randn(5, 4),), tmp_path / "net", "pair", precisions=())
    found = ExportedPair(result.path)
    known = found.state() | {("input", "x"): torch.randn(5, 4)}
    known["buffer", "scale"] = torch.full((4,), 7.0)
    known |= found.run(found.program("forward"), known)
    known["output_gradient", "output__0"] = torch.ones(5, 4)
    got = found.run(found.program("backward"), known)
    assert torch.equal(got["parameter_gradient", "layer.bias"], torch.full((4,), 35.0))


FAILURES = {
    "dry_run": (dry_run, "run"), "trace": (pair, "trace"), "write": (package, "write_pair"),
    "comparison": (comparison, "ReferenceRun"), "config": (config, "to_text"),
    "publish": (package, "publish"),
    "script": (torchscript, "_Loaded"), "compare": (torchscript, "_compare"),
    "compile": (aot, "_compile"), "compiled": (aot, "_compare"),
}
FORMATS = {"script": "torchscript", "compare": "torchscript", "compile": "aot", "compiled": "aot"}


@pytest.mark.parametrize("stage, error", [
    *((stage, RuntimeError) for stage in FAILURES),
    ("comparison", KeyboardInterrupt), ("compare", KeyboardInterrupt),
])
def test_failure_at_any_stage_restores_the_module(tmp_path, monkeypatch, stage, error):
    module, inputs = normalized(), (torch.randn(3, 4),)
    before = everything(module)

    def fail(*_args, **_options):
        raise error("failed")

    monkeypatch.setattr(*FAILURES[stage], fail)
    with pytest.raises((braid.ExportError, error)):
        braid.export(module, inputs, tmp_path / "net", FORMATS.get(stage, "pair"), precisions=())
    assert_same(everything(module), before)
    assert list(tmp_path.glob("*")) == []


def normalized():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())


def test_second_format_starts_from_the_original_state(tmp_path, monkeypatch):
    """The first format changes the module before it fails."""

    def changes(module, *_args):
        with torch.no_grad():
            module.weight.mul_(2)
        raise RuntimeError("failed")

    monkeypatch.setattr(pair, "make_pair", changes)
    module, inputs = nn.Linear(4, 2), (torch.randn(3, 4),)
    result = export(module, inputs, tmp_path / "net", "auto")
    assert result.format == "torchscript"
    assert_is_the_module(result, module, inputs)


def test_gradients_are_restored(tmp_path):
    module, inputs = export_models.make("mlp")
    module(**inputs).sum().backward()
    before = {name: (each.grad, each.grad.clone()) for name, each in module.named_parameters()}
    braid.export(module, inputs, tmp_path / "net", precisions=())
    for name, each in module.named_parameters():
        gradient, was = before[name]
        assert each.grad is gradient and torch.equal(gradient, was)
