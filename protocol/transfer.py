"""Both sides of a transfer as state machines without I/O: events and the time go in, actions come out.

The receiver drives: it asks (WANT) for chunks that it lacks, a few at a time, and what does not come is asked for again.
Nothing is lost by forgetting: a sender that restarts offers again, a receiver that restarts asks for what its store
lacks. Content counts when each group has the digest that the signed offer states; a wrong group is thrown away and asked
for again, at most three times. The idea of a bitmap of wanted blocks is that of AWS IoT file streams.

Times are seconds of a clock that never goes back.
"""

from __future__ import annotations

from protocol.transfer_actions import Action, Ended, Finish, Say, SendChunk, Verify, Write
from protocol.transfer_receiver import TransferReceiver
from protocol.transfer_sender import TransferSender

__all__ = ["Action", "Ended", "Finish", "Say", "SendChunk", "TransferReceiver", "TransferSender", "Verify", "Write"]
