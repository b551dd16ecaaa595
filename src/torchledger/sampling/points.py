"""What identifies a question put to a device."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any


def point_id(
    operator: str, parameters: Mapping[str, Any], direction: str, dtype: str, device: str, protocol: str
) -> str:
    """The name of one measurement: equal for equal questions, whatever the order of the parameters.

    ``protocol`` says how it is measured (``"warm-2+10"``), so that another way of measuring is another point.
    """
    shape = ",".join(f"{name}={parameters[name]}" for name in sorted(parameters))
    text = "|".join((operator, shape, direction, dtype, device, protocol))
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
