"""`fedaccord new`: a runnable project from a template."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from fedaccord.cli.output import result, say
from fedaccord.core.errors import ConfigError
from fedaccord.runs import storage
from fedaccord.tasks.nearest import did_you_mean

TEMPLATES = ("vision", "tabular", "segmentation")


def create(folder: Path, template: str, as_json: bool) -> None:
    """Write the template's files. E205 for a template that does not exist, E211 where the folder is not empty."""
    if template not in TEMPLATES:
        raise ConfigError("E205", f"no template is called {template!r}", "--template", did_you_mean(template, TEMPLATES))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("E211", "the folder is not empty", str(folder), "Choose another name")
    source = resources.files("fedaccord.cli").joinpath("templates").joinpath(template)
    written = []
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(source.iterdir(), key=lambda each: each.name):
            if file.is_file():
                text = file.read_text(encoding="utf-8").replace("PROJECT_NAME", folder.resolve().name)
                (folder / file.name).write_text(text, encoding="utf-8")
                written.append(str(folder / file.name))
    if as_json:
        result({"folder": str(folder), "template": template, "files": written})
        return
    say(f"made {folder}: {', '.join(Path(name).name for name in written)}")
    say(f"next: cd {folder} && fedaccord run experiment.toml")
