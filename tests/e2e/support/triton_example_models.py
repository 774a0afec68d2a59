"""Small modules with random weights and the inputs and outputs of Triton's examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS = 1000


class Residual(nn.Module):
    """[n, 3, h, w] → [n, classes], with the blocks of an image classifier."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, stride=4)
        self.block = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)
        )
        self.classifier = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        return self.classifier((x + self.block(x)).mean([2, 3]))


class Maps(nn.Module):
    """Scores that keep the image's dimensions: [1, 3, h, w] → [1, 10, 1, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.features = Residual(6)
        self.scores = nn.Conv2d(6, 10, 1)

    def forward(self, data_0: Tensor) -> Tensor:
        return self.scores(self.features(data_0)[:, :, None, None])


class ChannelsLast(nn.Module):
    """[1, h, w, 3] → probabilities, [1, 11]."""

    def __init__(self) -> None:
        super().__init__()
        self.features = Residual(11)

    def forward(self, image: Tensor) -> Tensor:
        return self.features(image.permute(0, 3, 1, 2)).softmax(1)


class SumAndDifference(nn.Module):
    def forward(self, INPUT0: Tensor, INPUT1: Tensor) -> tuple[Tensor, Tensor]:
        return INPUT0 + INPUT1, INPUT0 - INPUT1


class Scores(nn.Module):
    """Like SumAndDifference, with weights, so that versions differ."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 10)

    def forward(self, INPUT0: Tensor, INPUT1: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(INPUT0 + INPUT1), self.linear(INPUT0 - INPUT1)


class Doubles(nn.Module):
    """Doubles two inputs of any shape."""

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return first * 2, second * 2


class Keyed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        scores = self.linear(batch["A"]) * batch["B"]
        return {"scores": scores, "best": scores.argmax(1, keepdim=True)}


class RowByRow(nn.Module):
    """[n] → [n]: the batch dimension is the only one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Encoder(nn.Module):
    """Outputs of a transformer: word states, [n, words, 16], and sentence states, [n, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.queries = nn.Linear(16, 48)
        self.pooler = nn.Linear(16, 16)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        words = self.words(input_ids)
        q, k, v = self.queries(words).split(16, dim=2)
        mask = attention_mask[:, None, :] > 0
        states = words + functional.scaled_dot_product_attention(q, k, v, mask)
        return states, self.pooler(states[:, 0]).tanh()


class Sentiment(nn.Module):
    """Encoder with transformers' dict of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.classifier = nn.Linear(16, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        _, pooled = self.encoder(input_ids, attention_mask)
        return {"logits": self.classifier(pooled), "pooler_output": pooled}


class Recognition(nn.Module):
    """Reads text in an image, [n, 1, 32, 100]: one of 37 characters at each of 26 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.Conv2d(1, 16, (32, 4), stride=(1, 4))
        self.signs = nn.Linear(25, 26)
        self.classifier = nn.Linear(16, 37)

    def forward(self, input: Tensor) -> Tensor:
        places = self.signs(self.columns(input).relu().squeeze(2))
        return self.classifier(places.transpose(1, 2))
