"""Recurrent layers: states, precisions, packed sequences and long ones."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402


class Net(nn.Module):
    def __init__(self, kind, use, initial=False, **options) -> None:
        super().__init__()
        self.layer = kind(3, 4, **{"batch_first": True, **options})
        self.use = use
        self.initial = initial

    def forward(self, x):
        layer = self.layer
        start = None
        if self.initial:
            directions = layer.num_layers * (2 if layer.bidirectional else 1)
            batch = x.shape[0] if layer.batch_first else x.shape[1]
            zero = x.new_zeros(directions, batch, layer.proj_size or layer.hidden_size)
            cell = x.new_zeros(directions, batch, layer.hidden_size)
            start = (zero + 0.1, cell + 0.2) if isinstance(layer, nn.LSTM) else zero + 0.1
        output, states = layer(x, start)
        h, c = states if isinstance(layer, nn.LSTM) else (states, states)
        return self.use(output, h, c)


class TimeFirst(Net):
    def forward(self, x):
        return super().forward(x.transpose(0, 1))


def last(output, h, c):
    return h[-1]


def cell(output, h, c):
    return c[-1] + h[0]


def mean(output, h, c):
    return h.mean(0)


def both(output, h, c):
    return torch.cat([h[-2], c[-1]], 1)


def all_of_it(output, h, c):
    return output, h.transpose(0, 1), c.transpose(0, 1)


NETS = {
    "last state": lambda: Net(nn.LSTM, last),
    "cell": lambda: Net(nn.LSTM, cell),
    "mean of two layers": lambda: Net(nn.LSTM, mean, num_layers=2),
    "dropout": lambda: Net(nn.LSTM, last, num_layers=2, dropout=0.5),
    "two directions": lambda: Net(nn.LSTM, both, bidirectional=True),
    "without biases": lambda: Net(nn.LSTM, cell, bias=False),
    "projected": lambda: Net(nn.LSTM, last, proj_size=2, num_layers=2),
    "projected without biases": lambda: Net(nn.LSTM, mean, proj_size=2, bias=False),
    "from a state": lambda: Net(nn.LSTM, cell, initial=True),
    "from a projected state": lambda: Net(nn.LSTM, last, initial=True, proj_size=2),
    "all": lambda: Net(nn.LSTM, all_of_it, num_layers=2, bidirectional=True, initial=True),
    "time first": lambda: TimeFirst(nn.LSTM, cell, batch_first=False),
    "GRU": lambda: Net(nn.GRU, mean, num_layers=2),
    "GRU, both": lambda: TimeFirst(nn.GRU, both, bidirectional=True, batch_first=False),
    "RNN": lambda: Net(nn.RNN, last, num_layers=2, initial=True),
    "RNN, both": lambda: Net(nn.RNN, all_of_it, bidirectional=True, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", NETS)
def test_final_states_match_the_module(tmp_path, name):
    """Compares evaluation; the exporter compares training and gradients."""
    module = NETS[name]()
    result = braid.export(module, (torch.randn(3, 2, 3),), tmp_path / "net", "pair",
                          precisions=())
    pair = ExportedPair(result.path)
    for rows in (1, 4):
        x = torch.randn(rows, 2, 3)
        got = pair.run(pair.program("eval"), pair.state() | {("input", "x"): x})
        expected = module.eval()(x)
        for place, each in enumerate(expected if isinstance(expected, tuple) else [expected]):
            torch.testing.assert_close(got["output", f"output__{place}"], each.detach())


class Packed(nn.Module):
    """Packs rows of different lengths. total: argument of pad_packed_sequence, without a default."""

    def __init__(self, kind, total=True, after=lambda packed: packed, **options) -> None:
        super().__init__()
        self.layer = kind(3, 4, batch_first=True, **options)
        self.total = total
        self.after = after

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed, states = self.layer(packed)
        packed = self.after(packed)
        options = {"total_length": x.shape[1] + 1} if self.total else {}
        output, again = pad_packed_sequence(packed, True, padding_value=-2.0, **options)
        last = states[0] if isinstance(self.layer, nn.LSTM) else states
        return output, last.transpose(0, 1), again


def rows_of(count):
    lengths = torch.tensor([5, 1, 3, 2, 4])[torch.arange(count) % 5]
    return torch.randn(count, 5, 3), lengths


PACKED = {
    "LSTM": lambda: Packed(nn.LSTM, num_layers=2, bidirectional=True),
    "projected": lambda: Packed(nn.LSTM, proj_size=2),
    "GRU": lambda: Packed(nn.GRU, bidirectional=True, bias=False),
    "RNN": lambda: Packed(nn.RNN, num_layers=2, dropout=0.5),
    "RNN with ReLU": lambda: Packed(nn.RNN, nonlinearity="relu", bidirectional=True),
    "data": lambda: Packed(nn.GRU, after=lambda packed: packed._replace(data=packed.data.exp())),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences_match_the_module(tmp_path, name):
    module = PACKED[name]()
    result = braid.export(module, rows_of(3), tmp_path / "net", "pair", precisions=())
    pair = ExportedPair(result.path)
    for count in (1, 4, 7):
        x, lengths = rows_of(count)
        inputs = {("input", "x"): x, ("input", "lengths"): lengths}
        got = pair.run(pair.program("eval"), pair.state() | inputs)
        for place, each in enumerate(module.eval()(x, lengths)):
            torch.testing.assert_close(got["output", f"output__{place}"], each.detach())


def test_padding_to_the_longest_row_is_rejected(tmp_path):
    with pytest.raises(braid.ExportError, match=r"pad_packed_sequence\(\) without total_length"):
        braid.export(Packed(nn.GRU, total=False), rows_of(3), tmp_path / "net", "pair")


def test_batch_sizes_of_a_packed_sequence_are_rejected(tmp_path):
    def after(packed):
        return packed._replace(data=packed.data * packed.batch_sizes[1])

    with pytest.raises(braid.ExportError, match=r"batch_sizes\[1\] of a packed sequence"):
        braid.export(Packed(nn.GRU, after=after), rows_of(3), tmp_path / "net", "pair")


LAYERS = {
    "LSTM": lambda: nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True, dropout=0.5),
    "projected": lambda: nn.LSTM(3, 4, batch_first=True, proj_size=2),
    "GRU": lambda: nn.GRU(3, 4, 2, batch_first=True, bidirectional=True),
    "RNN": lambda: nn.RNN(3, 4, batch_first=True),
}


class First(nn.Module):
    """Returns a layer's output. after_linear: its input has the dtype of autocast."""

    def __init__(self, layer, after_linear) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3) if after_linear else nn.Identity()
        self.layer = layer

    def forward(self, x):
        return self.layer(self.linear(x))[0]


@pytest.mark.parametrize(
    "name, after_linear", [*((name, True) for name in LAYERS), ("LSTM", False)]
)
def test_bfloat16_has_the_dtypes_of_autocast(tmp_path, name, after_linear):
    """The exporter compares the values."""
    module = First(LAYERS[name](), after_linear)
    x = torch.randn(4, 5, 3)
    result = braid.export(module, (x,), tmp_path / "net", "pair", precisions=("bfloat16",))
    with torch.autocast("cpu", torch.bfloat16):
        wanted = module(x).dtype
    pair = ExportedPair(result.path)
    for program in ("eval", "forward"):
        got = pair.run(pair.program(program, precision="bfloat16"), pair.state() | {("input", "x"): x})
        assert got["output", "output__0"].dtype == wanted


def test_graphs_of_long_sequences_are_small(tmp_path):
    module = First(LAYERS["LSTM"](), False)
    sizes = []
    for steps in (2, 100):
        example = torch.randn(3, steps, 3)
        folder = tmp_path / f"{steps}"
        result = braid.export(module, (example,), folder, "pair", precisions=())
        programs = ExportedPair(result.path).programs.values()
        sizes.append([len(each.graph.nodes) for each in programs])
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("name", LAYERS)
def test_number_of_time_steps_may_vary(tmp_path, name):
    module = First(LAYERS[name](), False)
    result = braid.export(module, (torch.randn(3, 6, 3),), tmp_path / "net", "pair",
                          precisions=(), dynamic={"x": {1: "steps"}})
    pair = ExportedPair(result.path)
    for rows, steps in ((1, 1), (4, 9), (2, 50)):
        x = torch.randn(rows, steps, 3)
        got = pair.run(pair.program("eval"), pair.state() | {("input", "x"): x})
        torch.testing.assert_close(got["output", "output__0"], module.eval()(x).detach())


def test_packed_sequences_may_have_any_number_of_time_steps(tmp_path):
    module = PACKED["LSTM"]()
    x, lengths = rows_of(3)
    result = braid.export(module, (x, lengths), tmp_path / "net", "pair", precisions=(),
                          dynamic={"x": {1: ("steps", 5, None)}})
    pair = ExportedPair(result.path)
    x = torch.cat([x, torch.randn(3, 4, 3)], 1)
    lengths = torch.tensor([9, 2, 7])
    got = pair.run(pair.program("eval"), pair.state() | {("input", "x"): x, ("input", "lengths"): lengths})
    for place, each in enumerate(module.eval()(x, lengths)):
        torch.testing.assert_close(got["output", f"output__{place}"], each.detach())
