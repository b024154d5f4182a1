"""Export a trained run for production: one graph from raw inputs to calibrated probabilities, without this package.

| file | content |
|---|---|
| model.onnx | preprocessing, encoder, classifier and calibration in one graph (ONNX) |
| model.pt2 | the same as a `torch.export` program |
| model.safetensors | all weights, with the model card's facts as metadata |
| model_card.md | what the model is, what it rests on, and how good it is estimated to be |

Every graph is compared with `Predictor` before it is kept.
"""

import contextlib
import dataclasses
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from complementary import files, losses
from complementary.augment.crop import normalize
from complementary.data.images import FITS, to_square
from complementary.engine.run_folder import read_result
from complementary.errors import UserError, import_optional, one_of
from complementary.reports.temperature import Temperature
from complementary.training.finished import open_run
from complementary.training.predict import Predictor, load
from complementary.training.resize import PillowResize

log = logging.getLogger(__name__)
OPSETS = (18, 19, 20, 21, 22, 23)  # what the exporter of torch writes
DEFAULT_OPSET = 18
TOLERANCE = 1e-4  # largest difference of a probability between the exported graph and the predictor
CHECKED = (1, 3)  # batch sizes of the comparison
INPUT, OUTPUT = "inputs", "probabilities"
MEASURES = {  # of result.json
    "estimated_accuracy_selected": "estimated accuracy, without true labels",
    "estimated_seen_accuracy_selected": "the same on images that the encoder was pretrained on",
    "accuracy_selected": "test accuracy, epoch selected without true labels (oracle)",
    "accuracy_last": "test accuracy, last epoch (oracle)",
}


class Pipeline(nn.Module):
    """From raw inputs to class probabilities, as one module: what `Predictor` does, without its checks.

    Args:
        predictor: The trained network; it is used, not copied.
        fit: How images of another size become squares: ``crop`` or ``stretch``. None: they are not resized.
    """

    def __init__(self, predictor: Predictor, fit: str | None = None) -> None:
        super().__init__()
        self.resize = None if fit is None else PillowResize(predictor.shape[-1], fit)
        encoder = predictor.encoder
        self.network, self.temperature = predictor.network, predictor.temperature
        self.encoder = None if encoder is None else encoder.backbone
        self.mirror = encoder is not None and encoder.mirror
        self.register_buffer("mean", predictor.mean.clone())
        self.register_buffer("std", predictor.std.clone())
        self.decodes = predictor.decoder is not None
        for name, part in zip(("label_matrix", "rows"), predictor.decoder or (), strict=False):
            self.register_buffer(name, part.float().clone())
        if encoder is not None:
            self.register_buffer("image_mean", encoder.mean.clone())
            self.register_buffer("image_std", encoder.std.clone())
        self.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        """Images uint8 [B, C, H, W] or vectors float32 [B, D] -> probabilities float32 [B, K]."""
        x: Any = inputs if self.resize is None else self.resize(inputs)
        if self.encoder is not None:
            x = self._features(x)
        logits = self.network(normalize(x, self.mean, self.std))  # type: ignore[arg-type]
        if self.decodes:
            logits = losses.decode(logits, (self.label_matrix, self.rows))  # type: ignore[arg-type]
        return (logits / self.temperature).softmax(1)  # type: ignore[no-any-return]

    def _features(self, images: Tensor) -> Tensor:
        x = normalize(images, self.image_mean, self.image_std)  # type: ignore[arg-type]
        features = self.encoder.features(x)  # type: ignore[union-attr]
        if self.mirror:
            mirrored = self.encoder.features(x.flip(-1))  # type: ignore[union-attr]
            features = F.normalize(features) + F.normalize(mirrored)
        return F.normalize(features)


def export(
    predictor: Predictor,
    folder: str | Path,
    formats: Sequence[str] = ("onnx",),
    *,
    opset: int = DEFAULT_OPSET,
    fit: str = "crop",
    sections: dict[str, list[str]] | None = None,
) -> dict[str, Path]:
    """Write a trained network for production.

    The graph of a network for square images takes images of any size, and resizes them as the import of images does.

    Args:
        predictor: The network, from `complementary.load` or ``ComplementaryClassifier.predictor_``.
        folder: Folder to write to; it is created. Existing files of the same names are replaced.
        formats: ``onnx``, ``torch`` (a `torch.export` program) and ``safetensors``.
        opset: Version of ONNX's operators.
        fit: How images of another size become squares: crop (the center) or stretch.
        sections: Further sections of the model card: title -> lines.

    Returns:
        The files by format, and the model card as ``card``.

    Raises:
        UserError: A format or opset is not known, a package is missing, or the exported graph does not agree with the
            predictor.
    """
    unknown = [name for name in formats if name not in WRITERS]
    if unknown or not formats:
        raise UserError(f"The format {', '.join(unknown) or '(none)'} is not known; use {', '.join(WRITERS)}.")
    if opset not in OPSETS:
        found = f"The ONNX opset {opset} cannot be written"
        raise UserError(f"{found}; choose one from {OPSETS[0]} to {OPSETS[-1]} (most runtimes: 18).", "opset")
    folder, predictor = Path(folder), predictor.to("cpu")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be created ({error.strerror}).", "out") from None
    one_of("The fit", fit, FITS, "fit")
    fitted = fit if is_resized(predictor) else None
    written = {name: WRITERS[name](predictor, folder, opset, fitted) for name in formats}
    card = folder / "model_card.md"
    files.atomic_write(card, model_card(predictor, written, sections))
    return written | {"card": card}


def export_run(
    folder: str | Path,
    out: str | Path | None = None,
    formats: Sequence[str] = ("onnx",),
    *,
    weights: str = "auto",
    opset: int = DEFAULT_OPSET,
    calibrate: bool = True,
    fit: str = "crop",
) -> dict[str, Path]:
    """Write a finished run for production, calibrated, with a model card.

    Args:
        folder: Folder of the run.
        out: Folder to write to; None: the folder ``export`` in that of the run.
        formats: As in `export`.
        weights: ``selected``, ``last`` or ``auto``, as in `complementary.load`.
        opset: Version of ONNX's operators.
        calibrate: Divide the logits by the temperature that held-out answers determine, some of which may be wrong (see
            `estimate_temperature`). Without a validation split, or if the dataset is not there any more, there is none.
            The model card says what it assumes, or why there is none.
        fit: As in `export`.

    Returns:
        The files by format, and the model card as ``card``.
    """
    folder = Path(folder)
    predictor, reason, temperature = load(folder, weights), "not asked for", None
    if calibrate:
        try:
            temperature = open_run(folder, weights).temperature()
            reason = "" if temperature is not None else "fewer than 100 examples were held out"
        except UserError as error:
            reason = str(error)
    if temperature is not None:
        predictor = dataclasses.replace(predictor, temperature=temperature.value)
    if reason:
        log.warning("The probabilities are not calibrated: %s", reason)
    sections = _sections(folder, reason, temperature)
    return export(predictor, out or folder / "export", formats, opset=opset, fit=fit, sections=sections)


def is_resized(predictor: Predictor) -> bool:
    """Whether the exported graph resizes its inputs: if they are square images, RGB or gray."""
    return len(predictor.shape) == 3 and predictor.shape[0] in (1, 3) and predictor.shape[1] == predictor.shape[2]


def example_inputs(predictor: Predictor, count: int) -> Tensor:
    """Random inputs of the shape that the network takes: uint8 images [N, C, H, W] or float32 vectors [N, D]."""
    source = torch.Generator().manual_seed(count)
    if len(predictor.shape) == 3:
        return torch.randint(0, 256, (count, *predictor.shape), dtype=torch.uint8, generator=source)
    noise = torch.randn((count, *predictor.shape), generator=source)
    return predictor.mean.cpu() + predictor.std.cpu() * noise


def photos_of_another_size(predictor: Predictor, fit: str) -> tuple[Tensor, Tensor]:
    """Random photos uint8 [1, C, H, W] that are not square, and what the import of images makes of them."""
    channels, size = predictor.shape[0], predictor.shape[-1]
    source = torch.Generator().manual_seed(size)
    photo = torch.randint(0, 256, (channels, 2 * size + 3, size + 5), dtype=torch.uint8, generator=source)
    pillow = import_optional("PIL.Image", "Checking the resizing of an export")
    pixels = photo.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    square = torch.from_numpy(to_square(pillow.fromarray(pixels), size, fit).copy()).permute(2, 0, 1)
    return photo[None], square[None, :channels].contiguous()


def _dynamic_shapes(fit: str | None) -> dict[str, Any]:
    """Which dimensions of the input may vary: the number of examples and, if images are resized, their sides."""
    sides = {} if fit is None else {2: torch.export.Dim("height", min=2), 3: torch.export.Dim("width", min=2)}
    return {INPUT: {0: torch.export.Dim("batch")} | sides}


def _traced(predictor: Predictor, fit: str | None) -> tuple[Tensor]:
    """An input to trace the graph with: one whose sides differ, so that none of them counts as fixed."""
    if fit is None:
        return (example_inputs(predictor, 2),)
    return (photos_of_another_size(predictor, fit)[0].repeat(2, 1, 1, 1),)


# --- formats ----------------------------------------------------------------------------------------------------------


def _write_onnx(predictor: Predictor, folder: Path, opset: int, fit: str | None) -> Path:
    onnx = import_optional("onnx", "Exporting to ONNX")
    import_optional("onnxscript", "Exporting to ONNX")
    runtime = import_optional("onnxruntime", "Checking an ONNX export")
    options: dict[str, Any] = {"input_names": [INPUT], "output_names": [OUTPUT], "opset_version": opset}
    with _quiet():
        program = torch.onnx.export(
            Pipeline(predictor, fit),
            _traced(predictor, fit),
            dynamo=True,
            dynamic_shapes=_dynamic_shapes(fit),
            verbose=False,
            **options,
        )
    assert program is not None
    model = program.model_proto
    found = {entry.domain: entry.version for entry in model.opset_import}.get("")
    if found != opset:
        raise UserError(f"The ONNX opset {opset} was asked for, but the graph needs {found}; choose that.", "opset")
    for key, value in _facts(predictor).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, json.dumps(value)
    onnx.checker.check_model(model)
    content = model.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    _compare(predictor, lambda x: session.run([OUTPUT], {INPUT: x.numpy()})[0], "ONNX graph", fit)
    files.atomic_write(folder / "model.onnx", content)
    return folder / "model.onnx"


def _write_program(predictor: Predictor, folder: Path, opset: int, fit: str | None) -> Path:
    with _quiet():
        inputs, shapes = _traced(predictor, fit), _dynamic_shapes(fit)
        program = torch.export.export(Pipeline(predictor, fit), inputs, dynamic_shapes=shapes)
        module = program.module()
        _compare(predictor, lambda x: module(x).detach().numpy(), "exported program", fit)
        path, temporary = folder / "model.pt2", folder / ".model.pt2"
        torch.export.save(program, temporary, extra_files={"facts.json": json.dumps(_facts(predictor))})
    temporary.replace(path)
    return path


def _write_safetensors(predictor: Predictor, folder: Path, opset: int, fit: str | None) -> Path:
    from safetensors.torch import save

    tensors = {name: value.contiguous() for name, value in Pipeline(predictor).state_dict().items()}
    facts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in _facts(predictor).items()}
    files.atomic_write(folder / "model.safetensors", save(tensors, facts))
    return folder / "model.safetensors"


WRITERS = {"onnx": _write_onnx, "torch": _write_program, "safetensors": _write_safetensors}


def _compare(predictor: Predictor, graph: Any, what: str, fit: str | None) -> None:
    """Raise unless the graph agrees with the predictor for several batch sizes and, if it resizes, for a photo."""
    cases = [(inputs, inputs) for inputs in (example_inputs(predictor, count) for count in CHECKED)]
    cases += [] if fit is None else [photos_of_another_size(predictor, fit)]
    for inputs, same in cases:
        wanted, found = predictor(same).numpy(), graph(inputs)
        difference = float(np.abs(found - wanted).max()) if found.shape == wanted.shape else float("inf")
        if not difference <= TOLERANCE:
            raise UserError(
                f"The {what} differs from the run by up to {difference:g} (allowed: {TOLERANCE:g}), so it was not "
                "written; try another opset or format, and report this."
            )
        log.debug("%s, inputs %s: largest difference %.1e", what, list(inputs.shape), difference)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the log messages and warnings of torch's exporter about its internals."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# --- the model card ---------------------------------------------------------------------------------------------------


def _facts(predictor: Predictor) -> dict[str, Any]:
    """What a program needs to know to use the graph."""
    return {
        "classes": list(predictor.classes),
        "shape": list(predictor.shape),
        "input": _describe_input(predictor),
        "temperature": predictor.temperature,
    }


def _describe_input(predictor: Predictor) -> str:
    shape = ", ".join(map(str, predictor.shape))
    if len(predictor.shape) != 3:
        return f"float32 [batch, {shape}]"
    kind = "RGB" if predictor.shape[0] == 3 else "gray"
    if is_resized(predictor):
        size = predictor.shape[-1]
        return (
            f"uint8 [batch, {predictor.shape[0]}, height, width], {kind}, 0 to 255, channels first; resizing to "
            f"{size} x {size} and normalization are part of the graph"
        )
    return f"uint8 [batch, {shape}], {kind}, 0 to 255, channels first; normalization is part of the graph"


def _sections(folder: Path, not_calibrated: str, temperature: Temperature | None) -> dict[str, list[str]]:
    """What the result of a run says, for its model card."""
    result = read_result(folder)
    config, summary = result["config"], result.get("data", {})
    matrix_estimated = config["training"]["transition"] == "estimate"
    dataset, training = config["dataset"], config["training"]
    labels = summary.get("label_counts")
    sections = {
        "How it was trained": [
            f"- Data: {dataset['data']}, {summary.get('examples', 0):,} examples, {summary.get('held_out', 0):,} more "
            "held out",
            f"- Complementary labels: {sum(labels):,}" if labels else "- Complementary labels: number not known",
            f"- Options: labels {dataset['labels']}, transition {training['transition']}, recipe {training['recipe']}",
            *([f"- Encoder: {summary['encoder']}"] if summary.get("encoder", "pixels") != "pixels" else []),
            f"- Loss {training['loss']}, mixing {config['mixing']['mix']}, seed {config['seed']}",
            f"- Configuration: {result['config_hash'][:16]}",
        ],
        "How good it is": [
            *(f"- {text}: {_value(result, key)}" for key, text in MEASURES.items() if _known(result, key)),
            *(f"- {note}" for note in result.get("estimate_notes") or ()),
        ],
        "Calibration": [] if temperature is None else _calibration(temperature, matrix_estimated),
        "Limits": [
            "- Estimates without true labels hold for examples like those of the training, and for answers that follow "
            "the transition matrix.",
            "- The probabilities mean little for inputs of another kind; there is no class for them.",
            *([f"- The probabilities are not calibrated: {not_calibrated}"] if not_calibrated else []),
        ],
    }
    return {title: lines for title, lines in sections.items() if lines}


def _calibration(found: Temperature, matrix_estimated: bool) -> list[str]:
    """How the probabilities were calibrated, and what this assumes."""
    rate = f"{100 * found.rate:.1f} %"
    if not found.rate_known:
        source = (
            f"estimated from the same answers: about {rate}. A rate of zero counts as likely as all others together"
        )
    elif matrix_estimated:
        source = f"taken from the transition matrix, which was estimated: {rate}. Its error is not part of the interval"
    else:
        source = f"known: {rate}, by the transition matrix"
    return [
        f"- Temperature {found.text()}, from {found.examples:,} held-out examples",
        f"- How many answers are wrong is {source}",
        "- It holds for answers that are right or wrong independently of how difficult the example is, and that follow "
        "the transition matrix if they are right",
    ]


def _known(result: dict[str, Any], key: str) -> bool:
    return isinstance(result.get(key), int | float)


def _value(result: dict[str, Any], key: str) -> str:
    """A value in percent, with its 95 % interval if the result has one."""
    ends = [key.replace("_selected", end) for end in ("_low", "_high")]
    known = key.startswith("estimated") and all(_known(result, end) for end in ends)
    interval = f" (95 % interval {100 * result[ends[0]]:.1f} to {100 * result[ends[1]]:.1f} %)" if known else ""
    return f"{100 * min(1.0, max(0.0, result[key])):.1f} %{interval}"  # an unbiased estimate may lie outside


def model_card(predictor: Predictor, written: dict[str, Path], sections: dict[str, list[str]] | None = None) -> str:
    """The model card as Markdown.

    Args:
        predictor: The network.
        written: The exported files by format.
        sections: Further sections: title -> lines.
    """
    network = predictor.network.kind
    encoder = predictor.encoder
    body = network if encoder is None else f"{network} on features of the encoder {encoder.backbone.kind}"
    parameters = sum(p.numel() for p in Pipeline(predictor).parameters())
    lines = [
        "# Model card",
        "",
        "A classifier that was trained from complementary labels: answers that say which class an example is *not*.",
        "",
        f"- Input `{INPUT}`: {_describe_input(predictor)}",
        f"- Output `{OUTPUT}`: float32 [batch, {len(predictor.classes)}], in the order of the classes below",
        f"- Classes: {', '.join(predictor.classes)}",
        f"- Network: {body}, {parameters:,} parameters",
        f"- Calibration: {_describe_temperature(predictor.temperature)}",
        f"- Files: {', '.join(path.name for name, path in written.items() if name != 'card')}",
    ]
    for title, content in (sections or {}).items():
        lines += ["", f"## {title}", "", *content]
    return "\n".join(lines) + "\n"


def _describe_temperature(temperature: float) -> str:
    if temperature == 1.0:
        return "none; the probabilities are those of the network"
    return f"logits are divided by {temperature:.3f}, estimated from held-out complementary labels"
