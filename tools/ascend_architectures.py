"""Small configurations of many architectures of transformers, as factories for MODEL strings: tools/ascend_architectures.py:bert, ...

Random weights, a hidden size of 32 to 64, two layers: what operators they dispatch is what the large ones dispatch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

TEXT = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 128,
        "pad_token_id": 0}
DECODER = {**TEXT, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32, "patch_size": 8}

# name: (class of the model, keywords of its configuration, input). Input: 'text', 'image', 'image64', 'audio', 'features', 'text2' (encoder and decoder).
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], str]] = {
    "albert": ("AlbertModel", {**TEXT, "embedding_size": 16}, "text"),
    "audio_spectrogram": ("ASTModel", {**VISION, "max_length": 32, "num_mel_bins": 16, "patch_size": 8, "frequency_stride": 8, "time_stride": 8}, "spectrogram"),
    "bart": ("BartModel", {"vocab_size": 100, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                           "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64, "use_cache": False}, "text"),
    "beit": ("BeitModel", VISION, "image"),
    "bert": ("BertModel", TEXT, "text"),
    "big_bird": ("BigBirdModel", {**TEXT, "attention_type": "original_full"}, "text"),
    "blenderbot": ("BlenderbotModel", {"vocab_size": 100, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
                                       "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "use_cache": False}, "text2"),
    "bloom": ("BloomModel", {"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 4, "use_cache": False}, "text"),
    "camembert": ("CamembertModel", TEXT, "text"),
    "canine": ("CanineModel", {**TEXT, "num_hash_buckets": 64, "max_position_embeddings": 64, "local_transformer_stride": 8}, "text"),
    "clip_vision": ("CLIPVisionModel", VISION, "image"),
    "clip_text": ("CLIPTextModel", {**TEXT, "eos_token_id": 2, "bos_token_id": 1}, "text"),
    "convbert": ("ConvBertModel", {**TEXT, "embedding_size": 32, "head_ratio": 2}, "text"),
    "convnext": ("ConvNextModel", {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}, "image"),
    "convnextv2": ("ConvNextV2Model", {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}, "image"),
    "deberta_v2": ("DebertaV2Model", {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}, "text"),
    "deit": ("DeiTModel", VISION, "image"),
    "dinov2": ("Dinov2Model", VISION, "image"),
    "distilbert": ("DistilBertModel", {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64}, "text"),
    "electra": ("ElectraModel", {**TEXT, "embedding_size": 16}, "text"),
    "falcon": ("FalconModel", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "use_cache": False}, "text"),
    "fnet": ("FNetModel", TEXT, "text"),
    "focalnet": ("FocalNetModel", {"image_size": 64, "patch_size": 4, "embed_dim": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "focal_levels": [2, 2],
                                   "focal_windows": [3, 3]}, "image64"),
    "funnel": ("FunnelModel", {"vocab_size": 100, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64}, "text"),
    "gemma2": ("Gemma2Model", {**DECODER, "head_dim": 8}, "text"),
    "glpn": ("GLPNModel", {"hidden_sizes": [16, 32, 32, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 2]}, "image64"),
    "gpt2": ("GPT2Model", {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "use_cache": False}, "text"),
    "gpt_neox": ("GPTNeoXModel", {**TEXT, "use_cache": False}, "text"),
    "gptj": ("GPTJModel", {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 8, "use_cache": False}, "text"),
    "hubert": ("HubertModel", {**TEXT, "conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2,
                               "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}, "audio"),
    "layoutlm": ("LayoutLMModel", TEXT, "text"),
    "levit": ("LevitModel", {"hidden_sizes": [16, 32, 32], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8], "image_size": 64}, "image64"),
    "llama": ("LlamaModel", DECODER, "text"),
    "longformer": ("LongformerModel", {**TEXT, "attention_window": 8}, "text"),
    "mamba": ("MambaModel", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "use_cache": False}, "text"),
    "mistral": ("MistralModel", DECODER, "text"),
    "mixtral": ("MixtralModel", {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}, "text"),
    "mobilebert": ("MobileBertModel", {**TEXT, "embedding_size": 32, "true_hidden_size": 32, "intra_bottleneck_size": 32, "num_feedforward_networks": 1}, "text"),
    "mobilenet_v2": ("MobileNetV2Model", {"image_size": 64, "depth_multiplier": 0.35}, "image64"),
    "mobilevit": ("MobileViTModel", {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 32], "num_attention_heads": 4}, "image64"),
    "mpnet": ("MPNetModel", TEXT, "text"),
    "nystromformer": ("NystromformerModel", {**TEXT, "num_landmarks": 16, "segment_means_seq_len": 16}, "text"),
    "olmo": ("OlmoModel", DECODER, "text"),
    "opt": ("OPTModel", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64, "max_position_embeddings": 64,
                         "word_embed_proj_dim": 32, "use_cache": False}, "text"),
    "pegasus": ("PegasusModel", {"vocab_size": 100, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
                                 "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "use_cache": False}, "text2"),
    "phi": ("PhiModel", {k: v for k, v in DECODER.items() if k != "num_key_value_heads"}, "text"),
    "poolformer": ("PoolFormerModel", {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]}, "image64"),
    "pvt": ("PvtModel", {"image_size": 64, "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]}, "image64"),
    "qwen2": ("Qwen2Model", DECODER, "text"),
    "qwen3": ("Qwen3Model", {**DECODER, "head_dim": 8}, "text"),
    "regnet": ("RegNetModel", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8}, "image"),
    "rembert": ("RemBertModel", {**TEXT, "input_embedding_size": 16, "output_embedding_size": 16}, "text"),
    "resnet": ("ResNetModel", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}, "image"),
    "roberta": ("RobertaModel", TEXT, "text"),
    "roformer": ("RoFormerModel", {**TEXT, "embedding_size": 32}, "text"),
    "segformer": ("SegformerModel", {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]}, "image64"),
    "siglip": ("SiglipVisionModel", VISION, "image"),
    "squeezebert": ("SqueezeBertModel", {**TEXT, "embedding_size": 32}, "text"),
    "swin": ("SwinModel", {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}, "image"),
    "swinv2": ("Swinv2Model", {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}, "image"),
    "t5": ("T5EncoderModel", {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}, "text"),
    "timesformer": ("TimesformerModel", {**VISION, "num_frames": 2}, "video"),
    "vit": ("ViTModel", VISION, "image"),
    "vit_mae": ("ViTMAEModel", {**VISION, "mask_ratio": 0.5}, "image"),
    "wav2vec2": ("Wav2Vec2Model", {**TEXT, "conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2,
                                   "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}, "audio"),
    "whisper_encoder": ("WhisperModel", {"vocab_size": 100, "num_mel_bins": 16, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
                                         "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 32,
                                         "max_target_positions": 32, "pad_token_id": 0, "decoder_start_token_id": 1, "use_cache": False}, "mel"),
    "xlnet": ("XLNetModel", {"vocab_size": 100, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}, "text"),
    "yolos": ("YolosModel", {**VISION, "image_size": [32, 32], "num_detection_tokens": 4}, "image"),
    "yoso": ("YosoModel", {**TEXT, "use_expectation": True}, "text"),
}


class _First(torch.nn.Module):
    """The model with positional inputs under their names; every output tensor comes back."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True)), return_dict=True).to_tuple()


def _inputs(kind: str) -> dict[str, torch.Tensor]:
    ids = torch.arange(32).reshape(2, 16) % 90 + 3
    return {
        "text": lambda: {"input_ids": ids},
        "text2": lambda: {"input_ids": ids, "decoder_input_ids": ids[:, :8]},
        "image": lambda: {"pixel_values": torch.rand(2, 3, 32, 32)},
        "image64": lambda: {"pixel_values": torch.rand(2, 3, 64, 64)},
        "video": lambda: {"pixel_values": torch.rand(1, 2, 3, 32, 32)},
        "audio": lambda: {"input_values": torch.rand(1, 800)},
        "spectrogram": lambda: {"input_values": torch.rand(1, 32, 16)},
        "mel": lambda: {"input_features": torch.rand(1, 16, 64), "decoder_input_ids": torch.ones(1, 4, dtype=torch.long)},
    }[kind]()


def build(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """(module, example inputs) of an architecture."""
    import transformers

    cls, keywords, kind = ARCHITECTURES[name]
    model_class = getattr(transformers, cls)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**keywords)).eval()
    inputs = _inputs(kind)
    return _First(model, tuple(inputs)), tuple(inputs.values())


def __getattr__(name: str) -> Callable[[], Any]:
    if name in ARCHITECTURES:
        return lambda: build(name)
    raise AttributeError(name)
