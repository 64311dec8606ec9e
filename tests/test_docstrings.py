import pytest

from embrew.harvest import clean, documented


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Sort ``x``.\n\n    >>> sort([2, 1])\n    [1, 2]\n\nEnd.", "Sort x.\n\nEnd."),
        ("A.\n\n.. versionadded:: 1.2\n   Long ago.\n\nB.", "A.\n\nB."),
        ("A.\n\n.. note:: Mind this.", "A.\n\nMind this."),
        ("See :func:`~graph.path` and :class:`Node <graph.Node>`.", "See graph.path and Node."),
        ("See `the site <https://x.org>`_ or https://y.org/z now [1]_.", "See the site or now."),
        ("See [`Model`][pkg.Model] or [this](https://x.org).", "See Model or this."),
        ("A.\n\nParameters\n----------\nx : int\n    Number.", "A.\n\nParameters:\nx : int\n    Number."),
        ("A.\n\nExamples\n--------\nDo this:\n>>> a\n\nNotes\n-----\nSmall.", "A.\n\nNotes:\nSmall."),
        ("A.\n\nExample:\n    run it\n\nReturns:\n    One.", "A.\n\nReturns:\n    One."),
        ("A.\n\n:param int x: Number.\n:type x: int\n:returns: One.", "A.\n\nx: Number.\nReturns: One."),
        ("A.\n\n```python\nrun()\n```\nB.", "A.\n\nB."),
        ('!!! abstract "Usage"\n    [Page](x.md)\n\nA.', "A."),
    ],
)
def test_markup_becomes_prose(docstring, expected):
    assert clean(docstring) == expected


SOURCE = '''
"""The module says this."""
from typing import overload

@overload
def area(side: int) -> int:
    """An overload says nothing."""

def area(side, *more, scale=1.0, big=some.very.long.default.value(1), _private=None, **options):
    """Area of a square."""

def _hidden():
    """Private."""

def old():
    """Deprecated: use new."""

class Shape(Base):
    """Something drawn."""

    def __init__(self, corners: int = 4):
        """Not listed."""

    def turn(self, angle):
        """Turn by an angle."""
        def inner():
            """Not listed."""

    @staticmethod
    def unit(size):
        """One of them."""

    @property
    def width(self):
        """How wide."""

    @width.setter
    def width(self, value):
        """How wide, again."""
'''


def test_names_and_signatures(tmp_path):
    file = tmp_path / "_shapes.py"
    file.write_text(SOURCE)
    assert [(entry.name, entry.signature) for entry in documented(file, "pkg._shapes")] == [
        ("pkg", ""),
        ("pkg.area", "area(side, *more, scale=1.0, big=..., **options)"),
        ("pkg.Shape", "Shape(corners=4)"),
        ("pkg.Shape.turn", "turn(angle)"),
        ("pkg.Shape.unit", "unit(size)"),
        ("pkg.Shape.width", "width"),
    ]
