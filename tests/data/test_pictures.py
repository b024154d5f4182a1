import os

import numpy as np
import pytest
from PIL import Image

from complementary.data.pictures import decode_into, decode_picture, find_pictures
from complementary.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)


def save(path, array, **options):
    Image.fromarray(array).save(path, **options)
    return path


def test_pixels_of_the_right_size_are_kept(tmp_path):
    pixels, grey = decode_picture(save(tmp_path / "a.png", PIXELS), 16)
    assert np.array_equal(pixels, PIXELS)
    assert not grey


@pytest.mark.parametrize("name", ["a.jpg", "a.webp", "a.bmp", "a.gif", "a.tif", "a.png"])
@pytest.mark.parametrize("shape", [(40, 90, 3), (7, 5, 3), (90, 40)])
def test_all_kinds_and_sizes_become_squares(tmp_path, name, shape):
    pixels, grey = decode_picture(save(tmp_path / name, np.full(shape, 90, np.uint8)), 12)
    assert pixels.shape == (12, 12, 3)
    assert grey
    assert abs(int(pixels.mean()) - 90) <= 2


def test_crop_keeps_the_middle_and_stretch_keeps_everything(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    path = save(tmp_path / "a.png", wide)
    assert decode_picture(path, 10, "crop")[0].min() == 255
    stretched = decode_picture(path, 30, "stretch")[0]
    assert stretched[:, :8].max() < 60
    assert stretched[:, 12:18].min() > 200


def test_exif_orientation_is_followed(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    top = np.zeros((16, 16, 3), np.uint8)
    top[:8] = 255
    turned = decode_picture(save(tmp_path / "a.png", top, exif=exif), 16)[0]
    assert turned[:, 8:].min() == 255
    assert turned[:, :8].max() == 0


def test_transparency_is_laid_on_white(tmp_path):
    clear = np.zeros((8, 8, 4), np.uint8)
    clear[:4, :, 3] = 255
    pixels = decode_picture(save(tmp_path / "a.png", clear), 8)[0]
    assert pixels[:4].max() == 0
    assert pixels[4:].min() == 255


def test_16_bit_grey_is_scaled_not_clipped(tmp_path):
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    pixels, grey = decode_picture(save(tmp_path / "a.png", ramp), 8)
    assert grey
    assert np.abs(pixels[..., 0].astype(int) - ramp.astype(int) // 257).max() <= 1


def test_palettes_and_bits(tmp_path):
    picture = Image.fromarray(PIXELS)
    picture.convert("P").save(tmp_path / "p.png")
    picture.convert("1").save(tmp_path / "1.png")
    picture.convert("CMYK").save(tmp_path / "c.jpg")
    assert not decode_picture(tmp_path / "p.png", 16)[1]
    assert decode_picture(tmp_path / "1.png", 16)[1]
    assert decode_picture(tmp_path / "c.jpg", 16)[0].shape == (16, 16, 3)


def test_broken_pictures_get_a_reason_and_the_others_are_decoded(tmp_path):
    good = save(tmp_path / "good.png", PIXELS)
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:200])
    (tmp_path / "text.png").write_text("<html>")
    (tmp_path / "empty.jpg").write_bytes(b"")
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tif")
    names = ["good.png", "cut.png", "text.png", "empty.jpg", "gone.png", "float.tif", "good.png"]
    target = np.zeros((7, 16, 16, 3), np.uint8)
    decoded = decode_into(target, [tmp_path / name for name in names], "crop", "x")
    assert list(decoded.failures) == [1, 2, 3, 4, 5]
    assert decoded.failures[2] == decoded.failures[3] == "not a picture"
    assert "fractions" in decoded.failures[5]
    assert np.array_equal(target[0], PIXELS)
    assert np.array_equal(target[6], PIXELS)
    assert not decoded.grey


def test_lossy_grey_is_grey(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8)
    assert decode_picture(save(tmp_path / "a.webp", noise), 24)[1]


def test_a_pipe_and_a_dead_link_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "link.png").symlink_to("nowhere")
    decoded = decode_into(np.zeros((2, 8, 8, 3), np.uint8), find_pictures(tmp_path), "crop", "x")
    assert decoded.failures == dict.fromkeys((0, 1), "there is no such file")


def test_a_folder_with_the_name_of_a_picture(tmp_path):
    save((tmp_path / "a.png"), PIXELS)
    (tmp_path / "x.png").mkdir()
    assert [p.name for p in find_pictures(tmp_path)] == ["a.png"]


def test_a_picture_with_too_many_pixels(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    decoded = decode_into(np.zeros((1, 8, 8, 3), np.uint8), [save(tmp_path / "a.png", PIXELS)], "crop", "x")
    assert decoded.failures[0].startswith("too many pixels")


def test_hidden_and_other_files_are_passed_over(tmp_path):
    for name in ("b.PNG", "a/c.jpeg", ".hidden.png", ".git/d.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [p.relative_to(tmp_path).as_posix() for p in find_pictures(tmp_path)] == ["a/c.jpeg", "b.PNG"]


def test_links_that_go_round_in_a_circle(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.png").touch()
    (tmp_path / "a/up").symlink_to(tmp_path)
    assert [p.name for p in find_pictures(tmp_path)] == ["x.png"]


def test_folders_without_pictures(tmp_path):
    with pytest.raises(UserError, match="holds no pictures"):
        find_pictures(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        find_pictures(tmp_path / "nowhere")
