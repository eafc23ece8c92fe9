"""Faults to plant: each is a mistake engines have made. The simulator must notice every one (tests/sim/test_mutants.py)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    path: str  # below src/sojourn
    old: str
    new: str


MUTANTS = (
    Mutant(
        "the window list not cut with the full list",
        "pages/holding.py",
        "            if keep < pages.size:\n",
        "            if keep < pages.size and ledger.pool is Pool.FULL:\n",
    ),
    Mutant(
        "tail freed from a page's middle",
        "pages/holding.py",
        "        keep = self.layout.pages_for(length)\n",
        "        keep = max(length // holding.page_size, holding.cache_protected_len // holding.page_size)\n",
    ),
    Mutant(
        "slot kept while lent",
        "sessions/slot.py",
        "        holding, self.holding, self.tokens = self.holding, None, None\n",
        "        holding = self.holding\n",
    ),
    Mutant(
        "the queue of idle slots keeps the lent one",
        "sessions/slots.py",
        "        self._idle.remove(slot)\n        self._take_turn",
        "        self._take_turn",
    ),
    Mutant(
        "abort keeps the turn's tokens",
        "sessions/slots.py",
        "            self.book.cut(holding, slot.settled)\n",
        "            pass\n",
    ),
    Mutant(
        "lease not returned on close",
        "cache/radix.py",
        "        self.book.close(holding)\n        self.tree.take_back(lease)\n",
        "        self.book.close(holding)\n",
    ),
    Mutant(
        "speculative pages published",
        "cache/radix.py",
        "        end = min(length, holding.kv_committed_len) // size\n",
        "        holding.kv_committed_len = holding.kv_allocated_len\n"
        "        end = min(len(tokens), holding.kv_allocated_len) // size\n",
    ),
    Mutant(
        "no fence",
        "pages/ledger.py",
        "        pages = pages.copy()\n        if self._in_flight:\n",
        "        pages = pages.copy()\n        if False:\n",
    ),
    Mutant(
        "eviction ignores leases",
        "cache/node.py",
        "        return self.num_leases > 0 or self.num_guarded_children > 0\n",
        "        return False\n",
    ),
    Mutant(
        "eviction ignores leases of window pages",
        "cache/tree.py",
        "                counts += delta\n",
        "                counts += 0\n",
    ),
    Mutant(
        "retract treated as finish",
        "sessions/slots.py",
        "            case Verdict.RETRACTED:\n",
        "            case Verdict.RETRACTED if request.holding is not None:\n"
        "                self._finish(slot, request, request.num_tokens - request.num_prompt)\n"
        "            case Verdict.RETRACTED:\n",
    ),
    Mutant(
        "a refused turn clears the running turn's claim",
        "sessions/slots.py",
        "            law(request.holding is None and outcome",
        "            if slot is not None:\n                slot.turn = None\n"
        "            law(request.holding is None and outcome",
    ),
    Mutant(
        "the window slides behind the running turn's start",
        "sessions/slots.py",
        "holding_of(request), length, self._settled(request), self._make_room)\n",
        "holding_of(request), length, 0, self._make_room)\n",
    ),
    Mutant(
        "the window slides one page too far",
        "pages/sizing.py",
        "        return max(0, length - self.window) // self.page_size\n",
        "        return max(0, length - self.window) // self.page_size + 1\n",
    ),
    Mutant(
        "a swapped page is not told to the runner",
        "pages/holding.py",
        "            self.changed_from = min(self.changed_from, first + changed.item(0))\n",
        "            pass\n",
    ),
    Mutant(
        "a resumed holding's table is not told anew",
        "pages/holding.py",
        "            pages.changed_from = pages.live_from\n",
        "            pass\n",
    ),
    Mutant(
        "a namespace is ignored",
        "cache/match.py",
        "        node, at = roots.get(namespace), 0\n",
        "        node, at = next(iter(roots.values()), None), 0\n",
    ),
    Mutant(
        "a match's pages are taken after its node was split",
        "cache/radix.py",
        "        holding = self.book.open(request.label, lease, pages)\n",
        "        holding = self.book.open(request.label, lease, self.tree.matcher.pages_of(match))\n",
    ),
    Mutant(
        "a match ignores dead windows",
        "cache/match.py",
        "            at = self.legal_point(np.concatenate([node.swa for node in path] or [NO_PAGES])[:at])\n",
        "            pass\n",
    ),
    Mutant(
        "a resume ignores dead windows",
        "pages/holding.py",
        "        return bool(holding.lists[Pool.SWA].pages[needed].all())\n",
        "        return True\n",
    ),
    Mutant(
        "a resume goes past what must be computed again",
        "sessions/slots.py",
        "point = self._resume_point(slot, len(request.reusable))\n"
        "            if point is not None:\n                return self._resume(",
        "point = self._resume_point(slot, request.num_tokens)\n"
        "            if point is not None:\n                return self._resume(",
    ),
    Mutant(
        "admission grows before it knows that it can",
        "sessions/slots.py",
        "                return False\n            while not inner.could_admit",
        "                pass\n            while len(self._idle) and not inner.could_admit",
    ),
    Mutant(
        "a refused turn drops the running turn's tokens",
        "sessions/service.py",
        "        following = after(session.state, TurnEvent.START)\n",
        "        if session.turn is not None:\n"
        "            session.history.abort(session.turn.claim)\n"
        "        following = after(session.state, TurnEvent.START)\n",
    ),
    Mutant(
        "a turn begins while another runs",
        "sessions/turns.py",
        "    SessionState.RUNNING: {\n",
        "    SessionState.RUNNING: {\n        TurnEvent.START: SessionState.RUNNING,\n",
    ),
    Mutant(
        "an abort keeps the prompt in the history",
        "sessions/history.py",
        '        """The turn is undone: the history is as it was before."""\n        self._own(claim)\n',
        '        """The turn is undone: the history is as it was before."""\n        self._append(self._pending)\n',
    ),
    Mutant(
        "a session expires while its turn runs",
        "sessions/service.py",
        "        self._deadlines.clear(session.session_id)\n        return request_id\n",
        "        return request_id\n",
    ),
    Mutant(
        "a zombie's result is taken",
        "scheduler/scheduler.py",
        "            if request.runs != launched.run or request.seq is None:\n",
        "            if request.seq is None:\n",
    ),
    Mutant(
        "a retracted request forgets what it said",
        "scheduler/scheduler.py",
        "        request.num_retractions += 1\n",
        "        request.num_retractions += 1\n        request.cached.num_tokens = request.cached.num_prompt\n",
    ),
    Mutant(
        "a stop string is looked for again after a retraction",
        "scheduler/scheduler.py",
        "        request.is_published = False\n",
        "        request.is_published = False\n"
        "        if request.matcher is not None:\n"
        "            for token in request.output_ids:\n"
        "                request.matcher.feed(token)\n",
    ),
    Mutant(
        "an interrupted turn loses its last token",
        "scheduler/scheduler.py",
        "            self._finish(request, Outcome(Verdict.FINISHED, request.num_outputs))\n"
        "            return Progress(request, (), Stop(FinishReason.INTERRUPT))\n",
        "            self._finish(request, Outcome(Verdict.FINISHED, request.num_outputs - 1))\n"
        "            return Progress(request, (), Stop(FinishReason.INTERRUPT))\n",
    ),
    Mutant(
        "a verified run is not trimmed at its stop",
        "sessions/slots.py",
        "            self.book.cut(holding, min(target, holding.kv_committed_len))\n",
        "            pass\n",
    ),
    Mutant(
        "rejected drafts are committed",
        "scheduler/scheduler.py",
        "        self._cache.commit(request.cached, span.end)\n",
        "        self._cache.commit(request.cached, launched.end)\n",
    ),
    Mutant(
        "a stop is looked for at the end of a verified run only",
        "scheduler/scheduler.py",
        "            if stop is not None:\n",
        "            if stop is not None and count == len(samples):\n",
    ),
    Mutant(
        "the client is told what a verified run says after its stop",
        "scheduler/scheduler.py",
        "                return Progress(request, samples[:count], stop, known)\n",
        "                return Progress(request, samples, stop, known)\n",
    ),
    Mutant(
        "places of drafts in flight are forgotten",
        "scheduler/flight.py",
        "        request.drafts_in_flight += drafts\n",
        "        pass\n",
    ),
    Mutant(
        "places of drafts in flight are counted for ever",
        "scheduler/scheduler.py",
        "        request.drafts_in_flight -= launched.drafts_max\n",
        "        pass\n",
    ),
    Mutant(
        "accepted drafts do not move those who ran ahead",
        "scheduler/scheduler.py",
        "        request.num_launched += span.num_computed - 1\n",
        "        pass\n",
    ),
    Mutant(
        "pages for one token where drafts may follow",
        "scheduler/scheduler.py",
        "            if self._cache.grow(request.cached, request.end_max(1 + share.drafts)):\n",
        "            if self._cache.grow(request.cached, request.end_max(1)):\n",
    ),
    Mutant(
        "one draft too many is accepted",
        "spec/accept.py",
        "    return samples[: num_accepted(drafts, samples) + 1]\n",
        "    return samples[: num_accepted(drafts, samples) + 2]\n",
    ),
    Mutant(
        "a draft stands after one that did not",
        "spec/accept.py",
        "            return count\n",
        "            return sum(draft == sample.token for draft, sample in zip(drafts, samples, strict=False))\n",
    ),
    Mutant(
        "drafts are verified past the last token",
        "runner/resolve.py",
        "            num_max = min(work.drafts_max, work.end_max - work.start - 1)\n",
        "            num_max = work.drafts_max\n",
    ),
    Mutant(
        "a request that has run out computes its last token",
        "runner/resolve.py",
        "        if start >= work.end_max:\n",
        "        if start > work.end_max:\n",
    ),
    Mutant(
        "who runs ahead takes the first token that was accepted",
        "runner/resolve.py",
        "            (tail.tokens[-1],),\n",
        "            (tail.tokens[0],),\n",
    ),
    Mutant(
        "a row given up is not told to the runner",
        "scheduler/scheduler.py",
        "        self._left_seqs.append(request.seq)\n",
        "",
    ),
    Mutant(
        "the window's cursor stays past the cut",
        "pages/holding.py",
        "        self.swept = min(self.swept, size)\n",
        "",
    ),
    Mutant(
        "the allocated length stays past the cut",
        "pages/holding.py",
        "        holding.kv_allocated_len = min(holding.kv_allocated_len, length)\n",
        "",
    ),
    Mutant(
        "draft pages past the finish are kept",
        "cache/drafts.py",
        "        self.book.cut(holding, min(length, holding.kv_committed_len))\n",
        "        self.book.cut(holding, holding.kv_allocated_len)\n",
    ),
    Mutant(
        "a draft holding is copied from the slot, not moved",
        "cache/drafts.py",
        "            request.draft, keeper.draft = keeper.draft, None\n",
        "            request.draft = keeper.draft\n",
    ),
    Mutant(
        "the draft model keeps what was rewound",
        "sessions/slots.py",
        "        self._drafts.cut(slot, length)\n",
        "",
    ),
    Mutant(
        "the draft model is said to have the prefix that the target found",
        "scheduler/scheduler.py",
        "cached.known, cached.draft_len)\n",
        "cached.known, cached.prefix_len)\n",
    ),
    Mutant(
        "the last guess is taken for read",
        "spec/draft_model.py",
        "            reading.ahead = reading.pending + guesses[:-1]\n",
        "            reading.ahead = reading.pending + guesses\n",
    ),
    Mutant(
        "the draft model reads past its pages",
        "spec/draft_model.py",
        "                length = min(ask.num_max, reading.num_places - reading.num_known + 1)\n",
        "                length = ask.num_max\n",
    ),
    Mutant(
        "pages that were read land in another order",
        "cache/tiers_back.py",
        "            rows = which - piece.full_from if pool is Pool.FULL",
        "            rows = (which - piece.full_from)[::-1] if pool is Pool.FULL",
    ),
    Mutant(
        "a page too many is taken for what was read",
        "cache/land.py",
        "allocate(account, end - have)\n",
        "allocate(account, end - have + 1)[:-1]\n",
    ),
    Mutant(
        "a tail is resumed on and was not written",
        "cache/tiers_back.py",
        "            self._kv.write_pages(pool, pages.pages[index : index + 1].copy(), rows)\n",
        "            pass\n",
    ),
    Mutant(
        "a page's name does not say what comes before it",
        "cache/tiers_names.py",
        "hashlib.blake2b(before + what,",
        "hashlib.blake2b(what,",
    ),
)
