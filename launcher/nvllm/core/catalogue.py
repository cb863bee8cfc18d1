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
    """A code's title (a few words), what it means to the user, and how the command ends."""

    title: str
    meaning: str
    kind: RefusalKind = "refused"


_CODES: dict[str, tuple[str, str] | tuple[str, str, RefusalKind]] = {
    # 1xx: what people write: spec, series, command line
    "NV101": ("bad spec", "A field of an image spec is missing, unknown, or of the wrong form.", "usage"),
    "NV102": ("moving name", "A branch, a tag or a short commit id stands where a pin is required.", "usage"),
    "NV103": ("not YAML", "A spec or series is not valid YAML, or has a key twice.", "usage"),
    "NV104": ("bad series", "A series breaks its schema, does not match its files, or contradicts itself.", "usage"),
    "NV105": ("patch file changed", "The sha256 of a patch file is not the one in the series.", "usage"),
    "NV106": ("patch set not closed", "A patch set lacks a required patch, or holds two that conflict.", "usage"),
    "NV107": ("unknown name", "There is no image, profile, patch, model, part or instance of that name.", "usage"),
    "NV108": ("bad argument", "A value on the command line or in the environment cannot be used.", "usage"),
    "NV109": (
        "unusable file",
        "A file is of the wrong kind, too large, closed to this user, or its name too long.",
        "usage",
    ),
    "NV110": (
        "no project of yours",
        "The command writes into a project, and the only one here is the one that nvllm came with, which is only read.",
        "usage",
    ),
    "NV111": (
        "which image",
        "The command line names no image, and neither a profile, a model nor the project decides on one.",
        "usage",
    ),
    "NV112": (
        "bad project file",
        "A field of nvllm.yaml is missing, unknown, or names an image without a spec.",
        "usage",
    ),
    # 2xx: lock and fetch
    "NV201": ("lock missing", "The image has a spec, but no lock."),
    "NV202": ("lock stale", "The spec was changed after the lock was written."),
    "NV203": ("lock not matching series", "The lock lists other patches than the series."),
    "NV204": ("not in the store", "The content store lacks a locked file, and --offline allows no download."),
    "NV205": ("wrong bytes", "The sha256 of a file is not the one in the lock."),
    "NV206": ("not at the index", "No configured index or mirror offers a locked file any more.", "failed"),
    "NV207": ("source is not the commit", "The source archive is of another commit than the spec pins."),
    "NV208": ("wheel is not the commit", "A file in the wheel differs from that of the pinned commit."),
    "NV209": ("cannot resolve", "uv, apt, an index or the hub could not resolve what the spec asks for.", "failed"),
    "NV210": ("lock damaged", "The lock is not canonical JSON, as `nvllm lock` writes it."),
    "NV211": ("hub refused", "The hub has no such repository or revision, or gives no access to it.", "failed"),
    "NV212": ("device code unreadable", "The device code in a library of a wheel has an unknown form."),
    "NV213": ("no kernel image", "A library of a wheel has no code for one of the image's targets."),
    "NV214": ("needless exception", "The spec excuses a library that lacks no code, or is not there."),
    "NV218": ("not compiled", "The image's vLLM has to be compiled, and the lock names no wheel of it yet."),
    # 3xx: patches and images
    "NV301": ("patch does not apply", "A patch of the set does not apply to the pinned source."),
    "NV302": ("image missing", "The engine does not have the image."),
    "NV303": ("image is of another build", "The engine's image of that tag was not built from this lock."),
    "NV304": ("identity disagrees", "The identity file in the image names another build than the engine."),
    "NV305": ("base not available", "The base image is in none of the places that nvllm may take it from."),
    "NV306": ("unsafe archive member", "An archive is damaged, or holds a path or a kind of file that is not allowed."),
    "NV307": ("base is another image", "The base image in the engine is not the one that the lock pins."),
    "NV308": ("not as recorded", "A build, or a layer in the layer cache, has other bytes than were recorded."),
    "NV309": ("recorded digests damaged", "The file is not what `nvllm build --record` writes."),
    "NV310": ("images differ", "Two images, or two builds of one, do not have the same bytes."),
    "NV311": ("no compiler for kernels", "The lock names no compiler, or none that runs on this host."),
    "NV312": ("another compiler", "Triton on the host would compile other code than the image's Triton."),
    "NV313": ("kernel not compiled", "A kernel cannot be compiled, or an engine would have to compile it."),
    "NV314": ("stub not compiled", "The module in C that launches a kernel cannot be compiled."),
    "NV315": ("kernels layer wrong", "A kernels layer lacks code, or has code for another target."),
    "NV316": ("not built by Nix", "Nix could not build the image, or built another one.", "failed"),
    "NV317": ("image not recorded", "Nobody recorded which bytes the image of this build has."),
    "NV318": ("extension not compiled", "vLLM's extensions cannot be compiled with the patch set."),
    "NV331": ("registry refused", "A registry does not take, have or answer what it was asked for.", "failed"),
    "NV332": ("not what was pulled for", "A registry offers an image or a blessing of something else."),
    "NV333": ("not exportable", "An export of the profile could not keep what nvllm holds."),
    "NV341": (
        "no task",
        "A line that a worker was sent is no task, or its probe is not the one that it names.",
        "usage",
    ),
    "NV342": ("another class", "A machine is of another class than the task that it was sent names."),
    "NV343": ("no machine", "No machine of the cluster is of the class that trials count for."),
    "NV344": ("tasks lost", "The machines that a trial was sent to were lost, again and again.", "failed"),
    "NV345": ("not the result", "The answer of a machine does not fit its task, or lacks its evidence."),
    "NV346": ("cluster unreachable", "No Ray cluster answers, or nothing proves who may use it.", "failed"),
    "NV347": ("Ray's memory monitor", "On a host with unified memory Ray would end the trials that it runs."),
    # 4xx: models
    "NV401": ("model missing", "The locked model is not on this host."),
    "NV402": ("wrong revision", "The model on this host is another revision than the locked one."),
    "NV403": ("model changed", "A model file is missing, extra, or not the locked one."),
    "NV404": ("not an adapter", "A profile names a model as a LoRA adapter that is none."),
    "NV405": ("chat template changed", "A chat template is missing, or not the locked one."),
    # 5xx: the host
    "NV501": ("no GPU", "The profile needs a GPU, and nvllm finds none on the host."),
    "NV502": ("wrong compute capability", "The image has no code for the GPU."),
    "NV503": ("driver too old", "The NVIDIA driver is older than the image's CUDA needs."),
    "NV504": ("container toolkit too old", "The NVIDIA container toolkit has a known container escape."),
    "NV505": ("too little memory", "The host has less memory available than the profile, or a gate, needs."),
    "NV506": ("disk too small", "A file system has less free space than the work needs."),
    "NV507": ("port taken", "Something else listens on the profile's port."),
    "NV508": ("lock held", "Another nvllm holds the lock of this profile, GPU or port."),
    "NV509": ("foreign container", "A container that nvllm did not create, or another home did, has the name."),
    "NV510": ("engine unreachable", "No Docker engine answers."),
    "NV511": ("engine too old", "The Docker engine lacks what nvllm relies on."),
    "NV512": ("tool missing", "A program or package that nvllm needs on the host is not installed."),
    "NV513": ("state directory unusable", "Others can write to it, or it takes no hard locks (flock)."),
    "NV514": ("engine network broken", "The engine's default bridge has no network interface."),
    "NV515": ("engine refused", "The container engine answered a request with an error.", "failed"),
    "NV516": (
        "hardware gate missing",
        "A gate that the profile requires was not run here, is too old, did not pass, or its record is damaged.",
    ),
    "NV517": ("hardware fault", "A gate of the hardware found a fault, or a figure beyond its limit.", "failed"),
    "NV518": ("not measured", "A gate of the hardware cannot measure here what it is for."),
    "NV519": (
        "memory running out",
        "MemAvailable fell below the profile's floor during a campaign, which ended its engine and itself.",
    ),
    "NV521": ("supervisor does not end", "A supervisor still holds its locks after its engine was stopped.", "failed"),
    "NV525": ("not an address here", "The profile publishes its port on an address that this host lacks."),
    "NV526": (
        "not readable by the engine",
        "The user as whom the engine runs cannot read a file of a model, an adapter or a chat template.",
    ),
    # 6xx: profiles
    "NV601": ("waiver missing", "The profile needs an exception from the hardening that it does not name."),
    "NV602": ("unknown sentinel", "The patch set lacks the patch of that sentinel, or the patch that reads sentinels."),
    "NV603": ("unknown argument", "A profile has an argument that this version of vLLM does not have."),
    "NV604": ("key file unfit", "The file with the API key cannot be read, or can be read by others."),
    "NV605": ("key not asked for", "The engine answers a request that does not carry its API key."),
    "NV606": ("arguments unread", "The arguments of vllm serve are not where nvllm looks for them in vLLM's source."),
    "NV607": ("not proved", "The spec demands proved patches, and no record says that a patch's tests prove it."),
    "NV608": ("proof does not run", "pytest does not run where the tests of a patch have to."),
    "NV609": ("patches conflict", "Two patches of a set each apply to the pinned source, and not one after the other."),
    "NV610": (
        "not a development tree",
        "A directory is no work tree of `nvllm dev start`, or its commits are no patches.",
    ),
    "NV611": ("not over an image", "A file that a development tree changes cannot lie over those of an image."),
    "NV612": ("made by dev", "What `nvllm dev` serves can be neither blessed nor pushed."),
    "NV613": ("required patch missing", "The profile requires a patch that neither the patch set nor the release has."),
    "NV620": ("variables unread", "The variables that vLLM reads are not where nvllm looks for them in its source."),
    # 7xx: the started container
    "NV701": ("gate refused", "Something inside the container differs from the plan."),
    "NV702": ("start timed out", "The engine was not ready within the profile's start timeout.", "failed"),
    "NV703": ("engine died", "The container ended before the engine was ready.", "failed"),
    "NV704": ("not ready", "The engine answers, but did not complete one real generation.", "failed"),
    "NV705": (
        "not the blessed start",
        "A blessed engine did not load the blessed code, compiled code itself, or has a smaller KV cache.",
        "failed",
    ),
    "NV706": ("restarts exhausted", "The engine died more often than the profile lets it be started again.", "failed"),
    "NV707": ("not the same service", "After a death the profile is no longer what was served before it."),
    # 8xx: bisect
    "NV801": ("end not as declared", "The good end of a bisect is bad, or the bad end is never bad."),
    "NV802": ("probe not executable", "The probe of a bisect is not an executable file.", "usage"),
    "NV803": ("another bisect", "The journal belongs to another series, lock or probe than there is now."),
    "NV804": ("journal damaged", "nvllm did not write a line of the journal, or would not have decided so."),
    "NV805": ("no such set", "The bisect has not tried that set of patches, or would never try it.", "usage"),
    "NV806": ("journal not written", "A journal could not be written: disk full, or not writable.", "failed"),
    "NV807": ("bisect unfinished", "A bisect of the image is unfinished, and a new one would discard it.", "usage"),
    "NV808": ("probe aborted", "The probe asked to stop: it exited with 128 or above, or was killed.", "failed"),
    "NV809": ("bisect of no project", "A bisect is here that no present project has started."),
    # 85x: evidence
    "NV851": ("no question", "A line of a file of questions has no question, or no number as its answer.", "usage"),
    "NV852": ("another evidence run", "The output directory holds another run, or is not one of nvllm's."),
    "NV853": ("evidence damaged", "A file of an evidence run is missing, or not as nvllm wrote it."),
    "NV854": ("invalid arm", "The harness of an arm failed, so its answers prove nothing.", "failed"),
    "NV855": ("below the floor", "Fewer answers are correct than the floor asks for, or the probe failed.", "failed"),
    "NV856": ("not a part", "A floor or a margin is a bare number, or none at all: 45/50 and 90% are parts.", "usage"),
    "NV857": ("unusable prompt", "A prompt has no place for the question, or a stop string ends nothing.", "usage"),
    "NV858": ("no trace", "The profiler of vLLM left no trace, or one without kernels and operators.", "failed"),
    "NV859": ("another artifact", "A run that goes on would load other compiled code than its legs did before."),
    "NV860": (
        "nothing compiled",
        "Compiles are to be compared, and the profile keeps nothing that it compiles.",
        "usage",
    ),
    # 9xx: blessing
    "NV901": ("not blessed", "No bless manifest is in force for the serve hash."),
    "NV902": ("more than one blessing", "A serve hash has more than one manifest, or already has one."),
    "NV903": ("revoked", "The cache of the manifest was revoked, and is never served again."),
    "NV904": ("unsafe bless", "The manifest rests on too few trials for production."),
    "NV905": ("bless expired", "The manifest has expired, or is dated in the future."),
    "NV906": ("older manifest", "This host has seen a newer manifest."),
    "NV907": ("cache changed", "A file of a cache is missing, extra, changed, or unsafe to load."),
    "NV908": ("manifest damaged", "A bless manifest is not as nvllm wrote it."),
    "NV909": ("not signed", "A manifest has no signature by an allowed signer."),
    "NV910": ("drift", "A factor of the serve hash differs from the nearest blessing."),
    "NV911": ("blessing not written", "A cache or manifest could not be written: disk full, or not allowed.", "failed"),
    "NV912": ("bless rejected", "A bootstrap or trial of a bless failed; nothing came into force.", "failed"),
    "NV913": (
        "engine stuck",
        "Within the stall timeout requests ran and no token came, or the engine answered nothing; it was ended.",
        "failed",
    ),
    "NV914": ("project vanished", "A project that this state directory lists is no longer at its path."),
    "NV915": ("ended by another", "Another process killed or removed a container of a trial, which has no verdict."),
    "NV916": (
        "bless of another image",
        "The blessing was made with another image than the one of this build hash here.",
    ),
    "NV917": ("version out of reach", "A blessing from elsewhere has a version far above those that this host knows."),
    "NV918": (
        "wrong answers",
        "In a trial, fewer answers were correct than the profile's evaluation asks for; nothing came into force.",
        "failed",
    ),
    "NV919": (
        "not evaluated",
        "The blessing lacks the evaluation that the profile demands, or came out below its floor.",
    ),
    # 92x: writing, whose state it is, and workers over ssh
    "NV920": ("file not written", "A file could not be written: disk full, or not allowed.", "failed"),
    "NV921": ("another project's instance", "The instance of that name belongs to another project or home."),
    "NV922": ("projects unknown", "nvllm has built here, and the list of the projects is gone or damaged."),
    "NV923": ("no worker over ssh", "A host that was named does not start a worker of the same nvllm.", "failed"),
}
"""Title and meaning of each code, and how the command ends where it is not "refused"."""

EXIT_CODES: Mapping[RefusalKind, int] = MappingProxyType({"failed": 1, "usage": 2, "refused": 3})
"""The exit status of a command that ends with refusals of one kind alone."""

CODES: Mapping[str, RefusalCode] = MappingProxyType({code: RefusalCode(*row) for code, row in _CODES.items()})


Blame = Literal[
    "patch set", "no lock", "network", "damaged lock", "image", "moment", "gate", "engine", "stuck engine", "cache",
    "few trials", "age", "version", "signature", "outside", "compile",
]  # fmt: skip
"""What a refusal is laid on where a program goes on after it: the set of patches that was chosen; a lock that is not
there, or is damaged; something that must be asked or fetched; the making of an image; this host at this moment; what
the gate found in the container; an engine that did not start or died, or is stuck; a blessed cache that the start did
not use; a blessing of few trials, one that is too old, of an older version than was seen, or not signed; another
process that ended a container of ours; what an engine compiled, which did not pass its trials."""

BLAMES: Mapping[str, Blame] = MappingProxyType(
    {
        "NV106": "patch set",
        "NV201": "no lock",
        "NV204": "network",
        "NV208": "image",
        "NV209": "network",
        "NV210": "damaged lock",
        "NV301": "patch set",
        "NV306": "image",
        "NV313": "image",
        "NV314": "image",
        "NV318": "image",
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
        "NV904": "few trials",
        "NV905": "age",
        "NV906": "version",
        "NV907": "compile",
        "NV909": "signature",
        "NV912": "compile",
        "NV913": "stuck engine",
        "NV915": "outside",
        "NV918": "compile",
    }
)
"""The blame of each code that has one. Whoever goes on after some refusals decides by their blame, never by codes."""


def nearest(code: str) -> list[str]:
    """Return the codes that are most like CODE: at most three, the nearest first."""
    return get_close_matches(code, CODES, n=3, cutoff=0.5)
