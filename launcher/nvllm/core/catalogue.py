"""The catalogue of refusals: every code, once, with what it means.

``docs/refusals.md`` is generated from this table, and a test provokes each entry. A code is never given a
new meaning: a new meaning is a new code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

RefusalKind = Literal["usage", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class RefusalCode:
    """A code's title (a few words), what kind of ending it is, and what it means to the user."""

    title: str
    kind: RefusalKind
    meaning: str


_CODES: dict[str, tuple[str, RefusalKind, str]] = {
    # 1xx: what people write: spec, series, command line
    "NV101": ("bad spec", "usage", "A field of an image spec is missing, unknown, or of the wrong form."),
    "NV102": ("moving name", "usage", "A name that can move (branch, tag, short SHA) stands where a pin must."),
    "NV103": ("not YAML", "usage", "A spec or series is not YAML, or says a key twice."),
    "NV104": ("bad series", "usage", "A series does not fit its schema, its files, or itself."),
    "NV105": ("patch file changed", "usage", "A patch file is not the one whose sha256 the series names."),
    "NV106": ("patch set not closed", "usage", "A patch set lacks what it requires, or holds a conflict."),
    "NV107": ("unknown name", "usage", "No such image, profile, patch, model, part or instance."),
    "NV108": ("bad argument", "usage", "A value on the command line or in the environment is unusable."),
    # 2xx: lock and fetch
    "NV201": ("lock missing", "refused", "The image has a spec, but `nvllm lock` never wrote its lock."),
    "NV202": ("lock stale", "refused", "The lock was made from another spec."),
    "NV203": ("lock not matching series", "refused", "The lock names other patches than the series holds."),
    "NV204": ("not in the store", "refused", "Offline, and a locked file is not in the content store."),
    "NV205": ("wrong bytes", "refused", "A file does not have the sha256 that the lock names."),
    "NV206": ("not at the index", "failed", "No configured index offers a locked file any more."),
    "NV207": ("source is not the commit", "refused", "The source archive records another commit than the spec."),
    "NV208": ("wheel is not the commit", "refused", "An installed file differs from the pinned commit's."),
    "NV209": ("cannot resolve", "failed", "uv, apt, an index or the hub could not resolve what the spec asks for."),
    "NV210": ("lock damaged", "refused", "The lock is not the canonical JSON that `nvllm lock` writes."),
    "NV211": ("hub refused", "failed", "The hub has no such repository or revision, or it is gated."),
    "NV212": ("device code unreadable", "refused", "A library of a wheel holds device code of an unknown form."),
    "NV213": ("no kernel image", "refused", "A library of a wheel holds no code that runs on a target."),
    "NV214": ("needless exception", "refused", "The spec excuses a library that lacks no code, or is not there."),
    "NV218": ("not compiled", "refused", "The image's vLLM is compiled, and its lock names no wheel of it yet."),
    # 3xx: patches and images
    "NV301": ("patch does not apply", "refused", "A patch of the set does not apply to the pinned source."),
    "NV302": ("image missing", "refused", "The engine does not hold the image."),
    "NV303": ("image is of another build", "refused", "The tagged image was not built from this lock."),
    "NV304": ("identity disagrees", "refused", "The identity file and the engine name different images."),
    "NV305": ("base not available", "refused", "The base image is in no place that nvllm may take it from."),
    "NV306": (
        "unsafe archive member",
        "refused",
        "An archive is damaged, or holds a path or a kind of file that is not allowed.",
    ),
    "NV307": ("base is another image", "refused", "What the engine holds as the base is not what the lock pins."),
    "NV311": ("no compiler for kernels", "refused", "The lock names none, or none that this host runs."),
    "NV312": ("another compiler", "refused", "Triton on the host would not make what the image's Triton makes."),
    "NV313": ("kernel not compiled", "refused", "A kernel cannot be compiled, or an engine would compile it."),
    "NV314": ("stub not compiled", "refused", "A module in C that a kernel is launched by does not compile."),
    "NV315": ("kernels layer wrong", "refused", "Code in a kernels layer is for another target, or not there."),
    # 4xx: models
    "NV401": ("model missing", "refused", "The locked model is not on this host."),
    "NV402": ("wrong revision", "refused", "The local model is another revision than the locked one."),
    "NV403": ("model changed", "refused", "A model file is extra, missing, or not as locked."),
    # 5xx: the host
    "NV501": ("no GPU", "refused", "The profile needs a GPU, and the host shows none."),
    "NV502": ("wrong compute capability", "refused", "The GPU is not one that the image has code for."),
    "NV503": ("driver too old", "refused", "The NVIDIA driver is older than the image's CUDA needs."),
    "NV504": ("container toolkit too old", "refused", "The NVIDIA container toolkit has a known escape."),
    "NV505": ("too little memory", "refused", "MemAvailable is below what the profile needs."),
    "NV506": ("disk too small", "refused", "A file system has less free space than the work needs."),
    "NV507": ("port taken", "refused", "Something else listens on the profile's port."),
    "NV508": ("lock held", "refused", "Another nvllm holds the lock of this profile, GPU or port."),
    "NV509": ("foreign container", "refused", "A container that nvllm did not create has the name."),
    "NV510": ("engine unreachable", "refused", "No Docker engine answers."),
    "NV511": ("engine too old", "refused", "The Docker engine lacks what nvllm relies on."),
    "NV512": ("tool missing", "refused", "A program that nvllm needs on the host is not installed."),
    "NV513": ("state directory unusable", "refused", "It is not this user's alone, or takes no hard lock (flock)."),
    "NV514": ("engine network broken", "refused", "The engine's default bridge has no network interface."),
    "NV515": ("engine refused", "failed", "The container engine answered a request with an error."),
    # 6xx: profiles
    "NV601": ("waiver missing", "refused", "The profile asks for an exception that it does not name."),
    "NV602": (
        "unknown sentinel",
        "refused",
        "The image's set lacks the patch of that sentinel, or the one that reads them.",
    ),
    "NV603": ("unknown argument", "refused", "A profile has an argument that this version of vLLM does not have."),
    # 7xx: the started container
    "NV701": ("gate refused", "refused", "Inside the container something is not as planned."),
    "NV702": ("start timed out", "failed", "The engine was not ready within the profile's start timeout."),
    "NV703": ("engine died", "failed", "The container ended before the engine was ready."),
    "NV704": ("not ready", "failed", "The engine answers, but one real generation did not succeed."),
    "NV705": (
        "not the blessed start",
        "failed",
        "A blessed engine did not load the blessed code, or compiled, or is smaller.",
    ),
    # 8xx: bisect
    "NV801": ("end not as declared", "refused", "The good end of a bisect is bad, or the bad end never is."),
    "NV802": ("probe not executable", "usage", "The probe of a bisect is no file that can be run."),
    "NV803": ("another bisect", "refused", "The journal is of another series, lock or probe than there is now."),
    "NV804": ("journal damaged", "refused", "A journal holds a line that nvllm did not write, or would not."),
    "NV805": ("no such set", "usage", "The bisect never tried that set of patches, or never would."),
    "NV806": ("journal not written", "failed", "A journal could not be written: disk full, or not writable."),
    "NV807": ("bisect unfinished", "usage", "A bisect of the image is under way, and would be thrown away."),
    "NV808": ("probe aborted", "failed", "The probe asked to stop: it exited with 128 or above, or was killed."),
    # 9xx: blessing
    "NV901": ("not blessed", "refused", "No bless manifest is in force for the serve hash."),
    "NV902": ("more than one blessing", "refused", "A serve hash has more than one manifest, or already has one."),
    "NV903": ("revoked", "refused", "The cache of the manifest was revoked, and is never served again."),
    "NV904": ("unsafe bless", "refused", "The manifest was made with too few trials for production."),
    "NV905": ("bless expired", "refused", "The manifest has expired, or is from the future."),
    "NV906": ("older manifest", "refused", "The manifest is not the newest that this host has seen."),
    "NV907": ("cache changed", "refused", "A file of a cache is extra, missing, changed, or unfit to be loaded."),
    "NV908": ("manifest damaged", "refused", "A bless manifest is not what nvllm wrote."),
    "NV909": ("not signed", "refused", "A manifest has no signature by an allowed signer."),
    "NV910": ("drift", "refused", "The nearest blessing differs in a factor of the serve hash."),
    "NV911": ("blessing not written", "failed", "A cache or manifest could not be written: disk full, or no right."),
    "NV912": ("bless rejected", "failed", "A bootstrap or trial of a bless failed; nothing came into force."),
    "NV913": ("engine stuck", "failed", "Requests run, and for the stall timeout no token came; it was ended."),
    "NV914": ("project vanished", "refused", "A project that this state directory knows is not where it was."),
    # 92x: writing
    "NV920": ("file not written", "failed", "A file that nvllm keeps could not be written: disk full, or no right."),
}

CODES: Mapping[str, RefusalCode] = MappingProxyType({code: RefusalCode(*row) for code, row in _CODES.items()})
