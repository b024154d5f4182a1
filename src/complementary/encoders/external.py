"""Encoders of other packages: ``timm:NAME`` and ``hf:NAME`` (transformers).

The package and the weights are the user's. The weights are copied into the folder of a run, so that a run can be loaded
without a download; the package is still needed then.
"""

import logging
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from complementary.errors import UserError, import_optional
from complementary.networks import Network

log = logging.getLogger(__name__)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ExternalBackbone(Network):
    """A network of another package behind the interface of this one.

    Its inputs are normalized as those of any other backbone here. It undoes that, repeats the channel of gray images,
    resizes them and normalizes them as its own training did.

    Args:
        kind: ``timm:NAME`` or ``hf:NAME``.
        body: The network: images [B, 3, S, S] -> features, or an output of transformers.
        settings: ``size``, ``mean`` and ``std`` of its images, and what `rebuild` needs.
        mean: Mean of the channels that the inputs were normalized with, on a 0 to 1 scale, [C].
        std: Standard deviation, as ``mean``.
    """

    mean: Tensor
    std: Tensor
    to_mean: Tensor
    to_std: Tensor

    def __init__(self, kind: str, body: nn.Module, settings: dict[str, Any], mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.kind = kind  # in other networks it belongs to the class
        self.body, self.settings = body, settings
        moments = {"mean": mean, "std": std, "to_mean": settings["mean"], "to_std": settings["std"]}
        for name, value in moments.items():
            tensor = torch.as_tensor(value, dtype=torch.float32).view(-1, 1, 1)
            self.register_buffer(name, tensor, persistent=False)

    def features(self, x: Tensor) -> Tensor:
        """Normalized images [B, C, H, W] -> features [B, D]."""
        pixels = x * self.std + self.mean
        if x.shape[1] == 1:
            pixels = pixels.expand(-1, 3, -1, -1)
        size = self.settings["size"]
        if tuple(pixels.shape[2:]) != (size, size):
            smaller = min(pixels.shape[2:]) > size
            pixels = F.interpolate(pixels, (size, size), mode="bilinear", align_corners=False, antialias=smaller)
        return _as_vectors(self.body((pixels - self.to_mean) / self.to_std))


def _as_vectors(output: Any) -> Tensor:
    """The features [B, D] of whatever an image model returns."""
    found = output
    if not isinstance(output, Tensor):
        found = getattr(output, "pooler_output", None)
        found = getattr(output, "last_hidden_state", None) if found is None else found
    if not isinstance(found, Tensor):
        raise UserError(f"The encoder returned {type(output).__name__}, which has no image features.", "encoder")
    if found.ndim == 4:  # a feature map
        found = found.mean((2, 3)) if found.shape[2] * found.shape[3] > 1 else found.flatten(1)
    if found.ndim == 3:  # tokens: the first one stands for the image
        found = found[:, 0]
    return found.flatten(1).float()


def load_external(kind: str, name: str, mean: Tensor, std: Tensor) -> ExternalBackbone:
    """Load a network with its weights.

    Args:
        kind: ``timm`` or ``hf``.
        name: Name of the model; or a local folder: for ``hf`` its path, for ``timm`` ``local-dir:PATH``.
        mean: Mean of the channels of the dataset, [C].
        std: Standard deviation of the channels of the dataset, [C].
    """
    load = {"timm": _load_timm, "hf": _load_hf}[kind]
    body, settings = load(name, None)
    log.info("encoder %s:%s: images of %d pixels", kind, name, settings["size"])
    return ExternalBackbone(f"{kind}:{name}", body.eval(), settings, mean, std)


def rebuild(record: dict[str, Any]) -> ExternalBackbone:
    """Build the network of a stored encoder, without its weights and without a download.

    Args:
        record: The record of the file: ``body`` (such as ``timm:NAME``), ``mean``, ``std`` and ``external``.
    """
    kind, _, name = record["body"].partition(":")
    if kind not in ("timm", "hf"):
        raise UserError(f"The encoder {record['body']!r} of this file is not known; update the package.", "encoder")
    load = {"timm": _load_timm, "hf": _load_hf}[kind]
    settings = record["external"]
    body, _ = load(name, settings)
    return ExternalBackbone(
        record["body"], body.eval(), settings, torch.tensor(record["mean"]), torch.tensor(record["std"])
    )


# --- packages ---------------------------------------------------------------------------------------------------------


def _load_timm(name: str, settings: dict[str, Any] | None) -> tuple[nn.Module, dict[str, Any]]:
    """A model of timm without its last layer, with weights unless ``settings`` are known from a file."""
    timm = import_optional("timm", f"The encoder timm:{name}")
    try:
        known = (settings or {}).get("architecture", name)  # a local folder may not be there any more
        body = timm.create_model(known, pretrained=settings is None, num_classes=0)
    except Exception as error:  # unknown names, missing weights, no network: all kinds of errors
        raise UserError(f"timm has no model {name!r} with weights that can be read: {error}", "encoder") from None
    if settings is None:
        found = timm.data.resolve_model_data_config(body)
        settings = {"size": int(found["input_size"][-1]), "mean": list(found["mean"]), "std": list(found["std"])}
        if name.startswith("local-dir:"):
            settings["architecture"] = body.pretrained_cfg["architecture"]
    return body, settings


def _load_hf(name: str, settings: dict[str, Any] | None) -> tuple[nn.Module, dict[str, Any]]:
    """A model of transformers, with weights unless ``settings`` are known from a file."""
    transformers = import_optional("transformers", f"The encoder hf:{name}")
    if settings is not None:
        content = dict(settings["config"])
        config = transformers.AutoConfig.for_model(content.pop("model_type"), **content)
        return _vision(transformers.AutoModel.from_config(config)), settings
    try:
        model = transformers.AutoModel.from_pretrained(name)
    except Exception as error:  # unknown names, missing weights, no network: all kinds of errors
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"transformers cannot load {name!r}: {reason}", "encoder") from None
    preprocessing = _preprocessing(transformers, name)
    config = model.config.to_dict()
    vision = config.get("vision_config") or config
    size = preprocessing.get("crop_size") or preprocessing.get("size") or vision.get("image_size") or 224
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge") or 224
    found = {
        "size": int(size[0] if isinstance(size, list | tuple) else size),
        "mean": list(preprocessing.get("image_mean") or IMAGENET_MEAN),
        "std": list(preprocessing.get("image_std") or IMAGENET_STD),
        "config": config,
    }
    return _vision(model), found


def _preprocessing(transformers: Any, name: str) -> dict[str, Any]:
    """The content of preprocessor_config.json; empty if the model has none."""
    try:
        content, _ = transformers.image_processing_base.ImageProcessingMixin.get_image_processor_dict(name)
    except (OSError, ValueError):
        return {}
    return dict(content)


def _vision(model: Any) -> nn.Module:
    """The part of a model that takes images."""
    part = getattr(model, "vision_model", None)
    found: nn.Module = part if isinstance(part, nn.Module) else model
    return found
