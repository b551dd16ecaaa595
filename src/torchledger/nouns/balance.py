"""The balance sheet: each sum of the ledger beside an independent count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Gap:
    """Something that the ledger knows it does not know.

    ``account`` is the account it is missing from (``"launches"``, ``"flops"``, ``"bytes"``, ``"sources"``,
    ``"device_time"``), ``where`` the graph, launch or kernel, ``amount`` how much of the account's unit (``None``:
    unknown).
    """

    account: str
    where: str
    reason: str
    amount: int | float | None = None


@dataclass(frozen=True)
class Difference:
    """Work that compilation itself added or took away: named, with its amount (ledger minus reference).

    ``is_eager_too`` says that an eager step differs from the reference as well: the program asked for it, or the
    reference is of other sizes than those that a step's call has.
    """

    account: str
    where: str
    reason: str
    amount: int | float
    is_eager_too: bool = False


@dataclass(frozen=True)
class Account:
    """One line of the balance sheet.

    It balances when ``ledger == reference + sum(differences)`` and nothing is missing. ``tolerance`` is by which
    fraction of the reference two measurements of one thing may differ.
    """

    name: str
    unit: str
    ledger: int | float | None
    reference: int | float | None
    differences: tuple[Difference, ...] = ()
    missing: tuple[Gap, ...] = ()
    note: str | None = None
    tolerance: float = 0.0

    @property
    def is_balanced(self) -> bool | None:
        """True when the two counts agree once every named difference is applied and nothing is missing; ``None`` when
        there is no independent count to compare with and nothing is missing, or nothing was counted at all."""
        if self.ledger is None and self.reference is None:
            return None
        if self.missing:
            return False
        if self.ledger is None or self.reference is None:
            return None
        explained = self.reference + sum(difference.amount for difference in self.differences)
        # Times are sums of floats: equal to within a nanosecond is equal.
        allowed = max(self.tolerance * abs(self.reference), 1e-3 if self.unit == "us" else 0.0)
        return abs(self.ledger - explained) <= allowed


@dataclass(frozen=True)
class BalanceSheet:
    """All accounts of a run, by name."""

    accounts: Mapping[str, Account] = field(default_factory=dict)

    @property
    def is_balanced(self) -> bool:
        """True when no account is out of balance."""
        return all(account.is_balanced is not False for account in self.accounts.values())


@dataclass(frozen=True)
class EagerCount:
    """FLOPs of an eager run, by operator, as ``FlopCounterMode`` counts them, beside the ledger's total.

    ``is_step`` says that exactly one whole step of the program was run; the total is then that of the recorded step.
    """

    flops_by_op: Mapping[str, int]
    ledger_flops: int
    is_step: bool = False

    @property
    def flops(self) -> int:
        """Total over the operators."""
        return sum(self.flops_by_op.values())
