"""A sender and a receiver of one transfer with everything between them decided by bytes: losses, repeats, orders, restarts.

Time is a number. What outlives a restart of the receiver is what a disk would keep: the groups that were verified.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field

import pytest

from protocol import transfer_layout, transfer_source
from protocol.backoff import Backoff
from protocol.messages import Cancel, Done, Fail, Offer, Want
from protocol.transfer import Action, Ended, Finish, Say, SendChunk, TransferReceiver, TransferSender, Verify, Write
from protocol.transfer_files import group_digest
from protocol.transfer_layout import group_bytes
from protocol.transfer_source import BytesSource, offer_of

GROUP = 2048
CHUNK = 512
DEADLINE = 5000.0


def small_groups(patch: pytest.MonkeyPatch) -> None:
    """Make groups so small that a few kilobytes have several."""
    patch.setattr(transfer_layout, "GROUP_BYTES", GROUP)
    patch.setattr(transfer_source, "GROUP_BYTES", GROUP)


@dataclass
class Link:
    """Both machines, and what is on its way between them."""

    content: bytes
    now: float = 0.0
    to_receiver: deque[Offer | Fail | Cancel | tuple[int, bytes]] = field(default_factory=deque)
    to_sender: deque[Want | Done | Fail | Cancel] = field(default_factory=deque)
    disk: bytearray = field(default_factory=bytearray)
    verified: set[int] = field(default_factory=set)
    result: bytes | None = None
    ended: list[Ended] = field(default_factory=list)
    chunks_sent: int = 0

    def __post_init__(self) -> None:
        self.source = BytesSource(self.content)
        self.offer = offer_of(self.source, "state", chunk_bytes=CHUNK, round_number=None, expires=0.0)
        self.disk = bytearray(len(self.content))
        self.receiver: TransferReceiver | None = None
        self.start_sender()

    def start_sender(self) -> None:
        """Begin anew, as after a restart: a sender remembers nothing."""
        self.sender = TransferSender(self.offer, DEADLINE, backoff=Backoff(lambda: 0.5))
        self.sender_says(self.sender.start(self.now))

    def restart_receiver(self) -> None:
        """Forget everything but the disk; the next offer makes a new one. What was not verified may be lost."""
        if self.receiver is not None and self.result is None:
            for group in range(-(-len(self.content) // GROUP)):
                if group not in self.verified:
                    self.disk[group * GROUP : (group + 1) * GROUP] = bytes(len(self.disk[group * GROUP : (group + 1) * GROUP]))
            self.receiver = None

    def sender_says(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Say):
                assert isinstance(action.message, Offer | Cancel)
                self.to_receiver.append(action.message)

    def receiver_says(self, actions: list[Action]) -> None:
        waiting = deque(actions)
        while waiting:
            action = waiting.popleft()
            assert self.receiver is not None
            if isinstance(action, Write):
                self.disk[action.offset : action.offset + len(action.data)] = action.data
            elif isinstance(action, Verify):
                size = group_bytes(len(self.content))
                found = hashlib.sha256(self.disk[action.group * size : (action.group + 1) * size]).digest()
                good = found == group_digest(self.offer, action.group)
                self.verified |= {action.group} if good else set()
                waiting.extend(self.receiver.verified(action.group, good, self.now))
            elif isinstance(action, Finish):
                good = hashlib.sha256(self.disk).hexdigest() == self.offer.transfer
                self.result = bytes(self.disk) if good else None
                waiting.extend(self.receiver.finished(good))
            elif isinstance(action, Ended):
                self.ended.append(action)
            elif isinstance(action.message, Want | Done | Fail | Cancel):
                self.to_sender.append(action.message)

    def send_chunk(self) -> None:
        chunk = self.sender.next_chunk()
        if isinstance(chunk, SendChunk):
            self.chunks_sent += 1
            self.to_receiver.append((chunk.offset, self.source.read(chunk.offset, chunk.length)))

    def deliver_to_receiver(self) -> None:
        if not self.to_receiver:
            return
        item = self.to_receiver.popleft()
        if isinstance(item, Offer):
            if self.result is not None:
                self.to_sender.append(Done(item.transfer))  # it is stored already
            elif self.receiver is None:
                self.receiver = TransferReceiver(item, DEADLINE, set(self.verified), backoff=Backoff(lambda: 0.5))
                self.receiver_says(self.receiver.start(self.now))
            else:
                self.receiver_says(self.receiver.offered(item, self.now))
        elif self.receiver is not None:
            if isinstance(item, tuple):
                self.receiver_says(self.receiver.chunk(*item, self.now))
            else:
                self.receiver_says(self.receiver.hear(item))

    def deliver_to_sender(self) -> None:
        if self.to_sender:
            self.sender_says(self.sender.hear(self.to_sender.popleft(), self.now))

    def tick(self) -> None:
        self.sender_says(self.sender.tick(self.now))
        if self.receiver is not None:
            self.receiver_says(self.receiver.tick(self.now))


def damage(link: Link, operation: int, value: int) -> None:
    """Do one thing that a network or a machine may do."""
    queue: deque = link.to_receiver if value % 2 else link.to_sender
    if operation == 0 and queue:
        queue.popleft()  # lost
    elif operation == 1 and queue:
        queue.append(queue[0])  # twice
    elif operation == 2:
        queue.rotate(value // 2 - 64)  # in another order
    elif operation == 3:
        link.start_sender()
    elif operation == 4:
        link.restart_receiver()
    elif operation == 5 and link.to_receiver and isinstance(link.to_receiver[0], tuple):
        offset, data = link.to_receiver.popleft()  # type: ignore[misc]  # a chunk, as was just seen
        link.to_receiver.append((offset + CHUNK * (value % 3 - 1), data if value % 2 else data[:-1] + bytes([data[-1] ^ 1])))
    elif operation == 6:
        link.sender_says(link.sender.resize((512, 1024, 2048)[value % 3], link.now))
    elif operation == 7:
        link.to_receiver.clear()
        link.to_sender.clear()
        link.sender_says(link.sender.restarted(link.now))
        if link.receiver is not None:
            link.receiver.restarted(link.now)


def play(link: Link, schedule: bytes) -> None:
    """Let the bytes decide: half of them let things go their way, the others do damage or let time pass."""
    for place in range(0, len(schedule) - 1, 2):
        code, value = schedule[place], schedule[place + 1]
        if code < 112:
            for _ in range(code % 8):
                link.send_chunk()
                link.deliver_to_receiver()
                link.deliver_to_sender()
        elif code < 144:
            link.now += value / 16
            link.tick()
        else:
            damage(link, (code - 144) // 14, value)


def calm(link: Link) -> None:
    """From here on nothing goes wrong: the transfer ends, within the deadline."""
    for _ in range(4000):
        if link.result is not None or link.ended:
            return
        link.send_chunk()
        link.deliver_to_sender()
        link.deliver_to_receiver()
        if not link.to_receiver and not link.to_sender:
            link.now += 0.5
            link.tick()
