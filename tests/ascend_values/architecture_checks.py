"""Run in a process of its own on hollow CANN: small models of many architectures, forward and backward in training mode, on `npu` and on the CPU."""

from __future__ import annotations

import copy
import json
import os
import traceback
import warnings


def architectures():
    """Name -> function that makes (model, inputs)."""
    import torch
    import transformers as tf

    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

    def tokens(length=16):
        return {"input_ids": torch.randint(3, 100, (2, length))}

    def image(side=32):
        return {"pixel_values": torch.randn(2, 3, side, side)}

    return {
        "longformer": lambda: (
            tf.LongformerModel(tf.LongformerConfig(**size, **plain, attention_window=[8, 8], vocab_size=100, max_position_embeddings=70)),
            tokens(length=32),
        ),
        "bert": lambda: (tf.BertModel(tf.BertConfig(**size, **plain, vocab_size=100)), tokens()),
        "roberta": lambda: (tf.RobertaModel(tf.RobertaConfig(**size, **plain, vocab_size=100)), tokens()),
        "gpt2": lambda: (
            tf.GPT2Model(tf.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=100, embd_pdrop=0, attn_pdrop=0, resid_pdrop=0)),
            tokens(),
        ),
        "llama": lambda: (tf.LlamaModel(tf.LlamaConfig(**size, vocab_size=100)), tokens()),
        "mistral": lambda: (tf.MistralModel(tf.MistralConfig(**size, vocab_size=100, num_key_value_heads=1)), tokens()),
        "mixtral": lambda: (
            tf.MixtralModel(tf.MixtralConfig(**size, vocab_size=100, num_key_value_heads=1, num_local_experts=4)),
            tokens(),
        ),
        "qwen2": lambda: (tf.Qwen2Model(tf.Qwen2Config(**size, vocab_size=100, num_key_value_heads=1)), tokens()),
        "qwen2moe": lambda: (
            tf.Qwen2MoeModel(
                tf.Qwen2MoeConfig(
                    **size,
                    vocab_size=100,
                    num_key_value_heads=1,
                    num_experts=4,
                    num_experts_per_tok=2,
                    moe_intermediate_size=32,
                    shared_expert_intermediate_size=32,
                )
            ),
            tokens(),
        ),
        "gemma": lambda: (tf.GemmaModel(tf.GemmaConfig(**size, vocab_size=100, num_key_value_heads=1, head_dim=16)), tokens()),
        "phi": lambda: (tf.PhiModel(tf.PhiConfig(**size, vocab_size=100, resid_pdrop=0)), tokens()),
        "opt": lambda: (
            tf.OPTModel(
                tf.OPTConfig(
                    hidden_size=32,
                    num_hidden_layers=2,
                    num_attention_heads=2,
                    ffn_dim=64,
                    vocab_size=100,
                    word_embed_proj_dim=32,
                    dropout=0.0,
                )
            ),
            tokens(),
        ),
        "bloom": lambda: (tf.BloomModel(tf.BloomConfig(hidden_size=32, n_layer=2, n_head=2, vocab_size=100)), tokens()),
        "falcon": lambda: (
            tf.FalconModel(tf.FalconConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=100)),
            tokens(),
        ),
        "mamba": lambda: (tf.MambaModel(tf.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=100)), tokens()),
        "mamba2": lambda: (
            tf.Mamba2Model(
                tf.Mamba2Config(hidden_size=32, num_hidden_layers=2, vocab_size=100, num_heads=4, head_dim=16, state_size=16, n_groups=1)
            ),
            tokens(),
        ),
        "rwkv": lambda: (tf.RwkvModel(tf.RwkvConfig(hidden_size=32, num_hidden_layers=2, vocab_size=100)), tokens()),
        "t5": lambda: (
            tf.T5Model(tf.T5Config(d_model=32, d_kv=16, num_layers=2, num_heads=2, d_ff=64, vocab_size=100, dropout_rate=0.0)),
            dict(**tokens(), decoder_input_ids=torch.randint(3, 100, (2, 8))),
        ),
        "bart": lambda: (
            tf.BartModel(
                tf.BartConfig(
                    d_model=32,
                    encoder_layers=2,
                    decoder_layers=2,
                    encoder_attention_heads=2,
                    decoder_attention_heads=2,
                    encoder_ffn_dim=64,
                    decoder_ffn_dim=64,
                    vocab_size=100,
                    dropout=0.0,
                )
            ),
            tokens(),
        ),
        "albert": lambda: (tf.AlbertModel(tf.AlbertConfig(**size, **plain, vocab_size=100, embedding_size=16)), tokens()),
        "deberta": lambda: (
            tf.DebertaV2Model(tf.DebertaV2Config(**size, **plain, vocab_size=100, relative_attention=True, pos_att_type=["p2c", "c2p"])),
            tokens(),
        ),
        "electra": lambda: (tf.ElectraModel(tf.ElectraConfig(**size, **plain, vocab_size=100, embedding_size=16)), tokens()),
        "distilbert": lambda: (
            tf.DistilBertModel(
                tf.DistilBertConfig(dim=32, n_layers=2, n_heads=2, hidden_dim=64, vocab_size=100, dropout=0.0, attention_dropout=0.0)
            ),
            tokens(),
        ),
        "bigbird": lambda: (
            tf.BigBirdModel(tf.BigBirdConfig(**size, **plain, vocab_size=100, block_size=8, num_random_blocks=1)),
            tokens(length=96),
        ),
        "vit": lambda: (tf.ViTModel(tf.ViTConfig(**size, **plain, image_size=32, patch_size=8)), image()),
        "deit": lambda: (tf.DeiTModel(tf.DeiTConfig(**size, **plain, image_size=32, patch_size=8)), image()),
        "beit": lambda: (tf.BeitModel(tf.BeitConfig(**size, **plain, image_size=32, patch_size=8)), image()),
        "swin": lambda: (
            tf.SwinModel(
                tf.SwinConfig(image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4, drop_path_rate=0.0)
            ),
            image(),
        ),
        "swinv2": lambda: (
            tf.Swinv2Model(
                tf.Swinv2Config(
                    image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4, drop_path_rate=0.0
                )
            ),
            image(),
        ),
        "convnext": lambda: (tf.ConvNextModel(tf.ConvNextConfig(hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1])), image(64)),
        "resnet": lambda: (
            tf.ResNetModel(tf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")),
            image(64),
        ),
        "regnet": lambda: (
            tf.RegNetModel(tf.RegNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=8)),
            image(64),
        ),
        "segformer": lambda: (
            tf.SegformerModel(
                tf.SegformerConfig(
                    hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 4], drop_path_rate=0.0, **plain
                )
            ),
            image(64),
        ),
        "mobilevit": lambda: (
            tf.MobileViTModel(
                tf.MobileViTConfig(
                    image_size=64, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64], num_attention_heads=2, **plain
                )
            ),
            image(64),
        ),
        "mobilenetv2": lambda: (tf.MobileNetV2Model(tf.MobileNetV2Config(image_size=64)), image(64)),
        "dinov2": lambda: (
            tf.Dinov2Model(
                tf.Dinov2Config(**{k: v for k, v in size.items() if k != "intermediate_size"}, image_size=32, patch_size=8, **plain)
            ),
            image(),
        ),
        "yolos": lambda: (
            tf.YolosModel(tf.YolosConfig(**size, **plain, image_size=[32, 32], patch_size=8, num_detection_tokens=4)),
            image(),
        ),
        "clip": lambda: (tf.CLIPVisionModel(tf.CLIPVisionConfig(**size, image_size=32, patch_size=8)), image()),
        "siglip": lambda: (tf.SiglipVisionModel(tf.SiglipVisionConfig(**size, image_size=32, patch_size=8)), image()),
        "whisper": lambda: (
            tf.WhisperModel(
                tf.WhisperConfig(
                    d_model=32,
                    encoder_layers=2,
                    decoder_layers=2,
                    encoder_attention_heads=2,
                    decoder_attention_heads=2,
                    encoder_ffn_dim=64,
                    decoder_ffn_dim=64,
                    vocab_size=100,
                    num_mel_bins=16,
                    max_source_positions=32,
                    dropout=0.0,
                    pad_token_id=0,
                    bos_token_id=1,
                    eos_token_id=2,
                    decoder_start_token_id=1,
                )
            ),
            dict(input_features=torch.randn(2, 16, 64), decoder_input_ids=torch.randint(3, 100, (2, 4))),
        ),
        "wav2vec2": lambda: (
            tf.Wav2Vec2Model(
                tf.Wav2Vec2Config(
                    **size,
                    conv_dim=[16, 16],
                    conv_kernel=[10, 3],
                    conv_stride=[5, 2],
                    num_conv_pos_embeddings=16,
                    num_conv_pos_embedding_groups=2,
                    apply_spec_augment=False,
                    hidden_dropout=0.0,
                    attention_dropout=0.0,
                    activation_dropout=0.0,
                    feat_proj_dropout=0.0,
                    layerdrop=0.0,
                )
            ),
            dict(input_values=torch.randn(2, 400)),
        ),
        "timesformer": lambda: (
            tf.TimesformerModel(tf.TimesformerConfig(**size, **plain, image_size=32, patch_size=8, num_frames=2, drop_path_rate=0)),
            dict(pixel_values=torch.randn(1, 2, 3, 32, 32)),
        ),
        "videomae": lambda: (
            tf.VideoMAEModel(tf.VideoMAEConfig(**size, **plain, image_size=32, patch_size=8, num_frames=4)),
            dict(pixel_values=torch.randn(1, 4, 3, 32, 32)),
        ),
        "perceiver": lambda: (
            tf.PerceiverModel(
                tf.PerceiverConfig(
                    d_model=32,
                    d_latents=32,
                    num_latents=8,
                    num_blocks=1,
                    num_self_attends_per_block=1,
                    num_self_attention_heads=2,
                    num_cross_attention_heads=2,
                    attention_probs_dropout_prob=0.0,
                )
            ),
            dict(inputs=torch.randn(2, 10, 32)),
        ),
        "dpt": lambda: (
            tf.DPTModel(tf.DPTConfig(**size, **plain, image_size=32, patch_size=8, is_hybrid=False, backbone_out_indices=[0, 1, 1, 1])),
            image(),
        ),
    }


def compare(make):
    """(largest difference of the first output, relative difference of the squared norm of all gradients)."""
    import torch

    from npulift.ascend.values import RealValues

    torch.manual_seed(0)
    model, inputs = make()
    model.train()
    other = copy.deepcopy(model)

    def run(network, given):
        torch.manual_seed(1)
        output = next(v for v in network(**given).values() if isinstance(v, torch.Tensor))
        output.float().square().mean().backward()
        return output.detach().cpu(), sum((p.grad.float() ** 2).sum().item() for p in network.parameters() if p.grad is not None)

    expected, norm = run(model, inputs)
    with RealValues():
        found, other_norm = run(other.npu(), {k: v.npu() for k, v in inputs.items()})
    return (expected - found).abs().max().item(), abs(norm - other_norm) / max(1e-12, norm)


def main() -> None:
    warnings.filterwarnings("ignore")
    import npulift.ascend.virtual  # noqa: F401
    import torch_npu  # noqa: F401  # isort: skip

    results = {}
    for name, make in architectures().items():
        try:
            results[name] = compare(make)
        except Exception:
            results[name] = traceback.format_exc()[-1500:]
    print("RESULTS " + json.dumps(results), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
