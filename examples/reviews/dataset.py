#!/usr/bin/env python3
"""Writes generated film reviews as Parquet, and a tokenizer that is trained on them.

usage: dataset.py OUTPUT

Writes to OUTPUT: train.parquet and test.parquet with the columns id, text and label (1: good), and
tokenizer.json, a WordPiece tokenizer like BERT's.
"""

import pathlib
import random
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

ROWS = {"train": 4000, "test": 1000}
PARTS = ["The film", "The story", "The cast", "The music", "The ending", "Every scene", "The plot"]
GOOD = ["good", "great", "moving", "clever", "funny", "wonderful", "brilliant"]
BAD = ["bad", "boring", "dull", "silly", "awful", "tiresome", "predictable"]
DEGREES = ["", "", "really ", "rather ", "quite ", "surprisingly "]
REMARKS = [
    "I saw it on a rainy evening with two friends.",
    "It takes two hours and ten minutes.",
    "My neighbour recommended it.",
    "It's from 1987!",
    "We sat in the third row…",
]


def opinion(rng, good):
    """Returns a sentence. A negated one has a word of the other opinion: "was not boring"."""
    negated = rng.random() < 0.4
    word = rng.choice(GOOD if good != negated else BAD)
    verb = rng.choice(["was not ", "wasn't "] if negated else ["was ", "is "])
    return f"{rng.choice(PARTS)} {verb}{rng.choice(DEGREES)}{word}."


def review(rng):
    """Returns a text and its label, the opinion of most of its sentences."""
    opinions = [rng.random() < 0.5 for _ in range(rng.choice([1, 1, 3]))]
    sentences = [opinion(rng, good) for good in opinions]
    sentences += rng.sample(REMARKS, rng.randrange(3))
    rng.shuffle(sentences)
    return " ".join(sentences), int(2 * sum(opinions) > len(opinions))


def train_tokenizer(texts):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    output = pathlib.Path(sys.argv[1])
    rng = random.Random(0)
    for part, rows in ROWS.items():
        texts, labels = zip(*(review(rng) for _ in range(rows)), strict=True)
        table = pa.table({"id": range(rows), "text": texts, "label": labels})
        pq.write_table(table, output / f"{part}.parquet")
        print(f"{part}: {rows} reviews, for example: {texts[0]}")
        if part == "train":
            train_tokenizer(texts).save(str(output / "tokenizer.json"))


if __name__ == "__main__":
    main()
