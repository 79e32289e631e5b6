"""Tables of text fit a terminal: optional columns go, wide ones wrap, the rest goes on below."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.report.columns import GAP, NARROWEST, table, terminal_width

WIDE = [(f"run{place}", "0.1234 ± 0.0012", "0.4321 ± 0.0013", 100 * place) for place in range(2)]
HEADER = ("run", "global", "personal", "bits")


def test_a_table_that_fits_is_left_as_it_is() -> None:
    (line,) = table(WIDE[1:], width=80).splitlines()
    assert line == "run1  0.1234 ± 0.0012  0.4321 ± 0.0013  100"


def test_a_table_that_is_too_wide_goes_on_below_with_its_first_column() -> None:
    first, second = table(WIDE, HEADER, width=40).split("\n\n")
    assert first.splitlines()[0].split() == ["run", "global", "personal"]
    assert [line.split() for line in second.splitlines()] == [
        ["run", "bits"],
        ["----", "----"],
        ["run0", "0"],
        ["run1", "100"],
    ]


def test_it_goes_on_where_the_caller_wants() -> None:
    first, second = table(WIDE, HEADER, width=40, breaks=("personal",)).split("\n\n")
    assert first.splitlines()[0].split() == ["run", "global"]
    assert second.splitlines()[0].split() == ["run", "personal", "bits"]
    assert "\n\n" not in table(WIDE, HEADER, width=60, breaks=("personal",))


def test_optional_columns_are_left_out_before_anything_else() -> None:
    shown = table(WIDE, HEADER, width=40, optional=("bits",))
    assert "bits" not in shown and "\n\n" not in shown
    assert "bits" in table(WIDE, HEADER, width=60, optional=("bits",))


def test_a_cell_that_is_indented_beyond_its_column_is_wrapped() -> None:
    found = table([("a", " " * 40 + "figures to the right")], width=30)
    assert found.split() == ["a", "figures", "to", "the", "right"]
    assert max(map(len, found.splitlines())) <= 30


def test_long_texts_wrap_at_words_and_names_at_their_dots() -> None:
    rows = [("fedavg", "clients train the server's model; the server averages the results")]
    assert table(rows, width=50) == (
        "fedavg  clients train the server's model; the\n          server averages the results"
    )
    leaf = ("up", "model.values[stages.0.0.conv1.weight]", "1 Mbit", "2 Mbit")
    assert table([leaf], width=44).splitlines() == [
        "up  model.values[stages.0.0.  1 Mbit  2 Mbit",
        "      conv1.weight]",
    ]


def test_the_variable_of_the_terminal_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert terminal_width() == 40 and "\n\n" in table(WIDE, HEADER)
    monkeypatch.setenv("COLUMNS", "200")
    assert "\n\n" not in table(WIDE, HEADER)


CELL = st.text("ab .[]", min_size=1, max_size=60)


@settings(max_examples=60)
@given(
    st.integers(1, 6).flatmap(
        lambda count: st.lists(st.lists(CELL, min_size=count, max_size=count), min_size=1)
    )
)
def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost(rows: list[list[str]]) -> None:
    limit = 2 * NARROWEST + len(GAP)
    shown = table(rows, width=limit)
    assert max(map(len, shown.split("\n"))) <= limit
    keys = sum(len("".join(row[0].split())) for row in rows)
    parts = len(shown.split("\n\n")) if len(rows[0]) > 2 else 1
    kept = sum(len("".join(cell.split())) for row in rows for cell in row[1:])
    if all(cell.strip() for row in rows for cell in row):
        assert len("".join(shown.split())) == kept + keys * parts
