from pathlib import Path

import pytest

from complementary.config import Config, to_toml
from complementary.errors import UserError
from complementary.sweeps.grid import read_grid

GRIDS = Path(__file__).parents[2] / "results/grids"


def read(tmp_path, text):
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return read_grid(path)


def test_grid_has_every_combination_with_every_seed_once(tmp_path):
    cells = read(tmp_path, 'epochs = 3\nseeds = [4, 7]\n[grid]\nloss = ["s-nl", "dm"]\nalpha = [1, 0.2]')
    found = [(c.config.training.loss, c.config.mixing.alpha, c.config.seed) for c in cells]
    assert found == [(loss, alpha, seed) for loss in ("s-nl", "dm") for alpha in (1.0, 0.2) for seed in (4, 7)]
    assert {c.config.training.epochs for c in cells} == {3}
    assert cells[0].name == "loss=s-nl alpha=1 seed=4"
    assert len({c.key for c in cells}) == 8


def test_cases_link_options_and_are_combined_with_the_grid(tmp_path):
    text = 'seeds = 2\n[grid]\nmix = ["none", "icm"]\n[[case]]\nlong_tail = 1\n[[case]]\nlong_tail = 100\nalpha = 0.1'
    cells = read(tmp_path, text)
    assert len(cells) == 8
    linked = {(c.config.dataset.long_tail, c.config.mixing.alpha) for c in cells}
    assert linked == {(1.0, 0.4), (100.0, 0.1)}


def test_recipe_of_a_grid_adapts_to_the_options_of_a_cell(tmp_path):
    cells = read(tmp_path, 'recipe = "features"\nepochs = 7\n[grid]\nlong_tail = [1, 100]')
    found = [(c.config.training.loss, c.config.training.weight_decay, c.config.training.epochs) for c in cells]
    assert found == [("s-exp", 0.01, 7), ("s-nl-w", 0.003, 7)]


def test_options_can_be_flat_or_in_their_sections(tmp_path):
    (flat,) = read(tmp_path, 'data = "digits"\nlr = 0.5\nseed = 3')
    (nested,) = read(tmp_path, 'seed = 3\n[dataset]\ndata = "digits"\n[training]\nlr = 0.5')
    assert flat.config == nested.config == Config.of(data="digits", lr=0.5, seed=3)


def test_config_toml_of_a_run_can_be_the_base(tmp_path):
    base = Config.of(loss="dm", epochs=7, seed=5, flip=True)
    cells = read(tmp_path, "seeds = 2\n" + to_toml(base) + '\n[grid]\nloss = ["fwd", "s-exp"]')
    assert [c.config for c in cells] == [base.with_(loss=x, seed=s) for x in ("fwd", "s-exp") for s in (0, 1)]


def test_integers_are_floats_where_the_option_is_one(tmp_path):
    whole, point = read(tmp_path, "long_tail = 100"), read(tmp_path, "long_tail = 100.0")
    assert whole[0].key == point[0].key


def test_cell_names_list_what_varies_or_the_main_options(tmp_path):
    (cell,) = read(tmp_path, 'data = "digits"\nloss = "dm"\nmix = "icm"')
    assert cell.name == "data=digits loss=dm mix=icm seed=0"
    names = [cell.name for cell in read(tmp_path, "[[case]]\n[[case]]\nalpha = 0.2")]
    assert all(names)
    assert names[1] == "alpha=0.2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoks = 3", "'epoks'"),
        ("[solver]\nlr = 1", "'solver'"),
        ("[dataset]\nlr = 1", r"'lr' .*\[dataset\]"),
        ("lr = 1\n[training]\nlr = 2", r"lr is 1 at the top and 2 in \[training\], .* remove one"),
        ("[grid]\nepoks = [3]", r"'epoks' in \[grid\]"),
        ("[[case]]\nepoks = 3", r"'epoks' in \[\[case\]\]"),
        ("[grid]\nloss = []", "loss .* empty"),
        ("case = []", "case .* empty"),
        ("case = 3", "case must be"),
        ("grid = 3", "grid is 3"),
        ("seeds = []", "seeds"),
        ("seeds = 0", "seeds is 0"),
        ('seeds = "three"', "seeds is 'three'"),
        ("seeds = [0.5]", r"seeds is \[0.5\]"),
        ("seeds = true", "seeds is True"),
        ('[grid]\nloss = "dm"', "loss .* 'dm', but it must be a list"),
        ('[grid]\nalpha = ["much"]', "alpha is 'much'"),
        ("epochs = 2.5", "epochs is 2.5"),
        ('[grid]\nloss = ["s-nl", "x"]', "loss 'x'"),
        ("[grid]\nalpha = [0.4, -1]", "alpha is -1.0"),
        ("[grid]\nalpha = [1, 1.0]", r"the same \(alpha=1; alpha=1.0\)"),
        ("seeds = [1, 1]", r"the same \(seed=1; seed=1\)"),
        ("[grid]\nlr = [1]\n[[case]]\nlong_tail = 9\n[[case]]\nlong_tail = 9", r"the same \(long_tail=9 lr=1; long"),
        ("alpha = 0.2\n[[case]]\n[[case]]\nalpha = 0.2", r"the same \(data=.*; alpha=0.2\)"),
        ("seeds = 2\n[grid]\nseed = [1]", "both seed and seeds"),
        ("[grid]\nalpha = [1]\n[[case]]\nalpha = 2", "alpha is in"),
        ("epochs = ", "not TOML"),
    ],
)
def test_grid_errors_name_file_and_key(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "grid.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", sorted(GRIDS.glob("*.toml")), ids=lambda path: path.stem)
def test_stored_grids_have_distinct_cells(path):
    cells = read_grid(path)
    assert len({cell.key for cell in cells}) == len(cells) > 0


def test_grid_file_that_is_missing_is_reported(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.toml"):
        read_grid(tmp_path / "nowhere.toml")
