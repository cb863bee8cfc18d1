"""Builds the site from README.md, docs/ and the pages beside the README: ``python tools/site/build.py [DIRECTORY]``.

The pages are written for readers of the repository. A copy of them becomes the site's source: README.md is its first
page and gets the navigation, and links between pages are those of the copy. A warning of Sphinx is an error.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BESIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
"""The pages outside docs/, and what each is called in the site."""

_BELOW = "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def lay(source: Path) -> None:
    """Replace SOURCE by the pages that Sphinx builds the site from."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "docs", source, ignore=shutil.ignore_patterns("schemas"))
    shutil.copy2(HERE / "conf.py", source)
    for index in source.glob("*/README.md"):
        index.write_text(index.read_text(encoding="utf-8") + _BELOW, encoding="utf-8")
    for name, called in BESIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        (source / called).write_text(text, encoding="utf-8")
    # A line that names a page which is not there is left out: a branch may not have every page yet.
    lines = (HERE / "navigation.md").read_text(encoding="utf-8").splitlines(keepends=True)
    there = [line for line in lines if not re.fullmatch(r"[\w/*]+\n", line) or [*source.glob(f"{line.strip()}.md")]]
    index = source / "index.md"
    index.write_text(index.read_text(encoding="utf-8") + "".join(there), encoding="utf-8")
    outside = re.compile(rf"\]\((?:\.\./)?({'|'.join(map(re.escape, BESIDE))})(?=[)#])")
    for page in source.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        page.write_text(outside.sub(lambda match: f"]({BESIDE[match[1]]}", text), encoding="utf-8")


def build(top: Path) -> int:
    """Build the site into TOP/html, and return the exit status of Sphinx."""
    lay(top / "source")
    shutil.rmtree(top / "html", ignore_errors=True)
    argv = ["-W", "--keep-going", "-q", "-E", "-b", "html", "-d", f"{top}/doctrees", f"{top}/source", f"{top}/html"]
    return build_main(argv)


if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".site"
    status = build(directory.absolute())
    if status == 0:
        sys.stdout.write(f"{directory}/html/index.html\n")
    sys.exit(status)
