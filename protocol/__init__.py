"""The contract between training side and devices: errors, keys, bundles, messages, topics.

Light to import: numpy and cryptography. ``protocol.mqtt`` loads paho, ``protocol.broker`` amqtt when it serves.
"""

from __future__ import annotations

from protocol.bundle import VerifiedBundle, open_bundle, write_bundle
from protocol.errors import FedtailorError
from protocol.keys import PrivateKey, PublicKey
from protocol.manifest import Manifest

__all__ = ["FedtailorError", "Manifest", "PrivateKey", "PublicKey", "VerifiedBundle", "open_bundle", "write_bundle"]
