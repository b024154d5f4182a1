import os

import numpy as np
import pytest
from PIL import Image

from complementary.data.images import decode_image, decode_into, find_images
from complementary.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)


def save(path, array, **options):
    Image.fromarray(array).save(path, **options)
    return path


def test_decode_keeps_pixels_of_the_right_size(tmp_path):
    pixels, gray = decode_image(save(tmp_path / "a.png", PIXELS), 16)
    assert np.array_equal(pixels, PIXELS)
    assert not gray


@pytest.mark.parametrize("name", ["a.jpg", "a.webp", "a.bmp", "a.gif", "a.tif", "a.png"])
@pytest.mark.parametrize("shape", [(40, 90, 3), (7, 5, 3), (90, 40)])
def test_decode_makes_squares_of_all_kinds_and_sizes(tmp_path, name, shape):
    pixels, gray = decode_image(save(tmp_path / name, np.full(shape, 90, np.uint8)), 12)
    assert pixels.shape == (12, 12, 3)
    assert gray
    assert abs(int(pixels.mean()) - 90) <= 2


def test_decode_crops_the_center_or_stretches(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    path = save(tmp_path / "a.png", wide)
    assert decode_image(path, 10, "crop")[0].min() == 255
    stretched = decode_image(path, 30, "stretch")[0]
    assert stretched[:, :8].max() < 60
    assert stretched[:, 12:18].min() > 200


def test_decode_applies_the_exif_orientation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    top = np.zeros((16, 16, 3), np.uint8)
    top[:8] = 255
    turned = decode_image(save(tmp_path / "a.png", top, exif=exif), 16)[0]
    assert turned[:, 8:].min() == 255
    assert turned[:, :8].max() == 0


def test_decode_puts_transparency_on_white(tmp_path):
    clear = np.zeros((8, 8, 4), np.uint8)
    clear[:4, :, 3] = 255
    pixels = decode_image(save(tmp_path / "a.png", clear), 8)[0]
    assert pixels[:4].max() == 0
    assert pixels[4:].min() == 255


def test_decode_scales_16_bit_gray(tmp_path):
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    pixels, gray = decode_image(save(tmp_path / "a.png", ramp), 8)
    assert gray
    assert np.abs(pixels[..., 0].astype(int) - ramp.astype(int) // 257).max() <= 1


def test_decode_of_other_pillow_modes(tmp_path):
    image = Image.fromarray(PIXELS)
    image.convert("P").save(tmp_path / "p.png")
    image.convert("1").save(tmp_path / "1.png")
    image.convert("CMYK").save(tmp_path / "c.jpg")
    assert not decode_image(tmp_path / "p.png", 16)[1]
    assert decode_image(tmp_path / "1.png", 16)[1]
    assert decode_image(tmp_path / "c.jpg", 16)[0].shape == (16, 16, 3)


def test_decode_into_records_broken_images_and_decodes_the_others(tmp_path):
    good = save(tmp_path / "good.png", PIXELS)
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:200])
    (tmp_path / "text.png").write_text("<html>")
    (tmp_path / "empty.jpg").write_bytes(b"")
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tif")
    names = ["good.png", "cut.png", "text.png", "empty.jpg", "gone.png", "float.tif", "good.png"]
    target = np.zeros((7, 16, 16, 3), np.uint8)
    decoded = decode_into(target, [tmp_path / name for name in names], "crop", "x")
    assert list(decoded.failures) == [1, 2, 3, 4, 5]
    assert decoded.failures[2] == decoded.failures[3] == "not an image"
    assert "floating-point" in decoded.failures[5]
    assert np.array_equal(target[0], PIXELS)
    assert np.array_equal(target[6], PIXELS)
    assert not decoded.gray


def test_decode_recognizes_gray_in_lossy_files(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8)
    assert decode_image(save(tmp_path / "a.webp", noise), 24)[1]


def test_decode_into_does_not_wait_for_pipes_and_dead_links(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "link.png").symlink_to("nowhere")
    decoded = decode_into(np.zeros((2, 8, 8, 3), np.uint8), find_images(tmp_path), "crop", "x")
    assert decoded.failures == dict.fromkeys((0, 1), "no such file")


def test_find_images_ignores_folders_named_like_images(tmp_path):
    save((tmp_path / "a.png"), PIXELS)
    (tmp_path / "x.png").mkdir()
    assert [p.name for p in find_images(tmp_path)] == ["a.png"]


def test_decode_into_refuses_too_many_pixels(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    decoded = decode_into(np.zeros((1, 8, 8, 3), np.uint8), [save(tmp_path / "a.png", PIXELS)], "crop", "x")
    assert decoded.failures[0].startswith("too many pixels")


def test_find_images_skips_hidden_and_other_files(tmp_path):
    for name in ("b.PNG", "a/c.jpeg", ".hidden.png", ".git/d.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [p.relative_to(tmp_path).as_posix() for p in find_images(tmp_path)] == ["a/c.jpeg", "b.PNG"]


def test_find_images_follows_circular_links_once(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.png").touch()
    (tmp_path / "a/up").symlink_to(tmp_path)
    assert [p.name for p in find_images(tmp_path)] == ["x.png"]


def test_find_images_in_folders_without_images(tmp_path):
    with pytest.raises(UserError, match="no images"):
        find_images(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        find_images(tmp_path / "nowhere")
