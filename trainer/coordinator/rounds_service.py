"""Rounds over a broker: what devices send goes to the rounds, what the rounds decide goes to the devices."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.delivery import Deliverer, Event, Refusal, Settled
from protocol.delivery_events import Fetched, NotFetched
from protocol.envelope import Envelope
from protocol.errors import DeadlineError, FedtailorError
from protocol.fleet_messages import Presence
from protocol.message_checks import ReasonCode
from protocol.messages import Offer, RoundResult
from protocol.outbox import OutboxFullError, Place
from protocol.reasons import reason_code
from trainer.coordinator.broadcast import Broadcast
from trainer.coordinator.journal import HEARTBEAT, PRESENT
from trainer.coordinator.open_round import Answer, OpenRound
from trainer.coordinator.presence import PresenceTable
from trainer.coordinator.rounds import Happened, Rounds

POLL_SECONDS = 0.5
DRAIN_SECONDS = 0.002  # how long to wait for one more message before those that came are made durable together
MOST_TOGETHER = 64
HEARTBEAT_SECONDS = 2.0
STATE_LIFETIME_SECONDS = 7 * 86_400.0
SPARE_BYTES = 64 * 1024  # of an update, beyond the state it began with
LOGGER = logging.getLogger(__name__)


@dataclass
class RoundsService:
    """A coordinator at work; for one thread.

    Args:
        deliverer: Delivery over an open connection; its inbox is the journal's.
        rounds: The rounds.
        broadcast: What everybody hears.
        bundle: Digest of the bundle that devices must have in use.
        observe: Told each step of a round.
        patience: Seconds to wait for devices before giving up; None for ever.
        clock: Seconds since 1970, UTC.
    """

    deliverer: Deliverer
    rounds: Rounds
    broadcast: Broadcast
    bundle: str
    observe: Callable[[Happened], None] = lambda _: None
    patience: float | None = None
    clock: Callable[[], float] = time.time
    presence: PresenceTable = field(default_factory=PresenceTable)
    ended: bool = False

    def __post_init__(self) -> None:
        """Begin with nobody told: whoever has not answered an earlier process is asked again."""
        self.deliverer.admit = self._admit
        self._tasks: dict[Place, tuple[int, str]] = {}
        self._told: set[tuple[int, int, str]] = set()  # round, attempt, device
        self._served: set[str] = set()
        self._waiting_since, self._next_heartbeat = self.clock(), 0.0
        self._publish_again()

    def step(self, seconds: float = POLL_SECONDS) -> None:
        """Handle what comes within some seconds, and do all that is due.

        Raises:
            DeadlineError: Too few devices came for longer than the patience.
            DivergenceError: A round came to a state that is not finite.
        """
        due = max(0.0, min(seconds, self.rounds.due - self.clock()))
        self._handle(self._gather(due))
        now = self.clock()
        for happened in self.rounds.advance(self.presence.present(now, self.bundle), now):
            self._announce(happened)
        self._ask()
        self._check_patience(now)
        self.broadcast.head(self.rounds.number, "closed" if self.ended else "paused" if self.rounds.paused else "open")
        self.broadcast.work()
        self._note(now)

    def _gather(self, seconds: float) -> list[Event]:
        """Return the events that come together: they become durable in one transaction."""
        events, wait = list[Event](), max(seconds, DRAIN_SECONDS)
        while len(events) < MOST_TOGETHER:
            event = self.deliverer.receive(wait)
            if event is None:
                break
            events.append(event)
            wait = DRAIN_SECONDS
        return events

    def _handle(self, events: list[Event]) -> None:
        """Take what came."""
        messages, answers, now = list[Envelope](), list[tuple[int, str, Answer]](), self.clock()
        for event in events:
            if isinstance(event, Settled):
                answers += self._task_settled(event)
            elif isinstance(event, Refusal):
                self._note_refusal(event.error)
            elif isinstance(event, Fetched | NotFetched):
                LOGGER.warning("a coordinator fetches nothing: %s", event)
            elif isinstance(event.message, Presence):
                self.presence.heard(event.header.sender, event.message, event.header.expires)
            else:
                self.presence.seen(event.header.sender, now)
                messages.append(event)
        self.rounds.answered(answers)
        if messages:
            for receipt in self.rounds.take(messages, now):  # durable before the first is sent
                if not receipt.accepted:
                    LOGGER.info("refused: %s: %s", receipt.device, receipt.reason)
                self.deliverer.post_receipt(receipt)

    def _admit(self, peer: str, offer: Offer) -> tuple[ReasonCode, str] | None:
        """Say why a large message is not fetched: nobody waits for it, or it is larger than any update can be."""
        current = self.rounds.current
        if current is None or not current.is_open:
            return "late", "no round is open; wait for a task"
        if peer not in current.asked or peer in current.counted:
            return "unselected", f"no update of {peer} is awaited in round {current.number}"
        most = 2 * len(self.rounds.downlink(peer)[1]) + SPARE_BYTES
        return ("too-large", f"an update has at most {most} bytes") if offer.size > most else None

    def _announce(self, happened: Happened) -> None:
        """Tell devices and people what a round did."""
        current = happened.round
        if happened.what == "published" and current is not None:
            self._publish(current)
        elif happened.what == "closed":
            self._withdraw_tasks()
        elif happened.what == "ended":
            if self.ended:
                return
            self.ended = True
        self.observe(happened)

    def _ask(self) -> None:
        """Send tasks to the devices that were asked and have not been told."""
        current = self.rounds.current
        if current is None or not current.is_open:
            return
        tasks = []
        for device in current.awaited:
            name = (current.number, current.asked[device].attempt, device)
            if name not in self._told and current.asked[device].answer == "none":
                task = self.rounds.task_for(device)
                self._serve(task.state, current)
                tasks.append((task, device))
        if not tasks:
            return
        try:
            places = self.deliverer.send_all(tasks, expires=current.deadline)
        except OutboxFullError as error:
            LOGGER.warning("%s; nobody can be asked", error.sentence())
            return
        for place, (task, device) in zip(places, tasks, strict=True):
            self._tasks[place] = (task.round, device)
            self._told.add((task.round, task.attempt, device))

    def _task_settled(self, settled: Settled) -> list[tuple[int, str, Answer]]:
        """Return round, device, and what the device said to its task."""
        number, device = self._tasks.pop(settled.waiting.place, (-1, settled.waiting.peer))
        if settled.receipt is None:
            return []
        self.presence.seen(device, self.clock())
        if settled.receipt.accepted:
            return [(number, device, "taken")]
        LOGGER.info("%s declines round %d: %s", device, number, settled.receipt.reason)
        return [(number, device, "declined")]

    def _withdraw_tasks(self) -> None:
        """Ask nobody any more: the round is closed."""
        for place in self._tasks:
            self.deliverer.outbox.settle(place)
        self._tasks.clear()
        self._told.clear()

    def _publish(self, current: OpenRound) -> None:
        """Say what a round came to, and let devices fetch it; earlier states are served no longer."""
        assert current.result is not None  # noqa: S101  # it was published
        path = self.rounds.states.path(current.number + 1)
        for transfer in self._served:
            self.deliverer.withdraw(transfer)
        self._served = {current.result}
        self.deliverer.serve(path, "state", round_number=current.number, expires=self.clock() + STATE_LIFETIME_SECONDS)
        now_open = self.rounds.current
        self.rounds.states.stop_serving({asked.base for asked in now_open.asked.values()} if now_open is not None else set())
        result = RoundResult(current.number, current.result, path.stat().st_size, len(current.counted))
        topics = self.broadcast.topics
        self.broadcast.result(result, topics.results)
        further = self.rounds.exchange.announcement(self.rounds.state, current.number)
        if further is not None:
            self.broadcast.result(further, topics.prototypes)

    def _publish_again(self) -> None:
        """Say the latest result once more after a start, and let devices fetch what they begin with."""
        current = self.rounds.current
        if current is not None and current.result is not None:
            self._publish(current)
        elif current is not None and (before := self.rounds.journal.round(current.number - 1)) is not None:
            self._publish(before)
        if current is not None and current.is_open:
            for device in current.awaited:  # one that took its task asks for the state alone
                self._serve(self.rounds.downlink(device)[0], current)

    def _serve(self, digest: str, current: OpenRound) -> None:
        """Let devices fetch what they begin with."""
        if digest not in self._served:
            path = self.rounds.states.served(digest)
            self.deliverer.serve(path, "state", round_number=current.number, expires=self.clock() + STATE_LIFETIME_SECONDS)
            self._served.add(digest)

    def _check_patience(self, now: float) -> None:
        """Give up when too few devices come for too long."""
        current = self.rounds.current
        waits = not self.ended and (current is None or current.phase == "published" or now > current.deadline) and not self.rounds.paused
        self._waiting_since = self._waiting_since if waits else now
        if self.patience is not None and now - self._waiting_since > self.patience:
            here = len(self.presence.present(now, self.bundle))
            expected = f"{self.rounds.plan.minimum_devices} devices within {self.patience:g} s"
            hint = "start devices, or lower --min-devices; the journal keeps what came"
            raise DeadlineError(f"too few devices for round {self.rounds.number}", expected=expected, got=f"{here} present", hint=hint)

    def _note(self, now: float) -> None:
        """Write down that this process lives, for ``coordinator status``."""
        if now < self._next_heartbeat:
            return
        self._next_heartbeat = now + HEARTBEAT_SECONDS
        with self.rounds.journal.transaction():
            self.rounds.journal.note(HEARTBEAT, f"{now:.3f}")
            self.rounds.journal.note(PRESENT, str(len(self.presence.present(now, self.bundle))))

    def _note_refusal(self, error: FedtailorError) -> None:
        """Log and count what nobody could believe."""
        LOGGER.info("refused: %s", error.sentence())
        self.rounds.note_refusal(reason_code(error), error.sentence())
