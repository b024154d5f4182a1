"""The option ``encoder``: where the features that are clustered come from.

| ``encoder`` | features |
|---|---|
| ``auto`` | those of an encoder that is cached or stored for these images, else ``pixels`` |
| ``pixels`` | the raw inputs (also for vectors) |
| ``patches`` | those of a spectral embedding of patches, which is fitted in a minute on a CPU |
| ``random`` | those of an untrained network: a control |
| ``simsiam``, ``byol``, ``mocov3`` | those of this encoder, which is pretrained first if it is not in the cache |
| ``run:FOLDER`` | those of the encoder that ``cll pretrain`` wrote to this folder |
| ``file:WEIGHTS`` | those of an encoder of this package, or of a ResNet-18 state dict (.safetensors, .pt) |
| ``timm:NAME``, ``hf:NAME`` | those of a model of timm or transformers, with the user's package and weights |
| ``embeddings:Z.npy`` | vectors computed elsewhere, one row per training example |
| ``module:function`` | those of your own function (or an entry point): images [N, C, H, W] -> vectors [N, D] |

This module does not import torch.
"""

import typing
from dataclasses import dataclass
from pathlib import Path

from complementary.config import ObjectiveName
from complementary.errors import UserError, plugin_names

OBJECTIVE_NAMES: tuple[str, ...] = typing.get_args(ObjectiveName)
PLAIN = ("auto", "pixels", "patches", "random", *OBJECTIVE_NAMES)
WITH_PATH = {"run": "run:FOLDER", "file": "file:WEIGHTS", "embeddings": "embeddings:Z.npy"}
EXTERNAL = {"timm": "timm:NAME", "hf": "hf:NAME"}
WEIGHTS = "encoder.safetensors"  # the file of an encoder in the folder of its pretraining run


@dataclass(frozen=True)
class EncoderSpec:
    """A parsed ``encoder`` option.

    Attributes:
        kind: ``auto``, ``pixels``, ``patches``, ``random``, ``simsiam``, ``byol``, ``mocov3``, ``run``, ``file``,
            ``embeddings``, ``timm``, ``hf`` or ``plugin``.
        path: the folder or file of ``run``, ``file`` and ``embeddings``; None for the others.
        name: the name of a model of timm or transformers, or of a plug-in.
    """

    kind: str
    path: Path | None = None
    name: str = ""

    @classmethod
    def parse(cls, text: str, option: str = "encoder") -> "EncoderSpec":
        """Parse the text of an option.

        Args:
            text: for example ``simsiam`` or ``run:runs/simsiam``.
            option: name of the option, for the error message.

        Raises:
            UserError: the text is none of the known forms.
        """
        kind, colon, path = text.partition(":")
        if kind in WITH_PATH and path:
            return cls(kind, Path(path))
        if kind in EXTERNAL and path:
            return cls(kind, name=path)
        if kind in PLAIN and not colon:
            return cls(kind)
        if kind not in (*PLAIN, *WITH_PATH, *EXTERNAL) and text in plugin_names("encoders", text):
            return cls("plugin", name=text)
        known = ", ".join([*PLAIN, *WITH_PATH.values(), *EXTERNAL.values()])
        raise UserError(f"The encoder {text!r} is not known; use one of: {known}.", option)

    def __str__(self) -> str:
        if self.name:
            return self.name if self.kind == "plugin" else f"{self.kind}:{self.name}"
        return self.kind if self.path is None else f"{self.kind}:{self.path}"

    @property
    def is_pretrained_here(self) -> bool:
        """Whether this package pretrains the encoder first, unless it is in the cache."""
        return self.kind in OBJECTIVE_NAMES

    @property
    def is_network(self) -> bool:
        """Whether a network computes the features; False for pixels, stored embeddings and functions."""
        return self.kind not in ("pixels", "embeddings", "plugin")

    @property
    def weights(self) -> Path | None:
        """The file of weights that ``run:FOLDER`` or ``file:WEIGHTS`` names; None for the others."""
        if self.path is None or self.kind == "embeddings":
            return None
        return self.path / WEIGHTS if self.kind == "run" else self.path
