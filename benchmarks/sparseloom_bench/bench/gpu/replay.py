"""Captures calls in a CUDA graph and times them by events on the device, so that the host's time for a launch
does not count."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

from .operands import Call

#: Calls of one burst: about CALLS, more where they are short (two events and a graph's start cost some 5 us),
#: fewer where a slow peer would take the suite's whole time.
CALLS, MOST_CALLS, LEAST_CALLS = 10, 200, 3
SHORT_US, LONG_US = 2_000.0, 15_000.0
WARM_UP = 3
#: The pause before a burst is PAUSE_LENGTHS times the length of the burst before, within the other two, in
#: seconds. The card's power then stays far below its cap, as in a burst of 20 calls after a long idle time.
#: 100 calls in a row lose 13 % of the clock to that cap (dense bf16 on an H200).
PAUSE_LENGTHS, PAUSE_LEAST, PAUSE_MOST = 4.0, 0.005, 0.06
#: "Sustained" means at least so many calls, or this long where they are long, after HEAT_US of the same load.
#: The power cap takes 75 to 100 ms to settle the clock: dense bf16 begins at 344 us on a cool H200 and takes
#: 404 us from then on. A kernel that followed it within 20 ms ran at the clock that dense had left behind, in
#: 200 us instead of 177 us.
SUSTAINED_CALLS, SUSTAINED_US, SUSTAINED_REPLAYS, HEAT_US = 100, 100_000.0, 7, 125_000.0
#: Cycles of a kernel that does nothing for some 0.2 ms: the host queues a whole burst behind it, so that no
#: gap is timed.
SPIN = 400_000


def launches_for(us: float, sets: int) -> int:
    """Returns the calls of one burst for a product that takes about `us`, in whole turns over the sets."""
    wanted = min(max(CALLS, SHORT_US / us), MOST_CALLS)
    wanted = min(wanted, max(LEAST_CALLS, LONG_US / us))
    return max(1, math.ceil(wanted / sets)) * sets


def pause_after(seconds: float) -> float:
    """Returns the seconds to sleep after a burst of that length."""
    return min(max(PAUSE_LENGTHS * seconds, PAUSE_LEAST), PAUSE_MOST)


@cache
def capture_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def capture(body: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Captures what body queues in a graph.

    torch.cuda.graph would empty the allocator's cache each time, which takes minutes for this suite.
    """
    device, pool = torch.cuda.current_device(), torch.cuda.graph_pool_handle()
    graph, stream = torch.cuda.CUDAGraph(), capture_stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool)
        try:
            body()
            graph.capture_end()
        except BaseException:
            # A capture that fails leaves torch's allocator recording, and every later capture would fail with
            # it.
            for end in (graph.capture_end, lambda: torch._C._cuda_endAllocateToPool(device, pool)):
                with contextlib.suppress(RuntimeError):
                    end()
            raise
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def estimate_us(call: Call) -> float:
    """Returns the microseconds of a warm call launched from the host: an upper bound that only decides how
    many calls are timed."""
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    return max(0.5e6 * (time.perf_counter() - start), 0.1)


def synchronises(call: Call) -> bool:
    """Returns whether torch waits for the device inside the call, which no capture survives."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    return False


class Replay:
    """Runs one contender: its calls, one for each set of operands, take turns.

    They run in a graph, or are launched one by one when `graphed` is false.
    """

    def __init__(self, calls: Sequence[Call], graphed: bool = True) -> None:
        self._calls = calls
        #: The last result of each set. A call gets the memory of the set's former result, so outputs rotate
        #: as inputs do.
        self.outputs: deque[Tensor] = deque()
        #: Microseconds of a call: an upper bound until the first burst, then the last burst's time.
        self.us = estimate_us(calls[0])
        self.launches = launches_for(self.us, len(calls))
        with torch.cuda.stream(capture_stream(torch.cuda.current_device())):
            calls[-1]()  # what libraries keep for each stream must exist before the capture
        torch.cuda.synchronize()
        self._graph = capture(self._queue) if graphed else None
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    @property
    def graphed(self) -> bool:
        return self._graph is not None

    def _queue(self) -> None:
        for i in range(self.launches):
            if len(self.outputs) == len(self._calls):
                self.outputs.popleft()
            self.outputs.append(self._calls[i % len(self._calls)]())

    def replay(self) -> None:
        """Queues all launches once."""
        if self._graph is None:
            self._queue()
        else:
            self._graph.replay()

    def poisoned(self) -> Tensor:
        """Fills every output with NaN, replays, and returns the first set's result.

        Without a graph, the outputs' memory goes back to the allocator, which hands the NaN out again.
        """
        if self._graph is None:
            self._queue()
        for output in self.outputs:
            output.fill_(torch.nan)
        self.replay()
        torch.cuda.synchronize()
        return self.outputs[0]

    def same_bits(self) -> bool:
        """Returns whether the last results of all sets, whose operands are copies of one another, are equal
        in every bit."""
        first, *others = (output.contiguous().view(torch.uint8) for output in self.outputs)
        return all(torch.equal(other, first) for other in others)

    def burst(self) -> float:
        """Times one burst after a few calls to warm up; returns the microseconds of one of its calls."""
        torch.cuda._sleep(SPIN)
        for i in range(WARM_UP):
            self._calls[i % len(self._calls)]()
        self._start.record()
        self.replay()
        self._end.record()
        torch.cuda.synchronize()
        self.us = 1e3 * self._start.elapsed_time(self._end) / self.launches
        return self.us

    def sustained(self, during: Callable[[], None] = lambda: None) -> list[float]:
        """Times several replays without a pause and returns the microseconds of one call in each; calls
        `during` while they run."""
        wanted = min(SUSTAINED_CALLS, SUSTAINED_US / self.us)
        replays = max(SUSTAINED_REPLAYS, math.ceil(wanted / self.launches))
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
        for _ in range(math.ceil(HEAT_US / (self.us * self.launches))):
            self.replay()
        marks[0].record()
        for mark in marks[1:]:
            self.replay()
            mark.record()
        during()
        torch.cuda.synchronize()
        return [1e3 * before.elapsed_time(after) / self.launches for before, after in pairwise(marks)]


def in_turn(contenders: dict[str, Replay], rounds: int) -> dict[str, list[float]]:
    """Times one burst of each contender in every round, in a new order each round and after a pause; returns
    the microseconds of a call by contender and round."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    draw, order, spent = random.Random(0), list(contenders), 0.0
    for _ in range(rounds):
        draw.shuffle(order)
        for name in order:
            time.sleep(pause_after(spent))
            samples[name].append(contenders[name].burst())
            spent = samples[name][-1] * contenders[name].launches * 1e-6
    return samples
