"""Models written with plain PyTorch, as in its tutorials and examples."""

from __future__ import annotations

import math

import torch
from e2e.support.public_models.entry import ADAMW, CLASSES, Data, Entry, image_classes
from e2e.support.reference import Batch
from torch import Tensor, nn
from torch.nn import functional

TUTORIAL = "PyTorch tutorial"
EXAMPLE = "pytorch/examples"
PAPER = "plain PyTorch"
WORDS = 50
LENGTHS = ({"seq": 9}, {"seq": 5}, {"seq": 16})
SEQ = ("seq", 2, 32)


def next_words(data: Data, seq: int) -> Batch:
    """Draws sequences that count upwards from a random word."""
    words = (data.indices(WORDS, 1) + data.indices(5, 1) * torch.arange(seq + 1)) % WORDS
    return {"words": words[:, :-1]}, {"target": words[:, 1:]}


class DigitNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(16 * 5 * 5, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = self.dropout1(functional.max_pool2d(x, 2)).flatten(1)
        x = self.dropout2(functional.relu(self.fc1(x)))
        return functional.log_softmax(self.fc2(x), dim=1)


class WordLanguageModel(nn.Module):
    """layer: nn.LSTM or nn.GRU."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.encoder = nn.Embedding(WORDS, 16)
        self.rnn = layer(16, 24, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(24, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        output, _ = self.rnn(self.encoder(words))
        return self.decoder(output).transpose(1, 2)


class NameClassifier(nn.Module):
    """Classifies names by their letters with a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(WORDS, 24, batch_first=True)
        self.output = nn.Linear(24, CLASSES)

    def forward(self, letters: Tensor) -> Tensor:
        one_hot = functional.one_hot(letters, WORDS).to(self.output.weight.dtype)
        _, hidden = self.rnn(one_hot)
        return functional.log_softmax(self.output(hidden[0]), dim=1)


def _names(data: Data, seq: int) -> Batch:
    return {"letters": data.indices(WORDS, seq)}, {"target": data.indices(CLASSES)}


class TransformerLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        positions = torch.arange(32)[:, None]
        frequencies = torch.exp(torch.arange(0, 16, 2) * (-math.log(10000.0) / 16))
        table = torch.stack([(positions * frequencies).sin(), (positions * frequencies).cos()], -1)
        self.register_buffer("positions", table.flatten(1))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.decoder = nn.Linear(16, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        seq = words.shape[1]
        x = self.words(words) * math.sqrt(16) + self.positions[:seq]
        mask = torch.ones(seq, seq, dtype=torch.bool).triu(1)
        return self.decoder(self.encoder(x, mask=mask, is_causal=True)).transpose(1, 2)


class Translation(nn.Module):
    """Sequence to sequence with attention; the decoder is a loop over six target words."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.goal = nn.Embedding(WORDS, 16), nn.Embedding(WORDS, 16)
        self.encoder = nn.GRU(16, 16, batch_first=True)
        self.query, self.key, self.score = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        self.cell = nn.GRUCell(32, 16)
        self.output = nn.Linear(16, WORDS)

    def forward(self, words: Tensor, previous: Tensor) -> Tensor:
        states, hidden = self.encoder(self.source(words))
        hidden, logits = hidden[0], []
        for step in range(6):
            scores = self.score(torch.tanh(self.query(hidden)[:, None] + self.key(states)))
            context = (scores.softmax(1) * states).sum(1)
            goal = self.goal(previous[:, step])
            hidden = self.cell(torch.cat([goal, context], 1), hidden)
            logits.append(self.output(hidden))
        return torch.stack(logits, 2)


def _translations(data: Data, seq: int) -> Batch:
    words = data.indices(WORDS, seq)
    goal = (words[:, :1] + torch.arange(7)) % WORDS
    return {"words": words, "previous": goal[:, :-1]}, {"target": goal[:, 1:]}


def _double_conv(inputs: int, outputs: int) -> nn.Sequential:
    layers = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = _double_conv(3, 4), _double_conv(4, 8)
        self.bottom = _double_conv(8, 16)
        self.up2, self.up1 = nn.ConvTranspose2d(16, 8, 2, 2), nn.ConvTranspose2d(8, 4, 2, 2)
        self.join2, self.join1 = _double_conv(16, 8), _double_conv(8, 4)
        self.output = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(functional.max_pool2d(first, 2))
        x = self.up2(self.bottom(functional.max_pool2d(second, 2)))
        x = self.up1(self.join2(torch.cat([second, x], 1)))
        return self.output(self.join1(torch.cat([first, x], 1)))


def pixel_classes(data: Data, height: int, width: int) -> Batch:
    x = data.normal(3, height, width)
    return {"x": x}, {"target": (x[:, 0] > 0).long()}


def _discriminator() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(4, 8, 4, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(8, 1, 4, bias=False),
        nn.Flatten(),
    )


class Generator(nn.Module):
    """The generator, followed by a frozen discriminator. Returns its logits and the images."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(6, 8, 4, 1, 0, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(True),
            nn.ConvTranspose2d(8, 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(True),
            nn.ConvTranspose2d(4, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )
        self.discriminator = _discriminator().requires_grad_(False)

    def forward(self, noise: Tensor) -> dict[str, Tensor]:
        images = self.generator(noise)
        return {"logits": self.discriminator(images), "images": images}


class VAE(nn.Module):
    """Returns the loss of each row. The noise is an input, so that results can be compared."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 12), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(12, 3), nn.Linear(12, 3)
        self.decoder = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 16))

    def forward(self, x: Tensor, noise: Tensor) -> dict[str, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        logits = self.decoder(mean + noise * (0.5 * log_variance).exp())
        error = functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1)
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)
        return {"loss": error + divergence, "reconstruction": logits.sigmoid()}


class GraphNet(nn.Module):
    """Classifies graphs of eight nodes and any number of edges by two rounds of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 12), nn.Linear(12, 12)
        self.output = nn.Linear(12, CLASSES)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            nodes = layer(nodes)
            index = source[..., None].expand(-1, -1, nodes.shape[2])
            messages = nodes.gather(1, index)
            into = target[..., None].expand(-1, -1, nodes.shape[2])
            nodes = functional.relu(nodes.scatter_add(1, into, messages))
        return self.output(nodes.mean(1))


def _graphs(data: Data, edges: int) -> Batch:
    labels = data.indices(CLASSES)
    nodes = data.normal(8, 4)
    nodes[:, :, 0] += labels[:, None]
    inputs = {
        "nodes": nodes,
        "source": data.indices(8, edges),
        "target": data.indices(8, edges),
    }
    return inputs, {"target": labels}


class EdgeListNet(nn.Module):
    """One graph per request, as in PyTorch Geometric: nodes [N, 4] and edges [2, E]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = self.layer(nodes)
        return x.index_add(0, edges[1], x[edges[0]])


def _edge_lists(data: Data) -> Batch:
    nodes = data.normal(4)
    edges = torch.randint(data.rows, (2, 2 * data.rows), generator=data.generator)
    return {"nodes": nodes, "edges": edges}, {"target": data.indices(CLASSES)}


class EdgeConv(nn.Module):
    """Dynamic graph of the nearest points, as in DGCNN."""

    def __init__(self) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16))
        self.output = nn.Linear(16, CLASSES)

    def forward(self, points: Tensor) -> Tensor:
        distances = (points[:, :, None] - points[:, None]).pow(2).sum(3)
        nearest = distances.topk(4, dim=2, largest=False).indices
        rows = torch.arange(points.shape[0])[:, None, None]
        neighbours = points[rows, nearest]
        own = points[:, :, None].expand_as(neighbours)
        return self.output(self.edge(torch.cat([own, neighbours - own], 3)).amax((1, 2)))


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.output = nn.Linear(16, CLASSES)

    def forward(self, points: Tensor) -> Tensor:
        return self.output(self.features(points.transpose(1, 2)).amax(2))


def _points(data: Data, points: int = 12) -> Batch:
    labels = data.indices(CLASSES)
    return {"points": data.normal(points, 3) * (1 + labels[:, None, None])}, {"target": labels}


class ClickModel(nn.Module):
    """Embeddings of categories, dense features and their products, as in DLRM."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8 + 6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        x = self.bottom(dense)
        vectors = [x, *(table(categories[:, i]) for i, table in enumerate(self.tables))]
        stacked = torch.stack(vectors, 1)
        products = stacked @ stacked.transpose(1, 2)
        above = torch.triu_indices(4, 4, 1)
        return self.top(torch.cat([x, products[:, above[0], above[1]]], 1))


def _clicks(data: Data) -> Batch:
    categories = data.indices(20, 3)
    clicked = (categories[:, :1] > 9).double()
    return {"dense": data.normal(5), "categories": categories}, {"target": clicked}


class BagClassifier(nn.Module):
    """Texts in one list of words, with the place where each begins."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, 16)
        self.output = nn.Linear(16, CLASSES)

    def forward(self, words: Tensor, offsets: Tensor) -> Tensor:
        return self.output(self.words(words, offsets))


def _bags(data: Data) -> Batch:
    words = torch.randint(WORDS, (4 * data.rows,), generator=data.generator)
    offsets = 4 * torch.arange(data.rows)
    return {"words": words, "offsets": offsets}, {"target": words[offsets] % CLASSES}


class PaddedBagClassifier(BagClassifier):
    """Classifies the texts of _bags(), one per row."""

    def forward(self, words: Tensor) -> Tensor:
        return self.output(self.words(words))


def _texts(data: Data, seq: int) -> Batch:
    words = data.indices(WORDS, seq)
    return {"words": words}, {"target": words[:, 0] % CLASSES}


class QNetwork(nn.Module):
    """Returns the value of the action that was taken, and all values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, state: Tensor, action: Tensor) -> dict[str, Tensor]:
        values = self.layers(state)
        return {"value": values.gather(1, action), "values": values}


def _transitions(data: Data) -> Batch:
    state = data.normal(4)
    return {"state": state, "action": data.indices(2, 1)}, {"target": state[:, :1].sin()}


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> dict[str, Tensor]:
        inputs = {"anchor": anchor, "positive": positive, "negative": negative}
        return {name: self.embedding(x) for name, x in inputs.items()}


def _triplets(data: Data) -> Batch:
    return {name: data.normal(8) for name in ("anchor", "positive", "negative")}, {}


class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 5, padding=2), nn.Tanh(), nn.Conv2d(8, 4, 3, padding=1)
        )
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.shuffle(self.layers(x))


def _images_in_two_sizes(data: Data, height: int, width: int) -> Batch:
    large = data.normal(1, 2 * height, 2 * width)
    return {"x": functional.avg_pool2d(large, 2)}, {"target": large}


class StyleTransfer(nn.Module):
    """A reduced network of fast neural style: instance norm, reflection padding, upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(3, 8, 3, stride=2),
            nn.InstanceNorm2d(8, affine=True),
            nn.ReLU(),
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.ReflectionPad2d(1),
            nn.Conv2d(8, 3, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def _styled(data: Data) -> Batch:
    x = data.normal(3, 12, 12)
    return {"x": x}, {"target": x.flip(1).tanh()}


class SpatialTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.localization = nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.ReLU())
        self.theta = nn.Linear(16, 6)
        nn.init.zeros_(self.theta.weight)
        self.theta.bias.data.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))
        self.output = nn.Linear(144, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.theta(self.localization(x)).view(-1, 2, 3)
        grid = functional.affine_grid(theta, x.size(), align_corners=False)
        return self.output(functional.grid_sample(x, grid, align_corners=False).flatten(1))


class NeuralODE(nn.Module):
    """Integrates a learned vector field by four Runge-Kutta steps."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = 0.25
        for _ in range(4):
            k1 = self.field(x)
            k2 = self.field(x + h / 2 * k1)
            k3 = self.field(x + h / 2 * k2)
            k4 = self.field(x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return x


def _trajectories(data: Data) -> Batch:
    x = data.normal(3)
    return {"x": x}, {"target": x.roll(1, 1)}


class EarlyExit(nn.Module):
    """Skips the second layer if the first one is certain: control flow by values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        if hidden.mean() > 100:
            return hidden[:, :3]
        return self.second(hidden)


def _features(data: Data) -> Batch:
    x = data.normal(8)
    return {"x": x}, {"target": x[:, :CLASSES].argmax(1)}


class MixtureOfExperts(nn.Module):
    """Each row is weighted over its two best experts; all experts compute all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, CLASSES) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        best, experts = self.gate(x).topk(2, dim=1)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        chosen = outputs.gather(1, experts[..., None].expand(-1, -1, CLASSES))
        return (best.softmax(1)[..., None] * chosen).sum(1)


class MaskedMean(nn.Module):
    """Selects the words that are not padding by a Boolean index, whose size depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.output = nn.Linear(16, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        mask = words > 0
        rows = mask.nonzero()[:, 0]
        vectors = self.words(words[mask])
        sums = torch.zeros(words.shape[0], 16, dtype=vectors.dtype)
        sums = sums.index_add(0, rows, vectors)
        return self.output(sums / mask.sum(1, keepdim=True).clamp(min=1))


ENTRIES = [
    Entry(
        "quickstart",
        TUTORIAL,
        "image classification",
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(),
            nn.Linear(32, CLASSES),
        ),
        image_classes(1, 8, "input"),
    ),
    Entry("mnist", EXAMPLE, "image classification", DigitNet, image_classes(1, 14), loss="nll"),
    Entry(
        "spatial_transformer",
        TUTORIAL,
        "image classification",
        SpatialTransformer,
        image_classes(1, 12),
    ),
    Entry(
        "unet",
        PAPER,
        "segmentation",
        UNet,
        pixel_classes,
        ({"height": 16, "width": 16}, {"height": 8, "width": 20}),
        dynamic={
            "x": {
                2: 4 * torch.export.Dim("height", min=2, max=16),
                3: 4 * torch.export.Dim("width", min=2, max=16),
            }
        },
    ),
    Entry(
        "super_resolution",
        EXAMPLE,
        "image to image",
        SuperResolution,
        _images_in_two_sizes,
        ({"height": 8, "width": 10}, {"height": 6, "width": 5}),
        loss="mse",
        dynamic={"x": {2: ("height", 4, 32), 3: ("width", 4, 32)}},
    ),
    Entry("fast_neural_style", EXAMPLE, "image to image", StyleTransfer, _styled, loss="mse"),
    Entry(
        "lstm_language_model",
        EXAMPLE,
        "text generation",
        lambda: WordLanguageModel(nn.LSTM),
        next_words,
        LENGTHS,
        dynamic={"words": {1: SEQ}},
    ),
    Entry(
        "gru_language_model",
        EXAMPLE,
        "text generation",
        lambda: WordLanguageModel(nn.GRU),
        next_words,
        LENGTHS,
        dynamic={"words": {1: SEQ}},
    ),
    Entry(
        "transformer_language_model",
        TUTORIAL,
        "text generation",
        TransformerLanguageModel,
        next_words,
        LENGTHS,
        optimizer=ADAMW,
        dynamic={"words": {1: SEQ}},
    ),
    Entry(
        "char_rnn",
        TUTORIAL,
        "text classification",
        NameClassifier,
        _names,
        LENGTHS,
        loss="nll",
        dynamic={"letters": {1: SEQ}},
    ),
    Entry(
        "embedding_bag",
        TUTORIAL,
        "text classification",
        PaddedBagClassifier,
        _texts,
        LENGTHS,
        dynamic={"words": {1: SEQ}},
    ),
    Entry(
        "embedding_bag_with_offsets",
        TUTORIAL,
        "text classification",
        BagClassifier,
        _bags,
        alternative="one padded text per row, as in `embedding_bag`",
    ),
    Entry("masked_mean", PAPER, "text classification", MaskedMean, _texts, ({"seq": 9},)),
    Entry(
        "seq2seq_attention",
        TUTORIAL,
        "translation",
        Translation,
        _translations,
        LENGTHS,
        dynamic={"words": {1: SEQ}},
    ),
    Entry(
        "dcgan_discriminator",
        TUTORIAL,
        "GAN",
        _discriminator,
        lambda data: ({"input": data.normal(1, 16, 16)}, {"target": data.indices(2, 1).double()}),
        loss="bce_with_logits",
    ),
    Entry(
        "dcgan_generator",
        TUTORIAL,
        "GAN",
        Generator,
        lambda data: ({"noise": data.normal(6, 1, 1)}, {"target": torch.ones(data.rows, 1)}),
        loss="bce_with_logits",
    ),
    Entry(
        "vae",
        EXAMPLE,
        "variational autoencoder",
        VAE,
        lambda data: ({"x": data.normal(16).sigmoid(), "noise": data.normal(3)}, {}),
        loss={"output": "loss"},
        loss_mode="model",
    ),
    Entry(
        "gcn",
        PAPER,
        "graphs",
        GraphNet,
        _graphs,
        ({"edges": 12}, {"edges": 20}),
        dynamic={"source": {1: ("edges", 1, 64)}, "target": {1: "edges"}},
    ),
    Entry(
        "gcn_edge_list",
        "PyTorch Geometric's layout",
        "graphs",
        EdgeListNet,
        _edge_lists,
        alternative="one padded graph per row, as in `gcn`",
    ),
    Entry("edge_conv", PAPER, "point clouds", EdgeConv, _points),
    Entry(
        "pointnet",
        PAPER,
        "point clouds",
        PointNet,
        _points,
        ({"points": 12}, {"points": 5}),
        dynamic={"points": {1: ("points", 2, 64)}},
    ),
    Entry("dlrm", PAPER, "recommendation", ClickModel, _clicks, loss="bce_with_logits"),
    Entry(
        "dqn", TUTORIAL, "reinforcement learning", QNetwork, _transitions, loss="smooth_l1"
    ),
    Entry(
        "siamese",
        EXAMPLE,
        "embeddings",
        Siamese,
        _triplets,
        loss={"name": "triplet_margin", "outputs": ["anchor", "positive", "negative"]},
    ),
    Entry("neural_ode", PAPER, "dynamics", NeuralODE, _trajectories, loss="mse"),
    Entry("mixture_of_experts", PAPER, "mixture of experts", MixtureOfExperts, _features),
    Entry("early_exit", PAPER, "control flow by values", EarlyExit, _features),
]
