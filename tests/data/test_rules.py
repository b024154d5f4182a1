import numpy as np
import pytest

from complementary import data
from complementary.data.answers import Answer, AnswerTable
from complementary.data.matching import match
from complementary.data.problems import Problems
from complementary.data.rules import rule_labels
from complementary.errors import UserError


def test_rule_labels_equal_the_same_votes_as_answers():
    source = np.random.default_rng(0)
    votes = source.integers(-1, 4, (200, 5))
    votes[source.random((200, 5)) < 0.4] = -1
    negative = np.array([True, True, False, True, False])
    found = rule_labels(votes, 4, negative, ["a", "b", "c", "d", "e"])
    answers = []
    for i, m in np.ndindex(votes.shape):
        if votes[i, m] >= 0:
            name = (str(votes[i, m]),)
            said = {"no": name} if negative[m] else {"yes": name}
            answers.append(Answer(str(i), 0, annotator="abcde"[m], **said))
    keys, problems = [str(i) for i in range(200)], Problems()
    wanted = match(keys, AnswerTable(answers, True, False), ("0", "1", "2", "3"), problems, "rows")
    assert found.index.tolist() == wanted.index.tolist()
    assert found.excluded.tolist() == wanted.excluded.tolist()
    assert found.answers.example.tolist() == wanted.answers.example.tolist()
    assert found.answers.excluded.tolist() == wanted.answers.excluded.tolist()
    assert found.answers.annotator_names() == wanted.answers.annotator_names()
    assert 0 < len(found.index) < 200


@pytest.mark.parametrize(
    ("votes", "negative", "message"),
    [
        ([0, 1], True, r"shape \[2\]"),
        ([[0.5]], True, "float64"),
        ([[3]], True, "from 3 to 3"),
        ([[-2]], True, "-2"),
        ([[0, 1]], [True], "2 columns, but negative has 1"),
    ],
)
def test_rule_labels_refuse_bad_votes(votes, negative, message):
    with pytest.raises(UserError, match=message):
        rule_labels(votes, 3, negative)


def test_rule_labels_without_any_vote_are_empty():
    found = rule_labels(np.full((3, 2), -1), 3, True)
    assert (len(found.index), len(found.answers)) == (0, 0)
    assert found.excluded.shape == (0, 3)


def test_votes_of_an_npz_file_are_imported(tmp_path, logged):
    votes = np.array([[0, -1], [0, 2], [-1, -1], [1, 1]])
    arrays = {"inputs": np.eye(4), "votes": votes, "classes": ["cat", "dog", "ship"], "truth": [1, 2, 0, 1]}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError, match="negative"):
        data.import_dataset(tmp_path / "a.npz", "mine")
    np.savez(tmp_path / "a.npz", **arrays, negative=[1, 0], rules=["fur", "wheels"])
    found = data.import_dataset(tmp_path / "a.npz", "mine")
    assert found.train.excluded.tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    assert found.train.truth.tolist() == [1, 2, 1]
    assert found.answers.annotators == ("fur", "wheels")
    assert any("5 answers about 3 examples by 2 annotators" in line for line in logged())
