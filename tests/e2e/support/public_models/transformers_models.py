"""Models of transformers, with small configurations."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from e2e.support.public_models.entry import ADAMW, CLASSES, Data, Entry, image_classes
from e2e.support.reference import Batch
from torch import Tensor, nn
from torch.nn import functional

SOURCE = "transformers"
WORDS = 100
LENGTHS = ({"seq": 10}, {"seq": 7}, {"seq": 16})
SEQ = ("seq", 2, 32)


class NextToken(nn.Module):
    """A language model whose logits are [rows, words, seq], as cross_entropy takes them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids, use_cache=False).logits.transpose(1, 2)


class TokenClasses(nn.Module):
    """Classifies each word. Logits are [rows, classes, seq]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids, attention_mask).logits.transpose(1, 2)


class Summarizer(nn.Module):
    """A model with encoder and decoder, trained with the previous words as input."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        output = self.model(
            input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False
        )
        return output.logits.transpose(1, 2)


class Speech(nn.Module):
    """Log-probabilities of letters for each time step, as ctc takes them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, audio: Tensor) -> Tensor:
        return functional.log_softmax(self.model(audio).logits, dim=-1)


class Whisper(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_features: Tensor, decoder_input_ids: Tensor) -> Tensor:
        output = self.model(
            input_features, decoder_input_ids=decoder_input_ids, use_cache=False
        )
        return output.logits.transpose(1, 2)


class ImageClasses(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.model(pixel_values).logits


class Clip(nn.Module):
    """The embeddings of images and captions; their products would mix the rows of a batch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> dict[str, Tensor]:
        output = self.model(input_ids=input_ids, pixel_values=pixel_values)
        return {"text": output.text_embeds, "image": output.image_embeds}


class LoRALinear(nn.Module):
    """A frozen linear layer and the product of two small matrices."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / rank)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.a.t() @ self.b.t()


def with_lora(model: nn.Module, *names: str) -> nn.Module:
    """Freezes `model` and replaces its linear layers of these names."""
    model.requires_grad_(False)
    for module in [*model.modules()]:
        for name, layer in [*module.named_children()]:
            if name in names:
                setattr(module, name, LoRALinear(layer))
    return model


def _texts(data: Data, seq: int) -> Batch:
    """Draws padded texts whose class is that of the first word."""
    words = data.indices(WORDS, seq, start=1)
    lengths = data.indices(seq + 1, 1, start=2)
    mask = (torch.arange(seq) < lengths).long()
    return {"input_ids": words * mask, "attention_mask": mask}, {"target": words[:, 0] % CLASSES}


def _tagged_texts(data: Data, seq: int) -> Batch:
    inputs, _ = _texts(data, seq)
    words = inputs["input_ids"]
    return inputs, {"target": torch.where(words > 0, words % CLASSES, -100)}


def _next_words(data: Data, seq: int) -> Batch:
    """Draws sequences that count upwards from a random word."""
    words = (data.indices(WORDS, 1) + data.indices(5, 1) * torch.arange(seq + 1)) % WORDS
    return {"input_ids": words[:, :-1]}, {"target": words[:, 1:]}


def _labelled_words(data: Data, seq: int) -> Batch:
    inputs, targets = _next_words(data, seq)
    return {**inputs, "labels": inputs["input_ids"]}, {}


def _summaries(data: Data, seq: int) -> Batch:
    words = data.indices(WORDS, seq, start=3)
    goal = (words[:, :1] + torch.arange(7)) % WORDS
    return {"input_ids": words, "decoder_input_ids": goal[:, :-1]}, {"target": goal[:, 1:]}


def _speech(data: Data, samples: int) -> Batch:
    targets = {"target": data.indices(8, 3, start=1), "target_lengths": data.indices(4, start=1)}
    return {"audio": data.normal(samples)}, targets


def _transcripts(data: Data) -> Batch:
    goal = data.indices(WORDS, 6, start=3)
    inputs = {"input_features": data.normal(8, 40), "decoder_input_ids": goal[:, :-1]}
    return inputs, {"target": goal[:, 1:]}


def _captions(data: Data) -> Batch:
    inputs = {
        "input_ids": data.indices(WORDS - 1, 6, start=3),
        "pixel_values": data.normal(3, 16, 16),
    }
    return inputs, {"target": torch.ones(data.rows, dtype=torch.float64)}


_ENCODER = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "num_labels": CLASSES,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_DECODER = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "use_cache": False,
}


def _gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=WORDS,
            n_positions=32,
            n_embd=32,
            n_layer=2,
            n_head=4,
            attn_pdrop=0.0,
            use_cache=False,
        )
    )


def _llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_DECODER))


def _t5() -> nn.Module:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=WORDS,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    )


def _bart() -> nn.Module:
    return transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            vocab_size=WORDS,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_position_embeddings=40,
            dropout=0.0,
        )
    )


def _wav2vec2() -> nn.Module:
    config = transformers.Wav2Vec2Config(
        vocab_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(16, 16),
        conv_stride=(5, 4),
        conv_kernel=(10, 4),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        apply_spec_augment=False,
        layerdrop=0.0,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    return Speech(transformers.Wav2Vec2ForCTC(config))


def _whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=WORDS,
        num_mel_bins=8,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=20,
        max_target_positions=10,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        dropout=0.0,
    )
    return Whisper(transformers.WhisperForConditionalGeneration(config))


def _clip() -> nn.Module:
    text = {
        "vocab_size": WORDS,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 8,
        "eos_token_id": WORDS - 1,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
    }
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    return Clip(transformers.CLIPModel(config))


def _vit() -> nn.Module:
    return ImageClasses(
        transformers.ViTForImageClassification(
            transformers.ViTConfig(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
                image_size=16,
                patch_size=8,
                num_labels=CLASSES,
                attention_probs_dropout_prob=0.0,
            )
        )
    )


def _segformer() -> nn.Module:
    config = transformers.SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
        num_labels=2,
        drop_path_rate=0.0,
        classifier_dropout_prob=0.0,
    )
    return ImageClasses(transformers.SegformerForSemanticSegmentation(config))


def _patches(data: Data, height: int, width: int) -> Batch:
    """Draws images with a class for each 4x4 pixels."""
    x = data.normal(3, height, width)
    return {"pixel_values": x}, {"target": (functional.avg_pool2d(x[:, 0], 4) > 0).long()}


def _mixtral() -> nn.Module:
    config = transformers.MixtralConfig(**_DECODER, num_local_experts=2, num_experts_per_tok=1)
    return NextToken(transformers.MixtralForCausalLM(config))


def _classifier(name: str, make: Any, **options: Any) -> Entry:
    dynamic = {"input_ids": {1: SEQ}, "attention_mask": {1: "seq"}}
    return Entry(
        name,
        SOURCE,
        "text classification",
        make,
        _texts,
        LENGTHS,
        optimizer=ADAMW,
        dynamic=dynamic,
        **options,
    )


def _language_model(name: str, make: Any, kind: str = "text generation", **options: Any) -> Entry:
    return Entry(
        name,
        SOURCE,
        kind,
        lambda: NextToken(make()),
        _next_words,
        LENGTHS,
        optimizer=ADAMW,
        dynamic={"input_ids": {1: SEQ}},
        **options,
    )


def _sequence_to_sequence(name: str, make: Any, **options: Any) -> Entry:
    return Entry(
        name,
        SOURCE,
        "translation, summaries",
        lambda: Summarizer(make()),
        _summaries,
        LENGTHS,
        optimizer=ADAMW,
        dynamic={"input_ids": {1: SEQ}},
        **options,
    )


ENTRIES = [
    _classifier(
        "bert",
        lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**_ENCODER)),
    ),
    _classifier(
        "distilbert",
        lambda: transformers.DistilBertForSequenceClassification(
            transformers.DistilBertConfig(
                vocab_size=WORDS,
                dim=32,
                n_layers=2,
                n_heads=4,
                hidden_dim=64,
                max_position_embeddings=40,
                num_labels=CLASSES,
                attention_dropout=0.0,
            )
        ),
    ),
    _classifier(
        "electra",
        lambda: transformers.ElectraForSequenceClassification(
            transformers.ElectraConfig(**_ENCODER, embedding_size=16)
        ),
    ),
    _classifier(
        "albert",
        lambda: transformers.AlbertForSequenceClassification(
            transformers.AlbertConfig(**_ENCODER, embedding_size=16)
        ),
    ),
    _classifier(
        "deberta_v2",
        lambda: transformers.DebertaV2ForSequenceClassification(
            transformers.DebertaV2Config(
                **_ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"]
            )
        ),
    ),
    Entry(
        "roberta",
        SOURCE,
        "token classification",
        lambda: TokenClasses(
            transformers.RobertaForTokenClassification(
                transformers.RobertaConfig(**_ENCODER, pad_token_id=0)
            )
        ),
        _tagged_texts,
        LENGTHS,
        optimizer=ADAMW,
        dynamic={"input_ids": {1: SEQ}, "attention_mask": {1: "seq"}},
    ),
    _language_model("gpt2", _gpt2),
    Entry(
        "gpt2_with_loss",
        SOURCE,
        "text generation",
        _gpt2,
        _labelled_words,
        LENGTHS,
        loss={"output": "loss"},
        loss_mode="model",
        optimizer=ADAMW,
        tolerance=1e-5,
        reason="it computes its loss in float32",
        dynamic={"input_ids": {1: SEQ}, "labels": {1: "seq"}},
    ),
    _language_model("llama", _llama),
    _language_model(
        "qwen2",
        lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**_DECODER)),
    ),
    _language_model(
        "llama_lora",
        lambda: with_lora(_llama(), "q_proj", "v_proj"),
        "LoRA fine-tuning",
    ),
    Entry(
        "mixtral",
        SOURCE,
        "mixture of experts",
        _mixtral,
        _next_words,
        LENGTHS[:1],
        optimizer=ADAMW,
        alternative="experts that all compute every row, as in `mixture_of_experts`",
    ),
    _sequence_to_sequence("t5", _t5),
    _sequence_to_sequence("bart", _bart),
    Entry(
        "wav2vec2",
        SOURCE,
        "speech recognition",
        _wav2vec2,
        _speech,
        ({"samples": 400}, {"samples": 300}),
        loss={"name": "ctc"},
        dynamic={"audio": {1: ("samples", 200, 1000)}},
    ),
    Entry(
        "whisper",
        SOURCE,
        "speech recognition",
        _whisper,
        _transcripts,
        optimizer=ADAMW,
        alternative="layers without LayerDrop, as in `t5` and `conformer`",
    ),
    Entry(
        "clip",
        SOURCE,
        "images and texts",
        _clip,
        _captions,
        loss={"name": "cosine_embedding", "outputs": ["text", "image"]},
        dtype=torch.float32,
        tolerance=1e-5,
        reason="its mask cannot be made in float64, so it is tested in float32",
    ),
    Entry(
        "vit_hf",
        SOURCE,
        "image classification",
        _vit,
        image_classes(argument="pixel_values"),
        optimizer=ADAMW,
    ),
    Entry(
        "segformer",
        SOURCE,
        "segmentation",
        _segformer,
        _patches,
        ({"height": 32, "width": 32}, {"height": 32, "width": 48}),
        dynamic={
            "pixel_values": {
                2: 16 * torch.export.Dim("height", min=1, max=8),
                3: 16 * torch.export.Dim("width", min=1, max=8),
            }
        },
    ),
]
