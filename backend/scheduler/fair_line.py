"""A bounded line in which tenants take turns.

Laws: whoever has the least waiting is let in last to be refused: a full line refuses, or puts out,
the newest of the tenant that has most in it. Within a tenant, first come, first served.
"""

from collections import OrderedDict, deque
from collections.abc import Collection
from typing import Generic, TypeVar

JobT = TypeVar("JobT")


class FairLine(Generic[JobT]):
    """Not thread-safe, by design."""

    def __init__(self, most: int) -> None:
        """At most ``most`` wait, of all tenants together."""
        self._most = most
        self._jobs: OrderedDict[str, deque[JobT]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, tenant: str, job: JobT) -> JobT | None:
        """Let ``job`` wait; return who has no place because of it, perhaps itself."""
        self._jobs.setdefault(tenant, deque()).append(job)
        self._count += 1
        if self._count <= self._most:
            return None
        # Of equals the one who came last, so that nobody is put out for an equal.
        loser = max(self._jobs, key=lambda each: (len(self._jobs[each]), each == tenant))
        return self._removed(loser, self._jobs[loser][-1])

    def take(self, busy: Collection[str] = ()) -> tuple[str, JobT] | None:
        """Take out whose turn it is, of tenants that are not ``busy``, if anybody's."""
        tenant = next((each for each in self._jobs if each not in busy), None)
        if tenant is None:
            return None
        job = self._removed(tenant, self._jobs[tenant][0])
        if tenant in self._jobs:
            self._jobs.move_to_end(tenant)
        return tenant, job

    def leave(self, tenant: str, job: JobT) -> None:
        """Take ``job`` out, if it waits."""
        if job in self._jobs.get(tenant, ()):
            self._removed(tenant, job)

    def _removed(self, tenant: str, job: JobT) -> JobT:
        jobs = self._jobs[tenant]
        jobs.remove(job)
        if not jobs:
            del self._jobs[tenant]
        self._count -= 1
        return job
