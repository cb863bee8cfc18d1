"""The project's own file, ``nvllm.yaml`` beside ``images/``: what holds for all its images.

It may be missing, as in projects that are older than it. Then nothing is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from nvllm.core import documents, reading, schemas, yamlnodes
from nvllm.core.fields import Form, Rule
from nvllm.core.paths import Project
from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.core.spec import Name

NAME = "nvllm.yaml"
SCHEMA = "nvllm.project/1"


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """What a project says of itself."""

    schema: Annotated[str, Rule(choices=(SCHEMA,))]
    default_image: Name | None = None
    """The image that a command takes where its line names none and no profile decides."""


FORM = Form("project", SCHEMA, "A project", ProjectFile, kebab=True)


def of(project: Project) -> ProjectFile:
    """Return what PROJECT says of itself.

    Raises Refused NV112 for what does not fit the form, or names an image that is not there; NV103 for what is not
    YAML, and NV109 for what is no file to read.
    """
    try:
        text = reading.text(project.root / NAME, reading.CONFIGURATION)
    except FileNotFoundError:
        return ProjectFile(SCHEMA)
    except OSError as error:
        raise reading.refused(NAME, error) from error
    except UnicodeDecodeError as error:
        raise refuse("NV103", NAME, "text in UTF-8", str(error), "save the file as UTF-8") from None
    return parse(text, project.image_names())


def parse(text: str, images: list[str]) -> ProjectFile:
    """Return the project's file in TEXT, of a project that has IMAGES. Raises Refused NV103 or NV112."""
    document = yamlnodes.parse(text, NAME)
    refuse_any(
        Refusal(
            "NV112",
            f"{NAME}:{document.line(problem.steps)}: {problem.path}",
            problem.allowed,
            problem.actual,
            problem.cure,
        )
        for problem in schemas.validate(FORM, document.value)
    )
    values = documents.structure(FORM, document.value)
    if values.default_image is not None and values.default_image not in images:
        where = f"{NAME}:{document.line(['default-image'])}: .default-image"
        cure = f"write the name of an image that has a spec, or remove `default-image:` from {NAME}"
        raise refuse("NV112", where, f"one of {', '.join(images) or 'no image'}", values.default_image, cure)
    return values


def written(image: str) -> bytes:
    """Return the file of a project whose default is IMAGE."""
    return (
        f"# What holds for every image of this project. `default-image` is the one that nvllm takes where a command\n"
        f"# names none and no profile decides.\nschema: {SCHEMA}\ndefault-image: {image}\n"
    ).encode()
