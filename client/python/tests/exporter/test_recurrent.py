"""Recurrent layers whose final states are outputs."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import nn  # noqa: E402


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
