"""`EncoderSpec`: the only parser of the option ``encoder``."""

import subprocess
import sys
from pathlib import Path

import pytest

from complementary.encoders.spec import OBJECTIVE_NAMES, PLAIN, EncoderSpec
from complementary.errors import UserError


@pytest.mark.parametrize("text", [*PLAIN, "run:runs/a", "file:w.safetensors", "embeddings:z.npy", "run:a:b"])
def test_spec_round_trips(text):
    assert str(EncoderSpec.parse(text)) == text


@pytest.mark.parametrize("text", ["", "pixel", "run", "run:", "file:", "embeddings", "simsiam:", "auto:x", "Pixels"])
def test_spec_rejects_unknown_text_and_names_the_option(text):
    with pytest.raises(UserError, match="embeddings:") as caught:
        EncoderSpec.parse(text)
    assert caught.value.option == "encoder"
    assert repr(text) in str(caught.value)


def test_spec_knows_where_weights_are():
    assert EncoderSpec.parse("run:a/b").weights == Path("a/b/encoder.safetensors")
    assert EncoderSpec.parse("file:w.pt").weights == Path("w.pt")
    assert all(EncoderSpec.parse(t).weights is None for t in (*PLAIN, "embeddings:z.npy"))


def test_spec_knows_what_has_to_be_pretrained_and_what_is_a_network():
    assert {t for t in PLAIN if EncoderSpec.parse(t).is_pretrained_here} == set(OBJECTIVE_NAMES)
    assert not any(EncoderSpec.parse(t).is_network for t in ("pixels", "embeddings:z.npy"))
    assert all(EncoderSpec.parse(t).is_network for t in (*OBJECTIVE_NAMES, "random", "run:a", "file:b"))


def test_spec_imports_without_torch():
    code = "import sys, complementary.encoders.spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
