"""The examples are what they say: real weights, real photographs, real accuracy."""

import pytest
import torch

from npulift.loading import load_model


@pytest.mark.parametrize(("name", "family"), [("chelsea", "CAT"), ("coffee", "COFFEE")])
def test_the_pretrained_network_knows_a_cat_and_a_cup_of_coffee(name, family):
    import efficientnet_lite0 as example

    module = example.model().module
    with torch.inference_mode():
        top = module(example.preprocess(example.photograph(name)))[0].topk(5).indices.tolist()
    assert set(top) & set(getattr(example, family))


def test_the_sentence_encoder_finds_the_sentence_that_means_the_same():
    import minilm

    spec = minilm.model()
    with torch.inference_mode():
        outputs = [(spec.module(*i),) for i in spec.evaluation]
    assert spec.metric(outputs) == 1.0


def test_the_digits_transformer_is_trained():
    import digits_vit

    spec = digits_vit.model()
    with torch.inference_mode():
        assert spec.metric([(spec.module(*i),) for i in spec.evaluation]) > 0.9


@pytest.mark.parametrize("name", ["vit_tiny", "swin_tiny"])
def test_the_transformers_run(root, name):
    spec = load_model(f"{root}/examples/{name}.py:model")
    with torch.inference_mode():
        assert spec.module(*spec.inputs).shape == (1, 1000)
