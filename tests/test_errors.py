import pickle
import sys

import pytest

from complementary.errors import UserError, import_optional, one_of, require


def test_user_error_names_the_option_and_survives_pickling():
    error = pickle.loads(pickle.dumps(UserError("The option lr is 0.", "lr")))
    assert (str(error), error.option) == ("The option lr is 0.", "lr")
    assert isinstance(error, ValueError)
    assert UserError("x").option is None


def test_require_raises_only_where_it_does_not_hold():
    require(True, "x", 1, "anything")
    with pytest.raises(UserError, match=r"x is 1.*2") as caught:
        require(False, "x", 1, "2")
    assert caught.value.option == "x"


def test_one_of_lists_the_choices():
    assert one_of("The loss", "dm", {"dm": 1, "fwd": 2}) == "dm"
    with pytest.raises(UserError, match=r"'ce'.*dm, fwd") as caught:
        one_of("The loss", "ce", ["dm", "fwd"], "loss")
    assert caught.value.option == "loss"


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("PIL.Image", "pillow", "cli"),
        ("sklearn", "scikit-learn", "cli"),
        ("ray", "ray", "ray"),
        ("onnx", "onnx", "export"),
    ],
)
def test_import_optional_says_how_to_install_the_missing_package(monkeypatch, module, package, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"needs {package}: run pip install '\.\[{extra}\]' in the checkout") as caught:
        import_optional(module, "Decoding images")
    assert str(caught.value).startswith("Decoding images")


def test_import_optional_returns_the_module():
    assert import_optional("json", "Nothing") is sys.modules["json"]


@pytest.mark.parametrize(
    ("found", "close"), [("snl", "s-nl"), ("imc", "icm"), ("atuo", "auto"), ("digit", "digits"), ("xyz", None)]
)
def test_one_of_suggests_what_is_similar(found, close):
    with pytest.raises(UserError) as caught:
        one_of("The option", found, ["s-nl", "icm", "auto", "digits"])
    assert ("did you mean" in str(caught.value)) is (close is not None)
    assert close is None or f"(did you mean {close!r}?)" in str(caught.value)
