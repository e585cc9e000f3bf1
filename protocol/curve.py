"""Points of the curve of Ed25519, for one question: is a public key in the group that signatures are about (RFC 8032, section 5.1)?

Slow and not constant in time; it is asked once, when a key is enrolled, and public keys are no secret.
"""

from __future__ import annotations

from typing import TypeAlias

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, PRIME) % PRIME
Point: TypeAlias = tuple[int, int, int, int]  # extended coordinates X, Y, Z, T with x = X/Z, y = Y/Z, x y = T/Z
NEUTRAL: Point = (0, 1, 1, 0)


def has_prime_order(raw: bytes) -> bool:
    """Tell whether 32 bytes are the one spelling of a point whose order is the large prime.

    Keys of small order verify anything. To a key of that group one of small order can be added: the sum has seven other
    spellings of what is one private key, and implementations differ on its signatures ("Taming the many EdDSAs", 2020).
    """
    point = _decompress(raw)
    return point is not None and not _is_neutral(point) and _is_neutral(_times(ORDER, point))


def _decompress(raw: bytes) -> Point | None:
    """Return the point of an encoding, or None for one that is no point or not canonical (RFC 8032, section 5.1.3)."""
    number = int.from_bytes(raw, "little")
    y, sign = number & (2**255 - 1), number >> 255
    if len(raw) != 32 or y >= PRIME:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if x * x % PRIME != square:
        x = x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    if x * x % PRIME != square or (x == 0 and sign):
        return None
    x = x if x % 2 == sign else PRIME - x
    return x, y, 1, x * y % PRIME


def _add(one: Point, other: Point) -> Point:
    """Return the sum of two points (Hisil, Wong, Carter, Dawson 2008; RFC 8032, section 5.1.4)."""
    (x1, y1, z1, t1), (x2, y2, z2, t2) = one, other
    a, b = (y1 - x1) * (y2 - x2) % PRIME, (y1 + x1) * (y2 + x2) % PRIME
    c, d = 2 * t1 * t2 * D % PRIME, 2 * z1 * z2 % PRIME
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % PRIME, g * h % PRIME, f * g % PRIME, e * h % PRIME


def _times(scalar: int, point: Point) -> Point:
    """Return a multiple of a point."""
    result = NEUTRAL
    for bit in f"{scalar:b}":
        result = _add(result, result)
        if bit == "1":
            result = _add(result, point)
    return result


def _is_neutral(point: Point) -> bool:
    """Tell whether a point is the neutral one."""
    x, y, z, _ = point
    return x % PRIME == 0 and (y - z) % PRIME == 0
