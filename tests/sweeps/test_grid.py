import pytest

from complementary.config import Config, to_toml
from complementary.errors import UserError
from complementary.sweeps.grid import read_grid


def read(tmp_path, text):
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return read_grid(path)


def test_every_combination_with_every_seed_once(tmp_path):
    cells = read(tmp_path, 'epochs = 3\nseeds = [4, 7]\n[grid]\nloss = ["s-nl", "dm"]\nalpha = [1, 0.2]')
    found = [(c.config.training.loss, c.config.mixing.alpha, c.config.seed) for c in cells]
    assert found == [(loss, alpha, seed) for loss in ("s-nl", "dm") for alpha in (1.0, 0.2) for seed in (4, 7)]
    assert {c.config.training.epochs for c in cells} == {3}
    assert cells[0].name == "loss=s-nl alpha=1 seed=4"
    assert len({c.key for c in cells}) == 8


def test_cases_link_options_and_the_product_runs_over_them(tmp_path):
    text = 'seeds = 2\n[grid]\nmix = ["none", "icm"]\n[[case]]\nlong_tail = 1\n[[case]]\nlong_tail = 100\nalpha = 0.1'
    cells = read(tmp_path, text)
    assert len(cells) == 8
    linked = {(c.config.dataset.long_tail, c.config.mixing.alpha) for c in cells}
    assert linked == {(1.0, 0.4), (100.0, 0.1)}


def test_options_stand_flat_or_in_their_sections(tmp_path):
    (flat,) = read(tmp_path, 'data = "digits"\nlr = 0.5\nseed = 3')
    (nested,) = read(tmp_path, 'seed = 3\n[source]\ndata = "digits"\n[training]\nlr = 0.5')
    assert flat.config == nested.config == Config.of(data="digits", lr=0.5, seed=3)


def test_the_config_of_a_run_is_a_base(tmp_path):
    base = Config.of(loss="dm", epochs=7, seed=5, flip=True)
    cells = read(tmp_path, "seeds = 2\n" + to_toml(base) + '\n[grid]\nloss = ["fwd", "s-exp"]')
    assert [c.config for c in cells] == [base.with_(loss=x, seed=s) for x in ("fwd", "s-exp") for s in (0, 1)]


def test_a_whole_number_is_a_float_where_one_is_meant(tmp_path):
    whole, point = read(tmp_path, "long_tail = 100"), read(tmp_path, "long_tail = 100.0")
    assert whole[0].key == point[0].key


def test_a_cell_in_which_nothing_varies_has_a_name_too(tmp_path):
    (cell,) = read(tmp_path, 'data = "digits"\nloss = "dm"\nmix = "icm"')
    assert cell.name == "data=digits loss=dm mix=icm seed=0"
    names = [cell.name for cell in read(tmp_path, "[[case]]\n[[case]]\nalpha = 0.2")]
    assert all(names)
    assert names[1] == "alpha=0.2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epoks = 3", "'epoks' is not known; wanted an option"),
        ("[optimiser]\nlr = 1", "'optimiser' is not known"),
        ("[source]\nlr = 1", r"'lr' in \[source\] is not an option there"),
        ("[grid]\nepoks = [3]", r"'epoks' in \[grid\] is not an option"),
        ("[[case]]\nepoks = 3", r"'epoks' in \[\[case\]\] is not an option"),
        ("[grid]\nloss = []", "loss in .grid. is an empty list, so that no cell is left"),
        ("case = []", "case is an empty list"),
        ("case = 3", "case must be a list of tables"),
        ("grid = 3", "grid is 3, but it must be a table"),
        ("seeds = []", "so that no cell is left"),
        ("seeds = 0", "so that no cell is left"),
        ('seeds = "three"', "must be a number of seeds or a list"),
        ("seeds = [0.5]", "must be a number of seeds or a list"),
        ("seeds = true", "must be a number of seeds or a list"),
        ('[grid]\nloss = "dm"', "loss in .grid. is 'dm', but it must be a list"),
        ('[grid]\nalpha = ["much"]', "alpha is 'much', but it must be of type float"),
        ("epochs = 2.5", "epochs is 2.5, but it must be of type int"),
        ('[grid]\nloss = ["s-nl", "x"]', "The loss 'x' is not known"),
        ("[grid]\nalpha = [0.4, -1]", "alpha is -1.0, but it must be above 0"),
        ("[grid]\nalpha = [1, 1.0]", r"two cells are the same \(alpha=1; alpha=1.0\)"),
        ("seeds = [1, 1]", "two cells are the same"),
        ("seeds = 2\n[grid]\nseed = [1]", "seed is varied already"),
        ("[grid]\nalpha = [1]\n[[case]]\nalpha = 2", "alpha stands both in"),
        ("epochs = ", "is not TOML"),
    ],
)
def test_a_bad_grid_is_one_sentence_that_names_file_and_key(tmp_path, text, said):
    with pytest.raises(UserError, match=said) as problem:
        read(tmp_path, text)
    assert str(tmp_path / "grid.toml") in str(problem.value)
    assert "\n" not in str(problem.value).strip()


def test_a_grid_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"nowhere.toml cannot be read"):
        read_grid(tmp_path / "nowhere.toml")
