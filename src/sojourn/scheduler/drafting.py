"""How many drafts each sequence may have in a step: as many as make the step's tokens come sooner. Pure.

        expected tokens of a sequence with k drafts    1 + p1 + p1 p2 + ... (k terms)     p_j: draft j stands if those before do
        pace of a step                                 expected tokens of all / seconds of a step of so many rows

Drafts are given one by one to whoever gains most by one more, and of all those steps the one with the best pace is taken,
with one bound: nobody's own pace falls by more than a tenth for what others gain. What stood for long is believed for long,
so each round of which nothing stands halves what its sequence may have, until something does.

Where no draft is worth its row, none are given, but now and then a probe: a small ask that stays open until the drafter has
something to say. A small share of all time without drafts is saved up for probes. The first that had none takes of it at once,
for nothing is known of it; one that failed must wait until it has saved the price itself, and longer each time. And where all
drafts stand for long, twice as many are tried for once: what more rows cost may have changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from sojourn.core.errors import law
from sojourn.scheduler.step_cost import StepCost

_MEMORY = 12.0  # trials that count; older ones fade
_MEMORY_OF_ALL = 200.0
_TRUST = 4.0  # trials that what was seen in general stands for
_HOPE = 0.6  # of a draft before anything was seen
_PATIENCE = 1.1
_FASTER = 1.02  # estimates are not so good that less were worth a draft
_GAIN_MIN = 0.02  # tokens: less is not worth looking at
_PROBE_DRAFTS = 2
_PROBE_SHARE = 0.015  # of the time, at most, for probes
_SAVED_MAX = 4.0  # decodes
_RARITY_MAX = 16  # times rarer, after as many probes that failed
_ALL_STOOD = 12  # rounds in a row, before more are tried
_COMPARE_FIRST = 2  # steps with drafts, after which one goes without
_COMPARE_MAX = 48  # each time twice as many, up to so many


class _Trials:
    """How often the j-th draft stood where those before it did; what is long ago counts less."""

    def __init__(self, places: int, memory: float) -> None:
        self._fade = 1 - 1 / memory
        self.stood = [0.0] * places
        self.tried = [0.0] * places

    def add(self, num_drafted: int, num_accepted: int) -> None:
        for place in range(min(num_drafted, num_accepted + 1, len(self.tried))):
            self.stood[place] = self.stood[place] * self._fade + (place < num_accepted)
            self.tried[place] = self.tried[place] * self._fade + 1

    def rate(self, place: int, otherwise: float) -> float:
        return (self.stood[place] + _TRUST * otherwise) / (self.tried[place] + _TRUST)


@dataclass(slots=True, eq=False)
class Acceptance:
    """What became of one request's drafts. Made, asked and told by the policy."""

    trials: _Trials
    gains: list[float] = field(default_factory=list)  # of the j-th draft, in tokens; empty: not computed since
    idle: int = 0  # times that no draft was worth it since the last one
    rarity: int = 1  # of probes
    misses: int = 0  # rounds of which nothing stood, in a row
    hits: int = 0  # rounds of which everything stood, in a row
    num_drafted: int = 0
    num_accepted: int = 0


class DraftPolicy:
    """One per engine: what is learned of costs and of drafts in general is everybody's."""

    def __init__(self, drafts_max: int, guess: float = 0.0) -> None:
        """`guess`: what it may cost to make a draft, in decodes, until it is measured."""
        law(drafts_max >= 0, "%d drafts at most", drafts_max)
        self.drafts_max = drafts_max
        self._cost = StepCost(guess)
        self._saved = 0.0  # decodes that probes may cost
        self._general = _Trials(drafts_max, _MEMORY_OF_ALL)
        self._compare_after = _COMPARE_FIRST
        self._compare_in = _COMPARE_FIRST

    def acceptance(self) -> Acceptance:
        """Of a new request: nothing is known but what holds in general."""
        return Acceptance(_Trials(self.drafts_max, _MEMORY))

    def measured(self, rows: int, seconds: float) -> None:
        """A step without prompts computed `rows` rows, and took so long, drafting included."""
        self._cost.measured(rows, seconds)

    def learn(self, acceptance: Acceptance, num_drafted: int, num_accepted: int) -> None:
        """Of `num_drafted` drafts the first `num_accepted` stood."""
        law(0 <= num_accepted <= num_drafted, "%d of %d drafts accepted", num_accepted, num_drafted)
        if num_drafted == 0:
            return
        is_probe = acceptance.idle > 0
        if is_probe:
            self._saved -= self._price(1)
        acceptance.num_drafted += num_drafted
        acceptance.num_accepted += num_accepted
        acceptance.trials.add(num_drafted, num_accepted)
        self._general.add(num_drafted, num_accepted)
        acceptance.gains = []
        acceptance.idle = 0
        acceptance.misses = 0 if num_accepted else acceptance.misses + 1
        acceptance.hits = acceptance.hits + 1 if num_accepted == num_drafted else 0
        if num_accepted == num_drafted:
            acceptance.rarity = 1
        elif is_probe:
            acceptance.rarity = min(2 * acceptance.rarity, _RARITY_MAX)

    def choose(self, asking: Sequence[tuple[Acceptance, int]]) -> list[int]:
        """The most drafts of each sequence that decodes in the step, given how many it has room for."""
        chosen = self._best([(acceptance, self._most(acceptance, room)) for acceptance, room in asking])
        if any(chosen):
            self._compare_in -= 1
            if self._compare_in < 0:
                self._compare_in = self._compare_after = min(2 * self._compare_after, _COMPARE_MAX)
                return [0] * len(chosen)
        is_probing = False
        for index, (acceptance, room) in enumerate(asking):
            if chosen[index] > 0:
                if acceptance.hits > _ALL_STOOD:
                    acceptance.hits = 0
                    chosen[index] = self._most(acceptance, min(room, 2 * chosen[index]))
                continue
            if room < 1:
                continue
            acceptance.idle += 1
            self._saved = min(self._saved + _PROBE_SHARE, _SAVED_MAX)
            if not is_probing and self._may_probe(acceptance, len(asking)):
                chosen[index] = min(room, self.drafts_max, _PROBE_DRAFTS)
                is_probing = True  # one in a step
        return chosen

    def _most(self, acceptance: Acceptance, room: int) -> int:
        return min(room, max(self.drafts_max >> acceptance.misses, min(1, self.drafts_max)))

    def _may_probe(self, acceptance: Acceptance, number: int) -> bool:
        price = self._price(number)
        is_new = acceptance.num_drafted == 0
        return self._saved >= price and (is_new or acceptance.idle * _PROBE_SHARE > price * acceptance.rarity)

    def _price(self, number: int) -> float:
        """Of a probe, in steps of so many sequences; at most a decode for each draft, so that what was measured amiss is
        measured again."""
        price = self._cost.relative(number + _PROBE_DRAFTS) / self._cost.relative(number) - 1
        return min(price, _PROBE_DRAFTS / number)

    def _best(self, asking: Sequence[tuple[Acceptance, int]]) -> list[int]:
        """As many as make the best pace, for sequences that may have so many each."""
        number = len(asking)
        given, best = [0] * number, [0] * number
        heap = [(-self._gains(acceptance)[0], index) for index, (acceptance, most) in enumerate(asking) if most > 0]
        if not heap:
            return best
        heapify(heap)
        alone = self._cost.relative(number)
        own = [1.0] * number  # expected tokens of each
        tokens, rows, best_pace = float(number), number, _FASTER * number / alone
        while -heap[0][0] > _GAIN_MIN:
            gain, index = -heap[0][0], heap[0][1]
            given[index] += 1
            own[index] += gain
            tokens, rows = tokens + gain, rows + 1
            acceptance, most = asking[index]
            heapreplace(heap, (-self._gains(acceptance)[given[index]] if given[index] < most else 0.0, index))
            seconds = self._cost.relative(rows)
            if tokens / seconds > best_pace and seconds <= _PATIENCE * alone * min(own):
                best, best_pace = given.copy(), tokens / seconds
        return best

    def _gains(self, acceptance: Acceptance) -> list[float]:
        """Tokens that the j-th draft adds, expected: falling."""
        if not acceptance.gains:
            reach, general = 1.0, _HOPE
            for place in range(self.drafts_max):
                general = self._general.rate(place, general)
                reach *= acceptance.trials.rate(place, general)
                acceptance.gains.append(reach)
        return acceptance.gains
