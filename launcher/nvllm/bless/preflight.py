"""The checks of a bless before its first container starts, and the request that they check.

A bless takes minutes. Whatever would keep its manifest from being written or served is refused before that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nvllm.bless import coverage
from nvllm.cache import confidence, manifest, signature
from nvllm.cache.blessings import Blessing, BlessingQuery, Blessings, whole
from nvllm.cache.manifest import LEAST_BOOTS, Manifest
from nvllm.core import clock
from nvllm.core.plan import LaunchPlan
from nvllm.core.refusal import Refusal, collected, refuse, refuse_any
from nvllm.image import development
from nvllm.serve import servehash
from nvllm.serve.examination import Examination

_MOST_ROUNDS = 10 * coverage.MOST_ROUNDS
"""Rounds of requests that a candidate may claim: those of a bless, and of some that extended it."""


@dataclass(frozen=True, slots=True)
class BlessRequest:
    """What the user asks for: BOOTS trials, and ASKED, the rate of good starts that they must show, if named."""

    boots: int
    asked: float | None = None
    unsafe: bool = False
    replace: bool = False
    extend: bool = False
    """Whether kernels are added to the cache of the blessing in force."""
    key: Path | None = None
    """The SSH key that signs the manifest."""
    expires: int | None = None
    """When the blessing ends at the latest, in seconds since 1970."""
    candidate: Manifest | None = None
    """What came from elsewhere: its cache is tried instead of compiling one."""


def boots(trials: int | None, rate: float | None, unsafe: int | None) -> tuple[int, bool]:
    """Return the number of trials that the options ask for, and whether that is unsafe.

    Raises Refused NV108 for two of the options at once, for too few trials, and for a rate that is not one.
    """
    named = {"--trials": trials, "--claim": rate, "--unsafe-trials": unsafe}
    options_named = [name for name, value in named.items() if value is not None]
    if len(options_named) > 1:
        options, cure = " and ".join(options_named), "name one of them"
        raise refuse("NV108", "nvllm bless", "--trials, --claim or --unsafe-trials", options, cure)
    if unsafe is not None:
        return unsafe, True
    count = (
        max(LEAST_BOOTS, confidence.boots_for(rate)) if rate is not None else LEAST_BOOTS if trials is None else trials
    )
    if count < LEAST_BOOTS:
        cure = f"--trials {LEAST_BOOTS}, or --unsafe-trials {count}, which no production profile serves"
        raise refuse("NV108", "--trials", f"at least {LEAST_BOOTS}", str(count), cure)
    return count, False


def preflight(
    examination: Examination, blessings: Blessings, request: BlessRequest, signers: Path | None, now: float
) -> Blessing | None:
    """Return the blessing that a bless of EXAMINATION will replace, if any. SIGNERS is the file of allowed signers.

    Raises Refused with what the examination refused; NV108 if the profile has no `blessed: true`, if there is no
    blessing that REQUEST would extend, or if it asks for an expiry that the profile does not allow at NOW (seconds);
    NV612 for what `nvllm dev` serves; NV902 if there is a blessing and REQUEST does not replace or extend it; NV909 if
    the key of REQUEST cannot sign, or belongs to nobody in SIGNERS; and what forbids to serve the blessing that REQUEST
    would extend, but not its age or few trials.
    """
    plan, refusals = examination.plan, list(examination.refusals)
    profile = examination.profile
    if examination.build is not None:
        refusals.extend(development.refusals(examination.build.development, f"{plan.image}, profile {plan.profile}"))
    if not profile.blessed:
        expected, cure = "a profile with `blessed: true`", f"add it to the profile {plan.profile}"
        refusals.append(Refusal("NV108", "--profile", expected, plan.profile, cure))
    existing = blessings.of(plan.serve_hash)
    if request.extend:
        refusals.extend(_not_extensible(examination, blessings, existing, signers, now))
    if request.extend and not existing:
        cure = f"nvllm bless {plan.image} --profile {plan.profile}"
        refusals.append(Refusal("NV108", "--extend", "a blessing of this serve hash, to extend", "none", cure))
    if len(existing) > 1 or (existing and not (request.replace or request.extend)):
        names = ", ".join(blessing.path.name for blessing in existing)
        cure = f"nvllm bless {plan.image} --profile {plan.profile} --rebless"
        if len(existing) > 1:
            cure = f"remove all but one of {names} with `git rm`"
        refusals.append(Refusal("NV902", str(blessings.directory), "no blessing of this serve hash", names, cure))
    refusals.extend(_not_to_be_tried(request.candidate))
    latest = manifest.expiry(now, None, profile.bless.valid_days)
    if latest is not None and request.expires is not None and request.expires > latest:
        expected = f"at most the {profile.bless.valid_days} days that the profile allows"
        cure = f"--expires {profile.bless.valid_days}d, or none, which is the same"
        refusals.append(Refusal("NV108", "--expires", expected, clock.stamp(request.expires), cure))
    with collected(refusals):  # find out before the trials, not after them
        _signable(plan, request.key, signers)
    refuse_any(refusals)
    return existing[0] if existing else None


def _not_to_be_tried(candidate: Manifest | None) -> list[Refusal]:
    """Return why CANDIDATE is not tried: each trial would ask as many rounds of requests as it claims."""
    rounds = len(candidate.coverage.new) if candidate is not None and candidate.coverage is not None else 0
    if candidate is None or rounds <= _MOST_ROUNDS:
        return []
    cure = f"compile one here: nvllm bless {candidate.image} --profile {candidate.profile}"
    expected = f"at most {_MOST_ROUNDS} rounds of requests"
    return [Refusal("NV108", "--candidate", expected, f"a claim of {rounds}", cure)]


def _not_extensible(
    examination: Examination, blessings: Blessings, existing: tuple[Blessing, ...], signers: Path | None, now: float
) -> list[Refusal]:
    """Return why the cache of one of EXISTING may not be loaded. Age and a small number of trials do not matter."""
    plan = examination.plan
    factors = servehash.factors(plan)
    query = BlessingQuery(plan.image, plan.profile, plan.serve_hash, factors, plan.dev, now, signers)
    refusals = [refusal for blessing in existing for refusal in blessing.refusals]
    for path, blessed in whole(existing):
        refusals += blessings.against(path, blessed, query)
    return [refusal for refusal in refusals if refusal.blame not in {"few trials", "age"}]


def _signable(plan: LaunchPlan, key: Path | None, signers: Path | None) -> None:
    """Raise Refused NV909 if KEY cannot sign, or belongs to nobody in SIGNERS, which the profile of PLAN requires."""
    command = f"nvllm bless {plan.image} --profile {plan.profile} --sign KEY"
    if key is None:
        if signers is not None:
            expected = f"a key of a signer in {signers}, for the profile requires a signature"
            raise refuse("NV909", "--sign", expected, "no key", command)
        return
    signed = signature.sign(b"", key, "--sign")
    if signers is not None:
        signature.verify(b"", signed, signers, f"--sign {key}", f"{command} of a signer, or add this key to {signers}")
