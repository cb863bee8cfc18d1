"""The catalogue of refusals: every code, once, with what it means.

``docs/refusals.md`` is generated from this table, and a test provokes each entry. A code is never given a
new meaning: a new meaning is a new code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Literal

RefusalKind = Literal["usage", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class RefusalCode:
    """A code's title (a few words), how the command ends, and what it means to the user."""

    title: str
    kind: RefusalKind
    meaning: str


_CODES: dict[str, tuple[str, RefusalKind, str]] = {
    # 1xx: what people write: spec, series, command line
    "NV101": ("bad spec", "usage", "A field of an image spec is missing, unknown, or of the wrong form."),
    "NV102": ("moving name", "usage", "A branch, a tag or a short commit id stands where a pin is required."),
    "NV103": ("not YAML", "usage", "A spec or series is not valid YAML, or has a key twice."),
    "NV104": ("bad series", "usage", "A series breaks its schema, does not match its files, or contradicts itself."),
    "NV105": ("patch file changed", "usage", "The sha256 of a patch file is not the one in the series."),
    "NV106": ("patch set not closed", "usage", "A patch set lacks a required patch, or holds two that conflict."),
    "NV107": ("unknown name", "usage", "There is no image, profile, patch, model, part or instance of that name."),
    "NV108": ("bad argument", "usage", "A value on the command line or in the environment cannot be used."),
    "NV109": (
        "unusable file",
        "usage",
        "A file is of the wrong kind, too large, closed to this user, or its name too long.",
    ),
    "NV110": (
        "no project of yours",
        "usage",
        "The command writes into a project, and the only one here is the one that nvllm came with, which is only read.",
    ),
    "NV111": (
        "which image",
        "usage",
        "The command line names no image, and neither a profile, a model nor the project decides on one.",
    ),
    "NV112": (
        "bad project file",
        "usage",
        "A field of nvllm.yaml is missing, unknown, or names an image without a spec.",
    ),
    # 2xx: lock and fetch
    "NV201": ("lock missing", "refused", "The image has a spec, but no lock."),
    "NV202": ("lock stale", "refused", "The spec was changed after the lock was written."),
    "NV203": ("lock not matching series", "refused", "The lock lists other patches than the series."),
    "NV204": (
        "not in the store",
        "refused",
        "The content store lacks a locked file, and --offline allows no download.",
    ),
    "NV205": ("wrong bytes", "refused", "The sha256 of a file is not the one in the lock."),
    "NV206": ("not at the index", "failed", "No configured index or mirror offers a locked file any more."),
    "NV207": ("source is not the commit", "refused", "The source archive is of another commit than the spec pins."),
    "NV208": ("wheel is not the commit", "refused", "A file in the wheel differs from that of the pinned commit."),
    "NV209": ("cannot resolve", "failed", "uv, apt, an index or the hub could not resolve what the spec asks for."),
    "NV210": ("lock damaged", "refused", "The lock is not canonical JSON, as `nvllm lock` writes it."),
    "NV211": ("hub refused", "failed", "The hub has no such repository or revision, or gives no access to it."),
    "NV212": ("device code unreadable", "refused", "The device code in a library of a wheel has an unknown form."),
    "NV213": ("no kernel image", "refused", "A library of a wheel has no code for one of the image's targets."),
    "NV214": ("needless exception", "refused", "The spec excuses a library that lacks no code, or is not there."),
    "NV218": ("not compiled", "refused", "The image's vLLM has to be compiled, and the lock names no wheel of it yet."),
    # 3xx: patches and images
    "NV301": ("patch does not apply", "refused", "A patch of the set does not apply to the pinned source."),
    "NV302": ("image missing", "refused", "The engine does not have the image."),
    "NV303": ("image is of another build", "refused", "The engine's image of that tag was not built from this lock."),
    "NV304": ("identity disagrees", "refused", "The identity file in the image names another build than the engine."),
    "NV305": ("base not available", "refused", "The base image is in none of the places that nvllm may take it from."),
    "NV306": (
        "unsafe archive member",
        "refused",
        "An archive is damaged, or holds a path or a kind of file that is not allowed.",
    ),
    "NV307": ("base is another image", "refused", "The base image in the engine is not the one that the lock pins."),
    "NV308": (
        "not as recorded",
        "refused",
        "A build, or a layer in the layer cache, has other bytes than were recorded.",
    ),
    "NV309": ("recorded digests damaged", "refused", "The file is not what `nvllm build --record` writes."),
    "NV310": ("images differ", "refused", "Two images, or two builds of one, do not have the same bytes."),
    "NV311": ("no compiler for kernels", "refused", "The lock names no compiler, or none that runs on this host."),
    "NV312": ("another compiler", "refused", "Triton on the host would compile other code than the image's Triton."),
    "NV313": ("kernel not compiled", "refused", "A kernel cannot be compiled, or an engine would have to compile it."),
    "NV314": ("stub not compiled", "refused", "The module in C that launches a kernel cannot be compiled."),
    "NV315": ("kernels layer wrong", "refused", "A kernels layer lacks code, or has code for another target."),
    "NV316": ("not built by Nix", "failed", "Nix could not build the image, or built another one."),
    "NV317": ("image not recorded", "refused", "Nobody recorded which bytes the image of this build has."),
    "NV331": ("registry refused", "failed", "A registry does not take, have or answer what it was asked for."),
    "NV332": ("not what was pulled for", "refused", "A registry offers an image or a blessing of something else."),
    "NV333": ("not exportable", "refused", "An export of the profile could not keep what nvllm holds."),
    "NV341": (
        "no task",
        "usage",
        "A line that a worker was sent is no task, or its probe is not the one that it names.",
    ),
    "NV342": ("another class", "refused", "A machine is of another class than the task that it was sent names."),
    "NV343": ("no machine", "refused", "No machine of the cluster is of the class that trials count for."),
    "NV344": ("tasks lost", "failed", "The machines that a trial was sent to were lost, again and again."),
    "NV345": (
        "not the result",
        "refused",
        "What a machine sent back is no result of its task, or not with its evidence.",
    ),
    "NV346": ("cluster unreachable", "failed", "No Ray cluster answers, or nothing proves who may use it."),
    "NV347": (
        "Ray's memory monitor",
        "refused",
        "On a host with unified memory Ray would end the trials that it runs.",
    ),
    # 4xx: models
    "NV401": ("model missing", "refused", "The locked model is not on this host."),
    "NV402": ("wrong revision", "refused", "The model on this host is another revision than the locked one."),
    "NV403": ("model changed", "refused", "A model file is missing, extra, or not the locked one."),
    "NV404": ("not an adapter", "refused", "A profile names a model as a LoRA adapter that is none."),
    "NV405": ("chat template changed", "refused", "A chat template is missing, or not the locked one."),
    # 5xx: the host
    "NV501": ("no GPU", "refused", "The profile needs a GPU, and nvllm finds none on the host."),
    "NV502": ("wrong compute capability", "refused", "The image has no code for the GPU."),
    "NV503": ("driver too old", "refused", "The NVIDIA driver is older than the image's CUDA needs."),
    "NV504": ("container toolkit too old", "refused", "The NVIDIA container toolkit has a known container escape."),
    "NV505": ("too little memory", "refused", "The host has less memory available than the profile, or a gate, needs."),
    "NV506": ("disk too small", "refused", "A file system has less free space than the work needs."),
    "NV507": ("port taken", "refused", "Something else listens on the profile's port."),
    "NV508": ("lock held", "refused", "Another nvllm holds the lock of this profile, GPU or port."),
    "NV509": ("foreign container", "refused", "A container that nvllm did not create already has the name."),
    "NV510": ("engine unreachable", "refused", "No Docker engine answers."),
    "NV511": ("engine too old", "refused", "The Docker engine lacks what nvllm relies on."),
    "NV512": ("tool missing", "refused", "A program or package that nvllm needs on the host is not installed."),
    "NV513": ("state directory unusable", "refused", "Others can write to it, or it takes no hard locks (flock)."),
    "NV514": ("engine network broken", "refused", "The engine's default bridge has no network interface."),
    "NV515": ("engine refused", "failed", "The container engine answered a request with an error."),
    "NV516": (
        "hardware gate missing",
        "refused",
        "A gate that the profile requires was not run here, is too old, did not pass, or its record is damaged.",
    ),
    "NV517": ("hardware fault", "failed", "A gate of the hardware found a fault, or a figure beyond its limit."),
    "NV518": ("not measured", "refused", "A gate of the hardware cannot measure here what it is for."),
    "NV519": (
        "memory running out",
        "refused",
        "MemAvailable fell below the profile's floor during a campaign, which ended its engine and itself.",
    ),
    "NV521": ("supervisor does not end", "failed", "A supervisor still holds its locks after its engine was stopped."),
    "NV525": ("not an address here", "refused", "The profile publishes its port on an address that this host lacks."),
    # 6xx: profiles
    "NV601": ("waiver missing", "refused", "The profile needs an exception from the hardening that it does not name."),
    "NV602": (
        "unknown sentinel",
        "refused",
        "The patch set lacks the patch of that sentinel, or the patch that reads sentinels.",
    ),
    "NV603": ("unknown argument", "refused", "A profile has an argument that this version of vLLM does not have."),
    "NV604": ("key file unfit", "refused", "The file with the API key cannot be read, or can be read by others."),
    "NV605": ("key not asked for", "refused", "The engine answers a request that does not carry its API key."),
    "NV606": (
        "arguments unread",
        "refused",
        "The arguments of vllm serve are not where nvllm looks for them in vLLM's source.",
    ),
    # 7xx: the started container
    "NV701": ("gate refused", "refused", "Something inside the container differs from the plan."),
    "NV702": ("start timed out", "failed", "The engine was not ready within the profile's start timeout."),
    "NV703": ("engine died", "failed", "The container ended before the engine was ready."),
    "NV704": ("not ready", "failed", "The engine answers, but did not complete one real generation."),
    "NV705": (
        "not the blessed start",
        "failed",
        "A blessed engine did not load the blessed code, compiled code itself, or has a smaller KV cache.",
    ),
    "NV706": ("restarts exhausted", "failed", "The engine died more often than the profile lets it be started again."),
    "NV707": ("not the same service", "refused", "After a death the profile is no longer what was served before it."),
    # 8xx: bisect
    "NV801": ("end not as declared", "refused", "The good end of a bisect is bad, or the bad end is never bad."),
    "NV802": ("probe not executable", "usage", "The probe of a bisect is not an executable file."),
    "NV803": ("another bisect", "refused", "The journal belongs to another series, lock or probe than there is now."),
    "NV804": ("journal damaged", "refused", "nvllm did not write a line of the journal, or would not have decided so."),
    "NV805": ("no such set", "usage", "The bisect has not tried that set of patches, or would never try it."),
    "NV806": ("journal not written", "failed", "A journal could not be written: disk full, or not writable."),
    "NV807": ("bisect unfinished", "usage", "A bisect of the image is unfinished, and a new one would discard it."),
    "NV808": ("probe aborted", "failed", "The probe asked to stop: it exited with 128 or above, or was killed."),
    "NV809": ("bisect of no project", "refused", "A bisect is here that no present project has started."),
    # 85x: evidence
    "NV851": ("no question", "usage", "A line of a file of questions has no question, or no number as its answer."),
    "NV852": ("another evidence run", "refused", "The output directory holds another run, or is not one of nvllm's."),
    "NV853": ("evidence damaged", "refused", "A file of an evidence run is missing, or not as nvllm wrote it."),
    "NV854": ("invalid arm", "failed", "The harness of an arm failed, so its answers prove nothing."),
    "NV855": ("below the floor", "failed", "Fewer answers are correct than the floor asks for, or the probe failed."),
    "NV858": ("no trace", "failed", "The profiler of vLLM left no trace, or one without kernels and operators."),
    # 9xx: blessing
    "NV901": ("not blessed", "refused", "No bless manifest is in force for the serve hash."),
    "NV902": ("more than one blessing", "refused", "A serve hash has more than one manifest, or already has one."),
    "NV903": ("revoked", "refused", "The cache of the manifest was revoked, and is never served again."),
    "NV904": ("unsafe bless", "refused", "The manifest rests on too few trials for production."),
    "NV905": ("bless expired", "refused", "The manifest has expired, or is dated in the future."),
    "NV906": ("older manifest", "refused", "This host has seen a newer manifest."),
    "NV907": ("cache changed", "refused", "A file of a cache is missing, extra, changed, or unsafe to load."),
    "NV908": ("manifest damaged", "refused", "A bless manifest is not as nvllm wrote it."),
    "NV909": ("not signed", "refused", "A manifest has no signature by an allowed signer."),
    "NV910": ("drift", "refused", "A factor of the serve hash differs from the nearest blessing."),
    "NV911": ("blessing not written", "failed", "A cache or manifest could not be written: disk full, or not allowed."),
    "NV912": ("bless rejected", "failed", "A bootstrap or trial of a bless failed; nothing came into force."),
    "NV913": (
        "engine stuck",
        "failed",
        "Within the stall timeout requests ran and no token came, or the engine answered nothing; it was ended.",
    ),
    "NV914": ("project vanished", "refused", "A project that this state directory lists is no longer at its path."),
    # 92x: writing, and whose state it is
    "NV920": ("file not written", "failed", "A file could not be written: disk full, or not allowed."),
    "NV921": ("another project's instance", "refused", "The instance of that name belongs to another project."),
    "NV922": ("projects unknown", "refused", "nvllm has built here, and the list of the projects is gone or damaged."),
}

EXIT_CODES: Mapping[RefusalKind, int] = MappingProxyType({"failed": 1, "usage": 2, "refused": 3})
"""The exit status of a command that ends with refusals of one kind alone."""

CODES: Mapping[str, RefusalCode] = MappingProxyType({code: RefusalCode(*row) for code, row in _CODES.items()})


Blame = Literal["patch set", "image", "gate", "engine", "stuck engine", "cache", "moment"]
"""What a refusal is laid on where a program goes on after it: the set of patches that was chosen, the making of its
image, what the gate found in the container, an engine that did not start or died, one that is stuck, a blessed cache
that the start did not use, or this host at this moment."""

BLAMES: Mapping[str, Blame] = MappingProxyType(
    {
        "NV106": "patch set",
        "NV208": "image",
        "NV301": "patch set",
        "NV306": "image",
        "NV313": "image",
        "NV314": "image",
        "NV505": "moment",
        "NV506": "moment",
        "NV507": "moment",
        "NV508": "moment",
        "NV509": "moment",
        "NV514": "moment",
        "NV525": "moment",
        "NV701": "gate",
        "NV702": "engine",
        "NV703": "engine",
        "NV704": "engine",
        "NV705": "cache",
        "NV913": "stuck engine",
    }
)
"""The blame of each code that has one. Whoever goes on after some refusals decides by their blame, never by codes."""


def nearest(code: str) -> list[str]:
    """Return the codes that are most like CODE: at most three, the nearest first."""
    return get_close_matches(code, CODES, n=3, cutoff=0.5)
