"""Patch sets: which patches of a series are applied together, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from nvllm.core.refusal import Refusal, refuse_any
from nvllm.core.spec import ImageSpec
from nvllm.patches.series import Patch, Series


def choose(series: Series, enable: Sequence[str], *, where: str = "patch set") -> tuple[Patch, ...]:
    """Return the patches of SERIES whose ids are in ENABLE, in the order of the series.

    Messages call the place of ENABLE WHERE. Raises Refused with everything that is wrong: NV107 for an id that the
    series does not have, NV106 for a patch that cannot be enabled, for a missing required patch, and for two patches
    that conflict.
    """
    known = {patch.id: patch for patch in series.patches}
    refuse_any(
        [
            *(_unknown(where, series, name) for name in dict.fromkeys(enable) if name not in known),
            *_not_carried(where, [known[name] for name in dict.fromkeys(enable) if name in known]),
            *_open(where, known, set(enable)),
            *_conflicting(where, series, set(enable)),
        ]
    )
    return tuple(patch for patch in series.patches if patch.id in set(enable))


def sentinels(patches: Sequence[Patch]) -> frozenset[str]:
    """Return the names of the sentinels that a set of PATCHES reads.

    None without the patch that reads them: every patch of the set is on then, and a sentinel has no effect.
    """
    if not any(patch.reads_sentinels for patch in patches):
        return frozenset()
    return frozenset(patch.sentinel.name for patch in patches if patch.sentinel is not None)


def narrowed(names: Sequence[str], series: Series, patches: Sequence[Patch]) -> tuple[str, ...]:
    """Return the sentinels NAMES without those of SERIES that a set of PATCHES does not have or read.

    A name that no patch of SERIES has stays: it is a mistake that must still be refused.
    """
    known = {patch.sentinel.name for patch in series.patches if patch.sentinel is not None}
    absent = known - sentinels(patches)
    return tuple(name for name in names if name not in absent)


def lacking(spec: ImageSpec, series: Series, patches: Sequence[Patch]) -> Mapping[str, Sequence[str]]:
    """Return, by profile of SPEC, the patches that it requires and that neither PATCHES, a set of SERIES, nor the
    release of SERIES has. A profile that lacks none is not in it."""
    present = {patch.id for patch in (*patches, *(patch for patch in series.patches if patch.status == "upstream"))}
    listed = {name: [id_ for id_ in profile.requires if id_ not in present] for name, profile in spec.profiles.items()}
    return {name: ids for name, ids in listed.items() if ids}


def unmet(spec: ImageSpec, profile: str, series: Series, patches: Sequence[Patch]) -> Iterator[Refusal]:
    """Yield NV613 for each patch that PROFILE of SPEC is `lacking`."""
    for name in lacking(spec, series, patches).get(profile, ()):
        patch = series.patch(name)
        carried = patch is not None and patch.status == "carried"
        state = f"not in the set, carried by {series.base}" if carried else f"not in {series.base}"
        bring = f"write {name} under patches.enable, then nvllm build {spec.name}"
        cure = bring if carried else f"make {name} for {series.version}, or take it out if the profile works without it"
        where = f"images/{spec.name}.yaml: .profiles.{profile}.requires"
        yield Refusal("NV613", where, f"a patch set that has {name}", state, cure)


def _unknown(where: str, series: Series, name: str) -> Refusal:
    ids = [patch.id for patch in series.patches if patch.status == "carried"]
    near = get_close_matches(name, ids, n=3)
    expected = f"a patch of the series {series.base}: {', '.join(ids) or 'it carries none'}"
    cure = f"write {' or '.join(near)}" if near else f"nvllm patch list --series {series.base}"
    return Refusal("NV107", where, expected, name, cure)


def _not_carried(where: str, patches: Sequence[Patch]) -> Iterator[Refusal]:
    for patch in patches:
        if patch.status == "upstream":
            since = f" since {patch.upstream.since}" if patch.upstream.since else ""
            state = f"{patch.id}, which is already upstream{since}"
        elif patch.status == "rejected":
            state = f"{patch.id}, which is rejected: {patch.reason}"
        else:
            continue
        yield Refusal("NV106", where, "patches that the series carries", state, f"take {patch.id} out")


def _open(where: str, known: dict[str, Patch], enabled: set[str]) -> Iterator[Refusal]:
    """Yield NV106 for each required patch that is neither enabled nor upstream."""
    for name in sorted(enabled & known.keys()):
        for required in known[name].requires:
            if required not in enabled and known[required].status == "carried":
                yield Refusal("NV106", where, f"{required}, which {name} requires", "not in it", f"add {required}")


def _conflicting(where: str, series: Series, enabled: set[str]) -> Iterator[Refusal]:
    pairs = {
        tuple(sorted((patch.id, other)))
        for patch in series.patches
        for other in patch.conflicts
        if patch.id in enabled and other in enabled
    }
    for first, second in sorted(pairs):
        yield Refusal("NV106", where, f"{first} or {second}: they conflict", "both", f"take {first} or {second} out")
