"""The proofs of a series on other machines: of each patch both runs of its tests, on one machine.

Images and tests travel by digest. A machine that is lost proves nothing: another one gets the proofs of that patch.
What a machine answers is held against what it was sent, and its record names the machine's class.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.fleet import images, tasks, testfiles
from nvllm.fleet.images import PushedSet
from nvllm.fleet.machines import ClusterNode, MachinePool
from nvllm.fleet.registry import Repository
from nvllm.fleet.tasks import SAME_VERSION, Answer, ProofAnswer, ProofTask, SetImage
from nvllm.fleet.testfiles import PushedTests
from nvllm.image.builder import ImageBuilder
from nvllm.patches import proved
from nvllm.patches.proved import Arm, ProofRecord
from nvllm.trials import verdict
from nvllm.trials.ending import end_all
from nvllm.trials.proving import Job
from nvllm.trials.verdict import Ran


@dataclass
class ProofMachines:
    """Builds sets of patches of IMAGE with BUILDER, pushes them to REPOSITORY, and has the machines of POOL run proofs.

    PROFILE is what they serve.
    """

    pool: MachinePool
    builder: ImageBuilder
    repository: Repository
    image: str
    profile: str
    _pushed: dict[tuple[str, ...], PushedSet] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def prove(self, jobs: Sequence[Job]) -> Generator[tuple[ProofRecord, ...], None, None]:
        """Run the tests of JOBS without and with their patches, and yield the records of each job as it ends.

        Raises Refused at the first job that a machine refuses, NV343 if no machine is left, NV344 if one job is lost
        again and again, NV345 for an answer that does not fit its task, and what building or pushing an image raises.
        """
        root = self.builder.project.root
        nodes = [node for job in jobs for node in job.nodes]
        digests = {node: proved.file_sha256(root, node) for node in nodes}  # now: they may be edited before the answers
        sent = testfiles.push(root, nodes, self.repository, self.pool.progress)
        with ThreadPoolExecutor(min(len(jobs), len(self.pool.fitting()))) as threads:
            running = [threads.submit(self._proved, job, sent, digests) for job in jobs]
            try:
                for ended in as_completed(running):
                    yield ended.result()
            finally:
                for future in running:
                    future.cancel()
                end_all(running, self.pool.clear)

    def _proved(self, job: Job, sent: PushedTests, digests: Mapping[str, str]) -> tuple[ProofRecord, ...]:
        without, whole = self._image(job.sets.without), self._image(job.sets.whole)
        patch = job.sets.patch

        def attempt(count: int) -> tuple[ProofRecord, ...] | str:
            task = ProofTask(
                task=uuid.uuid4().hex,
                attempt=count,
                image=self.image,
                profile=self.profile,
                patch=patch.id,
                nodes=job.nodes,
                without=SetImage(job.sets.without, without.build_hash, without.manifest),
                whole=SetImage(job.sets.whole, whole.build_hash, whole.manifest),
                repository=self.repository.name.typed,
                tests=sent.digest,
                size=sent.size,
                host=self.pool.host,
            )
            answered = self.pool.ask_any(tasks.task_line(task), lambda _: None)
            return answered if isinstance(answered, str) else self._believed(task, job, digests, *answered)

        expected = "a machine that runs its tests to their end"
        return self.pool.until_answered(f"the proofs of {patch.id}", expected, attempt)

    def _image(self, chosen: tuple[str, ...]) -> PushedSet:
        """Return the image of CHOSEN, which is in the registry then; one is built at a time."""
        with self._guard:
            if chosen not in self._pushed:
                self._pushed[chosen] = images.push_set(self.builder, self.image, chosen, self.repository)
            return self._pushed[chosen]

    def _believed(
        self, task: ProofTask, job: Job, digests: Mapping[str, str], machine: ClusterNode, answer: Answer
    ) -> tuple[ProofRecord, ...]:
        """Return the records in ANSWER of MACHINE, once they are those of TASK, of JOB's patch and tests."""
        if not isinstance(answer, ProofAnswer) or (answer.task, answer.host) != (task.task, task.host):
            raise refuse("NV345", machine.name, f"the proofs of task {task.task}", "another answer", SAME_VERSION)
        patch, records = job.sets.patch, answer.records
        pairs: list[tuple[object, object]] = [(job.nodes, tuple(record.node for record in records))]
        for record in records:
            pairs += [
                (patch.id, record.patch),
                (patch.sha256, record.patch_sha256),
                (digests.get(record.node), record.test_sha256),
                (task.host, record.machine),
                (verdict.verdict(_ran(record.without), _ran(record.whole)), record.verdict),
            ]
            for chosen, arm in ((job.sets.without, record.without), (job.sets.whole, record.whole)):
                pushed = self._pushed[chosen]  # an engine calls an image by its manifest, or by its configuration
                pairs.append((pushed.manifest if arm.image == pushed.manifest else pushed.config, arm.image))
        refuse_any(
            Refusal("NV345", machine.name, str(sent), str(answered), SAME_VERSION)
            for sent, answered in pairs
            if sent != answered
        )
        self.pool.progress.note(f"the tests of {patch.id} ran on {machine.name}")
        return records


def _ran(arm: Arm) -> Ran:
    return Ran(arm.outcome, arm.text)
