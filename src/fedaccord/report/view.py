"""What the template shows: dataclasses of text. Text stays text (the template escapes it); only `Picture.svg` is markup, made by us."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Cell:
    """One cell. `value` is the exact figure, as in the CSV; `quantity`, `method`, `seed` name it, so that a reader's script can find it."""

    text: str
    value: float | None = None
    quantity: str = ""
    method: str = ""
    seed: str = ""
    note: str = ""  # small print under the text
    chip: int | None = None  # index of the method whose colour stands before the text


@dataclass(frozen=True)
class Table:
    ident: str
    caption: str
    columns: tuple[tuple[str, str], ...]  # (name, what it means)
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    empty: str = ""  # why there are no rows


@dataclass(frozen=True)
class Picture:
    """A figure, or the reason that there is none."""

    ident: str
    caption: str
    svg: Markup | None
    alt: str = ""
    legend: tuple[tuple[int, str], ...] = ()  # (method index, label)
    marks: tuple[tuple[str, str], ...] = ()  # (css class of a swatch, label)
    wide: bool = False
    missing: str = ""


@dataclass(frozen=True)
class Section:
    ident: str
    title: str
    lead: str = ""
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class Card:
    """The verdict card of one method."""

    chip: int
    label: str
    headline: Cell
    facts: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True)
class Page:
    title: str
    subtitle: str
    verdicts: tuple[tuple[str, str], ...]  # (state, sentence)
    small_print: str
    cards: tuple[Card, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...]
    files: tuple[tuple[str, str], ...]  # (name, what is in it)
