"""Reports: a ledger or predictions in, data and then text out.

Enters: records and readers of ledgers. Leaves: for each question a frozen dataclass with the answer (``overview.py``,
``story.py``), the same as plain data for JSON (``as_plain``), and as a ``Document`` of headings, facts, tables and
sentences that ``terminal.py`` lays out. Nothing here prints; everything that came out of a ledger is shown as text and
never interpreted (``torchledger.printable``).
"""
