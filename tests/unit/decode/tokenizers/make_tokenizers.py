#!/usr/bin/env python3
"""Writes the tokenizers of this folder and expected.json, with the token IDs of Python's `tokenizers`.

Needs `tokenizers` and `sentencepiece`, which makes the table of the Unigram tokenizer's normalizer.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind: it's 3.14 o'clock!",
    "A good film with a great cast. A bad film with a poor cast. Not good, not bad.",
    "Äpfel und Öl kosten 12,50 €; das Mädchen heißt Jürgen-Grüße.",
    "L'élève a mangé une crème brûlée à l'hôtel.",
    "Привет, мир! Как дела?",
    "日本語のテキストを処理する。中文文本也可以。한국어 텍스트도 됩니다.",
    "مرحبا بالعالم، كيف حالك؟",
    "नमस्ते दुनिया, आप कैसे हैं?",
    "Emoji: 😀 👍🏽 👨‍👩‍👧 🇩🇪 and symbols ∑ ∞ ≠ ½.",
    "def f(x):\n    return x + 1\n\n\n\tprint(f(2))\r\n",
]

TEXTS = [
    "",
    " ",
    "\n",
    "the dog",
    " the  dog   ",
    "Don't! It's the fox's.",
    "DON'T SHOUT 1234567 times",
    "unknown-words: xylophone, zyzzyva",
    "Äpfel, Ä\u0308pfel and A\u0308pfel; ﬁne ﬂow ＡＢＣ１２３ Ⅷ",
    "Привет, девочка ёлка",
    "日本語と中文と한국어 mixed with English",
    "مرحبا يا صديقي",
    "नमस्ते क्षत्रिय",
    "😀👍🏽👨‍👩‍👧🇩🇪 ok",
    "a\u200bb\u00a0c\u3000d\ufeffe",
    "tab\there\r\nnew line\u2028separator\u0000zero\u0007bell",
    "[CLS] in the text [SEP][PAD] <pad></s> <|endoftext|> [MASK]",
    "<|endoftext|>the<|endoftext|> fox",
    "e\u0301\u0301\u0301 combining\u0327\u0302",
    "\U0010ffff\ue000\ufffd rare",
    "x" * 150,
    "the quick brown fox " * 40,
    " " * 300 + "end",
    "\n \n  \n" * 40,
    "1234567890" * 12,
    "日本語" * 60,
]

# Table of the Unigram tokenizer's normalizer: full-width ASCII, ligatures, spaces, one accent.
CHARACTER_MAP = {
    **{chr(0xFF01 + i): chr(0x21 + i) for i in range(94)},
    "ﬁ": "fi",
    "ﬂ": "fl",
    "Ⅷ": "VIII",
    "\u3000": " ",
    "\u00a0": " ",
    "\ufeff": "",
    "A\u0308": "Ä",
}

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_bpe(tokenizer: Tokenizer) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def gpt2() -> Tokenizer:
    """BPE on bytes, as GPT-2's: no special tokens are added, no padding token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return train_bpe(tokenizer)


def llama3() -> Tokenizer:
    """BPE on bytes after a regular expression, with a special token before the text, as Llama 3's."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    train_bpe(tokenizer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    return tokenizer


def bert() -> Tokenizer:
    """WordPiece, as BERT's: [CLS] and [SEP] are added."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=special, show_progress=False, limit_alphabet=250
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def t5() -> Tokenizer:
    """Unigram with the table of a SentencePiece model, as T5's: </s> is added."""
    rules = HERE / "rules.tsv"
    points = lambda text: " ".join(f"{ord(character):x}" for character in text)  # noqa: E731
    rules.write_text("".join(f"{points(a)}\t{points(b)}\n" for a, b in CHARACTER_MAP.items()))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        vocab_size=300,
        hard_vocab_limit=False,
        normalization_rule_tsv=str(rules),
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    rules.unlink()
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    vocabulary = [(piece.piece, piece.score) for piece in proto.pieces]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


def expected(name: str, tokenizer: Tokenizer) -> list[dict[str, object]]:
    cases = []
    for special_tokens in (True, False):
        for max_length in (0, 2, 7, 64):
            if max_length:
                tokenizer.enable_truncation(max_length)
            encodings = tokenizer.encode_batch(TEXTS, add_special_tokens=special_tokens)
            tokenizer.no_truncation()
            cases.append(
                {
                    "tokenizer": name,
                    "special_tokens": special_tokens,
                    "truncate_to": max_length,
                    "ids": [encoding.ids for encoding in encodings],
                }
            )
    return cases


def main() -> None:
    cases = []
    for make in (gpt2, llama3, bert, t5):
        name = f"{make.__name__}.json"
        tokenizer = make()
        tokenizer.save(str(HERE / name), pretty=False)
        cases += expected(name, tokenizer)
    content = {"texts": TEXTS, "cases": cases}
    (HERE / "expected.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
