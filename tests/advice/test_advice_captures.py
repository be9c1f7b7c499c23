"""The two public captures of an Ascend 910B: what an expert would notice in them."""

import os
from pathlib import Path

import pytest

from npulift.advise import advise

FOLDER = Path(os.environ.get("NPULIFT_CAPTURES") or Path(__file__).resolve().parents[3] / "shared" / "data" / "ascend")
TRAINING, METRICS = FOLDER / "kernel_details_training_910b.csv", FOLDER / "kernel_details_aicore_metrics_910b.csv"
pytestmark = [pytest.mark.captures, pytest.mark.skipif(not TRAINING.exists(), reason="the public captures are not here (NPULIFT_CAPTURES)")]


@pytest.fixture(scope="module")
def training():
    return {f.code: f for f in advise(TRAINING).findings}


def test_the_broadcast_waits(training):
    assert training["ADV078"].details["ms"] == pytest.approx(308.927, abs=0.001)


def test_seven_casts_on_the_ai_cpu(training):
    assert (training["ADV001"].details["calls"], training["ADV001"].details["operators"][0]["type"]) == (7, "Cast")


def test_dropout_masks_on_the_dsa(training):
    assert training["ADV014"].details["count"] == 7


def test_the_optimizer_is_not_fused(training):
    assert training["ADV013"].details["updates_per_step"] == 28


def test_repeated_rows_are_noticed():
    finding = next(f for f in advise(METRICS).findings if f.code == "ADV103")
    assert finding.details["repeated"] == 3
