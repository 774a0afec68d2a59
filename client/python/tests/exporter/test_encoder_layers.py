"""Encoder layers are one fused operator in evaluation."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402

_LAYER = torch.ops.aten._transformer_encoder_layer_fwd.default


class Encoder(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
        self.layers = torch.nn.TransformerEncoder(layer, 1)

    def forward(self, x, padding=None):
        return self.layers(x, src_key_padding_mask=padding)


def count(pair, graph):
    return [node.target for node in pair.programs[graph].graph.nodes].count(_LAYER)


def export(path, module, inputs, precisions=()):
    return ExportedPair(braid.export(module, inputs, path, "pair", precisions=precisions).path)


@pytest.mark.parametrize(
    "options",
    [{}, {"activation": "gelu", "dtype": torch.float64}],
    ids=["plain", "float64 and gelu"],
)
def test_layer_is_one_operator_in_evaluation(tmp_path, options):
    x = torch.randn(5, 6, 8, dtype=options.get("dtype"))
    known = torch.overrides.has_torch_function
    # PyTorch has a shape rule for the operator since 2.13.
    has_rule = torch._C._dispatch_has_kernel_for_dispatch_key(_LAYER.name(), "Meta")
    pair = export(tmp_path / "m", Encoder(**options), (x,))
    assert count(pair, "eval") == 1
    assert count(pair, "fw") == 0
    assert torch.overrides.has_torch_function is known
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch._C._dispatch_has_kernel_for_dispatch_key(_LAYER.name(), "Meta") == has_rule


def test_padding_is_not_dropped(tmp_path):
    """Eager mode drops padding according to the values of the mask."""
    padding = torch.zeros(5, 6, dtype=torch.bool)
    padding[:, 4:] = True
    inputs = {"x": torch.randn(5, 6, 8), "padding": padding}
    pair = export(tmp_path / "m", Encoder(), inputs)
    assert count(pair, "eval") == 1


def test_mixed_precision_uses_separate_operators(tmp_path):
    module = Encoder()
    pair = export(tmp_path / "m", module, (torch.randn(5, 6, 8),), ("bfloat16",))
    assert count(pair, "eval") == 1
    assert count(pair, "eval_bfloat16") == 0


def test_layer_without_a_fast_path_uses_separate_operators(tmp_path):
    module = Encoder(activation=torch.nn.functional.silu)
    assert count(export(tmp_path / "m", module, (torch.randn(5, 6, 8),)), "eval") == 0


def test_compiled_layer_accepts_one_row(tmp_path):
    export = braid.export(Encoder(), (torch.randn(5, 6, 8),), tmp_path / "m", "aot")
    compiled = torch._inductor.aoti_load_package(str(export.path / "model.pt2"))
    assert compiled(x=torch.randn(1, 6, 8))[0].shape == (1, 6, 8)
