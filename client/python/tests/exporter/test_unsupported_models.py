"""Errors for models that cannot be exported name the reason and the model's line."""

import contextlib
import functools
import importlib
import itertools
import random
import re
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
import export_models  # noqa: E402
from braid.exporter import source, torch_versions  # noqa: E402
from braid.exporter.checks.operators import check_operator  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
import torch.utils.checkpoint  # noqa: E402
from torch import nn  # noqa: E402
from torch._higher_order_ops.map import map as map_rows  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402


class Wrong(nn.Module):
    """Applies `function` to itself and the input."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.layer = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.others = {
            "weights": [self.layer.weight],
            "seen": self.seen[None],
            "scale": nn.Parameter(torch.ones(4)),
            "layers": [nn.Linear(4, 4)],
        }

    def forward(self, x):
        return self.function(self, x)


class Samples(nn.Module):
    """Samples in training and returns the mean in evaluation, like a variational autoencoder."""

    def __init__(self, validate=None):
        super().__init__()
        self.layer, self.validate = nn.Linear(8, 4), validate

    def forward(self, x):
        mean, spread = self.layer(x).chunk(2, -1)
        if not self.training:
            return mean
        return torch.distributions.Normal(mean, spread.exp(), self.validate).rsample()


class Likelihood(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.loss = nn.Linear(8, 2), nn.GaussianNLLLoss()

    def forward(self, x):
        mean, spread = self.layer(x).chunk(2, -1)
        return self.loss(mean, x[..., :1], spread.exp())


class Labelled(nn.Linear):
    """Uses profiler labels as a block and as a decorator."""

    @torch.profiler.record_function("twice")
    def twice(self, x):
        return 2 * x

    def forward(self, x):
        with torch.profiler.record_function("linear"):
            return self.twice(super().forward(x))


class LooksAtValues(nn.Module):
    def __init__(self, name, causal=None):
        super().__init__()
        mask = nn.Transformer.generate_square_subsequent_mask(3)
        options = {"dropout": 0.0, "batch_first": True}
        if name == "encoder":
            self.layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, **options), 1)
            self.given = {"mask": mask, "is_causal": causal}
        elif name == "decoder":
            self.layer = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, **options), 1)
            self.given = {"tgt_mask": mask, "tgt_is_causal": causal}
        else:
            self.layer, self.given = nn.BatchNorm1d(3, momentum=None), {}

    def forward(self, x):
        return self.layer(x, *([x] if "tgt_mask" in self.given else []), **self.given)


def on_a_value(module, x):
    y = module.layer(x)
    if y.sum() > 0:
        return y
    return -y


def on_item(module, x):
    return module.layer(x) * x.mean().item()


def on_mask(module, x):
    return module.layer(x)[x[:, 0] > 0]


def hides_a_branch(module, x):
    y = module.layer(x)
    try:
        if y.max() > 100:
            return y * 2
    except Exception:
        pass
    return y


def hides_a_number(module, x):
    y = module.layer(x)
    try:
        n = int((y > 50).sum())
    except RuntimeError:
        n = 0
    return y + n


def hides_what_pytorch_allows(module, x):
    y = module.layer(x)
    try:
        return y * y.detach().numpy().max()
    except Exception:
        return y


def hides_an_index(module, x):
    y = module.layer(x)
    with contextlib.suppress(Exception):
        return y * [1, 2][y.argmax() * 0]
    return y


def hides_a_list(module, x):
    y = module.layer(x)
    try:
        return y * sum(y[0].detach().tolist())
    except Exception:
        return y


def hides_positions(module, x):
    y = module.layer(x)
    try:
        return y[torch.nonzero(y[:, 0] > -1e9)[:, 0]]
    except Exception:
        return y


def hides_an_item_in_training(module, x):
    y = module.layer(x)
    try:
        return y * y.mean().item() if module.training else y
    except Exception:
        return y


def hides_many_rows(module, x):
    y = module.layer(x)
    try:
        if x.shape[0] > 40:
            return y * 2
    except Exception:
        pass
    return y


def hides_a_write(module, x):
    with contextlib.suppress(Exception):
        x.clamp_(min=0)
    return module.layer(x)


def hides_a_value_behind_an_error(module, x):
    y = module.layer(x)
    try:
        return y * [2][3 if y.argmax() >= 0 else 0]
    except Exception:
        return y


def catches_its_own(module, x):
    try:
        scale = {}["scale"]
    except KeyError:
        scale = 2
    try:
        x @ x.new_zeros(7)
    except RuntimeError:
        scale += 1
    return module.layer(x) * scale


def fails_always():
    raise NotImplementedError("no such kernel")


def catches_anothers(module, x):
    try:
        return fails_always()
    except NotImplementedError:
        return module.layer(x)


def catches_another_kind_in_the_trace(module, x):
    try:
        return x.split([1, 2], 1)[0]
    except (RuntimeError, ValueError):
        return module.layer(x)


@functools.lru_cache
def halves(columns, rows):
    return columns // 2


def computes_what_no_cache_has(module, x):
    rows, columns = x.shape
    try:
        half = halves(columns, rows)
    except TypeError:
        half = halves.__wrapped__(columns, rows)
    return module.layer(x)[:, :half]


class Halves(nn.Module):
    @functools.lru_cache
    def of(self, columns, rows):
        return columns // 2


HALVES = Halves()


def computes_what_no_cache_of_a_method_has(module, x):
    try:
        half = HALVES.of(x.shape[1], x.shape[0])
    except TypeError:
        half = 2
    return module.layer(x)[:, :half]


SCALES = {64: 3.0}


def hides_a_lookup(module, x):
    try:
        scale = SCALES.get(x.shape[0], 1.0)
    except TypeError:
        scale = 1.0
    return module.layer(x) * scale


class CatchesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, gradient):
        try:
            raise NotImplementedError("no such kernel")
        except NotImplementedError:
            return gradient * 2


def catches_in_backward(module, x):
    return CatchesInBackward.apply(module.layer(x))


def catches_under_autocast(module, x):
    try:
        if torch.is_autocast_enabled(x.device.type):
            raise NotImplementedError("no kernel of less precision")
        return module.layer(x)
    except NotImplementedError:
        return module.layer(x) * 1


def on_cond(module, x):
    return torch.cond(x.sum() > 0, module.layer, torch.neg, (x,))


def on_rows_as_they_are(module, x):
    return module.layer(x)


def on_while_loop(module, x):
    start = torch.zeros((), dtype=torch.int64), module.layer(x)
    return while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * 2), start)[1]


def on_scan(module, x):
    return scan(lambda sum, row: (sum + row, sum + row), x[0], module.layer(x), dim=0)[1]


def drops_a_layer(module, x):
    layerdrop = 0.1
    return x if module.training and torch.rand(()) < layerdrop else module.layer(x)


def on_map(module, x):
    return map_rows(lambda row, scale: row * scale, module.layer(x), torch.tensor(2.0))


def rounded_rows(module, x):
    return module.layer(x) * round(x.shape[0] / 3)


def writes_input(module, x):
    x.clamp_(min=0)
    return module.layer(x)


def writes_view_of_input(module, x):
    x[:, 0] = 1.0
    return module.layer(x)


def writes_parameter(module, x):
    with torch.no_grad():
        module.layer.weight.mul_(0.5)
    return module.layer(x)


def grows_buffer(module, x):
    module.seen = torch.cat([module.seen, module.seen])
    return module.layer(x)


def resizes_buffer(module, x):
    module.seen.resize_(2, 2)
    return module.layer(x)


def changes_dtype_of_buffer(module, x):
    module.seen = module.seen.double()
    return module.layer(x)


def learns_through_a_buffer(module, x):
    y = module.layer(x)
    module.seen.mul_(0.9).add_(y.mean(0))
    return y


def fixed_rows(module, x):
    return module.layer(x.reshape(5, 4))


def decides_on_rows(module, x):
    return module.layer(x) if x.shape[0] < 7 else x


def decides_on_many_rows(module, x):
    return module.layer(x) if x.shape[0] <= 1000 else x


def decides_on_some_rows(module, x):
    return module.layer(x) if 7 < x.shape[0] < 33 else x


def decides_on_multiples_of_rows(module, x):
    if 3 * x.shape[0] < 601:
        return module.layer(x)
    return x


def decides_on_blocks_of_rows(module, x):
    return module.layer(x) * (2.0 if x.shape[0] // 64 == 3 else 1.0)


def decides_on_one_block(module, x):
    return module.layer(x) * (2.0 if x.shape[0] // 64 == 1 else 1.0)


def decides_on_a_square_of_rows(module, x):
    return module.layer(x) * (2.0 if x.shape[0] ** 2 == 22500 else 1.0)


def splits(module, x):
    return torch.cat([part - part.mean(0) for part in module.layer(x).split(50)])


def splits_at_a_row(module, x):
    first, second = module.layer(x).tensor_split([50])
    return torch.cat([first * 2, second])


def number_of_rows(module, x):
    return module.layer(x) * int(x.shape[0] * 0.5 + 1)


def iterates(module, x):
    return torch.stack([row * 2 for row in module.layer(x)])


def counts_pieces(module, x):
    first, *others = module.layer(x).chunk(2)
    return torch.cat([first, *others]) * len(others)


def reenters(module, x):
    return torch.utils.checkpoint.checkpoint(module.layer, module.layer(x), use_reentrant=True)


def asks_for_one_row(module, x):
    return module.layer(x) / max(x.shape[0] - 1, 1)


def slices_from_the_end(module, x):
    y, half = module.layer(x), x.shape[0] // 2
    return torch.cat([y[-half:], y[:-half]])


def python_random(module, x):
    return module.layer(x) * random.random()


def other_names_in_training(module, x):
    y = module.layer(x)
    return {"logits": y} if module.training else {"classes": y.argmax(1)}


def returns_number(module, x):
    return module.layer(x), 3


def returns_complex(module, x):
    return torch.fft.fft(module.layer(x))


def similarity(module, x):
    return module.layer(x) @ x.T


def flattens(module, x):
    return module.layer(x).flatten()


def of_no_rows(module, x):
    return module.layer(x), module.layer.bias * 2


def parameter_from_a_list(module, x):
    return x @ module.others["weights"][0]


def buffer_view_from_a_list(module, x):
    return module.layer(x) + module.others["seen"]


def parameter_of_nobody(module, x):
    return module.layer(x) * module.others["scale"]


def layer_from_a_list(module, x):
    return module.layer(x) + module.others["layers"][0](x)


def fails(module, x):
    raise KeyError("no such thing")


@torch.library.custom_op("braid_tests::negative", mutates_args=())
def negative(x: torch.Tensor) -> torch.Tensor:
    return -x


@negative.register_fake
def _(x):
    return torch.empty_like(x)


def foreign_operator(module, x):
    return negative(module.layer(x.detach()).detach())


UNSUPPORTED = [
    (on_a_value, "converts a tensor's values to a Python number", "if y.sum() > 0:"),
    (on_item, "converts a tensor's values to a Python number", "x.mean().item()"),
    (on_a_value, "(expected torch.where or torch.cond in place of a branch, or format='torchscript'",
     ""),
    (drops_a_layer, "LayerDrop draws a number and decides by it whether a layer runs: set the prob",
     "torch.rand(()) < layerdrop"),
    (on_mask, "the output shape of aten.nonzero.default depends", "module.layer(x)[x[:, 0]"),
    (on_mask, "tensor's values (use torch.where or a mask of fixed shape", ""),
    (hides_a_branch, "or format='torchscript'); forward() catches the error",
     "if y.max() > 100:"),
    (hides_a_number, "converts a tensor's values to a Python number", "int((y > 50).sum())"),
    (hides_what_pytorch_allows, "forward() catches the error", "y.detach().numpy().max()"),
    (hides_an_index, "converts a tensor's values to a Python number", "[1, 2][y.argmax() * 0]"),
    (hides_a_list, "forward() catches the error", "y[0].detach().tolist()"),
    (hides_positions, "the output shape of aten.nonzero.default", "torch.nonzero(y[:, 0]"),
    (hides_an_item_in_training, "converts a tensor's values to a Python", "y * y.mean().item()"),
    (hides_a_write, "forward() writes to the input 'x' (aten::clamp_)", "x.clamp_(min=0)"),
    (hides_a_value_behind_an_error, "converts a tensor's values to a Python", "y.argmax() >="),
    (hides_a_lookup, "unhashable type: non-nested SymInt; forward() catches the error",
     "SCALES.get(x.shape[0], 1.0)"),
    (hides_many_rows, "different branch for 41 rows than for 5", "if x.shape[0] > 40:"),
    (on_while_loop, "forward() calls while_loop, which exported pairs do not support; for inference"
                    ", use format='aot' or torch.export.save; else write a Python loop: format='to",
     "return while_loop("),
    (on_scan, "(exported pairs do not support scan: use a recurrent layer, or a Python loop over a "
              "fixed size)", "return scan("),
    (on_map, "forward() calls map, which exported pairs do not support; for inference, use",
     "return map_rows("),
    (rounded_rows, "forward() calls round on the number of rows, which",
     "round(x.shape[0] / 3)"),
    (writes_input, "forward() writes to the input 'x' (aten::clamp_)", "x.clamp_(min=0)"),
    (writes_view_of_input, "forward() writes to the input 'x'", "x[:, 0] = 1.0"),
    (writes_parameter, "forward() writes to the parameter 'layer.weight'", "weight.mul_(0.5)"),
    (grows_buffer, "the buffer 'seen' from torch.float32 of shape [4] to torch.float32 of shape "
                   "[8]", ""),
    (resizes_buffer, "forward() resizes the buffer 'seen' in place (aten::resize_), which a",
     "module.seen.resize_(2, 2)"),
    (changes_dtype_of_buffer, "the buffer 'seen' from torch.float32 of shape [4] to torch.float64",
     ""),
    (learns_through_a_buffer, "updates a buffer with a value that has a gradient", ""),
    (fixed_rows, "forward() fails for a batch of", "x.reshape(5, 4)"),
    (decides_on_rows, "different branch for 7 rows than for 5", "x.shape[0] < 7 else"),
    (decides_on_many_rows, "different branch for 1001 rows than for 5", "x.shape[0] <= 1000 else"),
    (decides_on_some_rows, "different branch for 8 rows than for 5", "if 7 < x.shape[0] < 33 else"),
    (decides_on_multiples_of_rows, "different branch for 201 rows than", "if 3 * x.shape[0] < 601"),
    (decides_on_blocks_of_rows, "different branch for 192 rows than", "x.shape[0] // 64 == 3"),
    (decides_on_one_block, "different branch for 64 rows than for 5", "x.shape[0] // 64 == 1"),
    (decides_on_a_square_of_rows, "different branch for 150 rows", "x.shape[0] ** 2 =="),
    (splits, "different branch for 51 rows than for 5", ".split(50)"),
    (splits_at_a_row, "different branch for 51 rows than for 5", ".tensor_split([50])"),
    (number_of_rows, "converts the number of rows to a Python number", "int(x.shape[0] * 0.5"),
    (iterates, "converts the number of rows to a Python number", "for row in module.layer(x)"),
    (asks_for_one_row, "batch of 1, precision model: finite and non-finite values differ; "
                       "forward() treats one row differently", ""),
    (counts_pieces, "batch of 1, precision model: it fails: list index out of range; "
                    "forward() treats one row differently", ""),
    (reenters, "with use_reentrant=True cannot be traced (expected use_reentrant=False)", ""),
    (slices_from_the_end, "batch of 1, precision model: it fails: output with shape", ""),
    (python_random, "forward() draws random numbers from random, which", "x) * random.random()"),
    (other_names_in_training, "forward() returns logits or classes", ""),
    (returns_number, "forward() returns an int (expected tensors or None, ", ""),
    (returns_complex, "output 'output__0' has the unsupported dtype complex64", ""),
    (similarity, "output 'output__0' has the shape [batch, batch] (expected the batch as dim 0",
     ""),
    (flattens, "output 'output__0' has the shape [4*batch]", ""),
    (of_no_rows, "output 'output__1' has the shape [4]", ""),
    (parameter_from_a_list, "forward() uses the parameter 'layer.weight' other than by its name",
     "return x @ module.others"),
    (buffer_view_from_a_list, "forward() uses the buffer 'seen' other than by its name",
     'module.others["seen"]'),
    (parameter_of_nobody, "forward() uses an unregistered parameter of shape [4],",
     'module.others["scale"]'),
    (layer_from_a_list, "forward() uses an unregistered parameter of shape [4, 4],",
     'module.others["layers"][0](x)'),
    (fails, "KeyError: 'no such thing'", 'raise KeyError("no such thing")'),
    (foreign_operator, "braid_tests::negative is not part of LibTorch", "return negative("),
]


@pytest.mark.parametrize("function, reason, line", UNSUPPORTED, ids=lambda each: getattr(
    each, "__name__", ""))
def test_error_names_the_reason_and_the_line(tmp_path, capfd, function, reason, line):
    with pytest.raises(braid.ExportError) as raised:
        braid.export(Wrong(function), (torch.randn(4, 4),), tmp_path / "net", "pair",
                     precisions=())
    message = str(raised.value)
    assert reason in message
    assert list(tmp_path.iterdir()) == [], "something was written"
    assert "Traceback" not in capfd.readouterr().err
    if line:
        where = re.search(r"\n  (.*), line \d+, in (\w+): (.*)$", message)
        assert where and where[1] == __file__ and where[2] == function.__name__, message
        assert line in where[3]


@pytest.mark.parametrize("function", [on_cond, on_while_loop, on_map])
def test_torchscript_rejects_control_flow_operators(tmp_path, function):
    with pytest.raises(braid.ExportError) as raised:
        braid.export(Wrong(function), (torch.randn(4, 4),), tmp_path / "net", "torchscript")
    message = str(raised.value)
    said = (r"forward\(\) calls [a-z_.]+, which TorchScript does not support; for inference, use "
            r"format='aot' or torch\.export\.save; else ")
    assert re.match(said, message), message


def test_aot_supports_control_flow(tmp_path):
    """Checks the recommendation in the errors of other formats."""
    assert braid.export(Wrong(on_cond), (torch.randn(4, 4),), tmp_path / "net", "aot")


def raises_a_function(module, x):
    raise NotImplementedError(f"no rule for {fails_always} and {module.layer.register_buffer}")


def returns_with_an_object_as_key(module, x):
    return {object(): module.layer(x)}


@pytest.mark.parametrize("function, format", [
    *itertools.product([raises_a_function, returns_with_an_object_as_key],
                       ["auto", "pair", "torchscript", "aot"]),
    (on_cond, "torchscript"),
    *itertools.product([on_while_loop], ["auto", "pair", "torchscript"]),
])
def test_errors_contain_no_addresses(tmp_path, function, format):
    with pytest.raises(braid.ExportError) as raised:
        braid.export(Wrong(function), (torch.randn(4, 4),), tmp_path / "net", format)
    assert " at 0x" not in str(raised.value)
    if function == raises_a_function:
        assert "no rule for <function fails_always> and <bound method " in str(raised.value)


def test_reasons_contain_no_addresses(tmp_path):
    """Uses a module that is traced because it cannot be scripted."""
    result = braid.export(Wrong(on_rows_as_they_are), (torch.randn(4, 4),), tmp_path / "net",
                          "torchscript")
    assert "because it cannot be scripted (" in result.reason
    assert " at 0x" not in result.reason


@pytest.mark.parametrize("file", ["<stdin>", "<string>", "<ipython-input-1-0123456789ab>"])
def test_error_names_a_line_without_a_file(tmp_path, file):
    """Code from a prompt or exec() has no file."""
    typed = {"nn": nn}
    text = textwrap.dedent("""\
        class Typed(nn.Linear):
            def forward(self, x):
                return x * (2 if x.shape[0] > 40 else 1)
    """)
    exec(compile(text, file, "exec"), typed)
    with pytest.raises(braid.ExportError) as raised:
        braid.export(typed["Typed"](4, 4), (torch.randn(4, 4),), tmp_path / "net", "pair",
                     precisions=())
    assert "different branch for 41 rows than for 5" in str(raised.value)
    assert str(raised.value).endswith(f"\n  {file}, line 3, in forward")


@pytest.mark.parametrize("function, precisions", [
    (catches_its_own, ()),
    (catches_anothers, ()),
    (catches_another_kind_in_the_trace, ()),
    (computes_what_no_cache_has, ()),
    (computes_what_no_cache_of_a_method_has, ()),
    (catches_in_backward, ("bfloat16",)),
    (catches_under_autocast, ("bfloat16",)),
])
def test_errors_caught_in_eager_mode_are_accepted(tmp_path, function, precisions):
    """An error that forward also catches in eager mode does not change its branch."""
    module = Wrong(function)
    assert braid.export(module, (torch.randn(4, 4),), tmp_path / "net", "pair",
                        precisions=precisions)


class Merges(nn.Linear):
    """Adapter that is merged into the weights in evaluation, and separate in training."""

    def __init__(self, merges=True):
        super().__init__(4, 4)
        self.adapter = nn.Parameter(torch.ones(4, 4))
        self.merges, self.merged = merges, False

    def train(self, mode=True):
        super().train(mode)
        if self.merges and self.merged == mode:
            self.weight.data += -self.adapter.data if mode else self.adapter.data
            self.merged = not mode
        return self

    def forward(self, x):
        y = nn.functional.linear(x, self.weight, self.bias)
        return y if self.merged else y + nn.functional.linear(x, self.adapter)


@pytest.mark.parametrize("training", [True, False])
def test_mode_switch_that_changes_weights_is_rejected(tmp_path, training):
    module = Merges().train(training)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(braid.ExportError, match=r"changes the parameter 'weight'"):
        braid.export(module, (torch.randn(4, 4),), tmp_path / "net", "pair")
    assert module.training == training and module.merged != training
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert braid.export(Merges(merges=False), (torch.randn(4, 4),), tmp_path / "net", "pair",
                        precisions=())


def test_export_works_during_an_import(tmp_path, monkeypatch):
    (tmp_path / "exports_itself.py").write_text(textwrap.dedent("""
        import braid, pathlib, torch

        class Net(torch.nn.Module):
            def forward(self, x):
                try:
                    return x * 2 if x.max() > 100 else x
                except Exception:
                    return x

        net = pathlib.Path(__file__).parent / "net"
        braid.export(Net(), (torch.randn(4, 4),), net, "pair")
    """))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(braid.ExportError, match="converts a tensor's values to a Python number"):
        importlib.import_module("exports_itself")


def test_code_next_to_the_exporter_is_model_code():
    """A file belongs to the exporter only if it is in its folder."""
    folder = Path(braid.__file__).parent
    assert source.is_model_code(f"{folder}_nets.py")
    assert source.is_model_code(f"{folder}_nets/resnet.py")
    assert not source.is_model_code(f"{folder}/exporter/trace/joint_graph.py")


@pytest.mark.parametrize("name, said", [
    ("encoder", "to detect a causal mask: set is_causal=True"),
    ("decoder", "tgt_is_causal of a TransformerDecoder"),
    ("norm", "batch norm with momentum=None converts its batch count to a Python number"),
])
def test_value_checks_inside_pytorch_are_explained(tmp_path, name, said):
    with pytest.raises(braid.ExportError) as raised:
        braid.export(LooksAtValues(name), (torch.randn(4, 3, 8),), tmp_path / "net", "pair",
                     precisions=())
    assert said in str(raised.value)
    assert "in forward: return self.layer(" in str(raised.value)


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_mask_declared_as_causal_is_exported(tmp_path, name):
    assert braid.export(LooksAtValues(name, True), (torch.randn(4, 3, 8),), tmp_path / "net",
                        "pair", precisions=())


def test_gaussian_nll_loss_is_rejected(tmp_path):
    with pytest.raises(braid.ExportError) as raised:
        braid.export(Likelihood(), (torch.randn(4, 8),), tmp_path / "net", "pair", precisions=())
    assert "gaussian_nll_loss checks that no variance is negative" in str(raised.value)
    assert "return self.loss(" in str(raised.value)


def test_distribution_with_validation_depends_on_the_torch_version(tmp_path):
    """PyTorch before 2.15 reads the arguments' values. Later versions add an assertion, which
    the package omits."""
    if torch_versions.installed() < (2, 15):
        with pytest.raises(braid.ExportError) as raised:
            braid.export(Samples(True), (torch.randn(4, 8),), tmp_path / "net", "pair")
        assert "torch.distributions validates values" in str(raised.value)
        assert "torch.distributions.Normal(mean," in str(raised.value)
        return
    result = braid.export(Samples(True), (torch.randn(4, 8),), tmp_path / "net", "pair",
                          precisions=())
    pair = ExportedPair(result.path)
    graph = pair.programs[pair.program("forward")["graph"]].graph
    assert not [node for node in graph.nodes if "assert" in str(node.target)]


@pytest.mark.parametrize("default", [True, False])
def test_distribution_without_validation_is_exported(tmp_path, monkeypatch, default):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", default)
    assert braid.export(Samples(), (torch.randn(4, 8),), tmp_path / "net", "pair", precisions=())
    assert torch.distributions.Distribution._validate_args == default


def test_profiler_labels_are_removed(tmp_path):
    module, record = Labelled(4, 2), torch.profiler.record_function
    before = record.__enter__, record.__exit__
    result = braid.export(module, (torch.randn(3, 4),), tmp_path / "net", precisions=())
    assert (result.format, result.reason) == ("pair", "")
    assert (record.__enter__, record.__exit__) == before


@pytest.mark.parametrize("wrap, said", [
    (nn.DataParallel, "the module is a DataParallel \\(expected the wrapped module"),
    (lambda net: nn.Sequential(nn.DataParallel(net)), "the submodule '0' is a DataParallel"),
])
def test_data_parallel_wrappers_are_rejected(tmp_path, wrap, said):
    with pytest.raises(braid.ExportError, match=said):
        braid.export(wrap(nn.Linear(4, 2)), (torch.randn(3, 4),), tmp_path / "net")


def test_random_operator_without_generator_is_rejected_on_a_cpu():
    """The server cannot seed such an operator on a CPU. On a GPU it seeds the device."""
    operator = torch.ops.aten._scaled_dot_product_flash_attention.default
    with pytest.raises(braid.ExportError, match="not use a generator that the server can seed"):
        check_operator(operator, torch.device("cpu"), str)
    check_operator(operator, torch.device("cuda"), str)
    check_operator(torch.ops.aten.native_dropout.default, torch.device("cpu"), str)
    check_operator(torch.ops.aten.bernoulli.p, torch.device("cpu"), str)


def share_memory():
    module = nn.Linear(2, 2)
    module.register_buffer("first_row", module.weight.detach()[0])
    return module


def quantized_state():
    module = nn.Linear(2, 2)
    module.register_buffer("table", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))
    return module


def sparse_state():
    module = nn.Linear(2, 2)
    module.register_buffer("table", torch.eye(2).to_sparse())
    return module


def complex_state():
    module = nn.Linear(2, 2)
    module.register_buffer("table", torch.ones(2, dtype=torch.complex64))
    return module


def several_devices():
    module = nn.Linear(2, 2)
    module.register_buffer("table", torch.ones(2, device="meta"))
    return module


@pytest.mark.parametrize("make, reason", [
    (share_memory, "'weight' and 'first_row' are different tensors that share memory"),
    (quantized_state, "buffer 'table' is sparse or quantized"),
    (sparse_state, "buffer 'table' is sparse or quantized"),
    (complex_state, "buffer 'table' has the unsupported dtype torch.complex64"),
    (lambda: nn.Linear(2, 2, device="meta"), "the module is on meta \\(expected the CPU or a CUDA"),
    (several_devices, "several devices: 'weight' on cpu, 'table' on meta"),
])
def test_unsupported_state_is_rejected(tmp_path, make, reason):
    with pytest.raises(braid.ExportError, match=reason):
        braid.export(make(), (torch.randn(3, 2),), tmp_path / "net", "pair")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("inputs, error, reason", [
    ({"y": torch.zeros(3, 4)}, ValueError, "names 'y', but forward\\(\\) takes: input"),
    ({}, ValueError, "example_inputs: empty"),
    ((torch.zeros(3, 4), torch.zeros(3, 4)), ValueError, "2 tensors, but forward\\(\\) takes 1"),
    ({"input": torch.zeros(0, 4)}, ValueError, "'input' has no rows"),
    (torch.zeros(3, 4), TypeError, "example_inputs: a Tensor \\(expected a dict of name to tensor"),
    (({"a": 1},), braid.ExportError, "input 'input' is a dict \\(expected a tensor\\)"),
    ((3.0,), braid.ExportError, "input 'input' is a float \\(expected a tensor\\)"),
    ((torch.tensor(1.0),), braid.ExportError, "input 'input' has no dims"),
    ((torch.zeros(3, 4, dtype=torch.complex64),), braid.ExportError, "of a supported dtype"),
    ((torch.zeros(3, 4, device="meta"),), braid.ExportError, "input 'input' is on meta, but the "
                                                            "module is on cpu"),
])
def test_invalid_inputs_are_rejected(tmp_path, inputs, error, reason):
    with pytest.raises(error, match=reason):
        braid.export(nn.Linear(4, 2), inputs, tmp_path / "net")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ["auto", "pair", "torchscript"])
@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hook_of_a_parameter_is_rejected(tmp_path, register, format):
    module = nn.Sequential(nn.Linear(4, 2))
    hook = getattr(module[0].weight, register)(lambda gradient: None)
    with pytest.raises(braid.ExportError, match=rf"parameter '0.weight' has a hook \({register}"):
        braid.export(module, (torch.zeros(3, 4),), tmp_path / "net", format)
    assert list(tmp_path.iterdir()) == []
    hook.remove()
    braid.export(module, (torch.zeros(3, 4),), tmp_path / "net", format, precisions=())


@pytest.mark.parametrize("register", [
    "register_full_backward_hook", "register_full_backward_pre_hook"])
def test_torchscript_rejects_backward_hooks(tmp_path, register):
    module = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))
    getattr(module[1], register)(lambda *_: None)
    with pytest.raises(braid.ExportError, match="submodule '1' has a backward hook"):
        braid.export(module, (torch.zeros(3, 4),), tmp_path / "net", "torchscript")


def test_missing_inputs_and_unequal_batches_are_rejected(tmp_path):
    module, inputs = export_models.make("mixed")
    inputs["weights"] = inputs["weights"][:2]
    with pytest.raises(ValueError, match="example_inputs: 'words' has 4, 'weights' has 2 rows"):
        braid.export(module, inputs, tmp_path / "net")
    del inputs["weights"]
    with pytest.raises(ValueError, match="lacks 'weights', which forward\\(\\) requires"):
        braid.export(module, inputs, tmp_path / "net")


@pytest.mark.parametrize("options, error, reason", [
    ({"format": "onnx"}, ValueError, "format: 'onnx' \\(expected one of auto, pair"),
    ({"precisions": ["int8"]}, ValueError, "precisions: 'int8' \\(expected some of bfloat16"),
    ({"stages": ["features"]}, TypeError, "stages: \\['features'\\] \\(expected a list of chains"),
    ({"stages": [["features", "head"]]}, ValueError, "stages: no submodule 'head'"),
    ({"stages": [["features"]]}, braid.ExportError, "model: output 0 differs in evaluation"),
    ({"stages": [["classifier", "features"]]}, braid.ExportError,
     "does not match the whole model: running the stages"),
])
def test_invalid_options_are_rejected(tmp_path, options, error, reason):
    module, inputs = export_models.make("mlp")
    with pytest.raises(error, match=reason):
        braid.export(module, inputs, tmp_path / "net", **options)
    assert list(tmp_path.iterdir()) == []


def test_function_instead_of_a_module_is_rejected(tmp_path):
    with pytest.raises(TypeError, match="module: a function \\(expected a torch.nn.Module"):
        braid.export(lambda x: x, (torch.zeros(3, 4),), tmp_path / "net")


@pytest.mark.parametrize("version", ["1.13.1", "2.10.1+cu128"])
def test_old_torch_is_rejected(tmp_path, monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    said = f"torch: {version} is too old (braid.export works with torch 2.11 to 2.15)"
    with pytest.raises(braid.ExportError, match=re.escape(said)):
        braid.export(nn.Linear(4, 2), (torch.zeros(3, 4),), tmp_path / "net")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", ["2.16.0a0+git12ab", "2.100.1", "3.0.0"])
def test_new_torch_gives_a_warning(tmp_path, monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    said = f"torch {version} is newer than the versions that braid.export is tested with"
    with pytest.warns(UserWarning, match=re.escape(said)) as warned:
        result = braid.export(nn.Linear(4, 2), (torch.randn(3, 4),), tmp_path / "net", "pair",
                              precisions=())
    assert warned[0].filename == __file__
    assert result.notes[-1].startswith(said)


@pytest.mark.parametrize("format", ["pair", "torchscript"])
def test_supported_torch_gives_no_warning(tmp_path, recwarn, format):
    result = braid.export(nn.Linear(4, 2), (torch.randn(3, 4),), tmp_path / "net", format,
                          precisions=())
    assert result.notes == () and not list(recwarn)
