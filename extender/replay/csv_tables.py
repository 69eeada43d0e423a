"""CSV files of jobs and of nodes: the header and the rows with their lines. The header shows what separates values."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from extender.base.berth_errors import WireError

_SEPARATORS = ",;\t|"  # Excel writes the second and the third one, sacct --parsable2 the last one


class Row(NamedTuple):
    """A row: its line in the file, and the stripped values by column; or why it has none."""

    line: int
    values: Mapping[str, str]
    problem: str = ""


def table_of(text: str, where: str) -> tuple[list[str], Iterator[Row]]:
    """The columns of a CSV text and its rows, without empty lines. Reading raises WireError that names the line."""
    first = text.lstrip("\r\n").partition("\n")[0]
    separator = max(_SEPARATORS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    lines = _lines(reader, where)
    _, header = next(lines, (1, []))
    columns = [name.strip() for name in header]
    return columns, _rows(lines, columns)


def _lines(reader: Iterator[list[str]], where: str) -> Iterator[tuple[int, list[str]]]:
    try:
        for values in reader:
            if values:
                yield getattr(reader, "line_num", 0), values
    except csv.Error as error:
        number = getattr(reader, "line_num", 0)
        raise WireError(f"{where}: line {number}", f"is not CSV: {error}") from error


def _rows(lines: Iterator[tuple[int, list[str]]], columns: Sequence[str]) -> Iterator[Row]:
    for number, values in lines:
        if len(values) != len(columns):
            yield Row(number, {}, f"has {len(values)} values for {len(columns)} columns")
            continue
        yield Row(number, {name: value.strip() for name, value in zip(columns, values, strict=True)})
