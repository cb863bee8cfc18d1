"""Compile modules to checked-hash bytecode; runs under the image's own interpreter, standard library only.

One job on stdin, as JSON: ``{"archive": wheel or null, "files": {image path: member or path}, "out": zip}``.
Each ``.py`` becomes its ``__pycache__`` entry in the stored zip OUT, compiled under the path that it has in the
image. A file that is not Python (a template, a test of the parser) is left out, as compileall would.

A process does one job and ends: marshal writes whether an object was referenced elsewhere, so bytes may depend
on what the same process compiled before.
"""

import importlib.util
import json
import marshal
import sys
import zipfile

_CHECKED_HASH = (0b11).to_bytes(4, "little")


def cached(path: str) -> str:
    """Return where the interpreter looks for the bytecode of the module at PATH."""
    directory, _, name = path.rpartition("/")
    return f"{directory}/__pycache__/{name.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc"


def bytecode(source: bytes, path: str) -> bytes | None:
    """Return the bytecode file of SOURCE as the module /PATH, or None if it does not compile."""
    try:
        code = compile(source, "/" + path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    header = importlib.util.MAGIC_NUMBER + _CHECKED_HASH + importlib.util.source_hash(source)
    return header + marshal.dumps(code)


def main() -> None:
    job = json.load(sys.stdin)
    archive = zipfile.ZipFile(job["archive"]) if job["archive"] else None
    with zipfile.ZipFile(job["out"], "w", zipfile.ZIP_STORED) as out:
        for path, member in sorted(job["files"].items()):
            if archive is not None:
                source = archive.read(member)
            else:
                with open(member, "rb") as stream:
                    source = stream.read()
            compiled = bytecode(source, path)
            if compiled is not None:
                out.writestr(zipfile.ZipInfo(cached(path)), compiled)


if __name__ == "__main__":
    main()
