"""A new image spec from the text of one that exists: other values in their places, and a comment for each part.

The text that is taken stays the only copy of what it says of a base, of requirements and of profiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvllm.core import yamledit, yamlnodes
from nvllm.core.canonical import Json

COMMENTS: Mapping[tuple[str, ...], str] = {
    ("platforms",): "What the image can be built for. Each platform has a lock of its own.",
    ("targets",): "The CUDA architectures that the wheels must hold code for, and that kernels are compiled for.",
    ("device-code",): "The wheels that are searched for that code, and the libraries that may lack it.",
    ("epoch",): "The time of every file in the image. Leave it, and the image stays the same bit for bit.",
    ("base",): "What lies below Python. `nvllm lock` resolves what is named here and pins each file by its sha256.",
    ("vllm",): (
        "Which vLLM. `commit` is what `version` was released from; `distribution` is the wheel that has it. "
        "`nvllm lock` compares the wheel with the source of that commit, file by file."
    ),
    ("python",): (
        "The wheels of the image, by exact versions. `nvllm lock` resolves what they require in turn. "
        "`exclude` leaves a wheel out, `indexes` says which wheel is not on the default index."
    ),
    ("patches",): "The patches of the image: `enable` lists those of patches/SERIES/series.yaml that are applied.",
    ("runtime",): "What the container starts, and the environment variables that every profile has.",
    ("models",): (
        "What can be served: `kind: directory` is a directory on this host, `kind: huggingface` a `repo` of the hub "
        "with the `revision` to serve."
    ),
    ("profiles",): (
        "The ways to serve the image; `nvllm serve IMAGE --profile NAME` starts one. `arguments` are those of "
        "`vllm serve`, `sentinels` the switchable patches that are on, `limits` what the container may use, `host` "
        "what must be free before the start, and `probe` the request that must be answered before it is ready. "
        "`dev: true` allows what production may not do, `blessed: true` loads a cache that `nvllm bless` proved. "
        "`restart: {attempts: 3}` starts an engine that died again, after every check."
    ),
}
"""What the parts of a spec are for, by their steps. A new spec has each as a comment above its part."""


@dataclass(frozen=True, slots=True)
class Values:
    """What a new spec says otherwise than the one that it is made from; the series is also its directory's name."""

    name: str
    description: str
    version: str
    commit: str
    differs: Sequence[str]
    brings: Sequence[str]
    requirements: Sequence[str]
    aliases: Sequence[str]
    """The version of each alias, in their order."""
    series: str
    enable: Sequence[str]
    sentinels: Mapping[str, Sequence[str]]
    """By profile; for those that name any."""
    signers: str | None = None
    """The allowed signers file of every blessed profile; None leaves them as they are."""


def write(text: str, values: Values, heading: Sequence[str]) -> str:
    """Return TEXT, an image spec, with VALUES in it, the lines HEADING as its first comment, and `COMMENTS`.

    A profile that would then do what an earlier one does is left out.
    """
    before = yamlnodes.parse(text, "").value
    assert isinstance(before, dict)
    old_version = _at(before, "vllm", "version")
    assert isinstance(old_version, str)
    if old_version != values.version:  # what is said of one version is not true of another
        text = yamledit.without_comments(text, old_version)
    if _at(before, "patches", "enable") != list(values.enable):
        text = yamledit.uncommented(text, ("patches", "enable"))
    text = moved(text, values)
    for profile in _repeated(text):
        text = yamledit.without_key(text, ("profiles", profile))
    text = _demanding(text, values.signers)
    for part, comment in COMMENTS.items():
        if _at(before, *part) is not None:
            text = yamledit.commented(text, part, comment)
    return yamledit.headed(text, heading)


def moved(text: str, values: Values) -> str:
    """Return TEXT, an image spec, with VALUES in it but for the signers. Comments on lines of their own stay."""
    before = yamlnodes.parse(text, "").value
    assert isinstance(before, dict)
    for steps, value in (
        (("name",), values.name),
        (("description",), values.description),
        (("vllm", "version"), values.version),
        (("vllm", "commit"), values.commit),
        (("patches", "series"), values.series),
    ):
        text = yamledit.set_scalar(text, steps, value)
    aliases = _at(before, "python", "aliases")
    for index, alias in enumerate(aliases if isinstance(aliases, list) else []):
        assert isinstance(alias, dict)
        at = ("python", "aliases", index, "version")
        text = yamledit.replaced(text, at, str(alias["version"]), values.aliases[index])
    text = yamledit.set_list(text, ("python", "requirements"), values.requirements)
    for field, files in (("differs", values.differs), ("brings", values.brings)):
        if _at(before, "vllm", field) is not None:
            text = yamledit.set_list(text, ("vllm", field), files)
    text = yamledit.set_list(text, ("patches", "enable"), values.enable)
    for profile, sentinels in values.sentinels.items():
        text = yamledit.set_list(text, ("profiles", profile, "sentinels"), sentinels)
    return text


def _repeated(text: str) -> list[str]:
    """Return the profiles of TEXT that say, but for the description and `dev`, what an earlier one says."""
    profiles = _at(yamlnodes.parse(text, "").value, "profiles")
    assert isinstance(profiles, dict)
    seen: list[Json] = []
    names = []
    for name, profile in profiles.items():
        assert isinstance(profile, dict)
        rest: Json = {key: value for key, value in profile.items() if key not in ("description", "dev")}
        if rest in seen:
            names.append(name)
        seen.append(rest)
    return names


def _demanding(text: str, signers: str | None) -> str:
    """Return TEXT whose blessed profiles demand a signature by one of SIGNERS, unless that is None."""
    profiles = _at(yamlnodes.parse(text, "").value, "profiles")
    assert isinstance(profiles, dict)
    for name, profile in profiles.items():
        if signers is not None and isinstance(profile, dict) and profile.get("blessed") is True:
            lines = ["bless:", f"  signers: {yamledit.scalar(signers)} # one of them has signed each blessing"]
            text = yamledit.followed(text, ("profiles", name, "blessed"), lines)
    return text


def _at(document: Json, *steps: str) -> Json:
    """Return the value at STEPS of DOCUMENT, None if it has none."""
    for step in steps:
        if not isinstance(document, dict):
            return None
        document = document.get(step)
    return document
