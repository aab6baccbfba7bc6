"""The table of lines that no test runs is of lines that there are."""

from __future__ import annotations

import pytest

from tests import cuda_coverage


@pytest.mark.parametrize("line", cuda_coverage.reasons(), ids=lambda line: line[0])
def test_a_reason_is_of_a_line_that_there_is(line: cuda_coverage.Line) -> None:
    name, code = line
    lines = [text.strip() for text in (cuda_coverage.BACKEND / name).read_text().splitlines()]
    assert code in lines
    assert cuda_coverage.reasons()[line]


def test_lines_without_a_reason_and_reasons_without_a_line_are_told() -> None:
    known = {("a.py", "x = 1"): "why", ("a.py", "z = 3"): "why"}
    missing = [("a.py", "x = 1"), ("a.py", "y = 2"), ("b.py", "x = 1"), ("a.py", "y = 2")]
    assert cuda_coverage.judge(missing, known) == ([("a.py", "y = 2"), ("b.py", "x = 1")], [("a.py", "z = 3")])
