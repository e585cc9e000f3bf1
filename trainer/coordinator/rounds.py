"""Rounds on disk, without a network: what is decided becomes durable before anybody hears of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from protocol.envelope import Envelope, Header
from protocol.errors import RunFolderError, StaleMessageError
from protocol.fleet_messages import Receipt
from protocol.message_checks import MAXIMUM_REASON
from protocol.round_messages import RoundTask
from trainer.coordinator.admission import ACCEPTED, Verdict, judge_claim
from trainer.coordinator.exchanges import Exchange
from trainer.coordinator.journal import PAUSED, Journal, StoredUpdate
from trainer.coordinator.open_round import Answer, OpenRound
from trainer.coordinator.plan import RoundPlan
from trainer.coordinator.round_machine import RoundMachine
from trainer.coordinator.states import StateFiles

IDENTITY = "identity"
KEPT_ROUNDS = 2  # whose updates stay readable, to look at what a state was made of


@dataclass(frozen=True)
class Happened:
    """A round took a step that others must hear of."""

    what: Literal["opened", "asked-again", "closed", "published", "ended"]
    round: OpenRound | None


class Rounds:
    """The rounds of one run; for one thread of one process.

    Opening the folder again after any crash goes on where the journal stands, to the same result.

    Args:
        folder: Where journal and states lie.
        plan: How rounds are held.
        first: Number of the first round.
        exchange: What is exchanged.
        participants: Devices that take part; asked anew each time, as devices are enrolled and revoked.

    Raises:
        RunFolderError: The folder is of another exchange, or a state is damaged.
        DatabaseFileError: The journal is damaged.
    """

    def __init__(self, folder: Path, plan: RoundPlan, first: int, exchange: Exchange, participants: Callable[[], frozenset[str]]) -> None:
        self.plan = plan
        self.exchange = exchange
        self.states = StateFiles(folder / "states")
        self.journal = Journal(folder)
        self._first = first
        self._machine = RoundMachine(plan, first)
        self._participants = participants
        self._downlinks: dict[str, bytes] = {}  # of the present state
        self._served: dict[bytes, str] = {}
        try:
            self._begin(first)
            self.current = self.journal.latest_round()
            self._state = self._load_state()
        except BaseException:
            self.journal.close()
            raise

    @property
    def number(self) -> int:
        """Return the number of the round that is under way, or comes next."""
        current = self.current
        return current.number if current is not None and current.phase != "published" else self._machine.number_after(current)

    @property
    def state(self) -> bytes:
        """Return the server state before the round that is under way, or comes next."""
        return self._state

    @property
    def paused(self) -> bool:
        """Tell whether the operator paused the rounds."""
        return self.journal.noted(PAUSED) == "yes"

    @property
    def due(self) -> float:
        """Return when ``advance`` has something to do even if nothing comes, seconds since 1970."""
        return self._machine.due(self.current)

    def advance(self, present: Iterable[str], now: float) -> list[Happened]:
        """Take all steps that can be taken now, each durable before the next, and tell which.

        Args:
            present: Devices that are there.
            now: Seconds since 1970, UTC.

        Raises:
            DivergenceError: An aggregate is not finite; the round stays closed.
        """
        here, happened = sorted(set(present) & self._participants()), list[Happened]()
        while True:
            step = self._machine.next_step(self.current, now, paused=self.paused)
            if step == "end":
                return [*happened, Happened("ended", self.current)]
            if step == "wait":
                return happened
            done = self._take_step(step, here, now)
            if done is None:
                return happened
            happened.append(done)

    def take(self, envelopes: Sequence[Envelope], now: float) -> list[Receipt]:
        """Judge messages of devices and make the answers durable, in one transaction; only then may they be sent."""
        with self.journal.transaction():
            after, receipts = self.current, list[Receipt]()
            for envelope in envelopes:
                receipt, after = self._answer(envelope, after, now)
                receipts.append(receipt)
        self.current = after
        return receipts

    def note_refusal(self, code: str, sentence: str) -> None:
        """Count a payload that nobody could believe."""
        with self.journal.transaction():
            self.journal.note_refusal(code, sentence)

    def answered(self, answers: Iterable[tuple[int, str, Answer]]) -> None:
        """Note what devices said to their tasks: round, device, answer; for another round than the latest it says nothing any more."""
        after = self.current
        news = list[tuple[int, str, Answer]]()
        for number, device, answer in answers:
            if after is not None and after.number == number and device in after.asked and after.asked[device].answer != answer:
                news.append((number, device, answer))
                after = after.with_answer(device, answer)
        if news:
            with self.journal.transaction():
                for row in news:
                    self.journal.save_answer(*row)
            self.current = after

    def task_for(self, device: str) -> RoundTask:
        """Return the task of a device that the open round asked."""
        current = self.current
        if current is None or device not in current.asked:
            raise RunFolderError("no round asks this device", got=device)
        digest, content = self.downlink(device)
        scalars = self.exchange.scalars(self._state)
        asked = current.asked[device]
        return RoundTask(
            current.number, asked.attempt, current.deadline, digest, len(content), self.plan.seed, self.exchange.payload, scalars,
            self.plan.encoding,
        )  # fmt: skip

    def downlink(self, device: str) -> tuple[str, bytes]:
        """Return SHA-256 and content of what a device begins the present round with."""
        if device not in self._downlinks:
            self._downlinks[device] = self.exchange.downlink(self._state, device)
        content = self._downlinks[device]
        if content not in self._served:
            self._served[content] = self.states.serve(content)[0]
        return self._served[content], content

    def close(self) -> None:
        """Close the files."""
        self.journal.close()

    def _begin(self, first: int) -> None:
        """Write the state before the first round, or make sure that the folder is of the same rounds."""
        identity = f"{self.exchange.payload} from round {first}"
        known = self.journal.noted(IDENTITY)
        if known is None:
            self.states.save(first, self.exchange.first_state())
            with self.journal.transaction():
                self.journal.note(IDENTITY, identity)
        elif known != identity:
            raise RunFolderError("the coordinator's folder is of other rounds", expected=identity, got=known, hint="move it away")

    def _load_state(self) -> bytes:
        """Return the server state that the journal says is the latest."""
        current = self.current
        if current is None:
            return self.exchange.first_state()
        if current.result is not None:
            return self.states.load(current.number + 1, current.result)
        return self.states.load(current.number, current.state)

    def _take_step(self, step: str, present: list[str], now: float) -> Happened | None:
        """Take one step, durable when this returns; None when devices are missing."""
        current = self.current
        if step == "open":
            number = self._machine.number_after(current)
            digest = self.states.save(number, self._state)
            opened = self._machine.open(number, digest, present, lambda device: self.downlink(device)[0], now)
            return None if opened is None else self._keep(opened, "opened")
        assert current is not None  # noqa: S101  # every other step is of a round
        if step == "ask-again":
            again = self._machine.ask_again(current, present, lambda device: self.downlink(device)[0], now)
            return None if again is None else self._keep(again, "asked-again")
        if step == "close":
            return self._keep(replace(current, phase="closed"), "closed")
        return self._publish(current, now)

    def _publish(self, current: OpenRound, now: float) -> Happened:
        """Aggregate a closed round; the state is on disk before the journal names it."""
        content = self.exchange.aggregate(self._state, tuple(self.journal.updates(current.number)), current.number)
        digest = self.states.save(current.number + 1, content)
        after = replace(current, phase="published", result=digest)
        with self.journal.transaction():
            self.journal.save_round(after)
            self.journal.save_seconds(current.number, now - current.opened)
            self.journal.drop_contents_before(current.number - KEPT_ROUNDS + 1)
        self.states.prune(self._first, current.number + 1)
        self.current, self._state = after, content
        self._downlinks, self._served = {}, {}
        return Happened("published", after)

    def _keep(self, after: OpenRound, what: Literal["opened", "asked-again", "closed"]) -> Happened:
        """Make a step durable."""
        with self.journal.transaction():
            self.journal.save_round(after)
        self.current = after
        return Happened(what, after)

    def _answer(self, envelope: Envelope, current: OpenRound | None, now: float) -> tuple[Receipt, OpenRound | None]:
        """Return the answer to one message, written but not yet durable, and the round after it."""
        header = envelope.header
        try:
            known = self.journal.inbox.find(header.sender, header.boot, header.sequence)
        except StaleMessageError as error:
            return _receipt(header, Verdict("stale", error.sentence())), current
        if known is not None:  # it came twice before the first was durable
            return known, current
        verdict = self._judge(envelope, current, now)
        receipt = _receipt(header, verdict)
        self.journal.inbox.record(receipt)
        claim = self.exchange.claim(header.sender, envelope.message)
        if not verdict.accepted:
            self.journal.note_refusal(verdict.code, f"{header.sender}: {verdict.reason}")
        elif claim is not None and current is not None:
            content, metrics = self.exchange.store(envelope.message)
            stored = StoredUpdate(header.sender, header.boot, header.sequence, claim.sample_count, metrics, content)
            self.journal.add_update(current.number, stored)
            current = current.with_count(header.sender, claim.sample_count)
        return receipt, current

    def _judge(self, envelope: Envelope, current: OpenRound | None, now: float) -> Verdict:
        """Say whether a message counts."""
        sender, message = envelope.header.sender, envelope.message
        claim = self.exchange.claim(sender, message)
        if claim is None:
            return ACCEPTED if message.KIND == "evaluation-report/1" else Verdict("refused", f"these rounds take no {message.KIND}")
        verdict = judge_claim(claim, current, self._participants(), now)
        return self.exchange.judge(message, self.downlink(sender)[1]) if verdict.accepted else verdict


def _receipt(header: Header, verdict: Verdict) -> Receipt:
    """Return the receipt of a message."""
    line = "".join(letter if letter.isprintable() else " " for letter in verdict.reason)[:MAXIMUM_REASON]
    return Receipt(header.sender, header.boot, header.sequence, verdict.accepted, line, verdict.code)
