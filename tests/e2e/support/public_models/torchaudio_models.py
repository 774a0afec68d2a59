"""Models of torchaudio, with small configurations."""

from __future__ import annotations

import torch
from e2e.support.public_models.entry import CLASSES, Data, Entry
from e2e.support.reference import Batch
from torch import Tensor, nn

SOURCE = "torchaudio"
LETTERS = 6


def _models() -> object:
    from torchaudio import models

    return models


class Wav2Letter(nn.Module):
    """Returns log-probabilities [rows, time steps, letters], as ctc takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _models().Wav2Letter(LETTERS, "mfcc", 8)
        # Its layers have 250 and 2000 channels.
        self.model.acoustic_model = nn.Sequential(
            nn.Conv1d(8, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv1d(16, LETTERS, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).transpose(1, 2)


class DeepSpeech(nn.Module):
    """Takes [rows, time steps, features]."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _models().DeepSpeech(8, n_hidden=16, n_class=LETTERS, dropout=0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x[:, None])


def _letters(data: Data) -> dict[str, Tensor]:
    return {
        "target": data.indices(LETTERS, 3, start=1),
        "target_lengths": data.indices(4, start=1),
    }


def _frames(data: Data, frames: int) -> Batch:
    return {"x": data.normal(frames, 8)}, _letters(data)


def _channels(data: Data, frames: int) -> Batch:
    return {"x": data.normal(8, frames)}, _letters(data)


class Conformer(nn.Module):
    """Takes a mask of padded frames. torchaudio's forward makes one from the lengths, as long as
    the longest row, which differs between the replicas of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _models().Conformer(8, 2, 16, 1, 3, dropout=0.0)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        for layer in self.model.conformer_layers:
            x = layer(x, padding)
        return x.transpose(0, 1)


def _utterances(data: Data, frames: int) -> Batch:
    lengths = data.indices(frames + 1, 1, start=4)
    x = data.normal(frames, 8)
    inputs = {"x": x, "padding": torch.arange(frames) >= lengths}
    return inputs, {"target": x.cumsum(1).tanh()}


class Wav2Vec2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = _models().wav2vec2_model(
            extractor_mode="group_norm",
            extractor_conv_layer_config=[(16, 10, 5), (16, 4, 4)],
            extractor_conv_bias=False,
            encoder_embed_dim=16,
            encoder_projection_dropout=0.0,
            encoder_pos_conv_kernel=4,
            encoder_pos_conv_groups=2,
            encoder_num_layers=1,
            encoder_num_heads=2,
            encoder_attention_dropout=0.0,
            encoder_ff_interm_features=32,
            encoder_ff_interm_dropout=0.0,
            encoder_dropout=0.0,
            encoder_layer_norm_first=False,
            encoder_layer_drop=0.0,
            aux_num_out=LETTERS,
        )

    def forward(self, audio: Tensor) -> Tensor:
        logits, _ = self.model(audio)
        return logits.log_softmax(-1)


def _separation() -> nn.Module:
    return _models().ConvTasNet(
        num_sources=2,
        enc_kernel_size=8,
        enc_num_feats=8,
        msk_num_feats=4,
        msk_num_hidden_feats=8,
        msk_num_layers=2,
        msk_num_stacks=1,
    )


def _mixtures(data: Data) -> Batch:
    sources = data.normal(2, 64)
    return {"input": sources.sum(1, keepdim=True)}, {"target": sources}


def _keywords() -> nn.Module:
    """The M5 network of the tutorial on speech commands."""
    return nn.Sequential(
        nn.Conv1d(1, 8, 20, stride=4),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.MaxPool1d(4),
        nn.Conv1d(8, 16, 3),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
        nn.LogSoftmax(-1),
    )


def _commands(data: Data) -> Batch:
    labels = data.indices(CLASSES)
    waves = (torch.arange(256) * (1 + labels[:, None]) / 10).sin()[:, None]
    return {"input": waves + 0.1 * data.normal(1, 256)}, {"target": labels}


ENTRIES = [
    Entry("m5", "torchaudio's tutorial", "speech commands", _keywords, _commands, loss="nll"),
    Entry(
        "deepspeech",
        SOURCE,
        "speech recognition",
        DeepSpeech,
        _frames,
        ({"frames": 12}, {"frames": 9}),
        loss={"name": "ctc"},
        dynamic={"x": {1: ("frames", 6, 64)}},
    ),
    Entry(
        "wav2letter",
        SOURCE,
        "speech recognition",
        Wav2Letter,
        _channels,
        ({"frames": 16}, {"frames": 22}),
        loss={"name": "ctc"},
        dynamic={"x": {2: ("frames", 12, 64)}},
    ),
    Entry(
        "wav2vec2_torchaudio",
        SOURCE,
        "speech recognition",
        Wav2Vec2,
        lambda data: ({"audio": data.normal(300)}, _letters(data)),
        loss={"name": "ctc"},
        alternative="layers without LayerDrop, as in `conformer` and `deepspeech`",
    ),
    Entry(
        "conformer",
        SOURCE,
        "speech features",
        Conformer,
        _utterances,
        ({"frames": 12}, {"frames": 9}),
        loss="mse",
        dynamic={"x": {1: ("frames", 4, 64)}, "padding": {1: "frames"}},
    ),
    Entry("conv_tasnet", SOURCE, "speech separation", _separation, _mixtures, loss="mse"),
]
