"""Writes docs/paper_index.md: what each method's docstrings say of its paper, and what the method itself costs, measured.

python tools/paper_index.py [--check]      --check only says whether the page is current

The docstring of a method's module has a fixed form:

    NAME (AUTHORS YEAR[, VENUE], arXiv:ID or doi:ID or PMLR PAGES[, PLACE][; another paper])[: in a few words]

    [Paper: none, ...]                     a method without a paper has this line instead
    Reference code read: WHAT COMMIT.      or none.
    Deviation: ...                         one line each, from the paper or from its code; or none.

Numbers of vectors, of scalars and of gradients stand in no docstring: they are counted here, and `lacking` looks for them.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.algorithms import REGISTRY
from fedaccord.core.algorithm import Algorithm, Device
from fedaccord.core.local import LocalPlan, local_training, upload_template
from fedaccord.core.state import State, to_arrays
from fedaccord.core.vector import FlatModel

PAGE = Path(__file__).resolve().parent.parent / "docs" / "paper_index.md"
LINK = re.compile(r"arXiv:\d{4}\.\d{5}|doi:10\.[^\s,;)]+|PMLR \d+:\d+-\d+")
FIELD = re.compile(r"^(Paper|Reference code read|Deviation): (.*)$")
COUNTED = re.compile(r"(?i)\w+ gradients? (?:a|per|each) (?:local )?step|\bd (?:down|up)\b|traffic \d*d\b|client state \d*d\b")
LATE_ROUND = 1000  # after every warm-up

INTRODUCTION = """# Methods and their papers

Made by `tools/paper_index.py`: the words from the docstrings, the numbers counted on the methods themselves, at their default settings.

- Client state, down and up are in numbers that a client keeps, receives and sends in a round; d is the number of weights. Buffers, as
  batch-norm statistics, and parameters that stay with the client are not counted.
- Gradients are backward passes of one mini-batch, forwards are forward passes; both are of one local step, past any warm-up.
- Reference code is what was read for the project's specification, to compare the equations; none of it is copied.
- The mean that moves the model follows the policy's weights (sample counts by default) in every method; some codes take a plain mean.
"""


class Facts(NamedTuple):
    """What a method's docstrings say of it."""

    paper: str  # citations; "" where there are none
    place: str  # equation, algorithm or section; "" where none is named
    reference: str  # the code that was read; "" where that is not said
    deviations: tuple[str, ...]


class Costs(NamedTuple):
    """Counted on the method: numbers in units of d, and passes of one local step."""

    client_state: str
    down: str
    up: str
    gradients: float
    forwards: float


def facts(method: type[Algorithm]) -> Facts:
    """Read from the docstring of the method's module, and further deviations from its own."""
    module, own = inspect.getdoc(sys.modules[method.__module__]) or "", inspect.getdoc(method) or ""
    found = list(_fields(module)) + list(_fields(own))
    of = {name: [value for key, value in found if key == name] for name in ("Paper", "Reference code read", "Deviation")}
    cited, places = "; ".join(of["Paper"]).rstrip("."), []
    match = re.match(r"[\w-]+ \((.*?)\)[.:]", module)
    if match:
        parts = [part.strip() for part in match[1].split(";")]
        if all(LINK.search(part) for part in parts):
            ends = [list(LINK.finditer(part))[-1].end() for part in parts]
            cited = "; ".join(part[:end] for part, end in zip(parts, ends, strict=True))
            places = [place for part, end in zip(parts, ends, strict=True) if (place := part[end:].strip(" ,"))]
    return Facts(cited, "; ".join(places), " ".join(of["Reference code read"]), tuple(of["Deviation"]))


def lacking(method: type[Algorithm]) -> list[str]:
    """What the docstrings should say and do not, and what they should leave to the count."""
    fact = facts(method)
    missing = [f"no {what}" for what, said in zip(Facts._fields, fact, strict=True) if not said]
    if fact.paper.startswith("none,"):  # there is no place in no paper
        missing.remove("no place")
    words = "\n".join(inspect.getdoc(each) or "" for each in (sys.modules[method.__module__], method))
    return missing + [f"counts by itself: {found}" for found in COUNTED.findall(words)]


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """(name, value) of the lines of fixed form; a value goes on until the next of them or an empty line."""
    name, value = "", ""
    for line in [*text.splitlines(), ""]:
        match = FIELD.match(line)
        if name and (match or not line.strip()):
            yield name, value
            name = ""
        if match:
            name, value = match[1], match[2]
        elif name:
            value += " " + line.strip()


class Counted(nn.Module):
    """A model of 31 weights that counts its forward passes. d is no number of scalars that a method keeps."""

    passes: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.passes.append(1)
        outputs: Tensor = self.last(torch.tanh(self.first(x)))
        return outputs


def costs(method: Algorithm) -> Costs:
    """What a client keeps, receives and sends; and the passes that one step more costs."""
    model = FlatModel(Counted())
    server, kept = method.init_server(model.initial_w), method.init_client(model.initial_w)
    sent, upload = method.broadcast(server), upload_template(method, model.initial_w, model.layout)
    (few, few_forwards), (more, more_forwards) = (_passes(method, model, sent, kept, steps) for steps in (2, 4))
    sizes = [in_units_of_d(state, model.layout.size) for state in (kept, sent, upload)]
    return Costs(*sizes, (more - few) / 2, (more_forwards - few_forwards) / 2)


def _passes(method: Algorithm, model: FlatModel, sent: State, kept: State, steps: int) -> tuple[int, int]:
    """(gradients, forward passes) of a round of so many steps."""
    x, y = torch.linspace(-1, 1, 12).reshape(4, 3), torch.tensor([0, 1, 2, 0])
    share = method.effort(steps, 1, {}, Device()).two_pass_share
    Counted.passes.clear()
    trained = local_training(
        method,
        model,
        F.cross_entropy,
        LocalPlan(),
        sent,
        model.initial_buffers,
        kept,
        lambda: iter([(x, y)] * steps),
        round=LATE_ROUND,
        lr=0.1,
        num_steps=steps,
        validation=None,
        random_direction=lambda: torch.ones_like(model.initial_w) / model.layout.size**0.5,
        two_pass_share=share,
    )
    return trained.gradients, len(Counted.passes)


def in_units_of_d(state: State, d: int) -> str:
    """'2d + 3' for two vectors [d] and three other numbers."""
    sizes = [leaf.numel() for leaf in to_arrays(state).values()]
    vectors, numbers = sum(size == d for size in sizes), sum(size for size in sizes if size != d)
    parts = [f"{vectors}d" if vectors > 1 else "d"] * (vectors > 0) + [str(numbers)] * (numbers > 0)
    return " + ".join(parts) or "0"


def text() -> str:
    """The page as it should be."""
    lines = [INTRODUCTION, "| method | client state | down | up | gradients a step | forwards a step | paper |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for name, method in REGISTRY.items():
        cost, fact = costs(method()), facts(method)
        passes = f"{cost.gradients:g} | {cost.forwards:g}"
        lines.append(f"| [{name}](#{name}) | {cost.client_state} | {cost.down} | {cost.up} | {passes} | {fact.paper} |")
    lines.append("")
    for name, method in REGISTRY.items():
        lines += _section(name, method, facts(method))
    return "\n".join(lines)


def _section(name: str, method: type[Algorithm], fact: Facts) -> Iterator[str]:
    module, own = (_prose(inspect.getdoc(each) or "") for each in (sys.modules[method.__module__], method))
    yield from (f"## {name}", "", module, "", own, "")
    yield f"- Paper: {fact.paper}{', ' if fact.place else ''}{fact.place}"
    yield f"- Reference code read: {fact.reference}"
    yield from (f"- Deviation: {deviation}" for deviation in fact.deviations)
    yield "- Settings and defaults: " + (", ".join(f"`{each.name} = {_shown(each)}`" for each in fields(method)) or "none")
    yield ""


def _prose(text: str) -> str:
    """A docstring without its lines of fixed form."""
    paragraphs = [part for part in text.split("\n\n") if not FIELD.match(part.split("\n")[0])]
    return "\n\n".join(paragraphs)


def _shown(field: Any) -> str:
    return f'"{field.default}"' if isinstance(field.default, str) else str(field.default)


def main() -> int:
    if wrong := {name: complaints for name, method in REGISTRY.items() if (complaints := lacking(method))}:
        print(f"docstrings: {wrong}", file=sys.stderr)
        return 1
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() == text():
            return 0
        print("docs/paper_index.md is not current: python tools/paper_index.py", file=sys.stderr)
        return 1
    PAGE.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
