"""The storeys of the package: a module imports only from its own storey's folder or from a storey below."""

import ast
import functools
import re
from pathlib import Path

import complementary

ROOT = Path(complementary.__path__[0])
STOREYS = (  # from the foundation to the roof; a name is a folder or a file at the root
    ("errors",),
    ("config", "rng"),
    ("files",),
    ("transitions",),
    ("priors",),
    ("labels", "losses", "mixing"),
    ("long_tail", "scores"),
    ("oracle",),
    ("reports",),
    ("data",),
    ("augment",),
    ("engine",),
    ("networks",),
    ("encoders",),
    ("clusters",),
    ("training",),
    ("estimator",),
    ("sweeps",),
    ("paper",),
    ("cli",),
    ("__init__", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(STOREYS) for name in names}
LAZY = {"__init__", "cli"}  # may import inside functions: the package and the command line start without torch


def part_of(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(node):
    """The parts of the package that an import statement names."""
    if isinstance(node, ast.Import):
        names = [a.name for a in node.names]
    elif node.level == 0 and node.module:
        names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "complementary" else [node.module]
    else:
        names = []
    return [name.split(".")[1] for name in names if name.startswith("complementary.")]


@functools.cache
def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path):
    tree = parse(path)
    top = set(map(id, tree.body)) | {id(n) for b in tree.body if isinstance(b, ast.If) for n in ast.walk(b)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in imported(node):
                yield name, node.lineno, id(node) in top


def test_storeys_name_every_part_of_the_package():
    found = {part_of(p) for p in ROOT.rglob("*.py")}
    assert found == set(LEVEL)


def test_root_has_at_most_15_files():
    assert len(list(ROOT.glob("*.py"))) <= 15


def test_modules_import_only_from_below():
    wrong = []
    for path in ROOT.rglob("*.py"):
        own = part_of(path)
        for name, line, _ in imports_of(path):
            if name in LEVEL and name != own and LEVEL[name] >= LEVEL[own]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong


def test_own_modules_are_imported_at_the_top_of_a_file():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in ROOT.rglob("*.py")
        if part_of(path) not in LAZY
        for name, line, top in imports_of(path)
        if not top
    ]
    assert not wrong


FLAG = re.compile(r"(^|[\s(])--[a-z]")
TERMINAL = "reports/terminal.py"  # what the command line prints with


@functools.cache
def library_nodes():
    """Every syntax node outside the command line, with its place."""
    return [
        (f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", node)
        for path in ROOT.rglob("*.py")
        if part_of(path) not in ("cli", "__main__")
        for node in ast.walk(parse(path))
    ]


def test_library_does_not_print():
    wrong = [
        place
        for place, node in library_nodes()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert [place for place in wrong if not place.startswith(TERMINAL)] == []


def test_library_does_not_name_flags_of_the_command_line():
    """A string that is nothing but a flag is an argument of another program."""
    wrong = [
        f"{place} {FLAG.search(node.value)[0].strip()}"
        for place, node in library_nodes()
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FLAG.search(node.value)
        if not re.fullmatch(r"--[a-z-]+", node.value)
    ]
    assert wrong == []
