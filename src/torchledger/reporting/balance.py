"""The balance sheet of a run: a table of accounts, and every line that explains them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torchledger.nouns import Account, BalanceSheet, Difference, Gap
from torchledger.printable import counted, ended
from torchledger.reporting.document import Block, Section, Sentence, Table, Tone, as_plain, columns


def balance_as_plain(balance: BalanceSheet) -> dict[str, Any]:
    """Account name to what it holds, ``is_balanced`` included."""
    return {
        name: as_plain(account) | {"is_balanced": account.is_balanced} for name, account in balance.accounts.items()
    }


def balance_section(balance: BalanceSheet, *, top: int) -> Section:
    """The accounts as a table, and at most ``top`` lines of each that explain it."""
    accounts = tuple(balance.accounts.values())
    table = Table(
        columns("account", "ledger", "reference", "difference", "missing", "state"),
        tuple(
            (
                account.name,
                account.ledger,
                account.reference if account.reference is not None else "",
                sum(difference.amount for difference in account.differences) if account.differences else "",
                len(account.missing) or "",
                _state(account)[0],
            )
            for account in accounts
        ),
        tones=tuple(_state(account)[1] for account in accounts),
    )
    if not any(account.differences for account in accounts):
        table = table.without(("difference",))
    details = (block for account in accounts for block in _account_details(account, top=top))
    return Section("Balance sheet", (table, *details))


def _state(account: Account) -> tuple[str, Tone | None]:
    if account.is_balanced:
        return "balanced", "good"
    if account.is_balanced is None:
        return "not measured" if account.missing else "no independent count", "quiet"
    if account.missing:
        return "entry missing" if len(account.missing) == 1 else "entries missing", "bad"
    return "does not balance", "bad"


def _account_details(account: Account, *, top: int) -> list[Block]:
    lines = _account_lines(account)
    blocks: list[Block] = list(lines[:top])
    if len(lines) > top:
        blocks.append(
            Sentence(f"{account.name}: {counted(len(lines) - top, 'further reason')}; --json has all.", "quiet")
        )
    if account.note:
        blocks.append(Sentence(ended(f"{account.name}: {account.note}"), "quiet"))
    return blocks


def balance_lines(account: Account) -> tuple[str, Tone | None, list[tuple[str, Tone | None]]]:
    """An account's state in words with its tone, and every line that explains it."""
    lines = [(line.text, line.tone) for line in _account_lines(account)]
    if account.note:
        lines.append((ended(f"{account.name}: {account.note}"), "quiet"))
    return *_state(account), lines


def _account_lines(account: Account) -> list[Sentence]:
    lines = [
        Sentence(f"{account.name}: {_signed(amount)} {account.unit}: {reason} ({_places(where)})")
        for reason, where, amount in _merged(account.differences)
    ]
    lines += [
        Sentence(f"{account.name}: missing{_amount_of(amount, account.unit)}: {reason} ({_places(where)})", "bad")
        for reason, where, amount in _merged(account.missing)
    ]
    unexplained = _unexplained(account)
    if unexplained:
        direction = "more" if unexplained > 0 else "fewer"
        lines.append(
            Sentence(
                f"{account.name}: the ledger holds {round(abs(unexplained), 3):,} {account.unit} {direction} than "
                "the reference and the named differences explain",
                "bad",
            )
        )
    return lines


def _amount_of(amount: float, unit: str) -> str:
    return f" {round(amount, 3):,} {unit}" if amount else ""


def _unexplained(account: Account) -> float:
    """Ledger minus reference minus named differences, where nothing missing accounts for it; else 0."""
    if account.missing or account.is_balanced or account.ledger is None or account.reference is None:
        return 0
    return account.ledger - account.reference - sum(difference.amount for difference in account.differences)


def _merged(lines: Sequence[Difference] | Sequence[Gap]) -> list[tuple[str, list[str], float]]:
    """Lines of one reason as one: the reason, where it holds, and the sum of the known amounts."""
    merged: dict[str, tuple[list[str], list[float]]] = defaultdict(lambda: ([], []))
    for line in lines:
        where, amounts = merged[line.reason]
        where.append(line.where)
        amounts.append(line.amount or 0)
    return [(reason, where, sum(amounts)) for reason, (where, amounts) in merged.items()]


def _places(where: Sequence[str]) -> str:
    return where[0] if len(where) == 1 else f"{where[0]} and {len(where) - 1:,} more"


def _signed(amount: float) -> str:
    return f"{amount:+,}"
