"""document_python.py: signatures of the page about the Python API."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import document_python  # noqa: E402


def test_arguments_of_any_name_have_stars():
    def function(*rows: "int", seed: "int" = 0, **options: "str") -> "None": ...

    def keywords(first, *, second, **rest): ...

    assert document_python.signature("f", function)[2] == (
        "f(*rows: int, seed: int = 0, **options: str)"
    )
    assert document_python.signature("f", keywords)[2] == "f(first, *, second, **rest)"
