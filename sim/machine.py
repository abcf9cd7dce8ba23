"""The simulated hardware: devices, the memory that they share (where they slow each other down), and links.

When a device starts or stops computing, the progress of all jobs at the old speed is recorded (settled), and the
earliest end at the new speed is scheduled. The end scheduled before stays in SimPy's queue and is ignored later.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from math import ceil, inf
from operator import attrgetter
from typing import Any

from simpy import Environment, Event
from simpy.events import NORMAL

from costs.lane_messages import Hop
from costs.ticks import one_in_ticks


class Wake(Event):
    """A `simpy.Timeout` with one callback, created without SimPy's checks for speed: most events are of this class."""

    def __init__(self, env: Environment, delay: float, callback: Callable[[Event], Any]) -> None:
        self.env = env
        self.callbacks = self._kept = [callback]
        self._value = None
        self._ok = True
        env.schedule(self, NORMAL, delay)

    def again(self, delay: float) -> None:
        """Schedule this event again after it was processed; SimPy removed its callbacks, so restore them."""
        self.callbacks = self._kept
        self.env.schedule(self, NORMAL, delay)


class Job:
    """Work on one device, which takes `work_s` if the other device is idle.

    Attributes:
        bytes_per_s: the bandwidth that it draws when alone.
        done_s: work done (in seconds alone) when the memory last settled.
        slowdown: elapsed time over work done since then.
        place: index of its device in the memory.
        marks: (time, work done) whenever the memory settled; only if the memory `has_marks`.
    """

    __slots__ = ("bytes_per_s", "done_s", "marks", "place", "slowdown", "work_s")
    marks: list[tuple[float, float]]
    place: int
    slowdown: float

    def __init__(self, work_s: float, bytes_per_s: float = 0.0) -> None:
        self.work_s, self.bytes_per_s = work_s, bytes_per_s
        self.done_s = 0.0

    def end_times_s(self, works_s: Sequence[float]) -> list[float]:
        """Return when the job started, and when each of its consecutive pieces of work ended. Call it at its end."""
        times, done = zip(*self.marks, strict=True)
        ends_s = [times[0]]
        for done_s in accumulate(works_s):
            after = min(max(bisect_left(done, done_s), 1), len(done) - 1)
            slowdown = (times[after] - times[after - 1]) / (done[after] - done[after - 1])
            end_s = times[after - 1] + slowdown * (done_s - done[after - 1])
            ends_s.append(min(max(times[0], end_s), times[-1]))
        return ends_s


Jobs = Iterator[Job | None]
"""An operation's jobs in order, each requested when the previous one has ended; None waits for `resume`."""
Slowdowns = Callable[[float, float], tuple[float, float]]
"""Maps the bandwidths that two devices draw alone to their slowdowns while both compute."""
NextJob = Callable[[], Job | None]
"""Returns the next job of a device, or None to be idle; called when the device's job has ended."""
_END = Job(0.0)
_place = attrgetter("place")


class SharedMemory:
    """One memory and the one or two devices that use it.

    `slowdowns` combines measured slowdowns and fair shares of the bandwidth, see `costs.contention`; `has_marks` lets
    jobs tell when each of their pieces ended (`Job.end_times_s`).
    """

    def __init__(self, env: Environment, slowdowns: Slowdowns, *, has_marks: bool = False) -> None:
        self.env = env
        self._slowdowns, self._has_marks = slowdowns, has_marks
        self._next_jobs: list[NextJob] = []  # one per device
        self._active: list[Job] = []  # in the order of their devices
        self._first: Job | None = None  # the active job that ends first
        self._settled_s = self._ends_s = self._asked_s = env.now
        self._wake: Wake | None = None
        self._asked: list[int] = []  # devices whose jobs begin at `_asked_s`

    def join(self, next_job: NextJob) -> int:
        """Register a device and return its place."""
        self._next_jobs.append(next_job)
        return len(self._next_jobs) - 1

    def begin(self, place: int, job: Job) -> None:
        """Start a job on an idle device now."""
        self._take_up(place, job)
        self._set_pace()

    def begin_at(self, place: int, time_s: float) -> None:
        """Ask an idle device for a job at `time_s`; devices with the same time share one event and one re-timing."""
        if time_s != self._asked_s:
            self._asked_s, self._asked = time_s, []
            Wake(self.env, time_s - self.env.now, partial(self._ask, self._asked))
        self._asked.append(place)

    def cut(self, job: Job, step_s: float) -> int:
        """Shorten a job of equal steps to end at its next step boundary; return the number of steps that it keeps."""
        self._settle(self.env.now)
        num_steps = min(ceil(job.done_s / step_s), round(job.work_s / step_s))
        if num_steps * step_s != job.work_s:
            job.work_s = num_steps * step_s
            self._set_pace()
        return num_steps

    def _ask(self, places: Sequence[int], _: Event) -> None:
        num_active = len(self._active)
        for place in places:
            job = self._next_jobs[place]()
            if job is not None:
                self._take_up(place, job)
        if len(self._active) > num_active:
            self._set_pace()

    def _take_up(self, place: int, job: Job) -> None:
        self._settle(self.env.now)
        job.place = place
        active = self._active
        active.append(job)
        if len(active) > 1:
            active.sort(key=_place)
        if self._has_marks:
            job.marks = [(self._settled_s, 0.0)]

    def _settle(self, now_s: float) -> None:
        elapsed_s = now_s - self._settled_s
        if not elapsed_s:
            return
        self._settled_s = now_s
        for job in self._active:
            job.done_s += elapsed_s / job.slowdown
            if self._has_marks:
                job.marks.append((now_s, job.done_s))

    def _set_pace(self) -> None:
        """Set the speeds of the active jobs, and schedule the end of the one that ends first."""
        active = self._active
        if not active:
            return
        first = active[0]
        if len(active) > 1:
            first_s = inf
            one, other = active
            one.slowdown, other.slowdown = self._slowdowns(one.bytes_per_s, other.bytes_per_s)
            for job in active:
                left_s = (job.work_s - job.done_s) * job.slowdown
                if left_s < first_s:
                    first_s, first = left_s, job
        else:
            first.slowdown, first_s = 1.0, first.work_s - first.done_s
        if first_s < 0:
            first_s = 0.0
        self._first, self._ends_s = first, self._settled_s + first_s
        if self._wake is not None and self._wake.callbacks is None:
            self._wake.again(first_s)
        else:
            self._wake = Wake(self.env, first_s, self._end)

    def _end(self, event: Event) -> None:
        if event is not self._wake:
            return
        self._settle(self._ends_s)
        ended = self._first
        assert ended is not None, "nothing to end"
        ended.done_s = ended.work_s
        following, active = self._next_jobs[ended.place](), self._active
        if following is None:
            active.remove(ended)
        else:
            following.place = ended.place
            active[active.index(ended)] = following
            if self._has_marks:
                following.marks = [(self._settled_s, 0.0)]
        self._set_pace()


class SimulatedDevice:
    """A device that runs one operation at a time, first in, first out.

    Half of the dispatch (`half_s`, in whole ticks) passes between sending an operation and its start, the other half
    between its end and the reply; the sender waits for both, while the device is free. A second stream of a device is
    another `SimulatedDevice` of the same memory; a group of devices (`costs.cost_model.GroupCost`) is a single one.
    """

    def __init__(self, memory: SharedMemory, *, half_s: float = 0.0) -> None:
        self._memory, self._env, self._half_s = memory, memory.env, half_s
        self._computes = False
        self._under_way: Jobs | None = None
        self._queue: deque[tuple[float, Jobs]] = deque()  # time of arrival, operation
        self._place = memory.join(self._next_job)

    def submit(self, jobs: Jobs, *, after_s: float = 0.0) -> None:
        """Queue an operation that is sent `after_s` from now; calls must be in the order of sending."""
        now_s = self._env.now
        arrives_s = now_s + after_s + self._half_s
        self._queue.append((arrives_s, jobs))
        if len(self._queue) == 1 and self._under_way is None:
            if arrives_s > now_s:
                self._memory.begin_at(self._place, arrives_s)
            else:
                self._go_on()

    def resume(self) -> None:
        """Continue an operation that waits (that yielded None)."""
        if self._under_way is not None and not self._computes:
            self._go_on()

    def _next_job(self) -> Job | None:
        """Return the next job of the current operation, else the first job of the next operation that has arrived."""
        queue = self._queue
        while True:
            if self._under_way is not None:
                job = next(self._under_way, _END)
                if job is not _END:
                    self._computes = job is not None
                    return job
                self._under_way = None
            if not queue:
                self._computes = False
                return None
            arrives_s = queue[0][0]
            if arrives_s > self._env.now:
                self._computes = False
                self._memory.begin_at(self._place, arrives_s)
                return None
            self._under_way = queue.popleft()[1]

    def _go_on(self) -> None:
        job = self._next_job()
        if job is not None:
            self._memory.begin(self._place, job)


class Link:
    """One direction of a link; `name` is its track in a trace.

    A message waits for earlier ones (until `free_s`), occupies the link for bytes / bandwidth, and arrives a latency
    later; the next message may follow during the latency.
    """

    def __init__(self, hop: Hop) -> None:
        self.name, self._latency_s, self._bytes_per_s = hop
        self.free_s = 0.0
        self._occupied_s: dict[float, float] = {}  # cached by bytes: there are few different sizes

    def send(self, num_bytes: float, sent_s: float) -> float:
        """Send a message at `sent_s`, not before any earlier call's; return when it arrives."""
        occupied_s = self._occupied_s.get(num_bytes)
        if occupied_s is None:
            occupied_s = self._occupied_s[num_bytes] = one_in_ticks(num_bytes / self._bytes_per_s)
        self.free_s = max(self.free_s, sent_s) + occupied_s
        return self.free_s + self._latency_s


Path = tuple[Link, ...]
"""Consecutive links; each forwards a message when all of it has arrived. An empty path takes no time."""


def send_along(path: Path, num_bytes: float, sent_s: float) -> float:
    """Send a message along a path that carries no other traffic; return when it arrives."""
    for link in path:
        sent_s = link.send(num_bytes, sent_s)
    return sent_s
